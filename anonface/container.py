"""The record ANF1 that an anonymized photo carries: fields <-> bytes, and bytes <-> image files.

A record is public. It says which backend, parameters, weights, salts and quads lead back, and nothing of the key.
docs/format.md lays it out byte by byte. There is one encoding for every content, and :func:`decode` takes no other: a
flipped, missing or added byte is refused, and so is whatever only a newer version understands.

PNG, JPEG and WebP carry the record in pieces that other programs ignore; a sidecar file is the bare record.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from anonface.errors import ContainerError, LimitError
from anonface.keys import SALT_BYTES, Argon2

MAGIC = b"ANF1"
VERSION = 1
MAX_HEADER = 64 * 1024  # bytes
DIGEST_BYTES = 32
GRID = 16  # quads lie on a grid of 1/GRID px
KINDS = ("synth", "mosaic")  # in the order of their codes
CONSISTENT, STRETCHED = 1, 2  # flags

Parameter = str | int | float | bool
Point = tuple[float, float]

_FIXED_TAIL = 8 + DIGEST_BYTES + DIGEST_BYTES  # payload length, payload digest, header digest

PNG_SIGNATURE, PNG_TYPE = b"\x89PNG\r\n\x1a\n", b"anFC"
JPEG_START, JPEG_ID, JPEG_APP9 = b"\xff\xd8", b"ANONFACE\0", 0xE9
WEBP_TYPE = b"ANFC"
PNG_PIECE = 1024 * 1024  # bytes of the record a chunk; some readers refuse chunks above 8 MB
JPEG_PIECE = 0xFFFF - 2 - len(JPEG_ID)

_DAMAGED_HINT = "the file was cut or changed after it was written; use an intact copy"


def _producer() -> str:
    return importlib.metadata.version("anonface")


@dataclass(frozen=True)
class FaceEntry:
    """One face of a photo.

    Args:
        quad: the corners TL, BL, BR, TR of its aligned square as (x, y) in photo pixels, multiples of 1/16. They may
            lie outside the photo.
        kind: "synth" (another face was rendered; can be led back) or "mosaic" (covered for good).

    Raises:
        ValueError: not such a quad or kind.
    """

    quad: tuple[Point, ...]
    kind: str = "synth"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of face {self.kind!r}")
        if len(self.quad) != 4 or any(len(corner) != 2 for corner in self.quad):
            raise ValueError("a quad has four corners (x, y)")
        for value in (value for corner in self.quad for value in corner):
            if not math.isfinite(value) or value * GRID != int(value * GRID) or abs(value * GRID) >= 2**31:
                raise ValueError(f"a corner lies on a grid of 1/{GRID} px and within 2^27 px, {value!r} does not")


@dataclass(frozen=True)
class Header:
    """The fields of a record.

    Args:
        backend: the backend's name.
        parameters: what the backend needs to know for recovery; keys and str values up to 255 and 65535 UTF-8 bytes,
            int within 64 bits, float finite.
        flow_salt: the networks' salt, 16 bytes.
        consistent: whether the salt is the constant one and every face has index 0.
        kdf: how the key was stretched from a passphrase, None for key files.
        weights_digest: SHA-256 over the weights that were used, 32 bytes.
        canvas: the upright photo's (width, height) in pixels.
        faces: in the order of their indices.
        producer: the version of anonface that wrote the record.

    Raises:
        ValueError: a field is out of its range.
    """

    backend: str
    parameters: dict[str, Parameter]
    flow_salt: bytes
    consistent: bool
    kdf: Argon2 | None
    weights_digest: bytes
    canvas: tuple[int, int]
    faces: tuple[FaceEntry, ...]
    producer: str = field(default_factory=_producer)

    def __post_init__(self) -> None:
        if len(self.flow_salt) != SALT_BYTES or len(self.weights_digest) != DIGEST_BYTES:
            raise ValueError(f"a salt has {SALT_BYTES} bytes and a digest {DIGEST_BYTES}")
        if not all(0 < side < 2**32 for side in self.canvas):
            raise ValueError(f"a photo cannot have {self.canvas} pixels")
        for name in (self.backend, self.producer):
            if not name or not name.isascii() or not name.isprintable() or len(name) > 255:
                raise ValueError(f"a name is 1 to 255 printable ASCII characters, {name!r} is not")


def encode(header: Header) -> bytes:
    """Header -> record; the payload section is empty.

    Raises:
        LimitError: the header takes more than 64 KiB (some 1,900 faces).
        ValueError: a parameter is out of its range.
    """
    flags = (CONSISTENT if header.consistent else 0) | (STRETCHED if header.kdf else 0)
    parts = [_short(header.producer), struct.pack(">H", flags), header.flow_salt]
    if header.kdf:
        kdf = header.kdf
        parts.append(kdf.salt + struct.pack(">IHH", kdf.memory_kib, kdf.iterations, kdf.lanes))
    parts.append(_short(header.backend))
    parts.append(struct.pack(">H", len(header.parameters)))
    for name, value in sorted(header.parameters.items(), key=lambda item: item[0].encode()):
        parts.append(_short(name) + _value(value))
    parts.append(header.weights_digest)
    parts.append(struct.pack(">IIH", *header.canvas, min(len(header.faces), 0xFFFF)))
    for face in header.faces:
        corners = (int(value * GRID) for corner in face.quad for value in corner)
        parts.append(struct.pack(">B8i", KINDS.index(face.kind), *corners))
    payload = b""
    parts.append(struct.pack(">Q", len(payload)) + hashlib.sha256(payload).digest())
    body = b"".join(parts)
    size = len(MAGIC) + 5 + len(body) + DIGEST_BYTES
    if size > MAX_HEADER:
        raise LimitError(
            f"the record takes {size} bytes, {MAX_HEADER} is the limit ({len(header.faces)} faces)",
            "split the photo into parts with fewer faces",
        )
    head = MAGIC + struct.pack(">BI", VERSION, size) + body
    return head + hashlib.sha256(head).digest() + payload


def decode(record: bytes) -> Header:
    """Record -> header.

    Raises:
        ContainerError: not a record, damaged, not in canonical form, or only a newer version can read it (the message
            names the version).
        LimitError: its Argon2id parameters are out of bounds.
    """
    if record[:4] != MAGIC:
        raise ContainerError("not an anonface record", "give the image or the .anf file that anonface wrote")
    if len(record) < 9:
        raise _damaged("it ends early")
    version, size = struct.unpack_from(">BI", record, 4)
    if not 9 + _FIXED_TAIL <= size <= MAX_HEADER or size > len(record):
        raise _damaged("its length is wrong")
    if hashlib.sha256(record[: size - DIGEST_BYTES]).digest() != record[size - DIGEST_BYTES : size]:
        raise _damaged("its digest does not match")
    reader = _Reader(record[9 : size - DIGEST_BYTES])
    try:
        producer = reader.name()
        if version != VERSION:
            raise _newer(f"record version {version}", producer)
        header = _fields(reader, producer)
        length, digest = reader.unpack(">Q")[0], reader.take(DIGEST_BYTES)
        if reader.rest():
            raise _damaged("bytes are left over after its fields")
    except ValueError as error:
        raise _damaged(str(error)) from None
    payload = record[size:]
    if length != len(payload) or hashlib.sha256(payload).digest() != digest:
        raise _damaged("its payload does not match")
    if payload:
        raise _newer("a sealed payload", producer)
    return header


def describe(header: Header) -> dict[str, Any]:
    """The header as plain JSON values; bytes become hexadecimal."""
    kdf = header.kdf
    return {
        "format": f"{MAGIC.decode()}.{VERSION}",
        "producer": header.producer,
        "backend": header.backend,
        "parameters": dict(sorted(header.parameters.items())),
        "flow_salt": header.flow_salt.hex(),
        "consistent": header.consistent,
        "passphrase": kdf
        and {
            "salt": kdf.salt.hex(),
            "memory_kib": kdf.memory_kib,
            "iterations": kdf.iterations,
            "lanes": kdf.lanes,
        },
        "weights_sha256": header.weights_digest.hex(),
        "canvas": list(header.canvas),
        "faces": [{"kind": face.kind, "quad": [list(corner) for corner in face.quad]} for face in header.faces],
        "payload_bytes": 0,
    }


# --- Fields ----------------------------------------------------------------------------------------------------------


def _damaged(reason: str) -> ContainerError:
    return ContainerError(f"the anonface record is damaged: {reason}", _DAMAGED_HINT)


def _newer(what: str, producer: str) -> ContainerError:
    return ContainerError(
        f"the anonface record has {what}, which this version cannot read", f"it takes anonface {producer} or newer"
    )


def _short(text: str) -> bytes:
    data = text.encode()
    if not 0 < len(data) <= 255:
        raise ValueError(f"a name has 1 to 255 bytes, {text[:40]!r} does not")
    return bytes([len(data)]) + data


def _value(value: Parameter) -> bytes:
    """A parameter's value: a type letter, then its bytes."""
    if isinstance(value, bool):
        return b"b" + bytes([value])
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return b"i" + struct.pack(">q", value)
    if isinstance(value, float) and math.isfinite(value):
        return b"f" + struct.pack(">d", value + 0.0)  # the sum makes -0.0 the one zero
    if isinstance(value, str) and len(data := value.encode()) <= 0xFFFF:
        return b"s" + struct.pack(">H", len(data)) + data
    raise ValueError(f"a parameter is a string, a 64-bit integer, a finite float or a bool, {value!r} is not")


class _Reader:
    """Takes fields off the front of a header; a header that ends early is a ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise ValueError("its fields end early")
        self._at += size
        return self._data[self._at - size : self._at]

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def name(self) -> str:
        return self.take(self.take(1)[0]).decode()

    def rest(self) -> int:
        return len(self._data) - self._at


def _read_value(reader: _Reader) -> Parameter:
    """The inverse of :func:`_value`."""
    letter = reader.take(1)
    if letter == b"b":
        code = reader.take(1)[0]
        if code > 1:
            raise ValueError(f"a bool cannot be {code}")
        return bool(code)
    if letter == b"i":
        return int(reader.unpack(">q")[0])
    if letter == b"f":
        value = float(reader.unpack(">d")[0])
        if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
            raise ValueError(f"a number cannot be {value}")
        return value
    if letter == b"s":
        return reader.take(reader.unpack(">H")[0]).decode()
    raise ValueError(f"unknown type of parameter {letter!r}")


def _fields(reader: _Reader, producer: str) -> Header:
    """What lies between the producer and the payload section.

    Raises:
        ValueError: malformed.
        ContainerError: a flag or a kind of face is unknown.
        LimitError: the Argon2id parameters are out of bounds.
    """
    (flags,) = reader.unpack(">H")
    if flags & ~(CONSISTENT | STRETCHED):
        raise _newer(f"flags {flags:#06x}", producer)
    flow_salt = reader.take(SALT_BYTES)
    kdf = Argon2(reader.take(SALT_BYTES), *reader.unpack(">IHH")) if flags & STRETCHED else None
    backend = reader.name()
    parameters: dict[str, Parameter] = {}
    last = b""
    for _ in range(reader.unpack(">H")[0]):
        name = reader.name()
        if name.encode() <= last:
            raise ValueError("its parameters are not in order")
        last = name.encode()
        parameters[name] = _read_value(reader)
    weights_digest = reader.take(DIGEST_BYTES)
    width, height, count = reader.unpack(">IIH")
    faces = []
    for _ in range(count):
        kind, *corners = reader.unpack(">B8i")
        if kind >= len(KINDS):
            raise _newer(f"a face of kind {kind}", producer)
        values = [corner / GRID for corner in corners]
        faces.append(FaceEntry(tuple(zip(values[::2], values[1::2], strict=True)), KINDS[kind]))
    return Header(
        backend=backend,
        parameters=parameters,
        flow_salt=flow_salt,
        consistent=bool(flags & CONSISTENT),
        kdf=kdf,
        weights_digest=weights_digest,
        canvas=(width, height),
        faces=tuple(faces),
        producer=producer,
    )


# --- Carriers --------------------------------------------------------------------------------------------------------


def embed(image: bytes, record: bytes) -> bytes:
    """An image file -> the same file carrying ``record`` instead of any it carried. Its pixels are not touched.

    Raises:
        ContainerError: not a PNG, JPEG or WebP file, or its structure is broken.
    """
    carrier = _carrier(image)
    if carrier is None:
        raise ContainerError(
            "only PNG, JPEG and WebP files can carry a record", "write one of these, or keep the record with --sidecar"
        )
    return carrier.join([(place, data) for place, data, mine in carrier.split(image) if not mine], record)


def extract(image: bytes) -> bytes | None:
    """The record that an image file carries (or is, being a sidecar), not yet decoded.

    None means that a whole PNG, JPEG or WebP file carries none, or that the bytes are of no kind that could.

    Raises:
        ContainerError: the file's structure is broken, so that a record may be lost in it.
    """
    if image[:4] == MAGIC:
        return image
    carrier = _carrier(image)
    if carrier is None:
        return None
    pieces = [carrier.content(data) for _, data, mine in carrier.split(image) if mine]
    return b"".join(pieces) if pieces else None


def strip(image: bytes) -> bytes:
    """The image file without its record; other bytes stay as they are.

    Raises:
        ContainerError: not a PNG, JPEG or WebP file, or its structure is broken.
    """
    return embed(image, b"")


Part = tuple[str, bytes, bool]  # where it stands ("head" or "tail"), its bytes, whether it holds a piece of the record


class _Png:
    """Pieces are ``anFC`` chunks before the first IDAT: ancillary, private, not safe to copy."""

    @staticmethod
    def split(image: bytes) -> Iterator[Part]:
        yield "head", image[:8], False
        at, place, kind = 8, "head", b""
        while kind != b"IEND":
            if at + 12 > len(image):
                raise _broken("PNG")
            size, kind = struct.unpack_from(">I4s", image, at)
            end = at + 12 + size
            if end > len(image):
                raise _broken("PNG")
            if kind in (b"IDAT", b"IEND"):
                place = "tail"
            yield place, image[at:end], kind == PNG_TYPE
            at = end
        yield "tail", image[at:], False

    @staticmethod
    def content(chunk: bytes) -> bytes:
        if zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:], "big"):
            raise _damaged("the checksum of its PNG chunk does not match")
        return chunk[8:-4]

    @staticmethod
    def join(parts: list[tuple[str, bytes]], record: bytes) -> bytes:
        chunks = [
            struct.pack(">I", len(piece)) + PNG_TYPE + piece + struct.pack(">I", zlib.crc32(PNG_TYPE + piece))
            for piece in _pieces(record, PNG_PIECE)
        ]
        return _inserted(parts, chunks)


class _Jpeg:
    """Pieces are APP9 segments ``ANONFACE\\0``, the last of the APPn segments that lead the file."""

    @staticmethod
    def split(image: bytes) -> Iterator[Part]:
        yield "head", image[:2], False
        at, place = 2, "head"
        while True:
            start = at
            while image[at : at + 2] == b"\xff\xff":  # fill bytes
                at += 1
            if at + 4 > len(image) or image[at] != 0xFF:
                raise _broken("JPEG")
            marker, size = struct.unpack_from(">xBH", image, at)
            end = at + 2 + size
            if size < 2 or end > len(image):
                raise _broken("JPEG")
            if not 0xE0 <= marker <= 0xEF:
                place = "tail"
            if marker == 0xDA:  # the scan begins: entropy-coded data, no more segments for us
                yield "tail", image[start:], False
                return
            yield place, image[start:end], marker == JPEG_APP9 and image[at + 4 : end].startswith(JPEG_ID)
            at = end

    @staticmethod
    def content(segment: bytes) -> bytes:
        return segment.lstrip(b"\xff")[3 + len(JPEG_ID) :]

    @staticmethod
    def join(parts: list[tuple[str, bytes]], record: bytes) -> bytes:
        segments = [
            struct.pack(">BBH", 0xFF, JPEG_APP9, 2 + len(JPEG_ID) + len(piece)) + JPEG_ID + piece
            for piece in _pieces(record, JPEG_PIECE)
        ]
        return _inserted(parts, segments)


class _Webp:
    """The record is one RIFF chunk ``ANFC``, the last of the file's chunks."""

    @staticmethod
    def split(image: bytes) -> Iterator[Part]:
        stop = 8 + int.from_bytes(image[4:8], "little")
        if stop > len(image):
            raise _broken("WebP")
        yield "head", image[:12], False
        at = 12
        while at < stop:
            if at + 8 > stop:
                raise _broken("WebP")
            kind, size = struct.unpack_from("<4sI", image, at)
            end = at + 8 + size + size % 2
            if end > stop:
                raise _broken("WebP")
            yield "head", image[at:end], kind == WEBP_TYPE
            at = end
        yield "tail", image[stop:], False

    @staticmethod
    def content(chunk: bytes) -> bytes:
        size = int.from_bytes(chunk[4:8], "little")
        if any(chunk[8 + size :]):
            raise _damaged("the padding of its WebP chunk is not zero")
        return chunk[8 : 8 + size]

    @staticmethod
    def join(parts: list[tuple[str, bytes]], record: bytes) -> bytes:
        chunk = WEBP_TYPE + struct.pack("<I", len(record)) + record + bytes(len(record) % 2)
        image = _inserted(parts, [chunk] if record else [])
        trailer = sum(len(data) for place, data in parts if place == "tail")
        return image[:4] + struct.pack("<I", len(image) - trailer - 8) + image[8:]


def _carrier(image: bytes) -> type[_Png] | type[_Jpeg] | type[_Webp] | None:
    if image.startswith(PNG_SIGNATURE):
        return _Png
    if image.startswith(JPEG_START):
        return _Jpeg
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return _Webp
    return None


def _broken(kind: str) -> ContainerError:
    return ContainerError(f"the {kind} file's structure is broken, a record may be lost in it", _DAMAGED_HINT)


def _pieces(record: bytes, size: int) -> list[bytes]:
    return [record[at : at + size] for at in range(0, len(record), size)]


def _inserted(parts: list[tuple[str, bytes]], pieces: list[bytes]) -> bytes:
    """The file with ``pieces`` between its head and its tail."""
    head = [data for place, data in parts if place == "head"]
    tail = [data for place, data in parts if place == "tail"]
    return b"".join(head + pieces + tail)
