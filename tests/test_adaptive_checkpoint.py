"""AdaArturo's state over save, load, copy and pickle: a run that stopped and went on has the bits of one that did not."""

import copy
import io
import pickle

import pytest
import torch
from torch.distributed.checkpoint import state_dict as dcp
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from arturo import AdaArturo, Arturo

HALF = [torch.bfloat16, torch.float16]
OTHERS = {  # how it is made -> what it is called
    "SGD": (lambda params: torch.optim.SGD(params, momentum=0.9), "SGD"),
    "Adam": (torch.optim.Adam, "Adam or AdamW"),
    "AdamW": (torch.optim.AdamW, "Adam or AdamW"),
    "NAdam": (torch.optim.NAdam, "NAdam"),
    "RAdam": (torch.optim.RAdam, "an optimizer of Adam's family"),
    "Adagrad": (torch.optim.Adagrad, "Adagrad"),
    "RMSprop": (torch.optim.RMSprop, "RMSprop"),
    "Arturo": (Arturo, "Arturo"),
}
MATRICES = [(4, 6), (5,), (6, 4)]  # of several tiles at block=2


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


@pytest.mark.parametrize("make", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_continues_alike(make, adaptive, quadratic, snapshot):
    """Nothing that matters is kept outside state and param_groups; the copy shares no memory."""
    optimizer = AdaArturo(quadratic.params() + quadratic.params([(3,)], torch.bfloat16), **adaptive)
    quadratic.train(optimizer, 3)
    copied = make(optimizer)
    assert type(copied) is AdaArturo and copied.defaults.keys() == optimizer.defaults.keys()
    assert set(optimizer.__getstate__()) == {"defaults", "state", "param_groups"}
    before = snapshot(optimizer)
    ahead = quadratic.train(copied, 4, start=3)
    assert snapshot(optimizer) == before
    assert quadratic.train(optimizer, 4, start=3) == ahead and snapshot(copied) == snapshot(optimizer)


def test_state_dicts_hold_plain_data(adaptive, quadratic):
    """Tensors, numbers, strings, None, tuples of numbers; a second save is the first; nothing is added to the groups."""
    optimizer = AdaArturo(quadratic.params(), **adaptive)
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


def test_loading_does_not_share_memory(geometry, quadratic):
    optimizer, other = AdaArturo(quadratic.params(), **geometry), AdaArturo(quadratic.params(), **geometry)
    quadratic.train(optimizer, 2)
    state_dict = optimizer.state_dict()
    kept = fingerprint(state_dict)
    other.load_state_dict(state_dict)
    quadratic.train(other, 2)
    assert fingerprint(state_dict) == kept


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


@pytest.mark.parametrize("flag", ["maximize", "capturable", "foreach", "fused", "eps", "block", "refresh", "weight_decay"])
def test_a_state_dict_that_lacks_a_newer_flag_loads(flag, quadratic):
    """What an older version did not know takes the constructor's value."""
    params = quadratic.params()
    optimizer = AdaArturo(params)
    quadratic.train(optimizer, 2)
    state_dict = optimizer.state_dict()
    for group in state_dict["param_groups"]:
        del group[flag]
    resumed = AdaArturo(quadratic.twins(params))
    resumed.load_state_dict(state_dict)
    assert resumed.param_groups[0][flag] == resumed.defaults[flag]
    assert quadratic.train(resumed, 1, start=2) == quadratic.train(optimizer, 1, start=2)


def test_loading_after_regrouping(geometry, quadratic, snapshot):
    """One group saved, its state put under two groups."""
    params = quadratic.params()
    optimizer = AdaArturo(params, **geometry)
    quadratic.train(optimizer, 3)
    twins = quadratic.twins(params)
    resumed = AdaArturo([{"params": twins[:2]}, {"params": twins[2:]}], **geometry)
    groups = resumed.state_dict()["param_groups"]
    resumed.load_state_dict({"state": optimizer.state_dict()["state"], "param_groups": groups})
    assert quadratic.train(resumed, 4, start=3) == quadratic.train(optimizer, 4, start=3)
    assert snapshot(resumed) == snapshot(optimizer)


# ---- refused, or begun anew


@pytest.fixture
def ours(quadratic):
    optimizer = AdaArturo(quadratic.params([(3, 2), (4,)]))
    quadratic.train(optimizer, 2)
    return optimizer


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("make, name", OTHERS.values(), ids=OTHERS)
def test_other_optimizers_are_refused_by_name(make, name, steps, ours, quadratic, snapshot):
    """Before their first step too, when there is no state yet to know them by. Nothing is changed by it."""
    params = quadratic.params([(3, 2), (4,)])
    other = make(params)
    for t in range(steps):
        quadratic.gradients(params, t)
        other.step()
    before, groups = snapshot(ours), copy.deepcopy(ours.state_dict()["param_groups"])
    hooks = len(ours._optimizer_load_state_dict_pre_hooks)
    with pytest.raises(ValueError, match=f"state dict of {name}, not of AdaArturo: a group lacks"):
        ours.load_state_dict(other.state_dict())
    assert snapshot(ours) == before and ours.state_dict()["param_groups"] == groups
    assert len(ours._optimizer_load_state_dict_pre_hooks) == hooks
    quadratic.train(ours, 1, start=2)


def test_arturo_refuses_ours(ours, quadratic):
    with pytest.raises(ValueError, match="state dict of AdaArturo, not of Arturo"):
        Arturo(quadratic.params([(3, 2), (4,)])).load_state_dict(ours.state_dict())


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


def test_other_groups_are_refused_as_in_torch(ours, quadratic, snapshot):
    before = snapshot(ours)
    two = AdaArturo([{"params": [p]} for p in quadratic.params([(3, 2), (4,)])])
    three = AdaArturo(quadratic.params([(3, 2), (4,), (1,)]))
    with pytest.raises(ValueError, match="different number of parameter groups"):
        ours.load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        ours.load_state_dict(three.state_dict())
    assert snapshot(ours) == before


def changed_block(state_dict):
    state_dict["param_groups"][0]["block"] = 2


def changed_covariance(state_dict):
    state_dict["param_groups"][0]["covariance"] = "diagonal"


def lost_factor(state_dict):
    del state_dict["state"][0]["L"]


@pytest.mark.parametrize("change", [changed_block, changed_covariance, lost_factor])
def test_state_in_other_tiles_begins_anew(change, quadratic, snapshot):
    """The matrix as in a fresh optimizer, with one warning to the line that loads; the vector goes on."""
    params = quadratic.params([(4, 6), (5,), (6, 4)])
    optimizer = AdaArturo(params)
    quadratic.train(optimizer, 3)
    state_dict = copy.deepcopy(optimizer.state_dict())
    change(state_dict)
    twins = quadratic.twins(params)
    resumed = AdaArturo(twins)
    count = 1 if change is lost_factor else 2
    with pytest.warns(UserWarning, match=rf"^the state of {count} parameters starts anew.*shapes: \(4, 6\)") as given:
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


@pytest.fixture
def trained(quadratic):
    """An optimizer with float32 and bfloat16 parameters and two steps behind it."""
    optimizer = AdaArturo(quadratic.params([(4, 3)]) + quadratic.params([(3,)], torch.bfloat16))
    quadratic.train(optimizer, 2)
    return optimizer


def all_plain(state):
    values = [x for entry in state.values() for x in entry.values()]
    return len(values) == 8 + 5 and all(type(x) is torch.Tensor for x in values)


def test_step_hooks_surround_the_step(geometry, quadratic):
    params = quadratic.params([(4, 3)])
    optimizer = AdaArturo(params, **geometry)
    seen = []

    def note(name):
        return lambda opt, args, kwargs: seen.append((name, params[0].detach().clone(), opt.last_step.kl))

    handles = [optimizer.register_step_pre_hook(note("pre")), optimizer.register_step_post_hook(note("post"))]
    handles += [register_optimizer_step_pre_hook(note("all pre")), register_optimizer_step_post_hook(note("all post"))]
    try:
        start = params[0].detach().clone()
        quadratic.train(optimizer, 1)
    finally:
        for handle in handles:
            handle.remove()
    assert [name for name, _, _ in seen] == ["all pre", "pre", "post", "all post"]
    assert all(torch.equal(p, start) and kl == 0 for _, p, kl in seen[:2])
    assert all(torch.equal(p, params[0]) and kl > 0 for _, p, kl in seen[2:])


def test_a_pre_hook_may_supply_the_closure(quadratic):
    params = quadratic.params([(3,)])
    optimizer = AdaArturo(params)
    quadratic.gradients(params, 0)
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((*args, lambda: 5.0), kwargs))
    assert optimizer.step() == 5.0


def test_hooks_of_state_dicts_see_plain_tensors(trained, snapshot):
    """Before and after saving and loading, however often, and in the order they were registered."""
    seen = []
    trained.register_state_dict_post_hook(lambda opt, state_dict: seen.append(("saved", all_plain(state_dict["state"]))))
    trained.register_load_state_dict_pre_hook(lambda opt, loaded: seen.append(("pre", all_plain(loaded["state"]))))
    trained.register_load_state_dict_post_hook(lambda opt: seen.append(("post", all_plain(opt.state))))
    before = snapshot(trained)
    state_dict = trained.state_dict()
    for _ in range(2):
        trained.load_state_dict(state_dict)
    assert seen == [("saved", True)] + [("pre", True), ("post", True)] * 2
    assert snapshot(trained) == before and all_plain(state_dict["state"])


def test_a_load_hook_may_change_what_is_loaded(trained, snapshot):
    """The user's hooks run before ours looks: what they make of a foreign state dict counts."""
    good = copy.deepcopy(trained.state_dict())
    for entry in good["state"].values():
        entry["M"].mul_(2)
    trained.register_load_state_dict_pre_hook(lambda opt, loaded: good)
    trained.load_state_dict(torch.optim.Adam([torch.ones(2)]).state_dict())
    for entry, state in zip(good["state"].values(), trained.state.values(), strict=True):
        assert torch.equal(entry["M"], state["M"])


# ---- torch.distributed.checkpoint.state_dict, in one process


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Linear(6, 4, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_asking_a_fresh_optimizer_leaves_no_trace(dtype, adaptive, quadratic, snapshot):
    """It makes state by a step with lr = 0: parameters unchanged, and the run afterwards is the run without it."""
    model, twin = model_of(dtype), model_of(dtype)
    optimizer, plain = (AdaArturo(x.parameters(), **copy.deepcopy(adaptive)) for x in (model, twin))
    found = dcp.get_optimizer_state_dict(model, optimizer)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert set(found["state"]) == {"weight", "bias"}
    assert all(entry["step"] == 0 and "M" in entry for entry in found["state"].values())
    assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    for t in range(6):
        assert quadratic.train(optimizer, 1, t) == quadratic.train(plain, 1, t)
    assert snapshot(optimizer) == snapshot(plain)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_there_and_back(flatten, dtype, adaptive, quadratic, snapshot):
    """Into a fresh optimizer: the continued run has the bits of the uninterrupted one."""
    options = dcp.StateDictOptions(flatten_optimizer_state_dict=flatten)
    model = model_of(dtype)
    optimizer = AdaArturo(model.parameters(), **copy.deepcopy(adaptive))
    quadratic.train(optimizer, 3)
    found = copy.deepcopy(dcp.get_state_dict(model, optimizer, options=options))
    other = model_of(dtype)
    resumed = AdaArturo(other.parameters(), **copy.deepcopy(adaptive))
    dcp.set_state_dict(other, resumed, model_state_dict=found[0], optim_state_dict=found[1], options=options)
    assert snapshot(resumed) == snapshot(optimizer)
    assert quadratic.train(resumed, 3, start=3) == quadratic.train(optimizer, 3, start=3)
    assert snapshot(resumed) == snapshot(optimizer)


def test_repr(quadratic):
    text = repr(AdaArturo(quadratic.params(), lr=0.25))
    assert text.startswith("AdaArturo (\nParameter Group 0\n") and "    lr: 0.25\n" in text and "    betas: (" in text
