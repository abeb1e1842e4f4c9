"""The entries of `arturo league --stage ablation`: AdaArturo in plain torch, whole and with one part off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arturo_lab.optimizers.catalog import ADAPTIVE, OptimizerEntry
from arturo_lab.references import look_up


def variant(label: str, about: str, **switches: Any) -> OptimizerEntry:
    place = Path(__file__).with_name("variants.py")
    return OptimizerEntry(
        label,
        about,
        lambda: look_up("optimizer", f"{place}:Variant"),
        {"lr": 1e-3, **switches},
        forgets=("t",),
        method=ADAPTIVE,
    )


FULL = variant("in plain torch, nothing off", "the same method, written to be switched")
NO_NOISE = variant("noise not learned", "one r for all weights", noise="constant")
NO_BASIS = variant("no Kronecker basis", "every weight by itself", kronecker=False)
NO_SIZE = variant("size of tensors off", "every tensor counts as 0.05 large", size="none")
NO_FILTER = variant("filter gain off", "the gradient itself instead of the filtered one", betas=(1e-6, 0.995))
BY_TENSOR = variant("a region per tensor", "instead of one over all tensors", region="tensor")
