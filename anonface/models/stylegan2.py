"""StyleGAN2 generator (Karras et al. 2020) in the state-dict layout of rosinality's port.

The attribute names (`style`, `input.input`, `convs.0.conv.modulation`, `noises.noise_0`, ...) are those of the
published checkpoints and cannot be chosen freely. Everything else follows the paper.

Latents: z and w are [B, 512]; w+ is [B, n, 512] with one row a layer, n = 14 at 256 px and 18 at 1024 px.
Images are [B, 3, size, size], about [-1, 1], never clamped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BLUR_TAPS = (1.0, 3.0, 3.0, 1.0)
LEAK = 0.2
EPSILON = 1e-8


@dataclass(frozen=True)
class StyleGAN2Params:
    """Shape of a generator.

    Attributes:
        size: side of the image in pixels, a power of two of at least 8.
        latent: width of z and w.
        mapping_layers: depth of the mapping network.
        mapping_rate: learning-rate multiplier of the mapping network; it scales weights and biases at run time.
        max_channels: width of the coarse layers.
        channel_base: a layer of r x r pixels has min(max_channels, channel_base / r) channels.

    Raises:
        ValueError: for a size that is not a power of two of at least 8.
    """

    size: int = 256
    latent: int = 512
    mapping_layers: int = 8
    mapping_rate: float = 0.01
    max_channels: int = 512
    channel_base: int = 32768

    def __post_init__(self) -> None:
        if self.size < 8 or self.size & (self.size - 1):
            raise ValueError(f"generator size must be a power of two of at least 8, not {self.size}")

    @property
    def n_latents(self) -> int:
        """Rows of w+: two a resolution from 8 px on, two for the first one."""
        return 2 * int(math.log2(self.size)) - 2

    @property
    def resolutions(self) -> list[int]:
        """Sides of the up-sampled stages: 8, 16, ... size."""
        return [2**power for power in range(3, int(math.log2(self.size)) + 1)]

    def channels(self, resolution: int) -> int:
        """Feature channels of the layers with this side in pixels."""
        return min(self.max_channels, self.channel_base // resolution)


class PixelNorm(nn.Module):
    """Scale every vector [B, C] to a mean square of one."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + EPSILON)


class EqualLinear(nn.Module):
    """Linear layer whose weights have unit variance at rest and are scaled at run time ("equalised").

    Args:
        inputs, outputs: widths.
        rate: learning-rate multiplier, applied to weight and bias.
        bias: the initial bias.
        activate: follow with the leaky ReLU of slope 0.2 and gain sqrt(2).
    """

    def __init__(self, inputs: int, outputs: int, rate: float = 1.0, bias: float = 0.0, activate: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / rate)
        self.bias = nn.Parameter(torch.full((outputs,), bias))
        self.rate = rate
        self.scale = rate / math.sqrt(inputs)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        out = functional.linear(x, self.weight * self.scale, self.bias * self.rate)
        return leaky(out) if self.activate else out


def leaky(x: Tensor) -> Tensor:
    """Leaky ReLU of slope 0.2 that keeps the variance of a normal input (gain sqrt(2))."""
    return functional.leaky_relu(x, LEAK) * math.sqrt(2)


class Resampler(nn.Module):
    """The 4x4 binomial filter with the gain of 4 that a doubling needs, as the constant buffer `kernel`."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        taps = torch.tensor(BLUR_TAPS)
        self.register_buffer("kernel", torch.outer(taps, taps) * (4 / taps.sum().square()))

    def filters(self, channels: int) -> Tensor:
        """The kernel once a channel, [C, 1, 4, 4]."""
        return self.kernel.expand(channels, 1, -1, -1)


class Blur(Resampler):
    """Smooth the result of a transposed convolution of stride 2: [B, C, 2h+1, 2w+1] -> [B, C, 2h, 2w]."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.filters(x.shape[1]), padding=1, groups=x.shape[1])


class Upsample(Resampler):
    """Double an image by zero insertion and the binomial filter: [B, C, h, w] -> [B, C, 2h, 2w]."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv_transpose2d(x, self.filters(x.shape[1]), stride=2, padding=1, groups=x.shape[1])


class ModulatedConv(nn.Module):
    """Convolution whose input channels are scaled by an affine map of w, optionally demodulated and doubling.

    Scaling the input before and the output after the convolution equals scaling the weights of every sample, and
    keeps one ordinary convolution for the whole batch.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, latent: int, demodulate: bool = True, upsample: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, outputs, inputs, kernel, kernel))
        if upsample:
            self.blur = Blur()
        self.modulation = EqualLinear(latent, inputs, bias=1.0)
        self.scale = 1 / math.sqrt(inputs * kernel**2)
        self.demodulate = demodulate
        self.upsample = upsample

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """Features [B, inputs, h, w] under the style w [B, latent] -> [B, outputs, h or 2h, w or 2w]."""
        style = self.modulation(w)
        weight = self.weight[0] * self.scale
        out = self._convolve(x * style[:, :, None, None], weight)
        if self.demodulate:
            power = functional.linear(style.square(), weight.square().sum(dim=(2, 3)))
            out = out * torch.rsqrt(power + EPSILON)[:, :, None, None]
        return out

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.upsample:
            return self.blur(functional.conv_transpose2d(x, weight.transpose(0, 1), stride=2))
        return functional.conv2d(x, weight, padding=weight.shape[-1] // 2)


class NoiseInjection(nn.Module):
    """Add a noise map [B or 1, 1 or C, h, w] times one learned strength."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        return x + self.weight * noise


class BiasedLeaky(nn.Module):
    """Add a bias a channel to [B, C, h, w], then :func:`leaky`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return leaky(x + self.bias[:, None, None])


class StyledConv(nn.Module):
    """Modulated 3x3 convolution, noise, bias and activation: one layer of the synthesis network."""

    def __init__(self, inputs: int, outputs: int, latent: int, upsample: bool = False) -> None:
        super().__init__()
        self.conv = ModulatedConv(inputs, outputs, 3, latent, upsample=upsample)
        self.noise = NoiseInjection()
        self.activate = BiasedLeaky(outputs)

    def forward(self, x: Tensor, w: Tensor, noise: Tensor) -> Tensor:
        return self.activate(self.noise(self.conv(x, w), noise))


class ToRGB(nn.Module):
    """Features to the image's three channels, added to the doubled image of the stage before."""

    def __init__(self, inputs: int, latent: int, upsample: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, 3, 1, 1))
        if upsample:
            self.upsample = Upsample()
        self.conv = ModulatedConv(inputs, 3, 1, latent, demodulate=False)

    def forward(self, x: Tensor, w: Tensor, image: Tensor | None = None) -> Tensor:
        out = self.conv(x, w) + self.bias
        return out if image is None else out + self.upsample(image)


class ConstantInput(nn.Module):
    """The learned 4x4 start, the same for every image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.randn(1, channels, 4, 4))

    def forward(self, batch: int) -> Tensor:
        return self.input.expand(batch, -1, -1, -1)


class NoiseMaps(nn.Module):
    """The stored noise, one buffer [1, 1, h, w] a layer: two a resolution, one for 4x4."""

    def __init__(self, params: StyleGAN2Params) -> None:
        super().__init__()
        sides = [4, *(side for side in params.resolutions for _ in range(2))]
        for index, side in enumerate(sides):
            self.register_buffer(f"noise_{index}", torch.randn(1, 1, side, side))

    def maps(self) -> list[Tensor]:
        """The maps in the order of the layers."""
        return list(self.buffers())


class StyleGAN2(nn.Module):
    """The generator: a mapping network z -> w and a synthesis network w+ -> image."""

    def __init__(self, params: StyleGAN2Params | None = None) -> None:
        super().__init__()
        self.params = params = params or StyleGAN2Params()
        latent = params.latent
        self.style = nn.Sequential(
            PixelNorm(),
            *(EqualLinear(latent, latent, params.mapping_rate, activate=True) for _ in range(params.mapping_layers)),
        )
        width = params.channels(4)
        self.input = ConstantInput(width)
        self.conv1 = StyledConv(width, width, latent)
        self.to_rgb1 = ToRGB(width, latent, upsample=False)
        self.convs = nn.ModuleList()
        self.to_rgbs = nn.ModuleList()
        for resolution in params.resolutions:
            before, width = width, params.channels(resolution)
            self.convs.append(StyledConv(before, width, latent, upsample=True))
            self.convs.append(StyledConv(width, width, latent))
            self.to_rgbs.append(ToRGB(width, latent))
        self.noises = NoiseMaps(params)

    @property
    def n_latents(self) -> int:
        """Rows of w+."""
        return self.params.n_latents

    def mapping(self, z: Tensor) -> Tensor:
        """z [B, latent], standard normal in training -> w [B, latent]."""
        return self.style(z)

    def synthesize(self, w_plus: Tensor, size: int | None = None) -> Tensor:
        """Render w+ with the stored noise.

        Args:
            w_plus: [B, n_latents, latent].
            size: side of the result in pixels, native by default; a smaller one is the area average.

        Returns:
            [B, 3, size, size] in about [-1, 1].

        Raises:
            ValueError: if the size does not divide the native one.
        """
        native = self.params.size
        size = native if size is None else size
        if size < 1 or native % size:
            raise ValueError(f"size {size} does not divide the generator's {native}")
        image = self(w_plus)
        return image if size == native else functional.avg_pool2d(image, native // size)

    def forward(self, w_plus: Tensor, noise: Sequence[Tensor] | None = None) -> Tensor:
        """Render w+ [B, n_latents, latent] at the native size.

        Args:
            w_plus: one style a layer; the two convolutions of a stage take rows i and i+1, its image layer row i+2,
                which the next stage's first convolution shares.
            noise: one map a convolution in place of the stored ones, each [B or 1, 1 or C, h, w].

        Raises:
            ValueError: for another number of rows or maps than layers.
        """
        noise = self.noises.maps() if noise is None else noise
        if w_plus.shape[1] != self.n_latents or len(noise) != len(self.convs) + 1:
            raise ValueError(
                f"expected {self.n_latents} styles and {len(self.convs) + 1} noise maps, "
                f"not {w_plus.shape[1]} and {len(noise)}"
            )
        styles = w_plus.unbind(1)
        x = self.conv1(self.input(len(w_plus)), styles[0], noise[0])
        image = self.to_rgb1(x, styles[1])
        for stage, to_rgb in enumerate(self.to_rgbs):
            row = 2 * stage + 1
            x = self.convs[2 * stage](x, styles[row], noise[row])
            x = self.convs[2 * stage + 1](x, styles[row + 1], noise[row + 1])
            image = to_rgb(x, styles[row + 2], image)
        return image
