"""Save, load, copy, pickle: a run that stopped and went on has the bits of one that did not."""

import pytest
import torch
from state_dicts import saved

from arturo import Arturo

HALF = [torch.bfloat16, torch.float16]
BUFFERS = ("prec", "a", "b", "P_aa", "P_ab", "P_bb")


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
