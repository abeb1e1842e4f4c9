"""The posterior against closed forms, and what may be asked of it."""

import copy
import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from arturo import Arturo, Posterior, ggn_diagonal
from arturo.posterior import Weight, precision

N, WEIGHTS, PRIOR = 64, 4, 2.0
SETTLED = {"drift": 0.0, "noise": 1e-4, "initial_filter_variance": 1e4, "kl_bound": 1.0, "covariance_weight": 0.1}


def orthogonal_design():
    """X with X^T X / N diagonal and of unlike sizes, and targets with noise of variance 1."""
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(N, WEIGHTS, generator=generator, dtype=torch.float64))
    s = torch.tensor([0.3, 1.0, 2.0, 5.0], dtype=torch.float64)
    x = Q * (N * s).sqrt()
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.1], dtype=torch.float64) + torch.randn(N, generator=generator, dtype=torch.float64)
    return x, y.unsqueeze(1), s


def trained(model, loss, steps=300, **options):
    """Full batches; the prior's weight is 1 / N, so that the objective is the log posterior over N."""
    optimizer = Arturo(
        model.parameters(), prior_weight=1 / N, prior_precision=PRIOR, initial_curvature=0.1, **{**SETTLED, **options}
    )
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return optimizer


@pytest.fixture(scope="module")
def regression():
    x, y, s = orthogonal_design()
    torch.manual_seed(0)
    model = nn.Linear(WEIGHTS, 1, bias=False).double()
    return model, trained(model, lambda: 0.5 * (model(x) - y).square().mean()), x, y, s


@pytest.mark.parametrize("curvature", ["ggn", "surrogate"])
def test_linear_regression_is_exact(curvature, regression):
    """Posterior of Bayesian linear regression: precision N s + lambda, mean (N s + lambda)^-1 X^T y."""
    model, optimizer, x, y, s = regression
    posterior = optimizer.posterior(ess=N, curvature=curvature, model=model, data=(x, y), loss="squared_error")
    exact = N * s + PRIOR
    torch.testing.assert_close(posterior.variance["weight"][0], 1 / exact, rtol=1e-3, atol=0)
    torch.testing.assert_close(posterior.mean["weight"][0], (x.T @ y).squeeze() / exact, rtol=1e-3, atol=1e-4)


def test_at_one_over_prior_weight_it_is_the_optimizers_own(regression):
    """ess = 1 / rho: Sigma = rho (A + rho lambda)^-1, where the state's precision settles."""
    model, optimizer, *_ = regression
    posterior = optimizer.posterior(ess=1 / optimizer.param_groups[0]["prior_weight"], curvature="surrogate")
    torch.testing.assert_close(posterior.precision["0"], optimizer.state[model.weight]["prec"], rtol=1e-3, atol=0)


def test_logistic_regression_is_the_diagonal_laplace_posterior():
    """Mean: the posterior's mode by Newton. Precision: sum p (1 - p) x^2 + lambda there."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, WEIGHTS, generator=generator, dtype=torch.float64)
    y = (x[:, :1] + torch.randn(N, 1, generator=generator, dtype=torch.float64) > 0).double()
    model = nn.Linear(WEIGHTS, 1, bias=False).double()
    optimizer = trained(model, lambda: F.binary_cross_entropy_with_logits(model(x), y), drift=1e-3, kl_bound=0.1)
    w = torch.zeros(WEIGHTS, dtype=torch.float64)
    for _ in range(50):
        p = (x @ w).sigmoid()
        H = x.T @ (x * (p * (1 - p)).unsqueeze(1)) + PRIOR * torch.eye(WEIGHTS, dtype=torch.float64)
        w = w - torch.linalg.solve(H, x.T @ (p - y.squeeze()) + PRIOR * w)
    posterior = optimizer.posterior(ess=N, model=model, data=(x, y), loss="binary_cross_entropy")
    torch.testing.assert_close(posterior.mean["weight"][0], w, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(posterior.precision["weight"][0], H.diag(), rtol=1e-3, atol=0)


def gaussian(mean, a, prior=0.0, ess=1.0, temperature=1.0, dtype=torch.float64, param=None):
    return Posterior({"w": Weight(mean, a, prior, dtype, param)}, ess, temperature)


def test_moments_of_draws():
    """1e5 draws of five weights: mean, variance and correlation within five standard errors."""
    count, mean, a = (
        100_000,
        torch.linspace(-2, 2, 5, dtype=torch.float64),
        torch.tensor([0.01, 0.1, 1, 10, 0], dtype=torch.float64),
    )
    posterior = gaussian(mean.expand(count, 5), a.expand(count, 5), prior=0.5, ess=100, temperature=2.0)
    draws = posterior.sample(torch.Generator().manual_seed(0))["w"]
    variance = 2 / (100 * a + 0.5)
    z = (draws - mean) / variance.sqrt()
    assert (z.mean(0).abs() < 5 / count**0.5).all()
    assert ((z.square().mean(0) - 1).abs() < 5 * (2 / count) ** 0.5).all()
    assert ((z.T @ z / count - torch.eye(5)).abs() < 5 * (2 / count) ** 0.5).all()


numbers = st.floats(1e-3, 1e3)


@given(a=st.floats(-10, 1e3), ess=numbers, prior=numbers, temperature=numbers, shift=st.floats(-5, 5))
@settings(max_examples=50, deadline=None)
def test_log_prob_is_torchs(a, ess, prior, temperature, shift):
    mean = torch.tensor([0.5, -1.0], dtype=torch.float64)
    posterior = gaussian(mean, torch.full_like(mean, a), prior, ess, temperature)
    exact = torch.distributions.Normal(mean, posterior.variance["w"].sqrt())
    assert posterior.log_prob({"w": mean + shift}) == pytest.approx(exact.log_prob(mean + shift).sum().item(), rel=1e-9)


@given(a=st.floats(-10, 1e3), ess=numbers, prior=numbers, temperature=numbers, factor=st.floats(1.01, 100))
@settings(max_examples=50, deadline=None)
def test_precision_properties(a, ess, prior, temperature, factor):
    """Never below the prior's share; temperature scales all of it, more data only narrows."""
    at = torch.tensor(a, dtype=torch.float64)
    found = precision(at, ess, prior, temperature)
    assert found >= prior / temperature * (1 - 1e-12)
    assert precision(at, ess, prior, temperature * factor).item() == pytest.approx(found.item() / factor)
    assert precision(at, ess * factor, prior, temperature) >= found


# ---- from the optimizer


def classifier(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    x = torch.randn(20, 3).to(dtype)
    return model, x, torch.arange(20) % 2


def step(model, optimizer, x, y, count=3):
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_groups_frozen_parameters_and_names():
    """Each group's own prior; a parameter without a step has no posterior; names from the model, the optimizer, or numbers."""
    model, x, y = classifier()
    model[0].bias.requires_grad_(False)
    groups = [{"params": [model[0].weight, model[0].bias], "prior_precision": 3.0}, {"params": model[2].parameters()}]
    optimizer = Arturo(groups, prior_precision=7.0)
    step(model, optimizer, x, y)
    named = optimizer.posterior(ess=20, model=model, data=(x, y))
    assert list(named.mean) == ["0.weight", "2.weight", "2.bias"]
    assert [w.prior_precision for w in named.weights.values()] == [3.0, 7.0, 7.0]
    assert list(optimizer.posterior(ess=20, curvature="surrogate").mean) == ["0", "2", "3"]
    assert {
        w.prior_precision for w in optimizer.posterior(ess=20, curvature="surrogate", prior_precision=1).weights.values()
    } == {1.0}
    exact = ggn_diagonal(model, (x, y))
    for given_curvature in (exact, lambda params: [exact[n] for n in named.mean]):
        other = optimizer.posterior(ess=20, curvature=given_curvature, model=model)
        assert all(torch.equal(other.variance[n], named.variance[n]) for n in named.mean)
    for name, w in named.weights.items():
        torch.testing.assert_close(named.variance[name], 1 / (20 * exact[name] + w.prior_precision))


def test_names_of_named_parameters():
    model, x, y = classifier()
    optimizer = Arturo(model.named_parameters())
    if "param_names" not in optimizer.param_groups[0]:
        pytest.skip("this torch does not keep names")
    step(model, optimizer, x, y)
    assert list(optimizer.posterior(ess=20, curvature="surrogate").mean) == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_precisions(dtype, state_dtype):
    """The mean at the optimizer's precision; draws in the parameter's dtype; what others wrote into a parameter counts."""
    p = nn.Parameter(torch.linspace(1, 2, 6).to(dtype))
    optimizer = Arturo([p], kl_bound=0.01, state_dtype=state_dtype)
    for _ in range(3):
        p.grad = torch.full_like(p, 0.1)
        optimizer.step()
    with torch.no_grad():
        p[0] = 5
    posterior = optimizer.posterior(ess=1e4, curvature="surrogate")
    mean, draw = posterior.mean["0"], posterior.sample()["0"]
    real = torch.view_as_real(p.detach()) if p.is_complex() else p.detach()
    assert mean.dtype == posterior.variance["0"].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert draw.dtype == dtype and draw.shape == p.shape and mean.shape == real.shape
    assert torch.equal(mean.to(real.dtype), real) and mean.flatten()[0] == 5
    if "mean" in optimizer.state[p]:
        assert torch.equal(mean[1:], optimizer.state[p]["mean"][1:]) and not torch.equal(mean, mean.to(dtype).float())


def test_generator():
    """The same generator, the same draw, whatever the global one does; without it torch.manual_seed rules."""
    model, x, y = classifier()
    optimizer = Arturo(model.parameters())
    step(model, optimizer, x, y)
    posterior = optimizer.posterior(ess=20, curvature="surrogate")

    def draw(generator=None):
        return torch.cat([t.flatten() for t in posterior.sample(generator).values()])

    first, state = draw(torch.Generator().manual_seed(3)), torch.get_rng_state()
    assert torch.equal(draw(torch.Generator().manual_seed(3)), first) and torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(draw(torch.Generator().manual_seed(4)), first)
    torch.manual_seed(0)
    free = draw()
    torch.manual_seed(0)
    assert torch.equal(draw(), free) and not torch.equal(draw(), free)


def test_strides_do_not_change_a_draw():
    plain = torch.randn(2, 3, 4, 5)
    draws = []
    for mean in (plain, plain.to(memory_format=torch.channels_last)):
        draws.append(gaussian(mean, torch.ones_like(mean), dtype=torch.float32).sample(torch.Generator().manual_seed(0))["w"])
    assert torch.equal(*draws)


def test_a_snapshot_that_training_does_not_change():
    model, x, y = classifier()
    optimizer = Arturo(model.parameters(), kl_bound=0.1)
    step(model, optimizer, x, y)
    posterior = optimizer.posterior(ess=20, curvature="surrogate")
    before = copy.deepcopy((posterior.mean, posterior.variance))
    step(model, optimizer, x, y, count=5)
    for old, now in zip(before, (posterior.mean, posterior.variance), strict=True):
        assert all(torch.equal(old[name], now[name]) for name in old)
    assert not torch.equal(posterior.mean["0"], model[0].weight)


def test_after_resume():
    model, x, y = classifier()
    optimizer = Arturo(model.parameters())
    step(model, optimizer, x, y)
    twin = copy.deepcopy(model)
    resumed = Arturo(twin.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ours, theirs = (
        o.posterior(ess=20, curvature="surrogate").sample(torch.Generator().manual_seed(0)) for o in (optimizer, resumed)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_save_and_load(dtype, tmp_path):
    """The same distribution, in a process that has only the model; a model that is not the one is refused."""
    model, x, y = classifier(dtype)
    optimizer = Arturo(model.parameters())
    step(model, optimizer, x, y)
    posterior = optimizer.posterior(ess=20, temperature=0.3, model=model, data=(x, y))
    posterior.save(tmp_path / "posterior.pt")
    loaded = Posterior.load(tmp_path / "posterior.pt")
    assert (loaded.ess, loaded.temperature, repr(loaded)) == (20.0, 0.3, "Posterior(32 weights, ess=20, temperature=0.3)")
    draws = [p.sample(torch.Generator().manual_seed(0)) for p in (posterior, loaded)]
    assert all(torch.equal(draws[0][name], draws[1][name]) for name in posterior.mean)
    assert posterior.log_prob(draws[0]) == loaded.log_prob(draws[0])
    twin = copy.deepcopy(model)
    with loaded.sampled_params(twin, generator=torch.Generator().manual_seed(0)):
        assert all(torch.equal(p, draws[0][name]) for name, p in twin.named_parameters())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    with pytest.raises(ValueError, match="comes from a file: pass the model"), loaded.sampled_params():
        pass
    with pytest.raises(ValueError, match=r"'0.weight' of the posterior, shape \(5, 3\), is not one of the model's"):
        loaded.parameters(nn.Linear(3, 5))
    with pytest.raises(ValueError, match=r"'0.weight': shape \(4, 3\), in the posterior \(5, 3\)"):
        loaded.parameters(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with pytest.raises(ValueError, match="not what Posterior"):
        Posterior.load(file)


def test_around_any_model():
    """The diagonal Laplace approximation of a model that nothing of ours has trained; in half precision too."""
    model, x, y = classifier()
    posterior = Posterior.of_model(model, ess=20, prior_precision=2.0, data=(x, y), temperature=0.5)
    exact = ggn_diagonal(model, (x, y))
    assert list(posterior.mean) == list(exact)
    for name, p in model.named_parameters():
        assert torch.equal(posterior.mean[name], p)
        torch.testing.assert_close(posterior.variance[name], 0.5 / (20 * exact[name] + 2))
    part = Posterior.of_model(model.bfloat16(), ess=20, prior_precision=2.0, curvature={"2.bias": torch.ones(2)})
    assert list(part.mean) == ["2.bias"] and part.mean["2.bias"].dtype == torch.float32
    assert part.sample()["2.bias"].dtype == torch.bfloat16
    with pytest.raises(TypeError, match="needs data"):
        Posterior.of_model(model, ess=20, prior_precision=2.0)
    with pytest.raises(ValueError, match="Invalid ess value: 0"):
        Posterior.of_model(model, ess=0, prior_precision=2.0, data=(x, y))


def test_replace():
    posterior = gaussian(torch.zeros(2), torch.ones(2), prior=1.0, ess=3.0)
    assert posterior.replace(ess=7).variance["w"].tolist() == [0.125, 0.125]
    assert posterior.replace(prior_precision=5, temperature=4).variance["w"].tolist() == [0.5, 0.5]
    assert posterior.variance["w"].tolist() == [0.25, 0.25]


# ---- bad input


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "all", None, True])
@pytest.mark.parametrize("name", ["ess", "temperature"])
def test_numbers_out_of_range(name, value):
    model, x, y = classifier()
    optimizer = Arturo(model.parameters())
    step(model, optimizer, x, y)
    with pytest.raises(ValueError, match=rf"^Invalid {name} value: {value!r} \(must be a finite number > 0"):
        optimizer.posterior(**{"ess": 20, "curvature": "surrogate", name: value})


def test_errors_name_the_way_out():
    model, x, y = classifier()
    optimizer = Arturo(model.parameters())
    with pytest.raises(RuntimeError, match="before the first step"):
        optimizer.posterior(ess=20, curvature="surrogate")
    optimizer.param_groups[0]["lr"] = 0.0
    step(model, optimizer, x, y)  # makes state, observes nothing
    with pytest.raises(RuntimeError, match="before the first step"):
        optimizer.posterior(ess=20, curvature="surrogate")
    optimizer.param_groups[0]["lr"] = 1.0
    step(model, optimizer, x, y)
    with pytest.raises(TypeError, match="needs model and data: posterior"):
        optimizer.posterior(ess=20)
    with pytest.raises(TypeError, match="needs data: posterior"):
        optimizer.posterior(ess=20, model=model)
    with pytest.raises(ValueError, match=r"parameter 0 of the optimizer, shape \(5, 3\), is not one of the model's"):
        optimizer.posterior(ess=20, model=copy.deepcopy(model), data=(x, y))
    with pytest.raises(ValueError, match="Invalid curvature value: 'hessian'"):
        optimizer.posterior(ess=20, curvature="hessian")
    with pytest.raises(ValueError, match="Invalid prior_precision value: -1"):
        optimizer.posterior(ess=20, curvature="surrogate", prior_precision=-1)
    with pytest.raises(ValueError, match="infinite"):
        optimizer.posterior(ess=20, curvature=lambda params: [torch.zeros_like(p) for p in params], prior_precision=0)
    with pytest.raises(ValueError, match="gave 1 tensors for 4 parameters"):
        optimizer.posterior(ess=20, curvature=lambda params: params[:1])
    with pytest.raises(ValueError, match=r"curvature of '0' has shape \(\), the parameter \(5, 3\)"):
        optimizer.posterior(ess=20, curvature=lambda params: [torch.ones(()) for p in params])
    with pytest.raises(ValueError, match="curvature of '0' is not finite"):
        optimizer.posterior(ess=20, curvature=lambda params: [p / 0 for p in params])
    with pytest.raises(KeyError, match=r"nothing for .0.; it has 0\.weight"):
        optimizer.posterior(ess=20, curvature=ggn_diagonal(model, (x, y)))
    posterior = optimizer.posterior(ess=20, curvature="surrogate")
    with pytest.raises(KeyError, match="no value for '0'"):
        posterior.log_prob({})
    with pytest.raises(ValueError, match=r"'0' has shape \(5, 3\), got \(3,\)"):
        posterior.log_prob({"0": torch.zeros(3)})
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"sample\(\) does not work inside torch.inference_mode"):
        posterior.sample()
