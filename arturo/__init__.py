"""arTuRO: information-theoretic trust regions for stochastic gradient-based optimization.

>>> import torch
>>> from arturo import AdaArturo
>>> optimizer = AdaArturo([torch.nn.Parameter(torch.zeros(3))], lr=1e-3)

The public API is what this module exports, plus ``arturo.minimal``, ``arturo.reference`` and
``arturo.checkpoint.load_planner``. Everything else may change between versions; docs/architecture.md lists the modules.
"""

from arturo.adaptive import AdaArturo
from arturo.hyperparameters import PAPER
from arturo.optimizer import Arturo
from arturo.posterior import Calibration, Posterior, Prediction, Trial, calibrate, ggn_diagonal, predict
from arturo.step_info import StepInfo

__all__ = [
    "PAPER",
    "AdaArturo",
    "Arturo",
    "Calibration",
    "Posterior",
    "Prediction",
    "StepInfo",
    "Trial",
    "calibrate",
    "ggn_diagonal",
    "predict",
]
__version__ = "0.1.0"
