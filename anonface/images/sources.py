"""Sources of photos: a path, a file's bytes, an open file, a PIL image, or an array of pixels."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Union

import numpy as np
from numpy.typing import NDArray

from anonface.errors import AnonfaceError, ImageError, UsageError
from anonface.images import MAX_FILE_BYTES, Photo, read_file, read_photo

if TYPE_CHECKING:
    from PIL.Image import Image

Source = Union[NDArray[np.uint8], str, "os.PathLike[str]", bytes, bytearray, memoryview, IO[bytes], "Image"]
"""Any of these; bytes are the content of a file, never its name."""

_ACCEPTED = "give a path, the bytes of a file, a file opened in binary mode, a PIL image, or uint8 pixels [H, W, 3]"
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_RGB_MODES = ("PA", "YCbCr", "HSV", "RGBX", "RGBa", "La")


def is_file(source: Source) -> bool:
    """Whether a source is a file, of which bytes are known, and not mere pixels.

    Raises:
        UsageError: it is nothing that a photo can be taken from.
    """
    if isinstance(source, np.ndarray) or _is_image(source):
        return False
    if isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)) or hasattr(source, "read"):
        return True
    raise UsageError(f"a {type(source).__name__} is no photo", _ACCEPTED)


def name_of(source: Source) -> Path | None:
    """The file that a source is or was read from, if known."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source)
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    return Path(name) if isinstance(name, str) and os.path.lexists(name) else None


def read_source(source: Source) -> bytes:
    """The bytes of a file.

    Raises:
        ImageError: it cannot be read.
        LimitError: it has more than 256 MiB.
        UsageError: an open file gives text.
    """
    if isinstance(source, (str, os.PathLike)):
        return read_file(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    assert not isinstance(source, np.ndarray) and not _is_image(source)
    try:
        data = source.read(MAX_FILE_BYTES + 1)  # type: ignore[union-attr]
    except (OSError, ValueError) as error:
        raise ImageError(f"the open file cannot be read: {error}") from None
    if not isinstance(data, bytes):
        raise UsageError(f"the open file gives {type(data).__name__}, not bytes", "open it in binary mode, 'rb'")
    return data


def open_source(source: Source, max_pixels: int) -> tuple[bytes, Photo]:
    """The bytes of a file (none of an array or a PIL image) and the decoded photo.

    Raises:
        ImageError: it cannot be read or is no photo, or an array is no uint8 [H, W, 3].
        LimitError: more pixels or bytes than allowed.
        UsageError: it is nothing that a photo can be taken from.
    """
    if is_file(source):
        name = name_of(source)
        data = read_source(source)
        return data, read_photo(data, max_pixels, str(name) if name else "")
    if not isinstance(source, np.ndarray):
        photo = read_photo(_encoded(source), max_pixels, "the PIL image")  # type: ignore[arg-type]
        return b"", replace(photo, format="png", deep=None)
    if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3:
        raise ImageError(f"pixels must be uint8 [H, W, 3], not {source.dtype} {list(source.shape)}", _ACCEPTED)
    return b"", Photo(source, None, None, "png")


def _is_image(source: object) -> bool:
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(source).__mro__)


def _encoded(image: Image) -> bytes:
    """A PIL image as a file: its transparency, profile and EXIF orientation are then taken as those of files are."""
    buffer = io.BytesIO()
    try:
        options = {"exif": image.getexif(), "icc_profile": image.info.get("icc_profile")}
        if image.mode == "CMYK":
            image.save(buffer, "TIFF", icc_profile=options["icc_profile"])
        elif image.mode in _PNG_MODES:
            image.save(buffer, "PNG", compress_level=1, **options)
        elif image.mode in _RGB_MODES:
            image.convert("RGBA" if image.mode in ("PA", "RGBa", "La") else "RGB").save(buffer, "PNG", **options)
        else:
            raise ImageError(f"a PIL image of mode {image.mode} is not taken", "convert it to RGB")
    except AnonfaceError:
        raise
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError(f"the PIL image cannot be read: {error}") from None
    return buffer.getvalue()
