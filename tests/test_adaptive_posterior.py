"""AdaArturo's posterior and draws: as Arturo's, with the Gauss-Newton diagonal for curvature."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arturo import AdaArturo, ggn_diagonal

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]


def ones(params):
    """A curvature for anything."""
    return [torch.ones_like(torch.view_as_real(p) if p.is_complex() else p, dtype=torch.float32) for p in params]


OWN = {"ess": 100, "curvature": ones}


@pytest.fixture
def classifier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    optimizer = AdaArturo(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y


@pytest.fixture(params=DTYPES, ids=str)
def optimizer(request, quadratic):
    params = quadratic.params([(4, 3), (5,), ()], request.param)
    optimizer = AdaArturo(params, lr=0.01)
    quadratic.train(optimizer, 3)
    with torch.no_grad():
        params[0].view(-1)[:2] = torch.tensor([-0.0, 1e-5]).to(request.param)
    return optimizer


def params_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def test_the_gauss_newton_posterior(classifier):
    """Mean: the parameters. Precision: (ess a + prior_precision) / temperature, by the model's names."""
    model, optimizer, x, y = classifier
    posterior = optimizer.posterior(ess=20, model=model, data=(x, y), prior_precision=2.0, temperature=0.5)
    curvature = ggn_diagonal(model, (x, y), "cross_entropy")
    assert list(posterior.mean) == [name for name, _ in model.named_parameters()]
    for name, p in model.named_parameters():
        assert torch.equal(posterior.mean[name], p)
        torch.testing.assert_close(posterior.precision[name], (20 * curvature[name] + 2.0) / 0.5, rtol=1e-5, atol=0)
    with optimizer.sampled_params(ess=20, model=model, data=(x, y)):
        assert not torch.equal(posterior.mean["0.weight"], model[0].weight)
    assert torch.equal(posterior.mean["0.weight"], model[0].weight)


def test_the_surrogate_is_no_curvature(classifier):
    _, optimizer, *_ = classifier
    with pytest.raises(ValueError, match=r"^Invalid curvature value: 'surrogate' \(.*use 'ggn'"):
        optimizer.posterior(ess=20, curvature="surrogate")
    with pytest.raises(ValueError, match="Invalid curvature value: 'ridge'"):
        optimizer.posterior(ess=20, curvature="ridge")


def test_the_advice_does_not_name_what_is_refused(classifier):
    """Whoever forgets the model is not sent to a curvature that this optimizer does not have."""
    _, optimizer, *_ = classifier
    with pytest.raises(TypeError, match="curvature='ggn' needs model and data") as error:
        optimizer.posterior(ess=20)
    assert "surrogate" not in str(error.value)


@pytest.mark.parametrize("name, value", [("ess", 0), ("ess", -1.0), ("temperature", 0.0), ("prior_precision", -1.0)])
def test_numbers_out_of_range(name, value, classifier):
    model, optimizer, x, y = classifier
    chosen = {"ess": 20, "model": model, "data": (x, y), name: value}
    with pytest.raises(ValueError, match=rf"Invalid {name} value: {value!r}"):
        optimizer.posterior(**chosen)


def test_there_is_none_before_the_first_step(quadratic):
    optimizer = AdaArturo(quadratic.params([(3,)]))
    with pytest.raises(RuntimeError, match="no posterior before the first step"):
        optimizer.posterior(**OWN)


def test_restored_after_the_block(optimizer, snapshot):
    before, values = snapshot(optimizer), [p.detach().clone() for p in params_of(optimizer)]
    for error in (None, ValueError, KeyboardInterrupt):
        with contextlib.suppress(ValueError, KeyboardInterrupt), optimizer.sampled_params(**OWN):
            assert all((p != v).any() for p, v in zip(params_of(optimizer), values, strict=True))
            if error is not None:
                raise error
        assert snapshot(optimizer) == before


def test_step_inside_is_refused(optimizer, snapshot, quadratic):
    before = snapshot(optimizer)
    with optimizer.sampled_params(**OWN), pytest.raises(RuntimeError, match=r"step\(\) inside sampled_params"):
        optimizer.step()
    assert snapshot(optimizer) == before
    quadratic.train(optimizer, 1, 3)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_from_a_draw_and_a_step_after_it(dtype, quadratic, snapshot):
    """As IVON is used: the draw leaves no trace, and the float32 mean of a bfloat16 parameter goes on undisturbed."""
    runs = []
    for look in (False, True):
        params = quadratic.params([(4, 3), (5,)], dtype)
        optimizer = AdaArturo(params, lr=0.01)
        for t in range(6):
            if look and t > 0:
                with optimizer.sampled_params(**OWN):
                    pass
            quadratic.train(optimizer, 1, t)
        runs.append(snapshot(optimizer))
    assert runs[0] == runs[1]
