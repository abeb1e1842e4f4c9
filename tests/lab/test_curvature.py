"""Exact diagonals in the training loop, and AdaHessian with them."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian

from arturo_lab.data import loading
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS, peer
from arturo_lab.optimizers.curvature import diagonal_in_backward, extend, with_exact_diagonal, with_spatial_average
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.run import open_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.resnet import resnet18
from arturo_lab.training.train import train

DIGITS = loading.load("digits")


def config(optimizer: str, task: str = "digits-cnn", epochs: int = 1, subset: int = 64) -> RunConfig:
    return RunConfig.for_task(task, optimizer, epochs=epochs, subset=subset)


def test_backward_leaves_the_hessians_diagonal() -> None:
    torch.manual_seed(0)
    model, loss = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).double(), nn.CrossEntropyLoss()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    plain = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).double()

    def of_weight(w: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(plain, {**weights, "0.weight": w}, (x,)), y)

    expected = hessian(of_weight)(weights["0.weight"]).view(12, 12).diagonal().view(4, 3)
    extend(model, loss)
    with diagonal_in_backward("hessian"):
        loss(model(x), y).backward()
    torch.testing.assert_close(model[0].weight.diag_h, expected)
    assert list(model.state_dict()) == list(weights)


@pytest.mark.parametrize("optimizer", ["arturo-hessian", "arturo-ggn", "adahessian-hessian"])
def test_layers_without_a_rule_are_refused_with_a_way_out(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1)
            return self.outer(x + self.inner(x))

    for model in (normed, Residual, partial(resnet18, num_classes=10, channels=1)):
        monkeypatch.setitem(TASKS, "odd", replace(TASKS["digits-mlp"], model=model))
        with pytest.raises(ConfigError, match=r"^optimizer: .* no rule for a layer .*Use arturo-hutchinson or adahessian"):
            train(config(optimizer, "odd"), DIGITS)
        assert len(train(config("arturo-hutchinson", "odd", subset=32), DIGITS)) == 1


@pytest.mark.parametrize("optimizer", ["arturo-hessian", "adahessian-hessian"])
def test_missing_package_names_the_command(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backpack", None)
    monkeypatch.setitem(sys.modules, "backpack.extensions", None)
    with pytest.raises(ConfigError, match=r"BackPACK: pip install 'arturo\[hessian\]'"):
        train(config(optimizer), DIGITS)


def test_exact_adahessian_is_the_packages_where_the_estimate_is_exact() -> None:
    """A diagonal Hessian: z * Hz is the diagonal for every z, so both take the same steps."""
    curvatures, start = torch.tensor([3.0, 0.5, 1.0]), torch.tensor([1.0, -2.0, 0.5])
    load = peer("pytorch_optimizer", "AdaHessian")
    estimated, exact = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    theirs, ours = load()([estimated], lr=0.1), with_exact_diagonal(load)()([exact], lr=0.1)
    for _ in range(5):
        for p, optimizer in ((estimated, theirs), (exact, ours)):
            optimizer.zero_grad()
            (0.5 * curvatures * p**2).sum().backward(create_graph=p is estimated, inputs=[p])
        exact.diag_h = curvatures
        theirs.step()
        ours.step()
        torch.testing.assert_close(exact, estimated)
    assert (exact.abs() < start.abs()).all()


def test_adahessian_averages_over_a_kernel() -> None:
    """The authors' rule for four axes: the mean of the absolute values stands for each; elsewhere it is the package's."""
    load = peer("pytorch_optimizer", "AdaHessian")
    found = []
    for make in (load, with_spatial_average(load)):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(2, 3, 3, 3)), nn.Parameter(torch.randn(4, 5))]
        optimizer = make()(params)
        sum((p**4).sum() + p.sin().prod() for p in params).backward(create_graph=True)
        optimizer.step()
        found.append([optimizer.state[p]["hessian"] for p in params])
    (plain, matrix), (kernel, same) = found
    assert torch.equal(matrix, same) and (plain.abs() > 0.1).any()
    torch.testing.assert_close(kernel, plain.abs().mean(dim=(2, 3), keepdim=True).expand(2, 3, 3, 3))


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(
    "optimizer", ["arturo-hessian", "arturo-hutchinson", "arturo-adam", "adahessian", "adahessian-hessian"]
)
def test_a_resumed_run_has_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    weights = []
    for out, stops in ((tmp_path / "whole", ()), (tmp_path / "parts", (1, 3))):
        chosen, at = config(optimizer, epochs=2), iter((*stops, None))
        limit = next(at)
        while True:
            count = 0

            def stop() -> bool:
                nonlocal count
                count += 1
                return count == limit  # noqa: B023

            with open_run(out, chosen) as folder:
                try:
                    train(chosen, DIGITS, run=folder, stop=stop)
                    break
                except KeyboardInterrupt:
                    limit = next(at)
        weights.append(torch.load(folder.path / "checkpoint.pt", weights_only=True)["model"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_only_those_that_need_it_leave_a_graph() -> None:
    assert [name for name, entry in OPTIMIZERS.items() if entry.create_graph] == ["arturo-hutchinson", "adahessian"]
