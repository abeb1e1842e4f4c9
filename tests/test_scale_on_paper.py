"""docs/scaling.md, Scale on paper: its tables are the script's, and the script's formulas those of optimizers that run."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arturo import AdaArturo, adaptive, kronecker, sharding

ROOT = Path(__file__).resolve().parents[1]
SHAPES = [(48, 80), (10, 257), (64, 8, 3, 3), (40, 4), (33,), (7, 7)]


@pytest.fixture(scope="module")
def paper():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return runpy.run_path(str(ROOT / "benchmarks" / "scale_on_paper.py"))
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        sys.modules.pop("scaling", None)


def made(block, state_dtype=None, shapes=SHAPES, **options):
    """An optimizer after its first step, in plain tensor operations."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer = AdaArturo(params, block=block, state_dtype=state_dtype, foreach=False, **options)
    step(optimizer, generator)
    return optimizer


def step(optimizer, generator=None):
    generator = torch.Generator().manual_seed(1) if generator is None else generator
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()


def test_the_tables_are_those_of_the_script(paper):
    document = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert paper["written"](document, paper["tables"]()) == document, "run: python benchmarks/scale_on_paper.py --write"


@pytest.mark.parametrize("block", [8, 16, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_state(paper, block, dtype):
    optimizer = made(block, None if dtype == "float32" else torch.bfloat16)
    for p in optimizer.param_groups[0]["params"]:
        state = {name: x for name, x in optimizer.state[p].items() if name not in ("step", "tile")}
        formula = paper["part"](tuple(p.shape), 1, block).state_bytes(paper["WIDTHS"][dtype])
        assert sum(x.nbytes for x in state.values()) == formula, tuple(p.shape)


@pytest.mark.parametrize("block", [8, 16, 128])
def test_flops_of_a_step(paper, block):
    """Rotations and factor products of steps without a refresh, by torch's own count; tiles take turns with their factors."""
    optimizer, steps = made(block, refresh=1000), kronecker.COUNTED_EVERY
    for _ in range(max(kronecker.REFRESHED_EARLY) + steps):
        step(optimizer)
    with FlopCounterMode(display=False) as counted:
        for _ in range(steps):
            step(optimizer)
    found = [paper["part"](shape, 1, block) for shape in SHAPES]
    assert counted.get_total_flops() == pytest.approx(steps * sum(x.rotations() + x.products() for x in found), rel=1e-12)


@pytest.mark.parametrize("block", [16, 128])
def test_flops_of_refreshes(paper, block, monkeypatch):
    """Over a whole period, all but the QR; and which QR there are."""
    refresh, factored = 6, []
    optimizer, period = made(block, refresh=refresh), math.lcm(refresh, kronecker.COUNTED_EVERY)
    qr = torch.linalg.qr

    def recorded(x):
        factored.append(x.shape)
        return qr(x)

    for _ in range(period):  # beyond the early ones
        step(optimizer)
    monkeypatch.setattr(torch.linalg, "qr", recorded)
    with FlopCounterMode(display=False) as counted:
        for _ in range(period):
            step(optimizer)
    found = [paper["part"](shape, 1, block) for shape in SHAPES]
    each = sum(x.rotations() + x.products() + x.refreshes(refresh, qr=0) for x in found)
    assert counted.get_total_flops() == pytest.approx(period * each, rel=1e-12)
    cubes = sum(tiles * n**3 for tiles, n, _ in factored)
    assert cubes == period // refresh * sum(x.grid.tiles * n**3 for x in found for n in x.sides)


def test_bytes_of_the_collective(paper, monkeypatch):
    """A process that shards nothing, asked for the sums it would add up with the others."""
    sent = []

    class Alone:
        def piece(self, p, rounded):
            return sharding.Piece(True, (0,))

        def local(self, p, grad, state):
            return p, grad, state

        def total(self, values):
            sent.append(sharding.to_digits(values.to(torch.float64)).nbytes)
            return values

    optimizer = made(16)
    monkeypatch.setattr(adaptive.sharding, "find", lambda groups: Alone())
    step(optimizer)
    monkeypatch.setitem(paper["NETWORKS"], "these", SHAPES)
    assert sent == [paper["reduced_bytes"]("these")]


def test_a_shard_has_the_tiles_of_its_rows(paper):
    part = paper["part"]
    flat = part((4096, 4096), 512, 128)
    assert flat.grid == kronecker.tiling((4096, 4096), 128, 512) and part((11008, 4096), 512, 128).grid is None
    h, w = flat.grid.height, flat.grid.width
    assert flat.state_bytes(4) / flat.entries == 4 * (2 + 2 * h / w + 2 * w / h)
    whole, shard = part((4096, 4096), 1, 128), part((4096, 4096), 8, 128)
    assert whole.state_bytes(4) == 8 * shard.state_bytes(4) and whole.rotations() == 8 * shard.rotations()


def test_networks_have_the_weights_of_their_names(paper):
    assert [round(paper["weights"](name) / 1e9, 2) for name in paper["NETWORKS"]] == [0.12, 6.74, 68.98]
