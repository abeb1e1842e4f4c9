"""Every implementation against the float64 reference: parameters and every state buffer, over hundreds of steps."""

import itertools

import numpy as np
import pytest
import torch
from reference_arturo import ReferenceArturo

from arturo import PAPER, Arturo
from arturo.kernels import native

SHAPES = [(3, 4), (5,), ()]
BUFFERS = ("prec", "a", "b", "P_aa", "P_ab", "P_bb")
BASE = {"kl_bound": 0.02, "prior_weight": 0.3, "noise": 1.3, "drift": 0.05}
CONFIGURATIONS = {
    "default": {},
    "weight-decay": {"weight_decay": 0.4},
    "maximize": {"maximize": True},
    "no-drift": {"drift": 0.0},
    "prior-off": {"prior_precision": 0.0},
    "no-prior-weight": {"prior_weight": 0.0, "initial_variance": 0.5},
    "strong-prior": {"prior_weight": 2.0, "prior_precision": 0.5},
    "gradient-start": {"init": "gradient"},
    "published-start": {"init": "gradient", "initial_variance": 0.01, "initial_filter_variance": 5e-5},
    "no-floor": {"curvature_floor": None},
    "high-floor": {"curvature_floor": 0.5},
    "curved": {"initial_curvature": 2.0, "covariance_weight": 0.2},
    "wide": {"kl_bound": 1e9, "initial_curvature": 0.1},
    "narrow": {"kl_bound": 1e-9},
    "fixed-eta": {"eta": 2.0},
    "bisection": {"dual": "bisection"},
    "paper": dict(PAPER),
    "lr": {"lr": 0.3},
    "unset-bound": {"kl_bound": None, "weight_decay": 5.0},
}
IMPLEMENTATIONS = {
    "native": {"fused": True},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "capturable": {"capturable": True},
    "capturable-foreach": {"capturable": True, "foreach": True},
}


if not native.available():  # a machine without a compiler; tests/test_native.py says so
    del IMPLEMENTATIONS["native"]


class Run:
    """The same noisy quadratic for both: gradients are computed at the torch parameters and given to each."""

    def __init__(self, options, implementation, dtype=torch.float64, groups=None, missing=False):
        generator = torch.Generator().manual_seed(0)
        self.generator, self.missing = generator, missing
        start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
        self.target = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
        self.hessian = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.05 for shape in SHAPES]
        self.params = [torch.nn.Parameter(x.to(dtype)) for x in start]
        overrides = groups or [{}]
        cut = [0, *range(1, len(overrides)), len(SHAPES)]
        parts = [slice(i, j) for i, j in itertools.pairwise(cut)]
        self.ours = Arturo(
            [{"params": self.params[p], **o} for p, o in zip(parts, overrides, strict=True)],
            **{**BASE, **options},
            **implementation,
        )
        arrays = [p.detach().double().numpy() for p in self.params]
        self.reference = ReferenceArturo(
            [{"params": arrays[p], **o} for p, o in zip(parts, overrides, strict=True)], **{**BASE, **options}
        )
        self.parts, self.t = parts, 0
        self.sign = -1 if options.get("maximize") else 1

    def step(self, eta=None):
        gradients = []
        for p, target, h in zip(self.params, self.target, self.hessian, strict=True):
            noise = torch.randn(p.shape, generator=self.generator, dtype=torch.float64)
            g = (self.sign * h * (p.detach().double() - target) + 0.3 * noise).to(p.dtype)
            if self.missing and self.t % 3 == 0:
                g.view(-1)[:1] = float("nan")
            p.grad = g
            gradients.append(g.double().numpy())
        self.t += 1
        self.ours.step()
        info = self.ours.last_step
        theirs = self.reference.step([gradients[p] for p in self.parts], eta=info.eta if eta == "ours" else None)
        return info, theirs

    def compare(self, rtol, atol):
        means = [mean for group in self.reference.groups for mean in group["params"]]
        states = [state for group in self.reference.state for state in group]
        for p, mean, state in zip(self.params, means, states, strict=True):
            np.testing.assert_allclose(p.detach().double().numpy(), mean, rtol=rtol, atol=atol, err_msg="mean")
            for name in BUFFERS:
                ours = self.ours.state[p][name].double().numpy()
                np.testing.assert_allclose(ours, state[name], rtol=rtol, atol=atol, err_msg=name)
            assert self.ours.state[p]["step"] == state["step"]
            np.testing.assert_allclose(self.ours.state[p]["eta"].item(), state["eta"], rtol=1e-12, err_msg="eta")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.filterwarnings("ignore:the trust region has not held back")  # "wide" is about that
def test_agreement(name, implementation):
    """Given the same eta everything else is the reference to float64 rounding, for hundreds of steps with jumps in lr."""
    run = Run(CONFIGURATIONS[name], IMPLEMENTATIONS[implementation])
    lr = run.ours.param_groups[0]["lr"]
    exact_scale = "capturable" not in implementation
    steps = 300 if implementation == "loop" else 100
    for t in range(steps):
        if t in (steps // 3, 2 * steps // 3):
            lr *= 0.006**0.5
            run.ours.param_groups[0]["lr"] = run.reference.groups[0]["lr"] = lr
        before = [p.detach().clone() for p in run.params]
        info, theirs = run.step(eta="ours")
        assert info.bound == pytest.approx(theirs.bound, rel=1e-14)
        if exact_scale or info.kl < info.bound * (1 - 1e-9):
            assert info.kl == pytest.approx(theirs.kl, rel=1e-8)
        else:  # the device step scales what lies outside onto the bound, so follow it there
            for p, mean, old in zip(run.params, [m for g in run.reference.groups for m in g["params"]], before, strict=True):
                assert torch.all((p.detach() - old).abs() <= (torch.as_tensor(mean) - old).abs() * (1 + 1e-9))
                mean[...] = p.detach().numpy()
        run.compare(rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["default", "weight-decay", "paper", "fixed-eta", "bisection", "wide", "strong-prior"])
@pytest.mark.filterwarnings("ignore:the trust region has not held back")
def test_free_run(name, implementation):
    """Each solves its own dual: the published rule and fixed eta agree to rounding, the exact one to its tolerance."""
    run = Run(CONFIGURATIONS[name], IMPLEMENTATIONS[implementation])
    start = [p.detach().clone() for p in run.params]
    for _ in range(100):
        info, theirs = run.step()
    solved = name in ("default", "weight-decay", "strong-prior")
    if not solved:
        run.compare(rtol=1e-8, atol=1e-10)
    assert info.active == theirs.active
    means = [torch.as_tensor(mean) for group in run.reference.groups for mean in group["params"]]
    moved = max((p - x).abs().max().item() for p, x in zip(run.params, start, strict=True))
    gap = max((p - mean).abs().max().item() for p, mean in zip(run.params, means, strict=True))
    assert gap <= 2e-3 * moved


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_groups_with_unlike_bounds(implementation):
    groups = [{"lr": 0.5, "weight_decay": 1.0}, {"kl_bound": 0.3, "drift": 0.2}, {"prior_weight": 0.7, "lr": 0.01}]
    run = Run({}, IMPLEMENTATIONS[implementation], groups=groups)
    for _ in range(100):
        info, theirs = run.step(eta="ours")
        assert info.kl <= info.bound * (1 + 1e-3)
        if "capturable" not in implementation:
            assert info.kl == pytest.approx(theirs.kl, rel=1e-8)
            run.compare(rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
def test_missing_observations(implementation):
    run = Run({}, IMPLEMENTATIONS[implementation], missing=True)
    for _ in range(100):
        info, theirs = run.step(eta="ours")
        assert info.skipped == theirs.skipped
        if "capturable" not in implementation:
            run.compare(rtol=1e-8, atol=1e-10)
    assert all(p.isfinite().all() for p in run.params)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["default", "weight-decay", "bisection", "published-start", "high-floor"])
def test_float32(name, implementation):
    """Single precision drifts from the reference by its rounding, not by more."""
    run = Run(CONFIGURATIONS[name], IMPLEMENTATIONS[implementation], dtype=torch.float32)
    for _ in range(100):
        run.step(eta="ours")
        if "capturable" in implementation:
            for p, mean in zip(run.params, [m for g in run.reference.groups for m in g["params"]], strict=True):
                np.testing.assert_allclose(p.detach().numpy(), mean, rtol=2e-3, atol=2e-4)
                mean[...] = p.detach().double().numpy()
    run.compare(rtol=1e-3, atol=2e-5)
