"""AdaArturo's gradients and tensors: absent, frozen, missing, sparse, of any dtype and layout; read and never written."""

import copy
import math
import warnings

import pytest
import torch

from arturo import AdaArturo
from arturo.adaptive_step import PER_LR

NAN, INF = math.nan, math.inf
BAD = {"nan": NAN, "inf": INF, "-inf": -INF, "1e30": 1e30, "-1e30": -1e30}
HALF = [torch.bfloat16, torch.float16]
KEEP = {  # parameter -> buffers, mean
    torch.float16: (torch.float32, True),
    torch.bfloat16: (torch.float32, True),
    torch.float32: (torch.float32, False),
    torch.float64: (torch.float64, False),
    torch.complex64: (torch.float32, False),
    torch.complex128: (torch.float64, False),
}
bad = pytest.mark.parametrize("value", BAD.values(), ids=BAD)
half = pytest.mark.parametrize("dtype", HALF, ids=str)
quiet = pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")


def noise(t, shape, dtype=torch.float32):
    kind = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=torch.Generator().manual_seed(t), dtype=kind).to(dtype)


def all_finite(optimizer):
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [x for state in optimizer.state.values() for x in state.values()]
    return all(torch.isfinite(x).all() for x in tensors)


def as_real(x):
    return (torch.view_as_real(x) if x.is_complex() else x).detach().clone()


# ---- absent, frozen, from a closure


def test_parameters_without_a_gradient_do_not_count(adaptive, quadratic, snapshot):
    """Frozen or unused: not moved, no state, and the others step as if it were not there."""
    params = quadratic.params()
    frozen, unused = torch.nn.Parameter(torch.ones(7), requires_grad=False), torch.nn.Parameter(torch.ones(3))
    optimizer = AdaArturo([*params, frozen, unused], **adaptive)
    alone = AdaArturo(quadratic.params(), **copy.deepcopy(adaptive))
    for t in range(6):
        assert quadratic.train(optimizer, 1, t, params=params) == quadratic.train(alone, 1, t)
    assert snapshot(optimizer, params) == snapshot(alone)
    for p in (frozen, unused):
        assert torch.equal(p, torch.ones_like(p)) and p not in optimizer.state and p.grad is None


def test_nothing_has_a_gradient(geometry, quadratic, snapshot):
    """No crash, no move, no state; neither before the first step nor later."""
    params = quadratic.params()
    before = [p.detach().clone() for p in params]
    optimizer = AdaArturo(params, **geometry)
    optimizer.step()
    assert not optimizer.state and all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    assert optimizer.last_step == (0.0, 0.0, 0.0, 0, False, 0)
    quadratic.train(optimizer, 2)
    optimizer.zero_grad()
    before = snapshot(optimizer)
    optimizer.step()
    assert snapshot(optimizer) == before and optimizer.last_step == (0.0, 0.0, 0.0, 0, False, 0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_layer_frozen_mid_run(which, geometry, quadratic, snapshot):
    """It keeps its bits and its state; the others go on as in an optimizer that never had its later gradients."""
    params = quadratic.params()
    optimizer = AdaArturo(params, **geometry)
    quadratic.train(optimizer, 3)
    copied = copy.deepcopy(optimizer)
    others = [p for i, p in enumerate(copied.param_groups[0]["params"]) if i != which]
    frozen = params.pop(which)
    frozen.requires_grad_(False)
    optimizer.zero_grad()
    copied.zero_grad()
    before = snapshot(optimizer, [frozen])
    for t in range(3, 6):
        assert quadratic.train(optimizer, 1, t, params=params) == quadratic.train(copied, 1, t, params=others)
    assert snapshot(optimizer, [frozen]) == before and snapshot(optimizer, params) == snapshot(copied, others)
    frozen.requires_grad_(True)
    (said,) = quadratic.train(optimizer, 1, start=6)
    assert optimizer.state[frozen]["step"] == 4 and said.skipped == 0 and all_finite(optimizer)


def test_closure(geometry, quadratic, snapshot):
    """Called once, gradients enabled, its loss returned as it is; the same step as without."""
    params, twins = quadratic.params(), quadratic.params()
    optimizer, plain = AdaArturo(params, **geometry), AdaArturo(twins, **geometry)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = sum((p - 1).square().sum() for p in params)
        loss.backward()
        return loss

    for t in range(3):
        loss = optimizer.step(closure)
        assert calls == [True] * (t + 1) and loss.requires_grad
        for p in twins:
            p.grad = 2 * (p.detach() - 1)
        assert plain.step() is None
    assert snapshot(optimizer) == snapshot(plain)
    assert torch.is_grad_enabled() and all(p.requires_grad and p.grad_fn is None for p in params)
    assert not any(x.requires_grad for state in optimizer.state.values() for x in state.values())


def test_maximize_is_minimising_the_negated_gradient(adaptive, quadratic, snapshot):
    turned = {**copy.deepcopy(adaptive), "maximize": not adaptive.get("maximize", False)}
    optimizer, opposite = AdaArturo(quadratic.params(), **adaptive), AdaArturo(quadratic.params(), **turned)
    for t in range(6):
        assert quadratic.train(optimizer, 1, t) == quadratic.train(opposite, 1, t, sign=-1.0)
    assert snapshot(optimizer) == snapshot(opposite)
    assert not torch.equal(optimizer.param_groups[0]["params"][0], quadratic.params()[0])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_goes_downhill(sign, adaptive):
    """On a slope, along each weight: the counter-check of the test above."""
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.tensor([2.0, -1.0, 0.0])
    AdaArturo([p], **{**adaptive, "weight_decay": 0.0, "maximize": sign < 0}).step()
    assert (sign * (p.detach() - 1)).sign().tolist() == [-1.0, 1.0, 0.0]


@pytest.mark.parametrize("position", [0, 1])
def test_sparse_gradients_are_refused(position, geometry, quadratic):
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    dense = quadratic.params([(3,)])[0]
    dense.grad = torch.ones(3)
    embedding(torch.tensor([1, 3])).sum().backward()
    params = [dense, embedding.weight][:: 1 if position else -1]
    optimizer = AdaArturo(params, **geometry)
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match="AdaArturo does not support sparse gradients, please consider SparseAdam"):
        optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))


def test_gradients_are_never_written_and_storage_is_never_replaced(adaptive, quadratic):
    params = quadratic.params() + quadratic.params([(3,)], torch.bfloat16) + quadratic.params([(4, 4)], torch.float64)
    optimizer = AdaArturo(params, **adaptive)
    places = [p.data_ptr() for p in params]
    for t in range(6):
        quadratic.gradients(params, t)
        grads = [p.grad for p in params]
        kept = [g.clone() for g in grads]
        optimizer.step()
        assert all(p.grad is g and torch.equal(g, old) for p, g, old in zip(params, grads, kept, strict=True))
        assert [p.data_ptr() for p in params] == places
        if t == 0:
            state = {p: {name: x.data_ptr() for name, x in optimizer.state[p].items()} for p in params}
    assert state == {p: {name: x.data_ptr() for name, x in optimizer.state[p].items()} for p in params}


def test_step_counts_and_last_step(adaptive, quadratic):
    """As AdamW's ``step``: a float32 tensor under every parameter. What a step says of itself is finite and belongs to it."""
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


# ---- shapes and layouts

LAYOUTS = {
    "transposed": lambda seed, dtype: noise(seed, (5, 6), dtype).t(),
    "sliced": lambda seed, dtype: noise(seed, (6, 10), dtype)[:, ::2],
    "channels_last": lambda seed, dtype: noise(seed, (2, 3, 4, 5), dtype).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_any_layout_equals_contiguous(make, dtype, geometry):
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


def test_gradients_of_any_strides_are_read(geometry, quadratic, snapshot):
    """Transposed, expanded (stride 0) and sliced gradients act like their contiguous copies."""
    params, twins = quadratic.params([(4, 4)] * 3), quadratic.params([(4, 4)] * 3)
    optimizer, plain = AdaArturo(params, **geometry), AdaArturo(twins, **geometry)
    for t in range(3):
        wide = noise(t, (4, 8))
        for p, twin, g in zip(params, twins, (wide[:, :4].t(), wide[0, :1].expand(4, 4), wide[:, ::2]), strict=True):
            assert not g.is_contiguous()
            p.grad, twin.grad = g, g.contiguous()
        optimizer.step()
        plain.step()
    assert snapshot(optimizer) == snapshot(plain)


def test_scalars_equal_one_element_tensors(adaptive, quadratic):
    """The same bits, on the device too, where torch would promote 0-d float32 times 0-d float64."""
    params = quadratic.params([(), ()])
    twins = [torch.nn.Parameter(p.detach().clone().reshape(1)) for p in params]
    optimizer, plain = AdaArturo(params, **adaptive), AdaArturo(twins, **copy.deepcopy(adaptive))
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


def test_nothing_but_empty_tensors(geometry, quadratic):
    params = quadratic.params([(0,), (3, 0, 2)])
    optimizer = AdaArturo(params, **geometry)
    assert quadratic.train(optimizer, 2) == [(0.0, 0.0, 0.0, 0, False, 0)] * 2
    assert all(optimizer.state[p]["M"].shape == p.shape for p in params)


def test_empty_tensors_change_nothing_for_the_others(adaptive, quadratic, snapshot):
    params, empty = quadratic.params([(4, 3), (2,)]), quadratic.params([(0,), (3, 0)])
    optimizer = AdaArturo([*params, *empty], **adaptive)
    plain = AdaArturo(quadratic.params([(4, 3), (2,)]), **copy.deepcopy(adaptive))
    for t in range(4):
        assert quadratic.train(optimizer, 1, t) == quadratic.train(plain, 1, t)
    assert snapshot(optimizer, params) == snapshot(plain)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_vectors_are_their_real_twins(dtype, adaptive, snapshot):
    """Parameter, state and last_step, bit for bit, under a diagonal covariance; in one group with a real parameter."""
    adaptive["covariance"] = "diagonal"
    kinds = [((4, 3, 2), dtype), ((5,), dtype.to_real())]
    params = [torch.nn.Parameter(noise(i, *kind)) for i, kind in enumerate(kinds)]
    twins = [torch.nn.Parameter(as_real(p)) for p in params]
    optimizer, plain = AdaArturo(params, **adaptive), AdaArturo(twins, **copy.deepcopy(adaptive))
    for t in range(4):
        for i, (p, twin) in enumerate(zip(params, twins, strict=True)):
            p.grad = noise(10 * t + i, p.shape, p.dtype)
            twin.grad = as_real(p.grad)
        optimizer.step()
        plain.step()
    # A least size goes by the columns, of which the twin has twice as many; here both tensors are larger.
    assert optimizer.last_step == plain.last_step
    assert all(torch.equal(as_real(p), twin) for p, twin in zip(params, twins, strict=True))
    assert [state for _, state in snapshot(optimizer)] == [state for _, state in snapshot(plain)]


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (3, 2, 2)], ids=str)
def test_complex_parameters_train(shape, geometry):
    """Towards 1 + 2i, from anywhere; a gradient that still carries torch's conjugate flag is its value."""
    start = noise(0, shape, torch.complex64)
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [AdaArturo([p], **{**geometry, "lr": 0.03}) for p in params]
    for t in range(60):
        grad = params[0].detach() - (1 + 2j) + 0.1 * noise(t, shape, torch.complex64)
        params[0].grad, params[1].grad = grad, grad.conj().resolve_conj().conj()
        assert params[1].grad.is_conj()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(*params)
    assert (params[0].detach() - (1 + 2j)).abs().max() < 0.3 * (start - (1 + 2j)).abs().max()


# ---- precisions


@pytest.mark.parametrize("dtype", KEEP, ids=str)
def test_state_keys_and_dtypes(dtype, adaptive):
    """Float32 or wider, real; ``mean`` under half precision alone, ``start`` for vectors alone, factors for matrices alone."""
    params = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((4, 6), (3,))]
    optimizer = AdaArturo(params, **adaptive)
    for t in range(2):
        for p in params:
            p.grad = noise(t, p.shape, dtype)
        optimizer.step()
        kept, mean = KEEP[dtype]
        turned = {"tile", "L", "Q_L", "R", "Q_R"} if optimizer.param_groups[0]["covariance"] == "kronecker" else set()
        always = {"step", "M", "r", *({"mean"} if mean else ())}
        for p, more in zip(params, (turned, {"start"}), strict=True):
            state = optimizer.state[p]
            assert set(state) == always | more
            for name in ("M", "r", "start", "mean"):
                if name in state:
                    assert state[name].dtype == kept and state[name].shape == as_real(p).shape
            assert all(state[name].dtype == kept for name in turned & set(state) - {"tile"})
            assert p.dtype == dtype


@half
def test_half_precision_carries_a_float32_mean(dtype, adaptive):
    """The mean follows the float32 run bit for bit; the parameter is its rounding. What others write is taken over."""
    p = torch.nn.Parameter(noise(99, (6, 5), dtype))
    twin = torch.nn.Parameter(p.detach().float())
    optimizer, plain = AdaArturo([p], **adaptive), AdaArturo([twin], **copy.deepcopy(adaptive))
    for t in range(8):
        if t == 4:
            with torch.no_grad():
                for x in (p, twin):
                    x[0] = torch.tensor([0.0, 10.0, -20.0, 0.5, 100.0])  # far from what is there
                    x[3, 2] = -x[3, 2].to(dtype)
        p.grad = noise(t, p.shape, dtype)
        twin.grad = p.grad.float()
        optimizer.step()
        plain.step()
        assert torch.equal(optimizer.state[p]["mean"], twin) and torch.equal(p, twin.to(dtype))
        assert optimizer.last_step == plain.last_step
    assert not torch.equal(p.float(), twin)


@half
def test_steps_below_the_parameters_resolution_add_up(dtype, geometry):
    p = torch.nn.Parameter(torch.full((10, 5), 1.0, dtype=dtype))
    optimizer = AdaArturo([p], **{**geometry, "lr": 1e-6})
    for t in range(100):
        if t == 1:
            assert torch.equal(p, torch.ones_like(p)) and (optimizer.state[p]["mean"] < 1).all()
            optimizer.param_groups[0]["lr"] = 1e-5
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert (p < 1).all()


def test_float64_is_float64_throughout(adaptive, quadratic):
    """Near the float32 run, and with the digits that float32 lacks."""
    shapes = [(4, 3), (5,), ()]
    wide, narrow = quadratic.params(shapes, torch.float64), quadratic.params(shapes)
    quadratic.train(AdaArturo(wide, **adaptive), 4)
    quadratic.train(AdaArturo(narrow, **copy.deepcopy(adaptive)), 4)
    for p, q in zip(wide, narrow, strict=True):
        torch.testing.assert_close(p.detach(), q.detach().double(), rtol=1e-3, atol=1e-3)
    assert not torch.equal(wide[0], wide[0].float().double())


def test_the_device_counts_as_the_host_does(quadratic):
    """capturable reads the step's number on the device: the same gains and weights, to float64's rounding."""
    options = {"covariance": "diagonal", "betas": (0.999, 0.9999), "lr": 0.01}
    host, device = (quadratic.params([(4, 3), (5,), ()], torch.float64) for _ in range(2))
    quadratic.train(AdaArturo(host, **options), 10)
    quadratic.train(AdaArturo(device, **options, capturable=True), 10)
    for p, q in zip(host, device, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_mixed_dtypes_in_one_group(adaptive, quadratic, snapshot):
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.float32]

    def params():
        return [quadratic.params([(4, 3)], dtype, seed=i)[0] for i, dtype in enumerate(dtypes)]

    one, each = AdaArturo(params(), **adaptive), AdaArturo([{"params": [p]} for p in params()], **copy.deepcopy(adaptive))
    for t in range(4):
        assert quadratic.train(one, 1, t) == quadratic.train(each, 1, t)
    assert snapshot(one) == snapshot(each)
    assert [p.dtype for p in one.param_groups[0]["params"]] == dtypes


def test_grad_scaler(adaptive, snapshot):
    """Unscaled by a power of two the steps are those of the plain loop; a step on inf is skipped and the scale halved."""
    torch.manual_seed(0)
    model, twin = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    twin.load_state_dict(model.state_dict())
    optimizer, plain = AdaArturo(model.parameters(), **adaptive), AdaArturo(twin.parameters(), **copy.deepcopy(adaptive))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    for t in range(6):
        overflow = t in (0, 3)
        before = snapshot(optimizer)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        scaler.scale(loss * (INF if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if overflow:
            assert snapshot(optimizer) == before and scaler.get_scale() == scale / 2
        else:
            plain.zero_grad()
            (twin(x) - y).square().mean().backward()
            plain.step()
            assert snapshot(optimizer) == snapshot(plain) and optimizer.last_step == plain.last_step
    assert optimizer.state[model.weight]["step"] == 4


# ---- missing observations


@quiet
@pytest.mark.parametrize("when", [0, 2])
def test_some_entries_are_missing(when, adaptive, quadratic):
    """On the first step or later: no NaN anywhere. A turned tile is missing as a whole, and counted as such."""
    params = quadratic.params()
    optimizer = AdaArturo(params, **adaptive)
    for t in range(6):
        quadratic.gradients(params, t)
        if t == when:
            params[0].grad[1, 2] = NAN
            params[1].grad.copy_(torch.tensor(list(BAD.values())))
        before = [p.detach().clone() for p in params]
        optimizer.step()
        said, state = optimizer.last_step, optimizer.state[params[0]]
        tile = int(state["tile"].prod()) if "tile" in state else 1
        assert said.skipped == (tile + 5 if t == when else 0)
        assert all_finite(optimizer) and all(map(math.isfinite, said))
        assert not torch.equal(params[2], before[2])
    assert all(optimizer.state[p]["step"] == 6 for p in params)


@quiet
@bad
def test_a_missing_entry_leaves_the_filter_to_its_prediction(value, quadratic):
    """There M and r stay; elsewhere they are as ever."""
    params, twins = quadratic.params([(8,)]), quadratic.params([(8,)])
    optimizer, plain = AdaArturo(params), AdaArturo(twins)
    for t in range(4):
        for p in (params[0], twins[0]):
            p.grad = noise(t, (8,))
        if t == 3:
            before = {name: x.clone() for name, x in optimizer.state[params[0]].items()}
            params[0].grad[2] = value
        optimizer.step()
        plain.step()
    state, others = optimizer.state[params[0]], torch.arange(8) != 2
    for name in ("M", "r"):
        assert state[name][2] == before[name][2]
        assert torch.equal(state[name][others], plain.state[twins[0]][name][others])
    assert optimizer.last_step.skipped == 1


@quiet
@pytest.mark.parametrize("value", [NAN, 1e30], ids=str)
@pytest.mark.parametrize("warm", [0, 3])
def test_all_entries_missing_moves_nothing(value, warm, adaptive, quadratic, snapshot):
    """No parameter, not by decay either; afterwards training goes on."""
    params = quadratic.params()
    optimizer = AdaArturo(params, **adaptive)
    quadratic.train(optimizer, warm)
    before = [p for p, _ in snapshot(optimizer)]
    for p in params:
        p.grad = torch.full_like(p, value)
    optimizer.step()
    assert [p for p, _ in snapshot(optimizer)] == before
    said = optimizer.last_step
    assert (said.eta, said.kl, said.active, said.skipped) == (0.0, 0.0, False, 12 + 5 + 1 + 3)
    quadratic.train(optimizer, 2, start=warm)
    assert all_finite(optimizer) and optimizer.last_step.skipped == 0
    assert all(old != new for old, (new, _), p in zip(before, snapshot(optimizer), params, strict=True) if p.numel())


@quiet
def test_every_second_gradient_missing(geometry):
    """A run that loses half of its gradients still gets to the minimum."""
    p = torch.nn.Parameter(noise(0, (4, 3)))
    optimizer = AdaArturo([p], **geometry)
    first = (p.detach() - 1).square().mean()
    for t in range(120):
        p.grad = torch.full_like(p, NAN) if t % 2 else 0.5 * (p.detach() - 1) + 0.05 * noise(t, (4, 3))
        optimizer.step()
    assert all_finite(optimizer) and (p.detach() - 1).square().mean() < 0.2 * first


@pytest.mark.parametrize("dtype, value, missing", [
    (torch.float64, 1e30, 0),
    (torch.float64, 1e200, 1),
    (torch.float32, 9e17, 0),
    (torch.float32, 2e18, 1),
    (torch.bfloat16, 1e30, 1),
    (torch.float16, INF, 1),
    (torch.float16, 65504.0, 0),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
@quiet
def test_what_is_too_large_depends_on_the_precision(dtype, value, missing, covariance, quadratic):
    params = quadratic.params([(5, 4)], dtype)
    optimizer = AdaArturo(params, covariance=covariance)
    for t in range(3):
        quadratic.gradients(params, t)
        params[0].grad[0, 0] = value
        optimizer.step()
        assert optimizer.last_step.skipped == missing * (20 if covariance == "kronecker" else 1)
        assert all_finite(optimizer) and optimizer.last_step.kl <= optimizer.last_step.bound * (1 + 1e-9)


def test_one_warning_and_none_under_capturable(adaptive, quadratic):
    """Given once per optimizer, to the line that called step."""
    params = quadratic.params()
    optimizer = AdaArturo(params, **adaptive)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for t in range(4):
            quadratic.gradients(params, t)
            params[1].grad[0] = NAN if t else 1.0
            optimizer.step()
    if adaptive.get("capturable"):
        assert not given
    else:
        assert [w.filename for w in given] == [__file__]
        assert "1 gradient entries" in str(given[0].message)
    assert optimizer.last_step.skipped == 1


def test_a_step_is_relative_to_a_tensors_size(geometry):
    """lr is AdamW's where weights have a root mean square of 1 / PER_LR; a tensor ten times larger moves ten times further.

    512 columns: below 1 / sqrt(512) a size no longer counts.
    """
    moved = []
    for size in (1 / PER_LR, 10 / PER_LR):
        p = torch.nn.Parameter(noise(0, (8, 512), torch.float64))
        with torch.no_grad():
            p.mul_(size / p.square().mean().sqrt())
        p.grad = noise(1, (8, 512), torch.float64)
        before = p.detach().clone()
        AdaArturo([p], **{**geometry, "lr": 1e-3}).step()
        moved.append((p.detach() - before).square().mean().sqrt().item())
    assert moved[1] == pytest.approx(10 * moved[0], rel=1e-6)
    assert 0 < moved[0] <= 1e-3 * (1 + PER_LR * 1e-3)  # the first gradient may be noise: less than lr
