"""What a training runs on."""

from __future__ import annotations

from dataclasses import dataclass

from arturo_lab.fields import check, option

PARALLEL = ("ddp", "fsdp2")  # every process holds all weights; every process holds a shard of them and of the optimizer's state
MOST_THREADS = 1024  # creating 100,000 threads crashes the process before anything can be said


@dataclass(frozen=True)
class Machine:
    """Device, precision, memory format, threads. All of it can change the last digits of a result, so a config contains it."""

    device: str = option("cpu", "cpu, cuda, cuda:1, ...")
    threads: int | None = option(
        None, "CPU threads (default: the task's own number, else torch's choice)", metavar="N", lowest=1, highest=MOST_THREADS
    )
    amp: str | None = option(
        None,
        "bf16: compute the forward pass and the loss in bfloat16 where torch considers it safe",
        metavar="TYPE",
        choices=("bf16",),
    )
    compile: bool = option(False, "compile the network with torch.compile; the time of the first epoch includes that")
    channels_last: bool = option(False, "store images and filters channels last, which speeds up convolutions on a CPU")
    parallel: str | None = option(
        None,
        "under torchrun: ddp (all weights in every process) or fsdp2 (weights and optimizer state sharded)",
        metavar="HOW",
        choices=PARALLEL,
    )

    def __post_init__(self) -> None:
        check(self)
