"""What may happen around a step: autocast, casts, negated gradients, autograd's versions, deleted state, a broken schedule."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from arturo import AdaArturo, Arturo

FORMS = {
    "AdaArturo": lambda params, **k: AdaArturo(params, **k),
    "AdaArturo-eager": lambda params, **k: AdaArturo(params, foreach=False, fused=False, **k),
    "AdaArturo-foreach": lambda params, **k: AdaArturo(params, foreach=True, **k),
    "AdaArturo-diagonal": lambda params, **k: AdaArturo(params, covariance="diagonal", **k),
    "AdaArturo-bfloat16": lambda params, **k: AdaArturo(params, state_dtype=torch.bfloat16, **k),
    "Arturo": lambda params, **k: Arturo(params, **k),
    "Arturo-eager": lambda params, **k: Arturo(params, fused=False, **k),
}
forms = pytest.mark.parametrize("form", FORMS)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def backward(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).to(next(model.parameters()).dtype)
    optimizer.zero_grad()
    model(x).square().mean().backward()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@forms
def test_a_step_inside_autocast_has_the_same_bits(form):
    ends = []
    for enabled in (False, True):
        model = network()
        optimizer = FORMS[form](model.parameters())
        for seed in range(12):  # beyond the first refresh of a basis
            backward(model, optimizer, seed)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                optimizer.step()
        ends.append(weights(model))
    assert all(map(torch.equal, *ends))


@forms
@pytest.mark.parametrize("shape", [(5,), (4, 6)], ids=str)
def test_a_gradient_with_the_negative_bit(form, shape):
    ends = []
    for negated in (False, True):
        torch.manual_seed(0)
        p = nn.Parameter(torch.zeros(shape))
        optimizer = FORMS[form]([p])
        for _ in range(4):
            g = torch.randn(shape)
            p.grad = torch._neg_view(-g) if negated else g
            assert p.grad.is_neg() == negated
            optimizer.step()
        ends.append(p.detach())
    assert ends[0].abs().max() > 0
    torch.testing.assert_close(*ends)


@forms
def test_a_gradient_of_zeros_without_memory(form):
    p = nn.Parameter(torch.ones(5))
    optimizer = FORMS[form]([p])
    p.grad = torch._efficientzerotensor(5)
    optimizer.step()
    assert torch.isfinite(p).all()


@forms
def test_autograd_notices_that_weights_have_changed(form):
    """A loss from before a step has no gradient after it: wrong ones would be worse than an error."""
    for steps in (1, 3):  # the first step of a turned matrix is another one
        model = network()
        optimizer = FORMS[form](model.parameters())
        for seed in range(steps):
            backward(model, optimizer, seed)
            x = torch.randn(4, 8, requires_grad=True)
            earlier = model(x).mean()
            optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            earlier.backward()


@forms
def test_a_model_that_is_cast_trains_on(form):
    """Weights in half precision have a float32 mean beside them, others are it themselves."""
    model = network().bfloat16()
    optimizer = FORMS[form](model.parameters())
    for dtype, has_mean in ((torch.bfloat16, True), (torch.float32, False), (torch.float64, False), (torch.float16, True)):
        model.to(dtype)
        before = weights(model)
        for seed in range(3):
            backward(model, optimizer, seed)
            optimizer.step()
        assert all(("mean" in optimizer.state[p]) == has_mean for p in model.parameters())
        assert all((p != q).any() and torch.isfinite(p).all() for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("form", ["AdaArturo", "AdaArturo-diagonal", "Arturo"])
def test_small_steps_add_up_after_a_cast_to_half(form):
    """Each is far below half a unit in the last place of bfloat16."""
    p = nn.Parameter(torch.ones(64))
    holder = nn.ParameterList([p])
    optimizer = FORMS[form]([p], **({"lr": 1e-4} if form != "Arturo" else {}))
    for t in range(300):
        if t == 1:
            holder.bfloat16()
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert p.dtype == torch.bfloat16 and (p < 1).all()
    torch.testing.assert_close(p.detach().float(), optimizer.state[p]["mean"], rtol=0.01, atol=0)


@forms
def test_a_gradient_of_another_shape_is_refused(form):
    p = nn.Parameter(torch.zeros(4000))
    optimizer = FORMS[form]([p])
    p.grad = torch.ones(4000)
    p.grad.data = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"of shape \(4000,\) has shape \(3,\)"):
        optimizer.step()


@forms
def test_deleted_state_and_removed_parameters_are_freed(form):
    gone, stays = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(4, 4))
    optimizer = FORMS[form]([gone, stays])
    for p in (gone, stays):
        p.grad = torch.randn_like(p)
    optimizer.step()
    watched = [weakref.ref(x) for x in (gone, *optimizer.state[gone].values())]
    del optimizer.state[gone]
    optimizer.param_groups[0]["params"] = [stays]
    stays.grad = torch.randn_like(stays)
    optimizer.step()
    del gone, p
    gc.collect()
    assert [x() for x in watched] == [None] * len(watched)


@forms
def test_an_lr_that_became_nan_is_refused(form):
    p = nn.Parameter(torch.ones(3))
    optimizer = FORMS[form]([p])
    optimizer.param_groups[0]["lr"] = float("nan")
    p.grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"^Invalid lr value: nan \(set after the construction"):
        optimizer.step()


def test_the_gains_of_a_weight_norm_are_vectors():
    """(64, 1) beside a Linear, (64, 1, 1, 1) beside a Conv2d: both keep near their start under noise."""
    ends = []
    for layer in (nn.Linear(3, 64, bias=False), nn.Conv2d(3, 64, 1, bias=False)):
        gain = weight_norm(layer).parametrizations.weight.original0
        assert gain.dim() == (2 if isinstance(layer, nn.Linear) else 4)
        gain.data.fill_(1.0)
        optimizer = AdaArturo([gain], lr=1e-3)
        torch.manual_seed(1)
        for _ in range(200):
            gain.grad = torch.randn(64).view_as(gain)
            optimizer.step()
        assert "start" in optimizer.state[gain] and "Q_L" not in optimizer.state[gain]
        ends.append(gain.detach().flatten())
    assert torch.equal(*ends) and 0.5 < ends[0].min() and ends[0].max() < 1.5
