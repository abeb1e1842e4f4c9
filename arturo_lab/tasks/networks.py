"""Small networks of kinds the paper's CNNs do not cover: residual, attentive, recurrent, generative, embedding; functions."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """conv - BN - ReLU - conv - BN, plus the input (1x1 convolution where the shape changes), then ReLU."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def small_resnet(blocks: int = 1, width: int = 16, num_classes: int = 10) -> nn.Sequential:
    """CIFAR-style ResNet of depth 6 * blocks + 2: a 3x3 stem, three stages of width, 2 width, 4 width, mean, linear."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    channels = width
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(channels, width << stage, stride))
            channels = width << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class TransformerBlock(nn.Module):
    """Pre-norm causal self-attention and a four times wider GELU layer, each added to its input."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.attention_out = nn.Linear(d_model, d_model, bias=False)
        self.norm2 = nn.LayerNorm(d_model)
        self.widen = nn.Linear(d_model, 4 * d_model)
        self.narrow = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).reshape(n, t, d))
        x = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return x


class ByteTransformer(nn.Module):
    """A GPT over bytes: learned positions, tied input and output embedding, GPT-2's initialisation, no dropout."""

    def __init__(self, context: int, layers: int, d_model: int, heads: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d_model)
        self.position = nn.Parameter(torch.empty(context, d_model))
        self.blocks = nn.Sequential(*(TransformerBlock(d_model, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(d_model)
        nn.init.normal_(self.position, std=0.02)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # Each block adds twice to the residual stream: scale what it adds so that the sum keeps its variance.
                adds = name.endswith(("attention_out.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if adds else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.embed.weight)


class ByteGRU(nn.Module):
    """A recurrent language model over bytes: embedding, one GRU, linear output."""

    def __init__(self, d_embed: int, d_hidden: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d_embed)
        self.recurrent = nn.GRU(d_embed, d_hidden, batch_first=True)
        self.out = nn.Linear(d_hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.recurrent(self.embed(tokens))[0])  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Patches as tokens, learned positions, pre-norm encoder blocks, mean over tokens; torch's own layers."""

    def __init__(self, image: int = 32, patch: int = 4, d_model: int = 64, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, d_model, patch, stride=patch)
        self.position = nn.Parameter(torch.randn((image // patch) ** 2, d_model) * 0.02)
        block = nn.TransformerEncoderLayer(d_model, heads, 2 * d_model, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.out(self.norm(self.blocks(x)).mean(1))  # type: ignore[no-any-return]


def autoencoder(pixels: int = 784, code: int = 32) -> nn.Sequential:
    """pixels - 256 - 64 - code and back with ReLU: logits of the pixels."""
    widths = [pixels, 256, 64, code, 64, 256, pixels]
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Linear(inputs, outputs)] + ([nn.ReLU()] if 0 < i + 1 < len(widths) - 1 and outputs != code else [])
    return nn.Sequential(*layers)


class VariationalAutoencoder(nn.Module):
    """784 - 400 - 20 - 400 - 784, the shape of PyTorch's example; returns logits of the pixels, mean and log-variance."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.decode, self.out = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.encode(images.flatten(1)))
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.out(F.relu(self.decode(z))), mean, log_variance


class SkipGram(nn.Module):
    """Word and context vectors; the logit of a pair is their product."""

    def __init__(self, words: int, width: int = 64) -> None:
        super().__init__()
        self.word, self.context = nn.Embedding(words, width), nn.Embedding(words, width)
        nn.init.normal_(self.word.weight, std=width**-0.5)
        nn.init.normal_(self.context.weight, std=width**-0.5)

    def forward(self, words: Tensor) -> Tensor:
        """(N, 1 + K) words with K candidate contexts -> (N, K) logits."""
        return (self.word(words[:, :1]) * self.context(words[:, 1:])).sum(-1)  # type: ignore[no-any-return]


def tabular_mlp(inputs: int = 10, width: int = 64, outputs: int = 1) -> nn.Sequential:
    """inputs - width - width - outputs with ReLU: one output for a regression, one for each class else."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))


class NoisyQuadratic(nn.Module):
    """1/2 sum h (w - noise)^2 from w = 1, with curvatures h from 1 down to 1 / condition.

    Without noise the optimum is 0. What a batch adds is noise in the gradient of covariance h^2, the noisy quadratic model.
    """

    h: Tensor

    def __init__(self, width: int = 20, condition: float = 1000.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(width))
        self.register_buffer("h", torch.logspace(0, -math.log10(condition), width))

    def forward(self, noise: Tensor) -> Tensor:
        return 0.5 * (self.h * (self.w - noise).square()).sum(1)


class Rosenbrock(nn.Module):
    """sum 100 (w[i+1] - w[i]^2)^2 + (1 - w[i])^2 from w = (-1.2, 1, -1.2, 1, ...), whatever the input."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([-1.2, 1.0]).repeat(width // 2))

    def forward(self, inputs: Tensor) -> Tensor:
        value = (100 * (self.w[1:] - self.w[:-1].square()).square() + (1 - self.w[:-1]).square()).sum()
        return value.expand(len(inputs))
