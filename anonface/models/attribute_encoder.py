"""Attribute encoder E_Attr (pSp-style, on MobileNetV2), mapping network M and identity compensation layer C.

E_Attr gives one attribute code for each latent of the generator. M maps it and the identity code to that latent (iFADIT
equation 2). Latents are expressed in whitened principal coordinates of the generator's w, so that all coordinates have
unit variance:  w = mean + (u * std) @ axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class AttributeParams:
    """``groups``: how many latents are read at each depth: coarse at stride 32, medium at 16, fine at 8."""

    groups: tuple[int, int, int] = (7, 6, 4)
    code: int = 256
    squeeze: int = 64
    hidden: int = 512
    grid: int = 4
    identity: int = 448
    style: int = 512

    @property
    def n_latents(self) -> int:
        return sum(self.groups)


class InvertedResidual(nn.Module):
    """MobileNetV2's block, with the parameter names of the ImageNet checkpoint."""

    def __init__(self, c_in: int, c_out: int, stride: int, expand: int) -> None:
        super().__init__()
        mid = c_in * expand
        layers: list[nn.Module] = [_conv_bn(c_in, mid, 1)] if expand != 1 else []
        layers += [
            _conv_bn(mid, mid, 3, stride, groups=mid),
            nn.Conv2d(mid, c_out, 1, bias=False),
            nn.BatchNorm2d(c_out),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


def _conv_bn(c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU6())


class MobileNetV2Features(nn.Module):
    """The convolutional part of MobileNetV2 up to stride 32, with the parameter names of the ImageNet checkpoint."""

    mean: Tensor
    std: Tensor
    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    TAPS = (6, 13, 17)  # last block at strides 8, 16 and 32
    WIDTHS = (32, 96, 320)

    def __init__(self, taps: tuple[int, ...] = TAPS) -> None:
        """``taps``: numbers of the blocks whose outputs are returned."""
        super().__init__()
        self.taps = taps
        blocks: list[nn.Module] = [_conv_bn(3, 32, 3, 2)]
        c = 32
        for expand, c_out, count, stride in self.STAGES:
            for i in range(count):
                blocks.append(InvertedResidual(c, c_out, stride if i == 0 else 1, expand))
                c = c_out
        self.features = nn.ModuleList(blocks)
        self.train(False)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, H, W] in [-1, 1] -> feature maps after the taps, by default at strides 8, 16 and 32."""
        x, taps = self.normalised(image), []
        for i, block in enumerate(self.features):
            x = block(x)
            if i in self.taps:
                taps.append(x)
        return taps

    def normalised(self, image: Tensor) -> Tensor:
        """A picture in [-1, 1], normalised as the checkpoint expects it. Channels last is a quarter faster on a CPU."""
        return (((image + 1) / 2 - self.mean) / self.std).contiguous(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> MobileNetV2Features:
        """Batch norms keep their ImageNet statistics, so that results do not depend on the batch."""
        return super().train(False)


def perceptual(features: MobileNetV2Features, x: Tensor, y: Tensor) -> Tensor:
    """Perceptual distance of pictures in [-1, 1], a substitute for LPIPS.

    It compares channel-normalised MobileNetV2 features at strides 8 and 16.
    """
    pairs = zip(features(x)[:2], features(y)[:2], strict=True)
    return torch.stack([(F.normalize(a, dim=1) - F.normalize(b, dim=1)).square().sum(1).mean() for a, b in pairs]).sum()


def feature_error(features: MobileNetV2Features, x: Tensor, y: Tensor) -> Tensor:
    """Mean absolute difference of MobileNetV2 features at strides 8, 16 and 32, not normalised."""
    return torch.stack([(a - b).abs().mean() for a, b in zip(features(x), features(y), strict=True)]).mean()


class AttributeEncoder(nn.Module):
    """Faces [B, 3, R, R] in [-1, 1] -> attribute codes [B, n_latents, 256]. The input is reduced to 128 px."""

    INPUT = 128

    def __init__(self, params: AttributeParams | None = None) -> None:
        super().__init__()
        p = self.params = params or AttributeParams()
        self.backbone = MobileNetV2Features()
        coarse_first = reversed(MobileNetV2Features.WIDTHS)
        self.squeeze = nn.ModuleList(nn.Conv2d(width, p.squeeze, 1) for width in coarse_first)
        self.spread = nn.ModuleList(
            nn.Sequential(
                nn.Linear(p.squeeze * p.grid**2, p.hidden), nn.LeakyReLU(0.2), nn.Linear(p.hidden, count * p.code)
            )
            for count in p.groups
        )

    def forward(self, faces: Tensor) -> Tensor:
        if faces.shape[-1] != self.INPUT:
            faces = F.adaptive_avg_pool2d(faces, self.INPUT)
        taps = self.backbone(faces)[::-1]
        codes = []
        for tap, squeeze, spread in zip(taps, self.squeeze, self.spread, strict=True):
            x = F.adaptive_avg_pool2d(F.leaky_relu(squeeze(tap), 0.2), self.params.grid)
            codes.append(spread(x.flatten(1)).unflatten(1, (-1, self.params.code)))
        return torch.cat(codes, dim=1)


class PrincipalLatents(nn.Module):
    """Base of networks that express latents in whitened principal coordinates of the generator's w."""

    mean: Tensor
    std: Tensor
    axes: Tensor

    def __init__(self, style: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(style))
        self.register_buffer("std", torch.ones(style))
        self.register_buffer("axes", torch.eye(style))

    def to_w(self, u: Tensor) -> Tensor:
        """Whitened coordinates [..., 512] -> latents."""
        return self.mean + (u * self.std) @ self.axes

    def to_u(self, w: Tensor) -> Tensor:
        """Latents [..., 512] -> whitened coordinates."""
        return ((w - self.mean) @ self.axes.T) / self.std


class LatentMapper(PrincipalLatents):
    """M of equation 2: MLP([z, a_i]) -> w_i for each latent. The layers are shared, biases are not."""

    def __init__(self, params: AttributeParams | None = None) -> None:
        p = params or AttributeParams()
        super().__init__(p.style)
        self.params = p
        self.first_identity = nn.Linear(p.identity, p.hidden, bias=False)
        self.first_attribute = nn.Linear(p.code, p.hidden)
        self.latent_bias = nn.Parameter(torch.zeros(p.n_latents, p.hidden))
        self.second = nn.Linear(p.hidden, p.style)
        with torch.no_grad():  # a fresh mapper starts near the mean face
            self.second.weight.mul_(0.1)
            self.second.bias.zero_()

    def forward(self, z: Tensor, a: Tensor) -> Tensor:
        """Unit codes [B, 448] and attribute codes [B, n, 256] -> latents [B, n, 512]."""
        # components of a unit code are near 1/sqrt(448) and are scaled to unit variance
        x = self.first_identity(z * z.shape[1] ** 0.5)[:, None] + self.first_attribute(a) + self.latent_bias
        return self.to_w(self.second(F.leaky_relu(x, 0.2)))


class IdentityCompensation(nn.Module):
    """ICL, C of equation 10: a four-layer MLP that corrects a re-embedded code towards the rendered one."""

    def __init__(self, code: int = 448) -> None:
        super().__init__()
        hidden = 512
        last = nn.Linear(hidden, code)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(
            nn.Linear(code, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
            last,
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        """Unit codes [B, 448] -> unit codes [B, 448]; a fresh layer returns its input."""
        return F.normalize(z + self.layers(z * z.shape[1] ** 0.5), dim=1)
