"""One training in one process and the same in many: what the cases share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from arturo import Arturo

STEPS = 50
BATCH = 24  # divides by 1, 2, 3 and 4 processes, and by two micro-batches


class Net(torch.nn.Module):
    """Rows that do not divide by the number of processes, fewer rows than processes, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(5, 8)
        self.outer = torch.nn.Linear(8, 3)
        self.unused = torch.nn.Linear(2, 2)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.outer(torch.tanh(self.inner(x)))


def batch(t: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(t)
    x = torch.randn(BATCH, 5, generator=generator)
    y = torch.stack([x[:, 0], x[:, 1] * x[:, 2], x.square().sum(1) / 5], 1) + 0.1 * torch.randn(BATCH, 3, generator=generator)
    return x.to(dtype), y.to(dtype)


def train(
    model: torch.nn.Module,
    optimizer: Arturo,
    *,
    steps: int = STEPS,
    start: int = 0,
    replica: int = 0,
    replicas: int = 1,
    schedule: bool = False,
    accumulate: int = 1,
    clip: float | None = None,
    missing: bool = False,
) -> list[Any]:
    """Each of ``replicas`` takes its part of every batch; returns what the optimizer said of each step."""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) if schedule else None
    info = []
    dtype = next(model.parameters()).dtype
    for t in range(start, start + steps):
        optimizer.zero_grad()
        for micro in range(accumulate):
            x, y = (z.chunk(accumulate)[micro].chunk(replicas)[replica] for z in batch(t, dtype))
            ((model(x) - y).square().mean() / accumulate).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if missing and t % 5 == 2:
            lose(model, t)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        info.append(optimizer.last_step)
        if scheduler is not None:
            scheduler.step()
    return info


def lose(model: torch.nn.Module, t: int) -> None:
    """Some gradient entries become NaN, the same ones wherever they lie."""
    for i, p in enumerate(model.parameters()):
        if p.grad is not None:
            mask = torch.rand(p.shape, generator=torch.Generator().manual_seed(100 * t + i)) < 0.2
            local(p.grad)[shard_like(mask, p)] = float("nan")


def shard_like(whole: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The part of ``whole`` that lies here of a tensor sharded like ``p``."""
    return local(distribute_tensor(whole, p.device_mesh, p.placements)) if isinstance(p, DTensor) else whole


def local(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to_local() if isinstance(x, DTensor) else x.detach()


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.detach().full_tensor() if isinstance(x, DTensor) else x.detach()


def same_on_all(value: Any) -> None:
    """Equal, bit for bit, on every process."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    assert all(x == found[0] for x in found), found


def compare(
    parallel: Callable[[torch.nn.Module], torch.nn.Module],
    optimizer: dict[str, Any],
    training: dict[str, Any],
    replica: int,
    replicas: int,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 2e-5,
    make: Callable[..., Any] = Arturo,
) -> None:
    """The parallel training is the one of a single process, but for the rounding of sums; every process says the same."""
    alone, model = Net().to(dtype), parallel(Net().to(dtype))
    single, many = make(alone.parameters(), **optimizer), make(model.parameters(), **optimizer)
    expected = train(alone, single, **training)
    found = train(model, many, replica=replica, replicas=replicas, **training)
    same_on_all(found)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(x[:3]), torch.tensor(y[:3]), rtol=50 * tolerance, atol=1e-12)
        assert x.active == y.active and x.skipped == y.skipped and x.evaluations == y.evaluations
    start = dict(Net().to(dtype).named_parameters())
    for (name, p), q in zip(alone.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(whole(q), p.detach(), rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
        assert torch.equal(p, start[name]) == name.startswith("unused")
        assert (p in single.state) == (q in many.state) == (not name.startswith("unused"))
        for key, value in single.state.get(p, {}).items():
            torch.testing.assert_close(
                whole(many.state[q][key]),
                value,
                rtol=50 * tolerance,
                atol=50 * tolerance,
                msg=lambda m, n=f"{name} {key}": f"{n}: {m}",
            )


def traffic(optimizer: torch.optim.Optimizer) -> tuple[dict[str, int], list[int]]:
    """Take a step; how often each collective ran, and the bytes of each all-reduce."""
    sizes: list[int] = []
    reduce = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.numel() * tensor.element_size())
        return reduce(tensor, *args, **kwargs)

    dist.all_reduce = all_reduce
    with CommDebugMode() as seen:
        optimizer.step()
    dist.all_reduce = reduce
    return {str(op): n for op, n in seen.get_comm_counts().items() if n}, sizes
