"""IR, the plain residual network behind AdaFace (Kim et al. 2022, arXiv 2204.00964).

Attribute names and their order are those of the authors' files, under ``model.``; the files also hold the loss's
weights under ``head.``. Unlike in IR-SE50, a unit has one more batch norm and no channel attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

Stages = tuple[tuple[int, int], ...]

IR_50: Stages = ((64, 3), (128, 4), (256, 14), (512, 3))
IR_101: Stages = ((64, 3), (128, 13), (256, 30), (512, 3))


@dataclass(frozen=True)
class AdaFaceParams:
    """Shape of the network.

    Attributes:
        stages: (channels, units) of each stage; the first unit of every stage halves the sides.
        image: side of the aligned input face in pixels, a multiple of two to the number of stages.
        embedding: width of the identity vector.

    Raises:
        ValueError: for an image side that the stages cannot halve evenly.
    """

    stages: Stages = IR_101
    image: int = 112
    embedding: int = 512

    def __post_init__(self) -> None:
        if self.image % 2 ** len(self.stages):
            raise ValueError(f"image side {self.image} is no multiple of {2 ** len(self.stages)}")


class Unit(nn.Module):
    """BN, 3x3, BN, PReLU, 3x3 of the given stride, BN; plus the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.shortcut_layer: nn.Module = nn.MaxPool2d(1, stride)
        if inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut_layer = nn.Sequential(project, nn.BatchNorm2d(outputs))
        self.res_layer = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut_layer(x) + self.res_layer(x)


class AdaFace(nn.Module):
    """Aligned face [B, 3, 112, 112] in [-1, 1], channels blue, green, red -> unit vector [B, 512]."""

    def __init__(self, params: AdaFaceParams | None = None) -> None:
        super().__init__()
        self.params = params = params or AdaFaceParams()
        first, last = params.stages[0][0], params.stages[-1][0]
        side = params.image // 2 ** len(params.stages)
        self.input_layer = nn.Sequential(
            nn.Conv2d(3, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.PReLU(first)
        )
        self.output_layer = nn.Sequential(
            nn.BatchNorm2d(last),
            nn.Dropout(0.4),
            nn.Flatten(),
            nn.Linear(last * side**2, params.embedding),
            nn.BatchNorm1d(params.embedding, affine=False),
        )
        units, inputs = [], first
        for channels, count in params.stages:
            for index in range(count):
                units.append(Unit(inputs, channels, 2 if index == 0 else 1))
                inputs = channels
        self.body = nn.Sequential(*units)

    def forward(self, faces: Tensor) -> Tensor:
        return functional.normalize(self.output_layer(self.body(self.input_layer(faces))))
