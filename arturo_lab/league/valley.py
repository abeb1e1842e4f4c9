"""Learning rates: which are tried, by whom, on what."""

from __future__ import annotations

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import Settings

SWEEP = {"fmnist-autoencoder": 1.0, "byte-gru": 1 / 3, "cifar10-cnn-short": 1 / 3}  # tasks, and the share of their epochs
SWEPT = ("adamw-warmup", "soap-warmup", "muon", "adaarturo")
POINTS = 7  # half a decade apart: three decades around the default
REFERENCE_RATES = (1e-3, 3.16e-3, 1e-2, 3.16e-2, 1e-1)  # of AdamW, whose best stands beside untouched AdaArturo
MUON_LR = 0.02  # Muon's default, which its entry leaves to the package


def rates_around(optimizer: str) -> list[float]:
    """Around the default.

    Example:
        >>> rates_around("adamw-warmup")
        [3.16e-05, 0.0001, 0.000316, 0.001, 0.00316, 0.01, 0.0316]
    """
    middle = OPTIMIZERS[optimizer].values.get("lr", MUON_LR)
    return [float(f"{middle * 10 ** ((i - POINTS // 2) / 2):.3g}") for i in range(POINTS)]


def swept_settings(optimizer: str, lr: float) -> Settings:
    """Muon's two learning rates keep their ratio."""
    return {"lr": lr, "adamw_lr": 0.015 * lr} if optimizer == "muon" else {"lr": lr}
