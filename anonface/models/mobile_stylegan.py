"""MobileStyleGAN's generator (Belousov 2021), the default: 8 M parameters, W+ of 23 latents, up to 1024 px.

The weights of the released network are already demodulated, so a forward pass is a chain of channel scale, fixed
convolution and leaky ReLU. The inverse Haar wavelet transform doubles the resolution. The release has a head for 1024
px only; this project trains the heads for 256 and 512 px (``anonface train heads``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class MobileStyleGANParams:
    """Sizes of the network. ``channels[i]`` are the channels after level ``i``, whose side is ``8 * 2**i`` px."""

    style: int = 512
    base: int = 512
    channels: tuple[int, ...] = (512, 512, 512, 512, 256, 128, 64)
    early_heads: tuple[tuple[int, int], ...] = ((4, 96), (5, 48))  # (level, hidden channels) of the smaller heads

    @property
    def n_latents(self) -> int:
        return 3 * len(self.channels) + 2

    def side(self, level: int) -> int:
        """Side in px of the image from a head after ``level``."""
        return 16 * 2**level


class Window(NamedTuple):
    """A rectangle of a picture or a feature map; ``bottom`` and ``right`` are exclusive."""

    top: int
    bottom: int
    left: int
    right: int

    @classmethod
    def around(cls, mask: Tensor) -> Window:
        """The smallest window that holds all of a mask [B, 1, H, W]; everything if the mask is empty."""
        seen = mask.amax((0, 1)) > 0
        if not seen.any():
            return cls(0, seen.shape[0], 0, seen.shape[1])
        (top, bottom), (left, right) = (seen.any(axis).nonzero().aminmax() for axis in (1, 0))
        return cls(int(top), int(bottom) + 1, int(left), int(right) + 1)

    def of(self, x: Tensor) -> Tensor:
        """The part of [..., H, W] inside the window."""
        return x[..., self.top : self.bottom, self.left : self.right]

    def within(self, x: Tensor, side: int) -> Tensor:
        """[..., h, w] of the window's size -> [..., side, side], 0 outside."""
        return F.pad(x, (self.left, side - self.right, self.top, side - self.bottom))

    def reaching(self, cells: int, factor: int, side: int) -> Window:
        """The window in a map of ``side`` cells, ``factor`` times coarser, with a margin of ``cells`` all around."""
        firsts = (max(0, edge // factor - cells) for edge in (self.top, self.left))
        lasts = (min(side, -(-edge // factor) + cells) for edge in (self.bottom, self.right))
        (top, left), (bottom, right) = firsts, lasts
        return Window(top, bottom, left, right)

    def larger(self, factor: int) -> Window:
        """The window in a map ``factor`` times finer."""
        return Window(*(factor * edge for edge in self))

    def among(self, other: Window) -> Window:
        """The window relative to an ``other`` one that contains it."""
        return Window(self.top - other.top, self.bottom - other.top, self.left - other.left, self.right - other.left)


def inverse_haar(x: Tensor) -> Tensor:
    """Inverse Haar wavelet transform, [B, 4C, H, W] -> [B, C, 2H, 2W].

    The first C channels are the low band; the others hold LH, HL, HH of each channel side by side.
    """
    c = x.shape[1] // 4
    bands = x.permute(0, 2, 3, 1)
    low, (lh, hl, hh) = bands[..., :c], bands[..., c:].unflatten(3, (c, 3)).unbind(4)
    plus, minus, across, along = low + lh, low - lh, hl + hh, hl - hh
    rows = [torch.stack(pair, dim=3) for pair in ((plus + across, plus - across), (minus + along, minus - along))]
    quads = torch.stack(rows, dim=2) * 0.5  # [B, H, 2, W, 2, C]
    return quads.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


class Modulation(nn.Module):
    """Channel scales from one latent: [B, 512] -> [B, C, 1, 1]. ``rate`` is the weight's learning-rate multiplier."""

    def __init__(self, style: int, channels: int, scale: float = 1.0, rate: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, style))
        self.bias = nn.Parameter(torch.ones(1, channels))
        self.scale, self.rate = scale, rate

    def forward(self, w: Tensor) -> Tensor:
        return ((self.rate * (w @ self.weight.T) + self.bias) * self.scale)[:, :, None, None]


class StyledConv(nn.Module):
    """Scale channels, convolve (depthwise then pointwise, or one full 3x3), add fixed noise and bias, leaky ReLU."""

    def __init__(self, style: int, c_in: int, c_out: int, side: int, full: bool = False) -> None:
        super().__init__()
        self.modulation = Modulation(style, c_in, 1.0 / math.sqrt(9 * c_in))
        if full:
            self.weight_dw = None
        else:
            self.weight_dw = nn.Parameter(torch.zeros(c_in, 1, 1, 3, 3))
        kernel = 3 if full else 1
        self.weight = nn.Parameter(torch.zeros(c_out, c_in, kernel, kernel))
        self.noise = nn.Parameter(torch.zeros(1, 1, side, side))
        self.bias = nn.Parameter(torch.zeros(1, c_out, 1, 1))

    def forward(self, x: Tensor, w: Tensor, detail: Tensor | None = None, view: Window | None = None) -> Tensor:
        """``view``: the window of the whole map that x shows."""
        x = x * self.modulation(w)
        if self.weight_dw is None:
            x = F.conv2d(x, self.weight, self.bias.flatten(), padding=1)
        else:
            x = x.contiguous(memory_format=torch.channels_last)  # several times faster for depthwise convolutions
            x = F.conv2d(x, self.weight_dw[:, 0], padding=1, groups=x.shape[1])
            x = F.conv2d(x, self.weight, self.bias.flatten())
        added = self.noise if detail is None else self.noise + detail
        return F.leaky_relu(x + (view.of(added) if view else added), 0.2)


def haar(x: Tensor) -> Tensor:
    """Haar wavelet transform, [B, C, 2H, 2W] -> [B, 4C, H, W], the inverse of :func:`inverse_haar`."""
    batch, channels, height, width = x.shape
    q = F.pixel_unshuffle(x, 2).reshape(batch, channels, 4, height // 2, width // 2)
    a, b, c, d = q.unbind(2)
    high = torch.stack([a + b - c - d, a - b + c - d, a - b - c + d], dim=2).flatten(1, 2)
    # LH is the difference between the rows of a pixel quad, HL between its columns
    return torch.cat([a + b + c + d, high], dim=1) * 0.5


class Up(nn.Module):
    """Scale channels and double the side: [B, C, H, W] -> [B, C/4, 2H, 2W]."""

    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.modulation = Modulation(style, channels)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return inverse_haar(x * self.modulation(w))


class Level(nn.Module):
    """One resolution: upsampling, then two styled convolutions, with one latent each."""

    def __init__(self, style: int, c_in: int, c_out: int, side: int) -> None:
        super().__init__()
        self.up = Up(style, c_in)
        self.conv1 = StyledConv(style, c_in // 4, c_out, side)
        self.conv2 = StyledConv(style, c_out, c_out, side)

    def forward(
        self,
        x: Tensor,
        w: Tensor,
        details: tuple[Tensor, Tensor] | None = None,
        view: Window | None = None,
        within: Window | None = None,
    ) -> Tensor:
        """``view``: the requested window of the whole map; ``within``: the window that the upsampled x shows."""
        first, second = details or (None, None)
        x = self.up(x, w[:, 0])
        if view:
            x = (view.among(within) if within else view).of(x)
        x = self.conv1(x, w[:, 1], first, view)
        return self.conv2(x, w[:, 2], second, view)


class ToImage(nn.Module):
    """The released head: modulated 1x1 convolution to 12 wavelet channels, then the inverse transform to RGB."""

    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.modulation = Modulation(style, channels, 1.0 / math.sqrt(channels))
        self.weight = nn.Parameter(torch.zeros(12, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, 12, 1, 1))

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return inverse_haar(F.conv2d(x * self.modulation(w), self.weight, self.bias.flatten()))


class EarlyHead(nn.Module):
    """A head trained here, for a size below 1024 px: a linear plus a small nonlinear function of the features.

    The layers that it replaces also set colour and contrast by their latents, so both functions are modulated. RATE and
    LINEAR_RATE are learning-rate multipliers, which allow one learning rate for all parameters.
    """

    RATE, LINEAR_RATE = 0.02, 0.05

    def __init__(self, style: int, channels: int, hidden: int) -> None:
        super().__init__()
        self.before = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            nn.Conv2d(channels, hidden, 1),
            nn.LeakyReLU(0.2),
        )
        self.linear = Modulation(style, channels, rate=self.RATE)
        self.nonlinear = Modulation(style, hidden, rate=self.RATE)
        self.weight = nn.Parameter(torch.zeros(12, channels, 1, 1))
        self.weight_nonlinear = nn.Parameter(torch.zeros(12, hidden, 1, 1))
        self.colour = Modulation(style, 12, rate=self.RATE)
        nn.init.zeros_(self.colour.bias)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        bands = F.conv2d(x * self.linear(w), self.LINEAR_RATE * self.weight)
        bands = bands + F.conv2d(self.before(x) * self.nonlinear(w), self.weight_nonlinear)
        return inverse_haar(bands + self.colour(w))


Details = Mapping[int, tuple[Tensor, Tensor]]
"""A level's side in px -> maps added to the fixed noise of its two convolutions, each [B, C, side, side]."""


class MobileStyleGAN(nn.Module):
    """Synthesis network: W+ latents [B, n, 512] -> images [B, 3, S, S], about -1..1, RGB.

    n is at most 23. If it is smaller, the last latent serves all remaining layers. The layers up to a 256-px head use
    TIED latents. Codes of at most that many latents show the same person at every size.
    """

    TIED = 17
    WHOLE = 32  # maps up to this side are always computed whole, because a window would save too little time

    def __init__(self, params: MobileStyleGANParams | None = None) -> None:
        super().__init__()
        p = self.params = params or MobileStyleGANParams()
        self.n_latents = p.n_latents
        self.input = nn.Parameter(torch.zeros(1, p.base, 4, 4))
        self.conv1 = StyledConv(p.style, p.base, p.base, 4, full=True)
        widths = (p.base, *p.channels)
        self.layers = nn.ModuleList(Level(p.style, widths[i], widths[i + 1], 8 * 2**i) for i in range(len(p.channels)))
        last = len(p.channels) - 1
        self.to_image = ToImage(p.style, p.channels[last])
        self.heads = nn.ModuleDict(
            {str(p.side(i)): EarlyHead(p.style, p.channels[i], hidden) for i, hidden in p.early_heads if i < last}
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Image sides in px of the heads, ascending."""
        return (*sorted(int(s) for s in self.heads), self.params.side(len(self.layers) - 1))

    def features(
        self, w_plus: Tensor, level: int, window: Window | None = None, details: Details | None = None
    ) -> Tensor:
        """Feature map after ``level``: [B, n, 512] -> [B, channels[level], 8 * 2**level, ...].

        With a ``window``, in px of the image, only the part that :meth:`view` gives is computed.
        """
        w_plus, seen = self._complete(w_plus), None
        x = self.conv1(self.input.expand(w_plus.shape[0], -1, -1, -1), w_plus[:, 0])
        for i in range(level + 1):
            view = self.view(window, i, level)
            x = self.layers[i](x, w_plus[:, 1 + 3 * i : 4 + 3 * i], (details or {}).get(8 * 2**i), view, seen)
            seen = view and view.larger(2)
        return x

    def view(self, window: Window | None, level: int, last: int) -> Window | None:
        """The part of the map of ``level`` on which a window of the image from level ``last`` depends; None is all.

        The two convolutions of a level and the one of the head widen it by one cell each.
        """
        side, reach = 8 * 2**level, 1
        if window is None or side <= self.WHOLE:
            return None
        for _ in range(last - level + 1):
            reach = 2 + -(-reach // 2)
        return window.reaching(reach, 2 ** (last - level + 1), side)

    def synthesize(
        self, w_plus: Tensor, size: int, window: Window | None = None, details: Details | None = None
    ) -> Tensor:
        """Render latents at ``size`` px through the head of that size; ``details`` are added to the features.

        Inside a ``window``, in px, the result is the same as without one. Pixels outside are undefined and cost little.

        Raises:
            ValueError: there is no head of that size.
        """
        if size not in self.sizes:
            raise ValueError(f"no head for {size} px; this generator has {self.sizes}")
        level = self.level(size)
        image = self.head(self.features(w_plus, level, window, details), w_plus, level)
        view = self.view(window, level, level)
        return view.larger(2).within(image, size) if view else image

    def level(self, size: int) -> int:
        """The level whose head has images of ``size`` px."""
        return int(math.log2(size // 16))

    def head(self, features: Tensor, w_plus: Tensor, level: int) -> Tensor:
        """Image from the features of ``level``.

        The latents of the omitted levels control colour and contrast, so their mean modulates the head. At the last
        level this is the one latent of the released head.
        """
        w_plus = self._complete(w_plus)
        last = level == len(self.layers) - 1
        head = self.to_image if last else self.heads[str(self.params.side(level))]
        return head(features, w_plus[:, 4 + 3 * level :].mean(1)).contiguous()

    def _complete(self, w_plus: Tensor) -> Tensor:
        missing = self.n_latents - w_plus.shape[1]
        return torch.cat([w_plus, w_plus[:, -1:].expand(-1, missing, -1)], dim=1) if missing else w_plus

    def forward(self, w_plus: Tensor, size: int) -> Tensor:
        return self.synthesize(w_plus, size)


class MappingNetwork(nn.Module):
    """StyleGAN's mapping network f: z [B, 512] -> w [B, 512].

    The released weights include the learning-rate multiplier, so each layer is a plain linear one.
    """

    def __init__(self, width: int = 512, depth: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, z: Tensor) -> Tensor:
        x = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2) * math.sqrt(2.0)
        return x
