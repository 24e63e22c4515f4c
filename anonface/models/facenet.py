"""Inception-ResNet v1, the network of the FaceNet models with which papers evaluate.

Attribute names and their order are those of the files that the ``facenet-pytorch`` package publishes, so that they load
by name. Those files also hold a classifier under ``logits.``, which embeddings do not need.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

EMBEDDING = 512
Kernel = int | tuple[int, int]


class Conv(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel, stride: int = 1, padding: Kernel = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class Residual(nn.Module):
    """Branches side by side, brought back to the input's channels, scaled and added to it."""

    def __init__(self, channels: int, joined: int, scale: float, branches: list[nn.Module], relu: bool = True) -> None:
        super().__init__()
        self.scale, self.relu, self.count = scale, relu, len(branches)
        for number, branch in enumerate(branches):
            self.add_module(f"branch{number}", branch)
        self.conv2d = nn.Conv2d(joined, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.get_submodule(f"branch{number}")(x) for number in range(self.count)]
        x = x + self.scale * self.conv2d(torch.cat(branches, dim=1))
        return functional.relu(x) if self.relu else x


def block35() -> Residual:
    """The residual unit on [B, 256, h, w]."""
    third = nn.Sequential(Conv(256, 32, 1), Conv(32, 32, 3, padding=1), Conv(32, 32, 3, padding=1))
    second = nn.Sequential(Conv(256, 32, 1), Conv(32, 32, 3, padding=1))
    return Residual(256, 96, 0.17, [Conv(256, 32, 1), second, third])


def block17() -> Residual:
    """The residual unit on [B, 896, h, w]."""
    second = nn.Sequential(Conv(896, 128, 1), Conv(128, 128, (1, 7), padding=(0, 3)), Conv(128, 128, (7, 1), 1, (3, 0)))
    return Residual(896, 256, 0.10, [Conv(896, 128, 1), second])


def block8(scale: float = 0.20, relu: bool = True) -> Residual:
    """The residual unit on [B, 1792, h, w]."""
    second = nn.Sequential(
        Conv(1792, 192, 1), Conv(192, 192, (1, 3), padding=(0, 1)), Conv(192, 192, (3, 1), 1, (1, 0))
    )
    return Residual(1792, 384, scale, [Conv(1792, 192, 1), second], relu)


class Reduction(nn.Module):
    """Branches that halve the sides, and a pooled copy of the input, side by side."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.count = len(branches)
        for number, branch in enumerate(branches):
            self.add_module(f"branch{number}", branch)

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.get_submodule(f"branch{number}")(x) for number in range(self.count)]
        return torch.cat([*branches, functional.max_pool2d(x, 3, 2)], dim=1)


class FaceNet(nn.Module):
    """Face [B, 3, 160, 160], (pixels - 127.5) / 128 -> unit vector [B, 512]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2d_1a = Conv(3, 32, 3, 2)
        self.conv2d_2a = Conv(32, 32, 3)
        self.conv2d_2b = Conv(32, 64, 3, padding=1)
        self.conv2d_3b = Conv(64, 80, 1)
        self.conv2d_4a = Conv(80, 192, 3)
        self.conv2d_4b = Conv(192, 256, 3, 2)
        self.repeat_1 = nn.Sequential(*(block35() for _ in range(5)))
        self.mixed_6a = Reduction(
            [Conv(256, 384, 3, 2), nn.Sequential(Conv(256, 192, 1), Conv(192, 192, 3, padding=1), Conv(192, 256, 3, 2))]
        )
        self.repeat_2 = nn.Sequential(*(block17() for _ in range(10)))
        self.mixed_7a = Reduction(
            [
                nn.Sequential(Conv(896, 256, 1), Conv(256, 384, 3, 2)),
                nn.Sequential(Conv(896, 256, 1), Conv(256, 256, 3, 2)),
                nn.Sequential(Conv(896, 256, 1), Conv(256, 256, 3, padding=1), Conv(256, 256, 3, 2)),
            ]
        )
        self.repeat_3 = nn.Sequential(*(block8() for _ in range(5)))
        self.block8 = block8(scale=1.0, relu=False)
        self.last_linear = nn.Linear(1792, EMBEDDING, bias=False)
        self.last_bn = nn.BatchNorm1d(EMBEDDING, eps=1e-3)

    def forward(self, faces: Tensor) -> Tensor:
        x = self.conv2d_2b(self.conv2d_2a(self.conv2d_1a(faces)))
        x = self.conv2d_4b(self.conv2d_4a(self.conv2d_3b(functional.max_pool2d(x, 3, 2))))
        x = self.repeat_2(self.mixed_6a(self.repeat_1(x)))
        x = self.block8(self.repeat_3(self.mixed_7a(x)))
        return functional.normalize(self.last_bn(self.last_linear(x.mean(dim=(2, 3)))))
