"""Convolutional networks in plain torch: classification, segmentation and detection."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from conformance.architectures.case import (
    Case,
    Sizes,
    batch_norm_sizes,
    classes,
    cross_entropy,
    images,
)


def conv_norm(
    inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution without a bias, and BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def head(channels: int, labels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, labels))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, stride=stride)
        self.second = conv_norm(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.skip(x) + self.second(torch.relu(self.first(x))))


def resnet(s: Sizes) -> Case:
    """Two convolutions a block, BatchNorm in training mode, the maximum of windows first."""
    s = batch_norm_sizes(s)
    c = s.channels
    layers: list[nn.Module] = [conv_norm(3, c, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for inputs, outputs, stride in [(c, c, 1), (c, 2 * c, 2), (2 * c, 4 * c, 2)]:
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
    module = nn.Sequential(*layers, head(4 * c, s.labels))
    return Case(module, (images(s),), {}, cross_entropy(classes(s)))


class InvertedResidual(nn.Module):
    """Widen, convolve each channel by itself, weigh the channels, narrow."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = 4 * inputs
        self.widen = nn.Sequential(conv_norm(inputs, inner, 1), nn.Hardswish())
        self.depth = nn.Sequential(conv_norm(inner, inner, 3, stride, inner), nn.Hardswish())
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inner, inputs, 1),
            nn.ReLU(),
            nn.Conv2d(inputs, inner, 1),
            nn.Hardsigmoid(),
        )
        self.narrow = conv_norm(inner, outputs, 1)
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depth(self.widen(x))
        y = self.narrow(y * self.weigh(y))
        return x + y if self.residual else y


def mobilenet_v3(s: Sizes) -> Case:
    s = batch_norm_sizes(s)
    c = s.channels
    layers: list[nn.Module] = [conv_norm(3, c, 3, 2), nn.Hardswish()]
    layers += [InvertedResidual(c, c, 1), InvertedResidual(c, 2 * c, 2)]
    layers += [InvertedResidual(2 * c, 2 * c, 1)]
    module = nn.Sequential(*layers, head(2 * c, s.labels))
    return Case(module, (images(s),), {}, cross_entropy(classes(s)))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.new = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.new(x)], 1)


def densenet(s: Sizes) -> Case:
    """Every layer reads what all layers before it made."""
    s = batch_norm_sizes(s)
    channels, growth = s.channels, s.channels // 2
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, 2, 1, bias=False)]
    for block in range(2):
        for _ in range(3):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if block == 0:
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels // 2, 1, bias=False),
            ]
            layers += [nn.AvgPool2d(2)]
            channels //= 2
    module = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), head(channels, s.labels))
    return Case(module, (images(s),), {}, cross_entropy(classes(s)))


class Fire(nn.Module):
    """Squeeze to few channels, then widen by convolutions of two sizes."""

    def __init__(self, inputs: int, squeezed: int, outputs: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.one = nn.Conv2d(squeezed, outputs // 2, 1)
        self.three = nn.Conv2d(squeezed, outputs // 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = f.relu(self.squeeze(x), inplace=True)
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


def squeezenet(s: Sizes) -> Case:
    """Pools that count a part of a window at the border; the classes are channels."""
    c = s.channels
    module = nn.Sequential(
        nn.Conv2d(3, 2 * c, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(2 * c, c // 2, 4 * c),
        Fire(4 * c, c, 4 * c),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(4 * c, c, 6 * c),
        nn.Conv2d(6 * c, s.labels, 1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Case(module, (images(s),), {}, cross_entropy(classes(s)))


class UNet(nn.Module):
    def __init__(self, c: int, labels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(conv_norm(i, o), nn.ReLU(), conv_norm(o, o), nn.ReLU())
            for i, o in [(3, c), (c, 2 * c), (2 * c, 4 * c)]
        )
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * o, o, 2, 2) for o in (2 * c, c))
        self.up = nn.ModuleList(nn.Sequential(conv_norm(2 * o, o), nn.ReLU()) for o in (2 * c, c))
        self.head = nn.Conv2d(c, labels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(f.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for widen, block, skip in zip(self.widen, self.up, kept[-2::-1]):
            x = block(torch.cat([skip, widen(x)], 1))
        return self.head(x)


def unet(s: Sizes) -> Case:
    """Segmentation: a class for every pixel, from the image at three scales."""
    s = batch_norm_sizes(s)
    labels = classes(s, s.batch, s.image, s.image)
    module = UNet(s.channels, s.labels)
    return Case(module, (images(s),), {}, lambda y: f.cross_entropy(y, labels))


class YoloHead(nn.Module):
    """Boxes, objectness and classes at two scales, decoded with a grid of cells."""

    def __init__(self, c: int, labels: int, anchors: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, c, 3, 2), nn.SiLU(), conv_norm(c, 2 * c, 3, 2))
        self.deep = nn.Sequential(nn.SiLU(), conv_norm(2 * c, 4 * c, 3, 2), nn.SiLU())
        self.lateral = nn.Conv2d(4 * c, 2 * c, 1)
        self.fine = nn.Conv2d(4 * c, anchors * (5 + labels), 1)
        self.coarse = nn.Conv2d(4 * c, anchors * (5 + labels), 1)
        self.register_buffer("sizes", torch.rand(2, anchors, 2) + 0.5)
        self.anchors = anchors

    def decode(self, y: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        b, _, rows, columns = y.shape
        y = y.view(b, self.anchors, -1, rows, columns).permute(0, 1, 3, 4, 2)
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        cells = torch.stack([column, row], -1)  # (rows, columns, 2)
        centre = (2 * y[..., :2].sigmoid() - 0.5 + cells) / rows
        size = (2 * y[..., 2:4].sigmoid()) ** 2 * sizes[:, None, None]
        return torch.cat([centre, size, y[..., 4:]], -1).flatten(1, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        shallow = self.stem(x)
        deep = self.deep(shallow)
        wide = f.interpolate(self.lateral(deep), scale_factor=2.0, mode="nearest")
        fine = self.decode(self.fine(torch.cat([shallow, wide], 1)), self.sizes[0])
        found = torch.cat([fine, self.decode(self.coarse(deep), self.sizes[1])], 1)
        return {"boxes": found[..., :4], "object": found[..., 4], "classes": found[..., 5:]}


def yolo(s: Sizes) -> Case:
    s = batch_norm_sizes(s)
    boxes = torch.rand(s.batch, 1, 4)
    labels = classes(s)

    def loss(y: dict[str, torch.Tensor]) -> torch.Tensor:
        score = f.binary_cross_entropy_with_logits(y["object"], torch.ones_like(y["object"]) / 9)
        kind = f.cross_entropy(y["classes"].mean(1), labels)
        return f.smooth_l1_loss(y["boxes"], boxes.expand_as(y["boxes"])) + score + kind

    return Case(YoloHead(s.channels, s.labels), (images(s),), {}, loss)


CONVOLUTIONAL = (resnet, mobilenet_v3, densenet, squeezenet, unet, yolo)
