"""Photos -> the bytes of image files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from anonface.errors import LimitError, UsageError
from anonface.images import depth
from anonface.images.jpeg import Coding
from anonface.images.photo import Photo

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUALITY = 95  # of JPEG
SIDE_LIMITS = {"png": 2**31 - 1, "webp": 16_383, "jpeg": 65_535}  # px, of the formats that can be written


def encode_photo(
    photo: Photo, format: str = "png", quality: int | None = QUALITY, keep_metadata: bool = False
) -> bytes:
    """Photo -> the bytes of an image file, with its colour profile and no other metadata.

    Where ``photo.deep`` rounds to ``photo.pixels``, a PNG holds the 16 bits; other formats have 8.

    Args:
        format: "png" or "webp" (both lossless), or "jpeg".
        quality: of JPEG, 1 to 100, with colours in full size (4:4:4). None compresses as the photo's own JPEG file was,
            or by 95.
        keep_metadata: write ``photo.exposure`` too.

    Raises:
        UsageError: unknown format, bad quality, or JPEG for a photo with alpha.
        LimitError: more pixels a side than the format can hold.
    """
    import numpy as np
    from PIL import Image

    if format not in SIDE_LIMITS:
        raise UsageError(f"unknown output format {format!r}", f"choose one of {', '.join(SIDE_LIMITS)}")
    if quality is not None and not 1 <= quality <= 100:
        raise UsageError(f"quality {quality} is not between 1 and 100")
    if format == "jpeg" and photo.alpha is not None:
        raise UsageError("JPEG cannot hold this photo's transparency", "write PNG or WebP")
    if max(photo.pixels.shape) > SIDE_LIMITS[format]:
        raise LimitError(f"{format} holds at most {SIDE_LIMITS[format]} pixels a side", "write PNG")
    exif = photo.exposure if keep_metadata else None
    if photo.deep is not None and format == "png":
        return depth.encode_png(photo.deep, photo.pixels, photo.icc, exif)
    colours = photo.pixels
    if photo.grey and format != "webp" and (colours == colours[..., :1]).all():
        colours = colours[..., 0]
    planes = colours if photo.alpha is None else np.dstack([colours, photo.alpha])
    coding = photo.coding if quality is None and photo.coding else Coding(quality or QUALITY, "4:4:4")
    options: dict[str, dict[str, Any]] = {
        "png": {"compress_level": 3},  # a third of level 6's time for 2 % more bytes
        "webp": {"lossless": True, "exact": True, "method": 0},
        "jpeg": coding._asdict(),
    }
    if exif:
        options[format]["exif"] = exif
    buffer = io.BytesIO()
    Image.fromarray(planes).save(buffer, format.upper(), icc_profile=photo.icc, **options[format])
    return buffer.getvalue()


def encode_labels(labels: NDArray[Any]) -> bytes:
    """A map of numbers [H, W], uint8 or uint16, -> the bytes of a grey PNG with these values."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(labels).save(buffer, "PNG")
    return buffer.getvalue()
