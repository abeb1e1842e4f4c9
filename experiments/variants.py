"""AdaArturo with every design choice as a switch: how its defaults were chosen, and its ablations. Plain torch, one group.

    arturo compare byte-transformer --optimizers experiments/variants.py:Variant --fold 1/5 --schedule constant \\
        --set experiments/variants.py:Variant.rule=cap --out runs/search

Nothing here is meant to be used for training: `arturo.AdaArturo` is what the experiments chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

PER_LR = 20.0  # relative step of a tensor at lr = 1
MOST_LR = 3e-3  # that counts for the length of a step


class Variant(Optimizer):
    """See `arturo.AdaArturo` for the method; each switch names what it changes.

    Args:
        rule: how the length follows phi, the share of the pull that is signal: "plain" (not at all), "cap" (k at most what
            noise alone gives), a number gamma (cap, length times phi^gamma), or "knee:c" (cap, length times phi / (phi + c)).
        vector: size of 1-d tensors: a number, or "travelled" (their root mean square distance from the start, at least 0.1).
        block: sides longer than this are cut into blocks ("cut") or left unturned ("leave").
        piece: the longest block that a cut side has where both sides are cut; None: as `block`.
        factors: steps between two products for the factors.
        student: "SCOPE:nu", a filter with Student's noise: an innovation of z standard deviations gets the weight
            min(1, (nu + 1) / (nu + z^2)). z^2 is that of an "entry", or the mean over a "tile", a "tensor" or "all" of them.
        tall: a matrix with more than this many rows per column is left on the diagonal (embeddings).
        shrink: multiply matrices by sqrt(1 - (length tau)^2), the anchor of an Ornstein-Uhlenbeck drift; "noise": times
            (2 - K) / K for the part that is noise, whose filtered steps add up.
        consistent: level of filtered noise K / (2 (1 - K)), in units of the r that a gradient without drift gives.
        level: follow the noise's level of the last few steps, a number per block, with the gain of the filter; "falls": where
            it is lower than on average.
        region: "global", one trust region over all tensors, or "tensor".
        window: the newest innovation has a weight of window / (t + window - 1) in the noise, at least 1 - betas[1]; None:
            the weight of a running mean without bias.
        after: whether `student` measures by the noise that the innovation itself has entered.
        moment: what s^2 is: "central", r; "raw", a running mean of squared gradients; "sum:c", r + (M / c)^2.
        noise: "learned", "constant" (the paper's one r for all weights), or "tile" (learned, one r for each tile).
        shared: tiles in one row of a matrix's grid share their left factor, those in one column their right factor.
        share: "global", one share of signal for all tensors, or "tensor", one for each, which shortens its step alone.
        newton: how many times further than to the optimum of a quadratic model a step may go; None: as far as the region
            allows. The model has one curvature, in units of s / sigma, by regression of innovations on the last step.
        guards: against what never ends: vectors are drawn back to their start, no tensor counts as larger than 1, weights
            without a gradient do not shrink, the noise of an entry that does not turn is at least a tenth of |M|, and steps get
            shorter where all noise has fallen to less than a tenth of its level.
        size: "current", "initial", "none" (every tensor 0.05), "natural" (least / sqrt(columns), whatever the weights),
            or "joint" (the root of the sum of squares of the current and the natural size).
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.995), eps: float = 1e-3,
        weight_decay: float = 0.0, kronecker: bool = True, rule: Any = 0.1875, vector: Any = "travelled", block: int = 128,
        long: str = "cut", piece: int | None = 64, tall: float = 8, refresh: int = 10, factors: int = 5,
        beta_basis: float = 0.97, shrink: Any = "noise", consistent: bool = False, region: str = "global",
        noise: str = "learned", size: str = "current", student: str | None = "tile:16", least: float = 1.0, start: str = "eigh",
        level: Any = False, window: float | None = 3, after: bool = True, exponent_floor: float = 0.01,
        moment: str = "central", shared: bool = False,
        share: str = "global", newton: float | None = 2.0, guards: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(params, {k: v for k, v in locals().items() if k not in ("self", "params", "__class__")})
        # In the group, where a checkpoint keeps them: steps; numerator and denominator of the curvature, the last step's k.
        self.param_groups[0].update(t=0, curvature=(0.0, 0.0, 0.0), noise_level=0.0)
        self.trace: list[tuple[float, float]] = []  # k and phi of every step

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Torch takes strings and tuples in the state apart when it loads them: the layout of the blocks is made anew."""
        super().load_state_dict(state_dict)
        for p, state in self.state.items():
            for block, layout in zip(state["blocks"], blocks(p, self.param_groups[0]), strict=True):
                block.update(layout)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        o = self.param_groups[0]
        t = o["t"] = o["t"] + 1
        K = 1 - o["betas"][0]
        gain, ahead = filter_gain(K, t)
        rows = []
        for p in o["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["blocks"] = blocks(p, o)
                state["start"] = p.clone()
                state["initial"] = p.square().mean().sqrt().item()
            state["size"] = tensor_size(p, state, o)
            g = matrix(p.grad)
            if o["shared"] and "M" not in state["blocks"][0]:
                start_shared(state["blocks"], g, o)
            for block in state["blocks"]:
                innovate(block, g[slice(*block["rows"]), slice(*block["columns"])], o)
        before = self.surprises(gain, o) if o["after"] is False else None
        for p in o["params"]:
            for block in self.state[p].get("blocks", ()) if p.grad is not None else ():
                learn(block, ahead, t, o)
            if o["shared"] and p.grad is not None:
                follow_shared(self.state[p]["blocks"], t, o)
        weights = self.surprises(gain, o) if before is None else before
        if o["newton"] is not None:
            self.learn_curvature(K, o)
        for p in o["params"]:
            if p.grad is None:
                continue
            state, w = self.state[p], matrix(p)
            size = state["size"]
            for block in state["blocks"]:
                part = (slice(*block["rows"]), slice(*block["columns"]))
                follow(block, gain, t, o, weights.get(id(block), 1.0))
                s = block["r"].sqrt() if o["noise"] == "learned" else torch.ones_like(block["r"])
                if o["noise"] == "tile":
                    s.mul_(block["r"].mean().sqrt())
                if o["moment"].startswith("sum:"):
                    s = (block["r"] + (block["M"] / float(o["moment"][4:])).square()).sqrt()
                s = s + (o["eps"] * s.mean() + 1e-30)
                total = s.sum().item()
                c = 1.0
                if o["level"]:
                    now = (block.pop("E2") / s).sum().item() / total * (1 - gain if t > 1 else 1.0)
                    block["level"] = c = block.get("level", 1.0) + gain * (now - block.get("level", 1.0))
                    if o["level"] == "falls":
                        c = min(c, 1.0)
                pulled = (size * (block["M"] ** 2 / s).sum()).item()
                rows.append((p, w[part], block, s, size, size * total, pulled, size * total * c))
        budget, pull, noise = (sum(row[i] for row in rows) for i in (5, 6, 7))
        whole = self.length(budget, pull, noise, K, o)
        numerator, denominator, _ = o["curvature"]
        if o["newton"] is not None and numerator > 0 < denominator:
            most = o["newton"] * denominator / numerator
            whole = (min(whole[0], most / whole[1]), whole[1])
        shares = self.shares(rows, K, o)
        room = sum(row[1].numel() * row[4] for row in rows)
        o["noise_level"] += 3 / (t + 2) * (budget / room - o["noise_level"])
        calm = min(1.0, 10 * budget / room / o["noise_level"]) if o["guards"] and o["noise_level"] > 0 else 1.0
        whole = (whole[0] * calm, whole[1])
        stirs = {p: self.stir(p, rows, K / (2 - K)) if o["guards"] else 1.0 for p in o["params"]}
        for p, w, block, s, size, *sums in rows:
            k, length = whole if o["region"] == "global" else self.length(*sums, K, o)
            length = shares.get(id(p), length)
            o["curvature"] = (numerator, denominator, k * length)
            spent = k * k * pull / max(budget, 1e-300) if o["region"] == "global" else 1.0
            d = turned(block["M"] / s, block, back=True)
            tau = PER_LR * min(o["lr"], MOST_LR)
            if o["shrink"] and (p.ndim > 1 or o["guards"]):
                phi = self.trace[-1][1]
                grown = 1.0 if o["shrink"] is True else phi + (1 - phi) * (2 - K) / K
                kept = math.sqrt(max(1 - stirs[p] * (tau * length) ** 2 * spent * grown, 0.0))
                if p.ndim > 1:
                    w.mul_(1 - (1 - kept) * reached(block).to(w.dtype) if o["guards"] else kept)
                else:
                    w.lerp_(matrix(self.state[p]["start"]), 1 - kept)
            w.mul_(1 - o["lr"] * o["weight_decay"]).sub_(d, alpha=tau * size * k * length)

    @staticmethod
    def stir(p: Tensor, rows: list[Any], level: float) -> float:
        """How much of what noise would do a tensor's gradient does."""
        pull, noise = (sum(row[i] for row in rows if row[0] is p) for i in (6, 7))
        return min(10 * pull / (noise * level), 1.0) if noise > 0 else 0.0

    def surprises(self, gain: float, o: dict[str, Any]) -> dict[int, Any]:
        """The weight of each block's innovation."""
        if o["student"] is None or o["t"] == 1:
            return {}
        scope, nu = o["student"].split(":")
        rows = [
            (p, block, self.state[p]["size"], block["r"].sqrt() + (o["eps"] * block["r"].sqrt().mean() + 1e-30))
            for p in o["params"] if p.grad is not None for block in self.state[p]["blocks"]
        ]  # fmt: skip
        weight = lambda z2: (float(nu) + 1) / (float(nu) + z2)  # noqa: E731
        if scope == "entry":
            return {id(b): weight(b["E"].square() / s.square() * (1 - gain)).clamp(max=1) for _, b, _, s in rows}
        sums: dict[Any, list[float]] = {}
        key = {"tile": lambda p, b: id(b), "tensor": lambda p, b: id(p), "all": lambda p, b: 0}[scope]
        for p, b, size, s in rows:
            pair = sums.setdefault(key(p, b), [0.0, 0.0])
            pair[0] += size * (b["E"].square() / s).sum().item() * (1 - gain)
            pair[1] += size * s.sum().item()
        return {id(b): min(1.0, weight(sums[key(p, b)][0] / max(sums[key(p, b)][1], 1e-300))) for p, b, _, _ in rows}

    def learn_curvature(self, gain: float, o: dict[str, Any]) -> None:
        """Innovations along the last step, before the filter moves."""
        pulled = falls = 0.0
        for p in o["params"]:
            for block in self.state[p].get("blocks", ()) if p.grad is not None else ():
                s = block["r"].sqrt()
                s = s + (o["eps"] * s.mean() + 1e-30)
                pulled += self.state[p]["size"] * (block["M"].square() / s).sum().item()
                falls -= self.state[p]["size"] * (block["M"] * block["E"] / s).sum().item()
        numerator, denominator, went = o["curvature"]
        numerator += gain * (went * falls - numerator)
        denominator += gain * (went * went * pulled - denominator)
        o["curvature"] = (numerator, denominator, went)

    def shares(self, rows: list[Any], K: float, o: dict[str, Any]) -> dict[int, float]:
        """phi^gamma of each tensor, where each has its own."""
        if o["share"] == "global":
            return {}
        sums: dict[int, list[float]] = {}
        for p, _, _, _, _, _, pull, noise in rows:
            pair = sums.setdefault(id(p), [0.0, 0.0])
            pair[0] += pull
            pair[1] += noise
        phis = {key: 1 - K / (2 - K) * noise / max(pull, 1e-300) for key, (pull, noise) in sums.items()}
        return {key: min(max(phi, o["exponent_floor"]), 1.0) ** float(o["rule"]) for key, phi in phis.items()}

    def length(self, budget: float, pull: float, noise: float, K: float, o: dict[str, Any]) -> tuple[float, float]:
        k = math.sqrt(budget / max(pull, 1e-300))
        most = math.sqrt((2 * (1 - K) / K if o["consistent"] else (2 - K) / K) * budget / max(noise, 1e-300))
        phi = min(max(1 - (k / most) ** 2, 0.0), 1.0)
        self.trace.append((k, phi))
        rule = o["rule"]
        if rule == "plain":
            return k, 1.0
        k = min(k, most)
        if rule == "cap":
            return k, 1.0
        if isinstance(rule, str) and rule.startswith("knee:"):
            c = float(rule[5:])
            return k, (phi + 1e-3) / (phi + 1e-3 + c) * (1 + c)
        return k, max(phi, o["exponent_floor"]) ** float(rule)


def filter_gain(K: float, t: int) -> tuple[float, float]:
    """Gain at step t, and P- in units of the noise, of a filter whose steady gain is K."""
    kappa = K * K / (1 - K)
    P, ahead = 1.0, math.inf
    for _ in range(min(t, 400) - 1):
        ahead = P + kappa
        P = ahead / (1 + ahead)
    return P, ahead


def tensor_size(p: Tensor, state: dict[str, Any], o: dict[str, Any]) -> float:
    if o["size"] == "none":
        return 0.05
    if p.ndim < 2:
        if o["vector"] == "travelled":
            return min(max((p - state["start"]).square().mean().sqrt().item(), 0.1), 1.0 if o["guards"] else math.inf)
        if o["vector"] == "both":
            return max(p.square().mean().sqrt().item(), 0.1)
        return float(o["vector"])
    now = p.square().mean().sqrt().item() if o["size"] == "current" else state["initial"]
    if o["size"] == "natural":
        now = 0.0
    if o["size"] == "joint":
        return math.hypot(p.square().mean().sqrt().item(), o["least"] / math.sqrt(p.numel() / p.shape[0]))
    return min(max(now, o["least"] / math.sqrt(p.numel() / p.shape[0])), 1.0 if o["guards"] else math.inf)


def matrix(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1) if x.ndim >= 2 else x.view(1, -1)


def blocks(p: Tensor, o: dict[str, Any]) -> list[dict[str, Any]]:
    a, b = matrix(p).shape
    turn = o["kronecker"] and p.ndim >= 2 and a <= o["tall"] * b
    size, cut = o["block"], o["long"] == "cut"
    piece = o["piece"] if o["piece"] and min(a, b) > size else size

    def spans(n: int) -> list[tuple[int, int]]:
        if n <= size or not cut or not turn:
            return [(0, n)]
        count = next((c for c in range(math.ceil(n / piece), 4 * math.ceil(n / piece) + 1) if n % c == 0), 0)
        if count == 0:  # as the library: nothing near divides it
            return [(0, n)]
        return [(n * i // count, n * (i + 1) // count) for i in range(count)]

    return [
        {"rows": rows, "columns": columns, "sides": [
            side for side, (i, j) in (("L", rows), ("R", columns)) if turn and 1 < j - i <= size
        ]}
        for rows in spans(a) for columns in spans(b)
    ]  # fmt: skip


def innovate(block: dict[str, Any], g: Tensor, o: dict[str, Any]) -> None:
    """The innovation, in the basis; a block's first gradient makes the basis."""
    if "M" not in block:
        for side in () if o["shared"] else block["sides"]:
            product = g @ g.T if side == "L" else g.T @ g
            Q = start_basis(product, o["start"])
            block["Q" + side] = Q
            block[side] = Q.T @ product @ Q
        block["M"] = torch.zeros_like(g)
        block["r"] = torch.zeros_like(g)
        block["rows reached"], block["columns reached"] = (g.new_zeros(n) for n in g.shape)
    block["rows reached"] += (g != 0).any(1)
    block["columns reached"] += (g != 0).any(0)
    block["E"] = turned(g, block) - block["M"]


def reached(block: dict[str, Any]) -> Tensor:
    """By any gradient: on the diagonal each entry, where a block is turned its rows and columns."""
    if not block["sides"]:
        return block["M"] != 0
    return torch.outer(block["rows reached"], block["columns reached"]) > 0


def learn(block: dict[str, Any], ahead: float, t: int, o: dict[str, Any]) -> None:
    """Noise and factors."""
    e = block["E"]
    if o["level"]:
        block["E2"] = e.square()
    if t == 1:
        block["r"] = e.square()
        return
    c = o["window"]
    weight = (1 - o["betas"][1]) / (1 - o["betas"][1] ** t) if c is None else max(1 - o["betas"][1], c / (t + c - 1))
    variance = (e + block["M"]).square() if o["moment"] == "raw" else e.square().div_(1 + ahead)
    block["r"].lerp_(variance, weight)
    if o["guards"] and not block["sides"]:
        block["r"].clamp_(min=(0.1 * (block["M"] + ahead / (1 + ahead) * e)).square())
    if not o["shared"] and (t % o["factors"] == 0 or t <= 5):
        steps = o["factors"] if t > 5 else 1
        b = (1 - o["beta_basis"] ** steps) / (1 - o["beta_basis"] ** t)
        for side in block["sides"]:
            block[side].lerp_(e @ e.T if side == "L" else e.T @ e, min(b, 1.0))


def follow(block: dict[str, Any], gain: float, t: int, o: dict[str, Any], weight: Any) -> None:
    """The filtered gradient, and the basis."""
    block["M"] = block["M"] + block.pop("E") * (gain * weight)
    if not o["shared"] and t > 1 and (t % o["refresh"] == 0 or t in (2, 5)):
        for side in block["sides"]:
            refresh(block, side)


def lines(blocks: list[dict[str, Any]], side: str) -> list[list[dict[str, Any]]]:
    """The blocks in each row of the grid, or in each column, that turn this side."""
    key = "rows" if side == "L" else "columns"
    spans = list(dict.fromkeys(block[key] for block in blocks))
    return [line for span in spans if (line := [b for b in blocks if b[key] == span and side in b["sides"]])]


def start_shared(blocks: list[dict[str, Any]], g: Tensor, o: dict[str, Any]) -> None:
    for side in "LR":
        for line in lines(blocks, side):
            parts = [g[slice(*b["rows"]), slice(*b["columns"])] for b in line]
            product = sum(x @ x.T if side == "L" else x.T @ x for x in parts)
            Q = start_basis(product, o["start"])
            for block in line:
                block["Q" + side], block[side] = Q, Q.T @ product @ Q


def follow_shared(blocks: list[dict[str, Any]], t: int, o: dict[str, Any]) -> None:
    """Before the filter moves: M is turned while the innovation is, too."""
    if t == 1:
        return
    for side in "LR":
        for line in lines(blocks, side):
            factor = line[0][side]
            if t % o["factors"] == 0 or t <= 5:
                b = (1 - o["beta_basis"] ** (o["factors"] if t > 5 else 1)) / (1 - o["beta_basis"] ** t)
                sums = sum(x["E"] @ x["E"].T if side == "L" else x["E"].T @ x["E"] for x in line)
                factor = factor.lerp(sums, min(b, 1.0))
            for block in line:
                block[side] = factor
    if t % o["refresh"] == 0 or t in (2, 5):
        for side in "LR":
            for line in lines(blocks, side):
                turn_shared(line, side)


def turn_shared(line: list[dict[str, Any]], side: str) -> None:
    L, Q, dim = line[0][side], line[0]["Q" + side], 0 if side == "L" else 1
    order = L.diagonal().argsort(descending=True)
    new = torch.linalg.qr(Q @ L[:, order])[0]
    S = Q.T @ new
    for block in line:
        block["Q" + side], block[side] = new, S.T @ L @ S
        block["r"] = block["r"].index_select(dim, order)
        for name in "ME":
            block[name] = S.T @ block[name] if side == "L" else block[name] @ S


def start_basis(product: Tensor, start: str) -> Tensor:
    """ "eigh" fails to converge on some float32 matrices of low rank; orthogonal iterations from the unit matrix do not."""
    if start == "eigh":
        return torch.linalg.eigh(product.double())[1].flip(1).to(product.dtype)
    Q = torch.eye(len(product))
    for _ in range(int(start)):
        Q = Q[:, (Q.T @ product @ Q).diagonal().argsort(descending=True)]
        Q = torch.linalg.qr(product @ Q / (product.diagonal().max() + 1e-30))[0]
    return Q


def refresh(block: dict[str, Any], side: str) -> None:
    L, Q, dim = block[side], block["Q" + side], 0 if side == "L" else 1
    order = L.diagonal().argsort(descending=True)
    new = torch.linalg.qr(Q @ L[:, order])[0]
    S = Q.T @ new
    block["Q" + side] = new
    block[side] = S.T @ L @ S
    block["r"] = block["r"].index_select(dim, order)
    block["M"] = S.T @ block["M"] if side == "L" else block["M"] @ S


def turned(x: Tensor, block: dict[str, Any], back: bool = False) -> Tensor:
    if "QL" in block:
        x = (block["QL"] if back else block["QL"].T) @ x
    if "QR" in block:
        x = x @ (block["QR"].T if back else block["QR"])
    return x
