"""What AdaArturo's model promises of every step, as properties over random gradients, scales, bases and gaps."""

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arturo import AdaArturo, kronecker
from arturo.adaptive_rows import row_of
from arturo.adaptive_state import MOST_SIZE, VECTOR_SIZE, least_size
from arturo.adaptive_step import PER_LR
from arturo.surrogates import learned

SHAPES = ((5, 4), (4, 4), (7,), (1,), (1, 1), ())
both = pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
seeds = st.integers(0, 2**31)
options = st.fixed_dictionaries(
    {
        "lr": st.floats(-9, -1).map(lambda x: 10**x),
        "betas": st.tuples(st.sampled_from([0.0, 0.5, 0.9, 0.999]), st.sampled_from([0.0, 0.9, 0.99, 0.9999])),
        "eps": st.sampled_from([0.0, 1e-30, 1e-8]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "covariance": st.sampled_from(["kronecker", "diagonal"]),
        "block": st.sampled_from([2, 4, 128]),
        "refresh": st.sampled_from([1, 3, 10]),
    }
)


def make_params(generator, shapes=SHAPES, weight=1.0, dtype=torch.float32):
    return [torch.nn.Parameter((weight * torch.randn(s, generator=generator, dtype=torch.float64)).to(dtype)) for s in shapes]


def check_step(optimizer):
    """The bound, equality when active (and all groups have one lr), and a state that every later step can build on."""
    info = optimizer.last_step
    assert all(map(math.isfinite, info)) and 0 <= info.kl <= info.bound * (1 + 1e-9)
    if info.active:
        assert info.eta > 0
        if len({float(group["lr"]) for group in optimizer.param_groups}) == 1:
            assert info.kl >= info.bound * (1 - 1e-9)
    members = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    for number, (p, group) in enumerate(members):
        state = optimizer.state[p]
        assert p.isfinite().all() and all(x.isfinite().all() for x in state.values())
        assert (state["r"] >= 0).all() and (row_of(group, p, state, number, None, {}).noise_scale() > 0).all()
    return info


# ---- the trust region


@settings(max_examples=25, deadline=None)
@given(options, st.floats(-12, 12), st.floats(-3, 3), seeds)
def test_every_step_keeps_to_the_bound(chosen, log_gradient, log_weight, seed):
    """Gradients from 1e-12 to 1e12, weights from 1e-3 to 1e3, lr from 1e-9 to 0.1 with jumps."""
    generator = torch.Generator().manual_seed(seed)
    params = make_params(generator, weight=10**log_weight)
    optimizer = AdaArturo(params, **chosen)
    for t in range(8):
        if t in (3, 6):
            optimizer.param_groups[0]["lr"] *= 0.006
        for p in params:
            p.grad = 10**log_gradient * torch.randn(p.shape, generator=generator)
        optimizer.step()
        assert check_step(optimizer).kl > 0


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-6, -1), min_size=len(SHAPES), max_size=len(SHAPES)), options, seeds)
def test_groups_with_unlike_rates_keep_to_one_bound(rates, chosen, seed):
    generator = torch.Generator().manual_seed(seed)
    params = make_params(generator)
    optimizer = AdaArturo([{"params": [p], "lr": 10**x} for p, x in zip(params, rates, strict=True)], **chosen)
    for _ in range(5):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
        assert check_step(optimizer).kl > 0


@settings(max_examples=15, deadline=None)
@given(seeds, st.sampled_from(["kronecker", "diagonal"]), st.sampled_from([4, 128]), st.booleans())
def test_the_kl_is_that_of_the_step_really_taken(seed, covariance, block, noisy):
    """1/2 sum p d^2 in the bases of the state, p = s / (tau sigma); a short lr, at which the anchor's pull is rounding."""
    lr = 1e-8
    generator = torch.Generator().manual_seed(seed)
    params = make_params(generator, ((8, 4), (4, 4), (7,)), dtype=torch.float64)
    optimizer = AdaArturo(params, lr=lr, covariance=covariance, block=block)
    start = [p.detach().clone() for p in params]
    signal = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in params]
    for _ in range(7):
        before = [p.detach().clone() for p in params]
        for p, g in zip(params, signal, strict=True):
            p.grad = g + (1.0 if noisy else 0.01) * torch.randn(p.shape, generator=generator, dtype=torch.float64)
        optimizer.step()
        measured = 0.0
        for number, (p, old, first) in enumerate(zip(params, before, start, strict=True)):
            row = row_of(optimizer.param_groups[0], p, optimizer.state[p], number, None, {})
            d, s = p.detach() - old, row.noise_scale()
            if row.grid is not None:
                d = kronecker.turn(kronecker.to_tiles(d, row.grid), row.state.get("Q_L"), row.state.get("Q_R")).reshape(-1)
            size = (old if p.dim() > 1 else old - first).square().mean().sqrt().item()
            sigma = min(max(size, least_size(p)), MOST_SIZE)
            measured += 0.5 * (s.reshape(-1) / (PER_LR * lr * sigma) * d.reshape(-1).square()).sum().item()
        info = check_step(optimizer)
        assert measured == pytest.approx(info.kl, rel=1e-5)


# ---- what must not matter


def trajectory(scale, covariance, shapes, dtype, steps=20, **more):
    """Gradients that follow the parameters, of a loss times ``scale``."""
    params = make_params(torch.Generator().manual_seed(0), shapes, dtype=dtype)
    optimizer = AdaArturo(params, lr=0.01, covariance=covariance, refresh=4, **more)
    for t in range(steps):
        for i, p in enumerate(params):
            noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * t + i), dtype=torch.float64).to(dtype)
            p.grad = scale * (0.5 * (p.detach() - 1) + noise)
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in params]), optimizer


@both
@pytest.mark.parametrize("eps", [0.0, 1e-30])
@pytest.mark.parametrize("power", [-40, -13, 13, 40])
def test_a_loss_scaled_by_a_power_of_two_changes_no_bit(covariance, eps, power):
    """Everything is a ratio, and powers of two are exact; of any shape, in float32."""
    found, _ = trajectory(2.0**power, covariance, SHAPES, torch.float32, eps=eps)
    expected, _ = trajectory(1.0, covariance, SHAPES, torch.float32, eps=eps)
    assert torch.equal(found, expected)


@settings(max_examples=8, deadline=None)
@given(st.floats(-4, 4), st.sampled_from(["kronecker", "diagonal"]))
def test_the_scale_of_the_loss_does_not_matter(log_scale, covariance):
    """Up to rounding. Square matrices: in a first gradient's null space rounding errors choose the basis."""
    shapes = ((4, 4), (3, 3), (7,), ())
    found, optimizer = trajectory(10**log_scale, covariance, shapes, torch.float64)
    expected, plain = trajectory(1.0, covariance, shapes, torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert optimizer.last_step.eta == pytest.approx(plain.last_step.eta, rel=1e-8)


@settings(max_examples=10, deadline=None)
@given(seeds, st.sampled_from([3, 5]))
def test_turned_gradients_turn_the_step(seed, n):
    """W -> U W V^T and G -> U G V^T, with square full-rank gradients: the run turns alike. Vectors beside it stay."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    U, V = (torch.linalg.qr(draw(n, n))[0] for _ in range(2))
    W, w = draw(n, n), draw(4)
    pairs = [[torch.nn.Parameter(x.clone()) for x in (W, w)], [torch.nn.Parameter(x.clone()) for x in (U @ W @ V.T, w)]]
    optimizers = [AdaArturo(pair, lr=0.01, refresh=3, weight_decay=0.1) for pair in pairs]
    for _ in range(10):
        noise, g = draw(n, n), draw(4)
        for (matrix, vector), optimizer, (A, B) in zip(pairs, optimizers, ((torch.eye(n).double(),) * 2, (U, V)), strict=True):
            matrix.grad = 0.5 * matrix.detach() + A @ noise @ B.T
            vector.grad = g.clone()
            optimizer.step()
    torch.testing.assert_close(pairs[1][0].detach(), U @ pairs[0][0].detach() @ V.T, rtol=0, atol=1e-7)
    torch.testing.assert_close(pairs[1][1], pairs[0][1], rtol=0, atol=1e-7)


def test_turned_gradients_do_not_turn_a_diagonal_step():
    """The counter-check of the test above."""
    generator = torch.Generator().manual_seed(0)
    U, W, G = (torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))[0] for _ in range(3))
    params = [torch.nn.Parameter(W.clone()), torch.nn.Parameter(U @ W)]
    for p, g in zip(params, (G, U @ G), strict=True):
        p.grad = g.clone()
        AdaArturo([p], lr=0.01, covariance="diagonal").step()
    assert (params[1].detach() - U @ params[0].detach()).abs().max() > 1e-3


@settings(max_examples=10, deadline=None)
@given(seeds, st.permutations(range(5)))
def test_kronecker_is_diagonal_where_the_factors_are(seed, order):
    """One entry in each row and column: E E^T and E^T E are diagonal, and the bases permutations. The other weights are 0.

    Directions that no gradient has count a little in a turned tile (FLOOR); without that the two are the same to rounding
    (which eps keeps from counting as noiseless gradients).
    """
    generator = torch.Generator().manual_seed(seed)
    pattern = torch.eye(5, dtype=torch.float64)[list(order)]
    start = pattern * torch.randn(5, 5, generator=generator, dtype=torch.float64)  # what no gradient reaches has no anchor
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned, "FLOOR", 0.0)
        optimizers = [
            AdaArturo([p], lr=0.01, covariance=x, refresh=3, eps=0.01)
            for p, x in zip(params, ("kronecker", "diagonal"), strict=True)
        ]
        for _ in range(12):
            noise = torch.randn(5, 5, generator=generator, dtype=torch.float64)
            for p, optimizer in zip(params, optimizers, strict=True):
                p.grad = pattern * (1 + noise)
                optimizer.step()
    torch.testing.assert_close(params[0], params[1], rtol=0, atol=1e-10)
    assert optimizers[0].last_step == pytest.approx(optimizers[1].last_step, rel=1e-8)


# ---- gaps, and gradients without noise


@pytest.mark.filterwarnings("ignore:.*gradient entries were not finite")
@settings(max_examples=25, deadline=None)
@given(options, seeds, st.sampled_from([0.02, 0.3, 0.9]))
def test_arbitrary_missing_entries_leave_no_trace_of_nan(chosen, seed, share):
    """NaN, inf and numbers too large to square, in any pattern, whole gradients and first ones included."""
    generator = torch.Generator().manual_seed(seed)
    params = make_params(generator)
    optimizer = AdaArturo(params, **chosen)
    values = torch.tensor([math.nan, math.inf, -math.inf, 1e30])
    for _ in range(10):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
            lost = torch.rand(p.shape, generator=generator) < share
            p.grad = torch.where(lost, values[torch.randint(4, p.shape, generator=generator)], p.grad)
            if torch.rand((), generator=generator) < 0.2:
                p.grad.zero_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        check_step(optimizer)


NOISELESS = {"default": {}, "no-memory": {"betas": (0.0, 0.0)}, "eps-zero": {"eps": 0.0}, "block": {"block": 2}}


@both
@pytest.mark.parametrize("more", NOISELESS.values(), ids=NOISELESS)
def test_zero_gradients_move_nothing(covariance, more):
    """Not by decay either: nothing pulls. r = 0 and M = 0 are defined, and the first real gradient is a first one."""
    params = make_params(torch.Generator().manual_seed(0))
    before = [p.detach().clone() for p in params]
    optimizer = AdaArturo(params, covariance=covariance, **more)
    for t in range(6):
        for p in params:
            p.grad = torch.zeros_like(p) if t < 5 else torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
        optimizer.step()
        info = check_step(optimizer)
        if t < 5:
            assert info.kl == info.eta == 0 and not info.active
            assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    assert info.kl > 0 and not any(torch.equal(p, old) for p, old in zip(params, before, strict=True))


@both
@pytest.mark.parametrize("more", NOISELESS.values(), ids=NOISELESS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_constant_gradient_moves_by_the_models_length(shape, more, covariance):
    """r falls towards 0. The step then is the drift's: tau sigma per weight on the diagonal; it always spends the bound."""
    lr = 1e-4
    (p,) = make_params(torch.Generator().manual_seed(1), [shape], dtype=torch.float64)
    optimizer = AdaArturo([p], lr=lr, covariance=covariance, **more)
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for _ in range(60):
        before = p.detach().clone()
        p.grad = grad.clone()
        optimizer.step()
        check_step(optimizer)
    moved = (p.detach() - before).square().mean().sqrt().item() / (PER_LR * lr)
    size = min(max(before.square().mean().sqrt().item(), least_size(p)), MOST_SIZE) if p.dim() > 1 else VECTOR_SIZE
    assert optimizer.last_step.active
    if "tile" not in optimizer.state[p]:
        assert moved == pytest.approx(size, rel=0.02)
        assert ((before - p.detach()).sign() == grad.sign()).all()
    else:
        assert 0.1 * size < moved < 1.02 * size and ((before - p.detach()) * grad).sum() > 0


def test_a_constant_gradient_turned_is_its_orthogonal_factor():
    """Noise along a singular direction is proportional to the gradient there: every one of them gets the same step."""
    lr = 1e-4
    (p,) = make_params(torch.Generator().manual_seed(1), [(8, 8)], dtype=torch.float64)
    grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(grad)
    optimizer = AdaArturo([p], lr=lr)
    for _ in range(30):
        before = p.detach().clone()
        p.grad = grad.clone()
        optimizer.step()
    cosine = torch.nn.functional.cosine_similarity((before - p.detach()).reshape(1, -1), (U @ Vh).reshape(1, -1))
    assert cosine.item() > 0.98


@both
@pytest.mark.parametrize("noise", [0.0, 1.0], ids=["noiseless", "noisy"])
def test_a_finished_training_does_not_fall_apart(noise, covariance):
    """A quadratic at its optimum, curvatures from 0.01 to 10, a constant lr, many steps: the loss stays where it was."""
    params = [torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))]
    curvatures = [torch.logspace(-2, 1, p.numel()).view(p.shape) for p in params]
    optimizer = AdaArturo(params, lr=1e-3, covariance=covariance)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(1500 if noise else 200):
        losses.append(sum((0.5 * h * (p.detach() - 1).square()).sum().item() for p, h in zip(params, curvatures, strict=True)))
        for p, h in zip(params, curvatures, strict=True):
            p.grad = h * (p.detach() - 1) + noise * torch.randn(p.shape, generator=generator)
        optimizer.step()
    check_step(optimizer)
    if noise:
        early, late = (sum(losses[i : i + 500]) / 500 for i in (300, 1000))
        assert late < 2 * early and max(losses) < 10 * early
    else:
        assert losses == [0.0] * 200


@both
@pytest.mark.parametrize("lr", [1e-3, 3e-3, 1e-2])
def test_a_noiseless_training_comes_to_rest(lr, covariance):
    """At a constant lr. The gradient vanishes at the optimum, and so must the steps, which do not know its scale.

    Without the curvature a step overshoots as soon as the noise has forgotten: up to 1e-3 of the first loss, again and again.
    """
    for seed in range(3):
        params = make_params(torch.Generator().manual_seed(seed), [(4, 4), (4,)])
        curvatures = [torch.logspace(-1, 0, p.numel()).view(p.shape) for p in params]
        optimizer = AdaArturo(params, lr=lr, covariance=covariance)
        losses = []
        for _ in range(800):
            pairs = list(zip(params, curvatures, strict=True))
            losses.append(sum((0.5 * h * (p.detach() - 1).square()).sum().item() for p, h in pairs))
            for p, h in pairs:
                p.grad = h * (p.detach() - 1)
            optimizer.step()
        check_step(optimizer)
        assert max(losses[500:]) < 1e-9 * losses[0]


@both
def test_a_copy_of_the_state_is_enough_for_every_property(covariance):
    """From a loaded state in the middle of a run the steps stay within the bound."""
    params = make_params(torch.Generator().manual_seed(0))
    optimizer = AdaArturo(params, covariance=covariance)
    for t in range(8):
        for p in params:
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
        if t == 4:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.step()
        check_step(optimizer)


@pytest.mark.parametrize("factor", [3.0, 1e-4, 1e4])
@pytest.mark.parametrize("shape", [(4, 12), (12, 4), (16, 6)], ids=str)
def test_the_loss_scale_does_not_choose_a_basis(shape, factor):
    """A first gradient of low rank leaves a null space; rounding must not choose its basis."""
    ends = []
    for scale in (1.0, factor):
        p = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        optimizer = AdaArturo([p], lr=0.01)
        for t in range(30):
            noise = torch.randn(shape, generator=torch.Generator().manual_seed(1 + t), dtype=torch.float64)
            p.grad = scale * (0.3 * p.detach() + noise)
            optimizer.step()
        ends.append(p.detach().clone())
    torch.testing.assert_close(*ends, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lr", [1e-3, 3e-3, 1e-2])
def test_a_noiseless_regression_converges_at_a_large_lr(lr, seed):
    """The anchor pulls weights in with lr squared; a clear gradient must stay stronger, at a constant lr.

    From a loss of about 5 to float32's zero, and there it stays: where gradients are rounding errors, steps are too.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 2, generator=generator)
    y, w = x @ torch.tensor([1.0, -2.0]), torch.nn.Parameter(0.5 * torch.randn(1, 2, generator=generator))
    optimizer = AdaArturo([w], lr=lr)
    losses = []
    for _ in range(1000):
        optimizer.zero_grad()
        loss = (x @ w[0] - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses[700:]) < 1e-12


@both
def test_a_step_ends_where_the_quadratic_model_stops_falling(covariance):
    """k <= 2 / zeta, with zeta from the innovations."""
    params = make_params(torch.Generator().manual_seed(0), [(4, 4), (4,)])
    optimizer, limited = AdaArturo(params, lr=1e-2, covariance=covariance), 0
    for _ in range(400):
        for p in params:
            p.grad = 0.7 * (p.detach() - 1)
        optimizer.step()
        numerator, denominator, went, *_ = optimizer.param_groups[0]["curvature"]
        if numerator > 0:
            furthest = 2 * denominator / numerator
            assert went <= furthest * (1 + 1e-12)
            if went > furthest * (1 - 1e-12):
                limited += 1
                assert not optimizer.last_step.active
    assert limited > 100
