"""Both optimizers in plain torch, a page each: the idea and nothing else. For training use the real ones.

No groups, no half precision, no missing gradients, no tiles: one basis per matrix. Where those do not matter the real ones take
the same steps (``tests/test_minimal.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COUNTED_EVERY = 5  # steps between two products for the Kronecker factors of MinimalAdaArturo


class MinimalArturo(Optimizer):
    """A diagonal Gaussian over the weights, a Kalman filter per weight, one trust region: the paper's method, as
    :class:`arturo.Arturo` takes it.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = MinimalArturo([w], kl_bound=0.01)
        >>> w.square().sum().backward()
        >>> optimizer.step()
        >>> bool((w < 1).all())
        True
    """

    def __init__(
        self,
        params: Any,
        kl_bound: float,
        rho: float = 0.1,
        lam: float = 0.0015,
        nu: float = 1.3,
        r: float = 1.0,
        q: float = 0.03,
    ) -> None:
        super().__init__(params, {"lr": 1.0, "kl_bound": kl_bound, "rho": rho, "lam": lam, "nu": nu, "r": r, "q": q})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        rho, lam, nu, r, q = (group[name] for name in ("rho", "lam", "nu", "r", "q"))
        rows = []
        for p in group["params"]:
            state, g = self.state[p], p.grad
            if not state:
                a_0, P_0, one = 0.1, math.sqrt(q * r), torch.ones_like(p)
                state.update(a=a_0 * one, b=g - a_0 * p, P_aa=P_0 * one, P_ab=0 * one, P_bb=P_0 * one)
                state["prec"] = (a_0 + rho * lam) / rho * one  # where it would settle
            # The model of the gradient, g = a mu + b + noise:  (a, b) drifts, its variance P grows, and a gradient is seen.
            P_aa, P_ab, P_bb = state["P_aa"] + q, state["P_ab"], state["P_bb"] + q
            h_a, h_b = p * P_aa + P_ab, p * P_ab + P_bb
            v = p * h_a + h_b + r
            error = g - (state["a"] * p + state["b"])
            a, b = state["a"] + h_a / v * error, state["b"] + h_b / v * error
            state.update(a=a, b=b, P_aa=P_aa - h_a * h_a / v, P_ab=P_ab - h_a * h_b / v, P_bb=P_bb - h_b * h_b / v)
            rows.append((p, state, a * p + b + rho * lam * p, a.clamp(min=0) + rho * lam))
        eta = multiplier(rows, group["kl_bound"] * group["lr"] ** 2)
        for p, state, num, A in rows:
            p.sub_(num / (A + eta * state["prec"]))
            state["prec"] = (A + nu * state["prec"]) / (rho + nu)


def multiplier(rows: list[tuple[Tensor, dict[str, Tensor], Tensor, Tensor]], bound: float) -> float:
    """eta >= 0 such that the step's KL, C(eta) = 1/2 sum prec (num / (A + eta prec))^2, is the bound, or less at eta = 0."""

    def C(eta: float) -> float:
        return sum(0.5 * (s["prec"] * (num / (A + eta * s["prec"])).square()).sum().item() for _, s, num, A in rows)

    low, high = 0.0, 1.0
    if C(low) <= bound:
        return low
    while C(high) > bound:
        low, high = high, 2 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if C(middle) > bound else (low, middle)
    return high


class MinimalAdaArturo(Optimizer):
    """A Gaussian over the weights in a Kronecker basis, its noise learned, one trust region: :class:`arturo.AdaArturo`.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2, 2))
        >>> optimizer = MinimalAdaArturo([w], lr=1e-3)
        >>> w.square().sum().backward()
        >>> optimizer.step()
        >>> bool((w < 1).all())
        True
    """

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.995)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})
        self.t = 0
        self.bent = self.went_2 = self.went = 0.0  # numerator and denominator of the curvature; k of the last step
        self.level = 0.0  # of the noise

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.t += 1
        group = self.param_groups[0]
        b1, b2 = group["betas"]
        tau = 20 * min(group["lr"], 3e-3)  # drift of the optimum per step, relative to a tensor's size
        K = (1 - b1) * (1 + b1 ** (2 * self.t - 1)) / (1 - b1 ** (2 * self.t))  # Kalman gain
        B = A = N = room = bent = went_2 = 0.0
        rows = []
        for i, p in enumerate(group["params"]):
            state = self.state[p]
            G = p.grad.reshape(len(p), -1) if p.dim() > 1 else p.grad
            if not state:
                n, m = G.shape if p.dim() > 1 else (0, 0)
                state.update(M=torch.zeros_like(G), r=torch.zeros_like(G), start=p.clone())
                state.update(L=G.new_zeros(n, n), R=G.new_zeros(m, m))
            if p.dim() > 1:
                self.refresh(state, G, i)
            E = turned(G, state) - state["M"]  # innovation, in the basis
            noise = E.square() * (share := 1 if self.t == 1 else 1 - K)
            state["r"].lerp_(noise, max(3 / (self.t + 2), 1 - b2))
            state["r"].clamp_(min=((1e-5 if p.dim() > 1 else 0.1) * (state["M"] + K * E)).square())
            s = state["r"].sqrt() + 1e-30
            s = s + 1e-3 * s.mean() if p.dim() > 1 else s
            z2 = share * (E.square() / s).sum() / s.sum()  # surprise: 1 on average
            away, least = (p, 1 / math.sqrt(G.shape[1])) if p.dim() > 1 else (p - state["start"], 0.1)
            sigma = min(max(size := away.square().mean().sqrt().item(), least), 1.0)
            d = -self.went * sigma * state["M"] / s  # the last step, over tau
            bent += (E * d).sum().item()
            went_2 += (s / sigma * d.square()).sum().item()
            state["M"] += K * min(1.0, 17 / (16 + z2.item())) * E  # outliers are trusted less
            if p.dim() > 1 and (self.t <= 5 or (self.t + i + 1) % COUNTED_EVERY == 0):
                steps = 1 if self.t <= 5 else min(COUNTED_EVERY, self.t - 5)  # that this one stands for
                weight = (1 - 0.97**steps) / (1 - 0.97**self.t)
                state["L"].lerp_(E @ E.T, weight)
                state["R"].lerp_(E.T @ E, weight)
            B += sigma * s.sum().item()  # KL of one step of the drift, times 2 / tau
            A += (pull := sigma * (state["M"].square() / s).sum().item())  # of the filtered gradient
            N += (noise_pull := sigma * s.sum().item() * K / (2 - K))  # what noise alone would have
            room += sigma * p.numel()
            stir = min(10 * pull / noise_pull, 1.0) if noise_pull > 0 else 0.0
            rows.append((p, state, state["M"] / s, sigma, stir, max(size, 1.0)))
        if B > 0:
            self.level += 3 / (self.t + 2) * (B / room - self.level)
        if A == 0:
            return  # nothing pulls
        phi = min(max(1 - N / A, 0.01), 1.0)  # share of signal
        k = phi**0.1875 * math.sqrt(B / max(A, N))  # the step spends phi^(3/8) of the drift's KL, or less
        self.bent += (1 - b1) * (bent - self.bent)
        self.went_2 += (1 - b1) * (went_2 - self.went_2)
        if self.bent > 0 < self.went_2:  # no further than the quadratic model expects the loss to fall
            k = min(k, 2 * self.went_2 / self.bent)
        self.went = k = k * min(1.0, 10 * B / room / self.level)  # shorter where noise has all but vanished
        length = tau * k * math.sqrt(A / B)  # relative to a tensor's size
        grown = min(length**2 * (phi + (1 - phi) * (2 - K) / K), 0.7 * length)
        for p, state, step, sigma, stir, size in rows:
            origin = torch.zeros_like(p) if p.dim() > 1 else state["start"]
            p.lerp_(origin, (1 - math.sqrt(max(1 - stir * grown, 0.0))) / size)  # the anchor: what grows by noise is drawn back
            p.sub_(tau * sigma * k * turned_back(step, state).view_as(p))

    def refresh(self, state: dict[str, Tensor], G: Tensor, i: int) -> None:
        """Eigenvectors of the factors: at first exactly, then by orthogonal iterations."""
        for factor, basis, product in (("L", "Q_L", G @ G.T), ("R", "Q_R", G.T @ G)):
            if self.t == 1:
                state[basis] = torch.linalg.eigh(product.double())[1].flip(1).to(G.dtype)
            elif self.t in (2, 5) or (self.t >= 10 and (self.t + i) % 10 == 0):
                Q, L = state[basis], state[factor]  # L is kept in the basis: Q^T L Q
                order = L.diagonal().argsort(descending=True)
                ridged = L + 1e-5 * L.diagonal().max() * torch.eye(len(L), dtype=L.dtype)
                state[basis] = torch.linalg.qr(Q @ ridged[:, order])[0]
                S = Q.T @ state[basis]
                state[factor] = S.T @ L @ S
                state["M"] = S.T @ state["M"] if factor == "L" else state["M"] @ S
                state["r"] = state["r"][order] if factor == "L" else state["r"][:, order]


def turned(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    return x if x.dim() < 2 else state["Q_L"].T @ x @ state["Q_R"]


def turned_back(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    return x if x.dim() < 2 else state["Q_L"] @ x @ state["Q_R"].T
