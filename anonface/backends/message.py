"""Messages: numbers of any size under the veil, of which a reader knows whether the key fits.

Before the numbers stand their size and a few that are always one. Under another key those are noise, and so is the
rest, which would only spoil what is drawn without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anonface.backends import veil
from anonface.backends.watermark import Reading
from anonface.keys import FaceKey

ONES = 64
LEGIBLE = 0.35  # error of a reading, in shares of the circle's half, above which it is noise
FITS = 0.6  # mean of the ones from which the key fits; of another key it is 0 give or take 0.22


@dataclass(frozen=True)
class Kind:
    """What numbers are said of: its label, and the middle and the logarithm's spread of their root mean square."""

    name: str
    middle: float
    spread: float

    def length(self, count: int) -> int:
        """How many numbers say ``count`` of this kind."""
        return ONES + 1 + count

    def packed(self, numbers: Tensor, key: FaceKey) -> Tensor:
        """Numbers [n] -> what is said, [length(n)] in [-1, 1)."""
        size = numbers.square().mean().sqrt().clamp_min(1e-3)
        told = ((size / self.middle).log() / self.spread).clamp(-veil.REACH, veil.REACH)
        return veil.drop(torch.cat([numbers.new_ones(ONES), told[None], numbers / size]), key, self.name)

    def unpacked(self, said: Reading, key: FaceKey) -> Tensor | None:
        """The numbers again, float64, less of them the less clearly they are read; None if not, or of another key."""
        if said.error > LEGIBLE:
            return None
        values = veil.lift(said.values, key, self.name)
        if values[:ONES].mean() < FITS:
            return None
        size, shape = self.middle * (self.spread * values[ONES]).exp(), values[ONES + 1 :]
        noise = (said.error * veil.REACH / veil.MOST) ** 2
        # of root mean square 1, unless nothing was there to be said
        return size * shape / shape.square().mean().sqrt().clamp_min(0.5) / (1 + noise) ** 0.5
