r"""AdaArturo in slow float64 NumPy, with explicit covariance matrices: the oracle of the tests, and the best documentation.

A tensor is cut into blocks of a x b weights. The weights of a block, row by row, have the Gaussian N(mu, Sigma) with

    Sigma^-1 = Q diag(p) Q^T,    Q = Q_L (x) Q_R  (numpy's `kron`, as the rows of a block follow each other),    p = s / (tau
    sigma),

where s^2 is the noise of the gradient along a column of Q, sigma the tensor's size and tau = 20 min(lr, 0.003). Each step

    1. filters the gradient: M drifts by kappa r per step, is observed with noise r, and P is its variance in units of r; an
       innovation z standard deviations long is an outlier of Student's t, with nu degrees of freedom, and gets the weight
       (nu + 1) / (nu + z^2), at most 1;
    2. learns the noise: Q^T E of the innovation E = G - M has the variance r (1 + P-) in the mean;
    3. follows the factors L = mean(E E^T) and R = mean(E^T E), and every so many steps their eigenbases;
    4. solves   min over d of  sum M^T d   subject to   C_mu = 1/2 sum d^T Sigma^-1 d <= phi^(2 gamma) 1/2 sum tr(Sigma^-1
    (tau sigma)^2 I),
       which is the KL of what the optimum drifts in a step. phi is the part of the pull M^T Sigma M that noise does not
       explain. The solution is d = - Sigma M / eta; where noise alone would pull harder than M does, eta is the one of such
       noise;
    5. learns one curvature zeta: the model's Hessian is zeta Sigma^-1, so the innovation after a step d should be zeta
       Sigma^-1 d. The step goes at most twice as far as to the optimum of this model, beyond which its loss would rise;
    6. pulls matrices in by what the step would make them grow; steps along filtered noise add up over the filter's memory.
       Entries that no gradient has reached stay where they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LARGEST_GRADIENT = 1e140  # beyond it, squares overflow float64
DEFAULTS: dict[str, Any] = {
    "lr": 1e-3, "betas": (0.9, 0.995), "eps": 1e-30, "weight_decay": 0.0, "refresh": 10, "maximize": False,
    "basis_beta": 0.97, "counted_every": 5, "floor": 1e-3, "exponent": 0.1875, "freedom": 16.0, "per_lr": 20.0,
    "most_lr": 3e-3, "sure": 0.1, "fall": 10.0,
}  # fmt: skip


def kalman_gain(b1: float, t: int) -> float:
    """The gain of step t, by running the filter: P- = P + kappa, K = P- / (1 + P-), P <- K, from P = infinity.

    >>> [round(kalman_gain(0.9, t), 6) for t in (1, 2, 200)]
    [1.0, 0.502762, 0.1]
    """
    if b1 == 0:
        return 1.0
    kappa = (1 - b1) ** 2 / b1
    P = 1.0
    for _ in range(t - 1):
        P = (P + kappa) / (1 + P + kappa)
    return P


class Block:
    """One block of a tensor: rows and columns that it covers, and what is known of it, in the tensor's own basis but for r."""

    def __init__(self, rows: slice, columns: slice, left: bool, right: bool) -> None:
        self.rows, self.columns = rows, columns
        self.left, self.right = left, right
        self.M: Array = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
        a, b = self.M.shape
        self.L, self.R = np.zeros((a, a)), np.zeros((b, b))
        self.Q_L, self.Q_R = np.eye(a), np.eye(b)
        self.r = np.zeros(a * b)  # along the columns of Q
        self.E, self.M_before = np.zeros((a, b)), np.zeros((a, b))  # innovation of this step, and what it is one of
        self.reached = np.zeros((a, b), dtype=bool)  # by any gradient

    @property
    def Q(self) -> Array:
        return np.asarray(np.kron(self.Q_L, self.Q_R), dtype=np.float64)

    def scale(self, options: Mapping[str, Any], diagonal: bool) -> Array:
        """s: the standard deviation of the noise along each column of Q, not far below its mean where Q turns."""
        s = np.sqrt(self.r) + options["eps"]
        return np.asarray(s if diagonal else s + options["floor"] * s.mean(), dtype=np.float64)


def mark_weight(place: int) -> float:
    """What an entry counts in the mark of the tensors that take part: multiples of them must not be equal."""
    return 1 + int(place * 0.6180339887498949 % 1 * 2**20) / 2**20


def _first_basis(factor: Array) -> Array:
    """Eigenvectors, largest first; in the null space those of diag(1, ..., n), smallest first."""
    n = len(factor)
    values, Q = np.linalg.eigh(factor)
    null = Q[:, values <= n * np.finfo(float).eps * max(np.diag(factor).max(), 0.0)]
    fixed = np.linalg.eigh(null.T @ np.diag(np.arange(1.0, n + 1)) @ null)[1]
    return np.concatenate([Q[:, null.shape[1] :][:, ::-1], null @ fixed], axis=1)


def _next_basis(factor: Array, Q: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    variances = np.diag(Q.T @ factor @ Q)
    order = np.argsort(-variances, kind="stable")
    return np.linalg.qr((factor + 1e-5 * variances.max() * np.eye(len(Q))) @ Q[:, order])[0], order


class Tensor:
    """A parameter and its blocks. ``height`` and ``width`` are those of a block; None leaves that side unturned."""

    def __init__(
        self, value: Any, options: Mapping[str, Any], height: int | None = None, width: int | None = None, number: int = 0
    ) -> None:
        value = np.array(value, dtype=np.float64)
        self.shape, self.options, self.number, self.step = value.shape, {**DEFAULTS, **options}, number, 0
        self.curvature = (
            0.0,
        ) * 6  # numerator and denominator of zeta, 1 / eta of the last step; level of the noise, steps, of whom
        self.vector = value.ndim < 2
        self.w = value.reshape(1, -1) if self.vector else value.reshape(value.shape[0], -1)
        self.start = self.w.copy()
        a, b = self.w.shape
        self.diagonal = height is None and width is None
        h, v = height or a, width or b
        self.blocks = [
            Block(slice(i, i + h), slice(j, j + v), height is not None, width is not None)
            for i in range(0, a, h)
            for j in range(0, b, v)
        ]

    def own_size(self) -> float:
        """The root mean square of a matrix, the distance a vector has travelled."""
        return float(np.sqrt(np.mean((self.w - (self.start if self.vector else 0.0)) ** 2)))

    def size(self) -> float:
        """sigma: the same with a least and a largest."""
        return min(max(self.own_size(), 0.1 if self.vector else 1 / float(np.sqrt(self.w.shape[1]))), 1.0)

    @property
    def step_lr(self) -> float:
        """What counts of lr for the length of a step."""
        return float(min(self.options["lr"], self.options["most_lr"]))

    def observe(self, grad: Any) -> int:
        """Steps 1 to 3. Returns the number of missing entries."""
        o, t = self.options, self.step
        K = kalman_gain(o["betas"][0], t)
        G = np.array(grad, dtype=np.float64).reshape(self.w.shape) * (-1 if o["maximize"] else 1)
        ok = np.abs(G) <= LARGEST_GRADIENT  # False for NaN too
        skipped = 0
        for i, block in enumerate(self.blocks):
            part = block.rows, block.columns
            turn = t + self.number + i  # blocks take turns
            seen = ok[part] if self.diagonal else np.full(block.M.shape, ok[part].all())
            skipped += int((~seen).sum())
            g = np.where(seen, G[part], 0.0)
            if t == 1:
                block.Q_L = _first_basis(g @ g.T) if block.left else block.Q_L
                block.Q_R = _first_basis(g.T @ g) if block.right else block.Q_R
            elif t in (2, 5) or (t >= o["refresh"] and turn % o["refresh"] == 0):
                r = block.r.reshape(block.M.shape)
                if block.left:
                    block.Q_L, order = _next_basis(block.L, block.Q_L)
                    r = r[order]
                if block.right:
                    block.Q_R, order = _next_basis(block.R, block.Q_R)
                    r = r[:, order]
                block.r = r.ravel()
            E = np.where(seen, g - block.M, 0.0)
            if self.diagonal or seen.all():
                noise = (block.Q.T @ E.ravel()) ** 2 * (1.0 if t == 1 else max(1 - K, 1e-3))
                ahead = block.Q.T @ (block.M + K * E).ravel()
                r = block.r + max(3 / (t + 2), 1 - o["betas"][1]) * (noise - block.r)
                block.r = np.where(seen.ravel(), np.maximum(r, ((o["sure"] if self.diagonal else 1e-5) * ahead) ** 2), block.r)
                every = o["counted_every"]
                if t <= 5 or (turn + 1) % every == 0:
                    stands_for = 1 if t <= 5 else min(every, t - 5)  # so many steps
                    weight = (1 - o["basis_beta"] ** stands_for) / (1 - o["basis_beta"] ** t)
                    block.L = block.L + weight * (E @ E.T - block.L)
                    block.R = block.R + weight * (E.T @ E - block.R)
            s = block.scale(o, self.diagonal)
            surprise = (1.0 if t == 1 else max(1 - K, 1e-3)) * float(np.sum((block.Q.T @ E.ravel()) ** 2 / s) / np.sum(s))
            block.E, block.M_before = E, block.M
            block.M = block.M + K * min(1.0, (o["freedom"] + 1) / (o["freedom"] + surprise)) * E
            block.reached |= g != 0
        return skipped

    def moves(self) -> npt.NDArray[np.bool_]:
        """The entries that steps move: those that a gradient has reached, and where Q turns their rows and columns."""
        moves = np.zeros(self.w.shape, dtype=bool)
        for block in self.blocks:
            here, rows, columns = block.reached, block.reached.any(1), block.reached.any(0)
            moves[block.rows, block.columns] = here if self.diagonal else np.outer(rows, columns)
        return moves


class Step(NamedTuple):
    """What a step did, as :class:`arturo.StepInfo` says it."""

    eta: float
    kl: float
    bound: float
    active: bool
    skipped: int


def step(tensors: Sequence[Tensor], grads: Sequence[Any]) -> Step:
    """One step of all tensors that have a gradient; the trust region is one over all of them.

    >>> w = Tensor([[3.0]], {"lr": 1e-3})
    >>> done = step([w], [[[1.0]]])  # the first gradient may be noise: 0.01^(3/16) of the drift 20 lr sigma
    >>> round(float(2 + (1 - 0.0004 * 0.01**0.375) ** 0.5 - w.w[0, 0]) / 0.02, 6), round(done.kl / done.bound, 6)
    (0.421697, 1.0)
    """
    pairs = [(x, g) for x, g in zip(tensors, grads, strict=True) if g is not None and x.options["lr"] > 0]
    for x, _ in pairs:
        x.step += 1
    skipped = sum(x.observe(g) for x, g in pairs)
    largest = max(x.step_lr for x, _ in pairs)
    drift = pull = noise = bent = length_2 = 0.0
    numerator, denominator, went, level, steps, whose = tensors[0].curvature  # the same for all
    problem, room, stirs = [], 0.0, []
    for x, _ in pairs:
        o = x.options
        tau, sigma, K = o["per_lr"] * largest, x.size(), kalman_gain(o["betas"][0], x.step)
        before = pull, noise
        room += sigma * x.w.size
        for block in x.blocks:
            s, Q = block.scale(o, x.diagonal), block.Q
            precision = Q @ np.diag(s / (tau * sigma)) @ Q.T
            covariance = np.linalg.inv(precision)
            M = block.M.ravel()
            drift += 0.5 * float(np.trace(precision)) * (tau * sigma) ** 2
            pull += float(M @ covariance @ M)
            noise += float(np.trace(covariance @ Q @ np.diag(s**2 * K / (2 - K)) @ Q.T))
            last = (
                -went / tau * (x.step_lr / largest) * covariance @ block.M_before.ravel()
            )  # the last step over tau, by today's model
            bent += float(block.E.ravel() @ last)
            length_2 += tau * float(last @ precision @ last)
            problem.append((x, block, precision, covariance))
        stirs.append(min(o["fall"] * (pull - before[0]) / (noise - before[1]), 1.0) if noise > before[1] else 0.0)
    tau = pairs[0][0].options["per_lr"] * largest
    if skipped == sum(x.w.size for x, _ in pairs):
        for x in tensors:
            x.curvature = (numerator, denominator, 0.0, level, steps, whose)
        return Step(0.0, 0.0, drift, False, skipped)
    K = 1 - tensors[0].options["betas"][0]
    numerator, denominator = numerator + K * (bent - numerator), denominator + K * (length_2 - denominator)
    now = drift / (0.5 * tau * room)  # the mean noise of a weight
    present = float(sum(mark_weight(x.number + 1) * x.w.size for x, _ in pairs))
    steps, whose = steps if present == whose else 0.0, present
    level, steps = level + 3 / (steps + 3) * (now - level), steps + 1
    for x in tensors:
        x.curvature = (numerator, denominator, 0.0, level, steps, whose)
    if pull == 0:
        for x, _ in pairs:
            x.w = x.w * (1 - x.options["lr"] * x.options["weight_decay"])
        return Step(0.0, 0.0, drift, False, skipped)
    phi = min(max(1 - noise / pull, 0.01), 1.0)
    bound = phi ** (2 * pairs[0][0].options["exponent"]) * drift
    eta = allowed = float(np.sqrt(0.5 * max(pull, noise) / bound))
    if numerator > 0 and denominator > 0:
        eta = max(eta, numerator / (2 * denominator))
    eta /= min(1.0, pairs[0][0].options["fall"] * now / level)
    for x in tensors:
        x.curvature = (numerator, denominator, 1 / eta, level, steps, whose)
    kl, moves = 0.0, []
    for x, block, precision, covariance in problem:
        d = -(covariance @ block.M.ravel()) / eta * (x.step_lr / largest)
        kl += 0.5 * float(d @ precision @ d)
        moves.append((x, block, d.reshape(block.M.shape)))
    spent = 0.5 * pull / eta**2 / drift
    for (x, _), stir in zip(pairs, stirs, strict=True):
        K = kalman_gain(x.options["betas"][0], x.step)
        length = x.options["per_lr"] * x.step_lr * np.sqrt(spent)
        grown = stir * min(length**2 * (phi + (1 - phi) * (2 - K) / K), 0.7 * length)
        origin = x.start if x.vector else 0.0
        pulled = (1 - np.sqrt(max(1 - grown, 0.0))) / max(x.own_size(), 1.0)  # no further than a tensor of size 1
        x.w = np.where(x.moves(), origin + (x.w - origin) * (1 - pulled), x.w)
        x.w = x.w * (1 - x.options["lr"] * x.options["weight_decay"])
    for x, block, d in moves:
        x.w[block.rows, block.columns] += d
    return Step(eta, kl, bound, eta == allowed and pull >= (1 - 1e-10) * noise, skipped)
