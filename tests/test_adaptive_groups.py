"""AdaArturo's parameter groups and learning rates: options per group, one trust region, steps proportional to lr."""

import pytest
import torch

from arturo import AdaArturo
from arturo.adaptive_step import PER_LR

PER_GROUP = {
    "betas": (0.5, 0.8),
    "covariance": "diagonal",
    "block": 2,
    "refresh": 4,
    "maximize": True,
}


def give(params, t):
    """Gradients that do not depend on the parameters."""
    for i, p in enumerate(params):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * t + i), dtype=p.dtype)


@pytest.mark.parametrize("name", PER_GROUP)
def test_each_option_acts_on_its_group_alone(name, quadratic, snapshot):
    """Groups share nothing but the step's length: under given gradients each has the state it would have alone."""
    plain, special = quadratic.params([(4, 6)]), quadratic.params([(4, 6)])
    option = {name: PER_GROUP[name]}
    together = AdaArturo([{"params": plain}, {"params": special, **option}])
    place = torch.nn.Parameter(torch.ones(1))  # without a gradient: a parameter's place says when its basis is refreshed
    alone = [AdaArturo(quadratic.params([(4, 6)])), AdaArturo([place, *quadratic.params([(4, 6)])], **option)]
    assert together.param_groups[0][name] != together.param_groups[1][name] == PER_GROUP[name]
    for t in range(8):
        for optimizer in (together, *alone):
            for group in optimizer.param_groups:
                give([p for p in group["params"] if p is not place], t)
            optimizer.step()
    states = [state for optimizer in (together, *alone) for _, state in snapshot(optimizer) if state]
    assert states[:2] == states[2:] and states[0] != states[1]


def test_decay_acts_on_its_group_alone(geometry, quadratic):
    """Weights are multiplied by 1 - lr * weight_decay before the step; the other group does not notice."""
    params, twins = quadratic.params([(4, 3), (4, 3)], torch.float64), quadratic.params([(4, 3), (4, 3)], torch.float64)
    before = params[1].detach().clone()
    decayed = AdaArturo([{"params": params[:1]}, {"params": params[1:], "weight_decay": 2.0}], **geometry)
    plain = AdaArturo([{"params": twins[:1]}, {"params": twins[1:]}], **geometry)
    for optimizer in (decayed, plain):
        quadratic.train(optimizer, 1)
    assert torch.equal(params[0], twins[0])
    shrunk = 0.01 * 2.0 * before
    # The drift's anchor shrinks a matrix, too, by less than tau^2: the two factors multiply.
    torch.testing.assert_close(twins[1] - params[1], shrunk, rtol=(PER_LR * 0.01) ** 2, atol=1e-9)


@pytest.mark.parametrize("lr", [1e-4, torch.tensor(1e-4, dtype=torch.float64)], ids=["float", "tensor"])
def test_a_group_at_a_tenth_of_the_lr_takes_a_tenth_of_the_step(lr, geometry, quadratic):
    """Alone and beside others, whose steps stay what they are. Vectors to rounding; a matrix also gives way to its anchor."""
    shapes = [(4, 6), (5,)]

    def moved(*groups):
        lists = [quadratic.params(shapes, torch.float64, seed=i) for i, _ in enumerate(groups)]
        optimizer = AdaArturo([{"params": p, "lr": x} for p, x in zip(lists, groups, strict=True)], **{**geometry, "lr": lr})
        params = [p for group in lists for p in group]
        start = [p.detach().clone() for p in params]
        give(params, 0)
        optimizer.step()
        return [p.detach() - old for p, old in zip(params, start, strict=True)]

    alone, slow = moved(lr), moved(lr * 0.1)
    both, mixed = moved(lr, lr), moved(lr, lr * 0.1)
    for fast, tenth in (*zip(alone, slow, strict=True), *zip(both[2:], mixed[2:], strict=True)):
        tolerance = 1e-9 if fast.dim() == 1 else PER_LR * float(lr)
        assert (tenth.norm() / fast.norm()).item() == pytest.approx(0.1, rel=tolerance)
        torch.testing.assert_close(tenth, 0.1 * fast, rtol=0, atol=tolerance * fast.abs().max().item())
    assert all(torch.equal(x, y) for x, y in zip(both[:2], mixed[:2], strict=True))


def test_unlike_rates_share_one_budget(geometry, quadratic):
    """kl <= bound, and equal where all groups have the same lr and the bound is active."""
    for lrs, equal in (((0.01, 0.01), True), ((0.01, 0.001), False), ((1e-9, 0.01), False)):
        params = quadratic.params([(4, 3), (5,)])
        groups = [{"params": [p], "lr": lr} for p, lr in zip(params, lrs, strict=True)]
        for info in quadratic.train(AdaArturo(groups, **geometry), 8):
            assert 0 < info.kl <= info.bound * (1 + 1e-9)
            if info.active:
                assert (info.kl / info.bound == pytest.approx(1, rel=1e-9)) == equal


def test_add_param_group_mid_run(geometry, quadratic, snapshot):
    """The new group starts afresh with the constructor's options, the old one keeps counting."""
    old, new = quadratic.params(), quadratic.params([(4, 3), (2,)], seed=1)
    optimizer = AdaArturo(old, **geometry)
    quadratic.train(optimizer, 3)
    optimizer.add_param_group({"params": new, "weight_decay": 0.5})
    assert optimizer.param_groups[1]["lr"] == geometry["lr"]
    before = [p.detach().clone() for p in new]
    quadratic.train(optimizer, 3, start=3)
    assert [optimizer.state[p]["step"].item() for p in old + new] == [6.0] * len(old) + [3.0] * len(new)
    assert not any(torch.equal(p, q) for p, q in zip(new, before, strict=True))


def test_a_late_parameter_has_its_own_first_step(geometry, quadratic, snapshot):
    """Its state after a late first gradient is that of a fresh optimizer after its first."""
    early, late = quadratic.params([(4, 3)]), quadratic.params([(3, 4)], seed=1)
    optimizer = AdaArturo(early + late, **geometry)
    quadratic.train(optimizer, 4, params=early)
    assert late[0] not in optimizer.state
    quadratic.train(optimizer, 1, start=4)
    fresh = AdaArturo(quadratic.params([(2,)]) + quadratic.params([(3, 4)], seed=1), **geometry)
    twin = fresh.param_groups[0]["params"][1]
    twin.grad = late[0].grad.clone()
    fresh.step()
    assert [s for _, s in snapshot(optimizer, late)] == [s for _, s in snapshot(fresh, [twin])]
