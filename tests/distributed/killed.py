"""A training that torchrun restarts: the last process dies in the middle, once. Run by test_restart.py."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoints import make
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from training import train, whole

EVERY, DIES_AT, STEPS = 3, 7, 10


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = make(torch.float32, True)
    done = max((int(x.name) for x in folder.glob("*") if (x / ".metadata").exists()), default=0)
    if done:
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder / str(done))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if rank == 0:
        (folder / f"began.{attempt}").write_text(str(done), encoding="utf-8")
    for t in range(done, STEPS):
        if t == DIES_AT and attempt == 0 and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train(model, optimizer, steps=1, start=t, replica=rank, replicas=world)
        if (t + 1) % EVERY == 0:
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / str(t + 1))
    ended = {name: whole(p) for name, p in model.named_parameters()}
    if rank == 0:
        torch.save(ended, folder / "ended.pt")
    dist.barrier()
    # FSDP2 keeps the process group beyond its end. A thread of gloo that then drops the last reference to a tensor needs an
    # interpreter, and aborts the process once that is finalized: leave without finalizing it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
