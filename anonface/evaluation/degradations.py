"""Degradations of an anonymized photo before recovery: compression, resizing, cropping, brightness, noise.

Each is a pure function of pixels, and of a seed where it draws noise.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageFilter

Pixels = NDArray[np.uint8]
Box = NDArray[np.float64]


@dataclass(frozen=True)
class Degradation:
    """One change of a photo.

    Attributes:
        title: for the report.
        change: pixels [H, W, 3] and a seed -> new pixels; does not change its argument.
        cut: share of the width and of the height cropped at each side.
        scale: new side over old side, after cropping.
    """

    title: str
    change: Callable[[Pixels, int], Pixels]
    cut: float = 0.0
    scale: float = 1.0

    def __call__(self, pixels: Pixels, seed: int = 0) -> Pixels:
        return self.change(pixels, seed)

    def moved(self, box: ArrayLike, shape: Sequence[int]) -> Box:
        """The place, afterwards, of a box (x, y, w, h) of a photo of shape (H, W, ...)."""
        x, y, w, h = np.asarray(box, dtype=np.float64)
        left, top = round(self.cut * shape[1]), round(self.cut * shape[0])
        return np.array([x - left, y - top, w, h]) * self.scale


def _saved(pixels: Pixels, format: str, **options: Any) -> Pixels:
    """Written and read by Pillow, since ``images`` writes with as little loss as possible."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    with Image.open(file) as image:
        return np.array(image.convert("RGB"))


def _jpeg(quality: int, pixels: Pixels, seed: int) -> Pixels:
    return _saved(pixels, "JPEG", quality=quality, subsampling="4:2:0")


def _webp(quality: int, pixels: Pixels, seed: int) -> Pixels:
    return _saved(pixels, "WEBP", quality=quality)


def _resized(scale: float, pixels: Pixels, seed: int) -> Pixels:
    height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


def _cropped(share: float, pixels: Pixels, seed: int) -> Pixels:
    height, width = pixels.shape[:2]
    top, left = round(share * height), round(share * width)
    return pixels[top : height - top, left : width - left].copy()


def _lightened(gain: float, pixels: Pixels, seed: int) -> Pixels:
    return np.rint(pixels * gain).clip(0, 255).astype(np.uint8)


def _noisy(deviation: float, pixels: Pixels, seed: int) -> Pixels:
    noise = np.random.default_rng(seed).normal(0, deviation, pixels.shape)
    return np.rint(pixels + noise).clip(0, 255).astype(np.uint8)


def _sent(first: int, second: int, pixels: Pixels, seed: int) -> Pixels:
    """Compressed by the sender's phone and again by the messenger."""
    return _jpeg(second, _jpeg(first, pixels, seed), seed)


def _screenshot(pixels: Pixels, seed: int) -> Pixels:
    """Resized and sharpened by the viewer, then saved without loss."""
    height, width = (max(1, round(side * SCREEN)) for side in pixels.shape[:2])
    shown = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.array(shown.filter(ImageFilter.UnsharpMask(radius=1, percent=40, threshold=0)))


def _in_company(pixels: Pixels, seed: int) -> Pixels:
    """Joined with its mirror image, so that two faces are recovered at once."""
    return np.concatenate([pixels, pixels[:, ::-1]], axis=1)


SCREEN = 0.85  # of a photo's side, on a screen

# JPEGs have halved colour (4:2:0), as cameras and messengers write them.
DEGRADATIONS: dict[str, Degradation] = {
    **{f"jpeg{q}": Degradation(f"JPEG {q}", partial(_jpeg, q)) for q in (95, 90, 85, 70, 50)},
    "webp80": Degradation("WebP 80", partial(_webp, 80)),
    "resize75": Degradation("resizing to 75 %", partial(_resized, 0.75), scale=0.75),
    "resize50": Degradation("resizing to 50 %", partial(_resized, 0.5), scale=0.5),
    "crop10": Degradation("cropping by 10 % (5 % a side)", partial(_cropped, 0.05), cut=0.05),
    "brighter": Degradation("brightening by 20 %", partial(_lightened, 1.2)),
    "darker": Degradation("darkening by 20 %", partial(_lightened, 0.8)),
    "noise": Degradation("noise of 5 grey levels", partial(_noisy, 5.0)),
    "messenger": Degradation("JPEG 85, then JPEG 70", partial(_sent, 85, 70)),
    "screenshot": Degradation("a screenshot at 85 %", _screenshot, scale=SCREEN),
    "company": Degradation("being set beside its mirror image", _in_company),
}
