"""One colour and one dash pattern per optimizer, the same in every figure, page and animation.

The hues are Okabe and Ito's, made to be told apart with every common colour blindness; the dashes do it in grey print.
There are eight hues that stand out from white paper and more optimizers than that: peers share a hue with an optimizer
that has other dashes. Curves of one figure never share dashes and marker: :func:`distinct` sees to that.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Style(NamedTuple):
    """How an optimizer is drawn. Dashes are lengths of line and gap in units of the line's width, () is solid."""

    light: str  # on white
    dark: str  # on black: the same hue, lighter
    dashes: tuple[float, ...]
    marker: str = ""  # matplotlib's letter; where a figure has more curves than there are dashes

    @property
    def linestyle(self) -> Literal["solid"] | tuple[int, tuple[float, ...]]:
        """The dashes as matplotlib takes them."""
        return (0, self.dashes) if self.dashes else "solid"


BLUE, ORANGE, GREEN = ("#0072B2", "#4BA3E3"), ("#E69F00", "#F7CB5E"), ("#009E73", "#2EC79A")
VERMILION, PURPLE, SKY, BLACK = ("#D55E00", "#F57231"), ("#CC79A7", "#E39CC4"), ("#56B4E9", "#9AD4F7"), ("#333333", "#DDDDDD")

# Ten that the eye tells apart without colour, the plainest first.
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (5, 1.5),
    (1.2, 1.2),
    (5, 1.5, 1.2, 1.5),
    (9, 2.5),
    (3, 1, 1, 1, 1, 1),
    (2.2, 2.2),
    (9, 1.5, 3, 1.5),
    (1.2, 3.5),
    (9, 1.5, 1.2, 1.5, 1.2, 1.5),
)
SOLID, DASHED, DOTTED, DASH_DOT, LONG, DASH_DOT_DOT, SHORT, LONG_SHORT, SPARSE, LONG_DOT_DOT = DASHES
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")

STYLES: dict[str, Style] = {
    "sgd": Style(*BLUE, DASHED),
    "adam": Style(*ORANGE, DOTTED),
    "adamw": Style(*GREEN, DASH_DOT),
    "adaarturo": Style(*BLACK, SOLID),
    "adaarturo-diagonal": Style(*BLACK, DOTTED),
    "arturo": Style(*VERMILION, SOLID),
    "arturo-paper": Style(*PURPLE, LONG),
    "arturo-default": Style(*VERMILION, LONG_DOT_DOT),
    "arturo-bisection": Style(*PURPLE, SOLID),
    "arturo-fixed-eta": Style(*GREEN, SOLID),
    "arturo-adam": Style(*ORANGE, SOLID),
    "arturo-hessian": Style(*BLUE, SOLID),
    "arturo-ggn": Style(*BLUE, DOTTED),
    "arturo-hutchinson": Style(*SKY, SOLID),
    "ivon": Style(*SKY, DASH_DOT_DOT),
    "adahessian": Style(*BLACK, SHORT),
    "adahessian-hessian": Style(*BLUE, DASH_DOT_DOT),
    "schedulefree-adamw": Style(*GREEN, SPARSE),
    "schedulefree-adamw-warmup": Style(*GREEN, DOTTED),
    "soap": Style(*VERMILION, LONG_SHORT),
    "soap-warmup": Style(*VERMILION, SHORT),
    "muon": Style(*SKY, LONG),
    "adamw-warmup": Style(*GREEN, LONG),
    "lamb": Style(*ORANGE, DASH_DOT_DOT),
    "adabelief": Style(*ORANGE, LONG_SHORT),
    "lion": Style(*PURPLE, SHORT),
    "prodigy": Style(*PURPLE, SPARSE),
}


def style(optimizer: str, variant: int = 0) -> Style:
    """The style of an optimizer. Its variants (the same optimizer with other settings) keep the colour and change dashes.

    A name that is not in the table gets one by its spelling, so that it looks alike from figure to figure.

    Example:
        >>> style("arturo").light, style("arturo").linestyle
        ('#D55E00', 'solid')
        >>> style("arturo", variant=1).light == style("arturo").light, style("arturo", variant=1).linestyle
        (True, (0, (5, 1.5)))
        >>> style("lion") == style("lion")
        True
    """
    if optimizer in STYLES:
        look = STYLES[optimizer]
    else:
        number = zlib.crc32(optimizer.encode())
        look = Style(*(SKY, BLACK, PURPLE, BLUE)[number % 4], DASHES[number // 4 % len(DASHES)])
    others = [dashes for dashes in DASHES if dashes != look.dashes]
    return look if variant == 0 else look._replace(dashes=others[(variant - 1) % len(others)])


def distinct(looks: Sequence[Style]) -> list[Style]:
    """The same looks, changed as little as it takes that no two have the same dashes and marker: the first one keeps its own.

    Example:
        >>> one, other = distinct([style("arturo"), style("adaarturo")])
        >>> one.dashes, other.dashes, other.light == style("adaarturo").light
        ((), (5, 1.5), True)
    """
    taken: set[tuple[tuple[float, ...], str]] = set()
    result = []
    wanted = {(look.dashes, look.marker) for look in looks}
    for look in looks:
        own = (look.dashes, look.marker)
        if own in taken:
            free = [(dashes, marker) for marker in MARKERS for dashes in DASHES if (dashes, marker) not in taken]
            unwanted = [each for each in free if each not in wanted]
            own = next(iter(unwanted or free), own)  # more than 80 curves: nothing tells them apart
        taken.add(own)
        result.append(look._replace(dashes=own[0], marker=own[1]))
    return result
