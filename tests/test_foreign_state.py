"""State dicts that are not ours, or do not fit, are refused; a refused load changes nothing."""

import copy

import pytest
import torch

from arturo import Arturo


@pytest.fixture
def ours(quadratic):
    optimizer = Arturo(quadratic.params([(3, 2), (4,)]), kl_bound=0.01)
    quadratic.train(optimizer, 2)
    return optimizer


def test_an_unknown_optimizer_is_refused_with_its_options(ours, quadratic, snapshot):
    before = snapshot(ours)
    strange = {"state": {0: {"zeta": torch.ones(3, 2)}}, "param_groups": [{"lr": 1.0, "wobble": 2, "params": [0, 1]}]}
    with pytest.raises(ValueError, match=r"another optimizer.*wobble.*zeta"):
        ours.load_state_dict(strange)
    assert snapshot(ours) == before


@pytest.mark.parametrize("name", ["prec", "P_ab", "step", "eta"])
def test_incomplete_state_is_refused(name, ours, quadratic, snapshot):
    before = snapshot(ours)
    state_dict = ours.state_dict()
    state_dict["state"] = {key: dict(entry) for key, entry in state_dict["state"].items()}
    del state_dict["state"][1][name]
    with pytest.raises(ValueError, match=f"lacks {name}"):
        ours.load_state_dict(state_dict)
    assert snapshot(ours) == before


def test_our_state_dict_is_not_mistaken(ours, quadratic):
    """The counter-check: what is refused above is not refused for being a state dict."""
    fresh = Arturo(quadratic.params([(3, 2), (4,)]))
    fresh.load_state_dict(ours.state_dict())
    fresh.load_state_dict(Arturo(quadratic.params([(3, 2), (4,)])).state_dict())
    assert not fresh.state


def test_what_others_keep_in_the_state_is_no_matter(ours, quadratic, snapshot):
    """An average under a parameter, keys that are no strings, an entry under a wrapper's own key: saved, loaded, kept."""
    p, other = ours.param_groups[0]["params"]
    ours.state[p]["ema"], ours.state[p][3] = p.detach().half().clone(), 5
    ours.state["wrapper"] = {"s": torch.tensor([1.0]), "n": 4}
    twin = Arturo(quadratic.twins([p, other]), kl_bound=0.01)
    twin.load_state_dict(copy.deepcopy(ours.state_dict()))
    state = twin.state[twin.param_groups[0]["params"][0]]
    assert torch.equal(state["ema"], p.detach().half()) and state[3] == 5
    assert torch.equal(twin.state["wrapper"]["s"], torch.tensor([1.0])) and twin.state["wrapper"]["n"] == 4
    for _ in range(2):
        quadratic.train(ours, 1, start=2)
        quadratic.train(twin, 1, start=2)
    assert all(torch.equal(x, y) for x, y in zip(*(o.param_groups[0]["params"] for o in (ours, twin)), strict=True))


def test_an_entry_of_others_alone_is_not_taken_for_state(quadratic):
    """A parameter without a step of ours yet: its state is made beside what is there."""
    params = quadratic.params([(3,), (4,)])
    optimizer = Arturo(params, kl_bound=0.01)
    optimizer.state[params[1]]["ema"] = torch.zeros(4)
    quadratic.train(optimizer, 2, params=params[:1])
    twin = Arturo(quadratic.twins(params), kl_bound=0.01)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one in (optimizer, twin):
        assert len(one.posterior(ess=1.0, curvature="surrogate").mean) == 1
        quadratic.train(one, 1, start=2)
        state = one.state[one.param_groups[0]["params"][1]]
        assert "ema" in state and state["step"] == 1


@pytest.mark.parametrize("capturable", [False, True])
def test_numbers_in_the_place_of_tensors(capturable, quadratic, snapshot):
    """torch's suite loads a state dict whose `step` is a float."""
    optimizer = Arturo(quadratic.params(), kl_bound=0.01, capturable=capturable)
    quadratic.train(optimizer, 2)
    state_dict = copy.deepcopy(optimizer.state_dict())
    for entry in state_dict["state"].values():
        entry["step"], entry["eta"] = entry["step"].item(), entry["eta"].item()
    twin = Arturo(quadratic.twins(optimizer.param_groups[0]["params"]), kl_bound=0.01, capturable=capturable)
    twin.load_state_dict(state_dict)
    quadratic.train(optimizer, 2, start=2)
    quadratic.train(twin, 2, start=2)
    assert snapshot(twin) == snapshot(optimizer)
