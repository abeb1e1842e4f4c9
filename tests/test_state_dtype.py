"""State in bfloat16: 12 bytes per weight, unbiased, positive definite, the same bits in every kernel and after a resume."""

import copy
import io
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arturo import Arturo
from arturo.core import rounding
from arturo.core.dual import SUM_ERROR
from arturo.kernels import native
from arturo.kernels.batch import Constants, Row
from arturo.kernels.eager import EagerSweep
from arturo.kernels.foreach import ForeachSweep
from arturo.kernels.native import NativeSweep
from arturo.surrogates import kalman
from arturo.surrogates.kalman import FACTORED, KALMAN

ROUNDED = ("prec", "a", "b", "P_aa", "P_slope", "P_rest")
BF16 = {"state_dtype": torch.bfloat16}
WAYS = {"default": {}, "loop": {"foreach": False}, "foreach": {"foreach": True}, "capturable": {"capturable": True}}
needs_extension = pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")


def test_twelve_bytes_per_weight(quadratic):
    params = quadratic.params([(40, 30)])
    optimizer = Arturo(params, **BF16)
    quadratic.train(optimizer, 2)
    state = optimizer.state[params[0]]
    assert set(state) == {*ROUNDED, "step", "eta", "scale"}
    assert all(state[name].dtype == torch.bfloat16 for name in ROUNDED)
    assert sum(state[name].numel() * state[name].element_size() for name in ROUNDED) == 12 * 1200


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_dtypes_and_a_bound_that_holds(way, dtype, quadratic):
    """Every parameter dtype; a half-precision parameter keeps its float32 mean."""
    params = quadratic.params([(4, 3), (), (3,)], dtype)
    optimizer = Arturo(params, kl_bound=0.01, **WAYS[way], **BF16)
    for info in quadratic.train(optimizer, 30):
        assert info.kl <= info.bound * (1 + 1e-3)
        assert not info.active or info.kl >= info.bound * (1 - 1e-3)
    for p in params:
        state = optimizer.state[p]
        assert all(state[name].dtype == torch.bfloat16 for name in ROUNDED)
        assert all(bool((state[name] > 0).all()) for name in ("prec", "P_aa", "P_rest"))
        assert ("mean" in state) == (dtype in (torch.bfloat16, torch.float16))
        assert p.isfinite().all()


K = Constants(
    q=0.03, r=1.0, rho=0.1, rho_lam=0.00015, nu=1.3, floor=0.0, a_0=0.1, consistent=True, averaging=(0.9, 0.9), factor=-0.7,
    decay=0.999,
)  # fmt: skip


def rows(shapes, state=torch.bfloat16, dtype=torch.float32, missing=False, first=False, offset=0):
    """One made-up group in the middle of a training."""
    g = torch.Generator().manual_seed(0)
    mean = [torch.randn(s, generator=g) * 0.3 for s in shapes]
    param = mean if dtype == torch.float32 else [m.to(dtype) for m in mean]
    grad = [(torch.randn(s, generator=g) * 0.01).to(dtype) for s in shapes]
    if missing:
        grad[0].view(-1)[::7] = float("nan")
    ranges = ((0.5, 2), (0.05, 0.2), (-0.01, 0.01), (0.1, 0.2), (-0.02, 0.02), (0.1, 0.2))
    buffers = [[(torch.rand(s, generator=g) * (hi - lo) + lo).to(state) for s in shapes] for lo, hi in ranges]
    surrogate = FACTORED if state == torch.bfloat16 else KALMAN
    made = []
    for i, (prec, a, b, *P) in enumerate(zip(*buffers, strict=True)):
        step, eta = torch.ones(()), torch.ones((), dtype=torch.float64)
        made.append(
            Row(param[i], grad[i], mean[i], prec, a, b, tuple(P), surrogate, step, eta, first, seed=5 + i, starts=(offset,))
        )
    return made


def passes(kernel, group):
    sweep = kernel(group, K)
    sums = [sweep.observe(0.3, 1.0), sweep.probe(0.5, 0.7), sweep.move(0.3, 1.0, 1.0)]
    return [lines.sum(0) for lines in sums]


@needs_extension
@pytest.mark.parametrize("state", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("missing", [False, True], ids=["seen", "missing"])
@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("offset", [0, 37, 2**32 - 300], ids=["whole", "shard", "far"])
def test_every_kernel_writes_the_same_bits(state, dtype, missing, first, offset):
    """Given the trial eta, state and parameters are the same bits in C++, in the loop and in ``_foreach``."""
    shapes = [(1000,), (7,), (5001,), (3, 4)]
    ours = {kernel: rows(shapes, state, dtype, missing, first, offset) for kernel in (NativeSweep, EagerSweep, ForeachSweep)}
    sums = {kernel: passes(kernel, group) for kernel, group in ours.items()}
    for kernel in (NativeSweep, ForeachSweep):
        for row, expected in zip(ours[kernel], ours[EagerSweep], strict=True):
            pairs = zip(row.tensors, expected.tensors, strict=True)
            assert all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in pairs)
        for lines, expected in zip(sums[kernel], sums[EagerSweep], strict=True):
            torch.testing.assert_close(lines, expected, rtol=SUM_ERROR, atol=0)


@pytest.mark.parametrize("kernel", [EagerSweep, ForeachSweep, pytest.param(NativeSweep, marks=needs_extension)])
def test_shards_round_like_the_whole(kernel):
    """A parameter in three uneven shards, each of which knows where it begins: the bits of the whole."""
    (whole,), (sharded,) = rows([(2000,)]), rows([(2000,)])
    cuts = [0, 300, 301, 2000]
    shards = [sharded.map(lambda x, i=i, j=j: x[i:j], (i,)) for i, j in itertools.pairwise(cuts)]
    passes(kernel, [whole]), passes(kernel, shards)
    assert all(torch.equal(x, y) for x, y in zip(whole.tensors, sharded.tensors, strict=True))


@needs_extension
def test_channels_last_rounds_by_its_place_in_memory(quadratic):
    params = [p.detach().to(memory_format=torch.channels_last) for p in quadratic.params([(8, 4, 3, 3)])]
    runs = []
    for fused in (None, False):
        p = torch.nn.Parameter(params[0].clone())
        assert p.is_contiguous(memory_format=torch.channels_last)
        optimizer = Arturo([p], eta=2.0, fused=fused, **BF16)
        for t in range(5):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t)).to(memory_format=torch.channels_last)
            optimizer.step()
        runs.append((p, optimizer.state[p]))
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in ROUNDED)


@pytest.mark.parametrize("way", WAYS)
def test_resume_is_bit_identical(way, quadratic, snapshot):
    """Through a file and ``weights_only`` loading, into an optimizer that was made for float32 state."""
    options = {"kl_bound": 0.01, **WAYS[way]}
    straight = Arturo(quadratic.params(), **options, **BF16)
    quadratic.train(straight, 7)
    params = quadratic.twins(straight.param_groups[0]["params"])
    file = io.BytesIO()
    torch.save(straight.state_dict(), file)
    file.seek(0)
    resumed = Arturo(params, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.param_groups[0]["state_dtype"] is torch.bfloat16
    assert all(resumed.state[p][name].dtype == torch.bfloat16 for p in params for name in ROUNDED)
    twin = copy.deepcopy(resumed)
    for optimizer in (straight, resumed, twin):
        quadratic.train(optimizer, 7, start=7)
    assert snapshot(straight) == snapshot(resumed) == snapshot(twin)


def test_float32_state_keeps_its_form_in_an_optimizer_made_for_bfloat16(quadratic, snapshot):
    first = Arturo(quadratic.params(), kl_bound=0.01)
    quadratic.train(first, 3)
    second = Arturo(quadratic.twins(first.param_groups[0]["params"]), kl_bound=0.01, **BF16)
    second.load_state_dict(first.state_dict())
    for optimizer in (first, second):
        quadratic.train(optimizer, 3, start=3)
    assert snapshot(first) == snapshot(second)


def test_groups_may_differ(quadratic):
    params = quadratic.params([(4, 3), (5,)])
    optimizer = Arturo([{"params": params[:1]}, {"params": params[1:], **BF16}], kl_bound=0.01)
    quadratic.train(optimizer, 5)
    assert optimizer.state[params[0]]["a"].dtype == torch.float32
    assert optimizer.state[params[1]]["a"].dtype == torch.bfloat16


# ---- rounding


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(0, 2**16 - 1))
def test_rounding_lands_on_a_neighbour(x, draw):
    x = torch.tensor([x])
    rounded = rounding.round_randomly(x, torch.tensor([draw])).float()
    exact = x.to(torch.float64)
    below = (x.view(torch.int32) >> 16 << 16).view(torch.float32).double()
    above = ((x.view(torch.int32) >> 16) + 1 << 16).view(torch.float32).double()
    assert rounded.double() in (below, above)
    assert abs(below) <= abs(exact) <= abs(above)
    if exact == below:
        assert rounded == exact  # what fits stays


def test_rounding_is_unbiased():
    """Over steps, one number's mean is itself: 4096 draws, five standard errors."""
    n = 512
    x = torch.linspace(1, 2, n)
    ulp = 2.0**-7
    total = torch.zeros(n, dtype=torch.float64)
    steps = 4096
    entry = torch.arange(n)
    for t in range(steps):
        total += rounding.round_randomly(x, rounding.draw(rounding.seed(t, 3), entry, 0)).double()
    error = (total / steps - x.double()).abs()
    assert error.max() < 5 * 0.5 * ulp / steps**0.5
    assert error.mean() > 0.02 * ulp / steps**0.5  # it is random at all


def test_draws_do_not_repeat_each_other():
    """Between steps, parameters, buffers and neighbouring entries correlations are those of chance."""
    n = 1 << 16
    entry = torch.arange(n)
    base = rounding.draw(rounding.seed(10, 0), entry, 0).double()
    assert base.min() >= 0 and base.max() < 2**16
    histogram = torch.histc(base, 64, 0, 2**16)
    assert ((histogram - n / 64).square() / (n / 64)).sum() < 63 + 6 * (2 * 63) ** 0.5
    others = {
        "step": rounding.draw(rounding.seed(11, 0), entry, 0),
        "parameter": rounding.draw(rounding.seed(10, 1), entry, 0),
        **{f"buffer {i}": rounding.draw(rounding.seed(10, 0), entry, i) for i in range(1, 6)},
        **{f"neighbour {i}": base.roll(i) for i in (1, 2, 3, 8, 16, 256)},
    }
    for name, other in others.items():
        r = torch.corrcoef(torch.stack([base, other.double()]))[0, 1].item()
        assert abs(r) < 6 / n**0.5, (name, r)


# ---- the factor


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 1e-6, 0.03, 10.0]), st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_factor_is_the_filter(seed, q, r):
    """P_aa, P_slope, P_rest follow P_aa, P_ab, P_bb of the plain form in float64, missing entries included."""
    g = torch.Generator().manual_seed(seed)
    n = 16
    a, b = torch.randn(2, n, generator=g, dtype=torch.float64)
    P_aa, P_bb = torch.rand(2, n, generator=g, dtype=torch.float64) + 0.1
    P_ab = (torch.rand(n, generator=g, dtype=torch.float64) * 1.8 - 0.9) * (P_aa * P_bb).sqrt()
    plain = (a, b, P_aa, P_ab, P_bb)
    factored = (a, b, P_aa, P_ab / P_aa, P_bb - P_ab**2 / P_aa)
    for _ in range(5):
        m, grad = torch.randn(2, n, generator=g, dtype=torch.float64)
        seen = torch.rand(n, generator=g) > 0.2
        plain = kalman.filter_update(*plain, grad, seen, m, q, r)
        factored = kalman.factored_update(*factored, grad, seen, m, q, r)
    a, b, P_aa, slope, rest = factored
    for ours, expected in zip((a, b, P_aa, slope * P_aa, rest + slope**2 * P_aa), plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("q", [0.0, 1e-8, 0.02, 1.0])
@pytest.mark.parametrize("fused", [pytest.param(None, marks=needs_extension), False])
def test_positive_definite_over_thousands_of_steps(q, fused):
    """Weights from 1e-3 to 1e3 that hardly move: where P nearly loses its rank."""
    p = torch.nn.Parameter(torch.logspace(-3, 3, 64))
    optimizer = Arturo([p], kl_bound=1e-6, drift=q, initial_filter_variance=1.0, fused=fused, **BF16)
    for t in range(3000 if fused is None else 500):
        p.grad = torch.randn(64, generator=torch.Generator().manual_seed(t))
        optimizer.step()
    state = optimizer.state[p]
    assert all(state[name].isfinite().all() for name in ROUNDED)
    assert (state["P_aa"] > 0).all() and (state["P_rest"] > 0).all() and (state["prec"] > 0).all()


def test_it_follows_the_float32_run(quadratic):
    """The noise of rounding does not carry the run away: where float32 state goes, bfloat16 state goes."""
    ends = []
    for options in ({}, BF16):
        params = quadratic.params([(2000,)])
        quadratic.train(Arturo(params, kl_bound=1.0, **options), 300)
        ends.append(params[0].detach())
    moved = (ends[0] - quadratic.params([(2000,)])[0].detach()).norm()
    assert (ends[0] - ends[1]).norm() < 0.1 * moved
