"""Predictions: moments over draws, the split of the uncertainty, ways to compute it that agree."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arturo import Arturo, calibrate, predict
from arturo.posterior import Posterior, Weight


class Branching(nn.Module):
    """What vmap cannot take: Python decides by a value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        h = self.linear(x)
        return h if h.sum() > 1e9 else 2 * h


def network(kind):
    torch.manual_seed(0)
    if kind == "branching":
        return Branching()
    norm = [nn.BatchNorm1d(8)] if kind == "norm" else []
    return nn.Sequential(nn.Linear(3, 8), *norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


def trained(kind="plain", dtype=torch.float32):
    model = network(kind).to(dtype)
    x, y = torch.randn(40, 3).to(dtype), torch.arange(40) % 4
    optimizer = Arturo(model.parameters(), kl_bound=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def by_hand(model, posterior, x, samples, generator):
    model.eval()
    outputs = []
    for _ in range(samples):
        with torch.no_grad(), posterior.sampled_params(model, generator=generator):
            outputs.append(model(x))
    return torch.stack(outputs).double()


@pytest.mark.parametrize("kind", ["plain", "norm", "branching"])
def test_moments_and_entropies(kind):
    """Against a plain loop; in one go, in pieces, one draw at a time: the same draws."""
    model, optimizer, x, _ = trained(kind)
    posterior = optimizer.posterior(ess=40, curvature="surrogate")
    p = by_hand(model, posterior, x, 6, seeded()).softmax(-1)
    total = -(p.mean(0) * p.mean(0).log()).sum(-1)
    inner = -(p * p.log()).sum(-1).mean(0)
    model.train()
    for options in ({}, {"vectorized": False}, {"batch_size": 7}, {"batch_size": 7, "vectorized": False}):
        found = predict(model, posterior, x, 6, generator=seeded(), **options)
        for ours, exact in ((found.mean, p.mean(0)), (found.variance, p.var(0)), (found.aleatoric, inner)):
            torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.epistemic.double(), total - inner, rtol=1e-3, atol=1e-5)
        assert model.training and found.epistemic.min() >= 0
    if kind == "branching":
        with pytest.raises(RuntimeError, match="vmap"):
            predict(model, posterior, x, 6, vectorized=True)
    else:
        predict(model, posterior, x, 2, vectorized=True)


def test_many_draws_in_chunks(monkeypatch):
    """Memory for two draws at a time: the same answer as all at once."""
    model, optimizer, x, _ = trained()
    posterior = optimizer.posterior(ess=40, curvature="surrogate")
    whole = predict(model, posterior, x, 7, generator=seeded())
    monkeypatch.setattr("arturo.posterior.prediction.MEMORY", 2 * 4 * sum(p.numel() for p in model.parameters()))
    parts = predict(model, posterior, x, 7, generator=seeded())
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.epistemic, whole.epistemic)


def test_from_the_optimizer():
    model, optimizer, x, y = trained()
    posterior = optimizer.posterior(ess=40, model=model, data=(x, y))
    ours = predict(model, optimizer, x, 4, ess=40, data=(x, y), generator=seeded())
    assert torch.equal(ours.mean, predict(model, posterior, x, 4, generator=seeded()).mean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_precisions(dtype):
    model, optimizer, x, _ = trained(dtype=dtype)
    found = predict(model, optimizer.posterior(ess=40, curvature="surrogate"), x, 4)
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(found.mean.sum(-1), torch.ones(40))


@pytest.mark.parametrize("vectorized", [True, False])
def test_linear_gaussian_model_is_exact(vectorized):
    """f = w x with w ~ N(2, 1/4): mean 2x, variance x^2/4 + noise; the linearised model is the model."""
    model = nn.Linear(1, 1, bias=False)
    weight = Weight(torch.tensor([[2.0]]), torch.tensor([[4.0]]), 0.0, torch.float32, model.weight)
    x, count = torch.tensor([[0.0], [1.0], [-3.0]]), 4000 if vectorized else 400
    for linearized in (False, True):
        found = predict(
            model,
            Posterior({"w": weight}, ess=1),
            x,
            count,
            likelihood="gaussian",
            noise_variance=0.5,
            linearized=linearized,
            vectorized=vectorized,
            generator=seeded(),
        )
        torch.testing.assert_close(found.mean, 2 * x, rtol=0, atol=3 * 5 * 0.5 / count**0.5)
        torch.testing.assert_close(found.epistemic, x.square() / 4, rtol=5 * (2 / count) ** 0.5, atol=0)
        torch.testing.assert_close(found.variance, found.epistemic + 0.5)
        assert (found.aleatoric == 0.5).all() and found.epistemic[0] == 0


@pytest.mark.parametrize("vectorized", [True, False])
def test_linearized_outputs(vectorized):
    """One draw: f(mean) + J (draw - mean), by a finite difference along the line."""
    model, optimizer, x, _ = trained(dtype=torch.float64)
    posterior = optimizer.posterior(ess=40, curvature="surrogate")
    draw = posterior.sample(seeded())
    found = predict(model, posterior, x, 1, likelihood="gaussian", linearized=True, vectorized=vectorized, generator=seeded())
    model.eval()

    def along(t):
        named = zip(model.named_parameters(), draw.values(), strict=True)
        return torch.func.functional_call(model, {name: p + t * (value - p) for (name, p), value in named}, (x,))

    h = 1e-6
    expected = along(0.0) + (along(h) - along(-h)) / (2 * h)
    torch.testing.assert_close(found.mean, expected.detach().float(), rtol=1e-4, atol=1e-4)


def test_bernoulli():
    p = nn.Parameter(torch.zeros(1))
    model = nn.Linear(1, 1, bias=False)
    posterior = Posterior({"w": Weight(torch.tensor([[0.0]]), torch.tensor([[1.0]]), 0.0, torch.float32, model.weight)}, ess=1)
    found = predict(model, posterior, torch.tensor([[0.0], [30.0]]), 2000, likelihood="bernoulli", generator=seeded())
    assert found.aleatoric[0].item() == pytest.approx(math.log(2)) and found.epistemic[0].item() == pytest.approx(0, abs=1e-6)
    assert found.mean[1].item() == pytest.approx(0.5, abs=0.06) and found.epistemic[1] > 0.6  # which side, the draw decides
    torch.testing.assert_close(found.nll(torch.tensor([[1.0], [0.0]])), -torch.stack([found.mean[0], 1 - found.mean[1]]).log())
    assert p.grad is None


def test_norms_refreshed_for_each_draw():
    """With these statistics the norm's output has mean 0 over the refreshing batch, whatever the draw; frozen it has not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = torch.randn(60, 3) + 1
    optimizer = Arturo(model.parameters())
    model(x).square().sum(1).mean().backward()
    optimizer.step()
    posterior = optimizer.posterior(ess=10, curvature="surrogate")
    posterior.weights = {name: w for name, w in posterior.weights.items() if w.mean.dim() == 2}  # the linear layer's weight
    before = {k: v.clone() for k, v in model.state_dict().items()}
    fresh = predict(model, posterior, x, 5, likelihood="gaussian", refresh=[x], generator=seeded())
    frozen = predict(model, posterior, x, 5, likelihood="gaussian", generator=seeded())
    bias = model[1].bias.detach()
    torch.testing.assert_close(fresh.mean.mean(0), bias, rtol=0, atol=1e-4)
    assert (frozen.mean.mean(0) - bias).abs().max() > 1e-2
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(ValueError, match="Invalid refresh value"):
        predict(model, posterior, x, refresh=[x], linearized=True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"samples": 0}, ValueError, "Invalid samples value: 0"),
        ({"batch_size": 2.5}, ValueError, "Invalid batch_size value: 2.5"),
        ({"likelihood": "poisson"}, ValueError, "Invalid likelihood value: 'poisson'"),
        ({"noise_variance": -1}, ValueError, "Invalid noise_variance value: -1"),
        ({"ess": 3}, TypeError, "unexpected argument 'ess'"),
    ],
)
def test_bad_input(options, error, words, snapshot):
    model, optimizer, x, _ = trained()
    before = snapshot(optimizer)
    with pytest.raises(error, match=words):
        predict(model, optimizer.posterior(ess=40, curvature="surrogate"), x, **options)
    assert snapshot(optimizer) == before


def test_weights_stay_whatever_fails(snapshot):
    model, optimizer, x, _ = trained("branching")
    posterior = optimizer.posterior(ess=40, curvature="surrogate")
    before = snapshot(optimizer)
    with pytest.raises(RuntimeError):
        predict(model, posterior, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="not one of the model's"):
        predict(network("plain"), posterior, x)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"predict\(\) does not work inside torch.inference_mode"):
        predict(model, posterior, x)
    assert snapshot(optimizer) == before and model.training


# ---- calibrate


def overconfident():
    """y = w x + noise of variance 1 around w = 1; the posterior's curvature is ten times too large."""
    x = torch.randn(4000, 1, generator=seeded(1))
    w = 1 + torch.randn(4000, 1, generator=seeded(2))  # every observation its own weight: exactly what a draw assumes
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    weight = Weight(torch.ones(1, 1), torch.full((1, 1), 10.0), 0.0, torch.float32, model.weight)
    return model, Posterior({"w": weight}, ess=1), x, w * x


def test_calibrate_finds_the_right_width():
    """Truth: variance x^2, i.e. temperature 10 over the curvature 10. The grid's nearest wins, with the same seed always."""
    model, posterior, x, y = overconfident()
    options = {"temperatures": [0.1, 1, 10, 100], "likelihood": "gaussian", "noise_variance": 1e-3, "samples": 400}
    found = calibrate(model, posterior, x, y, **options)
    assert found.best.temperature == 10 and found.posterior.temperature == 10 and not found.at_edge
    assert (
        found == calibrate(model, posterior, x, y, **options)
        or found.trials == calibrate(model, posterior, x, y, **options).trials
    )
    assert calibrate(model, posterior, x, y, **{**options, "temperatures": [0.1, 1]}).at_edge
    assert min(trial.nll for trial in found.trials) == found.best.nll and len(found.trials) == 4


def test_calibrate_the_prior():
    model, posterior, x, y = overconfident()
    found = calibrate(
        model,
        posterior.replace(ess=1e-9),
        x,
        y,
        temperatures=[1.0],
        prior_precisions=[0.1, 1.0, 10.0],
        likelihood="gaussian",
        noise_variance=1e-3,
        samples=400,
    )
    assert not found.at_edge
    assert calibrate(model, posterior, x, y, temperatures=[1.0], prior_precisions=[1.0, 2.0], likelihood="gaussian").at_edge
    assert found.best.prior_precision == 1.0 and [t.prior_precision for t in found.trials] == [0.1, 1.0, 10.0]
    with pytest.raises(ValueError, match="at least one temperature"):
        calibrate(model, posterior, x, y, temperatures=[])
    with pytest.raises(ValueError, match="Invalid temperature value: 0"):
        calibrate(model, posterior, x, y, temperatures=[0])
