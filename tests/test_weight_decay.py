"""Weight decay: what it takes of the weights, with and without a kl_bound, and that it says so when that is too much."""

import warnings

import pytest
import torch

from arturo import Arturo

KERNELS = {"default": {}, "loop": {"foreach": False}, "foreach": {"foreach": True}, "capturable": {"capturable": True}}
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def decayed(kernel, size=8, lr=1.0, **options):
    """The factor on weights of 1 in one step. A multiplier this large lets nothing else move them."""
    p = torch.nn.Parameter(torch.ones(size, dtype=torch.float64))
    optimizer = Arturo([p], lr=lr, eta=1e30, **options, **kernel)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert p.detach().max() == p.detach().min()
    return p[0].item()


@kernels
@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("lr", [1.0, 0.1, torch.tensor(0.5, dtype=torch.float64)], ids=str)
def test_without_a_bound_it_does_not_depend_on_the_number_of_weights(kernel, size, lr):
    """At lr = 1 it is AdamW's at 1e-3, and falls with lr as that one's does."""
    assert decayed(kernel, size, lr, weight_decay=0.1) == pytest.approx(1 - 1e-3 * float(lr) * 0.1, rel=1e-15)


def test_it_is_adamws_at_its_default_lr():
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    p.grad = torch.zeros_like(p)
    torch.optim.AdamW([p], weight_decay=0.1).step()
    assert decayed({}, weight_decay=0.1) == pytest.approx(p.item(), rel=1e-15)


@kernels
def test_with_a_bound_it_is_the_papers(kernel):
    """theta - epsilon wd theta, epsilon scheduled by lr squared."""
    assert decayed(kernel, lr=0.5, kl_bound=0.08, weight_decay=0.1) == pytest.approx(1 - 0.08 * 0.25 * 0.1, rel=1e-15)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("options", [{"kl_bound": 0.5, "weight_decay": 0.1}, {"weight_decay": 20.0}], ids=["bound", "none"])
def test_taking_more_than_a_hundredth_warns_once(options, capturable, quadratic):
    optimizer = Arturo(quadratic.params(), capturable=capturable, **options)
    with pytest.warns(UserWarning, match=r"^weight_decay=.* takes 0.0\d+ of every weight in each step") as caught:
        quadratic.train(optimizer, 3)
    assert len(caught) == 1 and caught[0].filename.endswith("conftest.py")  # the line that calls step()


@pytest.mark.parametrize("options", [{"kl_bound": 0.5, "weight_decay": 0.015}, {"weight_decay": 9.0}], ids=["bound", "none"])
def test_less_does_not_warn(options, quadratic):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quadratic.train(Arturo(quadratic.params(), **options), 3)


def test_a_schedule_may_bring_it_on(quadratic):
    """lr is read at every step: a loop that raises it is told."""
    optimizer = Arturo(quadratic.params(), weight_decay=1.0)
    quadratic.train(optimizer, 2)
    optimizer.param_groups[0]["lr"] = torch.tensor(30.0)
    with pytest.warns(UserWarning, match=r"takes 0.03 of every weight"):
        quadratic.train(optimizer, 2)
