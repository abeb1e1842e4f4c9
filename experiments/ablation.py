"""The entries of `arturo league --stage ablation`: AdaArturo in plain torch, whole and with one part off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arturo_lab.optimizers.catalog import ADAPTIVE, OptimizerEntry
from arturo_lab.references import look_up

Variant: Any = look_up("optimizer", f"{Path(__file__).with_name('variants.py')}:Variant")


def variant(label: str, about: str, **switches: Any) -> OptimizerEntry:
    return OptimizerEntry(label, about, lambda: Variant, {"lr": 1e-3, **switches}, method=ADAPTIVE)


FULL = variant("in plain torch, nothing off", "the same method, written to be switched")
NO_NOISE = variant("noise not learned", "r = 1 for all weights, as published", noise="constant")
TILE_NOISE = variant("one noise for each tile", "learned, but the same for all weights of a tile", noise="tile")
NO_BASIS = variant("no Kronecker basis", "every weight by itself", kronecker=False)
NO_SIZE = variant("size of tensors off", "every tensor counts as 0.05 large", size="none")
NO_FILTER = variant("filter gain off", "the gradient itself instead of the filtered one", betas=(1e-6, 0.995))
NO_STUDENT = variant("outliers count in full", "a Gaussian filter in place of Student's", student=None)
BY_TENSOR = variant("a region per tensor", "instead of one over all tensors", region="tensor")
