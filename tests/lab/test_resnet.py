"""The ResNets are torchvision's: layers, names, initialisation. Its import is not needed to hold that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arturo_lab.tasks.resnet import ResNet, resnet18, resnet34

# sha256 over the "key shape" lines of torchvision 0.29's own state dicts
NAMES = {
    resnet18: "84fb10d9c6905a1cbb020b284537dc97c4f4ec55fb2a780a41152a23a2dd0e9d",
    resnet34: "28f9096d5130749948981c6900083e57b19456b8b835829b8bdfe415bddc3f32",
}
WEIGHTS = {resnet18: 11_689_512, resnet34: 21_797_672}


@pytest.mark.parametrize("build", NAMES)
def test_names_and_shapes_are_torchvisions(build: Callable[..., ResNet]) -> None:
    model = build()
    lines = "\n".join(f"{key} {tuple(value.shape)}" for key, value in model.state_dict().items())
    assert hashlib.sha256(lines.encode()).hexdigest() == NAMES[build]
    assert sum(p.numel() for p in model.parameters()) == WEIGHTS[build]


def test_initialisation() -> None:
    torch.manual_seed(0)
    model = resnet34(num_classes=10)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.bias is None
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05), name
        elif isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))
        elif isinstance(module, nn.Linear):
            assert module.weight.abs().max() <= 512**-0.5  # uniform, torch's default


def test_forward_layer_by_layer() -> None:
    """The same network written out as operations on the state dict."""
    torch.manual_seed(1)
    model = resnet18(num_classes=7, channels=1).eval()
    for key, value in model.state_dict().items():  # norms that are not the identity
        if key.endswith(("running_mean", "bn1.bias", "bn2.bias")):
            value.normal_(std=0.3)
        elif key.endswith("running_var"):
            value.uniform_(0.5, 2)
    w = model.state_dict()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, gain, bias = (
            w[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * gain + bias

    x = torch.rand(2, 1, 28, 28)
    y = F.relu(norm(F.conv2d(x, w["conv1.weight"], stride=2, padding=3), "bn1"))
    y = F.max_pool2d(y, 3, stride=2, padding=1)
    assert y.shape == (2, 64, 7, 7)
    for stage in range(1, 5):
        for block in range(2):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            z = F.relu(norm(F.conv2d(y, w[f"{name}.conv1.weight"], stride=stride, padding=1), f"{name}.bn1"))
            z = norm(F.conv2d(z, w[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if stride == 2:
                y = norm(F.conv2d(y, w[f"{name}.downsample.0.weight"], stride=2), f"{name}.downsample.1")
            y = F.relu(z + y)
    logits = F.linear(y.mean(dim=(2, 3)), w["fc.weight"], w["fc.bias"])
    torch.testing.assert_close(model(x), logits, rtol=1e-4, atol=1e-5)


def test_one_channel_and_gradients() -> None:
    torch.manual_seed(0)
    model = resnet18(num_classes=10, channels=1)
    assert model.conv1.weight.shape == (64, 1, 7, 7)
    F.cross_entropy(model(torch.rand(4, 1, 28, 28)), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
