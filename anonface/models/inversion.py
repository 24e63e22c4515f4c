"""The encoder that DBAF and HFORD start from: e4e's form (Tov et al. 2021) on MobileNetV2, for the default generator.

The encoder gives fourteen codes, as many as StyleGAN2 has at 256 px, and three feature maps of 16, 32 and 64 px a side,
which hold details that codes cannot. As in e4e, head 0 gives the base of all codes, and head i >= 1 an offset of code
i.

Codes are latents in whitened principal coordinates of the generator's w, so that all coordinates have unit variance.
MobileStyleGAN has more latents than StyleGAN2: each takes the code of the corresponding StyleGAN2 layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.attribute_encoder import MobileNetV2Features, PrincipalLatents

# The code of each of MobileStyleGAN's 23 latents. Upsampling and the first convolution of a level are one layer in
# StyleGAN2. All levels beyond 256 px take the last code.
CODE_OF_LATENT = (0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10, 11, 11, 12, 13, 13, 13, 13)
SIDES = (16, 32, 64)  # px of the feature maps at the encoder's input size
WIDTHS = (96, 32, 24)  # their channels

Features = tuple[Tensor, Tensor, Tensor]
"""Maps of 16, 32 and 64 px a side, of WIDTHS channels: c3, c2 and c1."""


@dataclass(frozen=True)
class InversionParams:
    """``groups``: how many codes are read at each depth: coarse at stride 32, medium at 16, fine at 8.

    The encoder predicts the first ``coordinates`` of each code and sets the others to 0, because faces do not show
    them.
    """

    groups: tuple[int, int, int] = (4, 4, 6)
    squeeze: int = 64
    hidden: int = 512
    grid: int = 4
    style: int = 512
    coordinates: int = 192


class InversionEncoder(PrincipalLatents):
    """Faces [B, 3, R, R] in [-1, 1] -> codes [B, 14, 512] and features. The input is reduced to 256 px."""

    INPUT = 256
    TAPS = (3, 6, 13, 17)  # MobileNetV2's last blocks at strides 4, 8, 16 and 32
    HEAD_INPUTS = (320, 96, 32)  # channels of the maps from which codes are read, coarse first

    def __init__(self, params: InversionParams | None = None) -> None:
        p = params or InversionParams()
        super().__init__(p.style)
        self.params = p
        self.backbone = MobileNetV2Features(self.TAPS)
        self.squeeze = nn.ModuleList(nn.Conv2d(width, p.squeeze, 1) for width in self.HEAD_INPUTS)
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Linear(p.squeeze * p.grid**2, p.hidden),
                nn.LeakyReLU(0.2),
                nn.Linear(p.hidden, count * min(p.coordinates, p.style)),
            )
            for count in p.groups
        )
        with torch.no_grad():  # a fresh encoder starts near the mean face
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
            predicted = head(x.flatten(1)).unflatten(1, (-1, min(self.params.coordinates, self.params.style)))
            offsets.append(F.pad(predicted, (0, self.params.style - predicted.shape[2])))
        base, others = torch.cat(offsets, dim=1).tensor_split([1], dim=1)
        return torch.cat([base, base + others], dim=1), (c3, c2, c1)

    def to_latents(self, codes: Tensor) -> Tensor:
        """Codes [B, 14, 512] -> the generator's W+ [B, 23, 512]."""
        return self.to_w(codes)[:, list(CODE_OF_LATENT)]
