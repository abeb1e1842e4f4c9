"""lr: a float or a one-element tensor; 0 is a step that changes no bit."""

import pytest
import torch

from arturo import Arturo

ZEROS = {
    "float": (0.0, False),
    "float-capturable": (0.0, True),
    "tensor": (torch.tensor(0.0), False),
    "tensor-capturable": (torch.tensor(0.0), True),
    "tensor-1d-capturable": (torch.zeros(1), True),
}
zeros = pytest.mark.parametrize("zero, capturable", ZEROS.values(), ids=ZEROS)
foreach = pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])


@zeros
@foreach
def test_zero_from_the_start_makes_state_and_nothing_else(zero, capturable, foreach, quadratic, snapshot):
    params = quadratic.params()
    before = [p.detach().clone() for p in params]
    optimizer = Arturo(params, lr=zero, kl_bound=0.01, capturable=capturable, foreach=foreach, weight_decay=0.9)
    quadratic.train(optimizer, 1)
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    assert all(optimizer.state[p]["step"] == 0 and optimizer.state[p]["eta"] == 0 for p in params)
    first = snapshot(optimizer)
    info = quadratic.train(optimizer, 3, start=1)
    assert snapshot(optimizer) == first
    assert all(x == (0.0, 0.0, 0.0, 0, False, 0) for x in info)


@zeros
@foreach
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("warm", [0, 3])
def test_steps_at_zero_leave_no_trace(zero, capturable, foreach, dtype, warm, quadratic, snapshot):
    """warm steps, two at lr = 0, two more: the same bits as without the two in the middle."""
    options = {"kl_bound": 0.01, "capturable": capturable, "foreach": foreach, "weight_decay": 0.9}
    full = torch.ones_like(zero) if isinstance(zero, torch.Tensor) else 1.0
    paused, straight = (Arturo(quadratic.params(dtype=dtype), lr=full, **options) for _ in range(2))
    quadratic.train(paused, warm)
    quadratic.train(straight, warm)
    paused.param_groups[0]["lr"] = zero
    before = snapshot(paused)
    info = quadratic.train(paused, 2, start=100)
    if warm:
        assert snapshot(paused) == before
        assert info[-1] == (straight.last_step.eta, 0.0, 0.0, 0, False, 0)
    paused.param_groups[0]["lr"] = full
    quadratic.train(paused, 2, start=warm)
    quadratic.train(straight, 2, start=warm)
    assert snapshot(paused) == snapshot(straight)


@zeros
@foreach
@pytest.mark.parametrize("kl_bound", [None, 0.01])
@pytest.mark.parametrize("order", [1, -1])
def test_zero_in_one_group_only(zero, capturable, foreach, kl_bound, order, quadratic, snapshot):
    """That group keeps its bits, and the others follow the run in which it is not there."""
    live, dead = quadratic.params(), quadratic.params([(4, 3), (2,)], seed=1)
    options = {"kl_bound": kl_bound, "capturable": capturable, "foreach": foreach}
    full = torch.ones_like(zero) if isinstance(zero, torch.Tensor) else 1.0
    groups = [{"params": live, "lr": full}, {"params": dead, "lr": zero}]
    optimizer, alone = Arturo(groups[::order], **options), Arturo(quadratic.params(), lr=full, **options)
    before = [p.detach().clone() for p in dead]
    for t in range(4):
        quadratic.gradients(live, t)
        quadratic.gradients(dead, t)
        dead[0].grad[0, 0] = float("nan")
        optimizer.step()
        if t == 0:
            first = snapshot(optimizer, dead)
        quadratic.train(alone, 1, t)
        assert optimizer.last_step == alone.last_step
    assert all(torch.equal(p, old) for p, old in zip(dead, before, strict=True))
    assert snapshot(optimizer, dead) == first
    assert snapshot(optimizer, live) == snapshot(alone)


@foreach
def test_zero_does_not_follow_a_foreign_write_yet(foreach, quadratic, snapshot):
    """Someone writes into a bfloat16 parameter while lr is 0: no bit of the state changes before lr is back."""
    params = quadratic.params([(4, 3)], torch.bfloat16)
    optimizer = Arturo(params, lr=torch.ones(()), kl_bound=0.01, capturable=True, foreach=foreach)
    quadratic.train(optimizer, 2)
    optimizer.param_groups[0]["lr"].zero_()
    with torch.no_grad():
        params[0].fill_(3.0)
    before = snapshot(optimizer)
    quadratic.train(optimizer, 1, start=2)
    assert snapshot(optimizer) == before


@pytest.mark.parametrize(
    "lr", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5]]), torch.tensor(0.5).double()], ids=str
)
@pytest.mark.parametrize("capturable", [False, True])
@foreach
def test_a_tensor_equals_the_float(lr, capturable, foreach, quadratic, snapshot):
    options = {"kl_bound": 0.01, "capturable": capturable, "foreach": foreach, "weight_decay": 0.9}
    by_tensor, by_float = Arturo(quadratic.params(), lr=lr.clone(), **options), Arturo(quadratic.params(), lr=0.5, **options)
    for t in range(4):
        assert quadratic.train(by_tensor, 1, t) == quadratic.train(by_float, 1, t)
    assert snapshot(by_tensor) == snapshot(by_float)
    assert by_tensor.param_groups[0]["lr"].shape == lr.shape and torch.equal(by_tensor.param_groups[0]["lr"], lr)


@pytest.mark.parametrize("lr", [torch.ones(2), torch.ones(1, 3), torch.ones(0)], ids=str)
def test_larger_tensors_are_refused_in_torchs_words(lr, quadratic):
    params = quadratic.params([(3,)])
    for make in (lambda: Arturo(params, lr=lr), lambda: Arturo([{"params": params, "lr": lr}])):
        with pytest.raises(ValueError, match=r"^Tensor lr must be 1-element$"):
            make()
    with pytest.raises(ValueError, match=r"^Tensor lr must be 1-element$"):
        torch.optim.Adam(params, lr=lr)


@pytest.mark.parametrize("lr", [0.1, 2.0])
def test_step_length_is_proportional_to_lr(lr, quadratic):
    """The bound is kl_bound * lr**2, and a bound is reached: ten times less lr, a ten times shorter first step."""
    full, scaled = quadratic.params([(4, 3)]), quadratic.params([(4, 3)])
    start = full[0].detach().clone()
    (at_full,) = quadratic.train(Arturo(full, kl_bound=1e-6), 1)
    (at_scaled,) = quadratic.train(Arturo(scaled, lr=lr, kl_bound=1e-6), 1)
    assert at_full.active and at_scaled.active
    assert at_scaled.bound == pytest.approx(at_full.bound * lr**2)
    length = ((scaled[0] - start).norm() / (full[0] - start).norm()).item()
    assert length == pytest.approx(lr, rel=2e-2)
