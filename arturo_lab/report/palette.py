"""One colour and one dash pattern per optimizer, the same in every figure, page and animation.

The hues are Okabe and Ito's, made to be told apart with every common colour blindness; the dashes do it in grey print.
There are eight hues that stand out from white paper and more optimizers than that: peers share a hue with an optimizer
that has other dashes.
"""

from __future__ import annotations

import zlib
from typing import Literal, NamedTuple


class Style(NamedTuple):
    """How an optimizer is drawn. Dashes are lengths of line and gap in units of the line's width, () is solid."""

    light: str  # on white
    dark: str  # on black: the same hue, lighter
    dashes: tuple[float, ...]

    @property
    def linestyle(self) -> Literal["solid"] | tuple[int, tuple[float, ...]]:
        """The dashes as matplotlib takes them."""
        return (0, self.dashes) if self.dashes else "solid"


BLUE, ORANGE, GREEN = ("#0072B2", "#4BA3E3"), ("#E69F00", "#F7CB5E"), ("#009E73", "#2EC79A")
VERMILION, PURPLE, SKY, BLACK = ("#D55E00", "#F57231"), ("#CC79A7", "#E39CC4"), ("#56B4E9", "#9AD4F7"), ("#333333", "#DDDDDD")

STYLES: dict[str, Style] = {
    "sgd": Style(*BLUE, (5, 1.5)),
    "adam": Style(*ORANGE, (1.2, 1.2)),
    "adamw": Style(*GREEN, (5, 1.5, 1.2, 1.5)),
    "adaarturo": Style(*BLACK, ()),
    "adaarturo-diagonal": Style(*BLACK, (1.5, 1.5)),
    "arturo": Style(*VERMILION, ()),
    "arturo-paper": Style(*PURPLE, (8, 2)),
    "arturo-default": Style(*VERMILION, (6, 1.5, 1.5, 1.5)),
    "arturo-bisection": Style(*PURPLE, ()),
    "arturo-fixed-eta": Style(*GREEN, ()),
    "arturo-adam": Style(*ORANGE, ()),
    "arturo-hessian": Style(*BLUE, ()),
    "arturo-ggn": Style(*BLUE, (1.5, 1.5)),
    "arturo-hutchinson": Style(*SKY, ()),
    "ivon": Style(*SKY, (3, 1, 1, 1, 1, 1)),
    "adahessian": Style(*BLACK, (2, 2)),
    "adahessian-hessian": Style(*BLUE, (3, 1, 1, 1, 1, 1)),
    "schedulefree-adamw": Style(*GREEN, (1.2, 1.2)),
    "soap": Style(*BLACK, (6, 1.5, 1.2, 1.5)),
    "muon": Style(*SKY, (7, 2)),
}
_SPARE_DASHES = ((), (1.5, 1.5), (5, 2), (6, 1.5, 1.5, 1.5))  # solid, dotted, dashed, dash and dot


def style(optimizer: str, variant: int = 0) -> Style:
    """The style of an optimizer. Its variants (the same optimizer with other settings) keep the colour and change dashes.

    A name that is not in the table gets one by its spelling, so that it looks alike from figure to figure.

    Example:
        >>> style("arturo").light, style("arturo").linestyle
        ('#D55E00', 'solid')
        >>> style("arturo", variant=1).light == style("arturo").light, style("arturo", variant=1).linestyle
        (True, (0, (1.5, 1.5)))
        >>> style("lion") == style("lion")
        True
    """
    if optimizer in STYLES:
        found = STYLES[optimizer]
    else:
        number = zlib.crc32(optimizer.encode())
        hue = (SKY, BLACK, PURPLE, BLUE)[number % 4]
        found = Style(*hue, _SPARE_DASHES[number // 4 % len(_SPARE_DASHES)])
    if variant == 0:
        return found
    others = [dashes for dashes in _SPARE_DASHES if _kind(dashes) != _kind(found.dashes)]
    return found._replace(dashes=others[(variant - 1) % len(others)])


def _kind(dashes: tuple[float, ...]) -> tuple[int, bool]:
    """What the eye tells apart: how many pieces, and whether they are dots."""
    return len(dashes), bool(dashes) and dashes[0] > 2.5
