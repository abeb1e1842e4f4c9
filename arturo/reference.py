r"""The paper in slow float64 NumPy, with explicit matrices: the oracle of the tests, and the best documentation.

The weights have the distribution pi_t = N(mu_t, Sigma_t). A step fits a quadratic model f_t of the loss and solves
(`obj:itropt`)

    min over pi_t of  E[f_t(theta)] + rho C_lambda + nu C_Sigma    subject to  C_mu <= epsilon,
    f_t(theta) = 1/2 theta^T A_t theta + theta^T b_t,              C_lambda = KL(pi_t || N(0, I/lambda)),

where C_mu (`kl_mean`) and C_Sigma (`kl_covariance`) are the two parts of KL(pi_t || pi_{t-1}). Its Lagrangian is, for
diagonal matrices (the appendix prints mu b without its factor 2),

    L(mu, sigma^2, eta) =   1/2 sum [a mu^2 + a sigma^2 + 2 mu b]
                      + rho 1/2 sum [lambda sigma^2 - 1 + lambda mu^2 - log lambda - log sigma^2]
                       + nu 1/2 sum [sigma^2 / sigma_old^2 - 1 + log sigma_old^2 - log sigma^2]
                      + eta 1/2 sum [(mu - mu_old)^2 / sigma_old^2] - eta epsilon.

A step fits the model (`kalman_update`), finds the multiplier eta (`solve_dual`, or the published rule `bisection`) and
moves (`primal_mean`, `primal_covariance`). Groups, lr, weight decay and missing gradients are the library's; the tests have
them in `ReferenceArturo`.

Every function takes vectors (..., n) and matrices (..., n, n). Leading axes stack independent blocks, so the diagonal
method is a stack of 1x1 blocks, and its filters are a stack of 2x2 blocks. Precision `prec` means Sigma_{t-1}^{-1}.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LARGEST_GRADIENT = 1e140  # beyond it, squares and their sums overflow float64


def _transpose(M: Array) -> Array:
    return np.swapaxes(M, -1, -2)


def _inverse(M: Array) -> Array:
    return np.asarray(np.linalg.inv(M), dtype=np.float64)


def _apply(M: Array, x: Array) -> Array:
    """The matrix-vector product M x, block by block."""
    return (M @ x[..., None])[..., 0]


def kalman_update(w: Array, P: Array, mu: Array, g: Array, q: float, r: float) -> tuple[Array, Array]:
    """Fit the gradient model g = a mu + b + noise, one filter per weight (`eq:filter_update_rule`).

    With w = (a, b) and H = (mu, 1), w drifts as a random walk of variance q and g is observed with variance r:

        P^- = P + q I,    v = H P^- H^T + r,    K = P^- H^T / v,
        w <- w + K (g - H w),    P <- P^- - v K K^T = (I - K H) P^- (I - K H)^T + r K K^T.

    The last form (Joseph's) is the one computed: it stays positive definite under rounding. An entry of g that is not
    finite, or larger than 1e140, is a missing observation: P <- P^- and w stays. Shapes: w (n, 2), P (n, 2, 2), mu and
    g (n,).

    >>> w, P = kalman_update(np.array([[0.0, 0.0]]), np.eye(2)[None], np.array([1.0]), np.array([6.0]), q=0.0, r=1.0)
    >>> print(w.round(6), P.round(6), sep="\\n")  # the evidence is shared between slope and intercept
    [[2. 2.]]
    [[[ 0.666667 -0.333333]
      [-0.333333  0.666667]]]
    """
    seen = np.abs(g) <= LARGEST_GRADIENT  # False for nan, too
    P = P + q * np.eye(2)
    H = np.stack([mu, np.ones_like(mu)], axis=-1)[:, None, :]
    v = H @ P @ _transpose(H) + r
    K = P @ _transpose(H) @ _inverse(v)
    w_new = w + _apply(K, np.where(seen, g, 0.0)[:, None] - _apply(H, w))
    I_KH = np.eye(2) - K @ H
    P_new = I_KH @ P @ _transpose(I_KH) + r * K @ _transpose(K)
    return np.where(seen[:, None], w_new, w), np.where(seen[:, None, None], P_new, P)


def moment_update(x: Array, y: Array, beta: float, t: int) -> Array:
    """One step of Adam's running average with its bias corrected; `x` and the result are corrected, t = 1 is the first.

        m_t = beta m_{t-1} + (1 - beta) y_t,    x_t = m_t / (1 - beta^t)

    A missing entry is replaced by the average itself, which leaves x unchanged.

    >>> moment_update(np.array([2.0, 2.0]), np.array([5.0, np.nan]), beta=0.5, t=2)  # (0.25 * 2 * 2 + 0.5 * 5) / 0.75
    array([4., 2.])
    """
    y = np.where(np.abs(y) <= LARGEST_GRADIENT, y, x)
    m = beta * (1 - beta ** (t - 1)) * x + (1 - beta) * y
    return np.asarray(m / (1 - beta**t), dtype=np.float64)


def primal_step(eta: float, mu: Array, prec: Array, A: Array, b: Array, rho: float, lam: float) -> Array:
    """The step d = mu_{t-1} - mu_t(eta), from `eq:primal_mean` without subtracting two nearly equal means:

    d(eta) = (A + eta Sigma_{t-1}^{-1} + rho lambda I)^{-1} (A mu_{t-1} + b + rho lambda mu_{t-1})
    """
    A_prior = A + rho * lam * np.eye(mu.shape[-1])
    return _apply(_inverse(A_prior + eta * prec), _apply(A_prior, mu) + b)


def primal_mean(eta: float, mu: Array, prec: Array, A: Array, b: Array, rho: float, lam: float) -> Array:
    """The minimiser of the Lagrangian over the mean (`eq:primal_mean`):

        mu_t(eta) = (A + eta Sigma_{t-1}^{-1} + rho lambda I)^{-1} (eta Sigma_{t-1}^{-1} mu_{t-1} - b)

    eta = 0 trusts the model and jumps to its minimum; eta -> infinity stays at mu_{t-1}.

    >>> mu, prec, A, b = np.array([1.0]), np.array([[2.0]]), np.array([[4.0]]), np.array([0.0])
    >>> [float(primal_mean(eta, mu, prec, A, b, rho=0.0, lam=0.0)[0]) for eta in (0.0, 2.0, 1e6)]
    [0.0, 0.5, 0.999998000004]
    """
    return mu - primal_step(eta, mu, prec, A, b, rho, lam)


def primal_covariance(prec: Array, A: Array, rho: float, lam: float, nu: float) -> Array:
    """The minimiser of the Lagrangian over the covariance (`eq:primal_var`); eta does not enter:

        Sigma_t = (rho + nu) (A + rho lambda I + nu Sigma_{t-1}^{-1})^{-1}

    Its fixed point is rho / (a + rho lambda), the default initial variance:

    >>> float(primal_covariance(np.array([[2.0]]), A=np.array([[1.5]]), rho=1.0, lam=0.5, nu=1.5)[0, 0])
    0.5
    """
    return (rho + nu) * _inverse(A + rho * lam * np.eye(A.shape[-1]) + nu * prec)


def kl_mean(d: Array, prec: Array) -> float:
    """The mean's part of KL(pi_t || pi_{t-1}) for a step d = mu_t - mu_{t-1}: C_mu = 1/2 d^T Sigma_{t-1}^{-1} d.

    >>> kl_mean(np.array([1.0, 2.0]), np.diag([4.0, 0.5]))
    3.0
    """
    return float(0.5 * np.sum(d * _apply(prec, d)))


def kl_covariance(Sigma: Array, prec: Array) -> float:
    """The covariance's part of KL(pi_t || pi_{t-1}); the trust region does not bound it:

        C_Sigma = 1/2 [tr(Sigma_{t-1}^{-1} Sigma_t) - n + log det Sigma_{t-1} - log det Sigma_t]

    >>> kl_covariance(0.5 * np.eye(2), 2.0 * np.eye(2))
    0.0
    """
    ratio = prec @ Sigma
    trace = np.trace(ratio, axis1=-2, axis2=-1)
    return float(0.5 * np.sum(trace - Sigma.shape[-1] - np.linalg.slogdet(ratio)[1]))


class Quadratic(NamedTuple):
    """The terms of the Lagrangian over the mean for one parameter; its group moves by `factor` times the step (`kl_taken`)."""

    mu: Array
    prec: Array
    A: Array
    b: Array
    rho: float
    lam: float
    factor: float = 1.0

    def step(self, eta: float) -> Array:
        """u(eta), before the group's factor."""
        return primal_step(eta, self.mu, self.prec, self.A, self.b, self.rho, self.lam)


def constraint(eta: float, problem: Sequence[Quadratic]) -> float:
    """C(eta), the left side of the constraint C <= B: the paper's C_mu over all groups together, whatever their bounds.

    Per weight, with num = (a + rho lambda) mu + b, it is 1/2 prec num^2 / (a + rho lambda + eta prec)^2.
    """
    return sum(kl_mean(p.step(eta), p.prec) for p in problem)


def kl_taken(eta: float, problem: Sequence[Quadratic]) -> float:
    """The KL of the step that is taken: group g, of bound e_g, moves by f_g u with f_g = sqrt(e_g / B), B = max e_g.

    So half the lr is half the step, alone or beside others, and sum_g f_g^2 C_g <= C <= B.

    >>> half = Quadratic(np.array([1.0]), np.eye(1), np.eye(1), np.zeros(1), rho=0.0, lam=0.0, factor=0.5)  # u = 1 / (1 + eta)
    >>> constraint(1.0, [half]), kl_taken(1.0, [half])
    (0.125, 0.03125)
    """
    return sum(kl_mean(p.factor * p.step(eta), p.prec) for p in problem)


def dual_derivative(eta: float, problem: Sequence[Quadratic], bound: float) -> float:
    """The derivative of the concave dual function g(eta) = L(mu_t(eta), Sigma_t, eta) (`eq:dual_der`):

        g'(eta) = 1/2 (mu_t(eta) - mu_{t-1})^T Sigma_{t-1}^{-1} (mu_t(eta) - mu_{t-1}) - epsilon

    >>> part = Quadratic(np.array([1.0]), np.eye(1), np.eye(1), np.zeros(1), rho=0.0, lam=0.0)  # d = 1 / (1 + eta)
    >>> [dual_derivative(eta, [part], bound=0.125) for eta in (0.0, 1.0, 3.0)]
    [0.375, 0.0, -0.09375]
    """
    return constraint(eta, problem) - bound


def solve_dual(derivative: Callable[[float], float], pole: float = -np.inf) -> float:
    """The maximiser of the dual over eta >= 0 (`obj:dual`): 0 if g'(0) <= 0, else the root of g', to 1e-12 relative.

    `pole` is the largest eta at which A + rho lambda I + eta Sigma^{-1} is singular; right of it g' decreases. It is
    negative unless some curvature is not positive, and then eta = 0 solves nothing: the model has no minimum.

    >>> eta = solve_dual(lambda eta: 0.5 / (1 + eta) ** 2 - 0.125)
    >>> abs(eta - 1.0) < 2e-12, solve_dual(lambda eta: 0.5 / (1 + eta) ** 2 - 0.6)
    (True, 0.0)
    """
    if pole < 0 and derivative(0.0) <= 0:
        return 0.0
    lower = max(pole, 0.0)
    upper = 2.0 * lower + 1.0
    while derivative(upper) > 0:
        lower, upper = upper, 2.0 * upper
    while upper - lower > 1e-12 * upper:
        middle = 0.5 * (lower + upper)
        if not lower < middle < upper:
            break
        lower, upper = (middle, upper) if derivative(middle) > 0 else (lower, middle)
    return upper  # the end inside the trust region


def bisection(derivative: Callable[[float], float], bound: float, previous: float | None = None) -> float:
    """The published rule for eta (`sec:exp_details`): bisection around the previous eta, stopped early.

    It is kept to follow published runs. It stops at a bracket narrower than 0.5, whatever the scale of eta, so the
    constraint is met only roughly, and from a positive eta it never reaches 0. Each round halves the bracket before it may stop
    at 10 % of the bound, so eta is the middle of what is left, not where the constraint was evaluated.

    >>> bisection(lambda eta: 0.5 / (1 + eta) ** 2 - 0.125, bound=0.125)  # the root is 1
    1.068115234375
    """
    lower, upper = (0.0, 10000.0) if previous is None else (previous / 3, min(3 * previous, 10000.0))
    while upper - lower >= 0.5:
        middle = 0.5 * (lower + upper)
        value = derivative(middle)
        lower, upper = (middle, upper) if value > 0 else (lower, middle)
        if abs(value) < 0.1 * bound:
            break
    return 0.5 * (lower + upper)


if __name__ == "__main__":  # python -m arturo.reference: the examples above, checked
    import doctest

    results = doctest.testmod()
    print(f"{results.attempted - results.failed} passed, {results.failed} failed")
    raise SystemExit(results.failed > 0)
