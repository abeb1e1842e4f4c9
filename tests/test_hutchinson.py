"""Hutchinson's estimate against brute-force float64 Hessians; its noise is a hash."""

import itertools

import pytest
import torch

from arturo import Arturo
from arturo.core import rounding
from arturo.surrogates.hutchinson import estimated_diagonal, hessian_product, signs

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randn(6, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def loss_of(weight, bias):
    return ((torch.tanh(X @ weight.T + bias) - Y) ** 2).mean()


def start():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in ((2, 2), (2,))]


def brute_force(params):
    """The diagonal of the whole Hessian, cut into the parameters' shapes."""

    def flat_loss(flat):
        pieces = flat.split([p.numel() for p in params])
        return loss_of(*(x.view(p.shape) for x, p in zip(pieces, params, strict=True)))

    flat = torch.cat([p.detach().reshape(-1) for p in params])
    diagonal = torch.func.hessian(flat_loss)(flat).diagonal()
    return [x.view(p.shape) for x, p in zip(diagonal.split([p.numel() for p in params]), params, strict=True)]


def test_the_mean_over_all_signs_is_the_diagonal():
    """64 sign vectors are all there are: the expectation is exact, not sampled."""
    params = start()
    total = [torch.zeros_like(p) for p in params]
    choices = list(itertools.product([-1.0, 1.0], repeat=6))
    for choice in choices:
        flat = torch.tensor(choice, dtype=torch.float64)
        z = [flat[:4].view(2, 2), flat[4:]]
        grads = torch.autograd.grad(loss_of(*params), params, create_graph=True)
        for sum_, v, product in zip(total, z, hessian_product(params, grads, z), strict=True):
            sum_ += estimated_diagonal(v, product)
    for found, exact in zip(total, brute_force(params), strict=True):
        torch.testing.assert_close(found / len(choices), exact, rtol=1e-10, atol=1e-12)


def test_kernels_of_convolutions_are_averaged_over_space():
    z, product = torch.ones(2, 3, 4, 5), torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    h = estimated_diagonal(z, product)
    assert h.shape == product.shape
    torch.testing.assert_close(h, product.mean((2, 3), keepdim=True).expand_as(h))
    assert torch.equal(estimated_diagonal(z[0], product[0]), product[0])


def test_signs_are_fair_uncorrelated_and_new_at_every_step():
    draws = torch.stack([signs(torch.zeros(300), rounding.seed(step, 3)) for step in range(2000)])
    assert set(draws.unique().tolist()) == {-1.0, 1.0}
    assert draws.mean(0).abs().max() < 5 / 2000**0.5
    correlation = draws.T @ draws / 2000 - torch.eye(300)
    assert correlation.abs().max() < 6 / 2000**0.5  # 45,000 pairs; a fixed relation would give 1
    other = torch.stack([signs(torch.zeros(300), rounding.seed(step, 4)) for step in range(2000)])
    assert (draws * other).mean(0).abs().max() < 5 / 2000**0.5


def test_signs_take_a_step_of_the_device_and_complex_numbers():
    for step in (0, 7):
        assert torch.equal(
            signs(torch.zeros(9), rounding.seed(torch.tensor(step), 2)), signs(torch.zeros(9), rounding.seed(step, 2))
        )
    z = signs(torch.zeros(50, dtype=torch.complex64), rounding.seed(0, 0))
    assert z.dtype == torch.complex64 and len(set(z.tolist())) == 4


def train(optimizer, params, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(*params).backward(create_graph=True)
        optimizer.step()


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("options", [{}, {"capturable": True}], ids=["host", "device"])
def test_the_optimizer_observes_the_estimate(options):
    """After one step a is the estimate itself, with the hash's signs."""
    params = start()
    optimizer = Arturo(params, surrogate="hutchinson", **options)
    exact = torch.func.hessian(lambda flat: loss_of(flat[:4].view(2, 2), flat[4:]))(
        torch.cat([p.detach().view(-1) for p in params])
    )
    train(optimizer, params, 1)
    z = torch.cat([signs(p.detach(), rounding.seed(0, i)).view(-1) for i, p in enumerate(params)])
    found = torch.cat([optimizer.state[p]["a"].view(-1) for p in params])
    torch.testing.assert_close(found, z * (exact @ z))


@pytest.mark.filterwarnings("ignore:Using backward")
def test_groups_share_one_product(snapshot):
    params, twins = start(), start()
    whole = Arturo(params, surrogate="hutchinson", kl_bound=0.01)
    split = Arturo([{"params": [p]} for p in twins], surrogate="hutchinson", kl_bound=0.01)
    train(whole, params, 5)
    train(split, twins, 5)
    assert snapshot(whole) == snapshot(split) and whole.last_step == split.last_step


def test_a_gradient_without_a_graph_is_refused():
    params = start()
    optimizer = Arturo(params, surrogate="hutchinson")
    loss_of(*params).backward()
    with pytest.raises(RuntimeError, match=r"create_graph=True"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()  # nothing happens, so nothing is asked for
    assert optimizer.state[params[0]]["step"] == 0


@pytest.mark.filterwarnings("ignore:Using backward")
def test_linear_in_a_parameter_is_no_curvature():
    p, q = (torch.nn.Parameter(torch.tensor([2.0])) for _ in range(2))
    optimizer = Arturo([p, q], surrogate="hutchinson")
    (p**2 + 3 * q).sum().backward(create_graph=True)
    optimizer.step()
    assert optimizer.state[p]["a"].item() == 2.0 and optimizer.state[q]["a"].item() == 0.0


@pytest.mark.filterwarnings("ignore:Using backward")
def test_complex_parameters_are_pairs():
    """|w|^2 + 3 Re(w)^2 has the diagonal (8, 2) over real and imaginary part, and no cross terms."""
    w = torch.nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    optimizer = Arturo([w], surrogate="hutchinson")
    (w.abs().square() + 3 * w.real.square()).sum().backward(create_graph=True)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[w]["a"], torch.tensor([[8.0, 2.0], [8.0, 2.0]]))
