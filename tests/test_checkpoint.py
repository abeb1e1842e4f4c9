"""Save, load, copy, pickle: a run that stopped and went on has the bits of one that did not."""

import copy
import io
import pickle

import pytest
import torch

from arturo import Arturo

HALF = [torch.bfloat16, torch.float16]
BUFFERS = ("prec", "a", "b", "P_aa", "P_ab", "P_bb")


def fingerprint(state_dict):
    """To compare with ==: tensors as numbers, beside their dtype."""

    def plain(x):
        return (x.dtype, x.tolist()) if isinstance(x, torch.Tensor) else x

    states = {key: {name: plain(x) for name, x in entry.items()} for key, entry in state_dict["state"].items()}
    return states, [{name: plain(x) for name, x in group.items()} for group in state_dict["param_groups"]]


def saved(state_dict):
    """Through a file, with the safe loader."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("stop", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_continuing_equals_not_stopping(stop, dtype, configuration, quadratic, snapshot):
    """Into an optimizer made with other options: all that matters is in the state dict."""
    params = quadratic.params(dtype=dtype)
    optimizer = Arturo(params, **configuration)
    quadratic.train(optimizer, stop)
    resumed = Arturo(quadratic.twins(params), noise=7.0)
    resumed.load_state_dict(saved(optimizer.state_dict()))
    assert snapshot(resumed) == snapshot(optimizer)
    for t in range(stop, stop + 3):
        assert quadratic.train(resumed, 1, t) == quadratic.train(optimizer, 1, t)
    assert snapshot(resumed) == snapshot(optimizer)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_continues_alike(make, configuration, quadratic, snapshot):
    """Nothing that matters is kept outside state and param_groups; the copy shares no memory."""
    optimizer = Arturo(quadratic.params() + quadratic.params([(3,)], torch.bfloat16), **configuration)
    quadratic.train(optimizer, 3)
    copied = make(optimizer)
    assert type(copied) is Arturo and copied.defaults.keys() == optimizer.defaults.keys()
    before = snapshot(optimizer)
    ahead = quadratic.train(copied, 3, start=3)
    assert snapshot(optimizer) == before
    assert quadratic.train(optimizer, 3, start=3) == ahead
    assert snapshot(copied) == snapshot(optimizer)


def test_nothing_but_state_and_groups_matters(configuration, quadratic, snapshot):
    """A bare object given the three attributes that torch pickles is as good as the original."""
    optimizer = Arturo(quadratic.params(), **configuration)
    quadratic.train(optimizer, 3)
    bare = Arturo.__new__(Arturo)
    bare.__setstate__(copy.deepcopy(optimizer.__getstate__()))
    assert set(optimizer.__getstate__()) == {"defaults", "state", "param_groups"}
    assert quadratic.train(bare, 2, start=3) == quadratic.train(optimizer, 2, start=3)
    assert snapshot(bare) == snapshot(optimizer)


def test_state_dicts_hold_plain_data(configuration, quadratic):
    """Tensors, numbers, strings, None; a second save is the first; nothing is added to the groups."""
    optimizer = Arturo(quadratic.params(), **configuration)
    names = set(optimizer.param_groups[0])
    quadratic.train(optimizer, 2)
    first = copy.deepcopy(optimizer.state_dict())
    plain = (torch.Tensor, int, float, str, bool, type(None))
    assert all(type(x) in plain for group in first["param_groups"] for name, x in group.items() if name != "params")
    assert all(type(x) is torch.Tensor for state in first["state"].values() for x in state.values())
    optimizer.load_state_dict(saved(first))
    copied = pickle.loads(pickle.dumps(optimizer))
    assert names == set(optimizer.param_groups[0]) == set(copied.param_groups[0]) == {*optimizer.defaults, "params"}
    assert fingerprint(optimizer.state_dict()) == fingerprint(copied.state_dict()) == fingerprint(first)


def test_loading_does_not_share_memory(kernel, quadratic):
    optimizer, other = Arturo(quadratic.params(), **kernel), Arturo(quadratic.params(), **kernel)
    quadratic.train(optimizer, 2)
    state_dict = optimizer.state_dict()
    kept = fingerprint(state_dict)
    other.load_state_dict(state_dict)
    quadratic.train(other, 2)
    assert fingerprint(state_dict) == kept


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_state_survives_value_for_value(dtype, kernel, quadratic):
    params = quadratic.params(dtype=dtype)
    optimizer = Arturo(params, **kernel)
    quadratic.train(optimizer, 3)
    resumed = Arturo(quadratic.twins(params), **kernel)
    resumed.load_state_dict(saved(optimizer.state_dict()))
    for p, twin in zip(params, resumed.param_groups[0]["params"], strict=True):
        assert sorted(resumed.state[twin]) == sorted(optimizer.state[p])
        for name, x in optimizer.state[p].items():
            loaded = resumed.state[twin][name]
            assert loaded.dtype == x.dtype and torch.equal(loaded, x), name
    assert not torch.equal(optimizer.state[params[0]]["mean"], params[0].float())


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("weights_first", [True, False])
def test_a_float32_checkpoint_in_a_half_precision_model(dtype, weights_first, kernel, quadratic):
    """Buffers keep their float32 values; the mean starts at the rounded weights, whichever is loaded first."""
    params = quadratic.params()
    optimizer = Arturo(params, **kernel)
    quadratic.train(optimizer, 3)
    twins = quadratic.params(dtype=dtype, seed=7)
    resumed = Arturo(twins, **kernel)

    def load_weights():
        with torch.no_grad():
            for p, twin in zip(params, twins, strict=True):
                twin.copy_(p)

    if weights_first:
        load_weights()
    resumed.load_state_dict(saved(optimizer.state_dict()))
    if not weights_first:
        load_weights()
    for p, twin in zip(params, twins, strict=True):
        for name in (*BUFFERS, "step", "eta"):
            assert torch.equal(resumed.state[twin][name], optimizer.state[p][name])
            assert resumed.state[twin][name].dtype == optimizer.state[p][name].dtype
        assert resumed.state[twin]["mean"].dtype == torch.float32
    quadratic.train(resumed, 1, start=3)
    quadratic.train(optimizer, 1, start=3)
    for p, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(resumed.state[twin]["mean"], p.detach(), rtol=2e-2, atol=2e-2)
        assert torch.equal(twin, resumed.state[twin]["mean"].to(dtype))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_half_precision_checkpoint_in_a_float32_model(dtype, kernel, quadratic):
    """Buffers keep their values, the separate mean is gone: the parameter is the mean."""
    params = quadratic.params(dtype=dtype)
    optimizer = Arturo(params, **kernel)
    quadratic.train(optimizer, 3)
    twins = [torch.nn.Parameter(p.detach().float()) for p in params]
    resumed = Arturo(twins, **kernel)
    resumed.load_state_dict(saved(optimizer.state_dict()))
    for p, twin in zip(params, twins, strict=True):
        assert sorted(resumed.state[twin]) == sorted((*BUFFERS, "step", "eta", "scale"))
        assert all(torch.equal(x, optimizer.state[p][name]) for name, x in resumed.state[twin].items())
    quadratic.train(resumed, 2, start=3)
    assert all(torch.isfinite(twin).all() for twin in twins)


def test_float64_and_float32_checkpoints_in_each_others_models(kernel, quadratic):
    for here, there in [(torch.float64, torch.float32), (torch.float32, torch.float64)]:
        params = quadratic.params(dtype=here)
        optimizer = Arturo(params, **kernel)
        quadratic.train(optimizer, 2)
        twins = [torch.nn.Parameter(p.detach().to(there)) for p in params]
        resumed = Arturo(twins, **kernel)
        resumed.load_state_dict(optimizer.state_dict())
        for p, twin in zip(params, twins, strict=True):
            assert all(resumed.state[twin][name].dtype == there for name in BUFFERS)
            assert torch.equal(resumed.state[twin]["prec"], optimizer.state[p]["prec"].to(there))
            assert torch.equal(resumed.state[twin]["eta"], optimizer.state[p]["eta"])
        quadratic.train(resumed, 1, start=2)


@pytest.mark.parametrize(
    "flag", ["maximize", "capturable", "foreach", "fused", "curvature_floor", "init", "eta", "weight_decay"]
)
def test_a_state_dict_that_lacks_a_newer_flag_loads(flag, quadratic):
    """What an older version did not know takes the constructor's value."""
    params = quadratic.params()
    optimizer = Arturo(params, kl_bound=0.01)
    quadratic.train(optimizer, 2)
    state_dict = optimizer.state_dict()
    for group in state_dict["param_groups"]:
        del group[flag]
    resumed = Arturo(quadratic.twins(params), kl_bound=0.01)
    resumed.load_state_dict(state_dict)
    assert resumed.param_groups[0][flag] == resumed.defaults[flag]
    assert quadratic.train(resumed, 1, start=2) == quadratic.train(optimizer, 1, start=2)


def test_loading_after_regrouping(kernel, quadratic, snapshot):
    """One group saved, its state put under two groups: eta and the step count are with every parameter."""
    params = quadratic.params()
    optimizer = Arturo(params, **kernel)
    quadratic.train(optimizer, 3)
    twins = quadratic.twins(params)
    resumed = Arturo([{"params": twins[:2]}, {"params": twins[2:]}], **kernel)
    fresh = resumed.state_dict()
    resumed.load_state_dict({"state": optimizer.state_dict()["state"], "param_groups": fresh["param_groups"]})
    assert quadratic.train(resumed, 2, start=3) == quadratic.train(optimizer, 2, start=3)
    assert snapshot(resumed) == snapshot(optimizer)


def test_repr(quadratic):
    text = repr(Arturo(quadratic.params(), kl_bound=0.25))
    assert text.startswith("Arturo (\nParameter Group 0\n") and "    kl_bound: 0.25\n" in text and "    lr: 1.0\n" in text
