"""Each argument of AdaArturo: bad values are refused by name and value, good ones work; names and order are AdamW's."""

import inspect
import io
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from arturo import AdaArturo

NAN, INF = float("nan"), float("inf")
BAD = {
    "lr": [-1e-3, NAN, INF, "1", None, True, torch.tensor(-1.0), torch.tensor(NAN)],
    "betas": [(1.0, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9,), (0.9, 0.9, 0.9), 0.9, None, ("a", 0.9), (NAN, 0.9), (True, 0.9)],
    "eps": [-1e-8, NAN, INF, None, "1", True],
    "weight_decay": [-0.1, NAN, INF, None, "1", True],
    "covariance": ["full", None, 1, "Kronecker"],
    "block": [1, 0, -4, 2.0, None, True, "128"],
    "refresh": [0, -1, 2.0, None, True, "10"],
    "maximize": [None, 1, "yes"],
    "foreach": [1, 0, "yes"],
    "capturable": [None, 1, "yes"],
    "fused": [1, 0, "yes"],
}
GOOD = {
    "lr": [0, 0.0, 1, 1e-28, 0.3, torch.tensor(1), torch.tensor([[0.5]])],
    "betas": [(0.0, 0.0), (0, 0), (0.99, 0.9999), [0.9, 0.95]],
    "eps": [0, 0.0, 1e-8, 1.0],
    "weight_decay": [0, 0.0, 1.0],
    "covariance": ["kronecker", "diagonal"],
    "block": [2, 3, 1024],
    "refresh": [1, 7],
    "maximize": [True, False],
    "foreach": [None, True, False],
    "capturable": [False],  # True: together with covariance="diagonal", below
    "fused": [None, True, False],
}


@pytest.fixture
def params():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.ones(3))]


def test_the_tables_are_complete(params):
    names = set(inspect.signature(AdaArturo).parameters) - {"params", "amsgrad"}
    assert names == set(BAD) == set(GOOD) == set(AdaArturo(params).defaults)


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in BAD.items() for v in vs], ids=lambda x: repr(x)[:30])
def test_bad_values_are_refused(name, value, params):
    """From the constructor, from a group dict and from add_param_group, which then adds nothing."""
    shown = value.item() if name == "lr" and isinstance(value, torch.Tensor) else value
    words = rf"^Invalid (learning rate: {re.escape(repr(shown))} \(lr|{name} value: {re.escape(repr(shown))} \(must be)"
    with pytest.raises(ValueError, match=words):
        AdaArturo(params, **{name: value})
    with pytest.raises(ValueError, match=words):
        AdaArturo([{"params": params, name: value}])
    optimizer = AdaArturo(params)
    with pytest.raises(ValueError, match=words):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], name: value})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in GOOD.items() for v in vs], ids=lambda x: repr(x)[:30])
def test_good_values_are_taken_and_work(name, value, params):
    """Both ways, and three steps stay finite."""
    for optimizer in (AdaArturo(params, **{name: value}), AdaArturo([{"params": params, name: value}])):
        kept = optimizer.param_groups[0][name]
        assert kept is value or kept == (tuple(value) if isinstance(value, list) else value)
        for t in range(3):
            for p in params:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
            optimizer.step()
        assert all(torch.isfinite(p).all() for p in params)


def test_pairs_without_meaning(params):
    with pytest.raises(ValueError, match="foreach value: True together with fused=True"):
        AdaArturo(params, foreach=True, fused=True)
    for make in (
        lambda: AdaArturo(params, capturable=True),
        lambda: AdaArturo([{"params": params, "covariance": "kronecker"}], capturable=True, covariance="diagonal"),
    ):
        with pytest.raises(ValueError, match=r"^Invalid capturable value: True with covariance='kronecker'"):
            make()
    AdaArturo(params, capturable=True, covariance="diagonal")


def test_amsgrad_is_refused(params):
    AdaArturo(params, amsgrad=False)
    with pytest.raises(ValueError, match=r"^Invalid amsgrad value: True "):
        AdaArturo(params, amsgrad=True)


def test_called_as_adamw_is(params):
    """Names and order of what both have: positional and keyword calls carry over."""
    ours, theirs = (list(inspect.signature(x).parameters) for x in (AdaArturo, torch.optim.AdamW))
    assert ours[:6] == theirs[:6] == ["params", "lr", "betas", "eps", "weight_decay", "amsgrad"]
    assert set(theirs) - set(ours) == {"differentiable"}
    group = AdaArturo(params, 2e-3, (0.8, 0.95), 1e-8, 0.1).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (2e-3, (0.8, 0.95), 1e-8, 0.1)
    with pytest.raises(TypeError, match="momentum"):
        AdaArturo(params, momentum=0.9)


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), Fraction(1, 2)], ids=repr)
def test_numbers_of_other_libraries_become_plain(value, params):
    """So that a saved state dict loads with weights_only=True."""
    chosen = {"lr": value, "betas": (value, value), "eps": value, "weight_decay": value}
    for optimizer in (AdaArturo(params, **chosen), AdaArturo([{"params": params, **chosen}])):
        group = optimizer.param_groups[0]
        assert all(type(group[name]) is float for name in ("lr", "eps", "weight_decay"))
        assert type(group["betas"]) is tuple and [type(x) for x in group["betas"]] == [float, float]
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file, weights_only=True))


def test_flat_parameters_of_fsdp1_are_refused(monkeypatch):
    """Each process would have a separate trust region, in silence."""
    p = torch.nn.Parameter(torch.ones(3))
    p._is_flat_param = True
    AdaArturo([p])  # one process: nothing is hidden
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(RuntimeError, match=r"does not support FullyShardedDataParallel \(FSDP1\)"):
        AdaArturo([p])
