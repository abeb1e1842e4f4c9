"""The pages that show the idea take the steps of the real optimizers, and of the oracles."""

import pytest
import torch
from reference_arturo import ReferenceArturo

from arturo import AdaArturo, Arturo, reference_adaptive
from arturo.minimal import MinimalAdaArturo, MinimalArturo

SHAPES = ((4, 5), (3, 3), (5,))
GIVEN = {"kl_bound": 0.02, "initial_curvature": 0.1}  # the page has no unit of the loss to find


def start():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def gradients(params, t):
    generator = torch.Generator().manual_seed(1 + t)
    return [0.3 * p.detach() + torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in params]


def train(optimizer, params, steps):
    for t in range(steps):
        for p, g in zip(params, gradients(params, t), strict=True):
            p.grad = g
        optimizer.step()


def parameters():
    return [torch.nn.Parameter(x) for x in start()]


@pytest.mark.parametrize("kl_bound", [0.02, 3.0, 1e6], ids=["tight", "loose", "inactive"])
def test_minimal_arturo_is_the_paper(kl_bound):
    """The oracle solves the dual to 1e-12."""
    page = parameters()
    train(MinimalArturo(page, kl_bound=kl_bound), page, 40)
    oracle = ReferenceArturo(
        [p.numpy() for p in start()], kl_bound=kl_bound, initial_curvature=0.1, prior_weight=0.1, noise=1.0, drift=0.03
    )
    for t in range(40):
        params = [torch.from_numpy(p) for p in oracle.groups[0]["params"]]
        oracle.step([g.numpy() for g in gradients(params, t)])
    for p, expected in zip(page, oracle.groups[0]["params"], strict=True):
        torch.testing.assert_close(p.detach(), torch.from_numpy(expected), rtol=1e-8, atol=1e-10)


def test_minimal_arturo_is_arturo():
    """Every step from the same point: to the 1e-3 to which the real one meets the bound."""
    ours, page = parameters(), parameters()
    real, minimal = Arturo(ours, **GIVEN), MinimalArturo(page, kl_bound=GIVEN["kl_bound"])
    for t in range(40):
        for p, q, g in zip(ours, page, gradients(ours, t), strict=True):
            p.grad, q.grad = g, g
        before = [p.detach().clone() for p in ours]
        real.step()
        minimal.step()
        for p, q, old in zip(ours, page, before, strict=True):
            assert (p - q).norm() <= 1e-3 * (p - old).norm()
            torch.testing.assert_close(q.detach(), p.detach(), rtol=1e-3, atol=1e-4)
            q.detach().copy_(p.detach())
            for name, value in minimal.state[q].items():
                torch.testing.assert_close(value, real.state[p][name], rtol=1e-9, atol=1e-12)


def test_minimal_adaarturo_is_adaarturo():
    ours, page = parameters(), parameters()
    train(AdaArturo(ours, lr=0.01), ours, 60)
    train(MinimalAdaArturo(page, lr=0.01), page, 60)
    for p, q in zip(ours, page, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-7, atol=1e-9)


def test_minimal_adaarturo_is_its_oracle():
    """Shapes whose first factors lack one eigenvector at most, and so are known but for signs."""
    page = parameters()
    sides = [p.shape if p.dim() > 1 else (None, None) for p in page]
    tensors = [
        reference_adaptive.Tensor(p.detach().numpy(), {"lr": 0.01}, *side, number=i)
        for i, (p, side) in enumerate(zip(page, sides, strict=True))
    ]
    optimizer = MinimalAdaArturo(page, lr=0.01)
    for t in range(60):
        grads = gradients(page, t)
        for p, g in zip(page, grads, strict=True):
            p.grad = g
        optimizer.step()
        reference_adaptive.step(tensors, [g.numpy() for g in grads])
        for p, x in zip(page, tensors, strict=True):
            torch.testing.assert_close(p.detach(), torch.tensor(x.w).view(p.shape), rtol=1e-6, atol=1e-8)
