"""New bases of tiles in C++: what they are made of agrees with torch's, whatever the side and the number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from arturo import kronecker
from arturo.kernels import native
from arturo.kernels.adaptive import native_tiles

pytestmark = pytest.mark.skipif(not native.available(), reason="the C++ extension was not built")
SIDES = (1, 2, 10, 16, 17, 64, 112, 128)


def factors(n: int, dtype: torch.dtype, count: int = 5) -> Tensor:
    """As innovations give them; the second has half the rank, the third is zero."""
    generator = torch.Generator().manual_seed(n)
    E = torch.randn(count, n, n, dtype=dtype, generator=generator) * 1e-3
    E[1, :, n // 2 :] = 0
    E[2] = 0
    return E @ E.mT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", SIDES)
def test_ridged_columns_are_torchs(n: int, dtype: torch.dtype) -> None:
    matrix, order = native_tiles._ridged(factors(n, dtype))
    expected, expected_order = kronecker.ridged(factors(n, dtype))
    assert torch.equal(order, expected_order)
    assert torch.equal(matrix, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", SIDES)
def test_q_is_lapacks(n: int, dtype: torch.dtype) -> None:
    x, _ = kronecker.ridged(factors(n, dtype))
    Q, eps = native_tiles._orthogonal(x.clone()), torch.finfo(dtype).eps
    unit, R = torch.eye(n, dtype=dtype), Q.mT @ x
    torch.testing.assert_close(Q.mT @ Q, unit.expand_as(x), atol=20 * eps, rtol=0)
    torch.testing.assert_close(R.tril(-1), torch.zeros_like(x), atol=40 * eps, rtol=0)
    expected = torch.linalg.qr(x[0].double())[0]  # the one of full rank: elsewhere rounding decides
    torch.testing.assert_close(Q[0].double(), expected, atol=2e4 * eps, rtol=0)


def test_bits_do_not_depend_on_threads() -> None:
    x, _ = kronecker.ridged(factors(128, torch.float32))
    threads = torch.get_num_threads()
    found = []
    try:
        for some in (1, 2, 3):
            torch.set_num_threads(some)
            found.append(native_tiles._orthogonal(x.clone()))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
