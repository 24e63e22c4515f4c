"""pSp (Richardson et al. 2021) and e4e (Tov et al. 2021): encoders from a face to StyleGAN2's w+.

Both have an IR-SE50 backbone, a feature pyramid and one small head per style. They differ only in how styles are
computed from the heads' outputs. Attribute names and order are those of the published checkpoints
(`encoder.styles.0.convs.0`, `encoder.latlayer1`, `decoder.*`, ...). The checkpoints' `latent_avg` is no parameter: hand
it to :meth:`PSp.encode`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from anonface.models.ir_se50 import IRSE50Params, residual_body, stem
from anonface.models.stylegan2 import EqualLinear, StyleGAN2, StyleGAN2Params

IMAGE = 256
SIDES = (16, 32, 64)


@dataclass(frozen=True)
class StyleEncoderParams:
    """Shape of an encoder.

    Attributes:
        n_styles: rows of w+, 14 for a generator of 256 px, 18 for 1024 px.
        latent: width of a style; the pyramid has as many channels.
        offsets: False is pSp (head i is style i); True is e4e (head 0 is every style, head i >= 1 adds to style i).
        backbone: four stages; the last must be as wide as the latent.

    Raises:
        ValueError: for a backbone of another depth or width.
    """

    n_styles: int = 14
    latent: int = 512
    offsets: bool = False
    backbone: IRSE50Params = field(default_factory=IRSE50Params)

    def __post_init__(self) -> None:
        stages = self.backbone.stages
        if len(stages) != 4 or stages[-1][0] != self.latent:
            raise ValueError(f"a style encoder needs four stages, the last {self.latent} wide, not {stages}")


class StyleHead(nn.Module):
    """Map [B, C, s, s] -> style [B, C]: convolutions of stride 2 down to one pixel, then an equalised linear layer."""

    def __init__(self, side: int, latent: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(int(math.log2(side))):
            layers += [nn.Conv2d(latent, latent, 3, 2, 1), nn.LeakyReLU(0.01)]
        self.convs = nn.Sequential(*layers)
        self.linear = EqualLinear(latent, latent)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.convs(x).flatten(1))


class StyleEncoder(nn.Module):
    """Face [B, 3, 256, 256] -> w+ [B, n_styles, 512], without the generator's mean style."""

    def __init__(self, params: StyleEncoderParams | None = None) -> None:
        super().__init__()
        self.params = params = params or StyleEncoderParams()
        stages = params.backbone.stages
        self.input_layer = stem(params.backbone)
        self.body = residual_body(params.backbone)
        self.styles = nn.ModuleList(StyleHead(SIDES[_level(i)], params.latent) for i in range(params.n_styles))
        self.latlayer1 = nn.Conv2d(stages[2][0], params.latent, 1)
        self.latlayer2 = nn.Conv2d(stages[1][0], params.latent, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.read(self.features(images))

    def features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs of the last three stages, of 16, 32 and 64 px a side: c3, c2, c1."""
        counts = [units for _, units in self.params.backbone.stages]
        ends = [sum(counts[: i + 1]) - 1 for i in range(4)]
        taps = []
        x = self.input_layer(images)
        for index, unit in enumerate(self.body):
            x = unit(x)
            if index in ends[1:]:
                taps.append(x)
        c1, c2, c3 = taps
        return c3, c2, c1

    def read(self, features: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Features -> styles [B, n_styles, 512]."""
        c3, c2, c1 = features
        p2 = _doubled(c3, c2) + self.latlayer1(c2)
        p1 = _doubled(p2, c1) + self.latlayer2(c1)
        pyramid = c3, p2, p1
        styles = torch.stack([head(pyramid[_level(i)]) for i, head in enumerate(self.styles)], dim=1)
        if not self.params.offsets:
            return styles
        base, offsets = styles[:, :1], styles[:, 1:]
        return torch.cat([base, base + offsets], dim=1)


def _level(style: int) -> int:
    """The pyramid level a style's head reads: coarse styles 0-2, middle 3-6, fine from 7 on."""
    return 0 if style < 3 else 1 if style < 7 else 2


def _doubled(x: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=True)


class PSp(nn.Module):
    """A whole pSp or e4e checkpoint: the encoder and the generator it was trained for."""

    def __init__(
        self,
        generator: StyleGAN2Params | None = None,
        offsets: bool = False,
        backbone: IRSE50Params | None = None,
    ) -> None:
        super().__init__()
        generator = generator or StyleGAN2Params()
        backbone = backbone or IRSE50Params()
        self.encoder = StyleEncoder(StyleEncoderParams(generator.n_latents, generator.latent, offsets, backbone))
        self.decoder = StyleGAN2(generator)

    def encode(self, images: Tensor, latent_avg: Tensor | None = None) -> Tensor:
        """Faces [B, 3, 256, 256] in [-1, 1] -> w+ [B, n, 512]; latent_avg [n, 512] is added when given."""
        codes = self.encoder(images)
        return codes if latent_avg is None else codes + latent_avg

    def forward(self, images: Tensor, latent_avg: Tensor | None = None, size: int = IMAGE) -> Tensor:
        """Invert and render again: faces [B, 3, 256, 256] in [-1, 1] -> [B, 3, size, size]."""
        return self.decoder.synthesize(self.encode(images, latent_avg), size)
