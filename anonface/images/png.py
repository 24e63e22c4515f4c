"""PNG chunks, and whether a picture has all its rows: Pillow leaves missing ones black."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from anonface.errors import ImageError

SIGNATURE_SIZE = 8
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
PIECE = 1 << 20  # bytes, unpacked at once


def chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Type and content of each chunk, up to the end of the picture or of the file."""
    view, at, kind = memoryview(data), SIGNATURE_SIZE, b""
    while kind != b"IEND" and at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, view[at + 8 : at + 8 + size]
        at += 12 + size


def code_points(data: bytes) -> tuple[int, int, int, int] | None:
    """The ``cICP`` chunk: primaries, transfer, matrix (as H.273 numbers them), full range; None where there is none."""
    for kind, content in chunks(data):
        if kind == b"IDAT":
            return None
        if kind == b"cICP" and len(content) == 4:
            return content[0], content[1], content[2], content[3]
    return None


def check_rows(data: bytes, label: str) -> None:
    """Refuse a picture that ends before its last row.

    Args:
        data: a PNG whose checksums are right.
        label: the file's name, for messages.

    Raises:
        ImageError: it does.
    """
    missing = None
    unpack = zlib.decompressobj()
    for kind, content in chunks(data):
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", content)
            bits = depth * CHANNELS[colour]
            missing = sum(-(-wide * bits // 8) * high + high for wide, high in _passes(width, height, interlaced))
        elif kind == b"IDAT" and missing is not None:
            piece: bytes | memoryview = content
            while piece and missing > 0 and not unpack.eof:
                missing -= len(unpack.decompress(piece, PIECE))
                piece = unpack.unconsumed_tail
    if missing is None or missing > 0:
        raise ImageError(f"{label} is truncated: its last rows are missing", "use an intact copy")


def _passes(width: int, height: int, interlaced: int) -> Iterator[tuple[int, int]]:
    """The sizes of the pictures that a PNG's rows make up; empty ones have no rows."""
    if not interlaced:
        yield width, height
        return
    for left, top, across, down in ADAM7:
        wide, high = -(-(width - left) // across), -(-(height - top) // down)
        if wide > 0 and high > 0:
            yield wide, high
