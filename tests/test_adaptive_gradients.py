"""What one gradient does to AdaArturo: a step downhill, counted, reported, relative to the size of its tensor."""

import math

import pytest
import torch

from arturo import AdaArturo
from arturo.adaptive_step import PER_LR


def noise(t, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_goes_downhill(sign, adaptive):
    """On a slope, along each weight; uphill under maximize."""
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.tensor([2.0, -1.0, 0.0])
    AdaArturo([p], **{**adaptive, "weight_decay": 0.0, "maximize": sign < 0}).step()
    assert (sign * (p.detach() - 1)).sign().tolist() == [-1.0, 1.0, 0.0]


def test_step_counts_and_last_step(adaptive, quadratic):
    """``step`` is a float32 tensor under every parameter, as AdamW's; ``last_step`` is finite and that of the last step."""
    params = quadratic.params()
    optimizer = AdaArturo(params, **adaptive)
    assert optimizer.last_step == (0.0, 0.0, 0.0, 0, False, 0)
    for t in range(4):
        (info,) = quadratic.train(optimizer, 1, t)
        assert all(map(math.isfinite, info)) and info.eta > 0 and 0 < info.kl <= info.bound * (1 + 1e-9)
        assert info.evaluations == 1 and info.skipped == 0 and type(info.active) is bool
        for p in params:
            step = optimizer.state[p]["step"]
            assert step == t + 1 and step.dtype == torch.float32 and step.shape == ()


def test_a_step_is_relative_to_a_tensors_size(geometry):
    """lr is AdamW's where weights have a root mean square of 1 / PER_LR; a tensor ten times larger moves ten times further.

    512 columns: below 1 / sqrt(512) a size no longer counts.
    """
    moved = []
    for size in (1 / PER_LR, 10 / PER_LR):
        p = torch.nn.Parameter(noise(0, (8, 512)))
        with torch.no_grad():
            p.mul_(size / p.square().mean().sqrt())
        p.grad = noise(1, (8, 512))
        before = p.detach().clone()
        AdaArturo([p], **{**geometry, "lr": 1e-3}).step()
        moved.append((p.detach() - before).square().mean().sqrt().item())
    assert moved[1] == pytest.approx(10 * moved[0], rel=1e-6)
    assert 0 < moved[0] <= 1e-3 * (1 + PER_LR * 1e-3)  # the first gradient may be noise: less than lr
