"""Discriminators, for training only: StyleGAN2's residual one (Karras et al. 2020), small, and a projected one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from anonface.models.stylegan2 import BLUR_TAPS, EqualLinear, leaky


@dataclass(frozen=True)
class DiscriminatorParams:
    """``side`` in px to which pictures are resized; ``channels`` at this side and after each halving, down to 4 px.

    Raises:
        ValueError: the number of channels does not match the number of halvings from that side to 4 px.
    """

    side: int = 128
    channels: tuple[int, ...] = (32, 64, 128, 192, 256, 256)

    def __post_init__(self) -> None:
        if self.side != 4 * 2 ** (len(self.channels) - 1):
            raise ValueError(f"{len(self.channels)} widths do not match the halvings from {self.side} px to 4 px")


class EqualConv(nn.Module):
    """Convolution whose weights are stored with unit variance and scaled at run time ("equalised")."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.scale = 1 / math.sqrt(inputs * kernel**2)
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.scale, self.bias, self.stride, self.padding)


def blurred(x: Tensor, padding: int) -> Tensor:
    """The 4x4 binomial filter on every channel."""
    taps = x.new_tensor(BLUR_TAPS)
    kernel = torch.outer(taps, taps) / taps.sum().square()
    return F.conv2d(x, kernel.expand(x.shape[1], 1, -1, -1), padding=padding, groups=x.shape[1])


class ResidualBlock(nn.Module):
    """[B, C, s, s] -> [B, C', s/2, s/2]: two convolutions, the second of stride 2, beside a 1x1 one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = EqualConv(inputs, inputs, 3, padding=1)
        self.second = EqualConv(inputs, outputs, 3, stride=2)
        self.shortcut = EqualConv(inputs, outputs, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = leaky(self.second(blurred(leaky(self.first(x)), padding=2)))
        return (y + self.shortcut(blurred(x, padding=1))) / math.sqrt(2)


class Discriminator(nn.Module):
    """Pictures [B, 3, R, R] in about [-1, 1] -> logits [B], high for real ones.

    The standard deviation over the batch is one more input of the last layers, which prevents mode collapse.
    """

    def __init__(self, params: DiscriminatorParams | None = None) -> None:
        super().__init__()
        p = self.params = params or DiscriminatorParams()
        last = p.channels[-1]
        self.stem = EqualConv(3, p.channels[0], 1)
        self.blocks = nn.Sequential(*(ResidualBlock(inputs, outputs) for inputs, outputs in pairwise(p.channels)))
        self.last = EqualConv(last + 1, last, 3, padding=1)
        self.judge = nn.Sequential(EqualLinear(16 * last, last, activate=True), EqualLinear(last, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        if pictures.shape[-1] != self.params.side:
            pictures = F.adaptive_avg_pool2d(pictures, self.params.side)
        x = self.blocks(leaky(self.stem(pictures)))
        spread = (x.var(dim=0, correction=0) + 1e-8).sqrt().mean().expand(len(x), 1, *x.shape[2:])
        x = leaky(self.last(torch.cat([x, spread], dim=1)))
        return self.judge(x.flatten(1))[:, 0]


class FeatureDiscriminator(nn.Module):
    """Feature maps of pictures at several strides -> a map of logits for each, high where a region looks like a photo.

    A projected discriminator (Projected GAN, Sauer et al. 2021): it sees fixed random mixtures of the features of a
    network that was trained on other pictures, and learns from few.

    Args:
        widths: channels of the maps, finest first.
        spreads: standard deviation of each map.
    """

    MOST = 64  # channels of the mixtures, at most two for each of the map's

    def __init__(self, widths: tuple[int, ...], spreads: tuple[float, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(31)
        self.mixtures, self.heads = nn.ParameterList(), nn.ModuleList()
        for width, spread in zip(widths, spreads, strict=True):
            mixed = min(self.MOST, 2 * width)
            mixture = torch.randn(mixed, width, 1, 1, generator=generator) / (spread * math.sqrt(width))
            self.mixtures.append(nn.Parameter(mixture, requires_grad=False))
            self.heads.append(
                nn.Sequential(
                    spectral_norm(nn.Conv2d(mixed, mixed, 3, padding=1)),
                    nn.LeakyReLU(0.2),
                    spectral_norm(nn.Conv2d(mixed, mixed, 1)),
                    nn.LeakyReLU(0.2),
                    spectral_norm(nn.Conv2d(mixed, 1, 1)),
                )
            )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        parts = zip(self.heads, maps, self.mixtures, strict=True)
        return [head(F.conv2d(x, mixture)) for head, x, mixture in parts]
