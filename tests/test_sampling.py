"""Draws in the parameters: the mean comes back, bit for bit, whatever happens inside the block."""

import contextlib

import pytest
import torch
from torch import nn

from arturo import Arturo
from arturo.posterior.sampling import refreshed_norms

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


def ones(params):
    """A curvature for anything."""
    return [torch.ones_like(torch.view_as_real(p) if p.is_complex() else p, dtype=torch.float32) for p in params]


OWN = {"ess": 100, "curvature": ones}


@pytest.fixture(params=DTYPES, ids=str)
def optimizer(request, plain, quadratic):
    """Both, after three steps, with a negative zero in the first parameter."""
    params = quadratic.params([(4, 3), (5,), ()], request.param)
    optimizer = plain(params)
    quadratic.train(optimizer, 3)
    with torch.no_grad():
        params[0].view(-1)[:2] = torch.tensor([-0.0, 1e-5]).to(request.param)
    return optimizer


def params_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def test_restored_after_the_block(optimizer, snapshot):
    before, values = snapshot(optimizer), [p.detach().clone() for p in params_of(optimizer)]
    with optimizer.sampled_params(**OWN):
        assert all((p != v).any() for p, v in zip(params_of(optimizer), values, strict=True))
    assert snapshot(optimizer) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StopIteration])
def test_restored_after_an_exception(error, optimizer, snapshot):
    before = snapshot(optimizer)
    with contextlib.suppress(error, RuntimeError), optimizer.sampled_params(**OWN):
        raise error
    assert snapshot(optimizer) == before


def test_restored_after_an_early_return_and_an_abandoned_generator(optimizer, snapshot):
    before = snapshot(optimizer)

    def leave():
        for _ in range(3):
            with optimizer.sampled_params(**OWN):
                return

    def abandoned():
        with optimizer.sampled_params(**OWN):
            yield

    leave()
    assert snapshot(optimizer) == before
    started = abandoned()
    next(started)
    assert snapshot(optimizer) != before
    started.close()
    assert snapshot(optimizer) == before


def test_nested_blocks_draw_around_the_mean(optimizer, snapshot):
    """An inner block, made inside the outer one, is a draw around the mean and not around the outer draw."""
    posterior = optimizer.posterior(**OWN)
    plain = posterior.sample(torch.Generator().manual_seed(1))
    before = snapshot(optimizer)
    with optimizer.sampled_params(**OWN):
        outer = snapshot(optimizer)
        with optimizer.sampled_params(**OWN, generator=torch.Generator().manual_seed(1)):
            for p, value in zip(params_of(optimizer), plain.values(), strict=True):
                assert torch.equal(p, value)
        assert snapshot(optimizer) == outer
    assert snapshot(optimizer) == before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1)])
def test_blocks_may_end_in_any_order(order, optimizer, snapshot):
    before = snapshot(optimizer)
    posterior = optimizer.posterior(**OWN)
    blocks = [posterior.sampled_params() for _ in range(3)]
    for block in blocks:
        block.__enter__()
    for i in order:
        assert snapshot(optimizer) != before
        blocks[i].__exit__(None, None, None)
    assert snapshot(optimizer) == before


def test_a_draw_that_does_not_fit_changes_nothing(quadratic, snapshot):
    """The second of two parameters refuses its value: the first gets its own back."""
    params = quadratic.params([(2,), (3,)])
    optimizer = Arturo(params)
    quadratic.train(optimizer, 1)
    before = snapshot(optimizer)
    posterior = optimizer.posterior(**OWN)
    wrong = posterior.weights["1"]._replace(mean=torch.zeros(4), curvature=torch.ones(4))
    posterior.weights["1"] = wrong
    with pytest.raises(RuntimeError), posterior.sampled_params():
        pass
    assert snapshot(optimizer) == before
    quadratic.train(optimizer, 1)  # and nothing is left behind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_from_a_draw_and_a_step_after_it(dtype, plain, quadratic, snapshot):
    """As IVON is used: backward() inside, step() outside; the float32 mean of a bfloat16 parameter continues undisturbed."""
    runs = []
    for look in (False, True):
        params = quadratic.params([(4, 3), (5,)], dtype)
        optimizer = plain(params)
        for t in range(6):
            if look and t > 0:
                with optimizer.sampled_params(**OWN):
                    quadratic.gradients([p.detach() for p in params], t)
            quadratic.train(optimizer, 1, t)
        runs.append(snapshot(optimizer))
    assert runs[0] == runs[1]


def test_step_inside_is_refused(optimizer, snapshot, quadratic):
    before = snapshot(optimizer)
    with optimizer.sampled_params(**OWN), pytest.raises(RuntimeError, match=r"step\(\) inside sampled_params"):
        optimizer.step()
    assert snapshot(optimizer) == before
    quadratic.train(optimizer, 1)


def test_inference_mode_is_refused(optimizer, snapshot):
    before = snapshot(optimizer)
    posterior = optimizer.posterior(**OWN)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inside torch\.inference_mode"), posterior.sampled_params():
        pass
    with torch.no_grad(), posterior.sampled_params():
        assert snapshot(optimizer) != before
    assert snapshot(optimizer) == before


def test_a_posterior_has_its_own_options(optimizer):
    with pytest.raises(TypeError, match="unexpected argument 'ess'"):
        optimizer.sampled_params(optimizer.posterior(**OWN), ess=3)


def test_norms_are_refreshed_and_restored():
    """Inside: mean and variance of these inputs, whatever the momentum. After: every buffer, mode and momentum as before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3, momentum=0.01))
    model(torch.randn(8, 3))
    model.eval()
    x = torch.randn(50, 3) * 3 + 2
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(KeyError), refreshed_norms(model, [x[:25], x[25:]]):
        torch.testing.assert_close(model[1].running_mean, x.mean(0))
        assert not model[1].training and not model.training
        raise KeyError
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model[1].momentum == 0.01 and not model[1].training
    with refreshed_norms(model, None):
        assert torch.equal(model[1].running_mean, before["1.running_mean"])
