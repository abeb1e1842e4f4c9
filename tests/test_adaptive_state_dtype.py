"""AdaArturo with state in bfloat16: its size, its steps beside float32's, the same bits after a resume."""

import copy
import io

import pytest
import torch

from arturo import AdaArturo
from arturo.kernels import native

HALF = torch.bfloat16
SHAPES = ((16, 24), (40, 8), (30,), ())
WAYS = {"best": {}, "loop": {"foreach": False}, "foreach": {"foreach": True}}
both = pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])


def start(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def train(optimizer, params, begin, end):
    for t in range(begin, end):
        for i, p in enumerate(params):
            noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(1000 * t + i))
            p.grad = (0.5 * (p.detach().float() - 1) + 0.3 * noise).to(p.dtype)
        optimizer.step()


@both
def test_four_bytes_per_weight(covariance):
    p = torch.nn.Parameter(torch.randn(64, 64))
    optimizer = AdaArturo([p], covariance=covariance, state_dtype=HALF)
    train(optimizer, [p], 0, 3)
    assert {name: x.dtype for name, x in optimizer.state[p].items() if name not in ("step", "tile")} == dict.fromkeys(
        ("M", "r", "L", "Q_L", "R", "Q_R") if covariance == "kronecker" else ("M", "r"), HALF
    )


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_the_steps_are_nearly_those_of_float32_state(flags, dtype, covariance):
    options = {"lr": 1e-3, "covariance": covariance, "block": 8}
    ends = []
    for state_dtype in (HALF, None):
        params = start(dtype)
        train(AdaArturo(params, **options, **flags, state_dtype=state_dtype), params, 0, 150)
        ends.append(torch.cat([p.detach().flatten().double() for p in params]))
    begin = torch.cat([p.detach().flatten().double() for p in start(dtype)])
    assert (ends[0] - ends[1]).norm() < 0.1 * (ends[1] - begin).norm()


@both
@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_a_resumed_run_has_the_same_bits(flags, covariance, snapshot):
    """Also between two refreshes of a basis."""
    options = {"lr": 3e-3, "covariance": covariance, "block": 8, "refresh": 4, "state_dtype": HALF, **flags}
    params = start()
    optimizer = AdaArturo(params, **options)
    train(optimizer, params, 0, 7)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = AdaArturo(twins, **options)
    again.load_state_dict(torch.load(file, weights_only=True))
    train(optimizer, params, 7, 15)
    train(again, twins, 7, 15)
    assert snapshot(optimizer) == snapshot(again)


def test_cpp_rounds_as_torch_does():
    """The first step has no rounding errors in which the two could differ but in r's product."""
    if not native.available():
        pytest.skip("the C++ extension was not built")
    ends = []
    for flags in ({}, {"foreach": False}):
        p = torch.nn.Parameter(torch.zeros(3000))
        optimizer = AdaArturo([p], state_dtype=HALF, **flags)
        p.grad = torch.randn(3000, generator=torch.Generator().manual_seed(0))
        optimizer.step()
        ends.append(copy.deepcopy(optimizer.state[p]))
        assert not torch.equal(ends[-1]["M"], p.grad.to(HALF))  # not to the nearest
    assert torch.equal(ends[0]["M"], ends[1]["M"]) and torch.equal(ends[0]["r"], ends[1]["r"])


def test_rounding_is_right_in_the_mean():
    """A constant gradient between two numbers of bfloat16: M is one of them, and their mean over steps is the gradient."""
    p = torch.nn.Parameter(torch.zeros(4096))
    optimizer = AdaArturo([p], covariance="diagonal", state_dtype=HALF, betas=(0.0, 0.9))
    seen = []
    for _ in range(20):
        p.grad = torch.full((4096,), 1 + 1 / 512)
        optimizer.step()
        seen.append(optimizer.state[p]["M"].double().mean())
    assert torch.stack(seen).mean().item() == pytest.approx(1 + 1 / 512, abs=2e-4)
