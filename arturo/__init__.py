"""arTuRO: information-theoretic trust regions for stochastic gradient-based optimization.

>>> import torch
>>> from arturo import AdaArturo
>>> optimizer = AdaArturo([torch.nn.Parameter(torch.zeros(3))], lr=1e-3)
"""

from arturo.adaptive import AdaArturo
from arturo.calibration import calibrate
from arturo.curvature import ggn_diagonal
from arturo.hyperparameters import PAPER
from arturo.optimizer import Arturo
from arturo.posterior import Posterior
from arturo.prediction import Prediction, predict
from arturo.step_info import StepInfo

__all__ = ["PAPER", "AdaArturo", "Arturo", "Posterior", "Prediction", "StepInfo", "calibrate", "ggn_diagonal", "predict"]
__version__ = "0.1.0"
