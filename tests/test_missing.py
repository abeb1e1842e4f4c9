"""Non-finite gradient entries are missing observations: the model predicts, nothing breaks, and they are counted."""

import copy
import math
import warnings

import pytest
import torch

from arturo import AdaArturo, Arturo

NAN, INF = math.nan, math.inf
BAD = {"nan": NAN, "inf": INF, "-inf": -INF, "1e30": 1e30, "-1e30": -1e30}
bad = pytest.mark.parametrize("value", BAD.values(), ids=BAD)
quiet = pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")


def all_finite(optimizer):
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [x for state in optimizer.state.values() for x in state.values()]
    return all(torch.isfinite(x).all() for x in tensors)


def noise(t, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(t))


def tile_size(state):
    """How many entries are missing when one is: AdaArturo turns tiles, and a turned tile is missing as a whole."""
    return int(state["tile"].prod()) if "tile" in state else 1


@quiet
@pytest.mark.parametrize("when", [0, 2])
def test_some_entries(when, every, quadratic):
    """On the first step or later, one of a tensor or the whole of one: no NaN anywhere, and the count is right."""
    params = quadratic.params()
    optimizer = every(params)
    for t in range(6):
        quadratic.gradients(params, t)
        if t == when:
            params[0].grad[1, 2] = NAN
            params[1].grad.copy_(torch.tensor(list(BAD.values())))
        before = [p.detach().clone() for p in params]
        optimizer.step()
        info = optimizer.last_step
        assert info.skipped == (tile_size(optimizer.state[params[0]]) + 5 if t == when else 0)
        assert all_finite(optimizer) and all(map(math.isfinite, info))
        assert not torch.equal(params[2], before[2])
        assert every.kind is AdaArturo or not torch.equal(params[0], before[0])  # its first tile may be missing as a whole
    assert all(optimizer.state[p]["step"] == 6 for p in params)


@quiet
@bad
def test_a_missing_entry_leaves_the_filter_to_its_prediction(value, kernel, quadratic):
    """There (a, b) stay, P grows by the drift, and the weight moves by the model; elsewhere all is as ever."""
    params, twins = quadratic.params([(8,)]), quadratic.params([(8,)])
    optimizer, plain = (Arturo(x, **kernel, eta=2.0, drift=0.25) for x in (params, twins))
    quadratic.train(optimizer, 3)
    quadratic.train(plain, 3)
    state, m = optimizer.state[params[0]], params[0].detach().clone()
    before = {name: x.clone() for name, x in state.items()}
    for p in (params[0], twins[0]):
        quadratic.gradients([p], 3)
    params[0].grad[2] = value
    optimizer.step()
    plain.step()
    for name, grown in {"a": 0, "b": 0, "P_aa": 0.25, "P_ab": 0, "P_bb": 0.25}.items():
        assert state[name][2] == before[name][2] + grown
    num = before["a"] * m + before["b"] + 0.1 * 0.0015 * m
    den = before["a"].clamp(min=0) + 0.1 * 0.0015 + 2.0 * before["prec"]
    assert params[0][2].item() == pytest.approx((m - num / den)[2].item(), rel=1e-6)
    others = torch.arange(8) != 2
    assert torch.equal(params[0][others], twins[0][others])
    assert all(torch.equal(x[others], plain.state[twins[0]][name][others]) for name, x in state.items() if x.dim())


@quiet
@bad
def test_a_missing_entry_leaves_adaarturos_filter_as_it_is(value, quadratic):
    """There M and r stay; elsewhere they are as ever."""
    params, twins = quadratic.params([(8,)]), quadratic.params([(8,)])
    optimizer, plain = AdaArturo(params), AdaArturo(twins)
    for t in range(4):
        for p in (params[0], twins[0]):
            p.grad = noise(t, (8,))
        if t == 3:
            before = {name: x.clone() for name, x in optimizer.state[params[0]].items()}
            params[0].grad[2] = value
        optimizer.step()
        plain.step()
    state, others = optimizer.state[params[0]], torch.arange(8) != 2
    for name in ("M", "r"):
        assert state[name][2] == before[name][2]
        assert torch.equal(state[name][others], plain.state[twins[0]][name][others])
    assert optimizer.last_step.skipped == 1


@quiet
@bad
def test_missing_on_an_entrys_first_step(value, kernel, quadratic):
    """b_0 = -a_0 mu: the model predicts a zero gradient, and only the prior may move the weight."""
    params = quadratic.params([(8,)])
    before = params[0].detach().clone()
    optimizer = Arturo(params, **kernel, prior_precision=0.0)
    quadratic.gradients(params, 0)
    params[0].grad[3] = value
    optimizer.step()
    assert params[0][3] == before[3] and (params[0] != before).sum() == 7
    assert optimizer.state[params[0]]["b"][3] == -0.1 * before[3]


@quiet
@pytest.mark.parametrize("value", [NAN, 1e30], ids=str)
@pytest.mark.parametrize("warm", [0, 3])
def test_all_entries_missing_moves_nothing(value, warm, every, quadratic, snapshot):
    """No parameter, not by decay either; in Arturo no precision, eta or step count. Afterwards training continues."""
    params = quadratic.params()
    optimizer = every(params)
    quadratic.train(optimizer, warm)
    eta, before = optimizer.last_step.eta, snapshot(optimizer)
    for p in params:
        p.grad = torch.full_like(p, value)
    optimizer.step()
    after, info = snapshot(optimizer), optimizer.last_step
    assert [p for p, _ in after] == [p for p, _ in before]
    if every.kind is Arturo:
        kept = ("prec", "eta", "step") + (("a", "b") if warm else ())
        assert all(new[name] == old[name] for (_, new), (_, old) in zip(after, before, strict=True) for name in kept if old)
    kept_eta = eta if warm and every.kind is Arturo else 0.0
    assert (info.eta, info.kl, info.active, info.skipped) == (kept_eta, 0.0, False, 12 + 5 + 1 + 3)
    quadratic.train(optimizer, 2, start=warm)
    assert all_finite(optimizer) and optimizer.last_step.skipped == 0
    assert all(old != new for (old, _), (new, _), p in zip(after, snapshot(optimizer), params, strict=True) if p.numel())


@quiet
def test_every_second_step_missing(configuration, quadratic):
    """A run that loses half of its gradients still gets to the minimum (p = 1)."""
    params = quadratic.params([(4, 3)])
    configuration.pop("maximize", None)
    configuration["weight_decay"] = 0.1 * configuration.get("weight_decay", 0.0)  # the bound is ten times as large
    optimizer = Arturo(params, **{**configuration, "kl_bound": 0.1})
    first = (params[0].detach() - 1).square().mean()
    for t in range(60):
        for p in params:
            p.grad = torch.full_like(p, NAN) if t % 2 else 0.5 * (p.detach() - 1)
        optimizer.step()
    assert all_finite(optimizer) and (params[0].detach() - 1).square().mean() < 0.5 * first


@quiet
def test_every_second_gradient_of_adaarturo_missing(geometry):
    """A run that loses half of its gradients still gets to the minimum."""
    p = torch.nn.Parameter(noise(0, (4, 3)))
    optimizer = AdaArturo([p], **geometry)
    first = (p.detach() - 1).square().mean()
    for t in range(120):
        p.grad = torch.full_like(p, NAN) if t % 2 else 0.5 * (p.detach() - 1) + 0.05 * noise(t, (4, 3))
        optimizer.step()
    assert all_finite(optimizer) and (p.detach() - 1).square().mean() < 0.2 * first


@pytest.mark.parametrize("dtype, value, missing", [
    (torch.float64, 1e30, 0),
    (torch.float64, 1e200, 1),
    (torch.float32, 9e17, 0),
    (torch.float32, 2e18, 1),
    (torch.bfloat16, 1e30, 1),
    (torch.bfloat16, NAN, 1),
    (torch.float16, INF, 1),
    (torch.float16, 65504.0, 0),
], ids=str)  # fmt: skip
@quiet
def test_what_is_too_large_depends_on_the_precision(dtype, value, missing, way, quadratic):
    """And on the tile: turned, an entry may be as large as the norm of its tile, so each must be smaller by that much."""
    params = quadratic.params([(5, 4)], dtype)
    first = way(params)
    quadratic.gradients(params, 0)
    first.step()
    turned = tile_size(first.state[params[0]])
    optimizer = way(params)
    for t in range(3):
        quadratic.gradients(params, t)
        params[0].grad[0, 0] = value / turned**0.5
        optimizer.step()
        info = optimizer.last_step
        assert info.skipped == missing * turned
        assert all_finite(optimizer) and info.kl <= info.bound * (1.001 if way.kind is Arturo else 1 + 1e-9)


@quiet
@bad
def test_complex_entries_count_their_parts(value, kernel):
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    p.grad = torch.ones(3, dtype=torch.complex64)
    p.grad.imag[1] = value
    optimizer = Arturo([p], **kernel)
    optimizer.step()
    assert optimizer.last_step.skipped == 1 and all_finite(optimizer)


def test_one_warning_and_none_under_capturable(every, quadratic):
    """Given once per optimizer, to the line that called step."""
    params = quadratic.params()
    optimizer = every(params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "lr=.* counts as")
        for t in range(4):
            quadratic.gradients(params, t)
            params[1].grad[0] = NAN if t else 1.0
            optimizer.step()
    if every.options.get("capturable"):
        assert not caught
    else:
        assert [w.filename for w in caught] == [__file__]
        assert "1 gradient entries" in str(caught[0].message)
    assert optimizer.last_step.skipped == 1


@quiet
def test_missing_entries_with_a_tensor_lr_of_zero_do_not_count(quadratic, snapshot):
    params = quadratic.params()
    optimizer = Arturo(params, lr=torch.zeros(()), capturable=True, kl_bound=0.01)
    quadratic.train(optimizer, 1)
    before = snapshot(optimizer)
    for p in params:
        p.grad = torch.full_like(p, NAN)
    optimizer.step()
    assert snapshot(optimizer) == before and optimizer.last_step.skipped == 0
    assert copy.deepcopy(optimizer).last_step == (0.0, 0.0, 0.0, 0, False, 0)
