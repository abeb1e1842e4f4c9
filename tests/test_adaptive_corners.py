"""AdaArturo where numbers leave their range, and where tensors are not where they are expected."""

import copy
import subprocess
import sys
import weakref

import pytest
import torch
from torch.nn import Linear, Parameter
from torch.nn.functional import cross_entropy

from arturo import AdaArturo, Arturo
from arturo.kernels import native
from arturo.kernels.adaptive import row as adaptive_row
from arturo.minimal import MinimalAdaArturo

WAYS = {"native": {}, "eager": {"foreach": False}, "foreach": {"foreach": True}, "state": {"state_dtype": torch.bfloat16}}
every_way = pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
needs_extension = pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")


@every_way
@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
@pytest.mark.parametrize("shape", [(8,), (8, 8)])
def test_gradients_whose_squares_underflow_move_nothing(flags, covariance, shape):
    generator = torch.Generator().manual_seed(0)
    p = Parameter(torch.full(shape, 0.1))
    optimizer = AdaArturo([p], covariance=covariance, **flags)
    small = torch.zeros(shape, dtype=torch.bool)
    small[0] = True  # an entry, or a row
    for t in range(30):
        g = torch.randn(shape, generator=generator)
        p.grad = torch.where(small, g * 10.0 ** -(20 + t % 10), g)
        before = p.detach().clone()
        optimizer.step()
        moved = (p.detach() - before).abs()
        assert moved[small].max() <= 2 * moved[~small].max()


@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
@pytest.mark.parametrize("batch", [1, 8])
def test_saturated_outputs_do_not_run_away(covariance, batch):
    """Raw pixels saturate a softmax: most of its gradients are too small to square, and some are 0."""
    torch.manual_seed(0)
    model = Linear(64, 10)
    optimizer = AdaArturo(model.parameters(), covariance=covariance)
    for _ in range(100):
        x, y = torch.randint(0, 256, (batch, 64)).float(), torch.randint(0, 10, (batch,))
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert max(p.abs().max() for p in model.parameters()) < 2


def edits(p: Parameter) -> dict:
    return {
        "data": lambda: p.data.mul_(3.0),
        "in place": lambda: p.detach().mul_(3.0),
        "another tensor": lambda: setattr(p, "data", p.detach() * 3.0),
        "some of it": lambda: p.data[::7].mul_(8.0),
        "nothing": lambda: None,
    }


@needs_extension
@pytest.mark.parametrize("edit", edits(Parameter(torch.zeros(1))))
@pytest.mark.parametrize("flags", [{}, {"state_dtype": torch.bfloat16}], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(300, 40), (3, 2), (2, 5, 3, 3)])
def test_the_size_of_weights_that_somebody_changed_is_taken_anew(edit, flags, shape):
    """C++ keeps a mean's squares from one step to the next: the same bits as without, whatever happens between two steps."""
    generator = torch.Generator().manual_seed(0)
    kept, anew = (Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1))) for _ in range(2))
    keeping, forgetting = (AdaArturo([p], covariance="diagonal", **flags) for p in (kept, anew))
    for t in range(6):
        kept.grad = torch.randn(shape, generator=generator)
        anew.grad = kept.grad.clone()
        if t in (2, 4):
            edits(kept)[edit]()
            edits(anew)[edit]()
        forgetting._layouts.clear()
        keeping.step()
        forgetting.step()
        assert torch.equal(kept, anew) and keeping.last_step == forgetting.last_step
        squares = keeping._layouts[id(kept)].size[0]
        assert squares == pytest.approx(kept.detach().double().square().sum().item(), rel=1e-5)


def test_a_load_frees_the_state_it_replaces():
    p = Parameter(torch.ones(8, 8))
    optimizer = AdaArturo([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    old = weakref.ref(optimizer.state[p]["M"])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert old() is None


@needs_extension
def test_a_known_size_is_used():
    p = Parameter(torch.ones(64, 64))
    optimizer = AdaArturo([p], covariance="diagonal")
    p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer._layouts[id(p)].size[0] *= 4.0
    before, bound = p.detach().clone(), optimizer.last_step.bound
    optimizer.step()
    assert optimizer.last_step.bound > 1.5 * bound and not torch.equal(before, p)


@every_way
@pytest.mark.parametrize("axes", [(1,), (1, 1)])
def test_a_leading_axis_of_length_one_changes_nothing(flags, axes, monkeypatch):
    monkeypatch.setattr(adaptive_row, "BAND", {True: 64})
    generator = torch.Generator().manual_seed(0)
    flat = Parameter(torch.randn(24, 20, generator=generator))
    other = Parameter(flat.detach().clone().view(*axes, 24, 20))
    both = [AdaArturo([p], block=4, **flags) for p in (flat, other)]
    for _ in range(12):
        flat.grad = torch.randn(24, 20, generator=generator)
        other.grad = flat.grad.view_as(other)
        for optimizer in both:
            optimizer.step()
    assert torch.equal(flat, other.view_as(flat))


@pytest.mark.parametrize("make", [Arturo, AdaArturo])
def test_another_default_device_is_not_used(make):
    """A parameter on the CPU is stepped there, whatever device new tensors are made on."""
    code = f"""
import torch; from arturo import {make.__name__}
params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((16,), (512, 1024))]
for p in params: p.grad = torch.randn_like(p)
optimizer = {make.__name__}(params)
torch.set_default_device("meta")
for _ in range(3): optimizer.step()
assert all(x.is_cpu for state in optimizer.state.values() for x in state.values())
"""  # in a separate process, because a wrong pointer would end this one
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("shape", "name"), [((5,), "M"), ((5,), "r"), ((6, 6), "M"), ((6, 6), "r")])
def test_state_on_another_device_is_an_error(shape, name):
    code = f"""
import torch; from arturo import AdaArturo
p = torch.nn.Parameter(torch.ones({shape})); p.grad = torch.ones({shape})
optimizer = AdaArturo([p]); optimizer.step(); optimizer.step()
optimizer.state[p]["{name}"] = optimizer.state[p]["{name}"].to("meta")
optimizer.step()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "meta" in done.stderr


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
@every_way
def test_a_gradient_too_large_to_turn_is_missing(flags):
    p, q = Parameter(torch.full((64, 64), 0.1)), Parameter(torch.ones(5))
    optimizer = AdaArturo([p, q], **flags)
    for t in range(30):
        p.grad = torch.full((64, 64), 5e17) if t == 5 else 0.01 * torch.randn(64, 64)
        q.grad = torch.randn(5)
        optimizer.step()
        assert optimizer.last_step.skipped == (4096 if t == 5 else 0)
    assert all(torch.isfinite(x).all() for x in (p, q, *optimizer.state[p].values()))


def test_a_weight_that_is_not_finite_is_told_once():
    p, q = Parameter(torch.ones(4)), Parameter(torch.ones(3, 3))
    optimizer = AdaArturo([p, q])
    p.grad, q.grad = torch.ones(4), torch.ones(3, 3)
    optimizer.step()
    with torch.no_grad():
        p[0] = float("nan")
    with pytest.warns(UserWarning, match="not finite: the trust region has no size"):
        optimizer.step()
    optimizer.step()


def test_entries_of_others_pass_through_a_state_dict():
    p = Parameter(torch.ones(2, 2))
    p.grad = torch.ones(2, 2)
    optimizer, other = AdaArturo([p]), AdaArturo([p])
    optimizer.step()
    optimizer.state["average"] = {"x": torch.ones(2)}
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(other.state["average"]["x"], torch.ones(2))


@needs_extension
def test_too_little_memory_for_a_tile_is_a_memory_error(monkeypatch):
    class Library:
        arturo_tiles = staticmethod(lambda *arguments: 0)

    p = Parameter(torch.ones(6, 6))
    p.grad = torch.ones(6, 6)
    optimizer = AdaArturo([p])
    optimizer.step()
    monkeypatch.setattr(native, "library", Library)
    with pytest.raises(MemoryError, match="6 x 6"):
        optimizer.step()


def test_the_page_takes_no_step_without_gradients():
    p = Parameter(torch.ones(2, 2))
    p.grad = torch.zeros(2, 2)
    MinimalAdaArturo([p]).step()
    assert torch.equal(p, torch.ones(2, 2))
