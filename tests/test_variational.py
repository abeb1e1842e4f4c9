"""``sample_gradients``: the closure sees a draw, the step starts from the mean, a resumed run draws the same."""

import copy

import pytest
import torch
from torch import nn

from arturo import Arturo


def run(optimizer, p, steps, seen=None, fail=None):
    """Gradient 2 (p - 1) wherever the closure finds p."""

    def closure():
        optimizer.zero_grad()
        loss = (p - 1).square().sum()
        loss.backward()
        if seen is not None:
            seen.append(p.detach().clone())
        if fail is not None:
            raise fail
        return loss.item()

    return [optimizer.step(closure) for _ in range(steps)]


def fresh(seed=5, dtype=torch.float32, size=4000, **options):
    p = nn.Parameter(torch.linspace(-1, 1, size).to(dtype))
    return p, Arturo([p], kl_bound=0.1, prior_weight=1e-3, sample_gradients=seed, **options)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"capturable": True}, {"state_dtype": torch.bfloat16}], ids=str)
def test_the_closure_sees_a_draw_of_the_right_width(options):
    p, optimizer = fresh(**options)
    run(optimizer, p, 3)
    mean, prec, seen = p.detach().clone(), optimizer.state[p]["prec"].float().clone(), []
    run(optimizer, p, 1, seen)
    z = (seen[0] - mean) * prec.sqrt()
    assert abs(z.mean()) < 5 / 4000**0.5 and abs(z.square().mean() - 1) < 5 * (2 / 4000) ** 0.5


def test_the_step_starts_from_the_mean():
    """The same gradients given to a plain optimizer make the same steps."""
    p, optimizer = fresh()
    q = nn.Parameter(p.detach().clone())
    plain = Arturo([q], kl_bound=0.1, prior_weight=1e-3, initial_curvature=0.1)
    for _ in range(5):
        run(optimizer, p, 1)
        q.grad = p.grad.clone()
        plain.step()
        assert torch.equal(p, q)


def test_the_first_step_is_at_the_mean():
    p, optimizer = fresh()
    start, seen = p.detach().clone(), []
    run(optimizer, p, 2, seen)
    assert torch.equal(seen[0], start) and not torch.equal(seen[1], start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resume_and_seeds(dtype, snapshot):
    """Through state_dict alone: seed and step are in it. Another seed, another run; True takes a seed from torch."""
    p, straight = fresh(dtype=dtype, size=50)
    run(straight, p, 4)
    q, resumed = fresh(seed=99, dtype=dtype, size=50)
    with torch.no_grad():
        q.copy_(p)
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    run(straight, p, 4)
    torch.manual_seed(123)
    run(resumed, q, 4)
    assert snapshot(straight) == snapshot(resumed)
    r, other = fresh(seed=6, dtype=dtype, size=50)
    run(other, r, 8)
    assert not torch.equal(r, p)
    seeds = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        seeds.append(fresh(seed=True)[1].param_groups[0]["sample_gradients"])
    assert seeds[0] == seeds[1] != seeds[2] and type(seeds[0]) is int


def test_seed_zero_is_a_seed():
    p, optimizer = fresh(seed=0, size=5)
    with pytest.raises(RuntimeError, match="closure"):
        optimizer.step()
    run(optimizer, p, 2)


def test_without_a_closure_and_when_it_fails(snapshot):
    p, optimizer = fresh(dtype=torch.bfloat16, size=20)
    run(optimizer, p, 2)
    before = snapshot(optimizer)
    with pytest.raises(RuntimeError, match=r"sample_gradients=True evaluates the loss at a draw: call step\(closure\)"):
        optimizer.step()
    with pytest.raises(KeyError):
        run(optimizer, p, 1, fail=KeyError())
    assert snapshot(optimizer) == before


def test_one_setting_for_all_groups():
    p, optimizer = fresh()
    with pytest.raises(ValueError, match="Invalid sample_gradients value: 7"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "sample_gradients": 7})
    q = nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [q]})
    run(optimizer, p, 2)
    assert not optimizer.state[q]


def test_it_minimises_the_smoothed_loss():
    """|w| smoothed by noise of sd s has its curvature sqrt(2 / pi) / s: the minimum stays, the kink does not hurt."""
    p = nn.Parameter(torch.full((200,), 0.5))
    optimizer = Arturo([p], kl_bound=0.5, prior_weight=1e-2, sample_gradients=1)

    def closure():
        optimizer.zero_grad()
        loss = p.abs().sum()
        loss.backward()
        return loss

    for t in range(150):
        optimizer.param_groups[0]["lr"] = 1 - t / 150
        optimizer.step(closure)
    assert p.abs().mean() < 0.1
