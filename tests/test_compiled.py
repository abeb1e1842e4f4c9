"""The generated kernels: the eager numbers, one graph per pass whatever the sizes and numbers, real code at least once."""

import functools
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._inductor import config as inductor

from arturo import PAPER, Arturo
from arturo.kernels import compiled, native

SHAPES = ((4, 3), (5,), (), (2, 0), (3,), (8, 4, 3, 3))
BUFFERS = ("prec", "a", "b", "P_aa", "P_ab", "P_bb")
needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"
)
OPTIONS = {
    "default": {},
    "decay-maximize": {"weight_decay": 0.9, "maximize": True},
    "no-prior": {"prior_precision": 0.0},
    "paper": PAPER,
    "fixed-eta": {"eta": 2.0},
    "rounded": {"state_dtype": torch.bfloat16},
}


CASES = [
    ("default", torch.float32, False),
    ("default", torch.float64, True),
    ("decay-maximize", torch.bfloat16, False),
    ("no-prior", torch.float32, False),
    ("paper", torch.float32, True),
    ("fixed-eta", torch.float64, False),
    ("rounded", torch.float32, False),
    ("rounded", torch.bfloat16, True),
]


@pytest.fixture
def traced(monkeypatch):
    """The kernels as graphs that torch runs operation by operation: quick, and all that is not code generation."""
    counter = CompileCounter()
    torch._dynamo.reset()
    kernels = functools.cache(lambda function: torch.compile(function, dynamic=True, fullgraph=True, backend=counter))
    monkeypatch.setattr(compiled, "_compiled", kernels)
    monkeypatch.setattr(native, "_library", None)  # fused=True on the CPU is then the compiled kernel
    yield counter
    torch._dynamo.reset()


@pytest.mark.parametrize(("options", "dtype", "capturable"), CASES, ids=str)
def test_the_eager_numbers(options, dtype, capturable, traced, quadratic):
    """To rounding, state included; single entries and empty tensors go to the eager kernel."""
    runs = []
    for fused in (True, False):
        params = quadratic.params(SHAPES, dtype)
        optimizer = Arturo(params, kl_bound=0.01, fused=fused, capturable=capturable, **OPTIONS[options])
        info = quadratic.train(optimizer, 4)
        runs.append((optimizer, params, info))
    (ours, p, info), (eager, q, expected) = runs
    assert traced.frame_count > 0
    for x, y in zip(info, expected, strict=True):
        assert x == pytest.approx(y, rel=1e-6)
    for x, y in zip(p, q, strict=True):
        torch.testing.assert_close(x, y)
        for name, value in eager.state[y].items():
            torch.testing.assert_close(ours.state[x][name], value)


@pytest.mark.parametrize("capturable", [False, True], ids=["host", "capturable"])
def test_nothing_compiles_twice(capturable, traced, quadratic):
    """New sizes, another lr, bound, noise or number of tensors: the same four graphs."""
    first = Arturo(quadratic.params([(40, 3), (50,)]), kl_bound=0.01, weight_decay=1.0, fused=True, capturable=capturable)
    quadratic.train(first, 3)
    made = traced.frame_count
    first.param_groups[0]["lr"] = 0.1
    quadratic.train(first, 3)  # the milestone wants a probe
    made = max(made, traced.frame_count)
    assert made <= 4
    other = Arturo(quadratic.params([(7, 9), (31,), (600,)]), kl_bound=0.5, weight_decay=0.015, noise=2.0, drift=0.1,
                   prior_weight=0.3, initial_curvature=0.2, fused=True, capturable=capturable)  # fmt: skip
    quadratic.train(other, 2)
    first.param_groups[0]["noise"] = 3.0
    quadratic.train(first, 2)
    assert traced.frame_count <= 4


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
def test_missing_observations(traced, quadratic):
    params = quadratic.params([(30,)])
    optimizer = Arturo(params, kl_bound=0.01, fused=True)
    quadratic.gradients(params, 0)
    params[0].grad[:7] = float("nan")
    optimizer.step()
    assert optimizer.last_step.skipped == 7 and params[0].isfinite().all()


@needs_compiler
@pytest.mark.parametrize("capturable", [False, True], ids=["host", "capturable"])
def test_real_code(capturable, quadratic, monkeypatch):
    """Inductor's kernels against the eager ones, float32, over sizes on both sides of its vectors' length."""
    monkeypatch.setattr(native, "_library", None)
    runs = []
    for fused in (True, False):
        params = quadratic.params([(2000,), (5,), (3, 70)])
        optimizer = Arturo(params, kl_bound=0.01, weight_decay=1.0, fused=fused, capturable=capturable)
        info = quadratic.train(optimizer, 5)
        runs.append((optimizer, params, info))
    (ours, p, info), (eager, q, expected) = runs
    for x, y in zip(info, expected, strict=True):
        assert x == pytest.approx(y, rel=1e-6)
    for x, y in zip(p, q, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
        for name in BUFFERS:
            torch.testing.assert_close(ours.state[x][name], eager.state[y][name], rtol=1e-5, atol=1e-6)


def test_fused_where_no_kernel_can_be_had(monkeypatch, quadratic):
    """No extension and no compiler: an error that says so, and what to use; nothing moved."""
    monkeypatch.setattr(native, "_library", None)
    compiled._compiled.cache_clear()
    torch._dynamo.reset()
    params = quadratic.params([(33,)], torch.float64)
    before = params[0].detach().clone()
    optimizer = Arturo(params, fused=True)
    quadratic.gradients(params, 0)
    settings = {"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}
    with (
        inductor.patch(settings),  # not by monkeypatch, which takes an alias away for the tests to come
        pytest.raises(RuntimeError, match=r"fused=True: torch.compile could not make .*not built.*Use fused=None"),
    ):
        optimizer.step()
    assert torch.equal(params[0], before)
    torch._dynamo.reset()
