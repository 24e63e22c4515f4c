"""Colour transfer: the photo's light, skin tone, saturation and contrast on a render, from blurred colours and two
numbers an octave alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.faces.augmentation import luma

TONE_GRID = 16  # cells along the side on which light is compared
HUE_GRID = 32  # and on which the variation of hues is measured: a watermark's detail is finer
TONE_GAIN = 2.5  # the most by which light is raised or lowered
LIFT = 1.2  # of pixels in [-1, 1]: black reflects a little
COARSEST = 8  # px, the side of the crop at which contrast is no longer compared
MOST_CONTRAST = 2.0  # the most by which it is raised or lowered
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


def match_contrast(render: Tensor, face: Tensor, mask: Tensor) -> Tensor:
    """Give the render, octave by octave, the contrast that the face has within the mask.

    In a sharp photo eyes, lashes and skin get as sharp, in a soft one they stay soft. Light and hues count apart, as
    cameras and JPEG smooth hues more. Two numbers an octave pass from the photo to the render.

    Pictures are [B, 3, R, R], about -1 to 1, masks [B, 1, R, R] in 0..1; R is COARSEST times a power of 2.
    """
    if render.shape[-1] <= COARSEST:
        return render
    coarse, photo, cover = (F.avg_pool2d(picture, 2) for picture in (render, face, mask))
    ours, theirs = render - _doubled(coarse), face - _doubled(photo)
    light, wanted = luma(ours), luma(theirs)
    result = _doubled(match_contrast(coarse, photo, cover))
    for part, goal in ((light, wanted), (ours - light, theirs - wanted)):
        contrast = _contrast(goal, mask) / _contrast(part, mask)
        result = result + contrast.clamp(1 / MOST_CONTRAST, MOST_CONTRAST) * part
    return result


def _doubled(picture: Tensor) -> Tensor:
    return F.interpolate(picture, scale_factor=2, mode="bilinear")


def _contrast(detail: Tensor, mask: Tensor) -> Tensor:
    """Root mean square of a detail [B, C, R, R] where the mask is whole, [B, 1, 1, 1]."""
    inside = (mask > 0.9).to(detail)
    squares = (detail.square() * inside).sum((1, 2, 3), keepdim=True)
    return (squares / (detail.shape[1] * inside.sum((1, 2, 3), keepdim=True) + 1e-6) + 1e-7).sqrt()


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
