"""Hooks of torch.optim.Optimizer: called as torch calls them, and shown plain tensors only."""

import copy

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from arturo import Arturo


@pytest.fixture
def trained(plain, quadratic):
    """An optimizer with float32 and bfloat16 parameters and two steps behind it."""
    optimizer = plain(quadratic.params([(4, 3)]) + quadratic.params([(3,)], torch.bfloat16))
    quadratic.train(optimizer, 2)
    return optimizer


def all_plain(state):
    values = [x for entry in state.values() for x in entry.values()]
    return len(values) >= 10 and all(type(x) is torch.Tensor for x in values)


def first_buffer(optimizer):
    """Something that the step after next depends on."""
    return "prec" if isinstance(optimizer, Arturo) else "M"


def test_step_hooks_surround_the_step(way, quadratic):
    params = quadratic.params([(4, 3)])
    optimizer = way(params)
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
    assert all(torch.equal(p, params[0]) and kl == optimizer.last_step.kl > 0 for _, p, kl in seen[2:])
    quadratic.train(optimizer, 1, start=1)
    assert len(seen) == 4


def test_a_pre_hook_may_supply_the_closure(plain, quadratic):
    params = quadratic.params([(3,)])
    optimizer = plain(params)
    quadratic.gradients(params, 0)
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((*args, lambda: 5.0), kwargs))
    assert optimizer.step() == 5.0


def test_hooks_work_on_a_copy(trained, quadratic):
    """deepcopy drops hooks, as torch does, and leaves an optimizer that takes new ones."""
    calls = []
    trained.register_step_post_hook(lambda *_: calls.append("original"))
    copied = copy.deepcopy(trained)
    copied.register_step_post_hook(lambda *_: calls.append("copy"))
    quadratic.train(copied, 1)
    assert calls == ["copy"]


def test_state_dict_hooks(trained):
    seen = []
    trained.register_state_dict_pre_hook(lambda opt: seen.append("pre"))
    trained.register_state_dict_post_hook(lambda opt, state_dict: seen.append(all_plain(state_dict["state"])))
    trained.register_state_dict_post_hook(lambda opt, state_dict: {**state_dict, "extra": 3})
    assert trained.state_dict()["extra"] == 3
    assert seen == ["pre", True]


def test_load_state_dict_hooks_see_plain_tensors(trained, snapshot):
    """Before and after the load, however often, and in the order they were registered."""
    seen = []
    state_dict = trained.state_dict()
    trained.register_load_state_dict_pre_hook(lambda opt, loaded: seen.append(("pre", all_plain(loaded["state"]))))
    trained.register_load_state_dict_post_hook(lambda opt: seen.append(("post", all_plain(opt.state))))
    before = snapshot(trained)
    for _ in range(2):
        trained.load_state_dict(state_dict)
    assert seen == [("pre", True), ("post", True)] * 2
    assert snapshot(trained) == before and all_plain(state_dict["state"])


def test_a_load_hook_may_change_what_is_loaded(trained):
    """Returned or in place; the change is what ends up in the state."""

    name = first_buffer(trained)

    def doubled(opt, loaded):
        state = {key: {**entry, name: 2 * entry[name]} for key, entry in loaded["state"].items()}
        return {**loaded, "state": state}

    def slower(opt, loaded):
        loaded["param_groups"] = [{**group, "lr": 0.25} for group in loaded["param_groups"]]

    before = [state[name].clone() for state in trained.state.values()]
    trained.register_load_state_dict_pre_hook(doubled)
    trained.register_load_state_dict_pre_hook(slower, prepend=True)
    trained.load_state_dict(trained.state_dict())
    assert all(torch.equal(state[name], 2 * old) for state, old in zip(trained.state.values(), before, strict=True))
    assert trained.param_groups[0]["lr"] == 0.25


def test_a_load_hook_may_translate_a_foreign_state_dict(trained, snapshot):
    """The user's hooks run before ours looks: what they make of it counts."""
    good = trained.state_dict()
    before = snapshot(trained)
    trained.register_load_state_dict_pre_hook(lambda opt, loaded: good)
    trained.load_state_dict(torch.optim.Adam([torch.ones(2)]).state_dict())
    assert snapshot(trained) == before


def test_a_failing_load_leaves_no_hook_behind(trained):
    kept = list(trained._optimizer_load_state_dict_pre_hooks)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"not of {type(trained).__name__}"):
            trained.load_state_dict(torch.optim.Adam([torch.ones(2)]).state_dict())
    assert list(trained._optimizer_load_state_dict_pre_hooks) == kept
