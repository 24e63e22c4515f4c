"""Image files that carry a record: PNG, JPEG and WebP hold it in parts that other programs ignore.

A sidecar file is the bare record. No picture is decoded here; other software's chunks may stand anywhere, and stay
where they are.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from anonface.errors import ContainerError
from anonface.record import anf1
from anonface.record.anf1 import DAMAGED_HINT, MAGIC, damaged, decode, payload

PNG_SIGNATURE, PNG_TYPE = b"\x89PNG\r\n\x1a\n", b"anFC"
JPEG_START, JPEG_ID, JPEG_APP9, JPEG_COMMENT = b"\xff\xd8", b"ANONFACE\0", 0xE9, 0xFE
WEBP_TYPE = b"ANFC"
PNG_PIECE = 1024 * 1024  # bytes of the record a chunk; some readers refuse chunks above 8 MB
JPEG_PIECE = 0xFFFF - 2 - len(JPEG_ID)
EXPOSED = (
    "it must be treated as exposed: an earlier version made it with --consistent, and by several such photos of one key"
    " the originals can be found; make it anew"
)
_TO_RECOVER = "give its record with --sidecar; use --stateless only for a photo that was made with --stateless"


def embed(image: bytes, record: bytes) -> bytes:
    """An image file -> the same file carrying ``record`` instead of any it carried. Its pixels are not touched.

    Raises:
        ContainerError: not a PNG, JPEG or WebP file, or its structure is broken.
    """
    return b"".join(embedded(image, record))


def embedded(image: bytes, record: bytes) -> list[bytes | memoryview]:
    """The file of :func:`embed` in pieces, to be written in order, so that no large part is copied."""
    carrier = _needed(image)
    return carrier.join([part for part in carrier.split(image) if part.role != "record"], record)


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
    pieces = [carrier.content(part.data) for part in carrier.split(image) if part.role == "record"]
    return b"".join(pieces) if pieces else None


def expect(image: bytes, name: str, hint: str = _TO_RECOVER) -> bytes:
    """:func:`extract` where there must be a record.

    Args:
        name: the file's, for messages.
        hint: what can be done where there is none.

    Raises:
        ContainerError: there is none, or the file's structure is broken.
    """
    try:
        record = extract(image)
    except ContainerError as error:
        raise ContainerError(f"{name!r}: {error.message}", error.hint) from error
    if record is None:
        raise ContainerError(f"{name!r} carries no anonface record (saving it with another program drops it)", hint)
    return record


def describe(image: bytes, name: str) -> dict[str, Any]:
    """The public data of an anonymized photo or a sidecar, as plain JSON values.

    Raises:
        ContainerError: as :func:`expect` and :func:`anonface.record.anf1.decode`.
    """
    record = expect(image, name, "name its sidecar, if it has one; a photo made with --stateless has no record")
    header = decode(record)
    needs = ["the passphrase" if header.kdf else "the key file"]
    notes = [EXPOSED] if anf1.exposed(header) else []
    if header.tier == "face":
        needs.append("the picture with every pixel as it was written")
    elif header.tier == "none":
        needs.append(f"the networks of backend {header.backend}, weights {header.weights_digest.hex()[:16]}")
    return {
        **anf1.describe(header, len(payload(record))),
        "carrier": kind(image),
        "file_bytes": len(image),
        "record_bytes": len(record),
        "needs": needs,
        "notes": notes,
    }


def strip(image: bytes) -> bytes:
    """The image file without its record; other bytes stay as they are.

    Raises:
        ContainerError: not a PNG, JPEG or WebP file, or its structure is broken.
    """
    return embed(image, b"")


def picture_digest(image: bytes) -> bytes:
    """SHA-256 over the bytes of an image file that hold its picture: records, metadata and profiles do not count.

    Raises:
        ContainerError: not a PNG, JPEG or WebP file, or its structure is broken.
    """
    carrier = _needed(image)
    digest = hashlib.sha256()
    for part in carrier.split(image):
        if part.role == "picture":
            digest.update(carrier.content(part.data))
    return digest.digest()


def kind(data: bytes) -> str:
    """The kind of a file: "png", "jpeg", "webp", "sidecar" or "other"."""
    if data[:4] == MAGIC:
        return "sidecar"
    carrier = _carrier(data)
    return carrier.NAME if carrier else "other"


class Part(NamedTuple):
    """A part of an image file: its bytes, its content, and whether a record goes after or before it."""

    place: Literal["head", "tail"]
    data: memoryview
    role: Literal["record", "picture", "other"] = "other"


class _Png:
    """Pieces are ``anFC`` chunks before the first IDAT: ancillary, private, not safe to copy."""

    NAME = "png"
    PICTURE = (b"IHDR", b"PLTE", b"tRNS", b"IDAT")

    @classmethod
    def split(cls, image: bytes) -> Iterator[Part]:
        view = memoryview(image)
        yield Part("head", view[:8])
        at, kind = 8, b""
        place: Literal["head", "tail"] = "head"
        while kind != b"IEND":
            if at + 12 > len(image):
                raise _broken("PNG")
            size, kind = struct.unpack_from(">I4s", image, at)
            end = at + 12 + size
            if end > len(image):
                raise _broken("PNG")
            if kind in (b"IDAT", b"IEND"):
                place = "tail"
            yield Part(
                place, view[at:end], "record" if kind == PNG_TYPE else "picture" if kind in cls.PICTURE else "other"
            )
            at = end
        yield Part("tail", view[at:])

    @staticmethod
    def content(chunk: memoryview) -> memoryview:
        if zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:], "big"):
            raise damaged("the checksum of its PNG chunk does not match")
        return chunk[8:-4]

    @staticmethod
    def join(parts: list[Part], record: bytes) -> list[bytes | memoryview]:
        chunks: list[bytes | memoryview] = []
        for piece in _pieces(record, PNG_PIECE):
            checksum = zlib.crc32(piece, zlib.crc32(PNG_TYPE))
            chunks += [struct.pack(">I", len(piece)) + PNG_TYPE, piece, struct.pack(">I", checksum)]
        return _inserted(parts, chunks)


class _Jpeg:
    """Pieces are APP9 segments ``ANONFACE\\0``, the last of the APPn segments at the start of the file."""

    NAME = "jpeg"

    @staticmethod
    def split(image: bytes) -> Iterator[Part]:
        view = memoryview(image)
        yield Part("head", view[:2])
        at = 2
        place: Literal["head", "tail"] = "head"
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
            is_app = 0xE0 <= marker <= 0xEF
            if not is_app:
                place = "tail"
            if marker == 0xDA:  # the scan begins: entropy-coded data, no more segments for us
                yield Part("tail", view[start:], "picture")
                return
            mine = marker == JPEG_APP9 and image.startswith(JPEG_ID, at + 4, end)
            yield Part(
                place, view[start:end], "record" if mine else "other" if is_app or marker == JPEG_COMMENT else "picture"
            )
            at = end

    @staticmethod
    def content(segment: memoryview) -> memoryview:
        at = 0
        while segment[at + 1] == 0xFF:  # fill bytes
            at += 1
        mine = segment[at + 1] == JPEG_APP9
        return segment[at + 4 + len(JPEG_ID) :] if mine else segment[at:]

    @staticmethod
    def join(parts: list[Part], record: bytes) -> list[bytes | memoryview]:
        segments: list[bytes | memoryview] = []
        for piece in _pieces(record, JPEG_PIECE):
            size = 2 + len(JPEG_ID) + len(piece)
            segments += [struct.pack(">BBH", 0xFF, JPEG_APP9, size) + JPEG_ID, piece]
        return _inserted(parts, segments)


class _Webp:
    """The record is one RIFF chunk ``ANFC``, the last of the file's chunks."""

    NAME = "webp"
    PICTURE = (b"VP8 ", b"VP8L", b"ALPH")

    @classmethod
    def split(cls, image: bytes) -> Iterator[Part]:
        view = memoryview(image)
        stop = 8 + int.from_bytes(image[4:8], "little")
        if stop > len(image):
            raise _broken("WebP")
        yield Part("head", view[:12])
        at = 12
        while at < stop:
            if at + 8 > stop:
                raise _broken("WebP")
            kind, size = struct.unpack_from("<4sI", image, at)
            end = at + 8 + size + size % 2
            if end > stop:
                raise _broken("WebP")
            yield Part(
                "head", view[at:end], "record" if kind == WEBP_TYPE else "picture" if kind in cls.PICTURE else "other"
            )
            at = end
        yield Part("tail", view[stop:])

    @staticmethod
    def content(chunk: memoryview) -> memoryview:
        size = int.from_bytes(chunk[4:8], "little")
        if any(chunk[8 + size :]):
            raise damaged("the padding of its WebP chunk is not zero")
        return chunk[8 : 8 + size]

    @staticmethod
    def join(parts: list[Part], record: bytes) -> list[bytes | memoryview]:
        chunk: list[bytes | memoryview] = (
            [WEBP_TYPE + struct.pack("<I", len(record)), memoryview(record), bytes(len(record) % 2)] if record else []
        )
        body = [part for part in parts if part.place == "head"][1:]
        size = len(b"WEBP") + sum(len(piece) for piece in (*(part.data for part in body), *chunk))
        start = Part("head", memoryview(b"RIFF" + struct.pack("<I", size) + b"WEBP"))
        return _inserted([start, *body, *(part for part in parts if part.place == "tail")], chunk)


def _carrier(image: bytes) -> type[_Png] | type[_Jpeg] | type[_Webp] | None:
    if image.startswith(PNG_SIGNATURE):
        return _Png
    if image.startswith(JPEG_START):
        return _Jpeg
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return _Webp
    return None


def _needed(image: bytes) -> type[_Png] | type[_Jpeg] | type[_Webp]:
    carrier = _carrier(image)
    if carrier is None:
        raise ContainerError(
            "only PNG, JPEG and WebP files can carry a record", "write one of these, or keep the record with --sidecar"
        )
    return carrier


def _broken(kind: str) -> ContainerError:
    return ContainerError(f"the {kind} file's structure is broken, a record may be lost in it", DAMAGED_HINT)


def _pieces(record: bytes, size: int) -> list[memoryview]:
    return [memoryview(record)[at : at + size] for at in range(0, len(record), size)]


def _inserted(parts: list[Part], pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """A file's pieces, with the record's between its head and its tail."""
    head = [part.data for part in parts if part.place == "head"]
    tail = [part.data for part in parts if part.place == "tail"]
    return [*head, *pieces, *tail]
