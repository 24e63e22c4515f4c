"""The colour space of a file, given by a profile, by code points, by chromaticities, or by EXIF.

Colours other than sRGB stay as they are, under a profile that says them; what no profile of primaries and a curve can
say becomes sRGB, or is refused.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from anonface.errors import ImageError
from anonface.images import isobmff, png
from anonface.images.profiles import PIXEL_CLASSES, Point, Space, coded, colour_profile, profile_of

if TYPE_CHECKING:
    from PIL.Image import Exif, Image

D65: Point = (0.3127, 0.329)
ILLUMINANT_C: Point = (0.31, 0.316)
DCI: Point = (0.314, 0.351)

SRGB = Space((0.64, 0.33), (0.3, 0.6), (0.15, 0.06), D65)
SRGB_PRIMARIES = (SRGB.red, SRGB.green, SRGB.blue)
ADOBE_RGB = Space((0.64, 0.33), (0.21, 0.71), (0.15, 0.06), D65, 563 / 256)

# Code points of H.273.
UNSPECIFIED = 2
PRIMARIES = {
    1: ("sRGB primaries", SRGB),
    4: ("BT.470 M", Space((0.67, 0.33), (0.21, 0.71), (0.14, 0.08), ILLUMINANT_C)),
    5: ("BT.601, 625 lines", Space((0.64, 0.33), (0.29, 0.6), (0.15, 0.06), D65)),
    6: ("BT.601, 525 lines", Space((0.63, 0.34), (0.31, 0.595), (0.155, 0.07), D65)),
    7: ("SMPTE 240M", Space((0.63, 0.34), (0.31, 0.595), (0.155, 0.07), D65)),
    8: ("film", Space((0.681, 0.319), (0.243, 0.692), (0.145, 0.049), ILLUMINANT_C)),
    9: ("BT.2020", Space((0.708, 0.292), (0.17, 0.797), (0.131, 0.046), D65)),
    11: ("DCI-P3", Space((0.68, 0.32), (0.265, 0.69), (0.15, 0.06), DCI)),
    12: ("Display P3", Space((0.68, 0.32), (0.265, 0.69), (0.15, 0.06), D65)),
    22: ("EBU Tech 3213", Space((0.63, 0.34), (0.295, 0.605), (0.155, 0.077), D65)),
}
SRGB_CURVES = {13}
VIDEO_CURVES = {1, 6, 14, 15}  # viewers of still pictures show them as sRGB
GAMMAS = {4: 2.2, 5: 2.8, 8: 1.0, 17: 2.6}
HDR_CURVES = {16: "PQ", 18: "HLG"}

SRGB_GAMMA = 0.45455  # as PNG encodes it
NEAR, NEAR_GAMMA = 0.003, 0.01
LEAST_GAMMA, GREATEST_GAMMA = 0.2, 5.0
GREY_MODES = ("1", "L", "LA", "I", "I;16")  # of Pillow

TIFF_WHITE, TIFF_PRIMARIES, TIFF_CURVES = 318, 319, 301
EXIF_IFD, INTEROP_IFD = 0x8769, 0xA005
COLOR_SPACE, INTEROP_INDEX = 0xA001, 1
UNCALIBRATED, ADOBE_BY_SOME = 65535, 2

BMP_HEADER, BMP_V5, BMP_EMBEDDED = 14, 124, b"DEBM"  # the first two in bytes


UNUSABLE = "an unusable colour profile was left out"
MISFIT = "a colour profile for other pixels (grey, RGB or CMYK) than these was left out"


class Colours(NamedTuple):
    """The result.

    Args:
        icc: the profile, as the file holds it or as one was made; None for sRGB.
        notes: one line each.
    """

    icc: bytes | None
    notes: tuple[str, ...] = ()


def of_file(image: Image, data: bytes, exif: Exif, label: str) -> Colours:
    """The colour information of a file.

    Args:
        image: the file as Pillow opened it.
        data: its bytes.
        exif: its EXIF block.
        label: its name, for messages.

    Raises:
        ImageError: they are those of an HDR picture, or a range that pictures do not have.
    """
    icc = image.info.get("icc_profile") or None
    grey = image.mode in GREY_MODES
    if image.format in ("AVIF", "HEIF"):
        _, codes = isobmff.colours(isobmff.properties(data))
        if icc is None or (codes and codes[1] in HDR_CURVES):
            if codes is None:
                return Colours(None, ("it does not say what its colours are; they were taken for sRGB",))
            return _by_codes(*codes, grey, label)
    elif image.format == "PNG" and (points := png.code_points(data)):
        primaries, transfer, matrix, full = points
        if matrix or not full:
            raise ImageError(f"{label} has colours of a range or matrix that is not read", "save it as sRGB first")
        return _by_codes(primaries, transfer, grey, label)
    elif image.format == "BMP" and icc is None:
        icc = _of_bmp(data)
    if icc:
        if (tag := coded(icc)) and tag[1] in HDR_CURVES:
            raise _hdr(tag[1], label)
        return Colours(icc)
    if image.format == "PNG" and "srgb" not in image.info:
        return _of_png(image, grey)
    if image.format == "TIFF" and (found := _of_tiff(getattr(image, "tag_v2", {}))):
        return found
    space_said = exif.get_ifd(EXIF_IFD).get(COLOR_SPACE)
    index = str(exif.get_ifd(INTEROP_IFD).get(INTEROP_INDEX, "")).strip("\0 ")
    if space_said == ADOBE_BY_SOME or (space_said == UNCALIBRATED and index == "R03"):
        return _written(ADOBE_RGB, "Adobe RGB by its EXIF")
    return Colours(None)


def fits(icc: bytes, grey: bool, cmyk: bool) -> bool:
    """Whether a profile suits such pixels; an RGB profile suits grey pixels too."""
    space = icc[16:20]
    return space == b"CMYK" if cmyk else space == b"RGB " or (grey and space == b"GRAY")


def to_rgb(image: Image, icc: bytes | None, grey: bool) -> tuple[Image, bytes | None, list[str]]:
    """An image of any mode without alpha -> RGB, the profile that it still refers to, and remarks.

    Args:
        grey: the file has one channel for all colours.
    """
    from PIL import ImageCms

    cmyk = image.mode == "CMYK"
    plain = image.convert("RGB")
    remarks = []
    if icc is not None:
        if icc[12:16] not in PIXEL_CLASSES:
            remarks.append(UNUSABLE)
        elif not fits(icc, grey, cmyk):
            remarks.append(MISFIT)
        elif icc[16:20] == b"RGB " and (kept := colour_profile(icc)):
            return plain, kept, []
        else:
            source = image if cmyk else plain.convert("L") if icc[16:20] == b"GRAY" else plain
            try:
                profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
                turned = ImageCms.profileToProfile(source, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
                assert turned is not None  # it returns None only when asked to work in place
                return turned, None, [f"converted from {icc[16:20].decode().strip()} to sRGB through its profile"]
            except (ImageCms.PyCMSError, ValueError, OSError):
                remarks.append(UNUSABLE)
    if cmyk:
        remarks.append("CMYK without a profile was converted plainly")
    return plain, None, remarks


# --- Parts -----------------------------------------------------------------------------------------------------------


def _hdr(transfer: int, label: str) -> ImageError:
    return ImageError(
        f"{label} is an HDR picture ({HDR_CURVES[transfer]}), whose brightness no output can hold",
        "export it without HDR first",
    )


def _by_codes(primaries: int, transfer: int, grey: bool, label: str) -> Colours:
    """The colours of H.273 code points."""
    if transfer in HDR_CURVES:
        raise _hdr(transfer, label)
    if primaries == UNSPECIFIED:
        primaries = 1
    if transfer == UNSPECIFIED:
        transfer = 13
    if primaries not in PRIMARIES or transfer not in (*SRGB_CURVES, *VIDEO_CURVES, *GAMMAS):
        named = f"primaries {primaries}, transfer {transfer}"
        return Colours(None, (f"its colours ({named}) are unknown and were treated as sRGB",))
    notes = ("its video transfer curve was taken for that of sRGB",) if transfer in VIDEO_CURVES else ()
    name, space = PRIMARIES[primaries]
    icc, more = _written(replace(space, gamma=GAMMAS.get(transfer)), name, grey)
    return Colours(icc, (*more, *notes))


def _written(space: Space, name: str, grey: bool = False) -> Colours:
    """A profile of a space, and a note of it; nothing for sRGB, and for greys under its curve."""
    if space == SRGB or (grey and space.gamma is None):
        return Colours(None)
    curve = f", gamma {space.gamma:.3g}" if space.gamma else ""
    return Colours(profile_of(space), (f"its colours ({name}{curve}) are kept by a colour profile",))


def _of_png(image: Image, grey: bool) -> Colours:
    """The colours of cHRM and gAMA."""
    gamma = image.info.get("gamma", SRGB_GAMMA)
    points = image.info.get("chromaticity")
    white, *primaries = zip(points[::2], points[1::2], strict=True) if points else (D65, *SRGB_PRIMARIES)
    found = _measured(white, primaries, None, grey)
    usual = abs(gamma - SRGB_GAMMA) <= NEAR_GAMMA  # PNG gives this for sRGB too
    if gamma <= 0 or "gamma" not in image.info or (usual and found == Colours(None)):
        return found
    return _measured(white, primaries, 1 / gamma, grey)


def _of_tiff(tags: Mapping[int, Any]) -> Colours | None:
    """The colours of TIFF's chromaticities, or None without any."""
    notes = ("its transfer curves were left out",) if TIFF_CURVES in tags else ()
    if TIFF_PRIMARIES not in tags:
        return Colours(None, notes) if notes else None
    numbers = [float(value) for value in tags[TIFF_PRIMARIES]]
    white = [float(value) for value in tags.get(TIFF_WHITE, D65)]
    found = _measured(white, list(zip(numbers[::2], numbers[1::2], strict=False)), None)
    return Colours(found.icc, (*found.notes, *notes))


def _measured(
    white: Sequence[float], primaries: Sequence[Sequence[float]], gamma: float | None, grey: bool = False
) -> Colours:
    """The colours of chromaticities and a gamma; None stands for the curve of sRGB."""
    try:
        points = [(float(x), float(y)) for x, y in (*primaries, white)]
        red, green, blue, neutral = points
        space, name = Space(red, green, blue, neutral, gamma), "its own primaries"
        if gamma is not None and not LEAST_GAMMA <= gamma <= GREATEST_GAMMA:
            raise ValueError
        for known, other in (*PRIMARIES.values(), ("Adobe RGB", ADOBE_RGB)):
            if _near(space, other):
                space, name = replace(other, gamma=gamma), known
                break
        return _written(space, name, grey)
    except ValueError:
        return Colours(None, ("its primaries or gamma make no sense and were left out",))


def _near(one: Space, other: Space) -> bool:
    of_one, of_other = ((*space.red, *space.green, *space.blue, *space.white) for space in (one, other))
    return all(abs(a - b) <= NEAR for a, b in zip(of_one, of_other, strict=True))


def _of_bmp(data: bytes) -> bytes | None:
    """The profile that a BMP of version 5 embeds."""
    size = int.from_bytes(data[BMP_HEADER : BMP_HEADER + 4], "little")
    if size < BMP_V5 or data[BMP_HEADER + 56 : BMP_HEADER + 60] != BMP_EMBEDDED:
        return None
    at, length = struct.unpack_from("<II", data, BMP_HEADER + 112)
    return data[BMP_HEADER + at : BMP_HEADER + at + length] or None
