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
