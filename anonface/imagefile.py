"""Image files: bytes <-> pixels, and results written so that nothing is ever lost.

What a file is, its content says, not its name. Pixels leave this room upright, 8-bit RGB; no metadata leaves it but an
RGB colour profile. Every limit is checked before anything is decoded.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import stat
import struct
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anonface.errors import AnonfaceError, ImageError, LimitError, OutputError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

MAX_PIXELS = 64_000_000
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_ICC = 1024 * 1024  # bytes; Pillow opens no PNG with a larger profile
SIDE_LIMITS = {"png": 2**31 - 1, "webp": 16_383, "jpeg": 65_535}  # px, of the formats that can be written

# Read when Pillow can: HEIF takes a plugin, AVIF a build with it. Vector and container formats are left out.
READABLE = ("PNG", "JPEG", "MPO", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "HEIF")
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
ORIENTATION = 0x0112  # EXIF
BITS_PER_SAMPLE = 258  # TIFF
PNG_DEPTH_AT = 24  # where a PNG's IHDR holds its bit depth
PNG_END = b"IEND\xae\x42\x60\x82"
# A JPEG marker inside or after entropy-coded data; 00 is a stuffed byte, D0-D7 are restarts, FF fills.
JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True)
class Photo:
    """A decoded photo.

    Args:
        pixels: uint8 [H, W, 3], RGB, upright; under transparent places too.
        alpha: uint8 [H, W], or None for an opaque photo.
        icc: an RGB colour profile that the pixels refer to, or None.
        format: what the file was, in lower case: "png", "jpeg", "webp", "tiff", ...
        notes: what was converted or left behind, one line each.
    """

    pixels: NDArray[np.uint8]
    alpha: NDArray[np.uint8] | None
    icc: bytes | None
    format: str
    notes: tuple[str, ...] = ()


def read_file(path: PathLike) -> bytes:
    """A file's bytes, read once.

    Raises:
        ImageError: it cannot be read.
        LimitError: it has more than 256 MiB.
    """
    name = os.fsdecode(path)
    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ImageError(f"{name!r} cannot be read: {_reason(error)}") from None
    _check_size(data, repr(name))
    return data


def read_photo(data: bytes, max_pixels: int = MAX_PIXELS, name: str = "") -> Photo:
    """Decode the bytes of an image file.

    EXIF orientation is applied; palette, grey and 1-bit become RGB; CMYK and grey with a profile become sRGB through
    it.

    Args:
        max_pixels: larger images are refused before they are decoded.
        name: the file's name, for messages.

    Raises:
        ImageError: not an image, truncated, animated, or of more than 8 bits a channel.
        LimitError: too many pixels or bytes, or compressed metadata that unfolds without end.
    """
    from PIL import Image, UnidentifiedImageError

    label = repr(name) if name else "the image"
    if not data:
        raise ImageError(f"{label} is empty", "give a photo")
    _check_size(data, label)
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
        raise ImageError(f"{label} is truncated or damaged ({error})", "use an intact copy") from None


def encode_photo(photo: Photo, format: str = "png", quality: int = 95) -> bytes:
    """Photo -> the bytes of an image file, with its colour profile and no other metadata.

    Args:
        format: "png" or "webp" (both lossless), or "jpeg" (4:4:4).
        quality: of JPEG, 1 to 100.

    Raises:
        UsageError: unknown format, bad quality, or JPEG for a photo with alpha.
        LimitError: more pixels a side than the format can hold.
    """
    import numpy as np
    from PIL import Image

    if format not in SIDE_LIMITS:
        raise UsageError(f"unknown output format {format!r}", f"choose one of {', '.join(SIDE_LIMITS)}")
    if not 1 <= quality <= 100:
        raise UsageError(f"quality {quality} is not between 1 and 100")
    if format == "jpeg" and photo.alpha is not None:
        raise UsageError("JPEG cannot hold this photo's transparency", "write PNG or WebP")
    if max(photo.pixels.shape) > SIDE_LIMITS[format]:
        raise LimitError(f"{format} holds at most {SIDE_LIMITS[format]} pixels a side", "write PNG")
    planes = photo.pixels if photo.alpha is None else np.dstack([photo.pixels, photo.alpha])
    options: dict[str, dict[str, Any]] = {
        "png": {"compress_level": 3},  # a third of level 6's time for 2 % more bytes
        "webp": {"lossless": True, "exact": True, "method": 0},
        "jpeg": {"quality": quality, "subsampling": "4:4:4"},
    }
    buffer = io.BytesIO()
    Image.fromarray(planes).save(buffer, format.upper(), icc_profile=photo.icc, **options[format])
    return buffer.getvalue()


def check_output(path: PathLike, inputs: Iterable[PathLike] = (), overwrite: bool = False) -> None:
    """Refuse an output that could not or must not be written, before any work is done.

    Args:
        inputs: files that the output must not be, under whatever name; missing ones do not matter.
        overwrite: an existing regular file may be replaced.

    Raises:
        OutputError: it is an input, exists, or is a symbolic link or no regular file; its folder is missing or not
            writable.
    """
    name = os.fsdecode(path)
    target = Path(name)
    try:
        found = target.lstat()
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise OutputError(f"{name!r} cannot be written: {_reason(error)}", "choose another output") from None
    if found:
        if stat.S_ISLNK(found.st_mode):
            raise OutputError(f"{name!r} is a symbolic link, which is never written through", "name its target")
        if any(_is_same(found, other) for other in inputs):
            raise OutputError(f"{name!r} is the input itself", "choose another output")
        if not stat.S_ISREG(found.st_mode):
            raise OutputError(f"{name!r} exists and is not a file", "choose another output")
        if not overwrite:
            raise OutputError(f"{name!r} exists", "choose another output, or --overwrite")
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(f"there is no folder {str(folder)!r} for {target.name!r}", "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"the folder {str(folder)!r} is not writable", "choose another output")


def write_atomic(path: PathLike, data: bytes, overwrite: bool = False) -> None:
    """Write a whole file or none: a crash at any moment leaves the old file or the complete new one.

    The data goes to a temporary file beside the target and takes its name at the end. Without ``overwrite`` a name
    that somebody else took meanwhile is refused; of several writers exactly one wins.

    Raises:
        OutputError: as in :func:`check_output`, or the disk is full. No temporary file remains.
    """
    check_output(path, (), overwrite)
    name = os.fsdecode(path)
    target = Path(name)
    temporary = target.with_name(f".anonface-{secrets.token_hex(8)}.tmp")
    try:
        _write_new(temporary, data, _mode(target))
        if overwrite:
            temporary.replace(target)
        else:
            _take_name(temporary, target)
    except FileExistsError:
        raise OutputError(f"{name!r} was written by somebody else meanwhile", "choose another output") from None
    except OSError as error:
        raise OutputError(
            f"{name!r} cannot be written: {_reason(error)}", "free some space or write elsewhere"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


# --- Reading ---------------------------------------------------------------------------------------------------------


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _check_size(data: bytes, label: str) -> None:
    if len(data) > MAX_FILE_BYTES:
        raise LimitError(f"{label} has more than {MAX_FILE_BYTES >> 20} MiB", "scale it down first")


def _decode(data: bytes, max_pixels: int, label: str) -> Photo:
    """:func:`read_photo` without the translation of Pillow's errors."""
    import numpy as np
    from PIL import Image

    Image.init()
    formats = [name for name in READABLE if name in Image.OPEN]
    image: Image.Image = Image.open(io.BytesIO(data), formats=formats)
    kind = image.format or ""
    width, height = image.size
    if width * height > max_pixels:
        raise LimitError(
            f"{label} has {width} x {height} pixels, {max_pixels:,} is the limit", "raise it with --max-pixels"
        )
    notes = []
    frames = getattr(image, "n_frames", 1)
    if kind == "MPO":  # a JPEG with further pictures behind it: a depth map, a second view
        kind = "JPEG"
        notes.append(f"{frames - 1} further pictures in the file were left out")
    elif frames > 1 or getattr(image, "is_animated", False):
        raise ImageError(f"{label} is animated or has several pages", "give its pictures one by one")
    if _is_deep(image, data, kind):
        raise ImageError(f"{label} has more than 8 bits a channel", "convert it to 8 bits a channel first")
    if kind == "PNG":
        Image.open(io.BytesIO(data), formats=formats).verify()  # every checksum; load() stops earlier
        if PNG_END not in data:
            raise ImageError(f"{label} is truncated", "use an intact copy")
    image.load()
    icc = image.info.get("icc_profile") or None
    orientation = _orientation(image)
    alpha = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = np.array(_upright(image.getchannel("A"), orientation))
    if image.mode == "RGBA":
        image = image.convert("RGB")
    image, icc, remarks = _to_rgb(image, icc)
    notes += remarks
    if kind == "JPEG" and (trailing := _bytes_after_jpeg(data)):
        notes.append(f"{trailing} bytes behind the picture were left out")
    pixels = np.array(_upright(image, orientation))
    return Photo(pixels, alpha, icc, kind.lower(), tuple(notes))


def _is_deep(image: Image, data: bytes, kind: str) -> bool:
    """Whether a channel has more than 8 bits. Pillow narrows 16-bit RGB without a word."""
    if kind == "TIFF":
        bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (1,))
        return image.mode in DEEP_MODES or max(bits) > 8
    return image.mode in DEEP_MODES or (kind == "PNG" and data[PNG_DEPTH_AT] > 8)


def _orientation(image: Image) -> int:
    """The EXIF orientation, 1 to 8; 1 where it is missing or makes no sense."""
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # a photo is not lost for a broken EXIF block
        return 1
    return value if value in range(1, 9) else 1


def _upright(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    turns = (
        None,
        Transpose.FLIP_LEFT_RIGHT,
        Transpose.ROTATE_180,
        Transpose.FLIP_TOP_BOTTOM,
        Transpose.TRANSPOSE,
        Transpose.ROTATE_270,
        Transpose.TRANSVERSE,
        Transpose.ROTATE_90,
    )
    turn = turns[orientation - 1]
    return image if turn is None else image.transpose(turn)


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
        if space == "RGB" and image.mode != "CMYK" and len(icc) <= MAX_ICC:
            return plain, icc, []
        source = {"RGB": plain, "CMYK": image, "GRAY": plain.convert("L")}[space]
        turned = ImageCms.profileToProfile(source, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, KeyError, ValueError, OSError):
        return plain, None, ["an unusable colour profile was left out"]
    assert turned is not None  # profileToProfile returns None only when asked to work in place
    return turned, None, [f"converted from {space} to sRGB through its profile"]


def _bytes_after_jpeg(data: bytes) -> int:
    """How many bytes follow the first picture of a JPEG file (a video, further pictures)."""
    at = 2
    while marker := JPEG_MARKER.search(data, at):
        at = marker.end()
        if marker.group() == b"\xff\xd9":
            return len(data) - at
        if at + 2 <= len(data):
            at += struct.unpack_from(">H", data, at)[0]
    return 0


# --- Writing ---------------------------------------------------------------------------------------------------------


def _is_same(found: os.stat_result, other: PathLike) -> bool:
    try:
        return os.path.samestat(found, Path(os.fsdecode(other)).stat())
    except (OSError, ValueError):
        return False


def _mode(target: Path) -> int | None:
    """The permissions of the file that is to be replaced, if there is one."""
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else None


def _write_new(path: Path, data: bytes, mode: int | None) -> None:
    """Write a new file and see it onto the disk; ``mode`` None leaves its permissions to the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if mode is not None:
        path.chmod(mode)  # what the umask took away


def _take_name(temporary: Path, target: Path) -> None:
    """Give a finished file its name unless that is taken.

    Raises:
        FileExistsError: it is taken.
    """
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name, then replace the reservation
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            temporary.replace(target)
        except BaseException:
            target.unlink()
            raise


def _sync_folder(folder: Path) -> None:
    """See a new name onto the disk, where folders can be synchronised."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        return  # some network file systems refuse; the file itself is safe
    finally:
        os.close(descriptor)
