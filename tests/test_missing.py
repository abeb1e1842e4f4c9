"""Non-finite gradient entries are missing observations: the model predicts, nothing breaks, and they are counted."""

import copy
import math
import warnings

import pytest
import torch

from arturo import Arturo

NAN, INF = math.nan, math.inf
BAD = {"nan": NAN, "inf": INF, "-inf": -INF, "1e30": 1e30, "-1e30": -1e30}
bad = pytest.mark.parametrize("value", BAD.values(), ids=BAD)
quiet = pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")


def all_finite(optimizer):
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [x for state in optimizer.state.values() for x in state.values()]
    return all(torch.isfinite(x).all() for x in tensors)


@quiet
@pytest.mark.parametrize("when", [0, 2])
def test_some_entries(when, configuration, quadratic):
    """On the first step or later, one of a tensor or the whole of one: no NaN anywhere, and the count is right."""
    params = quadratic.params()
    optimizer = Arturo(params, **configuration)
    for t in range(5):
        quadratic.gradients(params, t)
        if t == when:
            params[0].grad[1, 2] = NAN
            params[1].grad.copy_(torch.tensor(list(BAD.values())))
        before = [p.detach().clone() for p in params]
        optimizer.step()
        said = optimizer.last_step
        assert said.skipped == (6 if t == when else 0)
        assert all_finite(optimizer) and all(map(math.isfinite, said))
        assert not torch.equal(params[0], before[0])
    assert all(optimizer.state[p]["step"] == 5 for p in params)


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
def test_all_entries_missing_moves_nothing(value, warm, configuration, quadratic, snapshot):
    """No parameter, no precision, no eta, no step count; afterwards training goes on."""
    params = quadratic.params()
    optimizer = Arturo(params, **configuration)
    quadratic.train(optimizer, warm)
    eta, before = optimizer.last_step.eta, snapshot(optimizer)
    for p in params:
        p.grad = torch.full_like(p, value)
    optimizer.step()
    after = snapshot(optimizer)
    assert [p for p, _ in after] == [p for p, _ in before]
    kept = ("prec", "eta", "step") + (("a", "b") if warm else ())
    assert all(new[name] == old[name] for (_, new), (_, old) in zip(after, before, strict=True) for name in kept if old)
    said = optimizer.last_step
    assert (said.eta, said.kl, said.active, said.skipped) == (eta if warm else 0.0, 0.0, False, 12 + 5 + 1 + 3)
    quadratic.train(optimizer, 2, start=warm)
    assert all_finite(optimizer) and [p for p, _ in snapshot(optimizer)] != [p for p, _ in after]
    assert optimizer.last_step.skipped == 0


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
def test_what_is_too_large_depends_on_the_precision(dtype, value, missing, kernel, quadratic):
    params = quadratic.params([(5,)], dtype)
    optimizer = Arturo(params, **kernel)
    quadratic.gradients(params, 0)
    params[0].grad[0] = value
    optimizer.step()
    assert optimizer.last_step.skipped == missing and all_finite(optimizer)
    assert optimizer.last_step.kl <= optimizer.last_step.bound * 1.001


@quiet
@bad
def test_complex_entries_count_their_parts(value, kernel):
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    p.grad = torch.ones(3, dtype=torch.complex64)
    p.grad.imag[1] = value
    optimizer = Arturo([p], **kernel)
    optimizer.step()
    assert optimizer.last_step.skipped == 1 and all_finite(optimizer)


def test_one_warning_and_none_under_capturable(configuration, quadratic):
    """Given once per optimizer, to the line that called step."""
    params = quadratic.params()
    optimizer = Arturo(params, **configuration)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for t in range(4):
            quadratic.gradients(params, t)
            params[0].grad[0, 0] = NAN if t else 1.0
            optimizer.step()
    if configuration.get("capturable"):
        assert not given
    else:
        assert [w.filename for w in given] == [__file__]
        assert "1 gradient entries" in str(given[0].message)


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
