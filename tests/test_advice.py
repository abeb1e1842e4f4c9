"""Settings with which nothing trains are answered: by a TypeError, or by a warning that is given once."""

import copy
import warnings

import pytest
import torch
from torch.optim import lr_scheduler

from arturo import Arturo
from arturo.advice import IDLE, WARM_UP

ADAMS = "looks like a learning rate for AdamW"


def said_by(optimizer, quadratic, steps, before=lambda t: None):
    """At which steps it warned, and of what."""
    found = []
    for t in range(steps):
        before(t)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            quadratic.train(optimizer, 1, t)
        found += [(t, str(w.message)) for w in caught]
        assert all(w.filename.endswith("conftest.py") for w in caught)  # the line that calls step()
    return found


def of_lr(found):
    return [t for t, message in found if ADAMS in message]


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("lr", [6e-4, 3e-4, 5e-5])
def test_adamws_lr_warns_at_the_first_step(lr, capturable, quadratic):
    found = said_by(Arturo(quadratic.params(), lr=lr, kl_bound=0.01, capturable=capturable), quadratic, WARM_UP + 5)
    assert of_lr(found) == [0] and f"lr={lr:g} " in found[0][1]


def test_it_warns_where_the_lr_is_in_the_groups_or_a_tensor(quadratic):
    params = quadratic.params([(4,), (3,)])
    groups = Arturo([{"params": [p], "lr": lr} for p, lr in zip(params, (1e-3, 3e-4), strict=True)], kl_bound=0.01)
    tensor = Arturo(quadratic.params(), lr=torch.tensor(1e-3), kl_bound=0.01)
    assert of_lr(said_by(groups, quadratic, 3)) == of_lr(said_by(tensor, quadratic, 3)) == [0]


def test_a_scheduler_that_warms_up_to_adamws_lr_warns_at_its_first_step_above_zero(quadratic):
    """Hugging Face's: lr = 0 in the first step, and the peak is in `initial_lr`."""
    optimizer = Arturo(quadratic.params(), lr=5e-5, kl_bound=0.01)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda t: min(t / 10, 1.0))
    found = said_by(optimizer, quadratic, 20, before=lambda t: scheduler.step() if t else None)
    assert of_lr(found) == [1]


def test_a_loop_that_sets_it_is_told_after_the_warm_up(quadratic):
    """nanoGPT's: the optimizer is made at 1.0, the loop writes into the groups."""
    optimizer = Arturo(quadratic.params(), kl_bound=0.01)

    def loop(t):
        optimizer.param_groups[0]["lr"] = 6e-4 * min((t + 1) / 100, 1.0)

    assert of_lr(said_by(optimizer, quadratic, WARM_UP + 10, before=loop)) == [WARM_UP - 1]


RISING = {
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=1e-3, total_iters=150),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=400, cycle_momentum=False),
    "OneCycleLR from far below": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=1.0, total_steps=400, div_factor=1e4, cycle_momentum=False
    ),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=1e-3, max_lr=1.0, step_size_up=100, cycle_momentum=False),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: t / 1000),
}


@pytest.mark.parametrize("make", RISING.values(), ids=RISING)
def test_a_warm_up_is_not_mistaken_for_it(make, quadratic):
    optimizer = Arturo(quadratic.params(), kl_bound=0.01)
    scheduler = make(optimizer)
    assert of_lr(said_by(optimizer, quadratic, 250, before=lambda t: scheduler.step() if t else None)) == []


def test_the_end_of_a_schedule_is_not_mistaken_for_it(quadratic):
    """Neither in the run itself, nor after a resume, nor in a copy."""
    optimizer = Arturo(quadratic.params(), kl_bound=0.01)
    quadratic.train(optimizer, 3)
    optimizer.param_groups[0]["lr"] = 1e-3
    copied = copy.deepcopy(optimizer)
    resumed = Arturo(quadratic.twins(optimizer.param_groups[0]["params"]), lr=1e-3, kl_bound=0.01)
    resumed.load_state_dict(optimizer.state_dict())
    for one in (optimizer, copied, resumed):
        assert of_lr(said_by(one, quadratic, 5)) == []


def test_lr_zero_and_a_fixed_multiplier_are_left_alone(quadratic):
    for options in ({"lr": 0.0}, {"lr": 1e-3, "eta": 2.0}, {"lr": 0.1}):
        assert of_lr(said_by(Arturo(quadratic.params(), kl_bound=0.01, **options), quadratic, 5)) == []


@pytest.mark.parametrize(
    "name, value, advice",
    [
        ("betas", (0.9, 0.999), "Arturo has no betas: the filter averages over some sqrt\\(noise / drift\\) steps.*drift"),
        ("eps", 1e-8, "Arturo has no eps: .* leave it out"),
        ("amsgrad", True, "Arturo has no amsgrad: .* leave it out"),
        ("momentum", 0.9, "Arturo has no momentum"),
        ("wobble", 1, "unexpected keyword argument 'wobble'"),
    ],
)
def test_arguments_of_other_optimizers(name, value, advice, quadratic):
    """In the constructor; a group keeps keys that nobody knows, as in torch, but not those."""
    with pytest.raises(TypeError, match=advice):
        Arturo(quadratic.params(), **{name: value})
    group = {"params": quadratic.params(), name: value}
    if name == "wobble":
        assert Arturo([group]).param_groups[0]["wobble"] == 1
    else:
        with pytest.raises(TypeError, match=advice):
            Arturo([group])


def idle(found):
    return [t for t, message in found if "the trust region has not held back" in message]


def test_a_bound_that_never_acts_warns_once(quadratic):
    optimizer = Arturo(quadratic.params(), kl_bound=1e9, initial_curvature=0.1)
    assert idle(said_by(optimizer, quadratic, 2 * IDLE + 5)) == [IDLE - 1]


def test_numbers_for_a_loss_of_another_scale_are_told(quadratic):
    """The loss times 1e-5 with numbers meant for the loss itself; without them there is nothing to tell."""
    for number, steps in ((0.1, [IDLE - 1]), (None, [])):
        optimizer, found = Arturo(quadratic.params(), kl_bound=0.01, initial_curvature=number), []
        for t in range(IDLE + 5):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                quadratic.train(optimizer, 1, t, sign=1e-5)
            found += [(t, str(w.message)) for w in caught]
        assert idle(found) == steps


def test_a_bound_that_acted_once_or_a_resumed_run_or_no_region_at_all(quadratic):
    once = Arturo(quadratic.params(), kl_bound=0.01)
    quadratic.train(once, 1)
    once.param_groups[0]["kl_bound"] = 1e9
    resumed = Arturo(quadratic.params(), kl_bound=1e9, initial_curvature=0.1)
    quadratic.train(resumed, 1)
    resumed = copy.deepcopy(resumed)
    fixed = Arturo(quadratic.params(), kl_bound=1e9, eta=0.0)
    for optimizer in (once, resumed, fixed):
        assert idle(said_by(optimizer, quadratic, IDLE + 5)) == []
