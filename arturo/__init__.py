"""arTuRO: information-theoretic trust regions for stochastic gradient-based optimization.

>>> import torch
>>> from arturo import Arturo
>>> optimizer = Arturo([torch.nn.Parameter(torch.zeros(3))])
"""

from arturo.calibration import calibrate
from arturo.curvature import ggn_diagonal
from arturo.hyperparameters import PAPER
from arturo.optimizer import Arturo
from arturo.posterior import Posterior
from arturo.prediction import Prediction, predict
from arturo.step import StepInfo

__all__ = ["PAPER", "Arturo", "Posterior", "Prediction", "StepInfo", "calibrate", "ggn_diagonal", "predict"]
__version__ = "0.1.0"
