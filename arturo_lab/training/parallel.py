"""One training on several processes, started by ``torchrun``: who does which part, and what they tell each other.

Every process draws the same batches and takes its part of each; the gradient is that of the whole batch, so the result is
that of one process but for the rounding of sums. (Not so for what looks at a batch as a whole or draws at random: batch norms
see a process's own part, dropout masks differ.) Process 0 alone writes files and speaks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from arturo_lab.errors import ConfigError
from arturo_lab.runs.machine import PARALLEL


class Processes:
    """The processes of one training; without ``parallel`` this one, and every method does nothing."""

    def __init__(self, parallel: str | None = None) -> None:
        self.parallel = parallel
        self.rank = dist.get_rank() if parallel else 0
        self.world = dist.get_world_size() if parallel else 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def part(self, batch: Tensor) -> Tensor:
        """This process's part of a batch; it may be empty."""
        return batch.tensor_split(self.world)[self.rank]

    def total(self, values: list[float], device: torch.device) -> list[float]:
        """Sums over the processes."""
        if self.world == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(sums)
        totals: list[float] = sums.tolist()
        return totals

    def share(self, value: Any) -> Any:
        """What process 0 has."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def everyone(self, value: Any) -> list[Any]:
        """What each process has, in order."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def loss(self, criterion: Callable[[Any, Tensor], Tensor], output: Any, targets: Tensor, examples: int) -> Tensor:
        """The loss of this part of a batch of so many examples, such that the mean over the processes is the batch's."""
        if self.world == 1:
            return criterion(output, targets)
        if not len(targets):  # a part without examples still takes part in the backward pass
            outputs = output if isinstance(output, tuple) else (output,)
            return torch.stack([each.sum() for each in outputs]).sum() * 0.0
        return criterion(output, targets) * (len(targets) * self.world / examples)

    def spread(self, model: nn.Module) -> nn.Module:
        """The network to train: the model wrapped (ddp), or itself with its weights sharded (fsdp2)."""
        if self.parallel == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        if self.parallel == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            kind = next(model.parameters()).device.type
            mesh = dist.device_mesh.init_device_mesh(kind, (self.world,))
            for layer in model.children():
                if any(p.requires_grad for p in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model

    def state(self, model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights and optimizer state, whole; shards are gathered on process 0, and all must join."""
        if self.parallel != "fsdp2":
            return model.state_dict(), optimizer.state_dict()
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    def load(self, model: nn.Module, optimizer: Optimizer, weights: dict[str, Any], state: dict[str, Any]) -> None:
        """What :meth:`state` gave on process 0, here on all."""
        if self.parallel != "fsdp2":
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        options = StateDictOptions(full_state_dict=True)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state, options=options)


def check(parallel: str | None) -> None:
    """Complain about processes without ``--parallel``, and the other way round."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if parallel is None and world > 1:
        raise ConfigError(f"parallel: torchrun started {world} processes; say how they share the work: {' or '.join(PARALLEL)}")
    if parallel is not None and "RANK" not in os.environ:
        raise ConfigError(
            f"parallel: {parallel} needs processes: torchrun --nproc-per-node 2 -m arturo_lab train TASK --parallel {parallel}"
        )


@contextmanager
def joined(parallel: str | None, device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun started, inside the block."""
    if parallel is None or dist.is_initialized():
        yield Processes(parallel)
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # what "cuda" means from here on
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(parallel)
        dist.barrier()  # nobody leaves while gloo's threads still hold tensors of the last collective
    finally:
        dist.destroy_process_group()
