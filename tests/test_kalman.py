"""The filter: against batch regression, against the textbook form, and positive definite for a million float32 steps."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arturo import reference
from arturo.kernels import native
from arturo.surrogates import kalman


def start(n, a=0.1, b=0.0, P=1.0, dtype=torch.float64):
    return [torch.full((n,), value, dtype=dtype) for value in (a, b, P, 0.0, P)]


def all_seen(x):
    return torch.ones_like(x, dtype=torch.bool)


def test_batch_regression_when_nothing_drifts():
    """q = 0: after T gradients the filter is Bayesian linear regression of g on (m, 1) with the prior N((a_0, b_0), P_0)."""
    generator = torch.Generator().manual_seed(0)
    T, n, r, P_0 = 40, 5, 0.7, 2.0
    m, g = (torch.randn(T, n, generator=generator, dtype=torch.float64) for _ in range(2))
    state = start(n, a=0.1, b=-0.3, P=P_0)
    for t in range(T):
        state = kalman.filter_update(*state, g[t], all_seen(g[t]), m[t], 0.0, r)
    for i in range(n):
        X = torch.stack([m[:, i], torch.ones(T, dtype=torch.float64)], 1)
        covariance = torch.linalg.inv(X.T @ X / r + torch.eye(2, dtype=torch.float64) / P_0)
        mean = covariance @ (X.T @ g[:, i] / r + torch.tensor([0.1, -0.3], dtype=torch.float64) / P_0)
        a, b, P_aa, P_ab, P_bb = (x[i] for x in state)
        torch.testing.assert_close(torch.stack([a, b]), mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(torch.stack([P_aa, P_ab, P_bb]), covariance.flatten()[[0, 1, 3]], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("q", [0.0, 0.02, 5.0])
def test_filter_update_rule(q):
    """eq:filter_update_rule: the form that does not cancel equals the printed one (2x2 matrices, float64)."""
    generator = torch.Generator().manual_seed(1)
    n, r = 6, 1.5
    state = start(n, P=0.3)
    w = np.stack([state[0].numpy(), state[1].numpy()], -1)
    P = np.zeros((n, 2, 2)) + 0.3 * np.eye(2)
    for _ in range(200):
        m, g = (torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(2))
        state = kalman.filter_update(*state, g, all_seen(g), m, q, r)
        w, P = reference.kalman_update(w, P, m.numpy(), g.numpy(), q, r)
    expected = [w[:, 0], w[:, 1], P[:, 0, 0], P[:, 0, 1], P[:, 1, 1]]
    for ours, theirs in zip(state, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-11)


def test_missing_observation_predicts_only():
    state = start(2, a=0.4, b=0.2, P=0.5)
    g = torch.tensor([float("nan"), 1.0], dtype=torch.float64)
    a, b, P_aa, P_ab, P_bb = kalman.filter_update(*state, g, g.isfinite(), torch.ones(2, dtype=torch.float64), 0.1, 1.0)
    assert (a[0], b[0], P_aa[0], P_ab[0], P_bb[0]) == (0.4, 0.2, 0.6, 0.0, 0.6)
    assert a[1] != 0.4
    assert P_aa[1] < 0.6


def test_first_intercept():
    g = torch.tensor([1.0, float("inf")])
    m, seen = torch.tensor([2.0, 2.0]), torch.tensor([True, False])
    assert kalman.first_intercept(g, seen, m, 0.5, True).tolist() == [0.0, -1.0]
    assert kalman.first_intercept(g, seen, m, 0.5, False).tolist() == [1.0, -1.0]


def assert_positive_definite(P_aa, P_ab, P_bb):
    P_aa, P_ab, P_bb = (x.double() for x in (P_aa, P_ab, P_bb))
    assert bool((P_aa > 0).all())
    assert bool((P_bb > 0).all())
    assert bool((P_aa * P_bb - P_ab**2 > 0).all())


def weights_and_gradients(generator, wander, steps=1000):
    """Eight weights each that rest, wander and jump, from 1e-6 to 1e6, and their gradients."""
    size = torch.logspace(-6, 6, 8)
    noise = torch.randn(steps, 3, 8, generator=generator)
    path = wander * (1 + 1e-3 * noise[:, 0]).cumprod(0)
    return torch.cat([size.expand(steps, 8), path, size * noise[:, 1]], 1).contiguous(), noise.flatten(1).contiguous(), path[-1]


@pytest.mark.parametrize("q", [0.0, 1e-8, 0.02, 1.0])
def test_positive_definite_in_float32(q):
    generator, wander, seen = torch.Generator().manual_seed(2), torch.logspace(-6, 6, 8), torch.ones(24, dtype=torch.bool)
    state = start(24, P=q**0.5 or 1.0, dtype=torch.float32)
    for _ in range(5):
        m, g, wander = weights_and_gradients(generator, wander)
        for m_t, g_t in zip(m.unbind(), g.unbind(), strict=True):
            state = kalman.filter_update(*state, g_t, seen, m_t, q, 1.0)
        assert_positive_definite(*state[2:])
        assert bool(torch.stack(state).isfinite().all())


@pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")
@pytest.mark.parametrize("q", [0.0, 1e-8, 0.02, 1.0])
def test_positive_definite_over_a_million_float32_steps(q):
    """The filter of the C++ kernel alone, without the step that follows: the weights are given."""
    generator, wander = torch.Generator().manual_seed(2), torch.logspace(-6, 6, 8)
    a, b, P_aa, P_ab, P_bb = start(24, P=q**0.5 or 1.0, dtype=torch.float32)
    prec, sums = torch.ones(24), torch.empty(1, 4, dtype=torch.float64)
    k = native.NativeConstants(q=q, r=1.0, nu=1.0, decay=1.0, s_w=1.0, eta_w=1.0, limit=1e18, has_floor=1)
    pointers = (ctypes.c_void_p * 9)(0, 0, 0, *(x.data_ptr() for x in (prec, a, b, P_aa, P_ab, P_bb)))
    float32 = native.FORMATS.index((torch.float32, torch.float32, torch.float32))
    size, zero = (ctypes.c_int64 * 1)(24), (ctypes.c_int64 * 1)(0)  # not the first, no seed, no offset
    tensors = ctypes.c_int64(1), size, pointers, zero, zero, zero
    rest = ctypes.byref(k), ctypes.c_int32(1), ctypes.c_void_p(sums.data_ptr())
    for _ in range(1000):
        m, g, wander = weights_and_gradients(generator, wander)
        for t in range(1000):
            pointers[0] = pointers[2] = m.data_ptr() + 96 * t  # 24 floats a row
            pointers[1] = g.data_ptr() + 96 * t
            native.library().arturo_pass(ctypes.c_int32(float32), ctypes.c_int32(native.OBSERVE), *tensors, *rest)
        assert_positive_definite(P_aa, P_ab, P_bb)
        assert bool(torch.stack([a, b, P_aa, P_ab, P_bb]).isfinite().all())


@settings(max_examples=60, deadline=None)
@given(
    q=st.sampled_from([0.0, 1e-10, 1e-4, 0.02, 1.0]),
    r=st.sampled_from([1e-6, 1.0, 1e4]),
    size=st.floats(-6, 6),
    scale=st.floats(-12, 12),
    seed=st.integers(0, 2**31),
)
def test_positive_definite(q, r, size, scale, seed):
    """P stays positive definite in float32 for weights up to 1e6 and gradients from 1e-12 to 1e12."""
    generator = torch.Generator().manual_seed(seed)
    state = start(16, P=(q * r) ** 0.5 or r, dtype=torch.float32)
    m = 10**size * torch.randn(16, generator=generator)
    for t in range(100):
        if t % 10 == 0:
            m = m + 10**size * torch.randn(16, generator=generator)
        g = 10**scale * torch.randn(16, generator=generator)
        state = kalman.filter_update(*state, g, all_seen(g), m, q, r)
        assert bool(torch.stack(state).isfinite().all())
    assert_positive_definite(*state[2:])
