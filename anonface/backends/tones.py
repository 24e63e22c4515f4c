"""The photo's light and skin tone on a render: colours as they are when blurred, and nothing finer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.looks import luma

TONE_GRID = 16  # cells along the side on which light is compared
MONOCHROME = (0.01, 0.03)  # spread of a face's hues: below the first the photo is grey or tinted, above the second not
TONE_GAIN = 2.5  # the most by which light is raised or lowered
LIFT = 1.2  # of pixels in [-1, 1]: black reflects a little
TONE_REACH = 2.0  # standard deviation of the blur, in cells


def match_tones(render: Tensor, face: Tensor, mask: Tensor) -> Tensor:
    """Scale the render's colours so that, blurred as far as light varies, they are the face's within the mask.

    Light multiplies: what is dark, brows and lashes, stays dark under more of it.

    Only what survives a blur of an eighth of the crop's side passes from the photo to the render: light and skin tone.
    In a photo without hues of its own, grey or of one tint, the render loses its hues too.
    """
    render = _as_colourful(render, face, mask)
    photo, own = (_blurred(picture + LIFT, mask) for picture in (face, render))
    gain = ((photo + 0.02) / (own + 0.02)).clamp(1 / TONE_GAIN, TONE_GAIN)
    return (render + LIFT) * F.interpolate(gain, render.shape[-2:], mode="bicubic") - LIFT


def _as_colourful(render: Tensor, face: Tensor, mask: Tensor) -> Tensor:
    hues = face - luma(face)
    area = mask.sum((2, 3), keepdim=True).clamp_min(1.0)
    tint = (hues * mask).sum((2, 3), keepdim=True) / area
    spread = (((hues - tint).square() * mask).sum((1, 2, 3), keepdim=True) / (3 * area)).sqrt()
    low, high = MONOCHROME
    grey = luma(render)
    return grey + ((spread - low) / (high - low)).clamp(0, 1) * (render - grey)


def _blurred(picture: Tensor, mask: Tensor) -> Tensor:
    """Masked Gaussian blur on the tone grid: [B, 3, R, R] -> [B, 3, 16, 16]."""
    weight = F.adaptive_avg_pool2d(mask, TONE_GRID)
    values = F.adaptive_avg_pool2d(picture * mask, TONE_GRID)
    cells = torch.arange(TONE_GRID, device=picture.device, dtype=picture.dtype)
    kernel = torch.exp(-0.5 * ((cells[:, None] - cells[None]) / TONE_REACH) ** 2)
    blur = lambda x: kernel @ x @ kernel  # noqa: E731
    return blur(values) / (blur(weight) + 1e-3)
