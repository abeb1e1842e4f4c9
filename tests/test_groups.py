"""Parameter groups: options per group, one trust region over all of them."""

import copy
import warnings

import pytest
import torch

from arturo import Arturo

PER_GROUP = {
    "prior_weight": 0.3,
    "prior_precision": 0.5,
    "covariance_weight": 0.7,
    "noise": 2.0,
    "drift": 0.3,
    "initial_curvature": 0.4,
    "initial_variance": 0.02,
    "initial_filter_variance": 0.3,
    "curvature_floor": 0.2,
    "weight_decay": 0.9,
    "init": "gradient",
    "maximize": True,
    "foreach": True,
}
SPLITS = {"pairs": [2, 3], "singles": [1, 1, 1, 1, 1], "last alone": [4, 1]}


def split(params, sizes):
    return [
        {"params": list(part)} for part in torch.tensor(range(len(params))).split(sizes) for part in [[params[i] for i in part]]
    ]


def test_options_from_the_constructor_equal_options_in_the_group(every, quadratic, snapshot):
    """Arturo's ``dual`` and ``eta`` are the constructor's; everything else may stand in the dict instead."""
    of_all = {name: every.options[name] for name in ("dual", "eta") if name in every.options}
    from_constructor = every(quadratic.params())
    in_group = {name: value for name, value in copy.deepcopy(every.options).items() if name not in of_all}
    from_group = every.kind([{"params": quadratic.params(), **in_group}], **of_all)
    assert quadratic.train(from_constructor, 6) == quadratic.train(from_group, 6)
    assert snapshot(from_constructor) == snapshot(from_group)


@pytest.mark.parametrize("name", PER_GROUP)
@pytest.mark.parametrize("capturable", [False, True])
def test_each_option_acts_on_its_group_alone(name, capturable, quadratic, snapshot):
    """With eta fixed the groups do not touch: each must follow an optimizer that has its options and nothing else."""
    plain, special = quadratic.params([(4, 3)]), quadratic.params([(4, 3)])
    common = {"eta": 2.0, "kl_bound": 0.01, "initial_curvature": 0.1, "capturable": capturable}
    together = Arturo([{"params": plain}, {"params": special, name: PER_GROUP[name]}], **common)
    alone = [
        Arturo(quadratic.params([(4, 3)]), **common),
        Arturo(quadratic.params([(4, 3)]), **{**common, name: PER_GROUP[name]}),
    ]
    for t in range(4):
        for optimizer in (together, *alone):
            for group in optimizer.param_groups:
                quadratic.gradients(group["params"], t)
            optimizer.step()
    assert snapshot(together) == snapshot(alone[0]) + snapshot(alone[1])
    if name != "foreach":
        assert snapshot(alone[0]) != snapshot(alone[1])


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_splitting_groups_changes_nothing(every, sizes, dtype, quadratic, snapshot):
    one, several = every(quadratic.params(dtype=dtype)), every(split(quadratic.params(dtype=dtype), sizes))
    for t in range(12):  # over a refresh of AdaArturo's bases
        assert quadratic.train(one, 1, t) == quadratic.train(several, 1, t)
        assert snapshot(one) == snapshot(several), f"step {t}"


def test_unlike_bounds_share_one_budget(kernel, quadratic):
    """Over f_g**2 = e_g / B, with e_g = kl_bound * lr**2, the groups spend the bound; as they stand, the reported kl."""
    params = quadratic.params([(4, 3), (5,), (6,)])
    rows = [(0.01, 1.0), (0.04, 0.5), (0.02, 0.1)]
    del kernel["kl_bound"]
    groups = [{"params": [p], "kl_bound": kl, "lr": lr} for p, (kl, lr) in zip(params, rows, strict=True)]
    optimizer = Arturo(groups, **kernel)
    quadratic.train(optimizer, 1)
    for t in range(1, 6):
        before = [(p.detach().double(), optimizer.state[p]["prec"].double()) for p in params]
        (info,) = quadratic.train(optimizer, 1, t)
        spent = [0.5 * (prec * (p.detach() - old).square()).sum().item() for p, (old, prec) in zip(params, before, strict=True)]
        assert info.bound == pytest.approx(0.01) and info.active
        assert sum(spent) == pytest.approx(info.kl, rel=1e-4) and info.kl < 0.999 * info.bound
        equal = sum(part * info.bound / (kl * lr**2) for part, (kl, lr) in zip(spent, rows, strict=True))
        assert equal == pytest.approx(info.bound, rel=2e-3)
        assert min(spent) > 0


@pytest.mark.parametrize("dual", ["newton", "bisection"])
def test_half_the_lr_is_half_the_step(dual, kernel, quadratic):
    """Step by step from the same state: the group at lr = 1/2 moves half as far as beside an equal, the other as far."""
    params, twins = (quadratic.params([(4, 3), (5,)], dtype=torch.float64) for _ in range(2))
    equal = Arturo([{"params": params[:1]}, {"params": params[1:]}], dual=dual, **kernel)
    half = Arturo([{"params": twins[:1]}, {"params": twins[1:], "lr": 0.5}], dual=dual, **kernel)
    for t in range(5):
        for p, twin in zip(params, twins, strict=True):
            twin.data.copy_(p)
            for name, value in equal.state[p].items():
                half.state[twin][name].copy_(value)
        before = [p.detach().clone() for p in params]
        (info,) = quadratic.train(equal, 1, t)
        for p, twin in zip(params, twins, strict=True):
            twin.grad = p.grad
        half.step()
        assert info.active and half.last_step.eta == pytest.approx(info.eta, rel=1e-12)
        torch.testing.assert_close(twins[0] - before[0], params[0] - before[0], rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(twins[1] - before[1], 0.5 * (params[1] - before[1]), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("lr", [0.0, 1e-28])
def test_a_group_with_no_or_a_vanishing_lr_does_not_move(lr, kernel, quadratic, snapshot):
    """At lr = 0 it is left out of the sums, and the others go as if alone; at a tiny one it counts in full and stands still."""
    params, still = quadratic.params(), quadratic.params([(4, 3)], seed=1)
    before = still[0].detach().clone()
    optimizer = Arturo([{"params": params}, {"params": still, "lr": lr}], **kernel)
    alone = Arturo(quadratic.params(), **kernel)
    beside = Arturo([{"params": quadratic.params()}, {"params": quadratic.params([(4, 3)], seed=1)}], **kernel)
    info = [quadratic.train(x, 1)[0] for x in (optimizer, alone, beside)]
    assert info[0].eta == info[1 if lr == 0 else 2].eta and info[1].eta != info[2].eta
    quadratic.train(optimizer, 3, 1)
    quadratic.train(alone, 3, 1)
    assert torch.equal(still[0], before)
    assert (snapshot(optimizer, params) == snapshot(alone)) is (lr == 0)


def test_a_group_with_a_vanishing_lr_beside_an_inactive_bound(kernel, quadratic):
    """eta = 0, so nothing but the curvature stands in the denominators: that group is still, not 0 / 0."""
    kernel |= {"kl_bound": 1e12, "initial_curvature": 0.1}
    params, still = quadratic.params([(4, 3)]), quadratic.params([(4, 3)], seed=1)
    before = still[0].detach().clone()
    info = quadratic.train(Arturo([{"params": params}, {"params": still, "lr": 1e-28}], **kernel), 3)
    assert all(x.eta == 0 and not x.active and x.kl > 0 for x in info)
    assert torch.equal(still[0], before) and torch.isfinite(params[0]).all()


@pytest.mark.parametrize("lr", [1e-28, 1e-6], ids=str)
def test_a_vanishing_lr_everywhere(lr, kernel, quadratic):
    """The step shrinks with lr and stays finite, whatever eta has to become."""
    params = quadratic.params()
    before = [p.detach().clone() for p in params]
    with pytest.warns(UserWarning, match="looks like a learning rate for AdamW"):
        info = quadratic.train(Arturo(params, lr=lr, **kernel), 3)
    for p, old in zip(params, before, strict=True):
        torch.testing.assert_close(p.detach(), old, rtol=0, atol=10 * lr)
    assert all(x.kl <= x.bound * 1.001 for x in info)


@pytest.mark.parametrize("eta", [None, 2.0], ids=["newton", "fixed"])
def test_add_param_group_mid_run(eta, kernel, quadratic, snapshot):
    """The new group starts afresh, the old one continues; with eta fixed both as if alone."""
    kernel["initial_curvature"] = 0.1  # else the new group takes over the unit of the old one: tests/test_loss_scale.py
    old, new = quadratic.params(), quadratic.params([(4, 3), (2,)], seed=1)
    optimizer = Arturo(old, eta=eta, **kernel)
    quadratic.train(optimizer, 3)
    optimizer.add_param_group({"params": new, "noise": 2.0})
    assert optimizer.param_groups[1]["kl_bound"] == kernel["kl_bound"]
    before = [p.detach().clone() for p in new]
    for t in range(3, 6):
        quadratic.gradients(old, t)
        quadratic.gradients(new, t)
        optimizer.step()
        assert optimizer.last_step.kl <= optimizer.last_step.bound * 1.001 or eta
    assert [optimizer.state[p]["step"].item() for p in old + new] == [6.0] * len(old) + [3.0] * len(new)
    assert not any(torch.equal(p, q) for p, q in zip(new, before, strict=True))
    if eta is not None:
        first, second = (
            Arturo(quadratic.params(), eta=eta, **kernel),
            Arturo(quadratic.params([(4, 3), (2,)], seed=1), eta=eta, noise=2.0, **kernel),
        )
        quadratic.train(first, 6)
        quadratic.train(second, 3, start=3)
        assert snapshot(optimizer) == snapshot(first) + snapshot(second)


@pytest.mark.parametrize("dual", ["newton", "bisection"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_late_parameter_takes_over_the_running_multiplier(dual, order, kernel, quadratic):
    """eta is that of a parameter that has stepped, whichever stands first: one that has not must not reset the search."""
    old, late = quadratic.params([(4, 3)]), quadratic.params([(5,)], seed=1)
    optimizer = Arturo((old + late)[::order], dual=dual, **kernel)
    quadratic.train(optimizer, 4, params=old)
    quadratic.gradients(late, 4)
    (info,) = quadratic.train(optimizer, 1, 4, params=old)
    reference = Arturo(quadratic.params([(4, 3)]), dual=dual, **kernel)
    quadratic.train(reference, 4)
    reference.add_param_group({"params": quadratic.params([(5,)], seed=1)})
    quadratic.gradients(reference.param_groups[1]["params"], 4)
    (expected,) = quadratic.train(reference, 1, 4, params=reference.param_groups[0]["params"])
    assert info == pytest.approx(expected, rel=1e-12) and info.evaluations == expected.evaluations


def test_the_bound_counts_the_weights_that_take_part(kernel, quadratic):
    """kl_bound=None grows with the weights that have a gradient and an lr."""
    kernel["kl_bound"] = None
    params = quadratic.params([(4, 3), (5,), (6,)])
    optimizer = Arturo([{"params": params[:2]}, {"params": params[2:], "lr": 0.0}], **kernel)
    (both,) = quadratic.train(optimizer, 1)
    params[1].grad = None
    (one,) = quadratic.train(optimizer, 1, start=1, params=[params[0], params[2]])
    assert one.bound / both.bound == pytest.approx(12 / 17)


@pytest.mark.parametrize("name, value", [("dual", "bisection"), ("eta", 2.0)])
def test_dual_and_eta_cannot_differ_between_groups(name, value, quadratic):
    """The first group sets them; a later one may repeat or leave them out, and only another value is an error."""
    params = quadratic.params([(2,), (3,)])
    with pytest.raises(ValueError, match=f"Invalid {name} value: {value!r}"):
        Arturo([{"params": params[:1]}, {"params": params[1:], name: value}])
    default = Arturo(params).param_groups[0][name]
    with pytest.raises(ValueError, match=f"Invalid {name} value: {default!r}"):
        Arturo([{"params": params[:1], name: value}, {"params": params[1:], name: default}])
    for second in ({}, {name: value}):
        optimizer = Arturo([{"params": params[:1], name: value}, {"params": params[1:], **second}])
        assert [group[name] for group in optimizer.param_groups] == [value, value]
        optimizer.add_param_group({"params": quadratic.params([(1,)])})
        assert optimizer.param_groups[2][name] == value
    optimizer = Arturo(params[:1])
    with pytest.raises(ValueError, match=f"Invalid {name} value: {value!r}"):
        optimizer.add_param_group({"params": params[1:], name: value})
    assert len(optimizer.param_groups) == 1
    Arturo([{"params": params[:1], name: value}, {"params": params[1:], name: value}], **{name: value})


def test_named_parameters_and_keys_of_the_users(plain, quadratic, snapshot):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    twins = quadratic.twins(model.parameters())
    named, unnamed = plain(model.named_parameters()), plain([{"params": twins, "name": "head"}])
    quadratic.train(named, 3)
    quadratic.train(unnamed, 3)
    assert snapshot(named) == snapshot(unnamed)
    assert named.param_groups[0]["param_names"] == ["weight", "bias"] == named.state_dict()["param_groups"][0]["param_names"]
    assert unnamed.state_dict()["param_groups"][0]["name"] == "head"


def test_what_torch_refuses(plain, quadratic):
    """An empty list, a bare tensor, a tensor that is no leaf, a parameter in two groups: torch's own errors."""
    (p,) = quadratic.params([(3,)])
    for params, error, words in [
        ([], ValueError, "empty parameter list"),
        (p, TypeError, "iterable of Tensors or dicts"),
        ([p * 2], ValueError, "can't optimize a non-leaf Tensor"),
        ([{"params": [p]}, {"params": [p]}], ValueError, "more than one parameter group"),
        ([3.0], TypeError, "optimizer can only optimize Tensors"),
    ]:
        with pytest.raises(error, match=words):
            plain(params)


def test_duplicate_parameters_warn_as_in_torch(plain, quadratic):
    (p,) = quadratic.params([(3,)])
    with warnings.catch_warnings(record=True) as ours:
        warnings.simplefilter("always")
        plain([p, p])
    with warnings.catch_warnings(record=True) as theirs:
        warnings.simplefilter("always")
        torch.optim.Adam([p, p])
    assert len(ours) == 1 and [str(w.message) for w in ours] == [str(w.message) for w in theirs]


@pytest.mark.parametrize("capturable", [False, True])
def test_the_first_group_speaks_for_all_even_at_lr_zero(capturable):
    """`eta` changed in mid-run is read from the first group, whether or not that group moves."""
    still, moving = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Arturo([{"params": [still], "lr": 0.0}, {"params": [moving]}], kl_bound=0.1, capturable=capturable)
    optimizer.param_groups[0]["eta"] = 7.0
    for p in (still, moving):
        p.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.last_step.eta == 7.0
