"""Muon as it is meant to be used: it turns matrices; vectors and embeddings, which are no maps, get AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def mark_embeddings(network: nn.Module, loss: Any) -> None:
    """Let :func:`with_adamw` know them: their rows are looked up, one at a time."""
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            module.weight.is_embedding = True  # type: ignore[attr-defined]


def with_adamw(load: Callable[[], Callable[..., Optimizer]]) -> Callable[[], Callable[..., Optimizer]]:
    """pytorch-optimizer's Muon over two groups, one optimizer to torch."""

    def constructor(
        params: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        ns_steps: int = 5,
        adamw_lr: float = 3e-4,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_weight_decay: float = 0.0,
    ) -> Optimizer:
        """Muon.

        Args:
            params: the weights; matrices and the filters of convolutions are turned.
            lr, momentum, weight_decay, nesterov, ns_steps: of the matrices.
            adamw_lr, adamw_betas, adamw_weight_decay: of everything else.
        """
        params = list(params)
        others = [p for p in params if p.ndim < 2 or getattr(p, "is_embedding", False)]
        matrices = [p for p in params if not any(p is other for other in others)]
        adamw = {"lr": adamw_lr, "betas": adamw_betas, "weight_decay": adamw_weight_decay}
        muon = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        groups = [
            {"params": matrices, "use_muon": True, "nesterov": nesterov, "ns_steps": ns_steps, **muon},
            {"params": others, "use_muon": False, **adamw},
        ]
        return load()([group for group in groups if group["params"]], **muon)

    return lambda: constructor
