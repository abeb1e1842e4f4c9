"""The Gauss-Newton diagonal against brute force in float64: full Jacobians, full Hessians, one example at a time."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arturo import ggn_diagonal


class Residual(nn.Module):
    """A convolutional block with a residual sum, batch norm, and one weight used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.second = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        h = self.first(x)
        h = h + F.relu(self.norm(self.second(h)))
        return self.head((h + F.dropout(self.second(h), 0.5, self.training)).mean((2, 3)))


def brute_force(model, x, y, loss):
    """The mean over examples of diag(J^T H J), with H from the Hessian of the loss in the output."""
    model.eval()
    named = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for xi, yi in zip(x, y, strict=True):

        def output(*values, xi=xi):
            return torch.func.functional_call(model, dict(zip(named, values, strict=True)), (xi[None],))[0].flatten()

        jacobians = torch.autograd.functional.jacobian(output, tuple(p.detach() for p in named.values()))
        out = output(*named.values()).detach()
        H = torch.autograd.functional.hessian(lambda o, out=out, yi=yi: loss(o[None], yi[None]), out)
        for name, J in zip(named, jacobians, strict=True):
            J = J.flatten(1)
            total[name] += (J * (H @ J)).sum(0).view_as(total[name]) / len(x)
    return total


def half_squares(output, target):
    return 0.5 * (output - target).square().sum()


def binary(output, target):
    return F.binary_cross_entropy_with_logits(output, target, reduction="sum")


CLASSES = torch.arange(7) % 4
LOSSES = {
    "cross_entropy": ("cross_entropy", F.cross_entropy, CLASSES),
    "squared_error": ("squared_error", half_squares, torch.linspace(-1, 1, 28, dtype=torch.float64).view(7, 4)),
    "binary_cross_entropy": ("binary_cross_entropy", binary, (torch.arange(28).view(7, 4) % 2).double()),
    "a function": (F.mse_loss, F.mse_loss, torch.linspace(-1, 1, 28, dtype=torch.float64).view(7, 4)),
    "a function of classes": (F.cross_entropy, F.cross_entropy, CLASSES),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1),) * 2 + (CLASSES,),
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Residual().double()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    return model


@pytest.fixture
def x():
    return torch.randn(7, 1, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
def test_against_brute_force(name, model, x):
    loss, truth, y = LOSSES[name]
    found, expected = ggn_diagonal(model, (x, y), loss), brute_force(model, x, y, truth)
    assert list(found) == [n for n, _ in model.named_parameters()]
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-12)
        assert value.abs().max() > 1e-6


@pytest.mark.parametrize("memory", [1, 3 * 8 * 200, 1 << 30])
def test_chunks_and_batches_change_nothing(memory, model, x):
    """One gradient at a time, a few, all; all data at once, or in uneven batches."""
    whole = ggn_diagonal(model, (x, CLASSES))
    parts = ggn_diagonal(model, [(x[:3], CLASSES[:3]), [x[3:], CLASSES[3:]]], memory=memory)
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-10, atol=0)


def test_a_concave_direction_counts_as_negative():
    model = nn.Linear(1, 2, bias=False).double()
    x = torch.ones(1, 1, dtype=torch.float64)
    found = ggn_diagonal(model, (x, torch.zeros(1)), lambda out, y: out[0, 0] ** 2 - 3 * out[0, 1] ** 2)
    torch.testing.assert_close(found["weight"], torch.tensor([[2.0], [-6.0]], dtype=torch.float64))


def test_random_columns_are_right_in_the_mean(model, x):
    exact = ggn_diagonal(model, (x, CLASSES))["head.weight"]
    many = ggn_diagonal(model, (x, CLASSES), columns=4000, generator=torch.Generator().manual_seed(0))["head.weight"]
    assert ((many / exact - 1).abs() < 0.15).all() and not torch.equal(many, exact)


def test_complex_parameters_are_pairs():
    """f = Re(z x): half a square has the curvatures Re(x)^2 and Im(x)^2."""

    class Turn(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.tensor([1 + 2j]))

        def forward(self, x):
            return (self.z * x).real

    found = ggn_diagonal(Turn(), (torch.tensor([[3 + 4j]]), torch.zeros(1, 1)), "squared_error")
    torch.testing.assert_close(found["z"], torch.tensor([[9.0, 16.0]]))


def test_half_precision_is_computed_in_float32(x):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 4)).bfloat16()
    wide = nn.Sequential(nn.Flatten(), nn.Linear(25, 4))
    wide.load_state_dict(model.state_dict())
    found, expected = ggn_diagonal(model, (x.bfloat16(), CLASSES)), ggn_diagonal(wide, (x.bfloat16().float(), CLASSES))
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == torch.float32 for name in expected)


def test_chosen_parameters_tied_weights_and_two_inputs():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.b = nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight
            self.c = nn.Parameter(torch.ones(2))

        def forward(self, x, z):
            return self.b(self.a(x)) + self.c * z

    torch.manual_seed(0)
    model = Tied().double()
    x, z = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    found = ggn_diagonal(model, [((x, z), torch.zeros(5, 2))], "squared_error")
    assert list(found) == ["c", "a.weight"]
    torch.testing.assert_close(found["c"], z.square().mean(0))
    W = model.a.weight.detach()
    jacobians = [torch.autograd.functional.jacobian(lambda W, xi=xi: W @ W @ xi, W) for xi in x]
    torch.testing.assert_close(found["a.weight"], torch.stack([J.square().sum(0) for J in jacobians]).mean(0))
    only = ggn_diagonal(model, [((x, z), torch.zeros(5, 2))], "squared_error", parameters=[model.c])
    assert list(only) == ["c"] and torch.equal(only["c"], found["c"])


def test_the_model_is_left_as_it_was(model, x):
    """Modes of every module, buffers, gradients, requires_grad."""
    model.train()
    model.norm.eval()
    model.head.weight.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    ggn_diagonal(model, (x, CLASSES))
    assert model.training and model.first.training and not model.norm.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and not model.head.weight.requires_grad


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"loss": "hinge"}, ValueError, "Invalid loss value: 'hinge'"),
        ({"loss": 3}, ValueError, "Invalid loss value: 3"),
        ({"columns": 0}, ValueError, "Invalid columns value: 0"),
        ({"data": []}, ValueError, "no data"),
        ({"data": [torch.zeros(2)]}, TypeError, "batches"),
        ({"data": [("x", torch.zeros(2))]}, TypeError, "must give tensors, got str"),
        ({"data": (torch.zeros(3, 2), torch.zeros(4))}, ValueError, r"outputs of shape \(3, 2\) for 4 targets"),
        ({"parameters": [torch.zeros(2)]}, ValueError, "none of the parameters"),
        ({"model": nn.BatchNorm1d(2, track_running_stats=False)}, ValueError, "without running statistics"),
        ({"model": nn.LSTM(2, 2)}, TypeError, "one tensor of outputs, got tuple"),
        ({"model": nn.Unflatten(1, (2, 1))}, ValueError, "nothing to do"),
        ({"model": nn.Sequential(nn.Linear(2, 2), nn.Unflatten(1, (2, 1)))}, ValueError, r"shape \(3, 2, 1\)"),
    ],
)
def test_bad_input(change, error, words):
    given = {"model": nn.Linear(2, 2), "data": (torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)), **change}
    with pytest.raises(error, match=words):
        ggn_diagonal(**given)
