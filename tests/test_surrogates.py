"""Surrogates other than the filter through the same optimizer: reference, host and device, groups, dtypes, checkpoints."""

import copy
import functools
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_arturo import ReferenceArturo

from arturo import Arturo
from arturo.kernels import native

COSINE = functools.partial(map, torch.cos)  # a diagonal that pickles, depends on the weights and has both signs
SURROGATES = {"adam": "adam", "function": COSINE}
IMPLEMENTATIONS = {
    "default": {},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "capturable": {"capturable": True},
    "capturable-foreach": {"capturable": True, "foreach": True},
}
OPTIONS = {
    "default": {},
    "weight-decay": {"weight_decay": 0.4},
    "maximize": {"maximize": True},
    "averaging": {"averaging": (0.5, 0.8)},
    "no-averaging": {"averaging": (0.0, 0.0)},
    "prior-off": {"prior_precision": 0.0},
    "high-floor": {"curvature_floor": 0.5},
    "wide": {"kl_bound": 1e9},
    "fixed-eta": {"eta": 2.0},
    "bisection": {"dual": "bisection"},
}
BASE = {"kl_bound": 0.02, "prior_weight": 0.3}
BUFFERS = ("prec", "a", "b", "grad_avg")


@pytest.fixture(params=SURROGATES)
def surrogate(request):
    return SURROGATES[request.param]


def twin_of(params, surrogate, options):
    arrays = [p.detach().double().numpy() for p in params]
    name = surrogate if isinstance(surrogate, str) else "function"
    return ReferenceArturo(arrays, **{**BASE, "noise": 1.0, "drift": 0.0, **options, "surrogate": name})


def both_step(optimizer, reference, params, t, quadratic, missing=False):
    """The same gradients, and the same multiplier, into both."""
    quadratic.gradients(params, t)
    if missing and t % 3 != 1:
        params[0].grad.view(-1)[t % 5] = float("nan")
        params[1].grad[0] = float("inf")
    diagonals = [np.cos(p.detach().double().numpy()) for p in params]
    optimizer.step()
    info = optimizer.last_step
    gradients = [p.grad.double().numpy() for p in params]
    return info, reference.step(gradients, eta=info.eta, diagonals=diagonals)


def compare(optimizer, reference, params, rtol, atol):
    for p, mean, state in zip(params, reference.groups[0]["params"], reference.state[0], strict=True):
        np.testing.assert_allclose(p.detach().double().numpy(), mean, rtol=rtol, atol=atol, err_msg="mean")
        assert set(optimizer.state[p]) == {*BUFFERS, "step", "eta"}
        for name in BUFFERS:
            np.testing.assert_allclose(
                optimizer.state[p][name].double().numpy(), state[name], rtol=rtol, atol=atol, err_msg=name
            )
        assert optimizer.state[p]["step"] == state["step"]


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
@pytest.mark.parametrize("missing", [False, True], ids=["seen", "missing"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", OPTIONS)
def test_agreement(name, implementation, missing, surrogate, quadratic):
    """Every buffer is the reference's to float64 rounding; the first step with missing entries included."""
    params = quadratic.params(dtype=torch.float64)
    options = OPTIONS[name]
    optimizer = Arturo(params, surrogate=surrogate, **{**BASE, **options}, **IMPLEMENTATIONS[implementation])
    reference = twin_of(params, surrogate, options)
    for t in range(30 if implementation == "loop" else 8):
        info, theirs = both_step(optimizer, reference, params, t, quadratic, missing)
        assert info.skipped == theirs.skipped and (not missing or t % 3 == 1 or info.skipped == 2)
        assert info.bound == pytest.approx(theirs.bound, rel=1e-14)
        assert info.kl == pytest.approx(theirs.kl, rel=1e-3)
        if "capturable" in implementation:  # the device step scales what lies outside onto the bound, so follow it there
            for p, mean in zip(params, reference.groups[0]["params"], strict=True):
                np.testing.assert_allclose(p.detach().numpy(), mean, rtol=1e-3, atol=1e-3)
                mean[...] = p.detach().numpy()
        compare(optimizer, reference, params, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float32_and_half_keep_float32_state(implementation, surrogate, quadratic):
    for dtype, rtol in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
        params = quadratic.params([(4, 3), (5,)], dtype=dtype)
        optimizer = Arturo(params, surrogate=surrogate, **BASE, **IMPLEMENTATIONS[implementation])
        exact = [torch.nn.Parameter(p.detach().double()) for p in params]
        other = Arturo(exact, surrogate=surrogate, **BASE, **IMPLEMENTATIONS[implementation])
        for t in range(10):
            quadratic.gradients(params, t)
            for p, twin in zip(params, exact, strict=True):
                twin.grad = p.grad.double()
            optimizer.step()
            other.step()
        for p, twin in zip(params, exact, strict=True):
            assert all(optimizer.state[p][name].dtype == torch.float32 for name in BUFFERS)
            torch.testing.assert_close(p.detach().double(), twin.detach(), rtol=rtol, atol=rtol)


def test_each_group_has_its_own(quadratic, snapshot):
    """Four surrogates in one trust region; a late group too; the filter's parameters have the filter's state."""
    params = quadratic.params([(3,), (4,), (2, 2), (5,)])
    groups = [
        {"params": [params[0]]},
        {"params": [params[1]], "surrogate": "adam"},
        {"params": [params[2]], "surrogate": COSINE},
    ]
    optimizer = Arturo(groups, kl_bound=0.01, initial_curvature=0.1)
    quadratic.train(optimizer, 3)
    late = [torch.zeros_like(params[3])]
    optimizer.add_param_group({"params": [params[3]], "surrogate": lambda params: late, "averaging": [0.5, 0.5]})
    for info in quadratic.train(optimizer, 5, start=3):
        assert info.kl == pytest.approx(info.bound, rel=1e-3)
    assert [group["surrogate"] for group in optimizer.param_groups] == ["kalman", "adam", "function", "function"]
    assert "P_aa" in optimizer.state[params[0]] and all("grad_avg" in optimizer.state[p] for p in params[1:])
    assert torch.equal(optimizer.state[params[3]]["a"], late[0])
    quadratic.gradients(params, 9)
    before = params[2].detach().clone()
    optimizer.step()
    assert not torch.equal(optimizer.state[params[2]]["a"], before.cos())  # averaged with those before


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_splitting_into_groups_is_bitwise_neutral(implementation, surrogate, quadratic, snapshot):
    params = quadratic.params()
    twins = quadratic.twins(params)
    whole = Arturo(params, surrogate=surrogate, kl_bound=0.01, **IMPLEMENTATIONS[implementation])
    groups = [{"params": twins[:2]}, {"params": twins[2:], "surrogate": surrogate}]
    split = Arturo(groups, surrogate=surrogate, kl_bound=0.01, **IMPLEMENTATIONS[implementation])
    assert quadratic.train(whole, 5) == quadratic.train(split, 5)
    assert snapshot(whole) == snapshot(split)


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0)], ids=["number", "tensor"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["adam", "hessian", "hutchinson"])
def test_lr_0_makes_state_and_nothing_else(name, implementation, lr, quadratic, snapshot):
    """No diagonal is asked for, so that a distributed checkpoint can make the state with zero gradients."""
    params = quadratic.params()
    optimizer = Arturo(params, lr, surrogate=name, **IMPLEMENTATIONS[implementation])
    quadratic.train(optimizer, 1)
    before = snapshot(optimizer)
    quadratic.train(optimizer, 2)
    assert snapshot(optimizer) == before
    assert all(set(optimizer.state[p]) == {*BUFFERS, "step", "eta"} and optimizer.state[p]["step"] == 0 for p in params)
    assert all((optimizer.state[p]["grad_avg"] == 0).all() and (optimizer.state[p]["a"] == 0.1).all() for p in params)


def test_missing_diagonals_are_missing_observations(quadratic):
    """A NaN in the diagonal leaves both averages of that entry; everything missing moves nothing."""
    p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    diagonal = [torch.tensor([3.0, 4.0])]
    optimizer = Arturo([p], surrogate=lambda params: diagonal, kl_bound=0.01)
    quadratic.train(optimizer, 1)
    state, kept = optimizer.state[p], {name: optimizer.state[p][name].clone() for name in ("a", "grad_avg")}
    diagonal[0] = torch.tensor([float("nan"), 5.0])
    with pytest.warns(UserWarning, match="1 gradient entries were not finite"):
        quadratic.train(optimizer, 1, start=1)
    assert optimizer.last_step.skipped == 1
    for name in kept:
        assert state[name][0] == kept[name][0] and state[name][1] != kept[name][1]
    diagonal[0] = torch.full((2,), 1e30)
    before = p.detach().clone()
    quadratic.train(optimizer, 1, start=2)
    assert optimizer.last_step.skipped == 2 and torch.equal(p, before) and state["step"] == 2


def saved(state_dict):
    """Through a file, with the safe loader."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_continuing_equals_not_stopping(dtype, implementation, surrogate, quadratic, snapshot):
    if dtype.is_complex and surrogate is COSINE:
        surrogate = functools.partial(map, torch.ones_like)  # 1 + 0j: curvature along the real axis
    params = quadratic.params(dtype=dtype)
    optimizer = Arturo(params, surrogate=surrogate, kl_bound=0.01, averaging=(0.7, 0.9), **IMPLEMENTATIONS[implementation])
    quadratic.train(optimizer, 3)
    resumed = Arturo(quadratic.twins(params), surrogate=surrogate)
    resumed.load_state_dict(saved(optimizer.state_dict()))
    assert snapshot(resumed) == snapshot(optimizer)
    assert quadratic.train(resumed, 3, start=3) == quadratic.train(optimizer, 3, start=3)
    assert snapshot(resumed) == snapshot(optimizer)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_hutchinson_continues_bit_for_bit(snapshot):
    """Its noise is a hash of the step, so nothing of a generator has to be saved, nor does it take from one."""
    torch.manual_seed(0)
    x, model = torch.randn(8, 1, 6, 6), torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.Flatten())
    generator = torch.get_rng_state()

    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward(create_graph=True)
            optimizer.step()

    optimizer = Arturo(model.parameters(), surrogate="hutchinson", kl_bound=0.01)
    train(model, optimizer, 3)
    other = copy.deepcopy(model).requires_grad_()
    for p in other.parameters():
        p.grad = None
    resumed = Arturo(other.parameters(), surrogate="hutchinson")
    resumed.load_state_dict(saved(optimizer.state_dict()))
    train(model, optimizer, 3)
    train(other, resumed, 3)
    assert snapshot(resumed) == snapshot(optimizer) and torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_continues_alike(make, surrogate, quadratic, snapshot):
    optimizer = Arturo([{"params": quadratic.params(), "surrogate": surrogate}], kl_bound=0.01)
    quadratic.train(optimizer, 3)
    copied = make(optimizer)
    assert quadratic.train(copied, 3, start=3) == quadratic.train(optimizer, 3, start=3)
    assert snapshot(copied) == snapshot(optimizer)


@pytest.mark.parametrize("here, there", [("kalman", "adam"), ("adam", "kalman"), ("adam", "function"), ("hessian", "ggn")])
@pytest.mark.parametrize("steps", [0, 2])
def test_the_state_of_another_surrogate_is_refused(here, there, steps, quadratic, snapshot):
    there = COSINE if there == "function" else there
    params = quadratic.params()
    saved_from = Arturo(quadratic.twins(params), surrogate=there)
    if there != "ggn":
        quadratic.train(saved_from, steps)
    optimizer = Arturo(params, surrogate=here)
    if here != "hessian":
        quadratic.train(optimizer, 1)
    before = snapshot(optimizer)
    name = there if isinstance(there, str) else "function"
    with pytest.raises(ValueError, match=f"surrogate='{name}', and parameter group 0 has surrogate='{here}'"):
        optimizer.load_state_dict(saved_from.state_dict())
    assert snapshot(optimizer) == before and optimizer.param_groups[0]["surrogate"] == here


def test_state_that_does_not_fit_its_group_is_refused(quadratic):
    filtered, averaged = (Arturo(quadratic.params(), surrogate=name) for name in ("kalman", "adam"))
    quadratic.train(filtered, 1)
    quadratic.train(averaged, 1)
    mixed = {"state": filtered.state_dict()["state"], "param_groups": averaged.state_dict()["param_groups"]}
    with pytest.raises(ValueError, match="this state is of surrogate='kalman'"):
        averaged.load_state_dict(mixed)
    filtered.param_groups[0]["surrogate"] = "adam"
    with pytest.raises(RuntimeError, match="cannot change in a run"):
        quadratic.train(filtered, 1)


@pytest.mark.parametrize("name, attribute", [("hessian", "diag_h"), ("ggn", "diag_ggn_exact")])
def test_what_backpack_leaves_is_read(name, attribute, quadratic):
    params = quadratic.params()
    optimizer = Arturo(params, surrogate=name)
    with pytest.raises(RuntimeError, match=rf"reads p\.{attribute}.*5 of 5.*BatchNorm.*hutchinson.*function"):
        quadratic.train(optimizer, 1)
    for p in params:
        setattr(p, attribute, p.detach().exp())
    expected = [getattr(p, attribute).clone() for p in params]
    quadratic.train(optimizer, 1)
    assert all(torch.equal(optimizer.state[p]["a"], h) for p, h in zip(params, expected, strict=True))


@pytest.mark.parametrize(
    "diagonal, words",
    [(lambda params: params[:1], "1 diagonals for 5 parameters"), (lambda params: [p.reshape(-1) for p in params], "shape")],
    ids=["number", "shape"],
)
def test_diagonals_that_do_not_fit_are_refused(diagonal, words, quadratic):
    with pytest.raises(ValueError, match=f"the function passed as surrogate gave.*{words}"):
        quadratic.train(Arturo(quadratic.params(), surrogate=diagonal), 1)


@pytest.mark.parametrize("given", [None, 1.0, {}, torch.ones(5), [1.0] * 5, [None] * 5], ids=str)
def test_what_is_no_list_of_tensors_is_refused(given, quadratic):
    with pytest.raises(TypeError, match=r"the function passed as surrogate must return a list of tensors.*got"):
        quadratic.train(Arturo(quadratic.params(), surrogate=lambda params: given), 1)


def test_a_function_may_differentiate():
    p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

    def exact(params):
        return [torch.func.hessian(lambda x: (x**4).sum())(params[0]).diagonal()]

    optimizer = Arturo([p], surrogate=exact)
    (p**4).sum().backward()
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["a"], torch.tensor([12.0, 48.0]))


@pytest.mark.skipif(not native.available(), reason="the extension was not built")
def test_the_native_passes_serve(monkeypatch, surrogate, quadratic):
    """Probe and move stay in C++: eager's are not called."""
    for name in ("probe", "move"):
        monkeypatch.setattr(f"arturo.kernels.eager.EagerSweep.{name}", None)
    quadratic.train(Arturo(quadratic.params([(4, 3), (5,)]), surrogate=surrogate, kl_bound=0.01), 3)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["adam", "function"]),
    st.sampled_from(list(IMPLEMENTATIONS)),
    st.none() | st.floats(-9, 9).map(lambda x: 10**x),
    st.sampled_from([0.0, 0.0015, 1.0]),
    st.sampled_from([None, (0.0, 0.0), (0.5, 0.99)]),
    st.floats(-12, 12),
    st.floats(-8, 8),
    st.floats(-3, 3),
    st.integers(0, 2**31),
)
def test_every_step_keeps_to_the_bound(name, implementation, kl_bound, prior, averaging, log_g, log_h, log_weight, seed):
    """Gradients from 1e-12 to 1e12, diagonals of both signs from 1e-8 to 1e8, bounds from 1e-9 to 1e9, jumps in lr."""
    generator = torch.Generator().manual_seed(seed)

    def draw(p):
        return torch.randn(p.shape, generator=generator)

    params = [torch.nn.Parameter(10**log_weight * torch.randn(n, generator=generator)) for n in (7, 1, 40)]
    chosen = "adam" if name == "adam" else lambda params: [10**log_h * draw(p) for p in params]
    optimizer = Arturo(
        params,
        surrogate=chosen,
        kl_bound=kl_bound,
        prior_precision=prior,
        averaging=averaging,
        **IMPLEMENTATIONS[implementation],
    )
    for t in range(12):
        if t in (5, 9):
            optimizer.param_groups[0]["lr"] *= 0.006
        for p in params:
            p.grad = 10**log_g * draw(p)
        optimizer.step()
        info = optimizer.last_step
        assert info.kl <= info.bound * (1 + 1e-3)
        assert abs(info.kl / info.bound - 1) <= 1e-3 if info.active else info.eta == 0
        for p in params:
            state = optimizer.state[p]
            assert all(bool(x.isfinite().all()) for x in (p, *(state[name] for name in BUFFERS)))
            assert bool((state["prec"] > 0).all())
