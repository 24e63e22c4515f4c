"""Image files: bytes <-> pixels, and results written so that nothing is ever lost.

What a file is, its content says, not its name. Pixels leave this room upright, 8-bit RGB; no metadata leaves it but
what metadata.py lets through. Every limit is checked before anything is decoded.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import stat
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anonface import deepcolour, metadata
from anonface.errors import AnonfaceError, ImageError, LimitError, OutputError, UsageError, reason, remedy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

MAX_PIXELS = 64_000_000
MAX_FILE_BYTES = 256 * 1024 * 1024
SIDE_LIMITS = {"png": 2**31 - 1, "webp": 16_383, "jpeg": 65_535}  # px, of the formats that can be written

# Read when Pillow can: HEIF takes pillow-heif, AVIF a build with it. Vector and container formats are left out.
READABLE = ("PNG", "JPEG", "MPO", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "HEIF")
HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
ORIENTATION = 0x0112  # EXIF
SUBFILE_TYPE, DNG_VERSION = 254, 50706  # TIFF
SRGB_GAMMA = 0.45455  # as PNG says it
PNG_END = b"IEND\xae\x42\x60\x82"

_PILLOW_LIMIT = threading.Lock()

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Content = bytes | Sequence[bytes | memoryview]
"""What a file is to hold, whole or in pieces."""


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
    """

    pixels: NDArray[np.uint8]
    alpha: NDArray[np.uint8] | None
    icc: bytes | None
    format: str
    notes: tuple[str, ...] = ()
    deep: NDArray[np.uint16] | None = None
    exposure: bytes | None = None
    grey: bool = False


def read_file(path: PathLike) -> bytes:
    """A file's bytes, read once.

    Raises:
        ImageError: it cannot be read, or changed meanwhile.
        LimitError: it has more than 256 MiB.
    """
    name = os.fsdecode(path)
    try:
        with Path(name).open("rb") as file:
            before = os.fstat(file.fileno())
            size = before.st_size if stat.S_ISREG(before.st_mode) else MAX_FILE_BYTES
            data = file.read(min(size, MAX_FILE_BYTES) + 1)  # as much memory is taken, whatever the file has
            after = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        raise ImageError(f"{name!r} cannot be read: {_reason(error)}") from None
    _check_size(data, repr(name))
    still = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and len(data) == after.st_size
    if stat.S_ISREG(after.st_mode) and not still:
        raise ImageError(f"{name!r} changed while it was read", "wait until it is complete")
    return data


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
        reason = " ".join(str(error).split())
        raise ImageError(f"{label} is truncated or damaged ({reason})", "use an intact copy") from None


def encode_photo(photo: Photo, format: str = "png", quality: int = 95, keep_metadata: bool = False) -> bytes:
    """Photo -> the bytes of an image file, with its colour profile and no other metadata.

    Where ``photo.deep`` rounds to ``photo.pixels``, a PNG holds the 16 bits; other formats have 8.

    Args:
        format: "png" or "webp" (both lossless), or "jpeg" (4:4:4).
        quality: of JPEG, 1 to 100.
        keep_metadata: write ``photo.exposure`` too.

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
    exif = photo.exposure if keep_metadata else None
    if photo.deep is not None and format == "png":
        return deepcolour.encode_png(photo.deep, photo.pixels, photo.icc, exif)
    colours = photo.pixels
    if photo.grey and format != "webp" and (colours == colours[..., :1]).all():
        colours = colours[..., 0]
    planes = colours if photo.alpha is None else np.dstack([colours, photo.alpha])
    options: dict[str, dict[str, Any]] = {
        "png": {"compress_level": 3},  # a third of level 6's time for 2 % more bytes
        "webp": {"lossless": True, "exact": True, "method": 0},
        "jpeg": {"quality": quality, "subsampling": "4:4:4"},
    }
    if exif:
        options[format]["exif"] = exif
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
        raise OutputError(f"{name!r} cannot be written: {reason(error)}", remedy(error)) from None
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


def size_of(content: Content) -> int:
    """In bytes."""
    return len(content) if isinstance(content, bytes) else sum(map(len, content))


@lru_cache(maxsize=256)
def check_folder(folder: Path) -> None:
    """Refuse a folder in which no file can be made, by making one and removing it: permissions do not tell it all.

    A folder that was found good is not tried again.

    Raises:
        OutputError: none can.
    """
    probe = _temporary(folder)
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        raise OutputError(f"the folder {str(folder)!r} is not writable: {reason(error)}", remedy(error)) from None


def write_atomic(path: PathLike, data: bytes, overwrite: bool = False) -> None:
    """Write a whole file or none: :func:`write_together` for one."""
    write_together([(path, data)], overwrite)


def write_together(files: Iterable[tuple[PathLike, Content]], overwrite: bool = False) -> None:
    """Write whole files or none: a crash at any moment leaves each the old file or the complete new one.

    The data goes to temporary files beside the targets, which take their names, in the order given, when all are
    complete. Without ``overwrite`` a name that somebody else took meanwhile is refused; of several writers exactly one
    wins.

    Raises:
        OutputError: as in :func:`check_output`, or the disk is full. No temporary file remains, and no new file.
    """
    parts = []
    for path, data in files:
        check_output(path, (), overwrite)
        target = Path(os.fsdecode(path))
        parts.append((target, _temporary(target.parent), data))
    fresh = [target for target, _, _ in parts if not os.path.lexists(target)]
    named: list[Path] = []
    try:
        for target, temporary, data in parts:
            _write_new(temporary, data, _mode(target))
        for target, temporary, _ in parts:
            if overwrite:
                temporary.replace(target)
            else:
                _take_name(temporary, target)
            named.append(target)
    except BaseException as error:
        for made in named:
            if made in fresh:
                made.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise OutputError(
                f"{str(target)!r} was written by somebody else meanwhile", "choose another output"
            ) from None
        if isinstance(error, OSError):
            raise OutputError(f"{str(target)!r} cannot be written: {reason(error)}", remedy(error)) from None
        raise
    finally:
        for _, temporary, _ in parts:
            temporary.unlink(missing_ok=True)
    for folder in {target.parent for target in named}:
        _sync_folder(folder)


# --- Reading ---------------------------------------------------------------------------------------------------------


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _check_size(data: bytes, label: str) -> None:
    if len(data) > MAX_FILE_BYTES:
        raise LimitError(f"{label} has more than {MAX_FILE_BYTES >> 20} MiB", "scale it down first")


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
    deep = deepcolour.read(image, data, kind, label)
    if deep is not None:
        kept = metadata.colour_profile(icc) if icc else None
        if icc and not kept:
            raise ImageError(f"{label} has 16 bits a channel and a profile that would cost some", deepcolour.HINT)
        deep, icc = _upright(deep, orientation), kept
        planes = deepcolour.rounded(deep)
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


# --- Writing ---------------------------------------------------------------------------------------------------------


def _is_same(found: os.stat_result, other: PathLike) -> bool:
    try:
        return os.path.samestat(found, Path(os.fsdecode(other)).stat())
    except (OSError, ValueError):
        return False


def _temporary(folder: Path) -> Path:
    return folder / f".anonface-{secrets.token_hex(8)}.tmp"


def _mode(target: Path) -> int | None:
    """The permissions of the file that is to be replaced, if there is one."""
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else None


def _write_new(path: Path, data: Content, mode: int | None) -> None:
    """Write a new file and see it onto the disk; ``mode`` None leaves its permissions to the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
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
    except OSError:  # a file system without hard links
        with _alone_in(target.parent):
            if os.path.lexists(target):
                raise FileExistsError from None
            temporary.replace(target)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other writers of this program out of a folder, where folders can be locked; a crash lifts the lock."""
    if os.name != "posix":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """See a new name onto the disk, where folders can be synchronised."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # a folder that may be written but not read
    try:
        os.fsync(descriptor)
    except OSError:
        return  # some network file systems refuse; the file itself is safe
    finally:
        os.close(descriptor)
