"""AdaArturo under torch.compile and on fake tensors: no recompilation, no host read under capturable."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arturo import AdaArturo

DEVICE = {"covariance": "diagonal", "capturable": True}
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # dynamo looks at the loss
]


@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
def test_a_compiled_step_is_the_step_and_compiles_once(as_tensor, geometry, quadratic, snapshot):
    """Under a schedule that changes lr at every step, over a refresh of the bases; the same bits, the same last_step."""
    shapes = [(4, 6), (3,)]
    lr = torch.tensor(0.01) if as_tensor else 0.01
    compiled = AdaArturo(quadratic.params(shapes), **{**geometry, "lr": lr})
    eager = AdaArturo(quadratic.params(shapes), **{**geometry, "lr": copy.deepcopy(lr)})
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20) for optimizer in (compiled, eager)]
    counter = CompileCounter()
    step = torch.compile(compiled.step, backend=counter)
    frames = []
    for t in range(12):
        quadratic.gradients(compiled.param_groups[0]["params"], t)
        with torch._dynamo.config.patch(error_on_recompile=t > 1):
            step()
        assert compiled.last_step == quadratic.train(eager, 1, t)[0]
        assert snapshot(compiled) == snapshot(eager)
        for scheduler in schedulers:
            scheduler.step()
        frames.append(counter.frame_count)
    assert frames[1] == frames[-1]


class Crossings(TorchDispatchMode):
    """Operations between two devices, and numbers of the host that become a tensor."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        asked = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.device)]
        if len({x.device.type for x in tensors} | {x.type for x in asked}) > 1 or "lift_fresh" in str(func):
            self.seen.append(str(func))
        return result


def test_crossings_are_seen():
    """The counter-check of the test below."""
    for cross in (lambda: torch.tensor([1.0, 2.0]), lambda: torch.as_tensor(0.5), lambda: torch.ones(3).to("meta")):
        with Crossings() as crossings:
            cross()
        assert crossings.seen


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "meta"])
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float-lr", "tensor-lr"])
def test_capturable_reads_no_data_and_copies_none_to_the_device(fake, as_tensor):
    """There is none to read here. Capturing a graph forbids copies from the host, which would show as crossings."""
    device = "cpu" if fake else "meta"
    with FakeTensorMode() if fake else nullcontext():
        shapes = {(4, 3): torch.float32, (3,): torch.bfloat16, (2,): torch.complex64, (): torch.float64}
        params = [torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device)) for shape, dtype in shapes.items()]
        optimizer = AdaArturo(params, **DEVICE, maximize=True, weight_decay=1.0)
        if as_tensor:
            optimizer.param_groups[0]["lr"] = torch.empty((), device=device)
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
        with Crossings() as crossings:
            optimizer.step()
    assert crossings.seen == []
    assert {x.device.type for state in optimizer.state.values() for x in state.values()} == {device}
    assert len(optimizer.state) == 4
