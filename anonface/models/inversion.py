"""The encoder that DBAF and HFORD start from: e4e's form (Tov et al. 2021) on MobileNetV2, for the default generator.

A face becomes fourteen codes, as StyleGAN2 has at 256 px, and three feature maps, of 16, 32 and 64 px a side, which
show what a code cannot hold. As in e4e, head 0 is every code, and head i >= 1 adds to code i.

Codes are latents in whitened principal coordinates of the generator's w, so that a unit step means the same in every
direction; MobileStyleGAN's more numerous latents take the code that stands at their place in StyleGAN2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.attribute_encoder import MobileNetV2Features, PrincipalLatents

# For each of MobileStyleGAN's 23 latents the number of its code. Up-sampling and the first convolution of a level are
# one layer of StyleGAN2; beyond 256 px the last code stays.
CODE_OF_LATENT = (0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10, 11, 11, 12, 13, 13, 13, 13)
SIDES = (16, 32, 64)  # px of the feature maps at the encoder's input size
WIDTHS = (96, 32, 24)  # their channels

Features = tuple[Tensor, Tensor, Tensor]
"""Maps of 16, 32 and 64 px a side, of WIDTHS channels: c3, c2 and c1."""


@dataclass(frozen=True)
class InversionParams:
    """``groups`` says how many codes each depth of the backbone gives: coarse from stride 32, medium 16, fine 8.

    Of each code the first ``told`` coordinates are read; no face shows the rest.
    """

    groups: tuple[int, int, int] = (4, 4, 6)
    squeeze: int = 64
    hidden: int = 512
    grid: int = 4
    style: int = 512
    told: int = 192


class InversionEncoder(PrincipalLatents):
    """Faces [B, 3, R, R] in [-1, 1] -> codes [B, 14, 512] and features. Looks at 256 px."""

    INPUT = 256
    TAPS = (3, 6, 13, 17)  # MobileNetV2's last blocks at strides 4, 8, 16 and 32
    READ = (320, 96, 32)  # channels of the maps that codes are read from, coarse first

    def __init__(self, params: InversionParams | None = None) -> None:
        p = params or InversionParams()
        super().__init__(p.style)
        self.params = p
        self.backbone = MobileNetV2Features(self.TAPS)
        self.squeeze = nn.ModuleList(nn.Conv2d(width, p.squeeze, 1) for width in self.READ)
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Linear(p.squeeze * p.grid**2, p.hidden),
                nn.LeakyReLU(0.2),
                nn.Linear(p.hidden, count * min(p.told, p.style)),
            )
            for count in p.groups
        )
        with torch.no_grad():  # a fresh encoder starts at the mean face, faintly
            for head in self.heads:
                last = head[-1]  # type: ignore[index]
                last.weight.mul_(0.1)
                last.bias.zero_()

    def forward(self, faces: Tensor) -> tuple[Tensor, Features]:
        if faces.shape[-1] != self.INPUT:
            faces = F.adaptive_avg_pool2d(faces, self.INPUT)
        c1, c2, c3, deepest = self.backbone(faces)
        offsets = []
        for seen, squeeze, head in zip((deepest, c3, c2), self.squeeze, self.heads, strict=True):
            x = F.adaptive_avg_pool2d(F.leaky_relu(squeeze(seen), 0.2), self.params.grid)
            told = head(x.flatten(1)).unflatten(1, (-1, min(self.params.told, self.params.style)))
            offsets.append(F.pad(told, (0, self.params.style - told.shape[2])))
        base, others = torch.cat(offsets, dim=1).tensor_split([1], dim=1)
        return torch.cat([base, base + others], dim=1), (c3, c2, c1)

    def to_latents(self, codes: Tensor) -> Tensor:
        """Codes [B, 14, 512] -> the generator's W+ [B, 23, 512]."""
        return self.to_w(codes)[:, list(CODE_OF_LATENT)]
