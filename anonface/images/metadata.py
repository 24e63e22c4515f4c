"""The metadata of a photo that may be kept: exposure, lens, density. No text, date, place or device.

Nothing is copied. What is kept is read as numbers, held against the range that such numbers have, and written anew.
What lies behind a picture never travels; it is measured, to be reported.
"""

from __future__ import annotations

import numbers
import struct
from collections.abc import Mapping
from fractions import Fraction

from anonface.images import jpeg

BOXES = {b"ftyp", b"meta", b"mdat", b"moov", b"free", b"skip"}  # of HEIF and AVIF, that make up the picture

EXIF_IFD = 0x8769
# How a photo was taken: tag -> the least and the greatest value that makes sense.
EXPOSURE_TAGS: Mapping[int, tuple[Fraction, Fraction]] = {
    0x829A: (Fraction(1, 8000), Fraction(3600)),  # exposure time, s
    0x829D: (Fraction(1, 2), Fraction(128)),  # f-number
    0x8822: (Fraction(0), Fraction(8)),  # exposure program
    0x8827: (Fraction(1), Fraction(65535)),  # ISO
    0x9204: (Fraction(-20), Fraction(20)),  # exposure bias, EV
    0x9207: (Fraction(0), Fraction(6)),  # metering mode
    0x9209: (Fraction(0), Fraction(95)),  # flash
    0x920A: (Fraction(1, 2), Fraction(3000)),  # focal length, mm
    0xA403: (Fraction(0), Fraction(1)),  # white balance
    0xA405: (Fraction(1), Fraction(3000)),  # focal length at 35 mm, mm
}
DENSITY_TAGS: Mapping[int, tuple[Fraction, Fraction]] = {
    0x011A: (Fraction(1), Fraction(10_000)),  # pixels a unit, across
    0x011B: (Fraction(1), Fraction(10_000)),  # and down
    0x0128: (Fraction(2), Fraction(3)),  # the unit: inch, cm
}
INTEGERS = {0x0128, 0x8822, 0x8827, 0x9207, 0x9209, 0xA403, 0xA405}
DENOMINATORS = {0x829A: 8000}  # the greatest, where it is not:
DENOMINATOR = 100


def exposure(root: Mapping[int, object], exif: Mapping[int, object]) -> bytes | None:
    """How a photo was taken, as an EXIF block.

    Args:
        root: the tags of its first directory.
        exif: the tags of its Exif directory.

    Returns:
        None where nothing can be kept.
    """
    from PIL.Image import Exif

    block = Exif()
    block.update(_within(root, DENSITY_TAGS))
    if kept := _within(exif, EXPOSURE_TAGS):
        block.get_ifd(EXIF_IFD).update(kept)
    return block.tobytes() if len(block) or kept else None


def bytes_behind(data: bytes, kind: str) -> int:
    """How many bytes follow the end of a file's (first) picture: a video, further pictures, anything.

    Args:
        kind: the file's format, as Pillow names it.
    """
    if kind == "JPEG":
        return _bytes_behind_jpeg(data)
    if kind == "PNG":
        at, name = 8, b""
        while name != b"IEND" and at + 8 <= len(data):
            size, name = struct.unpack_from(">I4s", data, at)
            at += 12 + size
        return max(len(data) - at, 0)
    if kind == "WEBP":
        size = int.from_bytes(data[4:8], "little")
        return max(len(data) - 8 - size - size % 2, 0)
    if kind in ("AVIF", "HEIF"):
        return _bytes_of_other_boxes(data)
    return 0


# --- Exposure --------------------------------------------------------------------------------------------------------


def _within(tags: Mapping[int, object], ranges: Mapping[int, tuple[Fraction, Fraction]]) -> dict[int, object]:
    """The numbers among ``tags`` that are within their range, rounded to usual values."""
    from PIL.TiffImagePlugin import IFDRational

    kept: dict[int, object] = {}
    for tag, (least, greatest) in ranges.items():
        value = tags.get(tag)
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if not isinstance(value, numbers.Real):
            continue
        try:
            number = Fraction(float(value)).limit_denominator(DENOMINATORS.get(tag, DENOMINATOR))
        except (ValueError, ArithmeticError):
            continue  # not finite
        if least <= number <= greatest:
            kept[tag] = int(number) if tag in INTEGERS else IFDRational(number.numerator, number.denominator)
    return kept


# --- Behind the picture ----------------------------------------------------------------------------------------------


def _bytes_of_other_boxes(data: bytes) -> int:
    """The content of boxes that no picture of a HEIF or AVIF file needs, as in motion photos."""
    at = other = 0
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        if size < 8:  # to the end of the file, or of 64 bits
            size = int.from_bytes(data[at + 8 : at + 16]) if size == 1 else len(data) - at
        size = min(max(size, 8), len(data) - at)
        other += 0 if name in BOXES else size
        at += size
    return other + len(data) - at


def _bytes_behind_jpeg(data: bytes) -> int:
    at = 2
    while marker := jpeg.MARKER.search(data, at):
        at = marker.end()
        if marker.group() == b"\xff\xd9":
            return len(data) - at
        if at + 2 <= len(data):
            at += struct.unpack_from(">H", data, at)[0]
    return 0
