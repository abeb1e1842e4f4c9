"""ResNet-18 and ResNet-34 for ImageNet, as torchvision has them.

Same layers, same parameter names, same initialisation drawn in the same order: a torchvision state dict loads, and one seed
gives both the same weights (checked against torchvision 0.29). Written here because the laboratory needs these two networks
and nothing else of torchvision.
"""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)  # channels of the four stages; every stage but the first halves the image


class BasicBlock(nn.Module):
    """relu(x + two 3x3 convolutions of x); where the shape changes x goes through a strided 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        # Made first and registered last: the order of the random numbers and of the names, both as in torchvision.
        downsample = None
        if stride != 1 or inputs != outputs:
            downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.conv1 = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A 7x7 stem, four stages of basic blocks, the average over the image, one linear layer.

    Args:
        blocks: number of basic blocks in each of the four stages.
        num_classes: length of the output.
        channels: of the images; 3 as in torchvision, 1 for Fashion-MNIST.

    Example:
        >>> model = resnet34(num_classes=1000)
        >>> sum(p.numel() for p in model.parameters())
        21797672
        >>> model.state_dict()["layer2.0.downsample.0.weight"].shape
        torch.Size([128, 64, 1, 1])
    """

    def __init__(self, blocks: tuple[int, int, int, int], num_classes: int = 1000, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = stage(WIDTHS[0], WIDTHS[0], blocks[0], stride=1)
        self.layer2 = stage(WIDTHS[0], WIDTHS[1], blocks[1], stride=2)
        self.layer3 = stage(WIDTHS[1], WIDTHS[2], blocks[2], stride=2)
        self.layer4 = stage(WIDTHS[2], WIDTHS[3], blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(WIDTHS[3], num_classes)

        for module in self.modules():  # norms start as the identity and the linear layer by torch's default: as they are
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    """The first block changes width and size, the others keep both."""
    return nn.Sequential(
        BasicBlock(inputs, outputs, stride), *(BasicBlock(outputs, outputs, stride=1) for _ in range(1, blocks))
    )


def resnet18(num_classes: int = 1000, channels: int = 3) -> ResNet:
    return ResNet((2, 2, 2, 2), num_classes, channels)


def resnet34(num_classes: int = 1000, channels: int = 3) -> ResNet:
    return ResNet((3, 4, 6, 3), num_classes, channels)
