"""A decoded photo: its pixels, their colour profile, and notes on the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.images.jpeg import Coding


@dataclass(frozen=True)
class Photo:
    """A decoded photo.

    Args:
        pixels: uint8 [H, W, 3], RGB, upright; under transparent places too.
        alpha: uint8 [H, W], or None for an opaque photo.
        icc: an RGB colour profile that the pixels refer to, or None.
        format: what the file was, in lower case: "png", "jpeg", "webp", "tiff", ...
        notes: what was converted or left behind, one line each.
        deep: uint16 [H, W, 3], or [H, W, 4] with alpha: what ``pixels`` and ``alpha`` were rounded from, or None for a
            photo of 8 bits a channel.
        exposure: an EXIF block that says how the photo was taken, or None; see :func:`metadata.exposure`.
        grey: the file had one channel for all colours, of 8 bits or of 1.
        coding: how strongly a JPEG file was compressed, where that is known and can be repeated.
    """

    pixels: NDArray[np.uint8]
    alpha: NDArray[np.uint8] | None
    icc: bytes | None
    format: str
    notes: tuple[str, ...] = ()
    deep: NDArray[np.uint16] | None = None
    exposure: bytes | None = None
    grey: bool = False
    coding: Coding | None = None
