"""How near a picture of a face is to another, pixel by pixel, within the face alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_PSNR = 100.0  # dB, said of equal pixels too


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Peak signal-to-noise ratio in dB over the pixels [H, W, 3] that ``where`` [H, W] names; NaN where it names none.

    10 log10(255^2 / MSE), at most ``MOST_PSNR``, so that means stay finite.
    """
    if not where.any():
        return float("nan")
    error = np.mean((a[where].astype(np.float64) - b[where]) ** 2)
    return float(min(MOST_PSNR, 10 * np.log10(255**2 / error))) if error else MOST_PSNR


def ssim(a: NDArray[np.uint8], b: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Structural similarity (Wang et al. 2004: Gaussian windows of deviation 1.5), each channel alone, as the mean of
    its map over the pixels that ``where`` names; NaN where it names none.
    """
    from skimage.metrics import structural_similarity  # of the extra `evaluation`; contact sheets do without

    if not where.any():
        return float("nan")
    _, local = structural_similarity(
        a, b, channel_axis=2, data_range=255, full=True, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    return float(local[where].mean())


def tone(a: NDArray[np.uint8], b: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Difference of the mean colours of the pixels that ``where`` names, by CIEDE2000; about 2 is just seen; NaN where
    it names none."""
    from skimage.color import deltaE_ciede2000, rgb2lab

    if not where.any():
        return float("nan")
    means = [picture[where].mean(0) / 255 for picture in (a, b)]
    return float(deltaE_ciede2000(*(rgb2lab(mean[None])[0] for mean in means)))
