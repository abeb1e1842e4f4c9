"""The C++ passes: built where there is a compiler, the same bits for any number of threads, the loop's numbers."""

import shutil
import warnings

import pytest
import torch

from arturo import Arturo
from arturo.kernels import native
from arturo.kernels.eager import PIECE

BUFFERS = ("prec", "a", "b", "P_aa", "P_ab", "P_bb")
needs_extension = pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler")
def test_extension_is_built_where_it_can_be():
    assert native.available(), "pip install -e . should have built arturo.kernels._native"


def train(dtype=torch.float32, steps=12, threads=1, missing=False, **options):
    generator = torch.Generator().manual_seed(0)
    shapes = [(300, 70), (), (0,), (8, 4, 3, 3), (PIECE + 17,)]
    params = [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]
    params[3].data = params[3].data.contiguous(memory_format=torch.channels_last)
    optimizer = Arturo(params, **options)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(steps):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator).to(dtype)
                if missing and p.dim() == 2:
                    p.grad[0, ::7] = float("nan")
                    p.grad[1, ::5] = 1e30
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    return params, optimizer


@needs_extension
def test_same_bits_for_any_number_of_threads():
    runs = [train(threads=threads, fused=True) for threads in (1, 2, 5)]
    for params, optimizer in runs[1:]:
        assert optimizer.last_step == runs[0][1].last_step
        for p, q in zip(params, runs[0][0], strict=True):
            assert torch.equal(p, q)
            assert all(torch.equal(optimizer.state[p][name], runs[0][1].state[q][name]) for name in BUFFERS)


@needs_extension
@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    # Without the floor a denominator may come near 0 and blow the last bit of eta up: there eta is given.
    [{}, {"weight_decay": 0.1, "maximize": True}, {"init": "gradient", "curvature_floor": None, "eta": 2.0}],
)
@pytest.mark.parametrize("missing", [False, True])
def test_native_equals_the_loop(dtype, options, missing):
    """Value for value up to the last bits, missing observations and channels_last among them."""
    ours, optimizer = train(dtype, missing=missing, fused=True, **options)
    theirs, loop = train(dtype, missing=missing, foreach=False, **options)
    assert optimizer.last_step.skipped == loop.last_step.skipped == (24 if missing and dtype == torch.float32 else 10 * missing)
    eps = torch.finfo(dtype).eps
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=200 * eps, atol=200 * eps)
        for name in BUFFERS:
            torch.testing.assert_close(optimizer.state[p][name], loop.state[q][name], rtol=200 * eps, atol=200 * eps)


@needs_extension
def test_layouts_it_cannot_take_go_to_the_loop():
    """A transposed parameter and a gradient of another layout step like their contiguous twins."""
    start, grad = torch.randn(6, 5), torch.randn(6, 5)
    plain = torch.nn.Parameter(start.clone())
    turned = torch.nn.Parameter(start.t().contiguous().t())
    for p, g in ((plain, grad), (turned, grad.clone())):
        optimizer = Arturo([p], fused=True)
        for _ in range(3):
            p.grad = g
            optimizer.step()
    torch.testing.assert_close(plain, turned, rtol=1e-6, atol=1e-7)


def test_foreach_and_fused_exclude_each_other():
    p = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"foreach.*fused=True"):
        Arturo([p], fused=True, foreach=True)


def test_without_the_extension_the_loop_serves_and_says_so_once(monkeypatch):
    monkeypatch.setattr(native, "_library", None)
    native.say_once_that_it_is_missing.cache_clear()
    with pytest.warns(UserWarning, match=r"C\+\+ kernel was not built .* fall back to the eager kernel"):
        _, optimizer = train()
    assert optimizer.last_step.active
    optimizer.step()  # a second warning would be an error here


def test_what_was_asked_for_says_nothing(monkeypatch):
    monkeypatch.setattr(native, "_library", None)
    native.say_once_that_it_is_missing.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for options in ({"foreach": False}, {"foreach": True}, {"fused": False}, {"capturable": True}):
            train(steps=1, **options)
    assert not caught


@pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")
def test_an_extension_of_other_sources_is_not_used(monkeypatch):
    """An editable install keeps the old one after a pull: its structs may have other fields."""
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    with pytest.warns(UserWarning, match=rf"other sources .*is number {native.VERSION - 1}, not {native.VERSION}.* Install"):
        assert native._load() is None
    monkeypatch.undo()
    assert native._load() is not None
