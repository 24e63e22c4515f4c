"""Super-resolution by a factor of 2: restores detail that the autoencoder's pictures lack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COARSE = 16  # px of the result: coarser changes are removed


@dataclass(frozen=True)
class SharpenerParams:
    """``channels`` and ``blocks`` of the trunk; ``fold``: px of the input per cell of the trunk, along a side."""

    channels: int = 64
    blocks: int = 8
    fold: int = 2


class SharpenerBlock(nn.Module):
    """A residual block of two convolutions, initially scaled by a tenth (EDSR, Lim et al. 2017)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        with torch.no_grad():
            self.second.weight.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.leaky_relu(self.first(x), 0.2))


class Sharpener(nn.Module):
    """Pictures [B, 3, R, R] in [-1, 1] -> [B, 3, 2R, 2R]: bilinear enlargement plus predicted detail.

    Variation coarser than squares of COARSE px is removed from the detail, for each pixel position of a trunk cell
    separately. So light and colours stay, and no regular pattern of the cells appears. R is a multiple of 8. There is
    no normalisation, so a crop is sharpened in the same way as that part of the whole picture.
    """

    factor = 2

    def __init__(self, params: SharpenerParams | None = None) -> None:
        super().__init__()
        p = self.params = params or SharpenerParams()
        self.open = nn.Conv2d(3 * p.fold**2, p.channels, 3, padding=1)
        self.blocks = nn.Sequential(*(SharpenerBlock(p.channels) for _ in range(p.blocks)))
        self.close = nn.Conv2d(p.channels, 3 * (self.factor * p.fold) ** 2, 3, padding=1)
        for parameter in self.close.parameters():
            nn.init.zeros_(parameter)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.open(F.pixel_unshuffle(pictures, self.params.fold))
        added = self.close(x + self.blocks(x))
        coarse = COARSE // (self.factor * self.params.fold)
        added = added - F.interpolate(F.avg_pool2d(added, coarse), scale_factor=coarse, mode="bilinear")
        added = F.pixel_shuffle(added, self.factor * self.params.fold)
        return F.interpolate(pictures, scale_factor=self.factor, mode="bilinear") + added
