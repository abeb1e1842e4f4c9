"""AdaArturo with one part off at a time: what carries the gain? The parts are switches of experiments/variants.py."""

from __future__ import annotations

from pathlib import Path

ABLATION_TASKS = ("fmnist-autoencoder", "byte-gru", "cifar10-cnn-short")
FILE = "experiments/ablation.py"  # in the repository: the stage runs from its root
FULL = f"{FILE}:FULL"  # nothing off: must do as well as AdaArturo itself
ABLATIONS = (
    FULL,
    *(f"{FILE}:{name}" for name in ("NO_NOISE", "TILE_NOISE", "NO_BASIS", "NO_SIZE", "NO_FILTER", "NO_STUDENT", "BY_TENSOR")),
)


def entries() -> tuple[str, ...]:
    """The names of the entries; none where the file is not."""
    return ABLATIONS if Path(FILE).is_file() else ()
