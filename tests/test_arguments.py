"""Arguments: what each may be; everything else is a ValueError that names the argument and the value."""

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

from arturo import PAPER, Arturo
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
ROWS = [(name, value) for name, values in BAD.items() for value in values]


@pytest.fixture
def params():
    return [torch.nn.Parameter(torch.ones(3))]


def test_the_tables_are_complete(params):
    names = set(inspect.signature(Arturo).parameters) - {"params", "foreign"}
    assert names == set(BAD) == set(GOOD) == set(Arturo(params).defaults)


@pytest.mark.parametrize("name, value", ROWS, ids=lambda x: repr(x)[:30])
def test_bad_values_are_refused(name, value, params):
    """From the constructor, from a group dict and from add_param_group, which then adds nothing."""
    shown = value.item() if name == "lr" and isinstance(value, torch.Tensor) else value
    words = rf"^Invalid (learning rate: {re.escape(repr(shown))} \(lr|{name} value: {re.escape(repr(shown))} )"
    with pytest.raises(ValueError, match=words):
        Arturo(params, **{name: value})
    with pytest.raises(ValueError, match=words):
        Arturo([{"params": params, name: value}])
    optimizer = Arturo(params)
    with pytest.raises(ValueError, match=words):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], name: value})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in GOOD.items() for v in vs], ids=lambda x: repr(x)[:30])
@pytest.mark.filterwarnings("ignore:lr=1e-28 looks like")
def test_good_values_are_taken_and_work(name, value, params):
    """Both ways, and two steps stay finite."""
    makes = [lambda: Arturo(params, **{name: value})]
    if name not in GLOBAL:
        makes.append(lambda: Arturo([{"params": params, name: value}]))
    for make in makes:
        optimizer = make()
        assert optimizer.param_groups[0][name] is value
        for t in range(2):
            params[0].grad = torch.tensor([1.0, -2.0, 0.5 + t])
            optimizer.step()
        assert torch.isfinite(params[0]).all()


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


def test_foreach_and_fused_exclude_each_other(params):
    with pytest.raises(ValueError, match="foreach value: True together with fused=True"):
        Arturo(params, foreach=True, fused=True)


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


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.int64(2), Fraction(1, 2)], ids=repr)
def test_numbers_of_other_libraries_become_plain(value, params):
    """So that a saved state dict loads with weights_only=True."""
    for optimizer in (Arturo(params, lr=value, kl_bound=value), Arturo([{"params": params, "lr": value, "kl_bound": value}])):
        assert type(optimizer.param_groups[0]["lr"]) is type(optimizer.param_groups[0]["kl_bound"]) is float
        assert optimizer.param_groups[0]["kl_bound"] == float(value)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file, weights_only=True))


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
