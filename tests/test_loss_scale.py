"""initial_curvature=None: the unit of the loss comes from the first gradients, and its scale does not matter."""

import copy
import math

import pytest
import torch

from arturo import Arturo, loss_scale

NAN = float("nan")
SCALES = [1e-8, 1e-4, 1e-2, 1e2, 1e4, 1e8]


def train(optimizer, quadratic, steps, scale=1.0, start=0):
    """The loss times ``scale``; returns the parameters."""
    info = quadratic.train(optimizer, steps, start, sign=scale)
    return [p.detach().clone() for group in optimizer.param_groups for p in group["params"]], info


def unit_of(optimizer):
    values = {state["scale"].item() for state in optimizer.state.values()}
    assert len(values) == 1
    return values.pop()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("options", [{"kl_bound": 0.01}, {}], ids=["bound", "unset"])
def test_a_run_does_not_depend_on_the_scale_of_the_loss(scale, options, kernel, quadratic):
    """50 steps: the same trajectory, KL and eta (which is in the unit) up to the unit's rounding to float32."""
    kernel = {**{name: x for name, x in kernel.items() if name != "kl_bound"}, **options}
    plain, scaled = (Arturo(quadratic.params(dtype=torch.float64), **kernel) for _ in range(2))
    expected, info = train(plain, quadratic, 50)
    found, others = train(scaled, quadratic, 50, scale)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)
    for x, y in zip(others, info, strict=True):
        assert x == pytest.approx(y, rel=1e-6)
    assert info[-1].active and unit_of(scaled) == pytest.approx(scale * unit_of(plain), rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"state_dtype": torch.bfloat16}, {"init": "gradient"}, {"maximize": True}], ids=str)
def test_a_power_of_two_changes_no_bit(options, kernel, quadratic):
    plain, scaled = (Arturo(quadratic.params(), **{**kernel, **options}) for _ in range(2))
    expected, _ = train(plain, quadratic, 10)
    found, _ = train(scaled, quadratic, 10, 2.0**-13)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_with_a_number_it_does_depend_on_it(kernel, quadratic):
    """Without the unit the test above would fail: the runs part."""
    plain, scaled = (Arturo(quadratic.params(), initial_curvature=0.1, **kernel) for _ in range(2))
    expected, _ = train(plain, quadratic, 10)
    found, _ = train(scaled, quadratic, 10, 1e-4)
    assert max((x - y).abs().max().item() for x, y in zip(found, expected, strict=True) if x.numel()) > 0.01


def test_in_units_of_the_loss_it_is_three_numbers(kernel, quadratic):
    """a_0 = 0.1 kappa, and prior_weight and covariance_weight times kappa: the run of an optimizer that is given them."""
    relative = Arturo(quadratic.params(dtype=torch.float64), prior_weight=0.2, **kernel)
    expected, _ = train(relative, quadratic, 30)
    kappa = unit_of(relative)
    numbers = {"initial_curvature": 0.1 * kappa, "prior_weight": 0.2 * kappa, "covariance_weight": 1.3 * kappa}
    given = Arturo(quadratic.params(dtype=torch.float64), **numbers, **kernel)
    found, _ = train(given, quadratic, 30)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)
    for p, q in zip(relative.param_groups[0]["params"], given.param_groups[0]["params"], strict=True):
        state = relative.state[p]
        torch.testing.assert_close(loss_scale.in_loss_units(state["a"], state), given.state[q]["a"], rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
def test_the_unit_by_hand(kernel):
    """0.3 times the root mean square of entries that count, over sqrt(2 kl_bound Sigma_0 / n); n counts all entries."""
    p, q, unused = (torch.nn.Parameter(torch.ones(n)) for n in (3, 2, 7))
    p.grad, q.grad = torch.tensor([3.0, 0.0, -4.0]), torch.tensor([NAN, 0.0])
    optimizer = Arturo([p, q, unused], prior_precision=0.0, **kernel)
    optimizer.step()
    expected = 0.3 * math.sqrt(12.5) / math.sqrt(2 * 0.01 * 1.0 / 5)
    assert [optimizer.state[x]["scale"].item() for x in (p, q)] == pytest.approx([expected] * 2, rel=1e-7)
    assert "scale" not in optimizer.state[unused]


@pytest.mark.parametrize("nothing", [0.0, NAN])
@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
def test_without_a_gradient_the_unit_stays_open(nothing, kernel, quadratic):
    """All 0 or all missing at first: the first step that has one sets it, as if it had been the first."""
    late, prompt = (Arturo(quadratic.params(), **kernel) for _ in range(2))
    for p in late.param_groups[0]["params"]:
        p.grad = torch.full_like(p, nothing)
    late.step()
    assert unit_of(late) == 0.0
    with torch.no_grad():  # the prior has moved the weights where the gradient was 0
        for p, q in zip(late.param_groups[0]["params"], prompt.param_groups[0]["params"], strict=True):
            p.copy_(q)
    train(late, quadratic, 1)
    train(prompt, quadratic, 1)
    assert unit_of(late) == unit_of(prompt) > 0


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_warm_up_from_zero_leaves_it_open(as_tensor, kernel, quadratic, snapshot):
    """lr = 0 makes state and nothing else; the run is then that of an optimizer which began later."""
    zero, one = (torch.tensor(x) if as_tensor else x for x in (0.0, 1.0))
    paused, plain = Arturo(quadratic.params(), lr=zero, **kernel), Arturo(quadratic.params(), lr=one, **kernel)
    train(paused, quadratic, 1, 1e3)
    assert unit_of(paused) == 0.0
    paused.param_groups[0]["lr"] = one
    train(paused, quadratic, 3)
    train(plain, quadratic, 3)
    assert snapshot(paused) == snapshot(plain)


def test_what_joins_later_takes_it_over(kernel, quadratic):
    """A late gradient, a late group, and a step in which none of the first parameters has a gradient."""
    old, late, new = (quadratic.params([(4,)], seed=i) for i in range(3))
    optimizer = Arturo(old + late, **kernel)
    quadratic.train(optimizer, 2, params=old)
    unit = optimizer.state[old[0]]["scale"].item()
    optimizer.add_param_group({"params": new})
    old[0].grad = None
    for p in late + new:
        p.grad = torch.full_like(p, 1e6)
    optimizer.step()
    assert unit > 0 and all(optimizer.state[p]["scale"].item() == unit for p in late + new)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_survives_a_resume(dtype, kernel, quadratic, snapshot):
    optimizer = Arturo(quadratic.params(dtype=dtype), **kernel)
    train(optimizer, quadratic, 3)
    resumed = Arturo(quadratic.twins(optimizer.param_groups[0]["params"]), initial_curvature=0.1, kl_bound=7.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, quadratic, 3, 1e3, start=3)  # gradients of another size, which no longer count
    train(resumed, quadratic, 3, 1e3, start=3)
    assert snapshot(resumed) == snapshot(optimizer) and unit_of(resumed) == unit_of(optimizer)


def test_a_checkpoint_from_before_there_was_one_keeps_its_numbers(quadratic, snapshot):
    """It says initial_curvature=0.1, and has no scale."""
    old = Arturo(quadratic.params(), initial_curvature=0.1, kl_bound=0.01)
    train(old, quadratic, 3)
    resumed = Arturo(quadratic.twins(old.param_groups[0]["params"]))
    resumed.load_state_dict(copy.deepcopy(old.state_dict()))
    train(old, quadratic, 3, start=3)
    train(resumed, quadratic, 3, start=3)
    assert snapshot(resumed) == snapshot(old) and not any("scale" in state for state in resumed.state.values())


def test_host_and_device_find_the_same(quadratic):
    host, device = (Arturo(quadratic.params(), kl_bound=0.01, capturable=x) for x in (False, True))
    train(host, quadratic, 1)
    train(device, quadratic, 1)
    assert unit_of(host) == unit_of(device)


@pytest.mark.parametrize("first", [None, 0.1])
def test_numbers_in_some_groups_only_are_refused(first, quadratic):
    params = quadratic.params([(2,), (3,)])
    second = 0.2 if first is None else None
    with pytest.raises(ValueError, match=r"Invalid initial_curvature value: .* in all of them or in none"):
        Arturo([{"params": params[:1], "initial_curvature": first}, {"params": params[1:], "initial_curvature": second}])


def test_draws_and_true_curvatures_are_in_units_of_the_loss(quadratic):
    for options in ({"sample_gradients": 3}, {"surrogate": "adam"}, {"surrogate": "hutchinson"}):
        assert Arturo(quadratic.params(), **options).param_groups[0]["initial_curvature"] == 0.1
    assert Arturo(quadratic.params()).param_groups[0]["initial_curvature"] is None


def test_the_posterior_has_the_curvature_of_the_loss(quadratic):
    """curvature="surrogate" is in units of the loss, whatever the state is in."""
    p = quadratic.params([(4,)])
    optimizer = Arturo(p, kl_bound=0.01)
    train(optimizer, quadratic, 2, 1e3)
    a = optimizer.posterior(ess=1.0, curvature="surrogate", prior_precision=0.0).precision["0"]
    torch.testing.assert_close(a, optimizer.state[p[0]]["a"] * unit_of(optimizer))
