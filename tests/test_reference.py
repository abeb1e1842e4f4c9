"""reference.py against closed forms, autograd, torch.distributions and exact fractions."""

import doctest
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from reference_arturo import ReferenceArturo
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from arturo import reference
from arturo.reference import (
    Quadratic,
    bisection,
    constraint,
    dual_derivative,
    kalman_update,
    kl_covariance,
    kl_mean,
    primal_covariance,
    primal_mean,
    primal_step,
    solve_dual,
)

HYPER = {"initial_curvature": 0.1, "kl_bound": 0.05, "prior_weight": 0.3, "noise": 1.2, "drift": 0.02}
STATE = ("prec", "a", "b", "P_aa", "P_ab", "P_bb")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny tensors: with more threads, torch mostly waits for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spd(rng, n):
    """A random symmetric positive definite matrix."""
    root = rng.normal(size=(n, n))
    return root @ root.T / n + 0.3 * np.eye(n)


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


class Problem:
    """One random instance of obj:itropt with full matrices, and its Lagrangian written with torch.distributions."""

    def __init__(self, seed, n=5):
        rng = np.random.default_rng(seed)
        self.mu, self.b = rng.normal(size=n), rng.normal(size=n)
        self.A, self.Sigma_old = spd(rng, n), spd(rng, n)
        self.prec = np.linalg.inv(self.Sigma_old)
        self.rho, self.lam, self.nu, self.bound = 0.7, 0.4, 1.3, 0.02
        self.n = n

    @property
    def quadratic(self):
        return Quadratic(self.mu, self.prec, self.A, self.b, self.rho, self.lam)

    def mean(self, eta):
        return primal_mean(eta, self.mu, self.prec, self.A, self.b, self.rho, self.lam)

    def covariance(self):
        return primal_covariance(self.prec, self.A, self.rho, self.lam, self.nu)

    def lagrangian(self, mu, Sigma, eta):
        A, b, mu_old, Sigma_old = (tensor(x) for x in (self.A, self.b, self.mu, self.Sigma_old))
        zero, eye = torch.zeros_like(mu_old), torch.eye(self.n, dtype=torch.float64)
        loss = 0.5 * mu @ A @ mu + 0.5 * torch.trace(A @ Sigma) + mu @ b
        C_lambda = kl_divergence(MultivariateNormal(mu, Sigma), MultivariateNormal(zero, eye / self.lam))
        C_Sigma = kl_divergence(MultivariateNormal(zero, Sigma), MultivariateNormal(zero, Sigma_old))
        C_mu = kl_divergence(MultivariateNormal(mu, Sigma_old), MultivariateNormal(mu_old, Sigma_old))
        return loss + self.rho * C_lambda + self.nu * C_Sigma + eta * (C_mu - self.bound)


def flat(opt, name=None):
    """All means, or one state array of all parameters, as one vector."""
    if name is None:
        return np.concatenate([p.ravel() for group in opt.groups for p in group["params"]])
    return np.concatenate([state[name].ravel() for states in opt.state for state in states])


# ---- the filter


def test_filter_update_rule_without_drift_is_bayesian_linear_regression():
    rng = np.random.default_rng(0)
    T, n, r = 12, 4, 0.7
    mus, gs = 3 * rng.normal(size=(T, n)), rng.normal(size=(T, n))
    w0, P0 = rng.normal(size=(n, 2)), np.stack([spd(rng, 2) for _ in range(n)])
    w, P = w0, P0
    for mu, g in zip(mus, gs, strict=True):
        w, P = kalman_update(w, P, mu, g, q=0.0, r=r)
    for j in range(n):
        X = np.stack([mus[:, j], np.ones(T)], axis=1)
        posterior = np.linalg.inv(np.linalg.inv(P0[j]) + X.T @ X / r)
        np.testing.assert_allclose(P[j], posterior, rtol=1e-11)
        expected = posterior @ (np.linalg.solve(P0[j], w0[j]) + X.T @ gs[:, j] / r)
        np.testing.assert_allclose(w[j], expected, rtol=1e-11)


def test_filter_update_rule_with_drift_conditions_the_joint_gaussian():
    """The state at time T given all gradients, from the covariance of the whole random walk."""
    rng = np.random.default_rng(1)
    T, q, r = 6, 0.3, 0.5
    mus, gs, w0, P0 = rng.normal(size=T), rng.normal(size=T), rng.normal(size=2), spd(rng, 2)
    w, P = w0[None], P0[None]
    for mu, g in zip(mus, gs, strict=True):
        w, P = kalman_update(w, P, np.array([mu]), np.array([g]), q, r)
    H = np.stack([mus, np.ones(T)], axis=1)
    K_gg = np.array([[H[s] @ (P0 + q * (min(s, t) + 1) * np.eye(2)) @ H[t] for t in range(T)] for s in range(T)])
    K_gg += r * np.eye(T)
    K_wg = np.stack([(P0 + q * (t + 1) * np.eye(2)) @ H[t] for t in range(T)], axis=1)
    np.testing.assert_allclose(w[0], w0 + K_wg @ np.linalg.solve(K_gg, gs - H @ w0), rtol=1e-11)
    np.testing.assert_allclose(P[0], P0 + q * T * np.eye(2) - K_wg @ np.linalg.solve(K_gg, K_wg.T), rtol=1e-11)


def test_filter_textbook_covariance_and_missing_entries():
    rng = np.random.default_rng(2)
    bad = [np.nan, np.inf, -np.inf, 2e140]
    n, q, r = len(bad) + 1, 0.1, 0.4
    w, P = rng.normal(size=(n, 2)), np.stack([spd(rng, 2) for _ in range(n)])
    mu, g = rng.normal(size=n), np.array([*bad, 1.5])
    w1, P1 = kalman_update(w, P, mu, g, q, r)
    np.testing.assert_array_equal(w1[:-1], w[:-1])
    np.testing.assert_array_equal(P1[:-1], P[:-1] + q * np.eye(2))
    H, predicted = np.array([mu[-1], 1.0]), P[-1] + q * np.eye(2)
    v = H @ predicted @ H + r
    K = predicted @ H / v
    np.testing.assert_allclose(P1[-1], predicted - v * np.outer(K, K), rtol=1e-13)
    np.testing.assert_allclose(w1[-1], w[-1] + K * (1.5 - H @ w[-1]), rtol=1e-13)


# ---- primal and KL


@pytest.mark.parametrize("eta", [0.0, 0.3, 20.0])
def test_primal_solutions_are_the_minimum_of_the_lagrangian(eta):
    problem = Problem(seed=3)
    mu = tensor(problem.mean(eta)).requires_grad_()
    Sigma = tensor(problem.covariance()).requires_grad_()
    value = problem.lagrangian(mu, Sigma, eta)
    for gradient in torch.autograd.grad(value, (mu, Sigma)):
        assert gradient.abs().max() < 1e-12
    rng = np.random.default_rng(4)
    with torch.no_grad():
        for size in (1e-3, 1e-1):
            for _ in range(8):
                d, D = tensor(size * rng.normal(size=problem.n)), tensor(size * rng.normal(size=(problem.n, problem.n)))
                factor = torch.eye(problem.n, dtype=torch.float64) + D
                assert problem.lagrangian(mu + d, Sigma, eta) > value
                assert problem.lagrangian(mu, factor @ Sigma @ factor.T, eta) > value


def test_lagrangian_of_the_module_docstring_and_the_misprints_of_the_appendix():
    rng = np.random.default_rng(5)
    n, rho, lam, nu, eta, bound = 4, 0.7, 0.4, 1.3, 0.8, 0.02
    a, b, mu_old, var_old = rng.uniform(0.1, 2, n), rng.normal(size=n), rng.normal(size=n), rng.uniform(0.1, 2, n)
    problem = Problem(0, n)
    problem.A, problem.b, problem.mu, problem.Sigma_old = np.diag(a), b, mu_old, np.diag(var_old)
    problem.prec = np.diag(1 / var_old)
    mu = tensor(problem.mean(eta)).requires_grad_()
    var = tensor(np.diag(problem.covariance())).requires_grad_()
    t_a, t_b, t_mu_old, t_old = map(tensor, (a, b, mu_old, var_old))

    def lagrangian(factor):
        return (
            0.5 * (t_a * mu**2 + t_a * var + factor * mu * t_b).sum()
            + rho * 0.5 * (lam * var - 1 + lam * mu**2 - np.log(lam) - var.log()).sum()
            + nu * 0.5 * (var / t_old - 1 + t_old.log() - var.log()).sum()
            + eta * 0.5 * ((mu - t_mu_old) ** 2 / t_old).sum()
            - eta * bound
        )

    torch.testing.assert_close(lagrangian(2), problem.lagrangian(mu, torch.diag(var), eta), rtol=1e-13, atol=0)
    d_mu, d_var = torch.autograd.grad(lagrangian(2), (mu, var))
    assert d_mu.abs().max() < 1e-13 and d_var.abs().max() < 1e-13
    assert torch.autograd.grad(lagrangian(1), mu)[0].abs().min() > 1e-2  # as printed: not stationary
    printed = 0.5 * (t_a + rho * lam + rho / var + nu / t_old - nu / var)
    assert printed.abs().min() > 1e-2
    corrected = 0.5 * (t_a + rho * lam - rho / var + nu / t_old - nu / var)
    assert corrected.abs().max() < 1e-13


def test_primal_mean_is_the_printed_expression_and_blocks_equal_the_full_diagonal_matrix():
    problem, eta = Problem(seed=6), 0.6
    printed = np.linalg.inv(problem.A + eta * problem.prec + problem.rho * problem.lam * np.eye(problem.n)) @ (
        eta * problem.prec @ problem.mu - problem.b
    )
    np.testing.assert_allclose(problem.mean(eta), printed, rtol=1e-12)
    a, prec = np.diag(problem.A), np.diag(problem.prec)
    full = primal_step(eta, problem.mu, np.diag(prec), np.diag(a), problem.b, 0.7, 0.4)
    blocks = primal_step(eta, problem.mu[:, None], prec[:, None, None], a[:, None, None], problem.b[:, None], 0.7, 0.4)
    np.testing.assert_allclose(blocks[:, 0], full, rtol=1e-13)
    Sigma = primal_covariance(prec[:, None, None], a[:, None, None], 0.7, 0.4, 1.3)
    np.testing.assert_allclose(np.diag(Sigma[:, 0, 0]), primal_covariance(np.diag(prec), np.diag(a), 0.7, 0.4, 1.3))
    assert kl_mean(blocks, prec[:, None, None]) == pytest.approx(kl_mean(full, np.diag(prec)), rel=1e-13)
    assert kl_covariance(Sigma, prec[:, None, None]) == pytest.approx(
        kl_covariance(np.diag(Sigma[:, 0, 0]), np.diag(prec)), rel=1e-12
    )


def test_kl_parts_sum_to_the_divergence_of_torch():
    rng = np.random.default_rng(7)
    mu, mu_old = rng.normal(size=(2, 6))
    var, var_old = rng.uniform(0.1, 3, size=(2, 6))
    ours = kl_mean(mu - mu_old, np.diag(1 / var_old)) + kl_covariance(np.diag(var), np.diag(1 / var_old))
    new, old = Normal(tensor(mu), tensor(var).sqrt()), Normal(tensor(mu_old), tensor(var_old).sqrt())
    assert ours == pytest.approx(kl_divergence(new, old).sum().item(), rel=1e-13)
    S, S_old = spd(rng, 6), spd(rng, 6)
    full = kl_divergence(MultivariateNormal(tensor(mu), tensor(S)), MultivariateNormal(tensor(mu_old), tensor(S_old)))
    prec = np.linalg.inv(S_old)
    assert kl_mean(mu - mu_old, prec) + kl_covariance(S, prec) == pytest.approx(full.item(), rel=1e-12)


# ---- dual


def test_dual_der_is_the_derivative_of_the_dual_function_which_is_concave():
    problem = Problem(seed=8)
    A, b, mu_old, prec = (tensor(x) for x in (problem.A, problem.b, problem.mu, problem.prec))
    A_prior = A + problem.rho * problem.lam * torch.eye(problem.n, dtype=torch.float64)
    Sigma = tensor(problem.covariance())
    slopes = []
    for value in (0.0, 0.1, 1.0, 5.0, 50.0):
        eta = tensor(value).requires_grad_()
        mu = torch.linalg.solve(A_prior + eta * prec, eta * prec @ mu_old - b)  # inserted, so that autograd sees it
        (slope,) = torch.autograd.grad(problem.lagrangian(mu, Sigma, eta), eta)
        ours = dual_derivative(value, [problem.quadratic], problem.bound)
        assert ours == pytest.approx(slope.item(), rel=1e-10)
        slopes.append(ours)
    assert slopes[0] > 0 > slopes[-1]
    assert all(left > right for left, right in pairwise(slopes))


@pytest.mark.parametrize("bound", [1e-9, 1e-3, 0.1, 1.0])
def test_solve_dual_meets_the_bound(bound):
    problem = Problem(seed=9)
    assert constraint(0.0, [problem.quadratic]) > bound
    eta = solve_dual(lambda eta: dual_derivative(eta, [problem.quadratic], bound))
    assert eta > 0
    assert constraint(eta, [problem.quadratic]) == pytest.approx(bound, rel=1e-10)
    assert constraint(eta, [problem.quadratic]) <= bound * (1 + 1e-15)
    assert constraint(eta * (1 - 2e-12), [problem.quadratic]) > bound  # as close as promised


def test_solve_dual_is_zero_inside_and_the_step_is_then_the_models_minimum():
    problem = Problem(seed=9)
    inside = constraint(0.0, [problem.quadratic])
    assert solve_dual(lambda eta: dual_derivative(eta, [problem.quadratic], inside)) == 0.0
    assert solve_dual(lambda eta: dual_derivative(eta, [problem.quadratic], inside * (1 - 1e-9))) > 0.0
    slope = (problem.A + problem.rho * problem.lam * np.eye(problem.n)) @ problem.mean(0.0) + problem.b
    np.testing.assert_allclose(slope, 0, atol=1e-13)


def test_solve_dual_right_of_the_pole_for_negative_curvature():
    """mu = 1, prec = 1, a = -2: d = -2 / (eta - 2), and 1/2 d^2 = 1/8 at eta = 2 + 4 (and, wrongly, at 2 - 4)."""
    part = Quadratic(np.ones(1), np.eye(1), -2 * np.eye(1), np.zeros(1), 0.0, 0.0)
    eta = solve_dual(lambda eta: dual_derivative(eta, [part], 0.125), pole=2.0)
    assert eta == pytest.approx(6.0, rel=2e-12)
    assert solve_dual(lambda eta: dual_derivative(eta, [part], 1000.0), pole=2.0) > 2.0  # C(0) = 1/2 is below, a trap
    opt = ReferenceArturo([np.ones(1)], **{**HYPER, "initial_curvature": -0.5}, initial_variance=1.0, curvature_floor=None)
    info = opt.step([np.array([-0.5])])
    assert info.eta > 0.4 and info.kl == pytest.approx(0.05, rel=1e-10)
    assert opt.groups[0]["params"][0][0] > 1.0  # away from the maximum


@pytest.mark.parametrize("eta", [1e-6, 0.05, 0.1874])
def test_bisection_does_not_enter_the_loop_below_0_1875(eta):
    def never(_):
        raise AssertionError("evaluated")

    assert bisection(never, 1.0, eta) == pytest.approx(5 / 3 * eta, rel=1e-15)


def test_bisection_enters_the_loop_above_0_1875():
    calls = []
    bisection(lambda eta: calls.append(eta) or -1.0, 1.0, 0.1876)
    assert calls == [pytest.approx(5 / 3 * 0.1876)]


def test_bisection_stays_at_0_305_while_the_step_is_far_too_short():
    calls = []

    def derivative(eta, bound=1.0):
        calls.append(eta)
        return 0.03 * bound - bound  # KL is 3 % of the bound

    eta = 0.305
    for _ in range(5):
        eta = bisection(derivative, 1.0, eta)
    assert eta == pytest.approx(0.305, rel=1e-14)
    assert calls == [pytest.approx(0.305 * 5 / 3, rel=1e-14)] * 5


def test_bisection_brackets_and_the_early_stop():
    """First bracket [0, 10000], later three times around eta and capped; it is halved, then |g'| < 0.1 bound stops."""
    seen = []
    assert bisection(lambda eta: seen.append(eta) or 0.0999, 1.0) == 7500.0  # of [5000, 10000]
    assert bisection(lambda eta: seen.append(eta) or -0.0999, 1.0, 9000.0) == 4750.0  # of [3000, 6500]
    assert seen == [5000.0, 6500.0]
    seen.clear()
    assert bisection(lambda eta: seen.append(eta) or 0.1001, 1.0, 0.3) == pytest.approx(0.7)
    assert seen == [pytest.approx(0.5)]
    assert bisection(lambda eta: 1.0 / (eta + 1) - 1.0 / 301, 1.0 / 301) == 156.25  # 312.5 was good enough: of [0, 312.5]


# ---- the optimizer


def by_hand(mu, grads, etas, *, e, rho, lam, nu, q, r, a, P, var, wd, init):
    """Steps of one weight in exact fractions, in the scalar form of the library."""
    prec, b, P_aa, P_ab, P_bb = 1 / var, None, P, Fraction(0), P
    out = []
    for g, eta in zip(grads, etas, strict=True):
        mu = mu * (1 - e * wd)
        if b is None:
            b = g - a * mu if init == "consistent" else g
        P_aa, P_bb = P_aa + q, P_bb + q
        h_a, h_b = mu * P_aa + P_ab, mu * P_ab + P_bb
        v = mu * h_a + h_b + r
        error = g - a * mu - b
        a, b = a + h_a / v * error, b + h_b / v * error
        P_aa, P_ab, P_bb = P_aa - h_a * h_a / v, P_ab - h_a * h_b / v, P_bb - h_b * h_b / v
        d = (a * mu + b + rho * lam * mu) / (a + rho * lam + eta * prec)
        mu, kl, prec = mu - d, prec * d * d / 2, (a + rho * lam + nu * prec) / (rho + nu)
        out.append([float(x) for x in (mu, kl, prec, a, b, P_aa, P_ab, P_bb)])
    return out


@pytest.mark.parametrize("init", ["consistent", "gradient"])
def test_three_steps_equal_exact_fractions(init):
    F = Fraction
    values = dict(rho=F(3, 10), lam=F(1, 5), nu=F(13, 10), q=F(1, 50), r=F(6, 5), a=F(1, 10), P=F(1, 4), var=F(1, 3))
    grads, etas = [F(3), F(-1), F(2, 3)], [F(1, 2), F(2), F(0)]
    expected = by_hand(F(2), grads, etas, e=F(1, 20) * F(1, 4), wd=F(4), init=init, **values)
    opt = ReferenceArturo(
        [{"params": [np.array(2.0)], "lr": 0.5}], kl_bound=0.05, prior_weight=0.3, prior_precision=0.2, noise=1.2,
        drift=0.02, initial_filter_variance=0.25, initial_variance=1 / 3, weight_decay=4.0, init=init,
        initial_curvature=0.1,
    )  # fmt: skip
    for t, row in enumerate(expected):
        info = opt.step([[np.array(float(grads[t]))]], eta=float(etas[t]))
        state = opt.state[0][0]
        got = [opt.groups[0]["params"][0], info.kl, *(state[name] for name in STATE)]
        np.testing.assert_allclose(got, row, rtol=1e-12)
        assert (state["step"], state["eta"], info.eta) == (t + 1, float(etas[t]), float(etas[t]))
        assert (info.active, info.skipped, info.evaluations) == (etas[t] > 0, 0, 1)
        assert info.bound == 0.0125


def run(groups, steps=6, seed=10, **options):
    """Noisy gradients of 1/2 c theta^2, drawn alike for the same total number of weights, whatever the groups."""
    opt = ReferenceArturo(groups, **{**HYPER, **options})
    rng = np.random.default_rng(seed)
    n = flat(opt).size
    curvature, infos = rng.uniform(0.1, 3, n), []
    for _ in range(steps):
        vector = curvature * flat(opt) + 0.5 * rng.normal(size=n)
        sizes = [p.size for group in opt.groups for p in group["params"]]
        pieces = iter(np.split(vector, np.cumsum(sizes)[:-1]))
        infos.append(opt.step([[next(pieces).reshape(p.shape) for p in group["params"]] for group in opt.groups]))
    return opt, infos


def test_every_active_step_meets_the_bound_and_keeps_the_state_sound():
    opt, infos = run([{"params": [np.linspace(-2, 2, 12).reshape(3, 4)]}], steps=30, kl_bound=0.3)
    assert any(info.active for info in infos) and not all(info.active for info in infos)
    for info in infos:
        if info.active:
            assert info.kl == pytest.approx(info.bound, rel=1e-10)
        else:
            assert info.eta == 0.0 and info.kl <= info.bound
    state = opt.state[0][0]
    assert (state["prec"] > 0).all() and (state["P_aa"] * state["P_bb"] > state["P_ab"] ** 2).all()
    assert state["step"] == 30 and state["prec"].shape == (3, 4)


@pytest.mark.parametrize("dual", ["newton", "bisection"])
def test_splitting_into_groups_changes_nothing(dual):
    x = np.linspace(-2, 2, 10)
    one, infos = run([{"params": [x]}], dual=dual, weight_decay=0.1)
    two, infos2 = run([{"params": [x[:3], x[3:4]]}, {"params": [x[4:].reshape(2, 3)]}], dual=dual, weight_decay=0.1)
    assert any(info.active for info in infos)
    np.testing.assert_allclose(flat(two), flat(one), rtol=1e-9)
    for name in STATE:
        np.testing.assert_allclose(flat(two, name), flat(one, name), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose([i.eta for i in infos2], [i.eta for i in infos], rtol=1e-9)


def test_a_plain_list_is_one_group_and_its_arrays_are_copied():
    x = np.linspace(-1, 1, 4)
    listed, grouped = ReferenceArturo([x], **HYPER), ReferenceArturo([{"params": [x]}], **HYPER)
    listed.step([np.ones(4)])
    grouped.step([[np.ones(4)]])
    np.testing.assert_array_equal(flat(listed), flat(grouped))
    np.testing.assert_array_equal(x, np.linspace(-1, 1, 4))


def test_groups_with_different_bounds_share_one_region():
    """Each group's step over f_g = sqrt(e_g / B) is stationary for the sum of the models on C = B, all groups alike."""
    rng = np.random.default_rng(11)
    means = [rng.normal(size=3), rng.normal(size=4)]
    grads = [rng.normal(size=3), rng.normal(size=4)]
    options = [{"kl_bound": 0.02, "lr": 0.5}, {"kl_bound": 0.01, "lr": 0.9, "prior_weight": 0.5, "drift": 0.1}]
    opt = ReferenceArturo([{"params": [m], **o} for m, o in zip(means, options, strict=True)], **HYPER)
    opt.step([[None], [None]])
    precs = [o.get("prior_weight", 0.3) for o in options]
    precs = [(0.1 + rho * 0.0015) / rho for rho in precs]  # the default initial_variance
    info = opt.step([[g] for g in grads])
    e = np.array([0.02 * 0.25, 0.01 * 0.81])
    assert info.bound == pytest.approx(e.max(), rel=1e-15)
    moved = [group["params"][0] for group in opt.groups]
    C = np.array([0.5 * p * np.sum((new - m) ** 2) for p, new, m in zip(precs, moved, means, strict=True)])
    assert np.sum(C * e.max() / e) == pytest.approx(info.bound, rel=1e-10)
    assert np.sum(C) == pytest.approx(info.kl, rel=1e-12) and info.kl < 0.95 * info.bound
    for i, new in enumerate(moved):
        new = means[i] + (new - means[i]) / np.sqrt(e[i] / e.max())
        theta, a, b = tensor(new).requires_grad_(), tensor(opt.state[i][0]["a"]), tensor(opt.state[i][0]["b"])
        rho = opt.groups[i]["prior_weight"]
        model = (0.5 * (a + rho * 0.0015) * theta**2 + b * theta).sum()
        region = 0.5 * precs[i] * ((theta - tensor(means[i])) ** 2).sum()
        (slope,) = torch.autograd.grad(model + info.eta * region, theta)
        assert slope.abs().max() < 1e-12 * info.eta + 1e-13


def test_step_length_is_proportional_to_lr():
    lengths = []
    for lr in (1e-3, 1e-4):
        opt = ReferenceArturo([np.ones(3)], lr=lr, **HYPER)
        opt.step([np.array([1.0, -2.0, 0.5])])
        lengths.append(np.linalg.norm(flat(opt) - 1))
    assert lengths[0] / lengths[1] == pytest.approx(10, rel=1e-2)


@pytest.mark.parametrize("lr", [1.0, 0.5, 0.1])
def test_a_group_at_a_part_of_the_lr_takes_that_part_of_the_step(lr):
    """Beside a group at lr = 1, to rounding: the multiplier is that of equal groups."""
    start, g = np.array([1.0, -2.0, 0.5]), np.array([1.0, -2.0, 0.5])
    steps = []
    for factor in (1.0, lr):
        opt = ReferenceArturo([{"params": [start]}, {"params": [start], "lr": factor}], **HYPER)
        info = opt.step([[g], [g]])
        assert info.active
        steps.append([group["params"][0] - start for group in opt.groups])
    np.testing.assert_allclose(steps[1][0], steps[0][0], rtol=1e-12)
    np.testing.assert_allclose(steps[1][1], lr * steps[0][1], rtol=1e-12)


def test_default_start():
    opt = ReferenceArturo([np.ones(2)], lr=0.0, **HYPER)
    opt.step([np.ones(2)])
    expected = {"prec": (0.1 + 0.3 * 0.0015) / 0.3, "a": 0.1, "b": 0.0, "P_ab": 0.0}
    expected |= {"P_aa": np.sqrt(0.024), "P_bb": np.sqrt(0.024)}
    for name in STATE:
        np.testing.assert_allclose(opt.state[0][0][name], np.full(2, expected[name]), rtol=1e-14)
    still = ReferenceArturo([np.ones(2)], lr=0.0, **{**HYPER, "drift": 0.0})
    still.step([np.ones(2)])
    np.testing.assert_array_equal(still.state[0][0]["P_bb"], [1.2, 1.2])


def test_lr_zero_creates_state_and_the_run_then_follows_the_plain_trajectory():
    grads = [np.array([1.0, -2.0]), np.array([0.3, 0.4])]
    plain, delayed = (ReferenceArturo([np.array([0.5, 1.0])], weight_decay=0.5, **HYPER) for _ in range(2))
    delayed.groups[0]["lr"] = 0.0
    info = delayed.step([np.array([7.0, np.nan])])
    assert info == (0.0, 0.0, 0.0, 0, False, 0)
    np.testing.assert_array_equal(flat(delayed), [0.5, 1.0])
    assert delayed.state[0][0]["step"] == 0 and (flat(delayed, "b") == 0).all()
    delayed.groups[0]["lr"] = 1.0
    for g in grads:
        assert plain.step([g]) == delayed.step([g])
    np.testing.assert_array_equal(flat(plain), flat(delayed))


def test_groups_without_lr_or_gradient_do_not_shape_the_region():
    x, g = np.array([0.5, 1.0]), np.array([1.0, -2.0])
    alone = ReferenceArturo([{"params": [x]}], **HYPER)
    crowd = ReferenceArturo([
        {"params": [np.ones(3)], "kl_bound": 9.0, "lr": 0.0},
        {"params": [np.ones(2)], "kl_bound": 9.0},
        {"params": [np.ones(1), x]},
    ], **HYPER)  # fmt: skip
    for _ in range(2):
        assert alone.step([[g]]) == crowd.step([[np.ones(3)], [None], [None, g]])
    np.testing.assert_array_equal(crowd.groups[2]["params"][1], flat(alone))
    np.testing.assert_array_equal(crowd.groups[0]["params"][0], np.ones(3))
    assert [len(state) for states in crowd.state for state in states] == [8, 0, 0, 8]
    assert crowd.state[0][0]["step"] == 0


def test_the_previous_eta_is_that_of_the_first_participant_with_a_step():
    opt = ReferenceArturo([np.ones(1), np.ones(1), np.ones(1)], dual="bisection", **HYPER)
    opt.step([None, np.ones(1), None], eta=0.06)
    opt.step([None, None, np.ones(1)], eta=0.12)
    assert [state.get("eta") for state in opt.state[0]] == [None, 0.06, 0.12]
    info = opt.step([np.ones(1), None, np.ones(1)])  # the new parameter has no eta yet
    assert info.eta == pytest.approx(0.2, rel=1e-14) and info.evaluations == 1
    assert [state["step"] for state in opt.state[0]] == [1, 1, 2]


def test_bisection_dual_starts_from_the_wide_bracket():
    _, (first, second) = run([{"params": [np.linspace(-2, 2, 10)]}], dual="bisection", kl_bound=1e-4, steps=2)
    assert 10 < first.eta < 5000
    ticks = first.eta / 10000 * 2**first.evaluations  # a dyadic midpoint of [0, 10000], after one halving for each evaluation
    assert ticks == int(ticks) and int(ticks) % 2 == 1
    ends = [first.eta + sign * 10000 / 2**first.evaluations for sign in (-1, 1)]
    seen = [run([{"params": [np.linspace(-2, 2, 10)]}], eta=eta, kl_bound=1e-4, steps=1)[1][0].kl for eta in ends]
    assert sum(abs(kl / first.bound - 1) < 0.1 for kl in seen) == 1  # the end at which it stopped
    assert first.eta / 3 < second.eta < 3 * first.eta


def test_fixed_eta_and_the_override_for_one_step():
    opt = ReferenceArturo([np.ones(2)], eta=2.0, **HYPER)
    assert opt.step([np.ones(2)]).eta == 2.0
    assert opt.step([np.ones(2)], eta=0.0).eta == 0.0
    assert opt.step([np.ones(2)])[0] == 2.0
    assert opt.state[0][0]["eta"] == 2.0


@pytest.mark.parametrize("init", ["consistent", "gradient"])
def test_missing_entries_are_predicted_and_move_by_the_model(init):
    x = np.array([2.0, -1.0])
    opt = ReferenceArturo([x], init=init, initial_filter_variance=0.25, **HYPER)
    info = opt.step([np.array([np.nan, 3.0])], eta=1.0)
    state = opt.state[0][0]
    assert info.skipped == 1 and state["step"] == 1
    assert (state["a"][0], state["b"][0]) == (0.1, -0.2)  # b_0 = -a_0 mu: no predicted gradient
    assert (state["P_aa"][0], state["P_ab"][0], state["P_bb"][0]) == (0.27, 0.0, 0.27)
    prior, prec = 0.3 * 0.0015, (0.1 + 0.3 * 0.0015) / 0.3
    expected = 2.0 - prior * 2.0 / (0.1 + prior + prec)  # only the prior pulls
    assert opt.groups[0]["params"][0][0] == pytest.approx(expected, rel=1e-14)
    before = {name: state[name].copy() for name in STATE}
    opt.step([np.array([np.inf, 3.0])], eta=1.0)
    assert (state["a"][0], state["b"][0]) == (before["a"][0], before["b"][0])
    assert state["P_bb"][0] == pytest.approx(0.29, rel=1e-15)
    assert state["a"][1] != before["a"][1]


def test_a_step_with_every_entry_missing_moves_nothing():
    opt = ReferenceArturo([np.array([2.0]), np.array([1.0])], weight_decay=2.0, initial_filter_variance=0.25, **HYPER)
    opt.step([np.array([1.0]), None], eta=3.0)
    mean, old = flat(opt), {name: opt.state[0][0][name].copy() for name in STATE}
    info = opt.step([np.array([np.nan]), np.array([-np.inf])])
    assert info == (3.0, 0.0, 0.05, 0, False, 2)
    np.testing.assert_array_equal(flat(opt), mean)
    known, new = opt.state[0]
    assert (known["step"], known["eta"], new["step"], new["eta"]) == (1, 3.0, 0, 0.0)
    for name in ("prec", "a", "b", "P_ab"):
        np.testing.assert_array_equal(known[name], old[name])
    np.testing.assert_allclose(known["P_bb"], old["P_bb"] + 0.02, rtol=1e-15)
    assert new["b"][0] == pytest.approx(-0.1 * 0.9) and new["P_aa"][0] == 0.27
    opt.step([None, np.array([3.0])], eta=1.0)  # its first observation sets b_0 after all
    assert new["a"][0] == pytest.approx(0.1, rel=1e-14) and new["b"][0] == pytest.approx(3.0 - 0.1 * 0.9, rel=1e-14)


def test_weight_decay_comes_first_and_kl_is_measured_from_the_decayed_mean():
    decayed = ReferenceArturo([np.array([2.0, -4.0])], lr=0.5, weight_decay=8.0, **HYPER)
    plain = ReferenceArturo([np.array([1.8, -3.6])], lr=0.5, **HYPER)  # 1 - 0.05 * 0.25 * 8 = 0.9
    g = np.array([1.0, 0.3])
    info = decayed.step([g])
    np.testing.assert_allclose(info, plain.step([g]), rtol=1e-10)
    np.testing.assert_allclose(flat(decayed), flat(plain), rtol=1e-12)
    for name in STATE:
        np.testing.assert_allclose(flat(decayed, name), flat(plain, name), rtol=1e-12)


def test_maximize_negates_the_gradient():
    up, down = ReferenceArturo([np.ones(2)], maximize=True, **HYPER), ReferenceArturo([np.ones(2)], **HYPER)
    g = np.array([1.0, -2.0])
    for _ in range(2):
        assert up.step([g]) == down.step([-g])
    np.testing.assert_array_equal(flat(up), flat(down))


@pytest.mark.parametrize(
    ("floor", "lam", "effective"),
    [(0.0, 0.2, 0.0), (0.5, 0.2, 0.5), (None, 0.2, -0.3), (0.0, 0.0, 1e-8)],
)
def test_curvature_floor_enters_the_denominator_and_the_precision_only(floor, lam, effective):
    opt = ReferenceArturo(
        [np.array([2.0])], initial_variance=0.5, curvature_floor=floor, prior_precision=lam,
        **{**HYPER, "initial_curvature": -0.3},
    )  # fmt: skip
    opt.step([np.array([1.0])], eta=1.5)  # a consistent first observation leaves a = -0.3, and a mu + b = g
    A = effective + 0.3 * lam
    assert opt.state[0][0]["a"][0] == pytest.approx(-0.3, rel=1e-14)
    expected = 2.0 - (1.0 + 0.3 * lam * 2.0) / (A + 1.5 * 2.0)
    assert opt.groups[0]["params"][0][0] == pytest.approx(expected, rel=1e-14)
    assert opt.state[0][0]["prec"][0] == pytest.approx((A + 1.3 * 2.0) / (0.3 + 1.3), rel=1e-14)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (TypeError, {"kl_bond": 1.0}),
        (ValueError, {"dual": "exact"}),
        (ValueError, {"init": "zero"}),
        (ValueError, {"prior_weight": 0.0}),
    ],
)
def test_bad_options_are_errors(error, options):
    with pytest.raises(error):
        ReferenceArturo([np.ones(1)], **{**HYPER, **options})


def test_missing_hyperparameters_and_wrong_shapes_are_errors():
    with pytest.raises(TypeError, match="drift"):
        ReferenceArturo([np.ones(1)], kl_bound=1.0, prior_weight=1.0, noise=1.0)
    with pytest.raises(ValueError, match="shape"):
        ReferenceArturo([np.ones((2, 1))], **HYPER).step([np.ones(2)])


def test_doctests():
    result = doctest.testmod(reference)
    assert result.attempted >= 10 and result.failed == 0
