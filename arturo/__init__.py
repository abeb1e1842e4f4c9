"""arTuRO: information-theoretic trust regions for stochastic gradient-based optimization.

>>> import torch
>>> from arturo import Arturo
>>> optimizer = Arturo([torch.nn.Parameter(torch.zeros(3))])
"""

from arturo.hyperparameters import PAPER
from arturo.optimizer import Arturo
from arturo.step import StepInfo

__all__ = ["PAPER", "Arturo", "StepInfo"]
__version__ = "0.1.0"
