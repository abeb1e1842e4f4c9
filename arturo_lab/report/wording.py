"""Numbers as tables show them, on the page and in the terminal alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arturo_lab.report.evidence import Estimate
from arturo_lab.report.metric import ShownMetric


def count(n: float, noun: str) -> str:
    """
    Example:
        >>> count(1, "run"), count(3, "run"), count(2.5, "epoch")
        ('1 run', '3 runs', '2.5 epochs')
    """
    return f"{n:g} {noun}" if n == 1 else f"{n:g} {noun}s"


def mean_with_error(estimate: Estimate, scale: float, digits: int) -> str:
    """With the doubled standard error, the paper's measure.

    Example:
        >>> mean_with_error(Estimate(0.9774, 0.00105, 3), scale=100, digits=2)
        '97.74 ± 0.21'
        >>> mean_with_error(Estimate(0.9774, None, 1), scale=100, digits=2)
        '97.74'
    """
    mean = f"{scale * estimate.mean:.{digits}f}"
    return mean if estimate.doubled_error is None else f"{mean} ± {scale * estimate.doubled_error:.{digits}f}"


def mean_with_interval(estimate: Estimate, metric: ShownMetric) -> str:
    """With half of the 95 % t-interval.

    Example:
        >>> mean_with_interval(Estimate.of([0.90, 0.91, 0.92]), ShownMetric())
        '91.00 ± 2.48'
    """
    mean, width = metric.text(estimate.mean), estimate.half_width
    return mean if width is None else f"{mean} ± {metric.scale * width:.{metric.digits(estimate.mean)}f}"


def estimate_fields(estimate: Estimate | None) -> dict[str, float | int | None]:
    """As JSON."""
    if estimate is None:
        return {"mean": None, "half_width": None, "doubled_error": None, "n": 0}
    return {
        "mean": estimate.mean,
        "half_width": estimate.half_width,
        "doubled_error": estimate.doubled_error,
        "n": estimate.n,
    }


def signed(value: float, metric: ShownMetric, digits: int | None = None) -> str:
    """A difference, with a sign that is as wide as a plus, and as many decimals as what differs.

    Example:
        >>> signed(0.0123, ShownMetric()), signed(-0.0123, ShownMetric()), signed(0.0, ShownMetric())
        ('+1.23', '−1.23', '0.00')
    """
    text = f"{metric.scale * value:+.{metric.digits(value) if digits is None else digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def fraction(value: float, digits: int = 0) -> str:
    """A fraction in percent, without the sign; as many digits as it takes if it has more than asked for.

    Example:
        >>> fraction(0.9), fraction(0.915), fraction(0.97111, 2)
        ('90', '91.5', '97.11')
    """
    return f"{100 * value:.{digits}f}" if digits else f"{100 * value:.6g}"


def duration(seconds: float) -> str:
    """
    Example:
        >>> [duration(s) for s in (0, 0.0123, 0.5, 3.21, 75.0, 149.0, 3600.0, 7384.0)]
        ['0 ms', '12 ms', '500 ms', '3.2 s', '75 s', '2.5 min', '60 min', '2.1 h']
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def duration_range(low: float, high: float) -> str:
    """
    Example:
        >>> duration_range(1.0, 1.24), duration_range(0.9, 75.0), duration_range(1.01, 1.02)
        ('1.0 to 1.2 s', '900 ms to 75 s', '')
    """
    one, other = duration(low), duration(high)
    if one == other:
        return ""
    return f"{one.split()[0]} to {other}" if one.split()[1] == other.split()[1] else f"{one} to {other}"


def p_value(p: float | None, pairs: int) -> str:
    """
    Example:
        >>> p_value(0.25, 3), p_value(0.00195, 10), p_value(None, 1), p_value(None, 0)
        ('p = 0.25', 'p = 0.002', '1 pair', 'no shared seed')
    """
    if p is None:
        return count(pairs, "pair") if pairs else "no shared seed"
    return f"p = {p:.2f}" if p >= 0.095 else f"p = {p:.1g}"


def protocol_words(protocol: dict[str, Any]) -> str:
    """
    Example:
        >>> protocol_words({"task": "x", "epochs": 12, "batch_size": 255, "subset": 20000})
        '12 epochs, batches of 255, 20,000 training images'
        >>> protocol_words({"task": "x", "epochs": 1, "batch_size": None, "subset": None})
        '1 epoch'
    """
    words = [count(protocol["epochs"], "epoch")]
    if protocol.get("batch_size") is not None:
        words.append(f"batches of {protocol['batch_size']}")
    if protocol.get("subset") is not None:
        words.append(
            f"{protocol['subset']:,} training images" if isinstance(protocol["subset"], int) else str(protocol["subset"])
        )
    if protocol.get("fold") is not None:
        words.append(f"tested on part {protocol['fold']} of them")
    if protocol.get("validation") is not None:
        words.append(f"curves on part {protocol['validation']} of them, which is not trained on")
    return ", ".join(words)


def seed_words(seeds: Sequence[int]) -> str:
    """Which seeds, in few words.

    Example:
        >>> seed_words([0, 1, 2]), seed_words([3]), seed_words([0, 2, 5])
        ('seeds 0 to 2', 'seed 3', 'seeds 0, 2, 5')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    whole = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]} to {seeds[-1]}" if whole and len(seeds) > 2 else f"seeds {', '.join(map(str, seeds))}"
