"""Identity encoder E_ID: a face crop -> a point on the unit sphere of R^448, differentiable.

Two trunks of different architecture read the same crop. An adversarial picture that fools one trunk does not fool the
other, so a latent optimised against both has to resemble the person. A fixed isometry joins the trunks' unit
embeddings, so the cosine of two codes is a weighted mean of the two trunks' cosines:

    cos(z, z') = share * cos_a + (1 - share) * cos_b

The first axes of the isometry are directions of apparent sex, age and skin tone, two each. The others are principal
axes over faces, sorted by falling variance. ``identity_flow`` relies on that order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# the first coordinates of a code: the apparent attributes
CONDITIONS = {"sex": slice(0, 2), "age": slice(2, 4), "tone": slice(4, 6)}
KEPT = 6


@dataclass(frozen=True)
class IdentityParams:
    """``share``: trunk a's weight in a cosine. ``box``: (top, left, side) of the face in a 256-px FFHQ crop."""

    code: int = 448
    width_a: int = 192
    width_b: int = 256
    share: float = 0.65
    side: int = 128
    box: tuple[int, int, int] = (35, 32, 188)
    input: int = 112


class IdentityEncoder(nn.Module):
    """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> codes [B, 448] of unit length. The input is reduced to 128 px."""

    axes: Tensor

    def __init__(self, params: IdentityParams | None = None) -> None:
        super().__init__()
        p = self.params = params or IdentityParams()
        self.trunk_a = MobileFaceNet(p.width_a)
        self.trunk_b = DepthwiseResNet(p.width_b)
        self.register_buffer("axes", torch.eye(p.code, p.width_a + p.width_b))

    def forward(self, faces: Tensor) -> Tensor:
        return self.fuse(*self.parts(faces))

    def parts(self, faces: Tensor) -> tuple[Tensor, Tensor]:
        """The trunks' own unit embeddings, [B, 192] and [B, 256]."""
        x = self.crop(faces).contiguous(memory_format=torch.channels_last)  # a quarter faster on a CPU
        return F.normalize(self.trunk_a(x), dim=1), F.normalize(self.trunk_b(x), dim=1)

    def fuse(self, a: Tensor, b: Tensor) -> Tensor:
        """Join two unit embeddings into one unit code."""
        share = self.params.share
        return torch.cat([math.sqrt(share) * a, math.sqrt(1 - share) * b], dim=1) @ self.axes.T

    def crop(self, faces: Tensor) -> Tensor:
        """Cut out the face's box and resize it to the trunks' 112 px."""
        if faces.shape[-1] != self.params.side:
            faces = F.adaptive_avg_pool2d(faces, self.params.side)
        top, left, side = (v * faces.shape[-1] / 256 for v in self.params.box)
        y, x, s = round(top), round(left), round(side)
        size = (self.params.input, self.params.input)
        shrinking = s > self.params.input
        return F.interpolate(faces[:, :, y : y + s, x : x + s], size, mode="bilinear", antialias=shrinking)


def _pad_same(x: Tensor) -> Tensor:
    """TensorFlow's padding of a 3x3 convolution of stride 2: one pixel at the bottom and at the right."""
    return F.pad(x, (0, 1, 0, 1))


class _Conv(nn.Module):
    """Convolution with bias and optional PReLU; kernel 3 keeps the side (stride 1) or halves it (stride 2)."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        self.halve = stride == 2
        padding = 1 if kernel == 3 and stride == 1 else 0
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, padding, groups=groups)
        self.act = nn.PReLU(c_out) if act else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(_pad_same(x) if self.halve else x)
        return x if self.act is None else self.act(x)


class _Bottleneck(nn.Module):
    def __init__(self, c_in: int, c_mid: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.expand = _Conv(c_in, c_mid, 1)
        self.depthwise = _Conv(c_mid, c_mid, 3, stride, groups=c_mid)
        self.project = _Conv(c_mid, c_out, 1, act=False)
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class MobileFaceNet(nn.Module):
    """Trunk a (Chen et al. 2018, batch norms folded): [B, 3, 112, 112] in [-1, 1] -> [B, width]."""

    STAGES = (
        (64, 128, 2),
        *[(64, 128, 1)] * 4,
        (128, 256, 2),
        *[(128, 256, 1)] * 6,
        (128, 512, 2),
        *[(128, 256, 1)] * 2,
    )

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.stem = nn.Sequential(_Conv(3, 64, 3, 2), _Conv(64, 64, 3, groups=64), _Conv(64, 64, 1, act=False))
        blocks, c = [], 64
        for c_out, c_mid, stride in self.STAGES:
            blocks.append(_Bottleneck(c, c_mid, c_out, stride))
            c = c_out
        self.blocks = nn.Sequential(*blocks)
        self.top = nn.Sequential(
            _Conv(c, 512, 1), nn.Conv2d(512, 512, 7, groups=512), nn.Conv2d(512, 512, 1), nn.Conv2d(512, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.blocks(self.stem(x))).flatten(1)


class _DepthwiseStage(nn.Module):
    """1x1 convolution, depthwise halving, then a residual pair of depthwise convolutions; padded by one all round."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(c_in, c_out, 1, bias=False)
        self.halve = nn.Conv2d(c_out, c_out, 3, 2, 1, groups=c_out, bias=False)
        self.conv1 = nn.Conv2d(c_out, c_out, 3, 1, 1, groups=c_out, bias=False)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, groups=c_out, bias=False)
        self.act0, self.act1, self.act2 = (nn.PReLU(c_out) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act0(self.halve(self.project(x)))
        return x + self.act2(self.conv2(self.act1(self.conv1(x))))


class DepthwiseResNet(nn.Module):
    """Trunk b: a narrow residual network of depthwise stages, [B, 3, 112, 112] in [-1, 1] -> [B, width]."""

    WIDTHS = (32, 32, 32, 64, 128)

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        w = self.WIDTHS
        self.stem = nn.Conv2d(3, w[0], 3, 2, 1, bias=False)
        self.act = nn.PReLU(w[0])
        self.stages = nn.Sequential(*(_DepthwiseStage(w[i], w[i + 1]) for i in range(4)))
        self.dense = nn.Linear(w[4] * 16, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.act(self.stem(x)))
        return self.dense(x.flatten(1))
