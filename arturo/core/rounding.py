"""State in bfloat16: stochastic rounding whose bits are a hash.

Rounding to nearest would lose every change below half a unit in the last place, and a filter's changes are small. So a number
is rounded up with a probability equal to the fraction cut off: right in the mean. The bits come from a hash of (step, index of
the parameter, index of the entry in memory) and not from a generator: a resumed run, every kernel and every shard draw the
same. What is stored of the filter's variance: :func:`arturo.surrogates.kalman.factored_update`.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
HALF_WORD = 0xFFFF
CHUNK = 256  # entries that share a key; the C++ kernel works in such chunks
I = TypeVar("I", int, Tensor)  # noqa: E741 - an integer of the host, or int64 ones of the device, all below 2^32


def mix(x: I) -> I:
    """A bijection of 32-bit words that spreads every bit over all of them (the constants are those of ``lowbias32``).

    Example:
        >>> [hex(mix(i)) for i in (1, 2)], torch.equal(mix(torch.tensor([1, 2])), torch.tensor([mix(1), mix(2)]))
        (['0x688990c0', '0xd1132181'], True)
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def seed(step: I, index: int) -> I:
    """One word for a parameter's step: ``index`` counts the optimizer's parameters."""
    return mix((mix(step & WORD) + index) & WORD)


def entries(like: Tensor, offset: int) -> Tensor:
    """The index of every entry in memory order, beginning with ``offset``, laid out like the dense tensor ``like``."""
    flat = torch.arange(offset, offset + like.numel(), device=like.device)
    return flat.view(like.shape) if like.is_contiguous() else flat.as_strided(like.shape, like.stride())


def draw(seed: int | Tensor, entry: Tensor, number: int) -> Tensor:
    """Sixteen bits per entry for the rounding with this ``number``: 0 to 4 for ``a, b`` and P's three, 5 for the precision.

    Each chunk of :data:`CHUNK` entries has a separate key and odd factor, well mixed; inside it the entries differ by a
    fixed spread. So every entry's bits are uniform and new at every step, at the price of one 16-bit product.
    """
    chunk = entry // CHUNK
    word = mix((mix(mix((seed + (chunk >> 32)) & WORD) ^ (chunk & WORD)) + number) & WORD)
    return ((_spread(entry % CHUNK) ^ (word & HALF_WORD)) * (word >> 16 | 1)) & HALF_WORD


def _spread(x: Tensor) -> Tensor:
    """A bijection of 16-bit words, for the 256 places in a chunk."""
    x = (x * 0x88B5) & HALF_WORD
    x = ((x ^ (x >> 7)) * 0xDB2D) & HALF_WORD
    return x ^ (x >> 9)


def round_randomly(x: Tensor, draw: Tensor) -> Tensor:
    """``x`` in bfloat16: up in magnitude when the sixteen bits that are cut off, plus ``draw``, carry over.

    Example:
        >>> x = torch.tensor([1 + 1 / 512]).expand(4)  # a quarter of the way from 1 to the next number, 1.0078125
        >>> round_randomly(x, torch.tensor([0, 20000, 49151, 49152]))
        tensor([1.0000, 1.0000, 1.0000, 1.0078], dtype=torch.bfloat16)
    """
    return ((x.float().view(torch.int32) + draw.to(torch.int32)) >> 16).to(torch.int16).view(torch.bfloat16)
