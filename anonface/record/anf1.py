"""The record ANF1 that an anonymized photo carries: fields <-> bytes.

A record is a header and a payload. The header is public: it says which backend, parameters, weights, salts and quads
recover, and nothing of the key. Only the key can read the payload, see :mod:`anonface.record.sealing`.
docs/format.md lays it out byte by byte. There is one encoding for every content, and :func:`decode` takes no other: a
flipped, missing or added byte is refused, and so is whatever only a newer version understands.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anonface.crypto.keys import SALT_BYTES, Argon2
from anonface.errors import ContainerError, LimitError, count

MAGIC = b"ANF1"
VERSION = 1
MAX_HEADER = 64 * 1024  # bytes
DIGEST_BYTES = 32
GRID = 16  # quads are on a grid of 1/GRID px
KINDS = ("synth", "mosaic")  # in the order of their codes
NONCES = "nonces"  # the parameter that holds the nonces of the faces' payloads, since version 6 of the watermark
REGIONS = "regions"  # the parameter that names the regions that stayed; followed by a face's number, their outlines
ORIGINAL = "sealed"  # the parameter that is true where an original was sealed into the record when it was made
# The backends whose photos of one key shared a keystream up to version 5; no other is added.
MARKED = ("ifadit", "diffusion", "dbaf", "hford")
CONSISTENT, STRETCHED, SEALED = 1, 2, 4  # flags

Tier = Literal["none", "face", "file"]
TIERS: tuple[Tier, ...] = ("none", "face", "file")  # in the order of their codes
Parameter = str | int | float | bool
Point = tuple[float, float]

_FIXED_TAIL = 8 + DIGEST_BYTES + DIGEST_BYTES  # payload length, payload digest, header digest

DAMAGED_HINT = "the file was cut or changed after it was written; use an intact copy"


def _producer() -> str:
    return importlib.metadata.version("anonface")


@dataclass(frozen=True)
class FaceEntry:
    """One face of a photo.

    Args:
        quad: the corners TL, BL, BR, TR of its aligned square as (x, y) in photo pixels, multiples of 1/16. They may
            lie outside the photo.
        kind: "synth" (another face was rendered; can be recovered) or "mosaic" (covered for good).

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
class Seal:
    """The public data of an encrypted payload.

    Args:
        tier: what it restores: the "file", the "face" pixels, or "none" if it holds only the networks' key.
        salt: the seal's own salt, 16 bytes.
        check: identifies the right key, 32 bytes.

    Raises:
        ValueError: a field is out of its range.
    """

    tier: Tier
    salt: bytes
    check: bytes

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ValueError(f"unknown tier {self.tier!r}")
        if len(self.salt) != SALT_BYTES or len(self.check) != DIGEST_BYTES:
            raise ValueError(f"a seal has {SALT_BYTES} bytes of salt and {DIGEST_BYTES} of check")


@dataclass(frozen=True)
class FaceChecks:
    """What a detector and a recognizer say of one face.

    Args:
        found_before: whether the detector found it in the original.
        found_after: whether the detector finds a face at its place in the finished photo; None if not looked for.
        similarity: the recognizer's cosine of the original and the new face, -1 to 1; None if not compared.
        matched: whether that is enough for one person.
    """

    found_before: bool
    found_after: bool | None = None
    similarity: float | None = None
    matched: bool | None = None


@dataclass(frozen=True)
class FaceReport:
    """The result of one face.

    Args:
        index: its number in the photo, counted from 0, from top-left to bottom-right.
        kind: "synth", "mosaic", or "kept" for a face that was left as it is.
        box: (x, y, w, h) in pixels: where it was seen, or where its crop lies.
        reason: why it was not synthesised.
        seen: which of the two; records know nothing but crops.
        checks: of an anonymized face.
    """

    index: int
    kind: str
    box: tuple[float, float, float, float]
    reason: str = ""
    seen: bool = True
    checks: FaceChecks | None = None


@dataclass(frozen=True)
class Header:
    """The fields of a record's header.

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
        seal: of the payload; None where there is none.
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
    seal: Seal | None = None
    producer: str = field(default_factory=_producer)

    def __post_init__(self) -> None:
        if len(self.flow_salt) != SALT_BYTES or len(self.weights_digest) != DIGEST_BYTES:
            raise ValueError(f"a salt has {SALT_BYTES} bytes and a digest {DIGEST_BYTES}")
        if not all(0 < side < 2**32 for side in self.canvas):
            raise ValueError(f"a photo cannot have {self.canvas} pixels")
        for name in (self.backend, self.producer):
            if not name or not name.isascii() or not name.isprintable() or len(name) > 255:
                raise ValueError(f"a name is 1 to 255 printable ASCII characters, {name!r} is not")

    @property
    def tier(self) -> Tier:
        """What the payload restores."""
        return self.seal.tier if self.seal else "none"

    def reports(self) -> list[FaceReport]:
        """Reports on the faces from the record; boxes are those around the quads."""
        reports = []
        for index, face in enumerate(self.faces):
            xs, ys = zip(*face.quad, strict=True)
            box = (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
            reason = "" if face.kind == "synth" else "covered by a mosaic, which nothing undoes"
            reports.append(FaceReport(index, face.kind, box, reason, seen=False))
        return reports


def encode(header: Header, payload: Iterable[bytes] = (), expected: int = 0) -> bytes:
    """Header and the pieces of a payload -> record. Pieces are consumed one by one, so the payload is in memory once.

    Args:
        expected: the payload's length in bytes where it is known, so that no more memory is taken than it needs.

    Raises:
        LimitError: the header takes more than 64 KiB (some 1,900 faces).
        ValueError: a parameter is out of its range, or there is a payload without a seal or a seal without one.
    """
    head = bound(header)
    digest, length = hashlib.sha256(), 0
    record = io.BytesIO()
    if expected:
        record.seek(len(head) + _FIXED_TAIL + expected - 1)
        record.write(b"\0")
    record.seek(len(head) + _FIXED_TAIL)
    for piece in payload:
        digest.update(piece)
        length += record.write(piece)
    record.truncate()
    if bool(length) != bool(header.seal):
        raise ValueError("a payload and its seal go together")
    head += struct.pack(">Q", length) + digest.digest()
    record.seek(0)
    record.write(head + hashlib.sha256(head).digest())
    return record.getvalue()


def bound(header: Header) -> bytes:
    """The part of a header that its payload is bound to: all before the payload's length and digest.

    Raises:
        LimitError, ValueError: as :func:`encode`.
    """
    flags = (CONSISTENT if header.consistent else 0) | (STRETCHED if header.kdf else 0) | (SEALED if header.seal else 0)
    parts = [_short(header.producer), struct.pack(">H", flags), header.flow_salt]
    if header.kdf:
        kdf = header.kdf
        parts.append(kdf.salt + struct.pack(">IHH", kdf.memory_kib, kdf.iterations, kdf.lanes))
    if header.seal:
        parts.append(bytes([TIERS.index(header.seal.tier)]) + header.seal.salt + header.seal.check)
    parts.append(_short(header.backend))
    parts.append(struct.pack(">H", len(header.parameters)))
    for name, value in sorted(header.parameters.items(), key=lambda item: item[0].encode()):
        parts.append(_short(name) + _value(value))
    parts.append(header.weights_digest)
    parts.append(struct.pack(">IIH", *header.canvas, min(len(header.faces), 0xFFFF)))
    for face in header.faces:
        corners = (int(value * GRID) for corner in face.quad for value in corner)
        parts.append(struct.pack(">B8i", KINDS.index(face.kind), *corners))
    body = b"".join(parts)
    size = len(MAGIC) + 5 + len(body) + _FIXED_TAIL
    if size > MAX_HEADER:
        raise LimitError(
            f"the record takes {size} bytes, {MAX_HEADER} is the limit ({count(len(header.faces), 'face')})",
            "split the photo into parts with fewer faces",
        )
    return MAGIC + struct.pack(">BI", VERSION, size) + body


def binding(header: Header) -> bytes:
    """SHA-256 over what a record says that its photo's faces vouch for, under the key (docs/format.md): all but the
    producer, the passphrase's costs and the seal itself.

    Raises:
        LimitError, ValueError: as :func:`encode`.
    """
    encoded = bound(replace(header, producer="-", kdf=None, seal=None))
    return hashlib.sha256(b"anonface/v1 record\0" + encoded).digest()


def exposed(header: Header) -> bool:
    """Whether a photo was made in a way by which photos of one key open each other: consistent, with a watermark or an
    anchor of version 5 or earlier."""
    return header.consistent and header.backend in MARKED and NONCES not in header.parameters


def payload(record: bytes) -> memoryview:
    """The payload of a record that :func:`decode` has accepted."""
    return memoryview(record)[int.from_bytes(record[5:9], "big") :]


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
        raise damaged("it ends early")
    version, size = struct.unpack_from(">BI", record, 4)
    if not 9 + _FIXED_TAIL <= size <= MAX_HEADER or size > len(record):
        raise damaged("its length is wrong")
    if hashlib.sha256(record[: size - DIGEST_BYTES]).digest() != record[size - DIGEST_BYTES : size]:
        raise damaged("its digest does not match")
    reader = _Reader(record[9 : size - DIGEST_BYTES])
    try:
        producer = reader.name()
        if version != VERSION:
            raise _newer(f"record version {version}", producer)
        header = _fields(reader, producer)
        length, digest = reader.unpack(">Q")[0], reader.take(DIGEST_BYTES)
        if reader.rest():
            raise damaged("bytes are left over after its fields")
    except ValueError as error:
        raise damaged(str(error)) from None
    rest = payload(record)
    if length != len(rest) or hashlib.sha256(rest).digest() != digest:
        raise damaged("its payload does not match")
    if bool(length) != bool(header.seal):
        raise damaged("its payload and its seal do not go together")
    return header


def describe(header: Header, payload_bytes: int = 0) -> dict[str, Any]:
    """The header as plain JSON values; bytes become hexadecimal."""
    kdf, seal = header.kdf, header.seal
    return {
        "format": f"{MAGIC.decode()}.{VERSION}",
        "producer": header.producer,
        "tier": header.tier,
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
        "seal": seal and {"salt": seal.salt.hex(), "check": seal.check.hex()},
        "payload_bytes": payload_bytes,
    }


# --- Fields ----------------------------------------------------------------------------------------------------------


def damaged(reason: str) -> ContainerError:
    """The error for a damaged record."""
    return ContainerError(f"the anonface record is damaged: {reason}", DAMAGED_HINT)


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
    """Reads the fields of a header in order; a header that ends early is a ValueError."""

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
    """The part between the producer and the payload section.

    Raises:
        ValueError: malformed.
        ContainerError: a flag or a kind of face is unknown.
        LimitError: the Argon2id parameters are out of bounds.
    """
    (flags,) = reader.unpack(">H")
    if flags & ~(CONSISTENT | STRETCHED | SEALED):
        raise _newer(f"flags {flags:#06x}", producer)
    flow_salt = reader.take(SALT_BYTES)
    kdf = Argon2(reader.take(SALT_BYTES), *reader.unpack(">IHH")) if flags & STRETCHED else None
    seal = None
    if flags & SEALED:
        (tier,) = reader.take(1)
        if tier >= len(TIERS):
            raise _newer(f"a seal of tier {tier}", producer)
        seal = Seal(TIERS[tier], reader.take(SALT_BYTES), reader.take(DIGEST_BYTES))
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
    width, height, number = reader.unpack(">IIH")
    faces = []
    for _ in range(number):
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
        seal=seal,
        producer=producer,
    )
