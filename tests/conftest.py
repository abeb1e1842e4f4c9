"""What the test files share: the table of configurations, and a noisy quadratic to train on."""

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from arturo import PAPER, AdaArturo, Arturo

sys.path.insert(0, str(Path(__file__).parent))  # for what tests import by name, in their own process or in another

CONFIGURATIONS = {
    "default": {},  # the C++ kernel where it was built
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
    "capturable": {"capturable": True},
    "capturable-foreach": {"capturable": True, "foreach": True},
    "weight-decay": {"weight_decay": 0.9},
    "maximize": {"maximize": True},
    "paper": PAPER,
    "paper-capturable": {**PAPER, "capturable": True},
    "fixed-eta": {"eta": 2.0},
    "no-prior": {"prior_precision": 0.0},
    "no-prior-weight": {"prior_weight": 0.0, "initial_variance": 0.5},
    "gradient-init": {"init": "gradient"},
    "unguarded": {"curvature_floor": None},
    "tensor-lr": {"lr": torch.tensor(0.7)},
    "tensor-lr-capturable": {"lr": torch.tensor([0.7]), "capturable": True},
    "unset-bound": {"kl_bound": None},
}
KERNELS = {name: CONFIGURATIONS[name] for name in ("default", "loop", "foreach", "capturable", "capturable-foreach")}
SHAPES = ((4, 3), (5,), (), (2, 0), (3,))
DEVICE = {"covariance": "diagonal", "capturable": True}
ADAPTIVE = {
    "kronecker": {},  # the C++ kernels where they were built
    "kronecker-loop": {"foreach": False},
    "diagonal": {"covariance": "diagonal"},
    "diagonal-loop": {"covariance": "diagonal", "foreach": False},
    "diagonal-foreach": {"covariance": "diagonal", "foreach": True},
    "capturable-foreach": {**DEVICE, "foreach": True},
    "capturable": DEVICE,
    "weight-decay": {"weight_decay": 2.0},
    "maximize": {"maximize": True},
    "tensor-lr": {"lr": torch.tensor(0.01)},
    "tensor-lr-capturable": {"lr": torch.tensor([0.01]), **DEVICE},
    "tiles": {"block": 2, "refresh": 3},
    "no-memory": {"betas": (0.0, 0.0)},
    "eps-zero": {"eps": 0.0},
}


def _table(arturo, adaptive):
    ours = {f"Arturo-{name}": (Arturo, {"kl_bound": 0.01, **options}) for name, options in arturo.items()}
    return ours | {f"AdaArturo-{name}": (AdaArturo, {"lr": 0.01, **options}) for name, options in adaptive.items()}


# What both optimizers owe to torch and to their user is asked of both; files named after AdaArturo have what it alone does.
EVERY = _table(CONFIGURATIONS, ADAPTIVE)
GEOMETRIES = ("kronecker", "kronecker-loop", "diagonal", "diagonal-foreach", "capturable", "tiles")
WAYS = _table(KERNELS, {name: ADAPTIVE[name] for name in GEOMETRIES})


class Recipe:
    """An optimizer's class and its options; call it with parameters."""

    def __init__(self, kind, options):
        self.kind, self.options = kind, options

    def __call__(self, params, **more):
        return self.kind(params, **{**copy.deepcopy(self.options), **more})


@pytest.fixture(params=EVERY)
def every(request) -> Recipe:
    """Both optimizers, one row of their tables at a time."""
    return Recipe(*EVERY[request.param])


@pytest.fixture(params=WAYS)
def way(request) -> Recipe:
    """Both optimizers in their ways to do the same step, for corners that depend on nothing else."""
    return Recipe(*WAYS[request.param])


@pytest.fixture(params=[Arturo, AdaArturo], ids=lambda kind: kind.__name__)
def plain(request) -> Recipe:
    """Both optimizers with what is in the first row of their tables."""
    return Recipe(request.param, {"kl_bound": 0.01} if request.param is Arturo else {"lr": 0.01})


@pytest.fixture(params=CONFIGURATIONS)
def configuration(request) -> dict:
    """Keyword arguments of Arturo, one row of the table at a time."""
    return {"kl_bound": 0.01, **copy.deepcopy(CONFIGURATIONS[request.param])}


@pytest.fixture(params=ADAPTIVE)
def adaptive(request) -> dict:
    """Keyword arguments of AdaArturo, one row of the table at a time."""
    return {"lr": 0.01, **copy.deepcopy(ADAPTIVE[request.param])}


@pytest.fixture(params=GEOMETRIES)
def geometry(request) -> dict:
    """The ways of AdaArturo to take a step, for corners that depend on nothing else."""
    return {"lr": 0.01, **ADAPTIVE[request.param]}


@pytest.fixture(params=KERNELS)
def kernel(request) -> dict:
    """The ways to do the same step, for corners that depend on nothing else."""
    return {"kl_bound": 0.01, **KERNELS[request.param]}


class Quadratic:
    """Gradients 0.5 (p - 1) + noise(t): they follow the parameters, so one wrong bit spreads, and repeat by ``t``."""

    @staticmethod
    def params(shapes=SHAPES, dtype=torch.float32, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in shapes]

    @staticmethod
    def twins(params):
        """Separate parameters with the same values, dtypes and strides."""
        return [torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for p in params]

    @staticmethod
    def gradients(params, t, sign=1.0):
        for i, p in enumerate(params):
            if p.requires_grad:
                noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(1000 * t + i), dtype=torch.float64)
                p.grad = (sign * (0.5 * (p.detach() - 1) + noise)).to(p.dtype)

    def train(self, optimizer, steps, start=0, sign=1.0, params=None):
        """Step; ``params`` are those that get a gradient (all). Returns the ``last_step`` of each."""
        params = [p for group in optimizer.param_groups for p in group["params"]] if params is None else params
        info = []
        for t in range(start, start + steps):
            self.gradients(params, t, sign)
            optimizer.step()
            info.append(optimizer.last_step)
        return info


@pytest.fixture
def quadratic() -> Quadratic:
    return Quadratic()


def bits(tensor):
    """Every bit of a tensor, and its dtype and shape; tells -0.0 from 0.0 and holds for NaN."""
    return tensor.dtype, tuple(tensor.shape), tensor.detach().reshape(-1).view(torch.uint8).tolist()


def _snapshot(optimizer, params=None):
    params = [p for group in optimizer.param_groups for p in group["params"]] if params is None else params
    states = [optimizer.state.get(p, {}) for p in params]
    return [(bits(p), {name: bits(x) for name, x in state.items()}) for p, state in zip(params, states, strict=True)]


@pytest.fixture
def snapshot():
    """``snapshot(optimizer, params=None)``: parameters and their state, bit for bit, to compare with ==."""
    return _snapshot


@pytest.fixture
def mesh(tmp_path):
    """A device mesh of this process alone; tests/distributed has several."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def fresh_compiler():
    """Nothing compiled by another test, and nothing left behind."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
