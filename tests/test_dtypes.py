"""Precisions: float64, half precision over a float32 mean, several in one group, loss scaling."""

import pytest
import torch

from arturo import AdaArturo, Arturo

HALF = [torch.bfloat16, torch.float16]
half = pytest.mark.parametrize("dtype", HALF, ids=str)
BUFFERS = ["P_aa", "P_ab", "P_bb", "a", "b", "eta", "prec", "step"]
KEEP = {  # parameter -> buffers, mean
    torch.float16: (torch.float32, True),
    torch.bfloat16: (torch.float32, True),
    torch.float32: (torch.float32, False),
    torch.float64: (torch.float64, False),
    torch.complex64: (torch.float32, False),
    torch.complex128: (torch.float64, False),
}


def noise(t, shape, dtype):
    kind = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=torch.Generator().manual_seed(t), dtype=kind).to(dtype)


def pair(dtype, recipe):
    """A half-precision parameter and a float32 one with the same values, each with its optimizer."""
    p = torch.nn.Parameter(noise(99, (6, 5), dtype))
    twin = torch.nn.Parameter(p.detach().float())
    return p, twin, recipe([p]), recipe([twin])


def same_step(t, p, twin, optimizer, plain):
    p.grad = noise(t, p.shape, p.dtype)
    twin.grad = p.grad.float()
    optimizer.step()
    plain.step()


@pytest.mark.parametrize("dtype", KEEP, ids=str)
def test_state_keys_and_dtypes(dtype, configuration):
    """Exactly the design's keys; float32 or wider, real; ``mean`` under half precision alone."""
    p = torch.nn.Parameter(torch.ones(4, 3, dtype=dtype))
    p.grad = torch.ones_like(p)
    optimizer = Arturo([p], **configuration)
    for _ in range(2):
        optimizer.step()
        state, (kept, mean) = optimizer.state[p], KEEP[dtype]
        scale = ["scale"] if configuration.get("initial_curvature") is None else []
        assert sorted(state) == sorted(BUFFERS + scale + (["mean"] if mean else []))
        for name, x in state.items():
            if name in ("step", "eta", "scale"):
                assert x.shape == () and x.dtype == (torch.float32 if name == "step" else torch.float64)
            else:
                assert x.dtype == kept and x.shape == (torch.view_as_real(p).shape if p.is_complex() else p.shape)
    assert p.dtype == dtype


@pytest.mark.parametrize("dtype", KEEP, ids=str)
def test_state_keys_and_dtypes_of_adaarturo(dtype, adaptive):
    """Float32 or wider, real; ``mean`` under half precision alone, ``start`` for vectors alone, factors for matrices alone."""
    params = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((4, 6), (3,))]
    optimizer = AdaArturo(params, **adaptive)
    for t in range(2):
        for p in params:
            p.grad = noise(t, p.shape, dtype)
        optimizer.step()
        kept, mean = KEEP[dtype]
        turned = {"tile", "L", "Q_L", "R", "Q_R"} if optimizer.param_groups[0]["covariance"] == "kronecker" else set()
        always = {"step", "M", "r", *({"mean"} if mean else ())}
        for p, more in zip(params, (turned, {"start"}), strict=True):
            state = optimizer.state[p]
            assert set(state) == always | more
            for name in ("M", "r", "start", "mean"):
                if name in state:
                    assert (
                        state[name].dtype == kept
                        and state[name].shape == (torch.view_as_real(p) if p.is_complex() else p).shape
                    )
            assert all(state[name].dtype == kept for name in turned & set(state) - {"tile"})
            assert p.dtype == dtype


@half
def test_half_precision_carries_a_float32_mean(dtype, every):
    """The mean follows the float32 run bit for bit; the parameter is its rounding."""
    p, twin, optimizer, plain = pair(dtype, every)
    for t in range(6):
        same_step(t, p, twin, optimizer, plain)
        assert torch.equal(optimizer.state[p]["mean"], twin)
        assert torch.equal(p, twin.to(dtype))
        assert optimizer.last_step == plain.last_step
    assert not torch.equal(p.float(), twin)


@half
def test_steps_below_the_parameters_resolution_add_up(dtype, kernel):
    """A hundred steps, each too short to change one half-precision weight."""
    p = torch.nn.Parameter(torch.full((50,), 1.0, dtype=dtype))
    optimizer = Arturo([p], **{**kernel, "kl_bound": 1e-8})
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.equal(p, torch.ones_like(p)) and (optimizer.state[p]["mean"] < 1).all()
    optimizer.param_groups[0]["kl_bound"] = 1e-5
    for _ in range(100):
        optimizer.step()
    assert (p < 1).all()


@half
def test_adaarturos_steps_below_the_parameters_resolution_add_up(dtype, geometry):
    p = torch.nn.Parameter(torch.full((10, 5), 1.0, dtype=dtype))
    optimizer = AdaArturo([p], **{**geometry, "lr": 1e-6})
    for t in range(100):
        if t == 1:
            assert torch.equal(p, torch.ones_like(p)) and (optimizer.state[p]["mean"] < 1).all()
            optimizer.param_groups[0]["lr"] = 1e-5
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert (p < 1).all()


@half
def test_what_others_write_is_followed(dtype, every):
    """Where the parameter was changed the mean takes it over; elsewhere it keeps its digits."""
    p, twin, optimizer, plain = pair(dtype, every)
    for t in range(4):
        same_step(t, p, twin, optimizer, plain)
    with torch.no_grad():
        for x in (p, twin):
            x[0] = torch.tensor([0.0, 10.0, -20.0, 0.5, 100.0])
            x[3, 2] = -x[3, 2].to(dtype)
    for t in range(4, 8):
        same_step(t, p, twin, optimizer, plain)
        assert torch.equal(optimizer.state[p]["mean"], twin) and torch.equal(p, twin.to(dtype))
        assert optimizer.last_step == plain.last_step


def test_float64_is_float64_throughout(every, quadratic):
    """Near the float32 run, and with the digits that float32 lacks."""
    wide, narrow = quadratic.params(dtype=torch.float64), quadratic.params()
    quadratic.train(every(wide), 4)
    quadratic.train(every(narrow), 4)
    for p, q in zip(wide, narrow, strict=True):
        torch.testing.assert_close(p.detach(), q.detach().double(), rtol=1e-3, atol=1e-3)
    assert not torch.equal(wide[0], wide[0].float().double())


def test_the_device_counts_as_the_host_does(quadratic):
    """capturable reads the step's number on the device: the same gains and weights, to float64's rounding."""
    options = {"covariance": "diagonal", "betas": (0.999, 0.9999), "lr": 0.01}
    host, device = (quadratic.params([(4, 3), (5,), ()], torch.float64) for _ in range(2))
    quadratic.train(AdaArturo(host, **options), 10)
    quadratic.train(AdaArturo(device, **options, capturable=True), 10)
    for p, q in zip(host, device, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_mixed_dtypes_in_one_group(every, quadratic, snapshot):
    """One group or a group for each dtype: the same bits."""
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.float32]

    def params():
        return [quadratic.params([(4, 3)], dtype, seed=i)[0] for i, dtype in enumerate(dtypes)]

    one, each = every(params()), every([{"params": [p]} for p in params()])
    for t in range(4):
        assert quadratic.train(one, 1, t) == quadratic.train(each, 1, t)
    assert snapshot(one) == snapshot(each)
    assert [p.dtype for p in one.param_groups[0]["params"]] == dtypes


def test_grad_scaler(every, snapshot):
    """Unscaled by a power of two the steps are those of the plain loop; a step on inf is skipped and the scale halved."""
    torch.manual_seed(0)
    model, twin = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    twin.load_state_dict(model.state_dict())
    optimizer, plain = every(model.parameters()), every(twin.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    for t in range(6):
        overflow = t in (0, 3)
        before = snapshot(optimizer)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if overflow:
            assert snapshot(optimizer) == before and scaler.get_scale() == scale / 2
        else:
            plain.zero_grad()
            (twin(x) - y).square().mean().backward()
            plain.step()
            assert snapshot(optimizer) == snapshot(plain) and optimizer.last_step == plain.last_step
    assert optimizer.state[model.weight]["step"] == 4


def test_autocast_training(kernel):
    """bfloat16 autocast over float32 weights: gradients arrive in float32, the loss falls."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = Arturo(model.parameters(), **{**kernel, "kl_bound": 0.05})
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x).float() - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0] and model.weight.dtype == torch.float32
