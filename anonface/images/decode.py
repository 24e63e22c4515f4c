"""Image files: bytes -> pixels.

What a file is, its content says, not its name. Pixels leave here upright, 8-bit RGB; no metadata leaves but what
metadata.py lets through. Every limit is checked before anything is decoded.
"""

from __future__ import annotations

import io
import re
import struct
import threading
import warnings
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from anonface.errors import AnonfaceError, ImageError, LimitError, count
from anonface.images import colour, depth, isobmff, jpeg, metadata, png, tiff
from anonface.images.files import check_size
from anonface.images.photo import Photo
from anonface.images.profiles import colour_profile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from PIL.Image import Exif, Image

MAX_PIXELS = 64_000_000

# Read when Pillow can: HEIF takes pillow-heif, AVIF a build with it. Vector and container formats are left out.
READABLE = ("PNG", "JPEG", "MPO", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "HEIF")
HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
ORIENTATION = 0x0112  # EXIF
XMP_ORIENTATION = re.compile(rb"tiff:Orientation\s*(?:=\s*[\"']|>)\s*([1-8])")
EXIF_BLOCKS = ("exif", "Raw profile type exif")  # as Pillow names them; the second of PNG by ImageMagick
PADDING = 64  # px; encoders add fewer at the right and below
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
    except Exception as error:  # hostile bytes can make a decoder raise any error
        if re.search(r"too large|too much memory", str(error), re.IGNORECASE):
            raise LimitError(f"{label} holds compressed metadata that unfolds beyond bounds", "remove it") from None
        reason = " ".join(str(error).split())
        raise ImageError(f"{label} is truncated or damaged ({reason})", "use an intact copy") from None


class Frame(NamedTuple):
    """A picture as it is stored: (width, height) in pixels, and its EXIF orientation, 1 to 8."""

    size: tuple[int, int]
    orientation: int


def frame(file: Path) -> Frame:
    """Read the size and the orientation of a picture, without decoding it.

    Raises:
        ImageError: it cannot be read.
    """
    try:
        with file.open("rb") as stream:
            start = stream.read(64)
            _enable_heif(start, repr(str(file)))
            stream.seek(0)
            image = _opened(stream)
            _take_xmp(image)
            value = _exif(image).get(ORIENTATION, 1)
            return Frame(image.size, value if value in range(1, 9) else 1)
    except AnonfaceError:
        raise
    except Exception as error:  # hostile bytes can make a decoder raise any error
        raise ImageError(f"{str(file)!r} cannot be read: {' '.join(str(error).split())}") from None


def _decode(data: bytes, max_pixels: int, label: str) -> Photo:
    """:func:`read_photo` without the translation of Pillow's errors."""
    import numpy as np

    _enable_heif(data, label)
    page = tiff.page(data, label) if data[:4] in tiff.SIGNATURES else None
    image = _open(data)
    kind = image.format or ""
    if page:
        image.seek(page.number)
    width, height = image.size
    if width * height > max_pixels:
        raise LimitError(
            f"{label} has {width} x {height} pixels, {max_pixels:,} is the limit", "raise it with --max-pixels"
        )
    coding = jpeg.coding(image) if kind in ("JPEG", "MPO") else None
    notes = list(page.notes) if page else []
    if kind == "MPO":  # a JPEG followed by further pictures: a depth map, a second view
        kind = "JPEG"
        notes.append(f"{getattr(image, 'n_frames', 1) - 1} further pictures in the file were left out")
    elif page is None and getattr(image, "is_animated", False):
        raise ImageError(f"{label} is animated or has several pages", "give its pictures one by one")
    _check_whole(data, kind, page, label)
    by_xmp = _take_xmp(image)
    if not (page and page.bits == 16):
        image.load()
    by_xmp = by_xmp if by_xmp > 1 else _take_xmp(image)  # PNG may hold it behind the picture
    exif = _exif(image)
    deep = depth.read(image, data, page, label)
    value = exif.get(ORIENTATION, 1)  # Pillow removes it from a TIFF that it has turned
    orientation = value if value in range(1, 9) else 1
    if by_xmp > 1 and orientation == 1 == (page.one(ORIENTATION, 1) if page else 1):
        notes.append(f"its XMP alone asks for orientation {by_xmp}, which browsers ignore; it was not turned")
    icc, said_of_colours = colour.of_file(image, data, exif, label)
    notes += said_of_colours
    alpha, grey = None, False
    if deep is not None:
        if icc and icc[16:20] in (b"GRAY", b"CMYK") and not colour.fits(icc, image.mode in colour.GREY_MODES, False):
            notes.append(colour.MISFIT)
            icc = None
        kept = colour_profile(icc) if icc else None
        if icc and not kept:
            raise ImageError(f"{label} has 16 bits a channel and a profile that would cost some", depth.HINT)
        deep, icc = _turned(deep, orientation), kept
        planes = depth.rounded(deep)
        pixels, alpha = planes[..., :3], planes[..., 3] if planes.shape[2] == 4 else None
        notes.append("16 bits a channel are kept in PNG outputs, outside of faces")
    else:
        if image.mode == "La":  # grey that its alpha was multiplied into
            image = image.convert("LA")
        grey = image.mode in ("1", "L", "LA")
        image, remarks = _framed(image, data, label)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            alpha = _turned(np.asarray(image.getchannel("A")), orientation)
        if image.mode == "RGBA":
            image = image.convert("RGB")
        image, icc, more = colour.to_rgb(image, icc, grey)
        grey = grey and icc is None
        pixels = _turned(np.asarray(image), orientation)
        notes += [*remarks, *more]
    if kind in ("AVIF", "HEIF") and _is_deep_heif(image, data):
        notes.append("more than 8 bits a channel were reduced to 8")
    if trailing := metadata.bytes_behind(data, kind):
        notes.append(f"{count(trailing, 'byte')} behind the picture left out")
    exposure = metadata.exposure(exif, exif.get_ifd(metadata.EXIF_IFD))
    return Photo(pixels, alpha, icc, kind.lower(), tuple(notes), deep, exposure, grey, coding)


def _open(data: bytes) -> Image:
    """Open the header of a file; the limit asked for replaces Pillow's own."""
    return _opened(io.BytesIO(data))


def _opened(stream: BinaryIO) -> Image:
    from PIL import Image

    Image.init()
    formats = [name for name in READABLE if name in Image.OPEN]
    with _PILLOW_LIMIT:  # which holds for all threads
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(stream, formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _enable_heif(data: bytes, label: str) -> None:
    """Register the HEIC decoder if the file is one.

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


def _check_whole(data: bytes, kind: str, page: tiff.Page | None, label: str) -> None:
    """Refuse a PNG or JPEG with an incomplete picture, which Pillow accepts.

    Raises:
        ImageError: it is.
    """
    if kind == "PNG":
        _open(data).verify()  # every checksum; load() stops earlier
        if PNG_END not in data:
            raise ImageError(f"{label} is truncated", "use an intact copy")
        png.check_rows(data, label)
    elif kind == "JPEG" or (page and page.one(tiff.COMPRESSION, 1) == tiff.JPEG):
        fault = jpeg.fault(tiff.jpegs(data, page) if page else [data])
        if fault:
            raise ImageError(f"{label} is truncated or damaged ({fault})", "use an intact copy")


def _take_xmp(image: Image) -> int:
    """Remove XMP from an image, so that Pillow does not turn it; returns its orientation."""
    packets = [image.info.pop(name, b"") for name in ("XML:com.adobe.xmp", "xmp")]
    for packet in packets:
        text = packet if isinstance(packet, bytes) else str(packet).encode()
        if found := XMP_ORIENTATION.search(text):
            return int(found[1])
    return 1


def _exif(image: Image) -> Exif:
    """The EXIF block of an image whose XMP was removed; empty if it is broken."""
    from PIL import Image as Pillow

    source = image
    if image.format != "TIFF":  # the block that Pillow has read may hold the orientation of XMP
        source = Pillow.new("1", (1, 1))
        source.info = {name: image.info[name] for name in EXIF_BLOCKS if name in image.info}
    try:
        exif = source.getexif()
        for directory in (metadata.EXIF_IFD, colour.INTEROP_IFD):
            exif.get_ifd(directory)
    except Exception:  # a broken EXIF block does not make a photo unreadable
        return Pillow.Exif()
    return exif


def _framed(image: Image, data: bytes, label: str) -> tuple[Image, list[str]]:
    """An image as its container frames it, and remarks. Turning is left to others: libheif, and EXIF of AVIF's plugin.

    Raises:
        ImageError: the container's frame makes no sense.
    """
    if image.format not in ("AVIF", "HEIF"):
        return image, []
    remarks = []
    found = isobmff.properties(data)
    for across, down in (struct.unpack_from(">II", body) for body in found.get(b"pasp", [])):
        if across != down:
            remarks.append(f"its pixels are not square ({across}:{down}); it was not stretched")
    if b"clap" not in found:
        return image, remarks
    width, height = struct.unpack_from(">II", found[b"ispe"][0], isobmff.FULL)
    box = isobmff.crop(found[b"clap"][0], width, height)
    size = box[2] - box[0], box[3] - box[1]
    if image.format == "AVIF":
        image = image.crop(box)
    elif sorted(image.size) != sorted(size):  # libheif has cropped
        raise ImageError(f"{label} is cropped by its container in a way that is not read", "save it as JPEG first")
    if box[:2] == (0, 0) and width - size[0] < PADDING and height - size[1] < PADDING:  # which an encoder has added
        return image, remarks
    return image, [*remarks, f"cropped to {size[0]} x {size[1]} of {width} x {height} pixels, as its container says"]


def _turned(planes: NDArray, orientation: int) -> NDArray:
    """[H, W, ...] under an EXIF orientation -> upright: transposed from 5 on, then mirrored across, both ways, down."""
    import numpy as np

    mirror = (orientation - 1) % 4
    turned = planes.swapaxes(0, 1) if orientation > 4 else planes
    return np.array(turned[:: -1 if mirror in (2, 3) else 1, :: -1 if mirror in (1, 2) else 1], order="C")


def _is_deep_heif(image: Image, data: bytes) -> bool:
    at = data.find(b"av1C")
    return image.info.get("bit_depth", 8) > 8 or (0 < at < len(data) - 6 and bool(data[at + 6] & 0x40))
