"""Photos of 16 bits per channel, read and written by OpenCV; Pillow reduces them silently."""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Any, cast

from anonface.errors import ImageError
from anonface.images import native, tiff

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

HINT = "convert it to 8 bits a channel, or to a 16-bit RGB PNG, first"

DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # of Pillow
PNG_DEPTH_AT, PNG_AFTER_IHDR = 24, 33  # where a PNG's IHDR holds its bit depth, and where it ends
PPM_WITH_RANGE, PPM_COMMENT = (b"P2", b"P3", b"P5", b"P6"), re.compile(rb"#.*")  # its fourth word is the greatest value
OPENCV_ORDER = [2, 1, 0, 3]  # BGRA
OF_OPENCV = re.compile(r"^$|^libpng |\[ ?\w+:\d+@\d+\.\d+\]")  # its messages about files


def read(image: Image, data: bytes, page: tiff.Page | None, label: str) -> NDArray[np.uint16] | None:
    """The channels of an image that has 16 bits in each, grey as RGB.

    Args:
        image: the file as Pillow opened it; its size has been found right.
        data: the file's bytes.
        page: of a TIFF file, which of its directories is the photo.
        label: the file's name, for messages.

    Returns:
        uint16 [H, W, 3], or [H, W, 4] with alpha, as they lie in the file; None for an image of 8 bits.

    Raises:
        ImageError: more than 8 bits, and not in a form that can be kept.
    """
    import numpy as np

    plain = False
    if page:
        depth, plain = page.bits, True  # other pages are refused by tiff.page
    elif image.format == "PNG":
        depth = data[PNG_DEPTH_AT]
        plain = "transparency" not in image.info
    elif image.format == "PPM" and data[:2] in PPM_WITH_RANGE:
        depth = int(PPM_COMMENT.sub(b"", data[:1024]).split()[3]).bit_length()
    else:
        depth = 8
    if depth <= 8 and image.mode not in DEEP_MODES:
        return None
    if not plain:
        raise ImageError(f"{label} has more than 8 bits a channel, in a form that cannot be kept", HINT)
    layers = [_unpacked(file) for file in (tiff.bare(data, page) if page else [data])]
    size = (page.one(tiff.WIDTH, 0), page.one(tiff.HEIGHT, 0)) if page else image.size
    whole = [layer for layer in layers if layer is not None and layer.dtype == np.uint16]
    if len(whole) < len(layers) or any(layer.shape[1::-1] != size for layer in whole):
        raise ImageError(f"{label} is truncated or damaged (its 16-bit channels)", "use an intact copy")
    if len(whole) > 1:
        return np.stack(whole, axis=2)
    planes = whole[0]
    if planes.ndim == 2:
        planes = np.repeat(planes[..., None], 3, axis=2)
    return cast("NDArray[np.uint16]", planes[..., OPENCV_ORDER[: planes.shape[2]]])


def _unpacked(data: bytes) -> NDArray[Any] | None:
    """An image file read by OpenCV, without its messages on standard error."""
    import cv2
    import numpy as np

    with native.messages() as lines:
        planes = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    native.pass_on([line for line in lines if not OF_OPENCV.search(line)])
    return cast("NDArray[Any] | None", planes)


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
