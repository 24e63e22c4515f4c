"""Photos of 16 bits a channel, which Pillow narrows without a word: read and written by OpenCV."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from anonface.errors import ImageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

HINT = "convert it to 8 bits a channel, or to a 16-bit RGB PNG, first"

DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # of Pillow
BITS_PER_SAMPLE, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # TIFF tags
PLAIN_TIFF = {(1, (16,)), (2, (16, 16, 16))}  # photometric interpretation and bits: grey, RGB
PNG_DEPTH_AT, PNG_AFTER_IHDR = 24, 33  # where a PNG's IHDR holds its bit depth, and where it ends
PPM_WITH_RANGE, PPM_COMMENT = (b"P2", b"P3", b"P5", b"P6"), re.compile(rb"#.*")  # its fourth word is the greatest value
OPENCV_ORDER = [2, 1, 0, 3]  # BGRA


def read(image: Image, data: bytes, kind: str, label: str) -> NDArray[np.uint16] | None:
    """The channels of an image that has 16 bits in each, grey as RGB.

    Args:
        image: the file as Pillow opened it; its size has been found right.
        data: the file's bytes.
        kind: Pillow's name of its format.
        label: the file's name, for messages.

    Returns:
        uint16 [H, W, 3], or [H, W, 4] with alpha, as they lie in the file; None for an image of 8 bits.

    Raises:
        ImageError: more than 8 bits, and not in a form that can be kept.
    """
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    plain = False
    if kind == "TIFF":
        bits = tags.get(BITS_PER_SAMPLE, (1,))
        depth = max(bits)
        plain = (tags.get(PHOTOMETRIC), bits) in PLAIN_TIFF and set(tags.get(SAMPLE_FORMAT, (1,))) == {1}
    elif kind == "PNG":
        depth = data[PNG_DEPTH_AT]
        plain = "transparency" not in image.info
    elif kind == "PPM" and data[:2] in PPM_WITH_RANGE:
        depth = int(PPM_COMMENT.sub(b"", data[:1024]).split()[3]).bit_length()
    else:
        depth = 8
    if depth <= 8 and image.mode not in DEEP_MODES:
        return None
    import cv2
    import numpy as np

    planes = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if plain else None
    if planes is None or planes.dtype != np.uint16 or planes.shape[1::-1] != image.size:
        raise ImageError(f"{label} has more than 8 bits a channel, in a form that cannot be kept", HINT)
    if planes.ndim == 2:
        planes = np.repeat(planes[..., None], 3, axis=2)
    return cast("NDArray[np.uint16]", planes[..., OPENCV_ORDER[: planes.shape[2]]])


def rounded(deep: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """0..65535 -> the nearest of 0..255."""
    import numpy as np

    return ((deep.astype(np.uint32) + 128) // 257).astype(np.uint8)


def encode_png(deep: NDArray[np.uint16], pixels: NDArray[np.uint8], icc: bytes | None, exif: bytes | None) -> bytes:
    """A 16-bit PNG of ``deep`` where it rounds to ``pixels`` (uint8 [H, W, 3]), and of ``pixels`` where it does not."""
    import cv2
    import numpy as np

    planes = deep.copy()
    changed = (rounded(deep)[..., :3] != pixels).any(2)
    planes[changed, :3] = pixels[changed].astype(np.uint16) * 257
    _, encoded = cv2.imencode(".png", planes[..., OPENCV_ORDER[: planes.shape[2]]], [cv2.IMWRITE_PNG_COMPRESSION, 3])
    data = encoded.tobytes()
    chunks = _chunk(b"iCCP", b"icc\0\0" + zlib.compress(icc)) if icc else b""
    chunks += _chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")) if exif else b""
    return data[:PNG_AFTER_IHDR] + chunks + data[PNG_AFTER_IHDR:]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
