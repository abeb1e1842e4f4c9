"""AdaArturo's state over save, load, copy and pickle: a run that stopped and went on has the bits of one that did not."""

import copy

import pytest
import torch
from state_dicts import saved
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

from arturo import AdaArturo

HALF = [torch.bfloat16, torch.float16]
MATRICES = [(4, 6), (5,), (6, 4)]  # of several tiles at block=2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resuming_at_any_step_equals_not_stopping(dtype, adaptive, quadratic, snapshot):
    """At every step between refreshes of the bases; into an optimizer made with other options: all is in the state dict."""
    params = quadratic.params(MATRICES, dtype)
    optimizer = AdaArturo(params, **adaptive)
    stops = []
    for t in range(14):
        stops.append((copy.deepcopy(saved(optimizer.state_dict())), quadratic.twins(params)))
        quadratic.train(optimizer, 1, t)
    for t, (state_dict, twins) in enumerate(stops):
        resumed = AdaArturo(twins, betas=(0.1, 0.2))
        resumed.load_state_dict(state_dict)
        quadratic.train(resumed, 14 - t, start=t)
        assert snapshot(resumed) == snapshot(optimizer), t
        assert resumed.last_step == optimizer.last_step


@pytest.mark.parametrize("flat", [None, False, True], ids=["torch", "dcp", "dcp-flat"])
def test_the_curvature_is_saved(flat, geometry, snapshot):
    """A noiseless loss, where it sets the length of the steps."""

    def made():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        return model, AdaArturo(model.parameters(), **geometry)

    def train(model, optimizer, steps):
        for _ in range(steps):
            for p in model.parameters():
                p.grad = 2 * (p.detach() - 1)
            optimizer.step()

    model, optimizer = made()
    train(model, optimizer, 120)
    assert not optimizer.last_step.active and optimizer.param_groups[0]["curvature"][0] > 0
    twin, resumed = made()
    twin.load_state_dict(model.state_dict())
    if flat is None:
        resumed.load_state_dict(saved(optimizer.state_dict()))
    else:
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        state_dict = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
        set_optimizer_state_dict(twin, resumed, state_dict, options=options)
    train(twin, resumed, 5)
    train(model, optimizer, 5)
    assert snapshot(resumed) == snapshot(optimizer) and resumed.last_step == optimizer.last_step


@pytest.mark.parametrize("kind", [float, int])
def test_a_step_that_is_a_number(kind, geometry, quadratic, snapshot):
    """As torch kept it once, and others still do."""
    params = quadratic.params(MATRICES)
    optimizer = AdaArturo(params, **geometry)
    quadratic.train(optimizer, 3)
    state_dict = copy.deepcopy(optimizer.state_dict())
    for entry in state_dict["state"].values():
        entry["step"] = kind(entry["step"])
    resumed = AdaArturo(quadratic.twins(params), **geometry)
    resumed.load_state_dict(state_dict)
    quadratic.train(resumed, 3, start=3)
    quadratic.train(optimizer, 3, start=3)
    assert snapshot(resumed) == snapshot(optimizer)


@pytest.mark.parametrize("when", ["before the first step", "later"])
def test_what_users_keep_in_the_state_stays(when, geometry, quadratic):
    """Before the first step, too, and through save and load; it does not stop state from being made."""
    params, twins = quadratic.params(MATRICES), quadratic.params(MATRICES)
    optimizer, plain = AdaArturo(params, **geometry), AdaArturo(twins, **geometry)
    if when == "later":
        quadratic.train(optimizer, 2)
    optimizer.state[params[0]]["ema"] = torch.full((3,), 7.0, dtype=torch.float64)
    optimizer.state[params[0]]["count"] = 3
    resumed = AdaArturo(quadratic.twins(params), **geometry)
    resumed.load_state_dict(saved(optimizer.state_dict()))
    start = 2 if when == "later" else 0
    quadratic.train(plain, 6)
    for run in (optimizer, resumed):
        quadratic.train(run, 6 - start, start=start)
        p = run.param_groups[0]["params"][0]
        assert torch.equal(run.state[p]["ema"], torch.full((3,), 7.0, dtype=torch.float64)) and run.state[p]["count"] == 3
        assert torch.equal(p, twins[0])


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_float32_checkpoint_in_a_half_precision_model(dtype, geometry, quadratic):
    """Buffers keep their float32 values; the mean starts at the rounded weights. And the way back."""
    params = quadratic.params(MATRICES)
    optimizer = AdaArturo(params, **geometry)
    quadratic.train(optimizer, 3)
    twins = [torch.nn.Parameter(p.detach().to(dtype)) for p in params]
    narrow = AdaArturo(twins, **geometry)
    narrow.load_state_dict(optimizer.state_dict())
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(narrow.state[q]["M"], optimizer.state[p]["M"]) and torch.equal(narrow.state[q]["mean"], q.float())
    wide = AdaArturo(quadratic.twins(params), **geometry)
    wide.load_state_dict(narrow.state_dict())
    assert not any("mean" in state for state in wide.state.values())
    quadratic.train(narrow, 1, start=3)
    quadratic.train(wide, 1, start=3)


@pytest.mark.parametrize("there", [torch.float64, torch.float32], ids=str)
def test_state_takes_the_parameters_precision(there, geometry, quadratic):
    params = quadratic.params(MATRICES, torch.float32 if there == torch.float64 else torch.float64)
    optimizer = AdaArturo(params, **geometry)
    quadratic.train(optimizer, 2)
    twins = [torch.nn.Parameter(p.detach().to(there)) for p in params]
    resumed = AdaArturo(twins, **geometry)
    resumed.load_state_dict(optimizer.state_dict())
    for p, q in zip(params, twins, strict=True):
        assert resumed.state[q]["M"].dtype == there and torch.equal(resumed.state[q]["M"], optimizer.state[p]["M"].to(there))
    quadratic.train(resumed, 4, start=2)


# ---- refused, or begun anew


@pytest.fixture
def ours(quadratic):
    optimizer = AdaArturo(quadratic.params([(3, 2), (4,)]))
    quadratic.train(optimizer, 2)
    return optimizer


@pytest.mark.parametrize("name", ["step", "M", "r", "start"])
def test_incomplete_state_is_refused(name, ours, snapshot):
    before = snapshot(ours)
    state_dict = copy.deepcopy(ours.state_dict())
    del state_dict["state"][1][name]
    with pytest.raises(ValueError, match=f"lacks {name}"):
        ours.load_state_dict(state_dict)
    assert snapshot(ours) == before


@pytest.mark.parametrize("name", ["M", "r", "start"])
def test_state_of_another_shape_is_refused(name, ours, snapshot, quadratic):
    """Also when it shows late, and the parameter before it was already loaded."""
    before, groups = snapshot(ours), copy.deepcopy(ours.param_groups)
    state_dict = copy.deepcopy(ours.state_dict())
    state_dict["param_groups"][0]["lr"] = 7.0
    state_dict["state"][1][name] = torch.zeros(5)
    with pytest.raises(ValueError, match=rf"state '{name}' of shape \(5,\) does not fit a parameter of shape \(4,\)"):
        ours.load_state_dict(state_dict)
    assert snapshot(ours) == before and ours.param_groups[0]["lr"] == groups[0]["lr"]
    quadratic.train(ours, 1, start=2)


def changed_block(state_dict):
    state_dict["param_groups"][0]["block"] = 2


def changed_covariance(state_dict):
    state_dict["param_groups"][0]["covariance"] = "diagonal"


def lost_factor(state_dict):
    del state_dict["state"][0]["L"]


@pytest.mark.parametrize("change", [changed_block, changed_covariance, lost_factor])
def test_state_in_other_tiles_begins_anew(change, quadratic, snapshot):
    """The matrix as in a fresh optimizer, with one warning to the line that loads; the vector keeps its state."""
    params = quadratic.params([(4, 6), (5,), (6, 4)])
    optimizer = AdaArturo(params)
    quadratic.train(optimizer, 3)
    state_dict = copy.deepcopy(optimizer.state_dict())
    change(state_dict)
    twins = quadratic.twins(params)
    resumed = AdaArturo(twins)
    count = 1 if change is lost_factor else 2
    with pytest.warns(UserWarning, match=rf"^the state of {count} parameters was reset.*shapes: \(4, 6\)") as given:
        resumed.load_state_dict(state_dict)
    assert [w.filename for w in given] == [__file__]
    assert snapshot(resumed, twins[1:2]) == snapshot(optimizer, params[1:2])
    fresh = AdaArturo(quadratic.twins(params), **{k: state_dict["param_groups"][0][k] for k in ("block", "covariance")})
    fresh.param_groups[0]["lr"] = 0.0
    quadratic.train(fresh, 1)
    assert snapshot(resumed, twins[:1]) == snapshot(fresh)[:1]
    quadratic.train(resumed, 3, start=3)
    assert [resumed.state[p]["step"].item() for p in twins] == [3.0, 6.0, 6.0 if change is lost_factor else 3.0]


# ---- hooks


# ---- torch.distributed.checkpoint.state_dict, in one process


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Linear(6, 4, dtype=dtype)
