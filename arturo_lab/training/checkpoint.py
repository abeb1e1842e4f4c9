"""Everything a training needs to be resumed as if nothing had happened."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from arturo_lab.training.epoch import Epoch
from arturo_lab.training.order import Order
from arturo_lab.training.parallel import Processes


@dataclass(frozen=True)
class Training:
    """What changes from step to step. torch's global generator belongs to it too: dropout draws from there."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    order: Order  # its generator draws the augmentation, too
    forgets: tuple[str, ...] = ()  # attributes that the optimizer's state_dict leaves out
    processes: Processes = field(default_factory=Processes)

    def capture(self, epoch: Epoch | None) -> dict[str, Any]:
        """Tensors and plain data only, so that ``torch.load(weights_only=True)`` takes it. None: between two epochs."""
        weights, state = self.processes.state(self.model, self.optimizer)
        return {
            "model": weights,
            "optimizer": state,
            "forgotten": {name: getattr(self.optimizer, name) for name in self.forgets},
            "scheduler": self.scheduler.state_dict(),
            "shuffle": self.order.generator.get_state(),
            "left": self.order.left,
            "torch_rng": torch.get_rng_state(),
            "torch_rngs": self.processes.everyone(torch.get_rng_state()) if self.processes.world > 1 else [],
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "epoch": None if epoch is None else {f.name: getattr(epoch, f.name) for f in dataclasses.fields(epoch)},
        }

    def restore(self, captured: dict[str, Any]) -> Epoch | None:
        """Put everything back; the epoch it was in the middle of, or None."""
        self.processes.load(self.model, self.optimizer, captured["model"], captured["optimizer"])
        for name, value in captured["forgotten"].items():
            setattr(self.optimizer, name, value)
        self.scheduler.load_state_dict(captured["scheduler"])
        self.order.generator.set_state(captured["shuffle"])
        self.order.left = captured.get("left", self.order.left)  # a run of before had none
        rngs = captured.get("torch_rngs", [])  # of each process; more or fewer than there were begin where the first was
        torch.set_rng_state(rngs[self.processes.rank] if len(rngs) == self.processes.world else captured["torch_rng"])
        if captured["cuda_rng"]:
            torch.cuda.set_rng_state_all(captured["cuda_rng"])
        return None if captured["epoch"] is None else Epoch(**captured["epoch"])
