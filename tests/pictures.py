"""Small pictures and image files, made in memory."""

import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageCms


def scene(height: int = 24, width: int = 32) -> np.ndarray:
    """Smooth, and different in every corner."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1).astype(np.uint8)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + body


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def grey_of_inks() -> bytes:
    """A whole ICC profile for CMYK in which paper is white, black ink is black and any other ink L* = 50."""

    def numbers(*values: float) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65536)) for value in values)

    white = numbers(0.9642, 1, 0.8249)
    inks = b"".join(bytes([255 if n == 0 else 0 if n & 1 else 128, 128, 128]) for n in range(16))
    table = b"mft1\0\0\0\0\x04\x03\x02\0" + numbers(1, 0, 0, 0, 1, 0, 0, 0, 1)
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + bytes(79),
        b"cprt": b"text\0\0\0\0none\0\0\0\0",
        b"wtpt": b"XYZ \0\0\0\0" + white,
        b"A2B0": table + bytes(range(256)) * 4 + inks + bytes(range(256)) * 3,
    }
    index, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        index += name + struct.pack(">II", 132 + 12 * len(tags) + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size = 128 + len(index) + len(body)
    head = struct.pack(">I4xI4s4s4s12x4s28x", size, 0x02400000, b"prtr", b"CMYK", b"Lab ", b"acsp") + white
    return head.ljust(128, b"\0") + index + body


def grey_profile() -> bytes:
    """An ICC profile for grey of gamma 1.8."""
    white = struct.pack(">3i", 63190, 65536, 54061)
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + bytes(79),
        b"cprt": b"text\0\0\0\0none\0\0\0\0",
        b"wtpt": b"XYZ \0\0\0\0" + white,
        b"kTRC": b"curv\0\0\0\0" + struct.pack(">IH", 1, 0x01CD),
    }
    index, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        index += name + struct.pack(">II", 132 + 12 * len(tags) + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size = 128 + len(index) + len(body)
    head = struct.pack(">I4xI4s4s4s12x4s28x", size, 0x02400000, b"mntr", b"GRAY", b"XYZ ", b"acsp") + white
    return head.ljust(128, b"\0") + index + body


# --- HEIF and AVIF ---------------------------------------------------------------------------------------------------


def boxed(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def clean_aperture(width: tuple, height: tuple, across: tuple, down: tuple) -> bytes:
    """A ``clap`` property of fractions."""
    return boxed(b"clap", struct.pack(">IIIIiIiI", *width, *height, *across, *down))


def find_box(data: bytes, *path: bytes) -> tuple[int, int]:
    """Where a box lies, and its size."""
    at, end = 0, len(data)
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind == path[0]:
            if len(path) == 1:
                return at, size
            inner = at + (12 if kind == b"meta" else 8)
            start, length = find_box(data[inner : at + size], *path[1:])
            return inner + start, length
        at += size
    raise KeyError(path)


def with_properties(data: bytes, *properties: bytes) -> bytes:
    """A HEIF or AVIF file whose first item has further properties, the last in their order."""
    for made in properties:
        file = bytearray(data)
        start, size = find_box(file, b"meta", b"iprp", b"ipco")
        count, at = 0, start + 8
        while at < start + size:
            at += int.from_bytes(file[at : at + 4])
            count += 1
        first = find_box(file, b"meta", b"iprp", b"ipma")[0] + 18  # the number of the first item's properties
        file.insert(first + 1 + file[first], 0x80 | (count + 1))
        file[first] += 1
        file[start + size : start + size] = made
        grown = {
            (b"meta",): len(made) + 1,
            (b"meta", b"iprp"): len(made) + 1,
            (b"meta", b"iprp", b"ipco"): len(made),
            (b"meta", b"iprp", b"ipma"): 1,
        }
        for path, more in grown.items():
            at = find_box(file, *path)[0]
            struct.pack_into(">I", file, at, int.from_bytes(file[at : at + 4]) + more)
        at = find_box(file, b"meta", b"iloc")[0]
        version, base = file[at + 8], file[at + 13] >> 4
        items, at = int.from_bytes(file[at + 14 : at + 16]), at + 16
        for _ in range(items):
            at += 2 + (2 if version else 0) + 2 + base
            extents, at = int.from_bytes(file[at : at + 2]), at + 2
            for _ in range(extents):
                struct.pack_into(">I", file, at, int.from_bytes(file[at : at + 4]) + len(made) + 1)
                at += 8
        data = bytes(file)
    return data
