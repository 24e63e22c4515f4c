"""What optimisations of a face share: augmentation, resizing, lightness and the learning rate's schedule."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)


def luma(picture: Tensor) -> Tensor:
    """[B, 3, H, W] -> [B, 1, H, W], in the same units."""
    return (picture * picture.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)


def shrink(image: Tensor, side: int) -> Tensor:
    """Area average to ``side`` px; an image of that side is returned as it is."""
    return image if image.shape[-1] == side else F.adaptive_avg_pool2d(image, side)


def schedule(progress: float) -> float:
    """Learning rate over a run, in shares of the highest: a short rise, then a cosine fall to a tenth."""
    if progress < 0.1:
        return 0.2 + 8 * progress
    return 0.55 + 0.45 * math.cos((progress - 0.1) / 0.9 * math.pi)


def augmented(picture: Tensor, step: int) -> Tensor:
    """The picture in another alignment, so that an optimisation meets a code instead of fooling the encoder.

    Plain and jittered pictures alternate: as good as both at every step, in half the time. Shifts and scales follow a
    fixed low-discrepancy sequence: no random state, the same on every device.

    Args:
        picture: [1, 3, R, R].
        step: the number of the step; at even ones the result is the picture itself.

    Returns:
        [1, 3, R, R].
    """
    if step % 2 == 0:
        return picture
    dx, dy, ds = (((step + 1) * phi) % 1 - 0.5 for phi in (0.8191725134, 0.6710436067, 0.5497004779))
    jitter = picture.new_tensor([[[1 + 0.05 * ds, 0, 0.03 * dx], [0, 1 + 0.05 * ds, 0.03 * dy]]])
    grid = F.affine_grid(jitter, list(picture.shape), align_corners=False)
    return F.grid_sample(picture, grid, padding_mode="reflection", align_corners=False)
