"""``arturo train --parallel`` against one process: the case."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import torch

from arturo_lab.data import loading
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import read_run
from arturo_lab.runs.run import open_run
from arturo_lab.training.parallel import Processes
from arturo_lab.training.train import train

STOPS_AT = 4  # a step in the middle of the second epoch


def interrupted_and_resumed(rank: int, world: int, *, parallel: str, optimizer: str) -> None:
    """The last process alone is asked to stop, and all do; they resume, and the numbers are those of one process."""
    digits = loading.load("digits")
    config = RunConfig.for_task("digits-cnn", optimizer, epochs=3, subset=65, batch_size=32, parallel=parallel)
    expected = train(config.changed(parallel=None), digits)  # batches of 32, 32 and 1: too few images for two processes
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return rank == world - 1 and asked > STOPS_AT

    with ExitStack() as stack:
        run = None if rank else stack.enter_context(open_run(Path(os.environ["ARTURO_TEST_FOLDER"]), config))
        try:
            train(config, digits, run=run, stop=stop, processes=Processes(parallel))
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("went on")
        found = train(config, digits, run=run, processes=Processes(parallel))
        if run is not None:
            assert run.result is not None and run.result["status"] == "finished"
            assert read_run(run.path).series("train_loss") == [metrics.train_loss for metrics in found]
    assert len(found) == 3
    for x, y in zip(found, expected, strict=True):
        losses = torch.tensor([[z.train_loss, z.test_loss] for z in (x, y)])
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=0)
        assert abs(x.test_accuracy - y.test_accuracy) <= 1 / len(digits.test_targets)  # a tie may fall the other way
