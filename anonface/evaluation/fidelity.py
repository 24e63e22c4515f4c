"""PSNR, SSIM and skin tone difference between two pictures, within the face alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_PSNR = 100.0  # dB, also of equal pixels


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Peak signal-to-noise ratio in dB over the pixels [H, W, 3] of mask ``where`` [H, W]; NaN for an empty mask.

    10 log10(255^2 / MSE), at most ``MOST_PSNR``, so that means stay finite.
    """
    if not where.any():
        return float("nan")
    error = np.mean((a[where].astype(np.float64) - b[where]) ** 2)
    return float(min(MOST_PSNR, 10 * np.log10(255**2 / error))) if error else MOST_PSNR


def ssim(a: NDArray[np.uint8], b: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Structural similarity (Wang et al. 2004, Gaussian windows of sigma 1.5) by channel, averaged over the mask; NaN
    for an empty mask."""
    from skimage.metrics import structural_similarity  # of the extra `evaluation`, which contact sheets do not need

    if not where.any():
        return float("nan")
    _, local = structural_similarity(
        a, b, channel_axis=2, data_range=255, full=True, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    return float(local[where].mean())


def tone(a: NDArray[np.uint8], b: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """CIEDE2000 between the mean colours within the mask (about 2 is just visible); NaN for an empty mask."""
    from skimage.color import deltaE_ciede2000, rgb2lab

    if not where.any():
        return float("nan")
    means = [picture[where].mean(0) / 255 for picture in (a, b)]
    return float(deltaE_ciede2000(*(rgb2lab(mean[None])[0] for mean in means)))
