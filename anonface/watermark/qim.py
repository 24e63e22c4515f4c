"""A QIM watermark of latents, for the diffusion backend: fine grain holds what the picture does not show of them.

A diffusion model's recovery must start from the latents that anonymization ended with. Those of the finished photo
differ, by the autoencoder, the photo's grid, the soft border and 8 bits, and by the noise that is cleared before the
face is shown. An encoder hardly notices patterns of a few pixels, so these hold the difference. Every cell of the
latents has patterns of its own, one a channel. How much of each the picture holds is added to what the encoder reads.
To the eye it is film grain.

Readings wrap at +-RANGE, so little has to be added whatever the picture already holds (quantisation index modulation,
Chen and Wornell 2001). The patterns are public. Without the key they tell the latents of the new face alone.
"""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

RANGE, MOST = 0.3, 0.25  # of readings, and of what is written: the rest keeps an error from wrapping it
CELL = 4  # px of the grain's own grid a cell, at most: finer grain is less visible, and lost to JPEG
LABEL = b"anonface/v1 grain"


def read(pictures: Tensor, channels: int, side: int, gain: float) -> Tensor:
    """What the grain of pictures holds, [B, ``channels``, ``side``, ``side``] within +-RANGE.

    Args:
        pictures: [B, 3, R, R] in [-1, 1], R a multiple of 4 ``side``; all in colour, or all grey: other patterns.
        gain: latents for one grey level of a pattern, as root of its mean square.
    """
    cell, colours = _cell(pictures, side), _colours(pictures)
    shown = 127.5 * F.adaptive_avg_pool2d(pictures[:, :colours].float(), cell * side)
    pixels = F.unfold(shown, cell, stride=cell)
    patterns = _patterns(channels, side, cell, colours).to(pixels)
    values = torch.einsum("sck,bks->bcs", patterns, pixels) * (gain / math.sqrt(pixels.shape[1]))
    return _wrapped(values.view(-1, channels, side, side))


def write(pictures: Tensor, wanted: Tensor, gain: float, where: Tensor) -> Tensor:
    """What is to be added to pictures [B, 3, R, R], on the grain's own grid, so that :func:`read` finds what is wanted.

    That is exact to the pixel. Resampling to a photo's grid takes some of it away, so writing is repeated.

    Args:
        wanted: [B, C, S, S]; of what goes beyond, :data:`MOST` is written.
        where: the cells that hold it, 0 or 1, broadcast against them.

    Returns:
        [B, 3, n S, n S] in units of ``pictures``, n being :data:`CELL`, or less where they are small.
    """
    channels, side = wanted.shape[1:3]
    missing = _wrapped(wanted.clamp(-MOST, MOST) - read(pictures, channels, side, gain)) * where
    cell, colours = _cell(pictures, side), _colours(pictures)
    patterns = _patterns(channels, side, cell, colours).to(missing)
    pixels = torch.einsum("sck,bcs->bks", patterns, missing.flatten(2)) * (math.sqrt(patterns.shape[2]) / gain / 127.5)
    return F.fold(pixels, cell * side, cell, stride=cell).expand(-1, 3, -1, -1)


def _colours(pictures: Tensor) -> int:
    return 1 if torch.equal(pictures, pictures[:, :1].expand_as(pictures)) else 3


def _cell(pictures: Tensor, side: int) -> int:
    return min(CELL, pictures.shape[-1] // (2 * side))


def _wrapped(values: Tensor) -> Tensor:
    return (values + RANGE).remainder(2 * RANGE) - RANGE


@functools.cache
def _patterns(channels: int, side: int, cell: int, colours: int) -> Tensor:
    """Orthonormal patterns [side^2, channels, colours cell^2] of cells of ``cell`` px, the same everywhere and always.

    They are mixtures of the cosines of one band, which moves no mean colour of a cell, and lies low enough to outlast
    the grid of a photo whose face is as large as half the picture. A small grey face has room for three patterns; the
    other channels' are zero, and hold nothing.
    """
    waves = torch.cos(torch.outer(torch.arange(cell), torch.arange(cell) + 0.5) * math.pi / cell).double()
    waves /= waves.norm(dim=1, keepdim=True)
    band = [
        torch.outer(waves[a], waves[b]).flatten()
        for a in range(cell)
        for b in range(cell)
        if cell / 2 <= max(a, b) < max(0.75 * cell, cell / 2 + 1)
    ]
    basis = torch.block_diag(*[torch.stack(band)] * colours)
    there = min(channels, len(basis))
    stream = np.frombuffer(hashlib.shake_256(LABEL).digest(4 * side * side * len(basis) * there), "<u4") / 2**32 - 0.5
    mixed, triangle = torch.linalg.qr(torch.from_numpy(stream).view(side * side, len(basis), there))
    mixed = mixed * triangle.diagonal(dim1=1, dim2=2).sign()[:, None]
    return F.pad(torch.einsum("sdc,dk->sck", mixed, basis).float(), (0, 0, 0, channels - there))
