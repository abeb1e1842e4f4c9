"""The primal solution and the KL terms, with autograd on the objective as the referee."""

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from arturo.core import trust_region

N = 7


@pytest.fixture
def problem() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw():
        return torch.randn(N, generator=generator, dtype=torch.float64)

    return {"m": draw(), "prec": draw().exp(), "a": draw().exp(), "b": draw()}


RHO, LAM, NU = 0.3, 0.7, 1.3


def lagrangian(mean, variance, eta, problem):
    """The objective of ``obj:itropt`` with the multiplier's term; the Lagrangian without the appendix' misprints."""
    a, b, m, prec = (problem[key] for key in ("a", "b", "m", "prec"))
    loss = (0.5 * a * (mean**2 + variance) + b * mean).sum()
    prior = 0.5 * (variance * LAM - 1 + mean**2 * LAM - torch.log(torch.as_tensor(LAM)) - variance.log()).sum()
    covariance = trust_region.kl_covariance(1 / variance, prec)
    return loss + RHO * prior + NU * covariance + eta * trust_region.kl_mean(mean, m, prec)


def step(problem, eta):
    num = trust_region.model_gradient(problem["a"], problem["b"], problem["m"], RHO * LAM)
    A = trust_region.curvature(problem["a"], RHO * LAM, 0.0)
    w = max(1.0, eta)
    x, den = trust_region.step_direction(num, A, problem["prec"], 1 / w, eta / w)
    return num, A, x, den, w


@pytest.mark.parametrize("eta", [0.0, 0.2, 3.0, 1e6])
def test_primal_mean_and_primal_var_are_stationary(problem, eta):
    """eq:primal_mean, eq:primal_var: the gradient of the objective vanishes there."""
    _, A, x, _, w = step(problem, eta)
    mean = (problem["m"] - x / w).requires_grad_()
    variance = (1 / trust_region.primal_precision(A, problem["prec"], RHO, NU)).requires_grad_()
    gradients = torch.autograd.grad(lagrangian(mean, variance, eta, problem), (mean, variance))
    assert max(g.abs().max().item() for g in gradients) < 1e-12 * (1 + eta)


def test_primal_mean_is_the_printed_formula(problem):
    eta = 0.8
    _, A, x, _, w = step(problem, eta)
    printed = (eta * problem["prec"] * problem["m"] - problem["b"]) / (A + eta * problem["prec"])
    torch.testing.assert_close(problem["m"] - x / w, printed, rtol=1e-13, atol=1e-14)


def test_kl_terms_are_the_divergence_of_gaussians(problem):
    old = Independent(Normal(problem["m"], problem["prec"].rsqrt()), 1)
    new_mean, new_prec = problem["m"] + 0.3, problem["prec"] * 1.7 + 0.1
    new = Independent(Normal(new_mean, new_prec.rsqrt()), 1)
    ours = trust_region.kl_mean(new_mean, problem["m"], problem["prec"]) + trust_region.kl_covariance(new_prec, problem["prec"])
    torch.testing.assert_close(ours, kl_divergence(new, old), rtol=1e-12, atol=0)


@pytest.mark.parametrize("eta", [0.0, 0.2, 3.0, 1e6, 1e40])
def test_constraint_and_its_derivatives(problem, eta):
    """eq:dual_der: C is the KL of the step, C' and C'' its derivatives under autograd."""
    _, _, x, den, w = step(problem, eta)
    sums = [s.item() for s in trust_region.constraint_sums(x, den, problem["prec"], torch.float64)]
    C, dC, ddC = trust_region.constraint(w, *sums)

    at = torch.tensor(eta, dtype=torch.float64, requires_grad=True)
    num, A = step(problem, eta)[:2]
    d = num / (A + at * problem["prec"])
    expected = trust_region.kl_mean(d, torch.zeros_like(d), problem["prec"])  # m - (m - d) would cancel for tiny steps
    first = torch.autograd.grad(expected, at, create_graph=True)[0]
    second = torch.autograd.grad(first, at)[0]
    for ours, theirs in ((C, expected), (dC, first), (ddC, second)):
        assert ours == pytest.approx(theirs.item(), rel=1e-12, abs=0)  # approx's own abs would hide the tiny ones


def test_limit_sums_are_the_limit(problem):
    """s_w = 0, eta_w = 1 gives the limit of eta^2 C."""
    num, A, *_ = step(problem, 1.0)
    x, den = trust_region.step_direction(num, A, problem["prec"], 0.0, 1.0)
    limit = 0.5 * trust_region.constraint_sums(x, den, problem["prec"], torch.float64)[0]
    _, _, x, den, w = step(problem, 1e9)
    C = trust_region.constraint(w, *(s.item() for s in trust_region.constraint_sums(x, den, problem["prec"], torch.float64)))[0]
    assert C * 1e18 == pytest.approx(limit.item(), rel=1e-7)


def test_stationary_precision(problem):
    """The fixed point of eq:primal_var is A / rho."""
    A = trust_region.curvature(problem["a"], RHO * LAM, 0.0)
    prec = problem["prec"]
    for _ in range(400):
        prec = trust_region.primal_precision(A, prec, RHO, NU)
    torch.testing.assert_close(prec, A / RHO, rtol=1e-12, atol=0)


def test_curvature_floor():
    a = torch.tensor([-1.0, 0.0, 2.0])
    torch.testing.assert_close(trust_region.curvature(a, 0.5, 0.0), torch.tensor([0.5, 0.5, 2.5]))
    torch.testing.assert_close(trust_region.curvature(a, 0.5, None), torch.tensor([-0.5, 0.5, 2.5]))
