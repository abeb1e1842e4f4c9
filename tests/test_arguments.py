"""Arguments of both: what each may be; everything else is a ValueError that names the argument and the value."""

import inspect
import io
import math
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from arturo import PAPER, AdaArturo, Arturo
from arturo.hyperparameters import GLOBAL

NAN, INF = math.nan, math.inf
NO_NUMBER = [NAN, INF, -INF, 10**400, "0.1", True, [0.1], 1j, torch.tensor(0.1)]
POSITIVE = [0, 0.0, -1, -1e-30, *NO_NUMBER]
NOT_NEGATIVE = [-1, -1e-30, *NO_NUMBER]
BOOLEAN = [0, 1, "True", 0.0, [True]]

BAD = {
    "lr": [-1, -1e-30, NAN, INF, "1.0", None, True, [1.0], 1j, torch.tensor(-1.0), torch.tensor(NAN), torch.tensor([INF])],
    "kl_bound": POSITIVE,
    "prior_weight": [None, *NOT_NEGATIVE],
    "prior_precision": [None, *NOT_NEGATIVE],
    "covariance_weight": [None, *POSITIVE],
    "noise": [None, *POSITIVE],
    "drift": [None, *NOT_NEGATIVE],
    "weight_decay": [None, *NOT_NEGATIVE],
    "initial_curvature": NOT_NEGATIVE,
    "initial_variance": POSITIVE,
    "initial_filter_variance": POSITIVE,
    "surrogate": ["Kalman", "kalman ", "", None, 3, ["kalman"], object, "function"],
    "averaging": [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, NAN), ("0.9", 0.9), (0.9, 0.9, 0.9), {0.9, 0.99}],
    "dual": ["Newton", "bisect", "", None, 3, ["newton"]],
    "eta": NOT_NEGATIVE,
    "curvature_floor": NOT_NEGATIVE,
    "init": ["Consistent", "zero", "", None, 3],
    "state_dtype": [torch.float16, torch.float32, "bfloat16", 2],
    "foreach": BOOLEAN,
    "fused": BOOLEAN,
    "capturable": [None, *BOOLEAN],
    "maximize": [None, *BOOLEAN],
    "sample_gradients": [None, -1, 0.5, "yes", [True]],
}
GOOD = {
    "lr": [0, 0.0, 1, 1e-28, 3.0, torch.tensor(1), torch.tensor([[0.5]])],
    "kl_bound": [None, 1e-12, 5, 1e6],
    "prior_weight": [1e-6, 2],
    "prior_precision": [0, 0.0, 3.0],
    "covariance_weight": [1e-3, 10],
    "noise": [1e-6, 10],
    "drift": [0, 0.0, 1.0],
    "weight_decay": [0, 0.0, 1.0],
    "initial_curvature": [None, 0, 0.0, 2.0],
    "initial_variance": [None, 1e-6, 1],
    "initial_filter_variance": [None, 1e-6, 1],
    "surrogate": ["kalman", "adam"],
    "averaging": [None, (0.0, 0.0), (0.9, 0.99)],
    "dual": ["newton", "bisection"],
    "eta": [None, 0, 0.0, 2],
    "curvature_floor": [None, 0, 0.0, 0.1],
    "init": ["consistent", "gradient"],
    "state_dtype": [None, torch.bfloat16],
    "foreach": [None, True, False],
    "fused": [None, False],
    "capturable": [True, False],
    "maximize": [True, False],
    "sample_gradients": [False],  # others need a closure: tests/test_variational.py
}
ADAPTIVE_BAD = {
    "lr": [-1e-3, NAN, INF, "1", None, True, torch.tensor(-1.0), torch.tensor(NAN)],
    "betas": [(1.0, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9,), (0.9, 0.9, 0.9), 0.9, None, ("a", 0.9), (NAN, 0.9), (True, 0.9)],
    "eps": [-1e-8, NAN, INF, None, "1", True],
    "weight_decay": [-0.1, NAN, INF, None, "1", True],
    "covariance": ["full", None, 1, "Kronecker"],
    "block": [1, 0, -4, 2.0, None, True, "128"],
    "refresh": [0, -1, 2.0, None, True, "10"],
    "maximize": [None, 1, "yes"],
    "state_dtype": [torch.float16, torch.float32, "bfloat16", 2],
    "foreach": [1, 0, "yes"],
    "capturable": [None, 1, "yes"],
    "fused": [1, 0, "yes"],
}
ADAPTIVE_GOOD = {
    "lr": [0, 0.0, 1, 1e-28, 0.3, torch.tensor(1), torch.tensor([[0.5]])],
    "betas": [(0.0, 0.0), (0, 0), (0.99, 0.9999), [0.9, 0.95]],
    "eps": [0, 0.0, 1e-8, 1.0],
    "weight_decay": [0, 0.0, 1.0],
    "covariance": ["kronecker", "diagonal"],
    "block": [2, 3, 1024],
    "refresh": [1, 7],
    "maximize": [True, False],
    "state_dtype": [None, torch.bfloat16],
    "foreach": [None, True, False],
    "capturable": [False],  # True: together with covariance="diagonal", below
    "fused": [None, True, False],
}
TABLES = {Arturo: (BAD, GOOD), AdaArturo: (ADAPTIVE_BAD, ADAPTIVE_GOOD)}


def rows(which):
    """``(optimizer, argument, value)``, from the tables of bad values (0) or of good ones (1)."""
    return [(kind, name, x) for kind, tables in TABLES.items() for name, values in tables[which].items() for x in values]


def shown(x):
    return x.__name__ if isinstance(x, type) else repr(x)[:30]


@pytest.fixture
def params():
    return [torch.nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize("kind", TABLES)
def test_the_tables_are_complete(kind, params):
    names = set(inspect.signature(kind).parameters) - {"params", "foreign", "amsgrad", "differentiable"}
    bad, good = TABLES[kind]
    assert names == set(bad) == set(good) == set(kind(params).defaults) - {"curvature"}  # which is learned


@pytest.mark.parametrize("kind, name, value", rows(0), ids=shown)
def test_bad_values_are_refused(kind, name, value, params):
    """From the constructor, from a group dict and from add_param_group, which then adds nothing."""
    told = value.item() if name == "lr" and isinstance(value, torch.Tensor) else value
    words = rf"^Invalid (learning rate: {re.escape(repr(told))} \(lr|{name} value: {re.escape(repr(told))} \(must be)"
    with pytest.raises(ValueError, match=words):
        kind(params, **{name: value})
    with pytest.raises(ValueError, match=words):
        kind([{"params": params, name: value}])
    optimizer = kind(params)
    with pytest.raises(ValueError, match=words):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], name: value})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind, name, value", rows(1), ids=shown)
@pytest.mark.filterwarnings("ignore:lr=1e-28 looks like")
def test_good_values_are_taken_and_work(kind, name, value):
    """Both ways, and three steps stay finite."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.ones(3))]
    makes = [lambda: kind(params, **{name: value})]
    if kind is AdaArturo or name not in GLOBAL:
        makes.append(lambda: kind([{"params": params, name: value}]))
    for make in makes:
        optimizer = make()
        kept = optimizer.param_groups[0][name]
        assert kept is value or (type(value) in (list, tuple) and kept == tuple(value))
        for t in range(3):
            for p in params:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
            optimizer.step()
        assert all(torch.isfinite(p).all() for p in params)


@pytest.mark.parametrize("value", [0, 0.0])
def test_prior_weight_zero_needs_an_initial_variance(value, params):
    with pytest.raises(ValueError, match=rf"^Invalid prior_weight value: {value!r} without an initial_variance"):
        Arturo(params, prior_weight=value)
    with pytest.raises(ValueError, match=rf"^Invalid prior_weight value: {value!r} without an initial_variance"):
        Arturo([{"params": params, "prior_weight": value}])
    Arturo(params, prior_weight=value, initial_variance=0.01)
    Arturo([{"params": params, "prior_weight": value}], initial_variance=0.01)


def test_no_curvature_and_no_prior_needs_an_initial_variance(params):
    for off in ({"prior_precision": 0.0}, {"prior_weight": 1e-200, "prior_precision": 1e-200}):
        with pytest.raises(ValueError, match=r"^Invalid initial_curvature value: 0.0 "):
            Arturo(params, initial_curvature=0.0, **off)
        Arturo(params, initial_curvature=0.0, initial_variance=0.01, **off)


@pytest.mark.parametrize(
    "surrogate",
    ["adam", "hessian", "ggn", "hutchinson", torch.zeros_like],
    ids=["adam", "hessian", "ggn", "hutchinson", "function"],
)
def test_rounded_state_is_for_the_filter(surrogate, params):
    with pytest.raises(ValueError, match=r"^Invalid state_dtype value: torch.bfloat16 with surrogate="):
        Arturo(params, surrogate=surrogate, state_dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"^Invalid state_dtype value: torch.bfloat16 with surrogate="):
        Arturo([{"params": params, "surrogate": surrogate}], state_dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", TABLES)
def test_foreach_and_fused_exclude_each_other(kind, params):
    with pytest.raises(ValueError, match="foreach value: True together with fused=True"):
        kind(params, foreach=True, fused=True)


def test_no_refresh_in_a_captured_graph(params):
    for make in (
        lambda: AdaArturo(params, capturable=True),
        lambda: AdaArturo([{"params": params, "covariance": "kronecker"}], capturable=True, covariance="diagonal"),
    ):
        with pytest.raises(ValueError, match=r"^Invalid capturable value: True with covariance='kronecker'"):
            make()
    AdaArturo(params, capturable=True, covariance="diagonal")


@pytest.mark.parametrize("name", ["amsgrad", "differentiable"])
def test_what_adamw_has_and_we_do_not_is_refused(name, params):
    AdaArturo(params, **{name: False})
    with pytest.raises(ValueError, match=rf"^Invalid {name} value: True .*leave it out"):
        AdaArturo(params, **{name: True})
    with pytest.raises(ValueError, match=rf"^Invalid {name} value: True .*leave it out"):
        AdaArturo([{"params": params, name: True}])
    optimizer = AdaArturo([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match=rf"^Invalid {name} value: True .*leave it out"):
        optimizer.add_param_group({"params": params, name: True})
    assert len(optimizer.param_groups) == 1


def test_the_groups_of_adamw_are_taken(params):
    """With what they have of it that is false."""
    groups = torch.optim.AdamW(params, lr=2e-3).param_groups
    assert not groups[0]["amsgrad"] and not groups[0]["differentiable"]
    assert AdaArturo([dict(group) for group in groups]).param_groups[0]["lr"] == 2e-3


def test_called_as_adamw_is(params):
    """Names and order of what both have: positional and keyword calls carry over."""
    ours, theirs = (list(inspect.signature(x).parameters) for x in (AdaArturo, torch.optim.AdamW))
    assert ours[:6] == theirs[:6] == ["params", "lr", "betas", "eps", "weight_decay", "amsgrad"]
    assert set(theirs) <= set(ours)
    group = AdaArturo(params, 2e-3, (0.8, 0.95), 1e-8, 0.1).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (2e-3, (0.8, 0.95), 1e-8, 0.1)
    with pytest.raises(TypeError, match="momentum"):
        AdaArturo(params, momentum=0.9)


def test_unknown_arguments_and_positions(params):
    """Everything after lr is named."""
    with pytest.raises(TypeError, match="momentum"):
        Arturo(params, momentum=0.9)
    with pytest.raises(TypeError, match="positional"):
        Arturo(params, 1.0, 0.1)


def test_a_group_may_carry_keys_of_its_own(params):
    """As in torch: schedulers and users put theirs there."""
    optimizer = Arturo([{"params": params, "name": "head"}])
    params[0].grad = torch.ones(3)
    optimizer.step()
    assert optimizer.param_groups[0]["name"] == "head" == optimizer.state_dict()["param_groups"][0]["name"]


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), Fraction(1, 2)], ids=repr)
@pytest.mark.parametrize("kind", TABLES)
def test_numbers_of_other_libraries_become_plain(kind, value, params):
    """So that a saved state dict loads with weights_only=True."""
    pair = {"averaging": (value, value)} if kind is Arturo else {"betas": (value, value), "eps": value}
    chosen = {"lr": value, "weight_decay": value, **pair, **({"kl_bound": value} if kind is Arturo else {})}
    for optimizer in (kind(params, **chosen), kind([{"params": params, **chosen}])):
        group = optimizer.param_groups[0]
        for name, given in chosen.items():
            kept = group[name]
            assert [type(x) for x in (kept if type(given) is tuple else (kept,))] == [float] * (
                2 if type(given) is tuple else 1
            )
            assert kept == (tuple(map(float, given)) if type(given) is tuple else float(given))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file, weights_only=True))


def test_an_integer_of_numpy_becomes_plain(params):
    assert type(Arturo(params, kl_bound=np.int64(2)).param_groups[0]["kl_bound"]) is float


def test_the_published_combination(params):
    """PAPER is what design.md says, every key an argument, and the optimizer takes it."""
    assert PAPER == {
        "dual": "bisection",
        "init": "gradient",
        "curvature_floor": None,
        "initial_curvature": 0.1,
        "initial_variance": 0.01,
        "initial_filter_variance": 5e-5,
    }
    group = Arturo(params, **PAPER, kl_bound=0.1).param_groups[0]
    assert all(group[name] == value for name, value in PAPER.items())


def test_importing_arturo_does_not_import_the_compiler():
    """torch._dynamo and sympy double the import time, and a plain run needs neither."""
    code = "import sys, arturo; print([m for m in ('torch._dynamo', 'sympy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
