"""The Hessian's and the Gauss-Newton matrix's diagonal from BackPACK, against brute force in float64."""

import subprocess
import sys

import pytest
import torch
from backpack import backpack, extend
from backpack.extensions import DiagGGNExact, DiagHessian
from torch import nn
from torch.func import functional_call, hessian, jacrev

from arturo import Arturo

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
X = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 2, 1, 1, 0])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)).double()


def brute_force(model, name):
    """diag of H, or of J^T (d2 loss / d logits2) J, with the whole matrix in memory."""
    values = {key: p.detach() for key, p in model.named_parameters()}
    sizes = [p.numel() for p in values.values()]
    plain = network()  # without BackPACK's hooks, which torch.func does not take

    def logits(flat):
        pieces = {key: x.view(p.shape) for (key, p), x in zip(values.items(), flat.split(sizes), strict=True)}
        return functional_call(plain, pieces, (X,)).reshape(-1)

    def loss(z):
        return nn.functional.cross_entropy(z.view(5, 3), Y)

    flat = torch.cat([p.reshape(-1) for p in values.values()])
    if name == "hessian":
        matrix = hessian(lambda w: loss(logits(w)))(flat)
    else:
        J = jacrev(logits)(flat)
        matrix = J.T @ hessian(loss)(logits(flat)) @ J
    return [x.view(p.shape) for x, p in zip(matrix.diagonal().split(sizes), values.values(), strict=True)]


@pytest.mark.parametrize("options", [{}, {"capturable": True}], ids=["host", "device"])
@pytest.mark.parametrize("name, extension", [("hessian", DiagHessian), ("ggn", DiagGGNExact)])
def test_the_surrogate_is_the_running_average_of_the_exact_diagonal(name, extension, options):
    """Two steps, so that bias correction and averaging count: a_2 = (0.75 h_1 + h_2) / 1.75."""
    model, loss = extend(network()), extend(nn.CrossEntropyLoss())
    optimizer = Arturo(model.parameters(), surrogate=name, averaging=(0.5, 0.75), kl_bound=0.5, **options)
    exact = []
    for _ in range(2):
        exact.append(brute_force(model, name))
        optimizer.zero_grad()
        with backpack(extension()):
            loss(model(X), Y).backward()
        optimizer.step()
    for p, first, second in zip(model.parameters(), *exact, strict=True):
        assert not torch.allclose(first, second, rtol=1e-3, atol=0)
        torch.testing.assert_close(optimizer.state[p]["a"], (0.75 * first + second) / 1.75, rtol=1e-9, atol=1e-12)


def test_a_function_that_differentiates_gives_the_same():
    """The way out where BackPACK has no rule."""
    model, twin = extend(network()), network()
    with backpack(DiagHessian()):
        extend(nn.CrossEntropyLoss())(model(X), Y).backward()
    nn.functional.cross_entropy(twin(X), Y).backward()
    ours = Arturo(model.parameters(), surrogate="hessian", kl_bound=0.5)
    other = Arturo(twin.parameters(), surrogate=lambda params: brute_force(twin, "hessian"), kl_bound=0.5)
    ours.step()
    other.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_backpack_needs_no_torchvision():
    """It requires the package and does not import it; nor do arturo and its laboratory import either."""
    code = (
        "import sys, arturo_lab.cli; print([m for m in ('backpack', 'torchvision') if m in sys.modules]); "
        "import backpack; print('torchvision' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[:2] == ["[]", "False"]
