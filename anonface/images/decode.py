"""Image files: bytes -> pixels.

What a file is, its content says, not its name. Pixels leave here upright, 8-bit RGB; no metadata leaves but what
metadata.py lets through. Every limit is checked before anything is decoded.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anonface.errors import AnonfaceError, ImageError, LimitError
from anonface.images import depth, metadata
from anonface.images.files import check_size
from anonface.images.photo import Photo

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

MAX_PIXELS = 64_000_000

# Read when Pillow can: HEIF takes pillow-heif, AVIF a build with it. Vector and container formats are left out.
READABLE = ("PNG", "JPEG", "MPO", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "HEIF")
HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
ORIENTATION = 0x0112  # EXIF
SUBFILE_TYPE, DNG_VERSION = 254, 50706  # TIFF
SRGB_GAMMA = 0.45455  # as PNG says it
PNG_END = b"IEND\xae\x42\x60\x82"

_PILLOW_LIMIT = threading.Lock()


def read_photo(data: bytes, max_pixels: int = MAX_PIXELS, name: str = "") -> Photo:
    """Decode the bytes of an image file.

    EXIF orientation is applied; palette, grey and 1-bit become RGB; what has a profile of another kind than
    :func:`metadata.colour_profile` keeps becomes sRGB through it. PNG and plain TIFF of 16 bits keep them in ``deep``.

    Args:
        max_pixels: larger images are refused before they are decoded.
        name: the file's name, for messages.

    Raises:
        ImageError: not an image, truncated, animated, of a depth that cannot be kept, or HEIC without pillow-heif.
        LimitError: too many pixels or bytes, or compressed metadata that unfolds without end.
    """
    from PIL import Image, UnidentifiedImageError

    label = repr(name) if name else "the image"
    if not data:
        raise ImageError(f"{label} is empty", "give a photo")
    check_size(data, label)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on metadata, and on sizes that are checked here
            return _decode(data, max_pixels, label)
    except (AnonfaceError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{label} is not an image that can be read", "PNG, JPEG and WebP are, among others") from None
    except Image.DecompressionBombError as error:
        raise LimitError(f"{label}: {error}", "scale it down first") from None
    except Exception as error:  # hostile bytes make a decoder raise anything; none of it is this program's bug
        if re.search(r"too large|too much memory", str(error), re.IGNORECASE):
            raise LimitError(f"{label} holds compressed metadata that unfolds beyond bounds", "remove it") from None
        reason = " ".join(str(error).split())
        raise ImageError(f"{label} is truncated or damaged ({reason})", "use an intact copy") from None


def _decode(data: bytes, max_pixels: int, label: str) -> Photo:
    """:func:`read_photo` without the translation of Pillow's errors."""
    import numpy as np

    _enable_heif(data, label)
    image = _open(data)
    kind = image.format or ""
    width, height = image.size
    if width * height > max_pixels:
        raise LimitError(
            f"{label} has {width} x {height} pixels, {max_pixels:,} is the limit", "raise it with --max-pixels"
        )
    notes = []
    if kind == "MPO":  # a JPEG with further pictures behind it: a depth map, a second view
        kind = "JPEG"
        notes.append(f"{getattr(image, 'n_frames', 1) - 1} further pictures in the file were left out")
    elif getattr(image, "is_animated", False):
        raise ImageError(f"{label} is animated or has several pages", "give its pictures one by one")
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    if DNG_VERSION in tags or tags.get(SUBFILE_TYPE, 0) & 1:
        raise ImageError(f"{label} is a raw photo, of which only a preview can be read", "develop it first")
    if kind == "PNG":
        _open(data).verify()  # every checksum; load() stops earlier
        if PNG_END not in data:
            raise ImageError(f"{label} is truncated", "use an intact copy")
    image.load()
    orientation, exposure = _exif(image)
    icc = image.info.get("icc_profile") or None
    gamma = image.info.get("gamma", SRGB_GAMMA)
    if not icc and "srgb" not in image.info and abs(gamma - SRGB_GAMMA) > 0.01:
        notes.append(f"a gamma of {gamma:.3g} was left out, so that it may look lighter or darker")
    alpha, grey = None, False
    deep = depth.read(image, data, kind, label)
    if deep is not None:
        kept = metadata.colour_profile(icc) if icc else None
        if icc and not kept:
            raise ImageError(f"{label} has 16 bits a channel and a profile that would cost some", depth.HINT)
        deep, icc = _upright(deep, orientation), kept
        planes = depth.rounded(deep)
        pixels, alpha = planes[..., :3], planes[..., 3] if planes.shape[2] == 4 else None
        notes.append("16 bits a channel are kept in PNG outputs, outside of faces")
    else:
        grey = image.mode in ("1", "L", "LA")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            alpha = _upright(np.asarray(image.getchannel("A")), orientation)
        if image.mode == "RGBA":
            image = image.convert("RGB")
        image, icc, remarks = _to_rgb(image, icc)
        grey = grey and icc is None
        pixels = _upright(np.asarray(image), orientation)
        notes += remarks
    if kind in ("AVIF", "HEIF") and _is_deep_heif(image, data):
        notes.append("more than 8 bits a channel were reduced to 8")
    if trailing := metadata.bytes_behind(data, kind):
        notes.append(f"{trailing} bytes behind the picture were left out")
    return Photo(pixels, alpha, icc, kind.lower(), tuple(notes), deep, exposure, grey)


def _open(data: bytes) -> Image:
    """Look at the head of a file, whatever it says of its size; Pillow's own limit gives way to the one asked for."""
    from PIL import Image

    Image.init()
    formats = [name for name in READABLE if name in Image.OPEN]
    with _PILLOW_LIMIT:  # which holds for all threads
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(io.BytesIO(data), formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _enable_heif(data: bytes, label: str) -> None:
    """Teach Pillow HEIC where the file is one.

    Raises:
        ImageError: pillow-heif is not installed.
    """
    brands = data[8 : min(int.from_bytes(data[:4]), 128)]
    if data[4:8] != b"ftyp" or data[8:12] not in HEIF_BRANDS or b"avif" in brands:
        return
    try:
        import pillow_heif
    except ImportError:
        raise ImageError(
            f"{label} is a HEIC photo, which needs pillow-heif", "pip install '.[heif]' in a clone of anonface"
        ) from None
    pillow_heif.register_heif_opener()


def _exif(image: Image) -> tuple[int, bytes | None]:
    """The EXIF orientation, 1 to 8 (1 where it is missing or makes no sense), and what else may be kept."""
    try:
        exif = image.getexif()
        value = exif.get(ORIENTATION, 1)
        exposure = metadata.exposure(exif, exif.get_ifd(metadata.EXIF_IFD))
    except Exception:  # a photo is not lost for a broken EXIF block
        return 1, None
    return (value if value in range(1, 9) else 1), exposure


def _upright(planes: NDArray, orientation: int) -> NDArray:
    """[H, W, ...] under an EXIF orientation -> upright: transposed from 5 on, then mirrored across, both ways, down."""
    import numpy as np

    mirror = (orientation - 1) % 4
    turned = planes.swapaxes(0, 1) if orientation > 4 else planes
    return np.array(turned[:: -1 if mirror in (2, 3) else 1, :: -1 if mirror in (1, 2) else 1], order="C")


def _is_deep_heif(image: Image, data: bytes) -> bool:
    at = data.find(b"av1C")
    return image.info.get("bit_depth", 8) > 8 or (0 < at < len(data) - 6 and bool(data[at + 6] & 0x40))


def _to_rgb(image: Image, icc: bytes | None) -> tuple[Image, bytes | None, list[str]]:
    """An image of any mode without alpha -> RGB, the profile that it still refers to, and remarks."""
    from PIL import ImageCms

    if image.mode not in ("RGB", "CMYK", "L"):
        image = image.convert("RGB")
    plain = image.convert("RGB")
    if icc is None:
        return plain, None, ["CMYK without a profile was converted plainly"] if image.mode == "CMYK" else []
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        space = profile.profile.xcolor_space.strip()
        if space == "RGB" and image.mode != "CMYK" and (kept := metadata.colour_profile(icc)):
            return plain, kept, []
        source = {"RGB": plain, "CMYK": image, "GRAY": plain.convert("L")}[space]
        turned = ImageCms.profileToProfile(source, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, KeyError, ValueError, OSError):
        return plain, None, ["an unusable colour profile was left out"]
    assert turned is not None  # profileToProfile returns None only when asked to work in place
    return turned, None, [f"converted from {space} to sRGB through its profile"]
