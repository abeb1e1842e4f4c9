"""torch.compile and fake tensors: the step has no host read and no branch on data, and last_step is right in it."""

import copy
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

from arturo import PAPER, AdaArturo, Arturo

COMPILED = {
    "default": {},
    "capturable": {"capturable": True},
    "foreach": {"foreach": True},
    "paper": PAPER,
    "fixed-eta": {"eta": 2.0},
    "tensor-lr": {"lr": torch.tensor(0.5), "weight_decay": 0.9},
    "adam-surrogate": {"surrogate": "adam"},
}
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # dynamo looks at the loss
]


@pytest.mark.parametrize("options", COMPILED.values(), ids=COMPILED)
def test_a_compiled_step_equals_the_capturable_one(options, quadratic, snapshot):
    """One graph, with or without capturable; the same bits and the same last_step at every step."""
    shapes = [(4, 3)] if "dual" in options else [(4, 3), (3,)]
    compiled = Arturo(quadratic.params(shapes), **{"kl_bound": 0.01, **copy.deepcopy(options)})
    eager = Arturo(quadratic.params(shapes), **{"kl_bound": 0.01, **copy.deepcopy(options), "capturable": True})
    step = torch.compile(compiled.step, fullgraph=True, backend="eager")
    for t in range(4):
        quadratic.gradients(compiled.param_groups[0]["params"], t)
        step()
        assert compiled.last_step == quadratic.train(eager, 1, t)[0]
        assert compiled.last_step.bound > 0 and compiled.last_step.kl > 0
        assert snapshot(compiled) == snapshot(eager)


def test_a_tensor_lr_changes_without_a_new_graph(quadratic, snapshot):
    """And 0 in it is a step without a trace, in the graph too."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    optimizer = Arturo(quadratic.params([(4, 3)]), lr=torch.tensor(1.0), kl_bound=0.01, capturable=True)
    step = torch.compile(optimizer.step, fullgraph=True, backend=count)
    made = None
    for t, lr in enumerate([1.0, 0.5, 0.25, 0.0]):
        optimizer.param_groups[0]["lr"].fill_(lr)
        quadratic.gradients(optimizer.param_groups[0]["params"], t)
        before = snapshot(optimizer)
        step()
        assert optimizer.last_step.bound == pytest.approx(0.01 * lr**2)
        assert (snapshot(optimizer) == before) == (lr == 0)
        made = len(graphs) if t == 1 else made
    assert len(graphs) == made


def test_a_compiled_step_under_functionalisation():
    """What every real backend starts from: to rounding the eager capturable run, last_step included, and one graph.

    A scalar float64 parameter is there because torch.compile loses what is written to a 0-d float64 input itself.
    """
    optimizer, eager = (
        Arturo([torch.nn.Parameter(torch.linspace(-1, 1, 5)), torch.nn.Parameter(torch.tensor(1.5).double())], **options)
        for options in [{"kl_bound": 0.01, "capturable": True}] * 2
    )
    graphs = CompileCounterWithBackend("aot_eager")
    step = torch.compile(optimizer.step, fullgraph=True, backend=graphs)
    x = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0])
    made = []
    for _ in range(5):
        for opt, take in ((optimizer, step), (eager, eager.step)):
            weight, scale = opt.param_groups[0]["params"]
            opt.zero_grad()
            (scale * (weight * x).sum() - 1).square().backward()
            take()
        for p, q in zip(optimizer.param_groups[0]["params"], eager.param_groups[0]["params"], strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
            for name, value in eager.state[q].items():
                torch.testing.assert_close(optimizer.state[p][name], value, rtol=1e-4, atol=1e-6)
        assert optimizer.last_step == pytest.approx(eager.last_step, rel=1e-4)
        assert optimizer.last_step.kl > 0
        made.append(graphs.frame_count)
    assert made[1] == made[-1]  # a changing eta does not recompile


def train_alike(make, make_eager, snapshot):
    """zero_grad, forward, backward and step under one torch.compile, which breaks the graph where it must: the same bits."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    optimizer, eager = make(model.parameters()), make_eager(twin.parameters())

    def train(model, optimizer, x):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    in_graph = torch.compile(train, backend="eager")
    for t in range(3):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(t))
        assert torch.equal(in_graph(model, optimizer, x), train(twin, eager, x))
        assert snapshot(optimizer) == snapshot(eager) and optimizer.last_step == eager.last_step


@pytest.mark.parametrize("capturable", [False, True])
def test_a_compiled_training_step(capturable, snapshot):
    def make(params, capturable=True):
        return Arturo(params, kl_bound=0.01, capturable=capturable, eta=2.0)

    train_alike(lambda params: make(params, capturable), make, snapshot)


def test_a_compiled_training_step_of_adaarturo(geometry, snapshot):
    def make(params):
        return AdaArturo(params, **geometry)

    train_alike(make, make, snapshot)


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler")
def test_generated_code_keeps_the_digits_of_a_half_precision_mean():
    """Inductor leaves out roundings inside a kernel; steps below bfloat16's resolution must add up all the same."""
    params = [torch.nn.Parameter(torch.linspace(0.5, 1, 4).bfloat16()) for _ in range(2)]
    compiled, eager = (Arturo([p], kl_bound=0.01, capturable=True, eta=1e4) for p in params)
    step = torch.compile(compiled.step, fullgraph=True, backend="inductor")
    start = params[0].detach().clone()
    for _ in range(3):
        for p in params:
            p.grad = torch.ones_like(p)
        step()
        eager.step()
        for name, value in eager.state[params[1]].items():
            torch.testing.assert_close(compiled.state[params[0]][name], value, rtol=1e-5, atol=1e-7)
        assert compiled.last_step == pytest.approx(eager.last_step, rel=1e-4)
    assert torch.equal(params[0], start) and torch.equal(params[1], start)


def test_a_compiled_step_goes_on_where_an_eager_one_stopped(quadratic, snapshot):
    """Compiled and plain steps may alternate, and state moves between them through a state dict."""
    shapes = [(4, 3), (3,)]
    eager = Arturo(quadratic.params(shapes), kl_bound=0.01, capturable=True)
    quadratic.train(eager, 2)
    params = quadratic.twins(eager.param_groups[0]["params"])
    resumed = Arturo(params, kl_bound=0.01, capturable=True)
    resumed.load_state_dict(eager.state_dict())
    step = torch.compile(resumed.step, fullgraph=True, backend="eager")
    for t in range(2, 5):
        quadratic.gradients(params, t)
        step() if t != 3 else resumed.step()
        quadratic.train(eager, 1, t)
    assert snapshot(resumed) == snapshot(eager) and resumed.last_step == eager.last_step


@pytest.mark.filterwarnings("error")
def test_missing_observations_in_a_graph(quadratic):
    params = quadratic.params([(4, 3)])
    optimizer = Arturo(params, kl_bound=0.01)
    step = torch.compile(optimizer.step, fullgraph=True, backend="eager")
    for t, value in enumerate([1.0, float("nan"), float("inf")]):
        quadratic.gradients(params, t)
        params[0].grad[0, 1] = value
        step()
        assert optimizer.last_step.skipped == (0 if t == 0 else 1)
    assert torch.isfinite(params[0]).all()


@pytest.mark.parametrize("options", [
    {},
    {"foreach": True},
    PAPER,
    {"eta": 2.0},
    {"lr": 0.0},
    {"weight_decay": 1.0, "maximize": True, "kl_bound": None},
], ids=["default", "foreach", "paper", "fixed-eta", "lr-zero", "others"])  # fmt: skip
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float-lr", "tensor-lr"])
def test_two_steps_on_fake_tensors(options, as_tensor):
    """capturable means no read of data: there is none to read here."""
    with FakeTensorMode():
        params = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3, dtype=torch.bfloat16))]
        params.append(torch.nn.Parameter(torch.randn(2, dtype=torch.complex64)))
        lr = options.get("lr", 1.0)
        lr = torch.tensor(lr) if as_tensor else lr
        optimizer = Arturo(params, **{**options, "lr": lr}, capturable=True)
        for _ in range(2):
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer.step()
        assert len(optimizer.state) == 3
    assert type(optimizer.state[params[0]]["prec"]).__name__ == "FakeTensor"
