"""Tiles in C++: they are turned, and their bases refreshed, as torch does it, whatever the side and the number of threads."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from torch import Tensor

from arturo import AdaArturo, kronecker
from arturo.kernels import native

pytestmark = pytest.mark.skipif(not native.available(), reason="the C++ extension was not built")
SIDES = (1, 2, 10, 16, 17, 64, 112, 128)


def factors(n: int, dtype: torch.dtype, count: int = 5) -> Tensor:
    """As innovations give them; the second has half the rank, the third is zero."""
    generator = torch.Generator().manual_seed(n)
    E = torch.randn(count, n, n, dtype=dtype, generator=generator) * 1e-3
    E[1, :, n // 2 :] = 0
    E[2] = 0
    return E @ E.mT


def orthogonal(x: Tensor) -> Tensor:
    """Q of each by C++, whose rows have a stride of whole vectors."""
    n, rows = x.shape[-1], []
    for matrix in x:
        wide = torch.zeros(n, -(-n // 16) * 16, dtype=x.dtype)
        wide[:, :n] = matrix
        native.library().arturo_orthogonal(
            ctypes.c_int32(x.dtype == torch.float64), ctypes.c_int32(n), ctypes.c_void_p(wide.data_ptr())
        )
        rows.append(wide[:, :n])
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", SIDES)
def test_q_is_lapacks(n: int, dtype: torch.dtype) -> None:
    some = factors(n, dtype)
    x = kronecker.ridged(some, some.diagonal(dim1=-2, dim2=-1).argsort(dim=-1, descending=True, stable=True))
    Q, eps = orthogonal(x), torch.finfo(dtype).eps
    unit, R = torch.eye(n, dtype=dtype), Q.mT @ x
    torch.testing.assert_close(Q.mT @ Q, unit.expand_as(x), atol=20 * eps, rtol=0)
    torch.testing.assert_close(R.tril(-1), torch.zeros_like(x), atol=40 * eps, rtol=0)
    expected = torch.linalg.qr(x[0].double())[0]  # the one of full rank: elsewhere rounding decides
    torch.testing.assert_close(Q[0].double(), expected, atol=2e4 * eps, rtol=0)


def steps(shape: tuple[int, ...], dtype: torch.dtype, threads: int = 1, **options: object) -> dict[str, Tensor]:
    """State and weights after 12 steps, with a refresh at every third. The first step is torch's: one thread."""
    generator = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
    turned = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    optimizer = AdaArturo([p], lr=3e-3, refresh=3, **options)  # type: ignore[arg-type]
    for t in range(12):
        torch.set_num_threads(1 if t == 0 else threads)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        p.grad = 0.1 * p.detach() + turned * math.cos(t) + noise
        optimizer.step()
    return {"p": p.detach(), **optimizer.state[p]}


OBLONG = [(10, 257), (130, 16), (96, 48, 3, 3), (256, 224), (3, 500), (200, 150)]


@pytest.mark.parametrize("shape", [(n, n) for n in SIDES if n > 1] + OBLONG, ids=str)
def test_all_shapes_are_turned_as_torch_turns_them(shape: tuple[int, ...]) -> None:
    """Sides that are no whole vectors, one-sided ones, many tiles; factors, bases and all."""
    ours, plain = steps(shape, torch.float64), steps(shape, torch.float64, foreach=False)
    for name, x in ours.items():
        torch.testing.assert_close(x, plain[name], rtol=1e-6, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    before = torch.get_num_threads()
    try:
        one, two, three = (steps((256, 224), dtype, threads) for threads in (1, 2, 3))
    finally:
        torch.set_num_threads(before)
    for other in (two, three):
        assert all(torch.equal(x, other[name]) for name, x in one.items())
