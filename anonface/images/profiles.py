"""ICC profiles: read as numbers and written anew, or made of primaries, a white point and a curve.

A profile that leaves here says colours and nothing else: no name, maker, date, copyright or private tag.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ICC = 1024 * 1024  # bytes; Pillow opens no PNG with a larger profile
ICC_HEADER, ICC_ENTRY = 128, 12  # bytes; of the header, and of one line of the table of tags
COLOUR_TAGS = (b"wtpt", b"chad", b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC")
OPTIONAL_TAGS = {b"chad"}
CURVE_PARAMETERS = (1, 3, 4, 5, 7)  # of parametric curves, by their function type
D50 = struct.pack(">3i", 63190, 65536, 54061)  # s15Fixed16
PIXEL_CLASSES = (b"mntr", b"scnr", b"prtr", b"spac")  # classes of pixel colours, without links and named colours
SRGB_CURVE = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)  # g, a, b, c, d of a parametric curve of type 3
BRADFORD = ((0.8951, 0.2664, -0.1614), (-0.7502, 1.7135, 0.0367), (0.0389, -0.0685, 1.0296))

Point = tuple[float, float]
"""CIE 1931 x, y."""


@dataclass(frozen=True)
class Space:
    """An RGB colour space.

    Args:
        red, green, blue, white: the chromaticities of its primaries and of its white.
        gamma: its light is ``value ** gamma``; None for the curve of sRGB.
    """

    red: Point
    green: Point
    blue: Point
    white: Point
    gamma: float | None = None


def colour_profile(icc: bytes) -> bytes | None:
    """An RGB profile of primaries, white point and curves -> the same colours, without its other content.

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
    purpose = icc[12:16] if icc[12:16] in PIXEL_CLASSES else b"mntr"
    return _assembled(icc[8:10], purpose, elements)


def profile_of(space: Space) -> bytes:
    """A colour space -> its ICC profile, as :func:`colour_profile` would write it.

    Raises:
        ValueError: its chromaticities span no space.
    """
    import numpy as np

    white = _xyz(space.white)
    unscaled = np.stack([_xyz(point) for point in (space.red, space.green, space.blue)], 1)
    bradford = np.array(BRADFORD)
    d50 = np.array([0.9642, 1, 0.8249])
    try:
        adapted = np.linalg.inv(bradford) @ np.diag((bradford @ d50) / (bradford @ white)) @ bradford
        columns = adapted @ unscaled @ np.diag(np.linalg.solve(unscaled, white))
    except np.linalg.LinAlgError:
        raise ValueError("the primaries lie on a line") from None
    if not (np.isfinite(columns).all() and np.abs(columns).max() < 4 and (np.linalg.solve(unscaled, white) > 0).all()):
        raise ValueError("the primaries span no space")
    kind, parameters = (3, SRGB_CURVE) if space.gamma is None else (0, (space.gamma,))
    curve = b"para" + bytes(4) + struct.pack(">H2x", kind) + _fixed(*parameters)
    elements = {
        b"wtpt": b"XYZ " + bytes(4) + D50,
        b"chad": b"sf32" + bytes(4) + _fixed(*adapted.ravel()),
        **{name: b"XYZ " + bytes(4) + _fixed(*columns[:, n]) for n, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))},
        **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve),
    }
    return _assembled(b"\x04\x20", b"mntr", elements)


def coded(icc: bytes) -> bytes | None:
    """The four bytes of a profile's ``cicp`` tag (primaries, transfer, matrix, full range), or None."""
    try:
        element = _tags(icc).get(b"cicp", b"")
    except struct.error:
        return None
    return element[8:12] if element[:4] == b"cicp" and len(element) >= 12 else None


# --- Parts -----------------------------------------------------------------------------------------------------------


def _xyz(point: Point) -> NDArray[np.float64]:
    """A chromaticity as XYZ of luminance 1.

    Raises:
        ValueError: it is no colour.
    """
    import numpy as np

    x, y = point
    if not (0 <= x <= 1 and 0 < y <= 1):
        raise ValueError("no chromaticity")
    return np.array([x / y, 1.0, (1 - x - y) / y])


def _fixed(*values: float) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(float(value) * 65536) for value in values))


def _assembled(version: bytes, purpose: bytes, elements: Mapping[bytes, bytes]) -> bytes:
    """A whole RGB profile of its elements."""
    major = version[0]
    elements = {b"desc": _text(b"desc", "RGB", major), b"cprt": _text(b"text", "none", major), **elements}
    table, body, places = struct.pack(">I", len(elements)), b"", {}
    for name, element in elements.items():
        if element not in places:  # the three curves are often the same
            places[element] = ICC_HEADER + 4 + ICC_ENTRY * len(elements) + len(body)
            body += element + bytes(-len(element) % 4)
        table += struct.pack(">4sII", name, places[element], len(element))
    return _header(version, purpose, ICC_HEADER + len(table) + len(body)) + table + body


def _tags(icc: bytes) -> dict[bytes, bytes]:
    """Name -> element, from the table of tags."""
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


def _header(version: bytes, purpose: bytes, size: int) -> bytes:
    """Version and class, no maker, model, flags or digest, and a constant date."""
    date = struct.pack(">6H", 2000, 1, 1, 0, 0, 0)
    head = struct.pack(">I4x2s2x4s8s", size, version, purpose, b"RGB XYZ ") + date + b"acsp" + bytes(28)
    return (head + D50).ljust(ICC_HEADER, b"\0")
