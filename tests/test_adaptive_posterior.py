"""AdaArturo's posterior: as Arturo's, with the Gauss-Newton diagonal for curvature. Draws from it: test_sampling.py."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arturo import AdaArturo, ggn_diagonal


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
