"""What of a photo's metadata may travel: colours, and how it was taken. No text, no date, no place, no device.

Nothing is copied. What is kept is read as numbers, held against the range that such numbers have, and written anew.
What lies behind a picture never travels; it is measured, to be reported.
"""

from __future__ import annotations

import numbers
import re
import struct
from collections.abc import Mapping
from fractions import Fraction

MAX_ICC = 1024 * 1024  # bytes; Pillow opens no PNG with a larger profile
ICC_HEADER, ICC_ENTRY = 128, 12  # bytes; of the header, and of one line of the table of tags
COLOUR_TAGS = (b"wtpt", b"chad", b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC")
OPTIONAL_TAGS = {b"chad"}
CURVE_PARAMETERS = (1, 3, 4, 5, 7)  # of parametric curves, by their function type
D50 = struct.pack(">3i", 63190, 65536, 54061)  # s15Fixed16

BOXES = {b"ftyp", b"meta", b"mdat", b"moov", b"free", b"skip"}  # of HEIF and AVIF, that make up the picture
# A JPEG marker inside or after entropy-coded data; 00 is a stuffed byte, D0-D7 are restarts, FF fills.
JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")

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


def colour_profile(icc: bytes) -> bytes | None:
    """An RGB profile of primaries, white point and curves -> the same colours, without all else that it said.

    None for profiles of other kinds, those that map colours by tables among them, and for broken ones.
    """
    if len(icc) > MAX_ICC or icc[16:24] != b"RGB XYZ ":
        return None
    try:
        tags = _tags(icc)
        if any(name.startswith((b"A2B", b"B2A", b"D2B", b"B2D")) for name in tags):
            return None
        elements = {name: _element(tags[name]) for name in COLOUR_TAGS if name in tags or name not in OPTIONAL_TAGS}
    except (struct.error, KeyError, IndexError, ValueError):
        return None
    major = icc[8]
    elements = {b"desc": _text(b"desc", "RGB", major), b"cprt": _text(b"text", "none", major), **elements}
    table, body, places = struct.pack(">I", len(elements)), b"", {}
    for name, element in elements.items():
        if element not in places:  # the three curves are mostly one
            places[element] = ICC_HEADER + 4 + ICC_ENTRY * len(elements) + len(body)
            body += element + bytes(-len(element) % 4)
        table += struct.pack(">4sII", name, places[element], len(element))
    return _header(icc, ICC_HEADER + len(table) + len(body)) + table + body


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


# --- Profiles --------------------------------------------------------------------------------------------------------


def _tags(icc: bytes) -> dict[bytes, bytes]:
    """Name -> element, as far as the table says."""
    (count,) = struct.unpack_from(">I", icc, ICC_HEADER)
    tags = {}
    for n in range(min(count, 100)):
        name, start, size = struct.unpack_from(">4sII", icc, ICC_HEADER + 4 + ICC_ENTRY * n)
        tags[name] = icc[start : start + size]
    return tags


def _element(element: bytes) -> bytes:
    """The part of a tag's element that its type gives a meaning to.

    Raises:
        ValueError, struct.error, IndexError: another type, or it ends early.
    """
    kind, data = element[:4], element[8:]
    if kind == b"XYZ ":
        size = 12
    elif kind == b"sf32":  # the chromatic adaptation: 3 x 3
        size = 36
    elif kind == b"curv":
        size = 4 + 2 * struct.unpack_from(">I", data)[0]
    elif kind == b"para":
        (function,) = struct.unpack_from(">H", data)
        size = 4 + 4 * CURVE_PARAMETERS[function]
        data = data[:2] + bytes(2) + data[4:]
    else:
        raise ValueError(f"unknown type {kind!r}")
    if len(data) < size:
        raise ValueError("it ends early")
    return kind + bytes(4) + data[:size]


def _text(kind: bytes, text: str, major: int) -> bytes:
    """A text element: of type ``kind``, or, as profiles from version 4 on want it, in UTF-16."""
    if major >= 4:
        return struct.pack(">4s4xII4sII", b"mluc", 1, 12, b"enUS", 2 * len(text), 28) + text.encode("utf-16-be")
    letters = text.encode() + b"\0"
    if kind == b"text":
        return b"text" + bytes(4) + letters
    return struct.pack(">4s4xI", kind, len(letters)) + letters + bytes(78)  # no Unicode and no Macintosh form


def _header(icc: bytes, size: int) -> bytes:
    """Version, class and colour spaces as they were, no maker, model, flags or digest, and a date of nobody's."""
    version, purpose = icc[8:10], icc[12:16] if icc[12:16] in (b"mntr", b"scnr", b"prtr", b"spac") else b"mntr"
    date = struct.pack(">6H", 2000, 1, 1, 0, 0, 0)
    head = struct.pack(">I4x2s2x4s8s", size, version, purpose, icc[16:24]) + date + b"acsp" + bytes(28)
    return (head + D50).ljust(ICC_HEADER, b"\0")


# --- Exposure --------------------------------------------------------------------------------------------------------


def _within(tags: Mapping[int, object], ranges: Mapping[int, tuple[Fraction, Fraction]]) -> dict[int, object]:
    """The numbers among ``tags`` that lie within their range, rounded to what photographers write."""
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
    """What a HEIF or AVIF file holds in boxes that no picture needs, as motion photos do."""
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
    while marker := JPEG_MARKER.search(data, at):
        at = marker.end()
        if marker.group() == b"\xff\xd9":
            return len(data) - at
        if at + 2 <= len(data):
            at += struct.unpack_from(">H", data, at)[0]
    return 0
