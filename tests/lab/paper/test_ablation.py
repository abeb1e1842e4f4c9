"""The ablations' table and figure, by hand from made-up runs."""

from __future__ import annotations

import json
from pathlib import Path

from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.deviations import deviations
from arturo_lab.paper.scales import SCALES
from arturo_lab.report.sections import sections
from arturo_lab.runs.collection import read_runs


def test_what_the_trust_region_did_and_how_well_the_model_predicted(make_run, tmp_path: Path) -> None:
    for seed, (ours, fixed) in enumerate(((0.91, 0.80), (0.93, 0.82))):
        run = make_run(tmp_path, "arturo", seed, task="fmnist-cnn", final=ours)
        steps = [{"step": i, "kl": 0.2, "bound": 0.2, "prediction_error": 0.5 + i} for i in range(1, 4)]
        (run / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        run = make_run(tmp_path, "arturo-fixed-eta", seed, task="fmnist-cnn", final=fixed)
        (run / "steps.jsonl").write_text(json.dumps({"step": 1, "kl": 0.01, "bound": 0.2}) + "\n")
    content = ARTEFACTS["trust-region-ablation"].make(sections(read_runs(tmp_path)[0]))
    rows = {row[1].text: [cell.text for cell in row] for row in content.table.rows}
    task, _, accuracy, difference, _, region, error, runs = rows["arTuRO"]
    assert (task, accuracy, difference, runs) == ("fmnist-cnn", "92.00 ± 2.00", "reference", "2")
    assert region == "1.00 · 1.00 · 1.00" and error == "1.50 · 2.50 · 3.50"
    assert rows["arTuRO (fixed η)"][3:7] == ["−11.00 ± 0.00", "0.0386", "0.0500 · 0.0500 · 0.0500", "-"]
    entry = next(entry for entry in content.table.records() if entry["optimizer"] == "arturo")
    assert entry["kl_over_bound_shares"] == [1.0, 1.0, 1.0] and entry["prediction_error_shares"] == [1.5, 2.5, 3.5]
    assert content.figure is not None


def test_the_papers_rows_and_ours(make_run) -> None:
    left, right = (ARTEFACTS[name].configs(SCALES["full"]) for name in ("trust-region-ablation", "hessian-ablation"))
    assert {c.optimizer for c in left} == {
        "arturo",
        "arturo-bisection",
        "arturo-paper",
        "arturo-fixed-eta",
        "arturo-adam",
    }
    assert {"arturo", "arturo-hessian", "adam", "adahessian", "adahessian-hessian"} < {c.optimizer for c in right}
    assert {(c.task, c.epochs, c.share.subset) for c in left + right} == {
        ("fmnist-cnn", 120, None),
        ("fmnist-small-cnn", 120, None),
    }
    by_name = {c.optimizer: c for c in left if c.task == "fmnist-cnn"}
    assert by_name["arturo-fixed-eta"].settings == {**by_name["arturo"].settings, "eta": 1.0861}
    said = deviations(right)
    assert any(line.startswith("The values of arTuRO (Adam's moments), ") and "are ours" in line for line in said)
    assert not any("hyperparameters are the paper's" in line for line in said)
