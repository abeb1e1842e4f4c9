r"""Hutchinson's estimate of the Hessian's diagonal, as AdaHessian uses it (Yao et al., 2021).

.. math:: \mathrm{diag}(H) = E[z \odot H z], \qquad z_i = \pm 1

with one draw of z per step, and for the kernels of convolutions the mean over their spatial axes in place of each entry.
(The authors' code takes absolute values before that mean. A model of the loss needs the sign: without them the estimate is
unbiased, and ``curvature_floor`` guards the denominators.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from arturo.core import rounding

STREAM = 0x9E3779B9  # keeps these bits apart from those of the rounding


def signs(like: Tensor, seed: Any) -> Tensor:
    """+1 or -1 per entry, real and imaginary parts apart, from a hash of ``seed`` (int or 0-d tensor) and the entry's index.

    No generator: a resumed run draws what the uninterrupted one would have, and dropout's masks are left alone.

    Example:
        >>> signs(torch.zeros(8), rounding.seed(0, 1))
        tensor([ 1.,  1., -1., -1., -1.,  1., -1.,  1.])
    """
    real = torch.view_as_real(like) if like.is_complex() else like
    entry = torch.arange(real.numel(), device=like.device).view(real.shape)
    key = rounding.mix((seed + STREAM) & rounding.WORD)
    word = rounding.mix((key + entry + (entry >> 32) * STREAM) & rounding.WORD)
    z = ((word >> 31) * 2 - 1).to(real.dtype)
    return torch.view_as_complex(z) if like.is_complex() else z


def hessian_product(params: Sequence[Tensor], grads: Sequence[Tensor], z: Sequence[Tensor]) -> list[Tensor]:
    """H z, from gradients that still have their graph. Zero where the loss is linear in some of the parameters.

    Example:
        >>> p = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> (g,) = torch.autograd.grad(p[0] ** 2 * p[1], p, create_graph=True)
        >>> hessian_product([p], [g], [torch.tensor([1.0, -1.0])])  # H is [[4, 2], [2, 0]]
        [tensor([2., 2.])]
    """
    linked = [(g, v) for g, v in zip(grads, z, strict=True) if g.requires_grad]
    if not linked:
        raise RuntimeError(
            "surrogate='hutchinson' differentiates the gradient once more, and this gradient has no graph: call "
            "loss.backward(create_graph=True) (and optimizer.zero_grad() after the step, which frees the graph). If you did, "
            "the loss is linear in every parameter and has no curvature to estimate"
        )
    outputs, weights = zip(*linked, strict=True)
    products = torch.autograd.grad(outputs, list(params), grad_outputs=weights, allow_unused=True)
    return [torch.zeros_like(p) if x is None else x for p, x in zip(params, products, strict=True)]


def estimated_diagonal(z: Tensor, product: Tensor) -> Tensor:
    """``z * H z``; under a convolution's kernel (four axes) the mean of it over the two spatial ones.

    Example:
        >>> estimated_diagonal(torch.tensor([1.0, -1.0]), torch.tensor([2.0, 2.0]))
        tensor([ 2., -2.])
    """
    if z.is_complex():  # real and imaginary part are two weights
        return torch.view_as_complex(torch.view_as_real(z) * torch.view_as_real(product.resolve_conj()))
    h = z * product
    return h.mean(dim=(2, 3), keepdim=True).expand_as(h) if h.dim() == 4 else h
