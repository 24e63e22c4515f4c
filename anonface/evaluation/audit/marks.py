"""Photos whose metadata can be told wherever they turn up."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MARK = "CANARY-5e0f1a"
DESCRIPTION, ARTIST, EXIF, GPS, MAKER_NOTE, GPS_AREA = 0x010E, 0x013B, 0x8769, 0x8825, 0x927C, 0x001C


def marked(pixels: NDArray[np.uint8]) -> bytes:
    """A JPEG of these pixels that names MARK in EXIF, GPS, maker note, XMP, comment and behind its end."""
    exif = Image.Exif()
    exif[DESCRIPTION] = exif[ARTIST] = MARK
    exif.get_ifd(EXIF)[MAKER_NOTE] = MARK.encode()
    exif.get_ifd(GPS)[GPS_AREA] = MARK.encode("utf-16-le")
    file = io.BytesIO()
    xmp = f"<x:xmpmeta xmlns:x='adobe:ns:meta/'>{MARK}</x:xmpmeta>".encode()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, exif=exif, xmp=xmp, comment=MARK.encode())
    return file.getvalue() + MARK.encode()
