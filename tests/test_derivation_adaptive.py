"""The claims of docs/derivation-adaptive.md, each against a recursion, a simulation, autograd or numerical optimisation."""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from arturo import AdaArturo, adaptive_rows, adaptive_state, adaptive_step, kronecker, reference_adaptive
from arturo.kernels import adaptive
from arturo.kernels.adaptive import eager, tiles
from arturo.surrogates import learned

GAINS = (0.0, 0.3, 0.5, 0.9, 0.95, 0.99, 0.999)
LIVELY = GAINS[1:]  # b1 = 0 has no memory


def recursion(b1, steps):
    """Gains of the filter from P = infinity: P- = P + kappa, K = P- / (1 + P-), P <- K."""
    kappa, K = (1 - b1) ** 2 / b1, 1.0
    for _ in range(steps):
        yield K
        K = (K + kappa) / (1 + K + kappa)


def filtered_variance(b1, steps):
    """Variance of M in units of r if all gradients are noise: V <- (1 - K)^2 V + K^2."""
    V = 0.0
    for K in recursion(b1, steps):
        V = (1 - K) ** 2 * V + K**2
        yield V


def filtered_noise(b1, steps, n, seed=0):
    """M of pure unit noise, step by step, and the innovations that made it."""
    rng, M = np.random.default_rng(seed), np.zeros(n)
    for t in range(1, steps + 1):
        E = rng.standard_normal(n) - M
        M = M + learned.filter_gain(b1, t) * E
        yield M, E


# 2. The filter


@pytest.mark.parametrize("b1", LIVELY)
def test_filter_gain_is_the_kalman_recursion(b1):
    for t, K in enumerate(recursion(b1, 3000), 1):
        assert learned.filter_gain(b1, t) == pytest.approx(K, rel=1e-11)


@pytest.mark.parametrize("b1", GAINS)
def test_filter_gain_starts_at_one_and_settles_at_one_minus_b1(b1):
    assert learned.filter_gain(b1, 1) == pytest.approx(1.0, rel=1e-12)
    assert learned.filter_gain(b1, 100_000) == pytest.approx(1 - b1, rel=1e-12)


@pytest.mark.parametrize("b1", LIVELY)
def test_the_gain_is_eq_filter_update_rule_without_a_slope(b1):
    """eq:filter_update_rule with H = (0, 1), q = kappa r, for r far from 1: the gain of b, and P / r = K."""
    r, P = 7.0, np.diag([0.0, 1e12])
    H, q = np.array([[0.0, 1.0]]), (1 - b1) ** 2 / b1 * 7.0
    for t in range(1, 50):
        P = P + q * np.diag([0.0, 1.0])  # the slope is dropped: it does not drift
        v = (H @ P @ H.T).item() + r
        K = P @ H.T / v
        P = P - v * K @ K.T
        assert K[1, 0] == pytest.approx(learned.filter_gain(b1, t), rel=1e-6)
        assert P[1, 1] / r == pytest.approx(K[1, 0], rel=1e-3)  # P - v K K^T cancels at first


@pytest.mark.parametrize("b1", LIVELY)
@pytest.mark.parametrize("t", [1, 2, 3, 10, 60])
def test_filtered_gradient_is_the_mirrored_mean(b1, t):
    """Weights (1 - b1) / (1 - b1^2t) (b1^(t-j) + b1^(t+j-1)): unroll the filter on unit vectors."""
    weights = np.zeros(t)
    for j in range(1, t + 1):
        weights *= 1 - learned.filter_gain(b1, j)
        weights[j - 1] = learned.filter_gain(b1, j)
    j = np.arange(1, t + 1)
    np.testing.assert_allclose(weights, (1 - b1) / (1 - b1 ** (2 * t)) * (b1 ** (t - j) + b1 ** (t + j - 1.0)), rtol=1e-9)
    assert weights.sum() == pytest.approx(1.0, rel=1e-12)


def test_the_gain_is_close_to_that_of_adam():
    least = 2 * (math.sqrt(2) - 1)  # 0.828, approached as b1 -> 1
    ratios = [learned.filter_gain(b1, t) * (1 - b1**t) / (1 - b1) for b1 in (*LIVELY, 0.9999) for t in range(1, 20_000, 7)]
    assert least - 1e-9 < min(ratios) < least + 1e-3
    assert max(ratios) <= 1 + 1e-9


# 3. Learned noise


@pytest.mark.parametrize("b1", [0.5, 0.9])
def test_innovations_have_the_variance_r_times_one_plus_P(b1):
    """A gradient that drifts as the model says: E^2 (1 - K) has the mean r."""
    rng, n, r = np.random.default_rng(1), 4000, 3.0
    q = (1 - b1) ** 2 / b1 * r
    signal, M, means = np.zeros(n), np.zeros(n), []
    for t in range(1, 200):
        signal = signal + rng.normal(scale=math.sqrt(q), size=n)
        E = signal + rng.normal(scale=math.sqrt(r), size=n) - M
        K = learned.filter_gain(b1, t)
        if t > 1:
            means.append(np.mean(E**2) * learned.innovation_share(K, t))
        M = M + K * E
    assert np.mean(means[20:]) == pytest.approx(r, rel=0.01)
    assert means[0] == pytest.approx(r, rel=0.1)


@pytest.mark.parametrize("b1", [0.5, 0.9])
def test_noise_is_learned_a_little_low_without_drift(b1):
    """2 (1 - K) / (2 - K) of the true r, so that the share of pure noise is K / (2 - K) and not 0."""
    K, squares, pulls = 1 - b1, [], []
    for t, (M, E) in enumerate(filtered_noise(b1, 400, 4000), 1):
        if t > 100:
            squares.append(np.mean(E**2) * learned.innovation_share(learned.filter_gain(b1, t), t))
            pulls.append(np.mean(M**2))
    r = np.mean(squares)
    assert r == pytest.approx(2 * (1 - K) / (2 - K), rel=0.01)
    assert 1 - learned.noise_level(K) * r / np.mean(pulls) == pytest.approx(K / (2 - K), rel=0.25)


def test_noise_weights_average_over_the_last_third():
    """w_t = 3 / (t + 2) gives the innovation of step j a weight proportional to j (j + 1); later 1 - b2."""
    weights = np.zeros(40)
    for t in range(1, 41):
        weights *= 1 - learned.noise_weight(0.999, t)
        weights[t - 1] = learned.noise_weight(0.999, t)
    j = np.arange(1, 41)
    np.testing.assert_allclose(weights, j * (j + 1) / (j * (j + 1)).sum(), rtol=1e-12)
    assert learned.noise_weight(0.99, 299) > 0.01 == pytest.approx(learned.noise_weight(0.99, 300))
    assert learned.noise_weight(0.99, torch.tensor(5.0)).item() == pytest.approx(learned.noise_weight(0.99, 5))


@pytest.mark.parametrize("z2", [1.0, 3.0, 50.0])
def test_trust_is_the_posterior_mean_of_students_precision(z2):
    """E[lambda | z] for lambda ~ Gamma(nu/2, nu/2) and z ~ N(0, 1 / lambda), integrated numerically; never above 1."""
    nu = learned.FREEDOM
    lam = np.linspace(1e-6, 30, 400_001)
    density = lam ** (nu / 2 - 1) * np.exp(-nu / 2 * lam) * np.sqrt(lam) * np.exp(-lam * z2 / 2)
    assert learned.trust(z2) == pytest.approx((lam * density).sum() / density.sum(), rel=1e-5)
    assert learned.trust(0.2 * z2 / 50) == 1.0


@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
def test_an_outlier_moves_the_filter_by_a_bounded_amount(covariance):
    """However long one gradient is, the filter follows it by less than a usual one's length in units of the noise then."""
    pulls = []
    for size in (1.0, 1e2, 1e4):
        p, rng = parameter(torch.ones(6, 6)), torch.Generator().manual_seed(3)
        gradients = [torch.randn(6, 6, generator=rng) for _ in range(400)]
        optimizer = take_steps([p], [[g] for g in [*gradients, size * torch.randn(6, 6, generator=rng)]], covariance=covariance)
        state = optimizer.state[p]
        pulls.append((state["M"].square() / state["r"]).mean().item())
    K = learned.filter_gain(0.9, 401)
    assert max(pulls[1:]) < 2 * learned.noise_level(K)  # a Gaussian filter: K^2 / ((1 - K) (1 - b2)), forty times as much
    assert pulls[0] < 3 * learned.noise_level(K)


# 4. The precision of a drifting optimum


@pytest.mark.parametrize("x", [1e-8, 1e-4, 1e-2, 1.0, 100.0])
def test_stationary_precision(x):
    """The recursion p <- 1 / (1/p + q_w) + F ends at the closed form; sqrt(F / q_w) is its leading order in x = q_w F."""
    q_w = 0.04
    F = x / q_w
    closed = math.sqrt(F / q_w) * (math.sqrt(1 + x / 4) + math.sqrt(x) / 2)
    assert 1 / (1 / closed + q_w) + F == pytest.approx(closed, rel=1e-12)
    p = 3 * closed
    for _ in range(int(20 / math.sqrt(x)) if x < 1 else 100):
        p = 1 / (1 / p + q_w) + F
    assert p == pytest.approx(closed, rel=1e-6)
    if x <= 1e-2:
        assert closed / math.sqrt(F / q_w) - 1 == pytest.approx(math.sqrt(x) / 2, rel=0.06)
    if x >= 100:
        assert closed == pytest.approx(F, rel=0.02)  # the natural gradient's


# 5. The trust region


class Problem:
    """Two tensors, one of them with a Kronecker covariance: explicit matrices, and the closed form's sums."""

    tau = 0.02

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.Q_L, self.Q_R = (torch.linalg.qr(draw(n, n))[0] for n in (3, 4))
        self.s = [draw(3, 4).exp(), draw(5).exp()]
        self.sigma = [0.3, 2.0]
        self.M = [draw(3, 4), draw(5)]  # of the first tensor in its basis
        self.B = sum(sigma * s.sum() for sigma, s in zip(self.sigma, self.s, strict=True))
        self.A = sum(sigma * (M**2 / s).sum() for sigma, M, s in zip(self.sigma, self.M, self.s, strict=True))
        Q = torch.kron(self.Q_L, self.Q_R)  # rows follow each other
        p = [s.flatten() / (self.tau * sigma) for sigma, s in zip(self.sigma, self.s, strict=True)]
        self.precision = torch.block_diag(Q @ torch.diag(p[0]) @ Q.T, torch.diag(p[1]))
        self.gradient = torch.cat([Q @ self.M[0].flatten(), self.M[1]])
        drift = torch.cat(
            [
                torch.full((n,), (self.tau * sigma) ** 2, dtype=torch.float64)
                for n, sigma in zip((12, 5), self.sigma, strict=True)
            ]
        )
        self.bound = 0.5 * (self.precision.diagonal() * drift).sum()

    def kl(self, d):
        return 0.5 * d @ self.precision @ d

    def closed(self, k):
        first = kronecker.turn_back(self.M[0] / self.s[0], self.Q_L, self.Q_R).flatten()
        return -self.tau * k * torch.cat([self.sigma[0] * first, self.sigma[1] * self.M[1] / self.s[1]])


@pytest.fixture(params=range(3))
def problem(request):
    return Problem(request.param)


def test_the_bound_is_the_kl_of_the_drift(problem):
    torch.testing.assert_close(problem.bound, 0.5 * problem.tau * problem.B, rtol=1e-12, atol=0)
    generator = torch.Generator().manual_seed(9)
    scale = problem.tau * torch.cat(
        [torch.full((n,), sigma, dtype=torch.float64) for n, sigma in zip((12, 5), problem.sigma, strict=True)]
    )
    draws = torch.randn(20_000, 17, generator=generator, dtype=torch.float64) * scale
    drifts = 0.5 * ((draws @ problem.precision) * draws).sum(1).mean()
    torch.testing.assert_close(drifts, problem.bound, rtol=0.03, atol=0)


def test_reach_solves_the_trust_region(problem):
    """obj:itropt for a linear model: the Lagrangian's gradient vanishes at eta = 1 / k, and the bound is met."""
    k, _, part = learned.reach(problem.B, problem.A, torch.zeros_like(problem.A), 0.25)
    assert part == 1
    d = problem.closed(k).requires_grad_()
    torch.testing.assert_close(problem.kl(d), problem.bound, rtol=1e-12, atol=0)
    lagrangian = problem.gradient @ d + (problem.kl(d) - problem.bound) / k
    (slope,) = torch.autograd.grad(lagrangian, d)
    assert slope.abs().max() < 1e-12 * problem.gradient.abs().max()


def test_numerical_optimisation_ends_at_the_step_of_reach(problem):
    """L-BFGS over all d on the boundary of the region, without using the solution."""
    k, _, _ = learned.reach(problem.B, problem.A, torch.zeros_like(problem.A), 0.25)
    free = torch.randn(17, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()

    def on_boundary():
        return free * (problem.bound / problem.kl(free)).sqrt()

    scale = problem.gradient.abs().sum() * problem.closed(k).abs().max()
    solver = torch.optim.LBFGS([free], max_iter=2000, tolerance_grad=1e-14, tolerance_change=0, line_search_fn="strong_wolfe")

    def objective():
        solver.zero_grad()
        loss = problem.gradient @ on_boundary() / scale
        loss.backward()
        return loss

    solver.step(objective)
    torch.testing.assert_close(on_boundary().detach(), problem.closed(k), rtol=1e-4, atol=1e-6 * problem.closed(k).abs().max())


# 6. The share


@pytest.mark.parametrize("b1", LIVELY)
def test_noise_level_is_where_the_recursion_settles(b1):
    *_, V = filtered_variance(b1, 20_000)
    assert learned.noise_level(1 - b1) == pytest.approx(V, rel=1e-9)


@pytest.mark.parametrize("b1", [0.5, 0.9])
def test_noise_level_by_simulation(b1):
    seen = [np.mean(M**2) for M, _ in filtered_noise(b1, 400, 4000)]
    assert np.mean(seen[100:]) == pytest.approx(learned.noise_level(1 - b1), rel=0.02)


@pytest.mark.parametrize("b1", LIVELY)
def test_exact_variance_of_filtered_noise(b1):
    """V_t has a closed form; K_t / (2 - K_t) equals it at t = 1 and in the end, and is low by less than 2 between."""
    for t, V in enumerate(filtered_variance(b1, 3000), 1):
        x = (1 - b1) / (1 - b1 ** (2 * t))
        exact = (1 - b1) / (1 + b1) * (1 + b1 ** (2 * t)) / (1 - b1 ** (2 * t)) + 2 * t * b1 ** (2 * t - 1) * x**2
        assert exact == pytest.approx(V, rel=1e-9)
        assert 1 - 1e-9 <= V / learned.noise_level(learned.filter_gain(b1, t)) < 2
    assert learned.noise_level(learned.filter_gain(b1, 1)) == pytest.approx(1.0)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.95, 1.0, 4.0])
@pytest.mark.parametrize("exponent", [0.0, 0.25, 1.0])
def test_a_step_never_spends_more_than_its_share(problem, ratio, exponent):
    """C_mu = phi^(2 gamma) bound A / max(A, N), ratio = N / A; with the cap k <= phi^gamma sqrt(B / N)."""
    N = problem.A * ratio
    k, _, part = learned.reach(problem.B, problem.A, N, exponent)
    phi = min(max(1 - ratio, learned.LEAST_SHARE), 1.0)
    assert part.item() == pytest.approx(phi ** (2 * exponent), rel=1e-12)
    kl = problem.kl(problem.closed(k))
    torch.testing.assert_close(kl, part * problem.bound / max(ratio, 1.0), rtol=1e-10, atol=0)
    assert k <= (part * problem.B / N).sqrt() * (1 + 1e-12)


@pytest.mark.parametrize("signal", [0.0, 0.5, 3.0])
def test_the_share_is_that_of_the_signal(signal):
    """Noise of variance v around means of size ``signal``: 1 - N / A estimates signal^2 / (signal^2 + v)."""
    rng, v, n = np.random.default_rng(5), 0.7, 200_000
    means = signal * rng.choice([-1.0, 1.0], n)
    A = np.sum((means + rng.normal(scale=math.sqrt(v), size=n)) ** 2)
    _, _, part = learned.reach(torch.tensor(1.0), torch.tensor(A), torch.tensor(n * v), 0.5)
    assert part.item() == pytest.approx(max(signal**2 / (signal**2 + v), learned.LEAST_SHARE), abs=0.01)


# 7. The anchor


def walk(tau, c, steps, keep, correlation=0.0, n=8192):
    """Root mean square of weights after steps of tau sigma sqrt(c) xi, sigma their current size; relative to the start."""
    rng = np.random.default_rng(3)
    W, xi = rng.standard_normal(n), rng.standard_normal(n)
    start = np.sqrt(np.mean(W**2))
    for _ in range(steps):
        size = np.sqrt(np.mean(W**2))
        W = keep * W + tau * size * math.sqrt(c) * xi
        xi = correlation * xi + math.sqrt(1 - correlation**2) * rng.standard_normal(n)
    return np.sqrt(np.mean(W**2)) / start


def anchor(tau, c, phi, K):
    tau, c, phi = (torch.tensor(x, dtype=torch.float64) for x in (tau, c, phi))
    return learned.anchor(tau, c, phi, K).item()


@pytest.mark.parametrize("gain", [0.05, 0.5])
@pytest.mark.parametrize("zeta", [0.01, 1.0, 100.0])
def test_the_curvature_is_that_of_the_model(zeta, gain):
    """Innovations zeta (s / sigma) d + noise after steps d = -k sigma M / s; the model's loss is back at 0 at 2 / zeta."""
    rng = np.random.default_rng(0)
    known, n, went = (0.0, 0.0, 0.3), 20_000, 0.3
    sigma, s = rng.uniform(0.1, 2, n), rng.uniform(0.5, 2, n)
    for t in range(1, 60):
        M = rng.normal(size=n) * s
        d = -went * sigma * M / s
        E = zeta * s / sigma * d + 0.01 * s * rng.normal(size=n)
        fell, pulled = np.sum(sigma * M * E / s), np.sum(sigma * M**2 / s)
        known = (*learned.follow_curvature(known, fell, pulled, 1.0 if t == 1 else gain), went)
    found = known[0] / known[1]
    assert found == pytest.approx(zeta, rel=0.02, abs=1e-3)
    A, most = np.sum(sigma * M**2 / s), learned.furthest(*map(torch.tensor, known[:2])).item()
    assert -most * A + 0.5 * found * most**2 * A == pytest.approx(0, abs=1e-9 * most * A)
    assert learned.furthest(torch.tensor(-known[0]), torch.tensor(known[1])).isinf()


@pytest.mark.parametrize(("tau", "c"), [(0.02, 1.0), (0.06, 0.1), (0.15, 0.5)])
def test_anchor_keeps_the_expected_square(tau, c):
    """Steps that know nothing of each other: the factor of an Ornstein-Uhlenbeck drift."""
    keep = anchor(tau, c, 1.0, 0.1)
    assert keep**2 + tau**2 * c == pytest.approx(1.0, rel=1e-12)
    steps = int(0.8 / (tau**2 * c))
    assert walk(tau, c, steps, keep) == pytest.approx(1.0, abs=0.05)
    assert walk(tau, c, steps, 1.0) == pytest.approx((1 + tau**2 * c) ** (steps / 2), rel=0.05)  # about 1.5 without it


def test_anchor_balances_filtered_noise():
    """Steps that are noise filtered with gain K grow the square by 1 + tau^2 c (2 - K) / K each."""
    tau, c, K, steps = 0.02, 0.25, 0.1, 1000
    independent, filtered = (anchor(tau, c, phi, K) for phi in (1.0, 0.0))
    assert walk(tau, c, steps, independent, 1 - K) == pytest.approx(math.exp(tau**2 * c * (1 - K) / K * steps), rel=0.08)
    assert walk(tau, c, steps, filtered, 1 - K) == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize(("phi", "decay"), [(1.0, 0.2), (0.3, 1.7), (0.01, 0.7)])
def test_anchor_as_a_weight_decay(phi, decay):
    """At lr = 1e-3, where a step spends the share that ``reach`` gives it; 0.3 is where the anchor is strongest."""
    lr, K = 1e-3, 0.1
    B, A, N = (torch.tensor(x, dtype=torch.float64) for x in (1.0, 1.0, 1 - phi))
    k, share, _ = learned.reach(B, A, N, adaptive_step.SHARE_EXPONENT)
    decays = [(1 - anchor(adaptive_step.PER_LR * lr, k.item() ** 2, x, K)) / lr for x in (share.item(), phi)]
    assert decays[0] == decays[1] == pytest.approx(decay, abs=0.05)


# 9. The Kronecker basis


def take_steps(params, grads, **options):
    """Run AdaArturo on fixed lists of gradients; the options of a group may stand beside its parameters."""
    optimizer = AdaArturo(params, **options)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for row in grads:
        for p, g in zip(params, row, strict=True):
            p.grad = g.clone()
        optimizer.step()
    return optimizer


def parameter(value):
    return torch.nn.Parameter(value.clone())


@pytest.fixture
def gradients():
    generator = torch.Generator().manual_seed(11)
    mean = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    return [mean + torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(40)]


def first_step(G, covariance):
    p = parameter(torch.zeros_like(G))
    take_steps([p], [[G]], lr=1e-3, covariance=covariance)
    length = adaptive_step.PER_LR * 1e-3 * adaptive_state.least_size(p) * learned.LEAST_SHARE**adaptive_step.SHARE_EXPONENT
    return p.detach() / length


def test_the_first_step_is_the_orthogonal_factor_or_the_sign(gradients):
    G = gradients[0]
    U, _, Vh = torch.linalg.svd(G)
    torch.testing.assert_close(first_step(G, "kronecker"), -U @ Vh, rtol=0, atol=5e-3)  # but for the floor of s
    torch.testing.assert_close(first_step(G, "diagonal"), -G.sign(), rtol=1e-12, atol=0)


def test_the_floor_keeps_directions_without_a_gradient_still():
    """A first gradient of rank 1, in float32: one direction, and no step worth mentioning in the 35 others."""
    generator = torch.Generator().manual_seed(2)
    u, v = torch.randn(6, 1, generator=generator), torch.randn(1, 6, generator=generator)
    singular = torch.linalg.svdvals(first_step(u @ v, "kronecker"))
    assert singular[0] == pytest.approx(1.0, rel=1e-3)
    assert singular[1] < 0.02


def test_matrix_normal_noise_is_diagonal_in_the_basis():
    """Cov = C_R x C_L: eigenvectors of E[E E^T] and E[E^T E] make it diagonal."""
    generator = torch.Generator().manual_seed(6)
    roots = [torch.randn(n, n, generator=generator, dtype=torch.float64) for n in (3, 4)]
    C_L, C_R = (x @ x.T for x in roots)
    covariance = torch.kron(C_L, C_R)  # rows follow each other
    L = torch.einsum("ikjk->ij", covariance.reshape(3, 4, 3, 4))
    R = torch.einsum("kikj->ij", covariance.reshape(3, 4, 3, 4))
    Q = torch.kron(kronecker.first_basis(L), kronecker.first_basis(R))
    turned = Q.T @ covariance @ Q
    assert (turned - turned.diagonal().diag()).abs().max() < 1e-10 * turned.abs().max()


def test_next_basis_converges_to_eigenvectors_in_falling_order():
    generator = torch.Generator().manual_seed(8)
    true = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64))[0]
    L = true @ torch.diag(torch.tensor([1.0, 9.0, 3.0, 0.1, 27.0], dtype=torch.float64)) @ true.T
    Q = torch.eye(5, dtype=torch.float64)
    for _ in range(60):
        old = Q
        Q, S, order = kronecker.next_basis(old.T @ L @ old, old)
        torch.testing.assert_close(old @ S, Q)
    torch.testing.assert_close((Q.T @ L @ Q), torch.diag(torch.tensor([27.0, 9.0, 3.0, 1.0, 0.1], dtype=torch.float64)))
    assert order.tolist() == [0, 1, 2, 3, 4]


# 11. Invariances


@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_scale_of_the_loss_changes_nothing(gradients, covariance, scale):
    """d stays; kl and bound are in units of the loss."""
    one, other = parameter(gradients[0]), parameter(gradients[0])
    plain = take_steps([one], [[g] for g in gradients], covariance=covariance).last_step
    scaled = take_steps([other], [[g * scale] for g in gradients], covariance=covariance).last_step
    torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-9, atol=1e-12)
    assert (scaled.eta, scaled.kl, scaled.bound) == pytest.approx((plain.eta, scale * plain.kl, scale * plain.bound), rel=1e-8)


def test_an_orthogonal_change_of_basis_turns_the_step_along(gradients):
    generator = torch.Generator().manual_seed(12)
    U, V = (torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0] for _ in range(2))
    one, other = parameter(gradients[0]), parameter(U @ gradients[0] @ V.T)
    take_steps([one], [[g] for g in gradients], lr=1e-2)
    take_steps([other], [[U @ g @ V.T] for g in gradients], lr=1e-2)
    assert (one - gradients[0]).abs().max() > 0.1
    torch.testing.assert_close(U @ one.detach() @ V.T, other.detach(), rtol=1e-7, atol=1e-9)


def test_the_unit_of_a_tensor_changes_nothing(gradients):
    """W = c W': the gradient of W' is c G, and W' moves by d / c. Another tensor beside it does not notice."""
    results = []
    start = 0.8 * gradients[0] / gradients[0].square().mean().sqrt()
    for c in (1.0, 1.6):  # not so far that the least size binds, or the largest
        matrix, vector = parameter(start / c), parameter(gradients[1][0])
        take_steps([matrix, vector], [[g * c, g[0]] for g in gradients], lr=3e-4)
        assert 1 / math.sqrt(6) < matrix.square().mean().sqrt() < 1
        results.append((matrix.detach() * c, vector.detach()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


def test_a_tenth_of_the_lr_is_a_tenth_of_the_step_and_nobody_elses(gradients):
    moves = []
    for lr in (1e-3, 1e-4):
        matrix, vector = parameter(gradients[0]), parameter(gradients[1][0])
        groups = [{"params": [matrix]}, {"params": [vector], "lr": lr}]
        info = take_steps(groups, [[gradients[2], gradients[3][0]]], lr=1e-3).last_step
        assert info.kl <= info.bound * (1 + 1e-9)
        moves.append((matrix.detach() - gradients[0], vector.detach() - gradients[1][0]))
    torch.testing.assert_close(moves[0][0], moves[1][0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(0.1 * moves[0][1], moves[1][1], rtol=1e-9, atol=1e-12)


# 13. Other optimizers


def test_the_diagonal_direction_is_that_of_adabelief(monkeypatch):
    """Once settled, with Gaussian noise (nu = infinity): AdaBelief averages (G - M_t)^2 = (1 - K)^2 E^2, we (1 - K) E^2."""
    monkeypatch.setattr(learned, "FREEDOM", 1e30)
    b1, b2, rng = 0.9, 0.99, np.random.default_rng(0)
    m = v = np.zeros(50)
    p = parameter(torch.zeros(50, dtype=torch.float64))
    gradients = [rng.normal(loc=0.2, scale=np.linspace(0.1, 2, 50)) for _ in range(3000)]
    optimizer = take_steps([p], [[torch.tensor(g)] for g in gradients], betas=(b1, b2))
    for g in gradients:
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (g - m) ** 2
    state = optimizer.state[p]
    ratio = (state["M"] / state["r"].sqrt()).numpy() / (m / np.sqrt(v))
    np.testing.assert_allclose(ratio, math.sqrt(b1), rtol=1e-6)


# The pages themselves


DOCS = Path(__file__).resolve().parents[1] / "docs"
MODULES = {
    "learned": learned,
    "adaptive_state": adaptive_state,
    "adaptive_step": adaptive_step,
    "adaptive_rows": adaptive_rows,
    "kronecker": kronecker,
    "eager": eager,
    "tiles": tiles,
    "row": adaptive.row,
    "reference_adaptive": reference_adaptive,
}


def table(heading):
    """Cells of the table under a bold heading of notation.md's part on AdaArturo."""
    text = (DOCS / "notation.md").read_text(encoding="utf-8").split("\n## AdaArturo\n")[1]
    lines = text.split(f"**{heading}**")[1].split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_notation_has_every_constant_with_its_value():
    rows = {row[1].strip("`"): row[2] for row in table("Constants.")}
    for name, value in rows.items():
        module, constant = name.split(".")
        wanted = getattr(MODULES[module], constant)
        assert ast.literal_eval(value) == wanted, name
    constants = {f"{m}.{name}" for m in MODULES if m != "reference_adaptive" for name in vars(MODULES[m]) if name.isupper()}
    assert set(rows) == {
        name for name in constants if name.split(".")[1] not in ("HALF", "PLAIN", "FACTORS", "ROUNDINGS", "LIKE", "SLICED")
    }  # names and dtypes


@pytest.mark.parametrize("page", ["derivation-adaptive.md", "notation.md", "design.md"])
def test_functions_that_the_pages_name_exist(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    names = re.findall(rf"`({'|'.join(MODULES)})\.([\w.]+)", text)
    names = [(module, name) for module, name in names if name != "py"]
    assert page == "design.md" or len(names) > 20
    for module, name in names:
        target = MODULES[module]
        for part in name.split("."):
            target = getattr(target, part)
