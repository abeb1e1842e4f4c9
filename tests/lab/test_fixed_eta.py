"""``arturo eta`` and the prediction error: what the steps of a run say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from arturo import Arturo
from arturo_lab import cli
from arturo_lab.data import loading
from arturo_lab.errors import RunError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.fixed_eta import multipliers
from arturo_lab.optimizers.settings import as_arguments
from arturo_lab.runs.config import RunConfig
from arturo_lab.training.prediction import prediction_error
from arturo_lab.training.train import train


def written(folder: Path, etas: list[float | None]) -> Path:
    folder.mkdir(parents=True)
    rows = (
        {"step": i, "epoch": 1, "loss": 1.0, "lr": 1.0} | ({} if eta is None else {"eta": eta}) for i, eta in enumerate(etas, 1)
    )
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "et')
    return folder


def test_the_median_of_the_steps(tmp_path: Path) -> None:
    found = multipliers(written(tmp_path / "run", [0.0, 5.0, 2.0, 1.0, 100.0]))
    assert found.median == 2.0 and found.quantile(0.0) == 0.0 and found.quantile(1.0) == 100.0


def test_what_has_no_multipliers(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not a run folder, it has no steps\.jsonl"):
        multipliers(tmp_path)
    with pytest.raises(RunError, match=r"no step has an eta; the median is taken from a run of arTuRO"):
        multipliers(written(tmp_path / "sgd", [None, None]))


def test_the_command_proposes_what_the_next_one_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(written(tmp_path / name, etas)) for name, etas in (("one", [1.0, 2.0]), ("two", [3.0, 4.0, 9.0]))]
    assert cli.main(["eta", *runs]) == 0
    out = capsys.readouterr().out
    assert "together" in out and out.rstrip().endswith("--optimizer arturo-fixed-eta --set eta=3")
    config = RunConfig.for_task("digits-mlp", "arturo-fixed-eta", epochs=1, subset=64, overrides={"eta": 3.0})
    optimizer = OPTIMIZERS["arturo-fixed-eta"].load()([torch.nn.Parameter(torch.ones(2))], **as_arguments(config.settings))
    assert optimizer.param_groups[0]["eta"] == 3.0
    assert cli.main(["eta", str(tmp_path / "missing")]) == 2


@pytest.mark.parametrize("surrogate", ["kalman", "adam"])
def test_prediction_error_by_hand(surrogate: str) -> None:
    p, q = torch.nn.Parameter(torch.tensor([1.0, -2.0])), torch.nn.Parameter(torch.tensor(0.5))
    optimizer = Arturo([p, q], surrogate=surrogate, kl_bound=0.01)
    p.grad, q.grad = torch.tensor([0.3, 0.4]), torch.tensor(-1.0)
    assert prediction_error(optimizer) is None
    optimizer.step()
    p.grad, q.grad = torch.tensor([3.0, 0.0]), torch.tensor(4.0)
    states = [optimizer.state[x] for x in (p, q)]
    units = [s.get("scale", torch.tensor(1.0)) for s in states]  # of the loss, taken from the first gradients
    predicted = torch.cat(
        [(u * (s["a"] * x + s["b"])).detach().view(-1) for u, s, x in zip(units, states, (p, q), strict=True)]
    )
    assert prediction_error(optimizer) == pytest.approx((torch.tensor([3.0, 0.0, 4.0]) - predicted).norm().item() / 5)
    p.grad, q.grad = torch.zeros(2), torch.zeros(())
    assert prediction_error(optimizer) is None


def test_every_step_of_ours_says_how_well_it_predicted() -> None:
    steps, epochs = [], []
    digits = loading.load("digits")
    train(RunConfig.for_task("digits-mlp", "arturo", epochs=2, subset=96), digits, epochs.append, steps.append)
    assert [step.prediction_error is None for step in steps] == [True] + 5 * [False]
    assert epochs[1].prediction_error == pytest.approx(sum(step.prediction_error for step in steps[3:]) / 3)
    assert epochs[0].prediction_error == pytest.approx(sum(step.prediction_error for step in steps[1:3]) / 2)
    train(RunConfig.for_task("digits-mlp", "sgd", epochs=1, subset=96), digits, epochs.append)
    assert epochs[2].prediction_error is None
