"""Recorded trajectories of ``Arturo``, one for each way through the code: a redesign must not change a bit of them.

    python tests/trajectories.py    # records tests/trajectories.json anew; only when a change of the numbers is meant

A row holds a digest of all parameters and state after 30 steps, and for each kind of tensor the sums of its entries and
magnitudes. Digests are compared where the machine adds up as the recording one did (:func:`machine`), sums everywhere.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from arturo import PAPER, Arturo

FILE = Path(__file__).with_suffix(".json")
STEPS = 30
BF16 = {"state_dtype": torch.bfloat16}
WORLD = 2


def diagonal(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [0.3 + 0.1 * p.detach().cos() for p in params]


CASES: dict[str, dict[str, Any]] = {
    "native": {},
    "eager": {"fused": False},
    "foreach": {"foreach": True},
    "device": {"capturable": True},
    "device-foreach": {"capturable": True, "foreach": True},
    "native-given-units": {"initial_curvature": 0.1, "kl_bound": 0.01, "weight_decay": 0.9, "maximize": True},
    "eager-given-units": {"initial_curvature": 0.1, "kl_bound": 0.01, "weight_decay": 0.9, "maximize": True, "fused": False},
    "device-given-units": {
        "initial_curvature": 0.1, "kl_bound": 0.01, "weight_decay": 0.9, "maximize": True, "capturable": True,
    },
    **{
        f"{way}-{name}": {**options, **chosen}
        for name, chosen in {
            "bfloat16-state": BF16,
            "paper": {**PAPER, "kl_bound": 0.01},
            "fixed-eta": {"eta": 2.0},
            "no-prior": {"prior_precision": 0.0},
            "adam": {"surrogate": "adam"},
            "hessian": {"surrogate": "hessian"},
            "function": {"surrogate": diagonal},
        }.items()
        for way, options in {
            "native": {}, "eager": {"fused": False}, "foreach": {"foreach": True}, "device": {"capturable": True},
        }.items()
    },
    "native-hutchinson": {"surrogate": "hutchinson"},
    "device-hutchinson": {"surrogate": "hutchinson", "capturable": True},
    "device-tensor-lr": {"lr": torch.tensor(0.7), "capturable": True, "weight_decay": 0.9},
    "native-variational": {"sample_gradients": 3, "prior_weight": 0.01},
}  # fmt: skip
COMPILED = {
    "compiled": {"fused": True, "capturable": True},
    "compiled-bfloat16-state": {"fused": True, "capturable": True, **BF16},
}
EXTRAS = ("groups", "half", "double", "complex", "missing")  # each on the host (native) and on the device
SHARDED = {f"sharded-{name}": options for name, options in {
    "native": {}, "device": {"capturable": True}, "bfloat16-state": BF16, "groups": {"groups": True},
}.items()}  # fmt: skip


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    """A scalar, an empty one, several chunks, more than a piece, channels last, and one that lies across memory."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator) for shape in ((4, 3), (), (2, 0), (700,), (33_000,), (6, 4, 3, 3), (5, 8))]
    made[5] = made[5].to(memory_format=torch.channels_last)
    made[6] = made[6].T
    return [torch.nn.Parameter(x.to(dtype)) for x in made]


def gradients(params: list[torch.nn.Parameter], t: int, missing: bool = False) -> None:
    """0.5 (p - 1) + noise: they follow the parameters, so one wrong bit spreads."""
    for i, p in enumerate(params):
        noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(1000 * t + i))
        p.grad = torch.empty_like(p).copy_(0.5 * (p.detach() - 1) + noise)
        p.diag_h = torch.full_like(p, 0.5) + 0.1 * noise
        if missing and p.dim() and t % 3 == 1:
            p.grad[..., :: 1 + i] = float("nan") if i % 2 else 1e30
        if missing and i == 3 and t in (0, 5, 6):
            p.grad = None


def train(params: list[torch.nn.Parameter], groups: Any, missing: bool = False, **options: Any) -> Arturo:
    optimizer = Arturo(groups, **options)
    for t in range(STEPS):
        gradients(params, t, missing)
        if options.get("surrogate") == "hutchinson":
            optimizer.zero_grad()
            loss = sum((p * p).sum() + 0.1 * (p**4).sum() for p in params)
            loss.backward(create_graph=True)
        if "sample_gradients" in options:
            optimizer.step(lambda t=t: gradients(params, t) or 0.0)
        else:
            optimizer.step()
    optimizer.zero_grad()
    return optimizer


def run(name: str) -> list[dict[str, torch.Tensor]]:
    """Parameters and state of a case, one mapping for each parameter."""
    way, _, extra = name.partition("-")
    options = {**CASES, **COMPILED}.get(name)
    if options is not None:
        params = parameters()
        optimizer = train(params, params, **copy.deepcopy(options))
    else:
        capturable = way == "device"
        dtype = {"half": torch.bfloat16, "double": torch.float64, "complex": torch.complex64}.get(extra, torch.float32)
        params = parameters(dtype)
        unequal = [{"params": params[:3], "lr": 0.3}, {"params": params[3:4], "kl_bound": 0.001}, {"params": params[4:]}]
        optimizer = train(params, unequal if extra == "groups" else params, extra == "missing", capturable=capturable)
    return collected(optimizer)


def collected(optimizer: Arturo) -> list[dict[str, torch.Tensor]]:
    return [{"param": p.detach(), **optimizer.state.get(p, {})} for group in optimizer.param_groups for p in group["params"]]


def sharded(rank: int, world: int, folder: str, name: str) -> None:
    """A case on DTensors cut by rows; each process writes its shards. Needs a process group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    options = dict(SHARDED[name])
    mesh = init_device_mesh("cpu", (world,))
    plain = [p for p in parameters() if p.dim() == 0 or p.numel()]
    params = [torch.nn.Parameter(distribute_tensor(p.detach().contiguous(), mesh, [Shard(0)])) if p.dim() else p for p in plain]
    groups: Any = params
    if options.pop("groups", False):
        groups = [{"params": params[:2], "lr": 0.3}, {"params": params[2:]}]
    optimizer = Arturo(groups, **options)
    for t in range(STEPS):
        for p, whole in zip(params, plain, strict=True):
            whole.data = p.full_tensor().detach() if isinstance(p, DTensor) else p.detach()
        gradients(plain, t)
        for p, whole in zip(params, plain, strict=True):
            p.grad = distribute_tensor(whole.grad.contiguous(), mesh, [Shard(0)]) if isinstance(p, DTensor) else whole.grad
        optimizer.step()
    entries = [
        {key: x.to_local() if isinstance(x, DTensor) else x for key, x in entry.items()} for entry in collected(optimizer)
    ]
    Path(folder, f"{name}.{rank}.json").write_text(json.dumps(record(entries)), encoding="utf-8")


def process(rank: int, folder: str) -> None:
    """All sharded cases, one after the other."""
    import os

    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    for name in SHARDED:
        sharded(rank, WORLD, folder, name)
    dist.destroy_process_group()


def all_sharded() -> dict[str, Any]:
    """The rows of all sharded cases, by name and process."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(process, (folder,), nprocs=WORLD)
        return {
            f"{name}.{rank}": json.loads(Path(folder, f"{name}.{rank}.json").read_text(encoding="utf-8"))
            for name in SHARDED
            for rank in range(WORLD)
        }


def record(entries: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """A row of the file: the digest of every bit, and by tensor the sum of entries and of magnitudes."""
    digest, sums = hashlib.sha256(), dict[str, list[float]]()
    for i, entry in enumerate(entries):
        for name, x in sorted(entry.items()):
            digest.update(f"{i} {name} {x.dtype} {tuple(x.shape)}".encode())
            flat = x.detach().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
            wide = (torch.view_as_real(flat) if flat.is_complex() else flat).double()
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += wide.sum().item()
            total[1] += wide.abs().sum().item()
    return {"digest": digest.hexdigest(), "sums": {name: [float(f"{x:.9g}") for x in total] for name, total in sums.items()}}


def machine() -> str:
    """What the order of additions and the generated code depend on."""
    return f"torch {torch.__version__} on {torch.backends.cpu.get_cpu_capability()}"


def names() -> list[str]:
    return [*CASES, *COMPILED, *(f"{way}-{extra}" for extra in EXTRAS for way in ("native", "device"))]


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = {name: record(run(name)) for name in names()} | all_sharded()
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    FILE.write_text(f'{{"machine": {json.dumps(machine())}, "rows": {{\n{lines}\n}}}}\n', encoding="utf-8")
    print(f"{len(rows)} trajectories recorded", file=sys.stderr)
