"""torch.distributed.checkpoint: saved by two processes, loaded by one and by three. The cases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import Net, same_on_all, train, whole

from arturo import Arturo

OPTIONS = {"kl_bound": 0.01, "weight_decay": 0.9}
HALF = 5  # steps before the checkpoint, and after it


def make(dtype: torch.dtype, sharded: bool, **options: Any) -> tuple[torch.nn.Module, Arturo]:
    model = Net().to(dtype)
    model.unused.requires_grad_(False)  # a fresh optimizer has state for all others, and asks the checkpoint for it
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, Arturo(model.parameters(), **OPTIONS, **options)


def folder(dtype: torch.dtype, options: dict[str, Any]) -> Path:
    return Path(os.environ["ARTURO_TEST_FOLDER"], f"{dtype}-{'-'.join(options)}")


def complete(model: torch.nn.Module, optimizer: Arturo) -> dict[str, dict[str, torch.Tensor]]:
    """Every parameter and its state, whole."""
    return {
        name: {"param": whole(p), **{key: whole(x).clone() for key, x in optimizer.state.get(p, {}).items()}}
        for name, p in model.named_parameters()
    }


def save(rank: int, world: int, *, dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Train half of the way, and write the checkpoint; beside it what should come back."""
    model, optimizer = make(dtype, True, **options)
    train(model, optimizer, steps=HALF, replica=rank, replicas=world)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder(dtype, options))
    expected = complete(model, optimizer)
    if rank == 0:
        torch.save(expected, folder(dtype, options) / "whole.pt")


def load(rank: int, world: int, *, dtype: torch.dtype, options: dict[str, Any], sharded: bool = True) -> None:
    """A fresh model and optimizer get every bit of it, and continue as if nothing had happened."""
    model, optimizer = make(dtype, sharded, **options)
    weights, state = get_state_dict(model, optimizer)  # makes the state, by a step with lr = 0
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder(dtype, options))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    found, expected = complete(model, optimizer), torch.load(folder(dtype, options) / "whole.pt")
    for name, entries in expected.items():
        assert set(found[name]) == set(entries), name
        assert all(x.dtype == found[name][key].dtype and torch.equal(x, found[name][key]) for key, x in entries.items())
    if dtype == torch.bfloat16:
        kept = torch.bfloat16 if options else torch.float32
        states = [optimizer.state[p] for p in model.inner.parameters()]
        assert all(state["prec"].dtype == kept and state["mean"].dtype == torch.float32 for state in states)
        assert any(
            not torch.equal(whole(s["mean"]), whole(p).float()) for s, p in zip(states, model.inner.parameters(), strict=True)
        )
    replica, replicas = (rank, world) if sharded else (0, 1)
    info = train(model, optimizer, steps=HALF, start=HALF, replica=replica, replicas=replicas)
    same_on_all(info)

    alone, single = make(dtype, False, **options)
    expected_info = train(alone, single, steps=2 * HALF)[HALF:]
    rough = 1e-4 if dtype == torch.float32 and not options else 0.05  # gradients in bfloat16; state rounds another way at once
    torch.testing.assert_close(torch.tensor(info)[:, :3], torch.tensor(expected_info)[:, :3], rtol=rough, atol=1e-9)
    for p, q in zip(alone.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(whole(q), p.detach(), rtol=rough, atol=rough)


FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": torch.float32, "options": {}},
    "bfloat16": {"dtype": torch.bfloat16, "options": {}},
    "bfloat16-state": {"dtype": torch.float32, "options": {"state_dtype": torch.bfloat16}},
}
