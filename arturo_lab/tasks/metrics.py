"""Losses to train on, and metrics to report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

WORST = -1e6  # the score of a loss that is not finite
Loss = Callable[[Any, Tensor], Tensor]  # (what the network returns, targets) -> the mean over a batch


@dataclass(frozen=True)
class Metric:
    """A number on the test set: the mean of something over the examples.

    Args:
        name: in tables; ``test_NAME`` in run folders.
        better: which direction is.
        unit: of the number.
        of: (what the network returns, targets) -> a value for each example. None: the task's loss.
        finish: what becomes of the mean, e.g. ``math.sqrt`` of a squared error.

    Example:
        >>> rmse = Metric("rmse", "lower", of=lambda output, targets: (output - targets) ** 2, finish=math.sqrt)
        >>> rmse.finish(rmse.of(Tensor([1.0, 5.0]), Tensor([1.0, 1.0])).mean().item())
        2.8284271247461903
    """

    name: str
    better: Literal["higher", "lower"]
    unit: str = ""
    of: Callable[[Any, Tensor], Tensor] | None = None
    finish: Callable[[float], float] = float

    @property
    def key(self) -> str:
        """In the rows of a run."""
        return f"test_{self.name}"

    def score(self, value: float) -> float:
        """The value such that more is better."""
        return value if self.better == "higher" else -value

    def text(self, value: float | None) -> str:
        """As people read it: a fraction in percent.

        Example:
            >>> ACCURACY.text(0.975), LOSS.text(1.2345678), LOSS.text(None)
            ('97.50%', '1.235', 'none')
        """
        if value is None or math.isnan(value):
            return "none"
        return f"{value:.2%}" if self.percent else f"{value:.4g}"

    @property
    def percent(self) -> bool:
        """Whether it is a fraction, which people read in percent."""
        return self.unit == "fraction"

    @property
    def heading(self) -> str:
        """With its unit."""
        unit = "%" if self.percent else self.unit
        return f"{self.name} [{unit}]" if unit else self.name

    @property
    def worst(self) -> float:
        """The score of a run that diverged: none is lower."""
        return 0.0 if self.percent else WORST

    def of_score(self, score: float) -> float:
        """The value that :meth:`score` made a score of, in percent if it is a fraction.

        Example:
            >>> ACCURACY.of_score(0.975), LOSS.of_score(-1.25)
            (97.5, 1.25)
        """
        return 100 * score if self.percent else self.score(score)

    def described(self) -> dict[str, str]:
        """As JSON."""
        return {"name": self.key, "unit": self.unit, "better": self.better}


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.argmax(1) == labels


ACCURACY = Metric("accuracy", "higher", "fraction", _right)
LOSS = Metric("loss", "lower", "nats")
VALUE = Metric("loss", "lower")
SQUARED_ERROR = Metric("loss", "lower", "variance of the targets")


def token_cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """Nats for each token of a sequence: logits (N, T, V), tokens (N, T)."""
    return cross_entropy(logits.flatten(0, -2), tokens.flatten().long())


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """Of a network with one output."""
    return (output.squeeze(-1) - targets).square().mean()


def reconstruction(logits: Tensor, pixels: Tensor) -> Tensor:
    """Cross-entropy of all pixels of an image, in nats."""
    return binary_cross_entropy_with_logits(logits, pixels.flatten(1), reduction="sum") / len(pixels)


def evidence(output: tuple[Tensor, Tensor, Tensor], pixels: Tensor) -> Tensor:
    """The negative evidence lower bound of an image, in nats."""
    logits, mean, log_variance = output
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return reconstruction(logits, pixels) + kl / len(pixels)


def negative_sampling(logits: Tensor, columns: Tensor) -> Tensor:
    """Logistic loss of a word with contexts of which the one in its column is true, the others are drawn."""
    truth = one_hot(columns, logits.shape[1]).to(logits.dtype)
    return binary_cross_entropy_with_logits(logits, truth, reduction="sum") / len(logits)


def value(output: Tensor, targets: Tensor) -> Tensor:
    """The network is the function to minimise."""
    return output.mean()
