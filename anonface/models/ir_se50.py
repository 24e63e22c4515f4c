"""IR-SE50, the residual network with squeeze-and-excitation behind ArcFace, pSp and e4e.

Attribute names (`input_layer`, `body.0.res_layer.5.fc1`, `output_layer.3`, ...) and their order are those of the
published `model_ir_se50.pth` (and of facexlib's copy), so that such files load by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class IRSE50Params:
    """Shape of the network.

    Attributes:
        stages: (channels, units) of each stage; the first unit of every stage halves the sides.
        reduction: squeeze factor of the channel attention.
        image: side of the aligned input face in pixels, a multiple of two to the number of stages.
        embedding: width of the identity vector.

    Raises:
        ValueError: for an image side that the stages cannot halve evenly.
    """

    stages: tuple[tuple[int, int], ...] = ((64, 3), (128, 4), (256, 14), (512, 3))
    reduction: int = 16
    image: int = 112
    embedding: int = 512

    def __post_init__(self) -> None:
        if self.image % 2 ** len(self.stages):
            raise ValueError(f"image side {self.image} is no multiple of {2 ** len(self.stages)}")


class ChannelAttention(nn.Module):
    """Squeeze-and-excitation: weigh every channel of [B, C, h, w] by a function of all channel means."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // reduction, 1, bias=False)
        self.fc2 = nn.Conv2d(channels // reduction, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = functional.relu(self.fc1(x.mean(dim=(2, 3), keepdim=True)))
        return x * torch.sigmoid(self.fc2(squeezed))


class ResidualUnit(nn.Module):
    """BN, 3x3, PReLU, 3x3 of the given stride, BN, attention; plus the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, reduction: int) -> None:
        super().__init__()
        self.shortcut_layer: nn.Module
        if inputs == outputs:
            self.shortcut_layer = nn.MaxPool2d(1, stride)
        else:
            self.shortcut_layer = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.res_layer = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            ChannelAttention(outputs, reduction),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut_layer(x) + self.res_layer(x)


def stem(params: IRSE50Params) -> nn.Sequential:
    """The first layer, image [B, 3, h, w] -> [B, C, h, w] with the first stage's channels."""
    channels = params.stages[0][0]
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.PReLU(channels))


def residual_body(params: IRSE50Params) -> nn.Sequential:
    """All residual units in one sequence; every stage halves the sides."""
    units: list[nn.Module] = []
    inputs = params.stages[0][0]
    for channels, count in params.stages:
        for index in range(count):
            units.append(ResidualUnit(inputs, channels, 2 if index == 0 else 1, params.reduction))
            inputs = channels
    return nn.Sequential(*units)


class IRSE50(nn.Module):
    """ArcFace recognizer: aligned face [B, 3, 112, 112] in [-1, 1] -> unit vector [B, 512]."""

    def __init__(self, params: IRSE50Params | None = None) -> None:
        super().__init__()
        self.params = params = params or IRSE50Params()
        channels = params.stages[-1][0]
        side = params.image // 2 ** len(params.stages)
        self.input_layer = stem(params)
        self.output_layer = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.Dropout(0.6),
            nn.Flatten(),
            nn.Linear(channels * side**2, params.embedding),
            nn.BatchNorm1d(params.embedding),
        )
        self.body = residual_body(params)

    def forward(self, faces: Tensor) -> Tensor:
        return functional.normalize(self.output_layer(self.body(self.input_layer(faces))))
