"""AdaArturo's lr: 0 is a step that changes no bit, a tensor is as good as a float."""

import pytest
import torch

from arturo import AdaArturo
from arturo.adaptive_step import MOST_LR, PER_LR

ZEROS = {
    "float": (0.0, {}),
    "float-capturable": (0.0, {"covariance": "diagonal", "capturable": True}),
    "tensor": (torch.tensor(0.0), {}),
    "tensor-capturable": (torch.tensor(0.0), {"covariance": "diagonal", "capturable": True}),
    "tensor-2d-capturable": (torch.zeros(1, 1), {"covariance": "diagonal", "capturable": True}),
}
zeros = pytest.mark.parametrize("zero, options", ZEROS.values(), ids=ZEROS)
NOTHING = (0.0, 0.0, 0.0, 0, False, 0)


def full(zero):
    """An lr of the kind of this zero."""
    return torch.full_like(zero, 0.01) if isinstance(zero, torch.Tensor) else 0.01


@zeros
def test_zero_from_the_start_makes_state_and_nothing_else(zero, options, quadratic, snapshot):
    params = quadratic.params()
    with torch.no_grad():
        params[1][0] = -0.0
    optimizer = AdaArturo(params, lr=zero.clone() if isinstance(zero, torch.Tensor) else zero, weight_decay=2.0, **options)
    before = [snapshot(optimizer, [p])[0][0] for p in params]
    assert quadratic.train(optimizer, 1) == [NOTHING]
    first = snapshot(optimizer)
    assert [p for p, _ in first] == before
    assert all("M" in optimizer.state[p] and optimizer.state[p]["step"] == 0 for p in params)
    assert quadratic.train(optimizer, 3, start=1) == [NOTHING] * 3
    assert snapshot(optimizer) == first


@zeros
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("warm", [0, 3])
def test_steps_at_zero_leave_no_trace(zero, options, dtype, warm, quadratic, snapshot):
    """warm steps, two at lr = 0, three more: the same bits as without the two in the middle, before and after a refresh."""
    paused, straight = (AdaArturo(quadratic.params(dtype=dtype), lr=full(zero), weight_decay=2.0, **options) for _ in range(2))
    quadratic.train(paused, warm)
    quadratic.train(straight, warm)
    paused.param_groups[0]["lr"] = zero
    before = snapshot(paused)
    info = quadratic.train(paused, 2, start=100)
    assert info == [NOTHING] * 2
    if warm:
        assert snapshot(paused) == before
    paused.param_groups[0]["lr"] = full(zero)
    quadratic.train(paused, 3, start=warm)
    quadratic.train(straight, 3, start=warm)
    assert snapshot(paused) == snapshot(straight)


@zeros
@pytest.mark.parametrize("order", [1, -1])
def test_zero_in_one_group_only(zero, options, order, quadratic, snapshot):
    """That group keeps its bits, missing entries and all, and the others follow the run in which it is not there."""
    live, dead = quadratic.params(), quadratic.params([(4, 3), (2,)], seed=1)
    groups = [{"params": live, "lr": full(zero)}, {"params": dead, "lr": zero}]
    optimizer, alone = AdaArturo(groups[::order], **options), AdaArturo(quadratic.params(), lr=full(zero), **options)
    before = [p for p, _ in snapshot(optimizer, dead)]
    for t in range(4):
        quadratic.gradients(live, t)
        quadratic.gradients(dead, t)
        dead[0].grad[0, 0] = float("nan")
        optimizer.step()
        if t == 0:
            first = snapshot(optimizer, dead)
        quadratic.train(alone, 1, t)
        assert optimizer.last_step == pytest.approx(alone.last_step, rel=1e-12)
    assert [p for p, _ in snapshot(optimizer, dead)] == before and snapshot(optimizer, dead) == first
    assert snapshot(optimizer, live) == snapshot(alone)


@pytest.mark.parametrize("lr", [-1e-17, torch.tensor(-1e-17)], ids=["float", "tensor"])
def test_an_lr_that_rounding_made_negative_is_zero(lr, geometry, quadratic, snapshot):
    optimizer = AdaArturo(quadratic.params(), **geometry)
    quadratic.train(optimizer, 2)
    optimizer.param_groups[0]["lr"] = lr
    before = snapshot(optimizer)
    assert quadratic.train(optimizer, 1, 2) == [NOTHING] and snapshot(optimizer) == before


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_tensor_equals_the_float(shape, dtype, geometry, quadratic, snapshot):
    """0-d, one-element and 2-d, as AdamW takes them; the tensor stays what it is."""
    lr = torch.full(shape, 0.0078125, dtype=dtype)
    by_tensor = AdaArturo(quadratic.params(), **{**geometry, "lr": lr}, weight_decay=2.0)
    by_float = AdaArturo(quadratic.params(), **{**geometry, "lr": 0.0078125}, weight_decay=2.0)
    for t in range(4):
        assert quadratic.train(by_tensor, 1, t) == quadratic.train(by_float, 1, t)
    assert snapshot(by_tensor) == snapshot(by_float)
    assert by_tensor.param_groups[0]["lr"] is lr and torch.equal(lr, torch.full(shape, 0.0078125, dtype=dtype))


@pytest.mark.parametrize("lr", [torch.ones(2), torch.ones(1, 3), torch.ones(0)], ids=str)
def test_larger_tensors_are_refused_in_torchs_words(lr, quadratic):
    params = quadratic.params([(3,)])
    for make in (AdaArturo, torch.optim.AdamW):
        with pytest.raises(ValueError, match=r"^Tensor lr must be 1-element$"):
            make(params, lr=lr)
    with pytest.raises(ValueError, match=r"^Tensor lr must be 1-element$"):
        AdaArturo([{"params": params, "lr": lr}])


@pytest.mark.parametrize("lr", [1e-28, 1e-7], ids=str)
def test_a_vanishing_lr(lr, geometry, quadratic):
    """The step shrinks with lr and stays finite; beside a group that moves, too."""
    still, moving = quadratic.params(seed=1), quadratic.params()
    before = [p.detach().clone() for p in still]
    optimizer = AdaArturo([{"params": still, "lr": lr}, {"params": moving}], **geometry)
    for info in quadratic.train(optimizer, 5):
        assert 0 < info.kl <= info.bound * (1 + 1e-9)
    for p, old in zip(still, before, strict=True):
        torch.testing.assert_close(p.detach(), old, rtol=0, atol=1e3 * lr)


@pytest.mark.parametrize("options", [{}, {"covariance": "diagonal", "capturable": True}], ids=["host", "capturable"])
@pytest.mark.parametrize("lr", [0.01, 10.0, torch.tensor(0.1)], ids=str)
def test_a_large_lr_steps_as_far_as_the_largest(lr, options, quadratic, snapshot):
    one, other = (AdaArturo(quadratic.params(), lr=x, **options) for x in (lr, MOST_LR))
    assert quadratic.train(one, 5) == quadratic.train(other, 5)
    assert snapshot(one) == snapshot(other)


def test_a_large_lr_decays_in_full(quadratic):
    """As in AdamW: by 1 - lr * weight_decay."""
    plain, decayed = (AdaArturo(quadratic.params(), lr=0.1, weight_decay=x) for x in (0.0, 0.5))
    before = [p.detach().clone() for p in decayed.param_groups[0]["params"]]
    quadratic.train(plain, 1)
    quadratic.train(decayed, 1)
    pairs = zip(plain.param_groups[0]["params"], decayed.param_groups[0]["params"], before, strict=True)
    for p, q, old in pairs:
        torch.testing.assert_close(p.detach() - q.detach(), 0.05 * old, rtol=(PER_LR * MOST_LR) ** 2, atol=1e-6)


@pytest.mark.parametrize("lr", [1e-2, 1e-1])
def test_a_network_survives_a_large_lr(lr):
    """With ten times the default, ReLUs died within some steps: 15 % instead of 87."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 16, generator=generator)
    y = (x @ torch.randn(16, 10, generator=generator)).argmax(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    net = torch.nn.Sequential(*layers)
    optimizer = AdaArturo(net.parameters(), lr=lr)
    for _ in range(300):
        batch = torch.randint(2000, (32,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    assert (net(x).argmax(1) == y).float().mean() > 0.75


@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["float", "tensor"])
def test_an_lr_that_does_not_count_warns_once(lr, quadratic):
    """Where a schedule reaches it, too."""
    optimizer = AdaArturo(quadratic.params(), lr=MOST_LR)
    quadratic.train(optimizer, 2)
    optimizer.param_groups[0]["lr"] = lr
    with pytest.warns(UserWarning, match=r"^lr=0.01 counts as 0.003 for the length of AdaArturo's steps.*weight decay") as told:
        quadratic.train(optimizer, 3, start=2)
    assert len(told) == 1 and told[0].filename == __file__.replace("test_adaptive_learning_rate", "conftest")
