"""Several processes on one machine: ``launch`` runs a table of cases in each, so that starting them is paid for once."""

from __future__ import annotations

import datetime
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))  # spawned processes import the cases by name
Plan = dict[int, dict[str, Callable[[int, int], None]]]
SECONDS = 600  # a process that waits longer for the others than this gives up; they may be at other cases meanwhile


def _process(rank: int, folder: str, plan: Plan) -> None:
    """All of one process: for each number of processes that it is one of, the cases."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", ARTURO_TEST_FOLDER=folder)
    torch.set_num_threads(1)
    for world, cases in plan.items():
        if rank >= world:
            continue
        said: dict[str, str] = {}
        patience = datetime.timedelta(seconds=SECONDS)
        where = f"file://{folder}/{world}.store"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=patience)
        for name, case in cases.items():
            try:
                case(rank, world)
                said[name] = ""
                dist.barrier()
            except BaseException:  # DCP's are no Exceptions. The others may be anywhere now: there is no way on
                said[name] = traceback.format_exc()
                break
        Path(folder, f"{world}.{rank}.json").write_text(json.dumps(said), encoding="utf-8")
        dist.destroy_process_group()


@pytest.fixture(scope="session")
def launch(tmp_path_factory) -> Callable[[Plan], dict[tuple[int, str], str]]:
    """``launch(plan)`` runs the cases of ``{number of processes: {name: case}}``: what went wrong in each, '' for nothing."""

    def run(plan: Plan) -> dict[tuple[int, str], str]:
        folder = tmp_path_factory.mktemp("processes")
        torch.multiprocessing.spawn(_process, (str(folder), plan), nprocs=max(plan))
        wrong = {}
        for world, cases in plan.items():
            said = [json.loads((folder / f"{world}.{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]
            for name in cases:
                found = [f"rank {rank}:\n{x.get(name, 'did not come here')}" for rank, x in enumerate(said) if x.get(name, "?")]
                wrong[world, name] = "\n".join(found)
        return wrong

    return run
