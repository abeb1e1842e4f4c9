"""Gradients: absent, frozen, sparse, zero, negated, from a closure; read and never written."""

import copy

import pytest
import torch

from arturo import Arturo

PRIOR_OFF = {"weight": {"prior_weight": 0.0, "initial_variance": 0.5}, "precision": {"prior_precision": 0.0}}


def test_parameters_without_a_gradient_do_not_count(every, quadratic, snapshot):
    """Frozen or unused: not moved, no state, and the others step as if it were not there."""
    params = quadratic.params()
    frozen, unused = torch.nn.Parameter(torch.ones(7), requires_grad=False), torch.nn.Parameter(torch.ones(3))
    # AdaArturo's come first: a parameter's place says when its basis is refreshed.
    optimizer = every([frozen, *params, unused] if every.kind is Arturo else [*params, frozen, unused])
    alone = every(quadratic.params())
    for t in range(6):
        assert quadratic.train(optimizer, 1, t, params=params) == quadratic.train(alone, 1, t)
    assert snapshot(optimizer, params) == snapshot(alone)
    for p in (frozen, unused):
        assert torch.equal(p, torch.ones_like(p)) and p not in optimizer.state and p.grad is None


def test_nothing_has_a_gradient(way, quadratic, snapshot):
    """No crash, no move, no state; neither before the first step nor later."""
    params = quadratic.params()
    before = [p.detach().clone() for p in params]
    optimizer = way(params)
    optimizer.step()
    assert not optimizer.state and all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    assert optimizer.last_step == (0.0, 0.0, 0.0, 0, False, 0)
    quadratic.train(optimizer, 2)
    optimizer.zero_grad()
    before = snapshot(optimizer)
    optimizer.step()
    assert snapshot(optimizer) == before
    assert optimizer.last_step[1:] == (0.0, 0.0, 0, False, 0)
    assert way.kind is Arturo or optimizer.last_step.eta == 0  # Arturo keeps its multiplier for the next step


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_layer_frozen_mid_run(which, every, quadratic, snapshot):
    """It keeps its bits and its state; the others continue as in an optimizer that never had its later gradients."""
    params = quadratic.params()
    optimizer = every(params)
    quadratic.train(optimizer, 3)
    copied = copy.deepcopy(optimizer)
    others = list(copied.param_groups[0]["params"])
    del others[which]
    if every.kind is Arturo:  # in AdaArturo a parameter's place says when its basis is refreshed
        copied.param_groups[0]["params"] = others
    frozen = params.pop(which)
    frozen.requires_grad_(False)
    optimizer.zero_grad()
    copied.zero_grad()
    before = snapshot(optimizer, [frozen])
    for t in range(3, 6):
        assert quadratic.train(optimizer, 1, t, params=params) == quadratic.train(copied, 1, t, params=others)
    assert snapshot(optimizer, [frozen]) == before
    assert snapshot(optimizer, params) == snapshot(copied, others)
    frozen.requires_grad_(True)
    (info,) = quadratic.train(optimizer, 1, start=6)
    assert optimizer.state[frozen]["step"] == 4 and info.skipped == 0
    assert all(torch.isfinite(x).all() for p in (frozen, *params) for x in (p, *optimizer.state[p].values()))


def test_closure(way, quadratic, snapshot):
    """Called once, gradients enabled, its loss returned as it is; the same step as without."""
    params, twins = quadratic.params(), quadratic.params()
    optimizer, plain = way(params), way(twins)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = sum((p - 1).square().sum() for p in params)
        loss.backward()
        return loss

    for t in range(3):
        loss = optimizer.step(closure)
        assert calls == [True] * (t + 1)
        assert loss.requires_grad and loss.item() >= 0
        for p in twins:
            p.grad = 2 * (p.detach() - 1)
        assert plain.step() is None
    assert snapshot(optimizer) == snapshot(plain)
    unchanged(optimizer)


def unchanged(optimizer):
    """Grad mode, and who requires a gradient."""
    assert torch.is_grad_enabled()
    for group in optimizer.param_groups:
        assert all(p.requires_grad and p.is_leaf and p.grad_fn is None for p in group["params"])
    assert not any(x.requires_grad for state in optimizer.state.values() for x in state.values())


def test_step_leaves_the_grad_mode_alone(way, quadratic):
    optimizer = way(quadratic.params())
    quadratic.train(optimizer, 1)
    unchanged(optimizer)


def test_maximize_is_minimising_the_negated_gradient(every, quadratic, snapshot):
    optimizer = every(quadratic.params())
    opposite = every(quadratic.params(), maximize=not every.options.get("maximize", False))
    for t in range(6):
        assert quadratic.train(optimizer, 1, t) == quadratic.train(opposite, 1, t, sign=-1.0)
    assert snapshot(optimizer) == snapshot(opposite)
    assert not torch.equal(optimizer.param_groups[0]["params"][0], quadratic.params()[0])


@pytest.mark.parametrize("position", [0, 1])
def test_sparse_gradients_are_refused(position, way, quadratic):
    """A clear RuntimeError, whatever the other parameters, and nothing is moved."""
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    dense = quadratic.params([(3,)])[0]
    dense.grad = torch.ones(3)
    embedding(torch.tensor([1, 3])).sum().backward()
    params = [dense, embedding.weight][:: 1 if position else -1]
    optimizer = way(params)
    before = [p.detach().clone() for p in params]
    words = f"^{way.kind.__name__} does not support sparse gradients, please consider SparseAdam"
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))


@pytest.mark.parametrize("off", PRIOR_OFF.values(), ids=PRIOR_OFF)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_zero_gradients_without_a_prior_move_nothing(off, dtype, kernel, quadratic):
    """From a fresh start, bit for bit: b_0 = -a_0 mu predicts exactly the zero gradient that is seen."""
    params = quadratic.params([(64,), (9, 7)], dtype)
    with torch.no_grad():
        params[0][:4] = torch.tensor([0.0, -0.0, 1e-30, -1e4])
    before = [p.detach().clone() for p in params]
    optimizer = Arturo(params, **kernel, **off)
    for _ in range(4):
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        assert optimizer.last_step.eta == 0 and optimizer.last_step.kl == 0 and not optimizer.last_step.active
    size = torch.int64 if dtype == torch.float64 else torch.int32 if dtype == torch.float32 else torch.int16
    assert all(torch.equal(p.detach().view(size), old.view(size)) for p, old in zip(params, before, strict=True))


def test_zero_gradients_with_a_prior_shrink_the_weights(kernel, quadratic):
    """The counter-check of the test above: the prior alone moves weights towards 0."""
    (p,) = quadratic.params([(64,)])
    optimizer = Arturo([p], **kernel, prior_precision=1.0)
    before = p.detach().norm()
    for _ in range(4):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    assert p.detach().norm() < before


def test_gradients_are_never_written_and_storage_is_never_replaced(every, quadratic):
    params = quadratic.params() + quadratic.params([(3,)], torch.bfloat16) + quadratic.params([(4, 4)], torch.float64)
    optimizer = every(params)
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


def test_gradients_of_any_strides_are_read(way, quadratic, snapshot):
    """Transposed, expanded (stride 0) and sliced gradients act like their contiguous copies."""
    params, twins = quadratic.params([(4, 4)] * 3), quadratic.params([(4, 4)] * 3)
    fixed = {"eta": 2.0} if way.kind is Arturo else {}  # sums may take another order
    optimizer, plain = way(params, **fixed), way(twins, **fixed)
    for t in range(3):
        wide = torch.randn(4, 8, generator=torch.Generator().manual_seed(t))
        for p, twin, g in zip(params, twins, (wide[:, :4].t(), wide[0, :1].expand(4, 4), wide[:, ::2]), strict=True):
            assert not g.is_contiguous()
            p.grad, twin.grad = g, g.contiguous()
        optimizer.step()
        plain.step()
    assert snapshot(optimizer) == snapshot(plain)


def test_an_accumulated_gradient_is_one_gradient(way, quadratic, snapshot):
    """Two backward passes, then a step: as with their sum."""
    params, twins = quadratic.params([(4, 3)]), quadratic.params([(4, 3)])
    optimizer, plain = way(params), way(twins)
    for t in range(3):
        x, y = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(t))
        optimizer.zero_grad()
        (params[0] * x).sum().backward()
        (params[0] * y).sum().backward()
        twins[0].grad = x + y
        optimizer.step()
        plain.step()
    assert snapshot(optimizer) == snapshot(plain)
