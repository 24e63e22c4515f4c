"""Colour transfer: the photo's light, skin tone and saturation on a render, from blurred colours alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.faces.augmentation import luma

TONE_GRID = 16  # cells along the side on which light is compared
HUE_GRID = 32  # and on which the variation of hues is measured: a watermark's detail is finer
TONE_GAIN = 2.5  # the most by which light is raised or lowered
LIFT = 1.2  # of pixels in [-1, 1]: black reflects a little
TONE_REACH = 2.0  # standard deviation of the blur, in cells


def match_tones(render: Tensor, face: Tensor, mask: Tensor) -> Tensor:
    """Scale the render's colours so that, blurred, they equal the face's within the mask.

    Light multiplies, so brows and lashes stay dark under more of it. Only what survives a blur of an eighth of the
    crop's side passes from the photo to the render: light and skin tone. The render's hues are reduced to vary no more
    than the photo's: in a grey photo not at all.
    """
    photo, own = (_blurred(picture + LIFT, mask) for picture in (face, render))
    gain = ((photo + 0.02) / (own + 0.02)).clamp(1 / TONE_GAIN, TONE_GAIN)
    gain, tint = (F.interpolate(cells, render.shape[-2:], mode="bicubic") for cells in (gain, photo / luma(photo)))
    toned = (render + LIFT) * gain
    plain = luma(toned) * tint
    theirs, ours = _spread(face + LIFT - luma(face + LIFT) * tint, mask), _spread(toned - plain, mask)
    return plain + (theirs / ours).clamp_max(1.0) * (toned - plain) - LIFT


def _spread(hues: Tensor, mask: Tensor) -> Tensor:
    """Root mean square of hues on the grid, within the mask, [B, 1, 1, 1]."""
    cover = F.adaptive_avg_pool2d(mask, HUE_GRID)
    cells = F.adaptive_avg_pool2d(hues * mask, HUE_GRID)
    area = cover.square().sum((1, 2, 3), keepdim=True) + 1e-3
    return (cells.square().mean(1, keepdim=True).sum((1, 2, 3), keepdim=True) / area + 1e-8).sqrt()


def _blurred(picture: Tensor, mask: Tensor) -> Tensor:
    """Masked Gaussian blur on the tone grid: [B, 3, R, R] -> [B, 3, 16, 16]."""
    weight = F.adaptive_avg_pool2d(mask, TONE_GRID)
    values = F.adaptive_avg_pool2d(picture * mask, TONE_GRID)
    cells = torch.arange(TONE_GRID, device=picture.device, dtype=picture.dtype)
    kernel = torch.exp(-0.5 * ((cells[:, None] - cells[None]) / TONE_REACH) ** 2)
    blur = lambda x: kernel @ x @ kernel  # noqa: E731
    return blur(values) / (blur(weight) + 1e-3)
