"""What both optimizers owe to torch and to their user: copies, state dicts, refusals, what the last step says."""

import copy
import pickle
import warnings

import pytest
import torch
from state_dicts import fingerprint, saved

from arturo import AdaArturo, Arturo, StepInfo

OTHERS = {  # how it is made -> what it is called
    "SGD": (torch.optim.SGD, "SGD"),
    "momentum": (lambda params: torch.optim.SGD(params, momentum=0.9), "SGD"),
    "Adam": (torch.optim.Adam, "Adam or AdamW"),
    "AdamW": (torch.optim.AdamW, "Adam or AdamW"),
    "NAdam": (torch.optim.NAdam, "NAdam"),
    "RAdam": (torch.optim.RAdam, "an optimizer of Adam's family"),
    "Adamax": (torch.optim.Adamax, "an optimizer of Adam's family"),
    "Adagrad": (torch.optim.Adagrad, "Adagrad"),
    "Adadelta": (torch.optim.Adadelta, "Adadelta"),
    "RMSprop": (torch.optim.RMSprop, "RMSprop"),
    "Rprop": (torch.optim.Rprop, "Rprop"),
    "ASGD": (torch.optim.ASGD, "ASGD"),
    "Arturo": (Arturo, "Arturo"),
    "AdaArturo": (AdaArturo, "AdaArturo"),
}
OLD = {"lr", "kl_bound", "betas", "covariance", "prior_weight", "surrogate"}  # by which a state dict is known, or its meaning


@pytest.mark.parametrize("make", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_continues_alike(make, every, quadratic, snapshot):
    """Nothing that matters is kept outside state and param_groups; the copy shares no memory."""
    optimizer = every(quadratic.params() + quadratic.params([(3,)], torch.bfloat16))
    quadratic.train(optimizer, 3)
    copied = make(optimizer)
    assert type(copied) is every.kind and copied.defaults.keys() == optimizer.defaults.keys()
    before = snapshot(optimizer)
    ahead = quadratic.train(copied, 4, start=3)
    assert snapshot(optimizer) == before
    assert quadratic.train(optimizer, 4, start=3) == ahead and snapshot(copied) == snapshot(optimizer)


def test_nothing_but_state_and_groups_matters(every, quadratic, snapshot):
    """A bare object given the three attributes that torch pickles is as good as the original."""
    optimizer = every(quadratic.params())
    quadratic.train(optimizer, 3)
    bare = every.kind.__new__(every.kind)
    bare.__setstate__(copy.deepcopy(optimizer.__getstate__()))
    assert set(optimizer.__getstate__()) == {"defaults", "state", "param_groups"}
    assert quadratic.train(bare, 2, start=3) == quadratic.train(optimizer, 2, start=3)
    assert snapshot(bare) == snapshot(optimizer)


def test_state_dicts_hold_plain_data(every, quadratic):
    """Tensors, numbers, strings, None, tuples of numbers; a second save is the first; nothing is added to the groups."""
    optimizer = every(quadratic.params())
    names = set(optimizer.param_groups[0])
    quadratic.train(optimizer, 2)
    first = copy.deepcopy(optimizer.state_dict())
    plain = (torch.Tensor, int, float, str, bool, tuple, type(None))
    assert all(type(x) in plain for group in first["param_groups"] for name, x in group.items() if name != "params")
    assert all(type(x) is torch.Tensor for state in first["state"].values() for x in state.values())
    optimizer.load_state_dict(saved(first))
    copied = pickle.loads(pickle.dumps(optimizer))
    assert names == set(optimizer.param_groups[0]) == set(copied.param_groups[0]) == {*optimizer.defaults, "params"}
    assert fingerprint(optimizer.state_dict()) == fingerprint(copied.state_dict()) == fingerprint(first)


def test_loading_does_not_share_memory(way, quadratic):
    optimizer, other = way(quadratic.params()), way(quadratic.params())
    quadratic.train(optimizer, 2)
    state_dict = optimizer.state_dict()
    kept = fingerprint(state_dict)
    other.load_state_dict(state_dict)
    quadratic.train(other, 2)
    assert fingerprint(state_dict) == kept


@pytest.mark.parametrize(
    "kind, flag",
    [(kind, flag) for kind in (Arturo, AdaArturo) for flag in kind.declared if flag not in OLD],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_state_dict_that_lacks_a_newer_flag_loads(kind, flag, quadratic):
    """What an older version did not know takes the constructor's value."""
    params = quadratic.params()
    optimizer = kind(params)
    quadratic.train(optimizer, 2)
    state_dict = optimizer.state_dict()
    for group in state_dict["param_groups"]:
        del group[flag]
    resumed = kind(quadratic.twins(params))
    resumed.load_state_dict(state_dict)
    assert resumed.param_groups[0][flag] == resumed.defaults[flag]
    assert quadratic.train(resumed, 1, start=2) == quadratic.train(optimizer, 1, start=2)


def test_loading_after_regrouping(way, quadratic, snapshot):
    """One group saved, its state put under two groups: all that counts is with every parameter, or learned anew."""
    params = quadratic.params()
    optimizer = way(params)
    quadratic.train(optimizer, 3)
    twins = quadratic.twins(params)
    resumed = way([{"params": twins[:2]}, {"params": twins[2:]}])
    groups = resumed.state_dict()["param_groups"]
    resumed.load_state_dict({"state": optimizer.state_dict()["state"], "param_groups": groups})
    assert quadratic.train(resumed, 4, start=3) == quadratic.train(optimizer, 4, start=3)
    assert snapshot(resumed) == snapshot(optimizer)


@pytest.fixture
def ours(plain, quadratic):
    optimizer = plain(quadratic.params([(3, 2), (4,)]))
    quadratic.train(optimizer, 2)
    return optimizer


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(
    "kind, other",
    [(kind, other) for kind in (Arturo, AdaArturo) for other in OTHERS if other != kind.__name__],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_other_optimizers_are_refused_by_name(kind, other, steps, quadratic, snapshot):
    """Before their first step too, when there is no state yet to know them by. Nothing is changed by it."""
    ours = kind(quadratic.params([(3, 2), (4,)]))
    quadratic.train(ours, 2)
    params = quadratic.params([(3, 2), (4,)])
    make, name = OTHERS[other]
    other = make(params)
    for t in range(steps):
        quadratic.gradients(params, t)
        other.step()
    before, groups = snapshot(ours), copy.deepcopy(ours.state_dict()["param_groups"])
    hooks = len(ours._optimizer_load_state_dict_pre_hooks)
    with pytest.raises(ValueError, match=f"state dict of {name}, not of {type(ours).__name__}"):
        ours.load_state_dict(other.state_dict())
    assert snapshot(ours) == before and ours.state_dict()["param_groups"] == groups
    assert len(ours._optimizer_load_state_dict_pre_hooks) == hooks
    quadratic.train(ours, 1, start=2)


def test_other_groups_are_refused_as_in_torch(ours, plain, quadratic, snapshot):
    before = snapshot(ours)
    two = plain([{"params": [p]} for p in quadratic.params([(3, 2), (4,)])])
    three = plain(quadratic.params([(3, 2), (4,), (1,)]))
    with pytest.raises(ValueError, match="different number of parameter groups"):
        ours.load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        ours.load_state_dict(three.state_dict())
    assert snapshot(ours) == before


def test_flat_parameters_of_fsdp1_are_refused(plain, monkeypatch):
    """Each process would have a separate trust region, in silence."""
    p = torch.nn.Parameter(torch.ones(3))
    p._is_flat_param = True
    plain([p])  # one process: nothing is hidden
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(RuntimeError, match=r"does not support FullyShardedDataParallel \(FSDP1\)"):
        plain([p])
    optimizer = plain([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(RuntimeError, match="FSDP1"):
        optimizer.add_param_group({"params": [p]})
    assert len(optimizer.param_groups) == 1


def test_the_last_step_before_the_first(every, quadratic):
    params = quadratic.params()
    optimizer = every(params)
    assert optimizer.last_step == StepInfo(0.0, 0.0, 0.0, 0, False, 0)
    optimizer.step()  # no gradient anywhere
    assert optimizer.last_step == StepInfo(0.0, 0.0, 0.0, 0, False, 0) and not optimizer.state
    quadratic.train(optimizer, 1)
    assert 0 < optimizer.last_step.kl


def test_missing_entries_are_told_once(plain, quadratic):
    """At the line that calls step()."""
    params = quadratic.params([(4, 3)])
    optimizer = plain(params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "lr=.* counts as")
        for t in range(3):
            quadratic.gradients(params, t)
            params[0].grad[0, 0] = float("nan")
            optimizer.step()
    assert [(w.filename, "were not finite or too large to square" in str(w.message)) for w in caught] == [(__file__, True)]


def test_a_draw_is_taken_back(plain, quadratic, snapshot):
    """Whatever happens inside; a posterior has its own options."""
    params = quadratic.params([(4, 3)])
    optimizer = plain(params)
    with pytest.raises(RuntimeError, match="before the first step"):
        optimizer.posterior(ess=10, curvature=lambda params: [torch.ones(4, 3)])
    quadratic.train(optimizer, 2)
    posterior = optimizer.posterior(ess=10, curvature=lambda params: [torch.ones(4, 3)])
    assert posterior.weights["0"].prior_precision == 0.0015
    before = snapshot(optimizer)
    with pytest.raises(KeyError), optimizer.sampled_params(posterior):
        assert snapshot(optimizer) != before
        raise KeyError
    assert snapshot(optimizer) == before
    with pytest.raises(TypeError, match="unexpected argument 'ess'"):
        optimizer.sampled_params(posterior, ess=3)


def test_repr(plain, quadratic):
    text = repr(plain(quadratic.params(), lr=0.25))
    assert text.startswith(f"{plain.kind.__name__} (\nParameter Group 0\n")
    assert "    lr: 0.25\n" in text and "    weight_decay: 0.0\n" in text
