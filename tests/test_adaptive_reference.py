"""AdaArturo against its oracle: float64 NumPy with explicit covariance matrices, driven by the same gradients."""

import pytest
import torch

from arturo import AdaArturo
from arturo import reference_adaptive as oracle

# shape -> height and width of its blocks at block=4. Rows and columns differ by one at most: a first factor then lacks one
# eigenvector at most, and is known but for signs.
SHAPES = {(3, 4): (3, 4), (4, 3): (4, 3), (8, 8): (2, 2), (4, 2, 2): (4, 4), (5,): (None, None), (): (None, None)}
OPTIONS = {
    "default": {},
    "fast": {"lr": 0.02, "betas": (0.5, 0.8), "refresh": 3},
    "decay": {"lr": 0.01, "weight_decay": 1.0},
    "eps": {"eps": 0.3},
    "maximize": {"maximize": True},
    "no memory": {"betas": (0.0, 0.0)},
}


def twins(options, covariance, shapes=SHAPES):
    """The same start for both."""
    generator = torch.Generator().manual_seed(1)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    sides = [shapes[tuple(p.shape)] if covariance == "kronecker" else (None, None) for p in params]
    pairs = zip(params, sides, strict=True)
    tensors = [oracle.Tensor(p.detach().numpy(), options, *side, number=i) for i, (p, side) in enumerate(pairs)]
    return params, tensors


def gradients(params, t):
    """They follow the parameters, so that an error in one step shows in all that follow."""
    generator = torch.Generator().manual_seed(100 + t)
    return [
        0.5 * (p.detach() - 1) + torch.randn(p.shape, generator=generator, dtype=torch.float64) * (1 + 0.1 * i)
        for i, p in enumerate(params)
    ]


@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_hundreds_of_steps_agree(options, covariance):
    params, tensors = twins(options, covariance)
    optimizer = AdaArturo(params, covariance=covariance, block=4, **options)
    for t in range(300):
        grads = gradients(params, t)
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
        done = oracle.step(tensors, [g.numpy() for g in grads])
        info = optimizer.last_step
        assert (info.eta, info.kl, info.bound) == pytest.approx((done.eta, done.kl, done.bound), rel=1e-6)
        assert info.active == done.active
        for p, x in zip(params, tensors, strict=True):
            torch.testing.assert_close(p.detach(), torch.tensor(x.w).view(p.shape), rtol=1e-6, atol=1e-9)
