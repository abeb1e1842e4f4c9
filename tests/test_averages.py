"""The averages behind the surrogates: bias correction, missing entries, Adam's own moments as referee."""

import pytest
import torch

from arturo import Arturo
from arturo.surrogates.averages import average_weight, averaged


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999, 1 - 1e-9])
def test_the_corrected_average_is_adams(beta):
    """x_t / (1 - beta^t), term by term."""
    y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = torch.ones(4, dtype=torch.bool)
    corrected, plain = torch.full((4,), 7.0, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for t in range(1, 31):
        corrected = averaged(corrected, y[t - 1], seen, average_weight(beta, torch.tensor(t, dtype=torch.float64)))
        plain = beta * plain + (1 - beta) * y[t - 1]
        rtol = 1e-10 if beta < 0.9999 else 1e-6  # the referee's 1 - beta^t cancels
        torch.testing.assert_close(corrected, plain / (1 - beta**t), rtol=rtol, atol=1e-12)


def test_the_first_observation_replaces_the_start_exactly():
    y = torch.tensor([0.1, -1e18, 3e-30])
    start = torch.tensor([1e10, 0.3, 1.0])
    weight = average_weight(0.999, torch.tensor(1.0, dtype=torch.float64))
    assert torch.equal(averaged(start, y, torch.ones(3, dtype=torch.bool), weight), y)


@pytest.mark.parametrize("options", [{}, {"capturable": True}], ids=["host", "device"])
def test_adam_surrogate_has_adams_moments(options, quadratic):
    """The same gradients into torch's Adam: b + a mu is its corrected first moment, a the root of its second."""
    ours, theirs = quadratic.params(dtype=torch.float64), quadratic.params(dtype=torch.float64)
    optimizer = Arturo(ours, surrogate="adam", averaging=(0.8, 0.95), kl_bound=0.01, **options)
    adam = torch.optim.Adam(theirs, betas=(0.8, 0.95))
    for t in range(1, 21):
        quadratic.gradients(ours, t)
        for p, twin in zip(ours, theirs, strict=True):
            twin.grad = p.grad.clone()
        means = [p.detach().clone() for p in ours]
        optimizer.step()
        adam.step()
        for p, twin, mean in zip(ours, theirs, means, strict=True):
            state, moments = optimizer.state[p], adam.state[twin]
            torch.testing.assert_close(state["a"] * mean + state["b"], moments["exp_avg"] / (1 - 0.8**t))
            torch.testing.assert_close(state["a"], (moments["exp_avg_sq"] / (1 - 0.95**t)).sqrt())
            torch.testing.assert_close(state["grad_avg"], moments["exp_avg"] / (1 - 0.8**t))
