"""What the design promises of every step of the guarded method, as properties over random states, scales and schedules."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arturo import Arturo

BUFFERS = ("prec", "a", "b", "P_aa", "P_ab", "P_bb")
IMPLEMENTATIONS = ({}, {"foreach": False}, {"foreach": True}, {"capturable": True})


def make_params(seed, sizes=(7, 1, 40), weight=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter((weight * torch.randn(n, generator=generator)).to(dtype)) for n in sizes], generator


def check_step(optimizer, alike=True):
    """Bound, equality when active (and all groups have the same bound), and a state that every later step can build on."""
    info = optimizer.last_step
    assert info.kl <= info.bound * (1 + 1e-3)
    if info.active:
        assert info.eta > 0
        assert not alike or abs(info.kl / info.bound - 1) <= 1e-3
    else:
        assert info.eta == 0
    for group in optimizer.param_groups:
        floor = group["prior_weight"] * group["prior_precision"]
        for p in group["params"]:
            state = optimizer.state[p]
            assert bool(p.isfinite().all())
            assert all(bool(state[name].isfinite().all()) for name in BUFFERS)
            assert bool((state["prec"] > 0).all())
            assert bool((state["a"].clamp(min=0) + floor + info.eta * state["prec"] > 0).all())  # den
            P_aa, P_ab, P_bb = (state[name].double() for name in ("P_aa", "P_ab", "P_bb"))
            assert bool((P_aa > 0).all())
            assert bool((P_aa * P_bb - P_ab**2 > 0).all())
    return info


options = st.fixed_dictionaries(
    {
        "kl_bound": st.none() | st.floats(-9, 9).map(lambda x: 10**x),
        "prior_weight": st.sampled_from([0.01, 0.3, 5.0]),
        "prior_precision": st.sampled_from([0.0, 0.0015, 1.0]),
        "noise": st.sampled_from([1e-3, 1.0, 30.0]),
        "drift": st.sampled_from([0.0, 1e-4, 0.02, 1.0]),
        "initial_curvature": st.sampled_from([1e-3, 0.1, 10.0]),
        "initial_variance": st.sampled_from([None, 0.01, 100.0]),
        "weight_decay": st.sampled_from([0.0, 1e-6]),
        "init": st.sampled_from(["consistent", "gradient"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(options, st.sampled_from(IMPLEMENTATIONS), st.floats(-12, 12), st.floats(-3, 3), st.integers(0, 2**31))
@pytest.mark.filterwarnings("ignore:weight_decay=1e-06 takes")
def test_every_step_keeps_to_the_bound(chosen, implementation, log_gradient, log_weight, seed):
    """Gradients from 1e-12 to 1e12, weights from 1e-3 to 1e3, bounds from 1e-9 to 1e9, a schedule with jumps of 0.006."""
    params, generator = make_params(seed, weight=10**log_weight)
    optimizer = Arturo(params, **chosen, **implementation)
    for t in range(12):
        if t in (5, 9):
            optimizer.param_groups[0]["lr"] *= 0.006
        for p in params:
            p.grad = 10**log_gradient * torch.randn(p.shape, generator=generator)
        optimizer.step()
        check_step(optimizer)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-6, 2), st.floats(-6, 2)), min_size=3, max_size=3),
    st.sampled_from(IMPLEMENTATIONS),
    st.integers(0, 2**31),
)
@pytest.mark.filterwarnings("ignore:lr=.* looks like a learning rate for AdamW")
def test_groups_with_unlike_lr_and_kl_bound(scales, implementation, seed):
    """No group exceeds its own bound, and when active the steps over f_g = sqrt(e_g / B) together reach B."""
    params, generator = make_params(seed, dtype=torch.float64)
    groups = [{"params": [p], "lr": 10**x, "kl_bound": 10**y} for p, (x, y) in zip(params, scales, strict=True)]
    optimizer = Arturo(groups, **implementation)
    for _ in range(8):
        before = [p.detach().clone() for p in params]
        old = [optimizer.state[p]["prec"].clone() if optimizer.state[p] else None for p in params]
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        optimizer.step()
        info = check_step(optimizer, alike=False)
        if old[0] is None:
            continue
        equal = error = 0.0
        for group, p, start, prec in zip(optimizer.param_groups, params, before, old, strict=True):
            bound = group["kl_bound"] * group["lr"] ** 2
            step = (p.detach() - start).abs()
            rounding = 1e-15 * start.abs().max().item()
            assert 0.5 * (prec * (step - rounding).clamp(min=0) ** 2).sum() <= bound * (1 + 2e-3)
            equal += 0.5 * (prec * step**2).sum().item() * info.bound / bound
            error += (prec * (step + rounding)).sum().item() * rounding * info.bound / bound
        if info.active:
            assert abs(equal - info.bound) <= 2e-3 * info.bound + error


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(IMPLEMENTATIONS), st.floats(-6, 6), st.floats(-4, 4))
def test_random_loaded_state(seed, implementation, log_bound, log_curvature):
    """From any state a checkpoint may hold, negative curvature included, after a save and a load."""
    params, generator = make_params(seed)
    optimizer = Arturo(params, kl_bound=10**log_bound, **implementation)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()

    def draw(p):
        return torch.randn(p.shape, generator=generator)

    for p in params:
        state = optimizer.state[p]
        state["a"].copy_(10**log_curvature * draw(p))
        state["b"].copy_(draw(p))
        state["prec"].copy_((3 * draw(p)).exp())
        state["eta"].fill_(10 ** (3 * torch.randn((), generator=generator).item()))
    twin = [torch.nn.Parameter(p.detach().clone()) for p in params]
    loaded = Arturo(twin, **implementation)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(4):
        for p in twin:
            p.grad = draw(p)
        loaded.step()
        check_step(loaded)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_optimum_inside(implementation):
    """A bound of 1e9 is inactive: eta is exactly 0 and the step is the surrogate's own optimum."""
    params, generator = make_params(0)
    optimizer = Arturo(params, kl_bound=1e9, initial_curvature=0.1, **implementation)
    for _ in range(5):
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
        info = check_step(optimizer)
        assert info.eta == 0.0
        assert not info.active
        group = optimizer.param_groups[0]
        prior = group["prior_weight"] * group["prior_precision"]
        for p, m in zip(params, before, strict=True):
            a, b = optimizer.state[p]["a"], optimizer.state[p]["b"]
            expected = m - (a * m + b + prior * m) / (a.clamp(min=0) + prior)
            torch.testing.assert_close(p.detach(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:3])
def test_large_weights_for_ten_thousand_steps(implementation):
    """Weights up to 1e6 under float32, 1e4 steps; P stays positive definite and the bound is met throughout."""
    params = [torch.nn.Parameter(torch.logspace(-6, 6, 25) * (-1.0) ** torch.arange(25))]
    generator = torch.Generator().manual_seed(0)
    optimizer = Arturo(params, **implementation)
    for t in range(10_000):
        params[0].grad = torch.randn(25, generator=generator)
        optimizer.step()
        info = optimizer.last_step
        assert info.kl <= info.bound * (1 + 1e-3)
        if t % 100 == 0:
            check_step(optimizer)


def test_negative_curvature_keeps_the_denominator_positive():
    """A concave loss drives a below 0; the guard holds and the step stays in the region."""
    p = torch.nn.Parameter(torch.tensor([0.5, -2.0]))
    optimizer = Arturo([p], drift=1.0, initial_filter_variance=100.0, kl_bound=0.1)
    for _ in range(30):
        p.grad = -3.0 * p.detach()
        optimizer.step()
        check_step(optimizer)
    assert bool((optimizer.state[p]["a"] < 0).all())


def test_splitting_into_groups_is_bitwise_neutral():
    params, generator = make_params(1)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    whole, split = Arturo(params), Arturo([{"params": [p]} for p in twins])
    for _ in range(20):
        for p, twin in zip(params, twins, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            twin.grad = p.grad.clone()
        whole.step()
        split.step()
    assert whole.last_step == split.last_step
    assert all(torch.equal(p, twin) for p, twin in zip(params, twins, strict=True))
