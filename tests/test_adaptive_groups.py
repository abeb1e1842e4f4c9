"""AdaArturo's parameter groups and learning rates: options per group, one trust region, steps proportional to lr."""

import copy
import inspect
import warnings

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from arturo import AdaArturo
from arturo.adaptive_step import PER_LR

PER_GROUP = {
    "betas": (0.5, 0.8),
    "covariance": "diagonal",
    "block": 2,
    "refresh": 4,
    "maximize": True,
}
SPLITS = {"pairs": [2, 3], "singles": [1, 1, 1, 1, 1], "last alone": [4, 1]}
ZEROS = {
    "float": (0.0, {}),
    "float-capturable": (0.0, {"covariance": "diagonal", "capturable": True}),
    "tensor": (torch.tensor(0.0), {}),
    "tensor-capturable": (torch.tensor(0.0), {"covariance": "diagonal", "capturable": True}),
    "tensor-2d-capturable": (torch.zeros(1, 1), {"covariance": "diagonal", "capturable": True}),
}
zeros = pytest.mark.parametrize("zero, options", ZEROS.values(), ids=ZEROS)
NOTHING = (0.0, 0.0, 0.0, 0, False, 0)


def full(zero):
    """An lr of the kind of this zero."""
    return torch.full_like(zero, 0.01) if isinstance(zero, torch.Tensor) else 0.01


def give(params, t):
    """Gradients that do not depend on the parameters."""
    for i, p in enumerate(params):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * t + i), dtype=p.dtype)


def test_options_from_the_constructor_equal_options_in_the_group(adaptive, quadratic, snapshot):
    from_constructor = AdaArturo(quadratic.params(), **adaptive)
    from_group = AdaArturo([{"params": quadratic.params(), **copy.deepcopy(adaptive)}])
    assert quadratic.train(from_constructor, 6) == quadratic.train(from_group, 6)
    assert snapshot(from_constructor) == snapshot(from_group)


@pytest.mark.parametrize("name", PER_GROUP)
def test_each_option_acts_on_its_group_alone(name, quadratic, snapshot):
    """Groups share nothing but the step's length: under given gradients each has the state it would have alone."""
    plain, special = quadratic.params([(4, 6)]), quadratic.params([(4, 6)])
    option = {name: PER_GROUP[name]}
    together = AdaArturo([{"params": plain}, {"params": special, **option}])
    place = torch.nn.Parameter(torch.ones(1))  # without a gradient: a parameter's place says when its basis is refreshed
    alone = [AdaArturo(quadratic.params([(4, 6)])), AdaArturo([place, *quadratic.params([(4, 6)])], **option)]
    assert together.param_groups[0][name] != together.param_groups[1][name] == PER_GROUP[name]
    for t in range(8):
        for optimizer in (together, *alone):
            for group in optimizer.param_groups:
                give([p for p in group["params"] if p is not place], t)
            optimizer.step()
    states = [state for optimizer in (together, *alone) for _, state in snapshot(optimizer) if state]
    assert states[:2] == states[2:] and states[0] != states[1]


def test_decay_acts_on_its_group_alone(geometry, quadratic):
    """Weights are multiplied by 1 - lr * weight_decay before the step; the other group does not notice."""
    params, twins = quadratic.params([(4, 3), (4, 3)], torch.float64), quadratic.params([(4, 3), (4, 3)], torch.float64)
    before = params[1].detach().clone()
    decayed = AdaArturo([{"params": params[:1]}, {"params": params[1:], "weight_decay": 2.0}], **geometry)
    plain = AdaArturo([{"params": twins[:1]}, {"params": twins[1:]}], **geometry)
    for optimizer in (decayed, plain):
        quadratic.train(optimizer, 1)
    assert torch.equal(params[0], twins[0])
    shrunk = 0.01 * 2.0 * before
    # The drift's anchor shrinks a matrix, too, by less than tau^2: the two factors multiply.
    torch.testing.assert_close(twins[1] - params[1], shrunk, rtol=(PER_LR * 0.01) ** 2, atol=1e-9)


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
def test_splitting_groups_changes_nothing(sizes, adaptive, quadratic, snapshot):
    params = quadratic.params()
    several = AdaArturo([{"params": list(part)} for part in split(params, sizes)], **adaptive)
    one = AdaArturo(quadratic.params(), **copy.deepcopy(adaptive))
    for t in range(12):
        assert quadratic.train(one, 1, t) == quadratic.train(several, 1, t)
    assert snapshot(one) == snapshot(several)


def split(params, sizes):
    places = iter(params)
    return [[next(places) for _ in range(n)] for n in sizes]


@pytest.mark.parametrize("lr", [1e-4, torch.tensor(1e-4, dtype=torch.float64)], ids=["float", "tensor"])
def test_a_group_at_a_tenth_of_the_lr_takes_a_tenth_of_the_step(lr, geometry, quadratic):
    """Alone and beside others, whose steps stay what they are. Vectors to rounding; a matrix also gives way to its anchor."""
    shapes = [(4, 6), (5,)]

    def moved(*groups):
        lists = [quadratic.params(shapes, torch.float64, seed=i) for i, _ in enumerate(groups)]
        optimizer = AdaArturo([{"params": p, "lr": x} for p, x in zip(lists, groups, strict=True)], **{**geometry, "lr": lr})
        params = [p for group in lists for p in group]
        start = [p.detach().clone() for p in params]
        give(params, 0)
        optimizer.step()
        return [p.detach() - old for p, old in zip(params, start, strict=True)]

    alone, slow = moved(lr), moved(lr * 0.1)
    both, mixed = moved(lr, lr), moved(lr, lr * 0.1)
    for fast, tenth in (*zip(alone, slow, strict=True), *zip(both[2:], mixed[2:], strict=True)):
        tolerance = 1e-9 if fast.dim() == 1 else PER_LR * float(lr)
        assert (tenth.norm() / fast.norm()).item() == pytest.approx(0.1, rel=tolerance)
        torch.testing.assert_close(tenth, 0.1 * fast, rtol=0, atol=tolerance * fast.abs().max().item())
    assert all(torch.equal(x, y) for x, y in zip(both[:2], mixed[:2], strict=True))


def test_unlike_rates_share_one_budget(geometry, quadratic):
    """kl <= bound, and equal where all groups have the same lr and the bound is active."""
    for lrs, equal in (((0.01, 0.01), True), ((0.01, 0.001), False), ((1e-9, 0.01), False)):
        params = quadratic.params([(4, 3), (5,)])
        groups = [{"params": [p], "lr": lr} for p, lr in zip(params, lrs, strict=True)]
        for info in quadratic.train(AdaArturo(groups, **geometry), 8):
            assert 0 < info.kl <= info.bound * (1 + 1e-9)
            if info.active:
                assert (info.kl / info.bound == pytest.approx(1, rel=1e-9)) == equal


@pytest.mark.parametrize("lr", [1e-28, 1e-7], ids=str)
def test_a_vanishing_lr(lr, geometry, quadratic):
    """The step shrinks with lr and stays finite; beside a group that moves, too."""
    still, moving = quadratic.params(seed=1), quadratic.params()
    before = [p.detach().clone() for p in still]
    optimizer = AdaArturo([{"params": still, "lr": lr}, {"params": moving}], **geometry)
    for info in quadratic.train(optimizer, 5):
        assert 0 < info.kl <= info.bound * (1 + 1e-9)
    for p, old in zip(still, before, strict=True):
        torch.testing.assert_close(p.detach(), old, rtol=0, atol=1e3 * lr)


def test_add_param_group_mid_run(geometry, quadratic, snapshot):
    """The new group starts afresh with the constructor's options, the old one goes on counting."""
    old, new = quadratic.params(), quadratic.params([(4, 3), (2,)], seed=1)
    optimizer = AdaArturo(old, **geometry)
    quadratic.train(optimizer, 3)
    optimizer.add_param_group({"params": new, "weight_decay": 0.5})
    assert optimizer.param_groups[1]["lr"] == geometry["lr"]
    before = [p.detach().clone() for p in new]
    quadratic.train(optimizer, 3, start=3)
    assert [optimizer.state[p]["step"].item() for p in old + new] == [6.0] * len(old) + [3.0] * len(new)
    assert not any(torch.equal(p, q) for p, q in zip(new, before, strict=True))


def test_a_late_parameter_has_its_own_first_step(geometry, quadratic, snapshot):
    """Its state after a late first gradient is that of a fresh optimizer after its first."""
    early, late = quadratic.params([(4, 3)]), quadratic.params([(3, 4)], seed=1)
    optimizer = AdaArturo(early + late, **geometry)
    quadratic.train(optimizer, 4, params=early)
    assert late[0] not in optimizer.state
    quadratic.train(optimizer, 1, start=4)
    fresh = AdaArturo(quadratic.params([(2,)]) + quadratic.params([(3, 4)], seed=1), **geometry)
    twin = fresh.param_groups[0]["params"][1]
    twin.grad = late[0].grad.clone()
    fresh.step()
    assert [s for _, s in snapshot(optimizer, late)] == [s for _, s in snapshot(fresh, [twin])]


def test_named_parameters_and_keys_of_the_users(quadratic, snapshot):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    twins = quadratic.twins(model.parameters())
    named, plain = AdaArturo(model.named_parameters()), AdaArturo([{"params": twins, "name": "head"}])
    quadratic.train(named, 3)
    quadratic.train(plain, 3)
    assert snapshot(named) == snapshot(plain)
    assert named.param_groups[0]["param_names"] == ["weight", "bias"] == named.state_dict()["param_groups"][0]["param_names"]
    assert plain.state_dict()["param_groups"][0]["name"] == "head"


def test_what_torch_refuses(quadratic):
    (p,) = quadratic.params([(3,)])
    for params, error, words in [
        ([], ValueError, "empty parameter list"),
        (p, TypeError, "iterable of Tensors or dicts"),
        ([p * 2], ValueError, "can't optimize a non-leaf Tensor"),
        ([{"params": [p]}, {"params": [p]}], ValueError, "more than one parameter group"),
        ([3.0], TypeError, "optimizer can only optimize Tensors"),
    ]:
        with pytest.raises(error, match=words):
            AdaArturo(params)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        AdaArturo([p, p])
    assert len(given) == 1 and "duplicate parameters" in str(given[0].message)


# ---- lr = 0


@zeros
def test_zero_from_the_start_makes_state_and_nothing_else(zero, options, quadratic, snapshot):
    params = quadratic.params()
    with torch.no_grad():
        params[1][0] = -0.0
    optimizer = AdaArturo(params, lr=zero.clone() if isinstance(zero, torch.Tensor) else zero, weight_decay=2.0, **options)
    before = [snapshot(optimizer, [p])[0][0] for p in params]
    assert quadratic.train(optimizer, 1) == [NOTHING]
    first = snapshot(optimizer)
    assert [p for p, _ in first] == before
    assert all("M" in optimizer.state[p] and optimizer.state[p]["step"] == 0 for p in params)
    assert quadratic.train(optimizer, 3, start=1) == [NOTHING] * 3
    assert snapshot(optimizer) == first


@zeros
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("warm", [0, 3])
def test_steps_at_zero_leave_no_trace(zero, options, dtype, warm, quadratic, snapshot):
    """warm steps, two at lr = 0, three more: the same bits as without the two in the middle, before and after a refresh."""
    paused, straight = (AdaArturo(quadratic.params(dtype=dtype), lr=full(zero), weight_decay=2.0, **options) for _ in range(2))
    quadratic.train(paused, warm)
    quadratic.train(straight, warm)
    paused.param_groups[0]["lr"] = zero
    before = snapshot(paused)
    said = quadratic.train(paused, 2, start=100)
    assert said == [NOTHING] * 2
    if warm:
        assert snapshot(paused) == before
    paused.param_groups[0]["lr"] = full(zero)
    quadratic.train(paused, 3, start=warm)
    quadratic.train(straight, 3, start=warm)
    assert snapshot(paused) == snapshot(straight)


@zeros
@pytest.mark.parametrize("order", [1, -1])
def test_zero_in_one_group_only(zero, options, order, quadratic, snapshot):
    """That group keeps its bits, missing entries and all, and the others follow the run in which it is not there."""
    live, dead = quadratic.params(), quadratic.params([(4, 3), (2,)], seed=1)
    groups = [{"params": live, "lr": full(zero)}, {"params": dead, "lr": zero}]
    optimizer, alone = AdaArturo(groups[::order], **options), AdaArturo(quadratic.params(), lr=full(zero), **options)
    before = [p for p, _ in snapshot(optimizer, dead)]
    for t in range(4):
        quadratic.gradients(live, t)
        quadratic.gradients(dead, t)
        dead[0].grad[0, 0] = float("nan")
        optimizer.step()
        if t == 0:
            first = snapshot(optimizer, dead)
        quadratic.train(alone, 1, t)
        assert optimizer.last_step == pytest.approx(alone.last_step, rel=1e-12)
    assert [p for p, _ in snapshot(optimizer, dead)] == before and snapshot(optimizer, dead) == first
    assert snapshot(optimizer, live) == snapshot(alone)


@pytest.mark.parametrize("lr", [-1e-17, torch.tensor(-1e-17)], ids=["float", "tensor"])
def test_an_lr_that_rounding_made_negative_is_zero(lr, geometry, quadratic, snapshot):
    optimizer = AdaArturo(quadratic.params(), **geometry)
    quadratic.train(optimizer, 2)
    optimizer.param_groups[0]["lr"] = lr
    before = snapshot(optimizer)
    assert quadratic.train(optimizer, 1, 2) == [NOTHING] and snapshot(optimizer) == before


# ---- tensors


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_tensor_equals_the_float(shape, dtype, geometry, quadratic, snapshot):
    """0-d, one-element and 2-d, as AdamW takes them; the tensor stays what it is."""
    lr = torch.full(shape, 0.0078125, dtype=dtype)
    by_tensor = AdaArturo(quadratic.params(), **{**geometry, "lr": lr}, weight_decay=2.0)
    by_float = AdaArturo(quadratic.params(), **{**geometry, "lr": 0.0078125}, weight_decay=2.0)
    for t in range(4):
        assert quadratic.train(by_tensor, 1, t) == quadratic.train(by_float, 1, t)
    assert snapshot(by_tensor) == snapshot(by_float)
    assert by_tensor.param_groups[0]["lr"] is lr and torch.equal(lr, torch.full(shape, 0.0078125, dtype=dtype))


@pytest.mark.parametrize("lr", [torch.ones(2), torch.ones(1, 3), torch.ones(0)], ids=str)
def test_larger_tensors_are_refused_in_torchs_words(lr, quadratic):
    params = quadratic.params([(3,)])
    for make in (AdaArturo, torch.optim.AdamW):
        with pytest.raises(ValueError, match=r"^Tensor lr must be 1-element$"):
            make(params, lr=lr)
    with pytest.raises(ValueError, match=r"^Tensor lr must be 1-element$"):
        AdaArturo([{"params": params, "lr": lr}])


# ---- schedulers

STEPS = 8


def sequential(optimizer):
    """Warm-up, then cosine."""
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])


def chained(optimizer):
    return lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer, 0.5), lr_scheduler.ExponentialLR(optimizer, 0.9)])


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.1),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], gamma=0.1),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.3, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=STEPS - 2, power=2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS - 2),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.1, patience=1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.001, max_lr=0.01, step_size_up=3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=STEPS + 1),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.0005, anneal_epochs=4),
}
CYCLES_MOMENTUM = ("CyclicLR", "OneCycleLR")  # by default: they write betas


def advance(scheduler):
    """A loss that never improves, for the one scheduler that looks at it."""
    scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


def test_the_table_of_schedulers_is_complete():
    """A scheduler that torch adds must be added here."""
    known = inspect.getmembers(lr_scheduler, inspect.isclass)
    names = {name for name, cls in known if issubclass(cls, lr_scheduler.LRScheduler)} - {"LRScheduler", "_LRScheduler"}
    assert names | {"SWALR"} == set(SCHEDULERS)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
def test_steps_follow_the_schedule(name, as_tensor, quadratic):
    """Each step is lr / 0.01 of the one that the same optimizer would have taken at lr = 0.01, in both groups."""
    lrs = [torch.tensor(x, dtype=torch.float64) if as_tensor else x for x in (0.01, 0.005)]
    params = quadratic.params([(5,), (3,)], torch.float64)
    optimizer = AdaArturo([{"params": [p], "lr": lr} for p, lr in zip(params, lrs, strict=True)])
    scheduler = SCHEDULERS[name](optimizer)
    used, betas = [], []
    for t in range(STEPS):
        twin = copy.deepcopy(optimizer)
        for group in twin.param_groups:
            group["lr"] = 0.01
        before = [p.detach().clone() for p in params]
        used.append([float(group["lr"]) for group in optimizer.param_groups])
        betas.append(optimizer.param_groups[0]["betas"])
        quadratic.train(optimizer, 1, t)
        quadratic.train(twin, 1, t)
        for p, group, old, lr in zip(params, twin.param_groups, before, used[-1], strict=True):
            full_step = group["params"][0].detach() - old
            torch.testing.assert_close(p.detach() - old, full_step * (lr / 0.01), rtol=1e-7, atol=1e-12)
            assert full_step.abs().min() > 0
        advance(scheduler)
    assert len({lr for lr, _ in used}) > 1
    assert (len(set(betas)) > 1) == (name in CYCLES_MOMENTUM)
    if as_tensor:
        assert all(group["lr"] is lr for group, lr in zip(optimizer.param_groups, lrs, strict=True))


def test_cycled_momentum_is_the_filters(quadratic):
    """What CyclicLR writes to betas sets the gain of the next step."""
    (p,) = quadratic.params([(5,)])
    optimizer = AdaArturo([p], betas=(0.9, 0.99))
    lr_scheduler.CyclicLR(optimizer, base_lr=0.001, max_lr=0.01, base_momentum=0.0, max_momentum=0.0)
    assert optimizer.param_groups[0]["betas"] == (0.0, 0.99)
    for t in range(3):
        give([p], t)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["M"], p.grad, rtol=1e-6, atol=1e-7)  # no memory of the steps before


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "OneCycleLR", "ReduceLROnPlateau"])
def test_resuming_with_a_scheduler(name, geometry, quadratic, snapshot):
    optimizer = AdaArturo(quadratic.params(), **geometry)
    scheduler = SCHEDULERS[name](optimizer)

    def go_on(optimizer, scheduler, start, stop):
        for t in range(start, stop):
            quadratic.train(optimizer, 1, t)
            advance(scheduler)

    go_on(optimizer, scheduler, 0, 4)
    resumed = AdaArturo(quadratic.twins(optimizer.param_groups[0]["params"]), **geometry)
    continued = SCHEDULERS[name](resumed)
    continued.load_state_dict(scheduler.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    go_on(optimizer, scheduler, 4, 7)
    go_on(resumed, continued, 4, 7)
    assert snapshot(resumed) == snapshot(optimizer) and resumed.last_step == optimizer.last_step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_averaged_model(dtype, geometry, quadratic, snapshot):
    """It reads and does not disturb; weights that it writes back are followed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(dtype)
    twins = quadratic.twins(model.parameters())
    optimizer, plain = AdaArturo(model.parameters(), **geometry), AdaArturo(twins, **geometry)
    averaged = swa_utils.AveragedModel(model)
    for t in range(4):
        quadratic.train(optimizer, 1, t)
        quadratic.train(plain, 1, t)
        averaged.update_parameters(model)
    assert snapshot(optimizer) == snapshot(plain)
    with torch.no_grad():
        for p, q in zip(model.parameters(), averaged.module.parameters(), strict=True):
            p.copy_(q)
    start = model.weight.detach().float().clone()
    quadratic.train(optimizer, 1, 4)
    length = (model.weight.detach().float() - start).norm() / start.norm()
    assert 0 < length < 5 * PER_LR * 0.01
