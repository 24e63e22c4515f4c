"""Detail that an autoencoder's pictures lack: from a soft face to a sharp one of twice the side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COARSE = 16  # px of what is made


@dataclass(frozen=True)
class SharpenerParams:
    """``channels`` and ``blocks`` of the trunk; ``fold``: how many px of a side lie in one of its places."""

    channels: int = 64
    blocks: int = 8
    fold: int = 2


class SharpenerBlock(nn.Module):
    """Two convolutions that are added to what passes by, a tenth as strong at first (EDSR, Lim et al. 2017)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        with torch.no_grad():
            self.second.weight.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.leaky_relu(self.first(x), 0.2))


class Sharpener(nn.Module):
    """Pictures [B, 3, R, R] in [-1, 1] -> [B, 3, 2R, 2R]: the same enlarged evenly, and the detail that is added.

    What varies more slowly than squares of COARSE px is taken out of it, of each of the pixels that lie in one place of
    the trunk: light and colours stay, and it cannot weave. R is a multiple of 8. Nothing in it is normalised, so a crop
    is sharpened like the same place of a whole picture.
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
