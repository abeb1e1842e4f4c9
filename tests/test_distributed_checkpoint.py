"""torch.distributed.checkpoint.state_dict: it makes state by a step with lr = 0, and must leave no trace."""

import copy

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict as dcp

from arturo import AdaArturo, Arturo

NAMES = ("weight", "bias")
BUFFERS = {"step", "eta", "prec", "a", "b", "P_aa", "P_ab", "P_bb"}


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Linear(6, 4, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_asking_a_fresh_optimizer_leaves_no_trace(dtype, every, quadratic, snapshot):
    """Parameters unchanged, state complete, and the run afterwards is the run without it."""
    model, twin = model_of(dtype), model_of(dtype)
    optimizer, plain = every(model.parameters()), every(twin.parameters())
    saved = dcp.get_optimizer_state_dict(model, optimizer)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert set(saved["state"]) == set(NAMES)
    assert all(entry["step"] == 0 for entry in saved["state"].values())
    if every.kind is Arturo:
        scale = {"scale"} if every.options.get("initial_curvature") is None else set()
        expected = BUFFERS | scale | ({"mean"} if dtype == torch.bfloat16 else set())
        assert all(set(entry) == expected for entry in saved["state"].values())
    else:
        assert all("M" in entry for entry in saved["state"].values())
    assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    for t in range(6):
        assert quadratic.train(optimizer, 1, t) == quadratic.train(plain, 1, t)
    assert snapshot(optimizer) == snapshot(plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_weights_that_are_loaded_after_asking_are_the_start(dtype, every, quadratic, snapshot):
    """A vector was pulled to where it had been when its state was made."""
    ends = []
    for ask in (True, False):
        model, gain = model_of(dtype), torch.nn.Parameter(torch.zeros((), dtype=dtype))
        model.register_parameter("gain", gain)
        optimizer = every(model.parameters())
        if ask:
            dcp.get_optimizer_state_dict(model, optimizer)
        model.load_state_dict({name: x + 4 for name, x in model.state_dict().items()})
        quadratic.train(optimizer, 3)
        ends.append(snapshot(optimizer))
        if every.kind is not Arturo:
            assert optimizer.state[gain]["start"].flatten()[0] == 4
    assert ends[0] == ends[1]


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_there_and_back(flatten, dtype, every, quadratic, snapshot):
    """Into a fresh optimizer: the continued run has the bits of the uninterrupted one."""
    options = dcp.StateDictOptions(flatten_optimizer_state_dict=flatten)
    model = model_of(dtype)
    optimizer = every(model.parameters())
    quadratic.train(optimizer, 3)
    weights, state = copy.deepcopy(dcp.get_state_dict(model, optimizer, options=options))
    other = model_of(dtype)
    resumed = every(other.parameters())
    dcp.set_state_dict(other, resumed, model_state_dict=weights, optim_state_dict=state, options=options)
    assert snapshot(resumed) == snapshot(optimizer)
    assert quadratic.train(resumed, 3, start=3) == quadratic.train(optimizer, 3, start=3)
    assert snapshot(resumed) == snapshot(optimizer)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("flatten", [False, True])
def test_through_a_file_into_a_fresh_optimizer(flatten, every, quadratic, snapshot, tmp_path):
    """A fresh optimizer asks for each entry in the form in which it was saved."""
    options = dcp.StateDictOptions(flatten_optimizer_state_dict=flatten)
    model, other = model_of(), model_of()
    optimizer, resumed = every(model.parameters()), every(other.parameters())
    quadratic.train(optimizer, 3)
    checkpoint.save({"optimizer": dcp.get_optimizer_state_dict(model, optimizer, options=options)}, checkpoint_id=tmp_path)
    other.load_state_dict(model.state_dict())
    asked = {"optimizer": dcp.get_optimizer_state_dict(other, resumed, options=options)}
    checkpoint.load(asked, checkpoint_id=tmp_path)
    dcp.set_optimizer_state_dict(other, resumed, asked["optimizer"], options=options)
    assert snapshot(resumed) == snapshot(optimizer)
    assert quadratic.train(resumed, 3, start=3) == quadratic.train(optimizer, 3, start=3)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_curvature_is_where_steps_keep_it(device, capturable):
    """From the step at lr = 0 with which a fresh optimizer makes its state; checkpoints of either form load."""
    p = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = AdaArturo([p], lr=0.0, covariance="diagonal", capturable=capturable)
    p.grad = torch.ones_like(p)
    optimizer.step()
    known = optimizer.param_groups[0]["curvature"]
    assert isinstance(known, torch.Tensor) == (capturable or device == "meta")
    for form in ((0.1, 0.2, 0.3, 0.4, 5.0, 4.0), torch.tensor([0.1, 0.2, 0.3, 0.4, 5.0, 4.0], dtype=torch.float64)):
        saved = copy.deepcopy(optimizer.state_dict())
        saved["param_groups"][0].update(curvature=form, lr=1e-3)
        twin = AdaArturo([p], covariance="diagonal", capturable=capturable)
        twin.load_state_dict(saved)
        twin.step()
        new = twin.param_groups[0]["curvature"]
        assert type(new) is type(known)
        assert device == "meta" or float(new[4]) in (1.0, 6.0)


def test_a_half_precision_run_keeps_its_digits(kernel, quadratic, snapshot):
    model = model_of(torch.bfloat16)
    optimizer = Arturo(model.parameters(), **kernel)
    quadratic.train(optimizer, 3)
    found = copy.deepcopy(dcp.get_state_dict(model, optimizer))
    other = model_of(torch.bfloat16)
    resumed = Arturo(other.parameters(), **kernel)
    dcp.set_state_dict(other, resumed, model_state_dict=found[0], optim_state_dict=found[1])
    assert snapshot(resumed) == snapshot(optimizer)
    assert not torch.equal(resumed.state[other.weight]["mean"], other.weight.float())


def test_a_frozen_layer_is_left_out(kernel, quadratic):
    model = model_of()
    model.bias.requires_grad_(False)
    optimizer = Arturo(model.parameters(), **kernel)
    before = model.bias.detach().clone()
    assert set(dcp.get_optimizer_state_dict(model, optimizer)["state"]) == {"weight"}
    assert torch.equal(model.bias, before)
