"""HEIF and AVIF containers: properties of the primary picture."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor

FULL = 4  # bytes, of version and flags before what some boxes hold
MAX_BOXES = 10_000

Properties = dict[bytes, list[bytes]]
"""Type -> contents of the properties of that type."""


def properties(data: bytes) -> Properties:
    """The properties of the primary picture: ``clap``, ``irot``, ``colr``, ``pasp`` and others.

    Raises:
        ValueError: the container is broken, or has no primary picture.
    """
    try:
        meta = dict(_boxes(dict(_boxes(data))[b"meta"][FULL:]))
        primary = int.from_bytes(meta[b"pitm"][FULL:])
        described = dict(_boxes(meta[b"iprp"]))
        all_of_them = list(_boxes(described[b"ipco"]))
        found: Properties = {}
        for number in _associated(described[b"ipma"], primary):
            kind, body = all_of_them[number - 1]
            found.setdefault(kind, []).append(body)
    except (struct.error, KeyError, IndexError):
        raise ValueError("its container is broken") from None
    return found


def crop(clap: bytes, width: int, height: int) -> tuple[int, int, int, int]:
    """A clean aperture -> left, top, right, bottom in pixels; edges between pixels are moved inwards.

    Args:
        clap: what the property holds.
        width, height: of the picture before anything is applied, in pixels.

    Raises:
        ValueError: it is broken, or does not lie in the picture.
    """
    try:
        wide, high, across, down = (
            Fraction(*pair) for pair in zip(*[iter(struct.unpack_from(">IIIIiIiI", clap))] * 2, strict=True)
        )
    except (struct.error, ZeroDivisionError):
        raise ValueError("its clean aperture is broken") from None
    left, top = (width - wide) / 2 + across, (height - high) / 2 + down
    right, bottom = left + wide, top + high
    box = ceil(left), ceil(top), floor(right), floor(bottom)
    inside = left >= 0 and top >= 0 and right <= width and bottom <= height
    if not (inside and box[0] < box[2] and box[1] < box[3]):
        raise ValueError("its clean aperture does not lie in the picture")
    return box


def colours(found: Properties) -> tuple[bytes | None, tuple[int, int] | None]:
    """The ICC profile, and the code points of primaries and transfer (as H.273 numbers them), of a picture."""
    icc = codes = None
    for body in found.get(b"colr", []):
        if body[:4] in (b"prof", b"rICC"):
            icc = body[4:]
        elif body[:4] == b"nclx" and len(body) >= 8:
            codes = struct.unpack_from(">HH", body, 4)
    return icc, codes


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The boxes of one level in ``data``: type and content."""
    at = 0
    for _ in range(MAX_BOXES):
        if at + 8 > len(data):
            return
        size, kind = struct.unpack_from(">I4s", data, at)
        start = at + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start)
            start += 8
        elif size == 0:
            size = len(data) - at
        if size < start - at:
            return
        yield kind, data[start : at + size]
        at += size


def _associated(ipma: bytes, item: int) -> list[int]:
    """The numbers of the properties of an item, from 1, in the order in which they apply."""
    version, flags = ipma[0], ipma[3]
    (count,) = struct.unpack_from(">I", ipma, FULL)
    at = FULL + 4
    for _ in range(min(count, MAX_BOXES)):
        identity = struct.unpack_from(">I" if version else ">H", ipma, at)[0]
        at += 4 if version else 2
        number = ipma[at]
        wide = flags & 1
        entries = struct.unpack_from(f">{number}{'H' if wide else 'B'}", ipma, at + 1)
        if identity == item:
            return [entry & (0x7FFF if wide else 0x7F) for entry in entries if entry & (0x7FFF if wide else 0x7F)]
        at += 1 + number * (2 if wide else 1)
    return []
