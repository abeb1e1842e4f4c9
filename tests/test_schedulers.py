"""Every scheduler of torch.optim.lr_scheduler: Arturo's bound is kl_bound * lr**2, AdaArturo's step is proportional to lr."""

import copy
import inspect

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from arturo import AdaArturo, Arturo
from arturo.adaptive_step import MOST_LR, PER_LR

STEPS = 8
ABSTRACT = {"LRScheduler", "_LRScheduler"}


def peak(optimizer):
    """The largest lr of its groups."""
    return max(float(group["lr"]) for group in optimizer.param_groups)


def sequential(optimizer):
    """Warm-up, then cosine."""
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])


def chained(optimizer):
    return lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer, 0.5), lr_scheduler.ExponentialLR(optimizer, 0.9)])


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.1),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], gamma=0.1),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.3, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=STEPS - 2, power=2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS - 2),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.1, patience=1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=0.1 * peak(o), max_lr=peak(o), step_size_up=3, cycle_momentum="betas" in o.defaults
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=peak(o), total_steps=STEPS + 1, cycle_momentum="betas" in o.defaults
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.05 * peak(o), anneal_epochs=4),
}
CYCLES_MOMENTUM = ("CyclicLR", "OneCycleLR")  # they write betas, where there are any


def advance(scheduler):
    """A loss that never improves, for the one scheduler that looks at it."""
    scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


def test_the_table_is_complete():
    """A scheduler that torch adds must be added here."""
    found = {
        name
        for name, cls in inspect.getmembers(lr_scheduler, inspect.isclass)
        if issubclass(cls, lr_scheduler.LRScheduler) and name not in ABSTRACT
    }
    assert found | {"SWALR"} == set(SCHEDULERS)


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_bound_follows_the_schedule(make, capturable, as_tensor, quadratic):
    """Two groups with their own lr; the larger bound is the reported one. A tensor lr stays the tensor it is."""
    params = quadratic.params()
    lrs = [torch.tensor(x, dtype=torch.float64) if as_tensor else x for x in (1.0, 0.5)]
    groups = [{"params": params[:2], "lr": lrs[0]}, {"params": params[2:], "lr": lrs[1]}]
    optimizer = Arturo(groups, kl_bound=0.01, capturable=capturable)
    scheduler = make(optimizer)
    used = []
    for t in range(STEPS):
        used.append(max(float(group["lr"]) for group in optimizer.param_groups))
        (info,) = quadratic.train(optimizer, 1, t)
        assert info.bound == pytest.approx(0.01 * used[-1] ** 2, rel=1e-12, abs=0)
        assert info.kl <= info.bound * 1.001
        assert info.bound == 0 or info.kl > 0
        advance(scheduler)
    assert len(set(used)) > 1
    if as_tensor:
        assert all(group["lr"] is lr for group, lr in zip(optimizer.param_groups, lrs, strict=True))
    assert "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
def test_steps_follow_the_schedule(name, as_tensor, quadratic):
    """Each step is lr / MOST_LR of the one that the same optimizer would have taken at MOST_LR; more counts as MOST_LR."""
    lrs = [torch.tensor(x, dtype=torch.float64) if as_tensor else x for x in (MOST_LR, MOST_LR / 2)]
    params = quadratic.params([(5,), (3,)], torch.float64)
    optimizer = AdaArturo([{"params": [p], "lr": lr} for p, lr in zip(params, lrs, strict=True)])
    scheduler = SCHEDULERS[name](optimizer)
    used, betas = [], []
    for t in range(STEPS):
        for p in params if t else ():
            optimizer.state[p]["start"].copy_(p.detach())  # where the anchor, which goes with lr squared, draws to
        twin = copy.deepcopy(optimizer)
        for group in twin.param_groups:
            group["lr"] = MOST_LR
        before = [p.detach().clone() for p in params]
        used.append([float(group["lr"]) for group in optimizer.param_groups])
        betas.append(optimizer.param_groups[0]["betas"])
        quadratic.train(optimizer, 1, t)
        quadratic.train(twin, 1, t)
        for p, group, old, lr in zip(params, twin.param_groups, before, used[-1], strict=True):
            full_step = group["params"][0].detach() - old
            torch.testing.assert_close(p.detach() - old, full_step * min(lr / MOST_LR, 1.0), rtol=1e-7, atol=1e-12)
            assert full_step.abs().min() > 0
        advance(scheduler)
    assert len({lr for lr, _ in used}) > 1
    assert (len(set(betas)) > 1) == (name in CYCLES_MOMENTUM)
    if as_tensor:
        assert all(group["lr"] is lr for group, lr in zip(optimizer.param_groups, lrs, strict=True))


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "PolynomialLR"])
def test_an_annealed_lr_ends_without_a_move(name, quadratic):
    """lr = 0 to the letter, or the rounding error that torch's recursion leaves of it."""
    params = quadratic.params()
    optimizer = Arturo(params, kl_bound=0.01)
    scheduler = SCHEDULERS[name](optimizer)
    for t in range(STEPS - 2):
        quadratic.train(optimizer, 1, t)
        scheduler.step()
    assert abs(optimizer.param_groups[0]["lr"]) < 1e-15
    before = [p.detach().clone() for p in params]
    quadratic.train(optimizer, 1, STEPS)
    for p, old in zip(params, before, strict=True):
        torch.testing.assert_close(p.detach(), old, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lr", [-1e-17, torch.tensor(-1e-17)], ids=["float", "tensor"])
@pytest.mark.parametrize("kl_bound", [None, 0.01])
@pytest.mark.parametrize("capturable", [False, True], ids=["host", "device"])
def test_an_lr_that_rounding_made_negative_is_zero(lr, kl_bound, capturable, quadratic, snapshot):
    """Schedules that end at 0 can overshoot by an ulp: that is a step of length 0, not a crash and not a move."""
    optimizer = Arturo(quadratic.params(), kl_bound=kl_bound, capturable=capturable)
    quadratic.train(optimizer, 2)
    optimizer.param_groups[0]["lr"] = lr
    before = snapshot(optimizer)
    (info,) = quadratic.train(optimizer, 1, 2)
    assert snapshot(optimizer) == before and info.bound == 0 and info.kl == 0


@pytest.mark.parametrize("make", [
    lambda o: lr_scheduler.CyclicLR(o, base_lr=0.1, max_lr=1.0, cycle_momentum=True),
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=5, cycle_momentum=True),
], ids=["CyclicLR", "OneCycleLR"])  # fmt: skip
def test_there_is_no_momentum_to_cycle(make, quadratic):
    """torch says so itself; we do not pretend with a key that nothing reads."""
    with pytest.raises(ValueError, match="must support momentum"):
        make(Arturo(quadratic.params()))


def test_cycled_momentum_is_the_filters(quadratic):
    """What CyclicLR writes to betas sets the gain of the next step."""
    (p,) = quadratic.params([(5,)])
    optimizer = AdaArturo([p], betas=(0.9, 0.99))
    lr_scheduler.CyclicLR(optimizer, base_lr=0.001, max_lr=0.01, base_momentum=0.0, max_momentum=0.0)
    assert optimizer.param_groups[0]["betas"] == (0.0, 0.99)
    for t in range(3):
        quadratic.gradients([p], t)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["M"], p.grad, rtol=1e-6, atol=1e-7)  # no memory of the steps before


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "SequentialLR", "OneCycleLR", "ReduceLROnPlateau"])
def test_resuming_with_a_scheduler(name, way, quadratic, snapshot):
    """Optimizer and scheduler saved and loaded: the same bits as without the stop."""
    optimizer = way(quadratic.params())
    scheduler = SCHEDULERS[name](optimizer)

    def train(optimizer, scheduler, start, stop):
        for t in range(start, stop):
            quadratic.train(optimizer, 1, t)
            advance(scheduler)

    train(optimizer, scheduler, 0, 4)
    resumed = way(quadratic.twins(optimizer.param_groups[0]["params"]))
    continued = SCHEDULERS[name](resumed)
    continued.load_state_dict(scheduler.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    train(optimizer, scheduler, 4, 7)
    train(resumed, continued, 4, 7)
    assert snapshot(resumed) == snapshot(optimizer) and resumed.last_step == optimizer.last_step


@pytest.mark.parametrize("average", ["swa", "ema"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_averaged_model(average, dtype, way, quadratic, snapshot):
    """It reads and does not disturb; the average is that of the weights, and what it writes back is followed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to(dtype)
    twins = quadratic.twins(model.parameters())
    optimizer, plain = way(model.parameters()), way(twins)
    average_fn = {"swa": None, "ema": swa_utils.get_ema_multi_avg_fn(0.5)}[average]
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=average_fn)
    seen = []
    for t in range(4):
        quadratic.train(optimizer, 1, t)
        quadratic.train(plain, 1, t)
        averaged.update_parameters(model)
        seen.append(model.weight.detach().float().clone())
    assert snapshot(optimizer) == snapshot(plain)
    expected = torch.stack(seen).mean(0)
    if average == "ema":
        expected = seen[0]
        for weight in seen[1:]:
            expected = 0.5 * expected + 0.5 * weight
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(averaged.module.weight.detach().float(), expected, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        for p, q in zip(model.parameters(), averaged.module.parameters(), strict=True):
            p.copy_(q)
    start = model.weight.detach().float().clone()
    quadratic.train(optimizer, 1, 4)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    if way.kind is AdaArturo:  # whose steps are relative to the weights
        length = (model.weight.detach().float() - start).norm() / start.norm()
        assert 0 < length < 5 * PER_LR * 0.01
