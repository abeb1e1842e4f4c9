"""docs/scaling.md: its tables are what benchmarks/scaling.py computes, from numbers that the code has."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from arturo import Arturo
from arturo.sharding import to_digits

ROOT = Path(__file__).resolve().parents[1]
SCALING = runpy.run_path(str(ROOT / "benchmarks" / "scaling.py"))


def test_the_tables_are_those_of_the_script():
    document = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert SCALING["written"](document, SCALING["tables"](5e-6, 50e9)) == document


def test_a_document_without_marks_is_refused():
    with pytest.raises(ValueError, match="memory"):
        SCALING["written"]("nothing", {"memory": ""})


@pytest.mark.parametrize(("optimizer", "state_dtype"), [("arTuRO", None), ("arTuRO, bfloat16 state", torch.bfloat16)])
def test_state_per_weight(optimizer, state_dtype):
    p = torch.nn.Parameter(torch.zeros(1000))
    p.grad = torch.ones_like(p)
    made = Arturo([p], state_dtype=state_dtype)
    made.step()
    found = sum(x.numel() * x.element_size() for x in made.state[p].values() if x.dim())
    assert found == 1000 * SCALING["STATE"][optimizer]


def test_evaluations_and_messages():
    """What a steady step evaluates, and the bytes of a sum that travels."""
    for step, probes in SCALING["PROBES"].items():
        p = torch.nn.Parameter(torch.ones(100))
        optimizer = Arturo([p], capturable=step == "device")
        for _ in range(5):
            p.grad = torch.ones_like(p)
            optimizer.step()
        assert optimizer.last_step.evaluations == 1 + probes
    assert SCALING["dual_messages"]("host")[-1] == to_digits(torch.zeros(1, dtype=torch.float64)).nbytes


def test_traffic():
    """76 and 28 bytes: design.md says so too."""
    assert [SCALING["traffic"](x, "host") for x in SCALING["STATE"]] == [76, 46, 28]
