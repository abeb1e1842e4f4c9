"""Shapes and memory layouts: scalars, empty tensors, strides, complex numbers, tensors larger than a piece."""

import copy

import pytest
import torch

from arturo import AdaArturo, Arturo
from arturo.kernels import eager


def draw(seed, shape, dtype=torch.float32):
    kind = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=kind).to(dtype)


def as_real(x):
    return (torch.view_as_real(x) if x.is_complex() else x).detach().clone()


LAYOUTS = {
    "transposed": lambda seed, dtype: draw(seed, (5, 6), dtype).t(),
    "sliced": lambda seed, dtype: draw(seed, (6, 10), dtype)[:, ::2],
    "channels_last": lambda seed, dtype: draw(seed, (2, 3, 4, 5), dtype).to(memory_format=torch.channels_last),
    "larger than a piece": lambda seed, dtype: draw(seed, (300, 200), dtype).t(),
}
SMALL = {name: make for name, make in LAYOUTS.items() if name != "larger than a piece"}  # only Arturo's kernel has pieces


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("eta", [None, 2.0], ids=["newton", "fixed"])
def test_any_layout_equals_contiguous(make, dtype, eta, kernel, quadratic):
    """Entry by entry the same arithmetic (eta fixed: the same bits); the sums may take another order."""
    p, twin = torch.nn.Parameter(make(0, dtype)), torch.nn.Parameter(make(0, dtype).contiguous())
    assert not p.is_contiguous() and twin.is_contiguous()
    strides, place = p.stride(), p.data_ptr()
    optimizer, plain = Arturo([p], eta=eta, **kernel), Arturo([twin], eta=eta, **kernel)
    for t in range(3):
        p.grad = make(t + 1, dtype)
        twin.grad = p.grad.contiguous()
        optimizer.step()
        plain.step()
    assert p.stride() == strides and p.data_ptr() == place
    tolerance = {"rtol": 0, "atol": 0} if eta else {"rtol": 1e-5, "atol": 1e-6}
    for name, x in optimizer.state[p].items():
        torch.testing.assert_close(x, plain.state[twin][name], **tolerance, check_stride=False)
    if dtype == torch.float32 or eta:
        torch.testing.assert_close(p, twin, **tolerance, check_stride=False)


@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_any_layout_equals_contiguous_to_adaarturo(make, dtype, geometry):
    """The same steps but for the order of sums; strides and storage stay, and a saved layout continues."""
    p, twin = torch.nn.Parameter(make(0, dtype)), torch.nn.Parameter(make(0, dtype).contiguous())
    assert not p.is_contiguous() and twin.is_contiguous()
    strides, place = p.stride(), p.data_ptr()
    optimizer, plain = AdaArturo([p], **geometry), AdaArturo([twin], **geometry)
    for t in range(6):
        p.grad = make(t + 1, dtype)
        twin.grad = p.grad.contiguous()
        optimizer.step()
        plain.step()
        if t == 3:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert p.stride() == strides and p.data_ptr() == place
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    assert set(optimizer.state[p]) == set(plain.state[twin])
    for name in ("r", "mean"):  # M and the bases are known but for the signs of the bases' columns
        if name in optimizer.state[p]:
            torch.testing.assert_close(optimizer.state[p][name], plain.state[twin][name], **tolerance, check_stride=False)
    torch.testing.assert_close(p, twin, **tolerance, check_stride=False)


def test_a_saved_layout_continues(kernel, quadratic, snapshot):
    """State of a channels_last parameter through save and load: the same bits as without the stop."""
    params = [torch.nn.Parameter(LAYOUTS[name](0, torch.float32)) for name in ("channels_last", "transposed")]
    optimizer = Arturo(params, **kernel)
    quadratic.train(optimizer, 3)
    twins = quadratic.twins(params)
    assert [q.stride() for q in twins] == [p.stride() for p in params]
    resumed = Arturo(twins, **kernel)
    resumed.load_state_dict(optimizer.state_dict())
    quadratic.train(optimizer, 3, start=3)
    quadratic.train(resumed, 3, start=3)
    assert snapshot(optimizer) == snapshot(resumed)


def test_scalars_equal_one_element_tensors(every, quadratic):
    """The same bits, on the device too, where torch would promote 0-d float32 times 0-d float64."""
    params = quadratic.params([(), ()])
    twins = [torch.nn.Parameter(p.detach().clone().reshape(1)) for p in params]
    optimizer, plain = every(params), every(twins)
    for t in range(4):
        quadratic.gradients(params, t)
        for p, twin in zip(params, twins, strict=True):
            twin.grad = p.grad.reshape(1)
        optimizer.step()
        plain.step()
        assert optimizer.last_step == plain.last_step
    for p, twin in zip(params, twins, strict=True):
        assert p.shape == () and all(x.shape == () for x in optimizer.state[p].values())
        assert torch.equal(p, twin[0])
        for name, x in optimizer.state[p].items():
            assert torch.equal(x.reshape(-1), plain.state[twin][name].reshape(-1)), name


@pytest.mark.parametrize("kl_bound", [None, 0.01])
def test_nothing_but_empty_tensors(kl_bound, kernel, quadratic):
    kernel["kl_bound"] = kl_bound
    params = quadratic.params([(0,), (3, 0, 2)])
    optimizer = Arturo(params, **kernel)
    for info in quadratic.train(optimizer, 2):
        assert (info.eta, info.kl, info.active, info.skipped) == (0.0, 0.0, False, 0)
    assert all(optimizer.state[p]["prec"].shape == p.shape for p in params)


def test_nothing_but_empty_tensors_for_adaarturo(geometry, quadratic):
    params = quadratic.params([(0,), (3, 0, 2)])
    optimizer = AdaArturo(params, **geometry)
    assert quadratic.train(optimizer, 2) == [(0.0, 0.0, 0.0, 0, False, 0)] * 2
    assert all(optimizer.state[p]["M"].shape == p.shape for p in params)


def test_empty_tensors_change_nothing_for_the_others(every, quadratic, snapshot):
    params, empty = quadratic.params([(4, 3), (2,)]), quadratic.params([(0,), (3, 0)])
    optimizer = every([*params, *empty])
    plain = every(quadratic.params([(4, 3), (2,)]))
    for t in range(4):
        assert quadratic.train(optimizer, 1, t) == quadratic.train(plain, 1, t)
    assert snapshot(optimizer, params) == snapshot(plain)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_parameters_are_their_real_twins(dtype, every, snapshot):
    """Parameter, state and last_step, bit for bit; in one group with a real parameter. AdaArturo's: on the diagonal."""
    own = every.kind is Arturo
    # AdaArturo's least size goes by the columns, of which the twin has twice as many: its tensors are larger than that.
    kinds = [((4, 3, 2), dtype), *([((), dtype)] if own else []), ((5,), dtype.to_real())]
    params = [torch.nn.Parameter(draw(i, *kind)) for i, kind in enumerate(kinds)]
    twins = [torch.nn.Parameter(as_real(p)) for p in params]
    diagonal = {} if own else {"covariance": "diagonal"}
    optimizer, plain = every(params, **diagonal), every(twins, **diagonal)
    for t in range(4):
        for i, (p, twin) in enumerate(zip(params, twins, strict=True)):
            p.grad = draw(10 * t + i, p.shape, p.dtype)
            twin.grad = as_real(p.grad)
        optimizer.step()
        plain.step()
        assert optimizer.last_step == plain.last_step
    assert all(torch.equal(as_real(p), twin) for p, twin in zip(params, twins, strict=True))
    assert [state for _, state in snapshot(optimizer)] == [state for _, state in snapshot(plain)]


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (3, 2, 2)], ids=str)
def test_complex_parameters_train(shape, geometry):
    """Towards 1 + 2i, from anywhere; a gradient that still carries torch's conjugate flag is its value."""
    start = draw(0, shape, torch.complex64)
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [AdaArturo([p], **{**geometry, "lr": 0.03}) for p in params]
    for t in range(300):
        grad = params[0].detach() - (1 + 2j) + 0.1 * draw(t, shape, torch.complex64)
        params[0].grad, params[1].grad = grad, grad.conj().resolve_conj().conj()
        assert params[1].grad.is_conj()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(*params)
    assert (params[0].detach() - (1 + 2j)).abs().max() < 0.3 * (start - (1 + 2j)).abs().max()


def test_lazily_conjugated_gradients(kernel):
    """A complex gradient that still carries torch's conjugate flag is its value."""
    g = torch.randn(4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    params = [torch.nn.Parameter(torch.ones(4, dtype=torch.complex64)) for _ in range(2)]
    params[0].grad, params[1].grad = g.conj(), g.conj().resolve_conj()
    assert params[0].grad.is_conj()
    for p in params:
        Arturo([p], **kernel).step()
    assert torch.equal(*params)
    assert params[0].grad.is_conj()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [eager.PIECE + 1, 2 * eager.PIECE])
def test_tensors_larger_than_a_piece(dtype, size, monkeypatch, quadratic, snapshot):
    """Split or whole: with eta fixed the same bits, with the dual the same step to rounding of the sums."""

    def run(eta):
        params = quadratic.params([(size,), (3,)], dtype)
        optimizer = Arturo(params, eta=eta, kl_bound=0.01, weight_decay=0.9, foreach=False)
        quadratic.train(optimizer, 3)
        return optimizer, params

    split, split_newton = run(2.0), run(None)
    with monkeypatch.context() as patched:
        patched.setattr(eager, "PIECE", 10**9)
        whole, whole_newton = run(2.0), run(None)
    for x, y in zip(split[1], whole[1], strict=True):
        assert torch.equal(x, y)
        assert all(torch.equal(value, whole[0].state[y][name]) for name, value in split[0].state[x].items())
    for x, y in zip(split_newton[1], whole_newton[1], strict=True):
        for name, value in split_newton[0].state[x].items():
            torch.testing.assert_close(value, whole_newton[0].state[y][name], rtol=1e-5, atol=1e-6)
    assert split_newton[0].last_step == pytest.approx(whole_newton[0].last_step, rel=1e-9)


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
def test_pieces_count_missing_entries_and_first_observations(monkeypatch, quadratic):
    """Small pieces, some without one seen entry, one parameter new: the same as whole."""

    def run():
        params = quadratic.params([(4, 5), (9,)])
        optimizer = Arturo(params, eta=2.0, kl_bound=0.01, foreach=False)
        quadratic.train(optimizer, 2, params=params[:1])
        quadratic.gradients(params, 2)
        params[0].grad.view(-1)[3:16] = float("nan")
        params[1].grad[8] = float("inf")
        optimizer.step()
        assert optimizer.last_step.skipped == 14
        return optimizer, params

    whole, params = run()
    monkeypatch.setattr(eager, "PIECE", 4)
    split, twins = run()
    for p, twin in zip(params, twins, strict=True):
        assert torch.equal(p, twin)
        assert all(torch.equal(x, split.state[twin][name]) for name, x in whole.state[p].items())
