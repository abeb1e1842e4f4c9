"""Every implementation of AdaArturo's step against the plain loop, which the oracle is held to: weights, state, last_step."""

import copy

import pytest
import torch

from arturo import AdaArturo, kronecker, minimal
from arturo import reference_adaptive as oracle
from arturo.kernels import native
from arturo.kernels.adaptive import choice
from arturo.kernels.adaptive import row as rows
from arturo.surrogates import learned

SHAPES = ((3, 4), (8, 8), (4, 2, 2), (40, 24), (24, 40), (6, 13), (5,), (700,), ())
WAYS = {
    "best": {},
    "foreach": {"foreach": True},
    "compiled": {"fused": True},
    "capturable": {"capturable": True},
    "capturable-foreach": {"capturable": True, "foreach": True},
}

BFLOAT16_STATE = {"state_dtype": torch.bfloat16}


@pytest.fixture
def no_extension(monkeypatch):
    """As where there was no compiler at install."""
    monkeypatch.setattr(native, "_library", None)


def train(optimizer, params, steps, gaps=False):
    for t in range(steps):
        for i, p in enumerate(params):
            generator = torch.Generator().manual_seed(1000 * t + i)
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            g = 0.5 * (p.detach().double() - 1) + (1 + 0.1 * i) * noise
            if gaps and t % 3 == 0:
                g = torch.where(torch.rand(p.shape, generator=generator) < 0.05, float("nan"), g)
            p.grad = g.to(p.dtype)
        optimizer.step()
        yield optimizer.last_step


def start(dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in SHAPES]


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_takes_the_same_steps(way, covariance, gaps, request):
    """In float64, where rounding does not choose a basis."""
    flags = WAYS[way]
    if flags.get("capturable") and covariance == "kronecker":
        pytest.skip("a captured graph cannot refresh a basis")
    if way == "compiled":
        if covariance == "kronecker":
            pytest.skip("nothing is compiled there but the vectors")
        request.getfixturevalue("no_extension")
    options = {"lr": 0.01, "covariance": covariance, "block": 8, "refresh": 4, "weight_decay": 0.5}
    ours, plain = start(torch.float64), start(torch.float64)
    one, other = AdaArturo(ours, **options, **flags), AdaArturo(plain, **options, foreach=False)
    pairs = zip(train(one, ours, 40, gaps), train(other, plain, 40, gaps), strict=True)
    for t, (info, wanted) in enumerate(pairs):
        assert tuple(info) == pytest.approx(tuple(wanted), rel=1e-8), t
    for p, q in zip(ours, plain, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-8, atol=1e-10)
        for name, x in one.state[p].items():
            torch.testing.assert_close(x, other.state[q][name], rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("flags", [{}, {"foreach": True}], ids=["best", "foreach"])
def test_narrow_parameters_on_the_diagonal(flags, dtype):
    options = {"lr": 0.01, "covariance": "diagonal", "maximize": True}
    ours, plain = start(dtype), start(dtype)
    one, other = AdaArturo(ours, **options, **flags), AdaArturo(plain, **options, foreach=False)
    for info, wanted in zip(train(one, ours, 20), train(other, plain, 20), strict=True):
        assert tuple(info) == pytest.approx(tuple(wanted), rel=1e-3)
    for p, q in zip(ours, plain, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=2e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
@pytest.mark.parametrize("outlier", [1.0, 30.0], ids=["trusted", "outlier"])
def test_a_filter_that_anticipates_full_trust(outlier):
    """C++ moves M before it knows how far an innovation is trusted; the loop after it. Missing entries keep their M."""
    if not native.available():
        pytest.skip("the C++ extension was not built")
    ours, plain = start(torch.float32), start(torch.float32)
    one, other = AdaArturo(ours, covariance="diagonal"), AdaArturo(plain, covariance="diagonal", foreach=False)
    for t in range(1, 9):
        before = [one.state[p]["M"].clone() for p in ours if t > 1]
        for i, (p, q) in enumerate(zip(ours, plain, strict=True)):
            g = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * t + i))
            if t == 8:
                g *= 0.5 * outlier
                g.view(-1)[0] = float("nan")
            p.grad = q.grad = g
        one.step()
        other.step()
    for p, q, M in zip(ours, plain, before, strict=True):
        torch.testing.assert_close(one.state[p]["M"], other.state[q]["M"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-5, atol=1e-7)
        moved, full = (x.flatten() for x in (one.state[p]["M"] - M, learned.filter_gain(0.9, 8) * (p.grad - M)))
        assert moved[0] == 0
        trust = moved[1:] / full[1:]
        assert (trust > 0.999).all() if outlier == 1 else (trust < 0.95).all()


def test_the_number_of_threads_changes_no_bit(snapshot):
    """Of the C++ passes; products of matrices are the BLAS's affair."""
    if not native.available():
        pytest.skip("the C++ extension was not built")
    shapes, before, ends = ((256, 256), (100_003,), (64,)), torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        optimizer = AdaArturo(params, covariance="diagonal")
        infos = list(train(optimizer, params, 4))
        ends.append((snapshot(optimizer), infos))
    torch.set_num_threads(before)
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
@pytest.mark.parametrize(("dtype", "flags"), [(torch.float64, {}), (torch.bfloat16, {}), (torch.float32, BFLOAT16_STATE)])
def test_bands_are_the_whole_tensor(dtype, flags, monkeypatch):
    """The same missing tiles, turns to refresh, and bits of the rounding; but for the order in which sums are added."""
    ends = []
    for entries in (60, 1 << 30):
        monkeypatch.setattr(rows, "BAND", {True: entries})
        generator = torch.Generator().manual_seed(0)
        shapes = (24, 20), (16, 4, 3), (120, 2), (90,)  # the last two are diagonal
        params = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
        params.append(torch.nn.Parameter(torch.randn(2, 100, generator=generator).to(dtype).T))  # columns first
        optimizer = AdaArturo(params, block=4, foreach=False, **flags)
        infos = list(train(optimizer, params, 22, gaps=True))
        state = torch.cat([optimizer.state[p][name].flatten().double() for p in params for name in ("M", "r")])
        ends.append((torch.cat([p.detach().flatten().double() for p in params]), state, infos[-1].eta))
    some, whole = ends
    if dtype == torch.float64:
        torch.testing.assert_close(some, whole, rtol=1e-9, atol=1e-12)
    else:  # where a last bit of a sum differs some numbers are rounded otherwise
        assert min((x == y).float().mean() for x, y in zip(some[:2], whole[:2], strict=True)) > 0.95
        torch.testing.assert_close(some[2], whole[2], rtol=1e-3, atol=0)


@pytest.mark.parametrize("every", [2, 3, 7])
def test_factors_that_count_every_few_steps(every, monkeypatch):
    """The oracle with the same cadence; blocks take turns."""
    monkeypatch.setattr(kronecker, "COUNTED_EVERY", every)
    shapes = {(3, 4): (3, 4), (8, 8): (2, 2), (5,): (None, None)}
    generator = torch.Generator().manual_seed(1)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    pairs = enumerate(zip(params, shapes.values(), strict=True))
    tensors = [oracle.Tensor(p.detach().numpy(), {"counted_every": every}, *side, number=i) for i, (p, side) in pairs]
    optimizer = AdaArturo(params, block=4)
    for info in train(optimizer, params, 60):
        done = oracle.step(tensors, [p.grad.numpy() for p in params])
        assert (info.eta, info.kl) == pytest.approx((done.eta, done.kl), rel=1e-6)
    for p, x in zip(params, tensors, strict=True):
        torch.testing.assert_close(p.detach(), torch.tensor(x.w).view(p.shape), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("every", [1, 4])
def test_the_page_counts_as_the_real_one(every, monkeypatch):
    monkeypatch.setattr(kronecker, "COUNTED_EVERY", every)
    monkeypatch.setattr(minimal, "COUNTED_EVERY", every)
    generator = torch.Generator().manual_seed(2)
    ours = [torch.nn.Parameter(torch.randn(4, 5, generator=generator, dtype=torch.float64)) for _ in range(2)]
    page = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    real, short = AdaArturo(ours, lr=0.01), minimal.MinimalAdaArturo(page, lr=0.01)
    for _, _ in zip(train(real, ours, 40), range(40), strict=True):
        for p, q in zip(ours, page, strict=True):
            q.grad = p.grad
        short.step()
    for p, q in zip(ours, page, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-7, atol=1e-9)


def kinds(**flags):
    """The kernels of a second step."""
    params = [torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))]
    optimizer = AdaArturo(params, **flags)
    list(train(optimizer, params, 1))
    rows = []
    optimizer._init_group(optimizer.param_groups[0], rows, 0, None)
    return sorted(type(kernel).__name__ for kernel in choice.kernels(rows))


def test_what_takes_the_passes():
    """foreach=False is the loop, foreach=True ``_foreach``, fused=True native or compiled, None the best there is."""
    if not native.available():
        pytest.skip("the C++ extension was not built")
    assert kinds() == kinds(fused=True) == ["Native", "NativeTiles"]
    assert kinds(foreach=False) == kinds(fused=False) == ["Eager", "Tiles"]
    assert kinds(foreach=True) == ["Foreach", "Tiles"]
    assert kinds(covariance="diagonal") == ["Native"]
    assert kinds(covariance="diagonal", capturable=True) == ["Eager"]


def test_what_takes_them_without_the_extension(no_extension):
    assert kinds(fused=True) == ["Compiled", "Tiles"]
    assert kinds(fused=False) == ["Eager", "Tiles"]


def test_a_deep_copy_between_steps_takes_the_same_steps(snapshot):
    params = start(torch.float32)
    optimizer = AdaArturo(params, block=8)
    list(train(optimizer, params, 5))
    twins, twin = copy.deepcopy((params, optimizer))
    list(train(optimizer, params, 5))
    list(train(twin, twins, 5))
    assert snapshot(optimizer) == snapshot(twin)


@pytest.mark.parametrize("eps", [0.0, 1e-30, 1e-8, 1e-2])
@pytest.mark.parametrize("size", [1, 15, 16, 33, 5000])
def test_cpp_and_the_loop_agree_for_any_eps(eps, size):
    """Without it, 1 / s is estimated where the processor can; entries that do not fill its registers among them."""
    found = []
    for flags in ({}, {"foreach": False}):
        p = torch.nn.Parameter(torch.linspace(-1, 1, size).view(-1, 1).clone())
        vector = torch.nn.Parameter(torch.linspace(-1, 1, size))
        optimizer = AdaArturo([p, vector], covariance="diagonal", eps=eps, **flags)
        for t in range(6):
            generator = torch.Generator().manual_seed(t)
            for x in (p, vector):
                x.grad = torch.randn(x.shape, generator=generator) * torch.logspace(-12, 3, size).view_as(x)
                x.grad[:: 7 + t] *= 1e3  # outliers: the filter's second half
            optimizer.step()
        found.append((p.detach(), vector.detach()))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=3e-6, atol=1e-6)
