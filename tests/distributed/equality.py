"""DDP, FSDP2, HSDP and tensor parallelism against one process: the cases."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from training import compare

EVERYTHING = {"schedule": True, "accumulate": 2, "clip": 0.5, "missing": True}
MIXED = {**EVERYTHING, "clip": None}  # torch takes no norm over gradients on several meshes
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the optimizer, of the training
    "default": ({"kl_bound": None, "drift": 0.003}, {}),
    "everything": ({"kl_bound": 0.01, "weight_decay": 0.9}, EVERYTHING),
    "everything-capturable": ({"kl_bound": 0.01, "weight_decay": 0.9, "capturable": True}, EVERYTHING),
    "mixed": ({"weight_decay": 0.9}, MIXED),
    "mixed-capturable": ({"weight_decay": 0.9, "capturable": True}, MIXED),
}


def ddp(rank: int, world: int, *, options: str) -> None:
    compare(lambda model: DistributedDataParallel(model, find_unused_parameters=True), *OPTIONS[options], rank, world)


def fsdp2(rank: int, world: int, *, options: str, dtype: torch.dtype = torch.float32) -> None:
    mesh = init_device_mesh("cpu", (world,))
    compare(functools.partial(sharded, mesh=mesh), *OPTIONS[options], rank, world, dtype)


def hsdp(rank: int, world: int, *, options: str) -> None:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    compare(functools.partial(sharded, mesh=mesh), *OPTIONS[options], rank, world)


def sharded(model: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    fully_shard(model.inner, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(rank: int, world: int, *, options: str) -> None:
    """inner by rows, outer by columns, the scale plain."""
    compare(functools.partial(split, mesh=init_device_mesh("cpu", (world,))), *OPTIONS[options], 0, 1)


def split(model: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    return parallelize_module(model, mesh, {"inner": ColwiseParallel(), "outer": RowwiseParallel()})


def both(rank: int, world: int, *, options: str) -> None:
    """FSDP2 over one dimension of the mesh, tensor parallelism over the other."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    compare(
        lambda model: fully_shard(split(model, mesh["tp"]), mesh=mesh["dp"]), *OPTIONS[options], mesh["dp"].get_local_rank(), 2
    )
