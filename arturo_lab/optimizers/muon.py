"""Muon as its author says: hidden matrices are turned; vectors, embeddings, the input and the output layer get AdamW.

K. Jordan et al., *Muon: An optimizer for hidden layers in neural networks*, 2024 (github.com/KellerJordan/Muon).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer


def mark_outer(network: nn.Module, loss: Any) -> None:
    """Let :func:`with_adamw` know what is no hidden matrix.

    Embeddings, tables of a network's own such as positions, the first layer unless an embedding is in its place, and the last
    one unless it is a part of a block, as in a network whose output layer is its embedding.
    """
    embeddings = [module.weight for module in network.modules() if isinstance(module, nn.Embedding)]
    own = [module for module in network.modules() if not type(module).__module__.startswith("torch.nn")]
    tables = [p for module in own for p in module.parameters(recurse=False)]
    layers = [part.weight for part in parts(network) if isinstance(part, nn.Linear | _ConvNd)]
    for weight in (*embeddings, *tables, *([] if embeddings else layers[:1]), *layers[-1:]):
        weight.is_outer = True  # type: ignore[attr-defined]


def parts(network: nn.Module) -> Iterator[nn.Module]:
    """What a network consists of, in order; a sequence counts as its members."""
    for part in network.children():
        if isinstance(part, nn.Sequential):
            yield from parts(part)
        else:
            yield part


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
            params: the weights; hidden matrices and filters of convolutions are turned.
            lr, momentum, weight_decay, nesterov, ns_steps: of these.
            adamw_lr, adamw_betas, adamw_weight_decay: of everything else.
        """
        params = list(params)
        others = [p for p in params if p.ndim < 2 or getattr(p, "is_outer", False)]
        matrices = [p for p in params if not any(p is other for other in others)]
        adamw = {"lr": adamw_lr, "betas": adamw_betas, "weight_decay": adamw_weight_decay}
        muon = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        groups = [
            {"params": matrices, "use_muon": True, "nesterov": nesterov, "ns_steps": ns_steps, **muon},
            {"params": others, "use_muon": False, **adamw},
        ]
        return load()([group for group in groups if group["params"]], **muon)

    return lambda: constructor
