"""The Gaussian over the weights as a Bayesian posterior: docs/posterior.md.

* ``gaussian``: :class:`Posterior`, to look at, to draw from and to keep;
* ``snapshot``: one from an optimizer; ``curvature``: its Gauss-Newton diagonal;
* ``sampling``: draws in the place of parameters;
* ``prediction``: averaged over draws; ``calibration``: the temperature that predicts held-out data best.
"""

from arturo.posterior.calibration import Calibration, Trial, calibrate
from arturo.posterior.curvature import ggn_diagonal
from arturo.posterior.gaussian import Posterior, Weight, precision
from arturo.posterior.prediction import Prediction, predict

__all__ = ["Calibration", "Posterior", "Prediction", "Trial", "Weight", "calibrate", "ggn_diagonal", "precision", "predict"]
