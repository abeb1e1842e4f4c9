"""The page that shows the idea takes the steps of the real optimizer."""

import torch

from arturo import AdaArturo
from arturo.minimal import MinimalAdaArturo


def test_minimal_adaarturo_is_adaarturo():
    start = [
        torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) for shape in ((4, 5), (3, 3), (5,))
    ]
    ours, page = ([torch.nn.Parameter(x.clone()) for x in start] for _ in range(2))
    real, minimal = AdaArturo(ours, lr=0.01), MinimalAdaArturo(page, lr=0.01)
    for t in range(60):
        generator = torch.Generator().manual_seed(1 + t)
        for p, q in zip(ours, page, strict=True):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad, q.grad = 0.3 * p.detach() + noise, 0.3 * q.detach() + noise
        real.step()
        minimal.step()
        for p, q in zip(ours, page, strict=True):
            torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-8, atol=1e-10)
