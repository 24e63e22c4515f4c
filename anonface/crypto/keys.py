"""Keys: their text and binary forms, passphrase stretching, and everything derived from them.

A :class:`Key` is 32 secret bytes. A key file holds it as one ASCII line, ``AFK1-`` followed by base32 of the secret and
a 4-byte checksum; wrapped under a passphrase the line starts with ``AFKP1-``; 32 raw bytes are accepted too.

Each face of a photo takes its own subkey (RFC 5869, SHA-256, one per purpose)::

    PRK = HKDF-Extract(salt, master)
    K   = HKDF-Expand(PRK, "anonface/v1" 00 purpose 00 backend 00 u16be(face), 32)

Payloads in a face's pixels are encrypted under a key of their own, from a nonce drawn for that face::

    PRK' = HKDF-Extract("anonface/v1 payload" 00 nonce, PRK)      and K as above, of PRK'

The salt may be one for all photos (:data:`CONSISTENT_SALT`): the target identity then depends on the key alone. A nonce
is never shared, so no stream encrypts two messages.

Streams longer than a key come from SHAKE256(K). No torch or numpy generator is involved: a stream depends on its key
alone, never on a device or on a library's version.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
import statistics
import struct
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from anonface.crypto import passphrases
from anonface.errors import KeyFileError, LimitError, OutputError, reason, remedy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 8  # of a face's payload: among 2^32 faces of one key two are alike with a chance of one half
CHECKSUM_BYTES = 4
MAX_KEY_FILE = 4096  # bytes; the longest valid form is under 200

PLAIN_PREFIX = "AFK1-"
WRAPPED_PREFIX = "AFKP1-"
CONTEXT = b"anonface/v1"

# The networks' salt under --consistent and --stateless: key and pixels then suffice for recovery. It serves identity
# and registration mark; payloads are encrypted under :meth:`FaceKey.payload`.
CONSISTENT_SALT = b"anonface/v1 same"
PAYLOAD = CONTEXT + b" payload\0"
SALTED = CONTEXT + b" nonce"

MAX_MEMORY_KIB = 1024 * 1024
MAX_ITERATIONS = 10
MAX_LANES = 8

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def fresh_salt() -> bytes:
    """Draw 16 bytes from the operating system."""
    return secrets.token_bytes(SALT_BYTES)


def fresh_nonce() -> bytes:
    """Draw a face's nonce, 8 bytes, from the operating system. Its last bit is 1: no salt names it."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce[:-1] + bytes([nonce[-1] | 1])


def salted_nonce(salt: bytes, backend: str, index: int) -> bytes:
    """The nonce of a face in a photo with a salt of its own, 8 bytes; arguments as of :meth:`Key.face`.

    The picture shows it, so a record with another salt, backend or order of faces does not fit. That needs no key. The
    last bit is 0.
    """
    nonce = hashlib.sha256(b"\0".join((SALTED, salt, _label(backend), struct.pack(">H", index)))).digest()[:NONCE_BYTES]
    return nonce[:-1] + bytes([nonce[-1] & 0xFE])


@dataclass(frozen=True)
class Argon2:
    """Parameters of Argon2id (RFC 9106); public.

    Args:
        salt: 16 bytes.
        memory_kib: memory in KiB, 8 * lanes to 1 GiB.
        iterations: passes over the memory, 1 to 10.
        lanes: 1 to 8.

    Raises:
        LimitError: a cost is above those limits (nothing has been allocated then).
        ValueError: a cost is below them, or the salt is not 16 bytes.
    """

    salt: bytes
    memory_kib: int = 256 * 1024
    iterations: int = 3
    lanes: int = 4

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("memory (KiB)", self.memory_kib, MAX_MEMORY_KIB),
            ("iterations", self.iterations, MAX_ITERATIONS),
            ("lanes", self.lanes, MAX_LANES),
        ):
            if value > limit:
                raise LimitError(
                    f"Argon2id parameter {name} = {value} is above the limit of {limit}",
                    "the file asks for an unreasonable effort; it was not written by this program",
                )
        if len(self.salt) != SALT_BYTES:
            raise ValueError(f"an Argon2id salt has {SALT_BYTES} bytes, not {len(self.salt)}")
        if self.iterations < 1 or self.lanes < 1 or self.memory_kib < 8 * self.lanes:
            raise ValueError("Argon2id needs an iteration, a lane, and 8 KiB of memory a lane")

    @classmethod
    def fresh(cls) -> Argon2:
        """The default cost (256 MiB, 3 passes, 4 lanes) with a salt of its own."""
        return cls(fresh_salt())

    def stretch(self, passphrase: str) -> bytes:
        """Passphrase -> 32 bytes. The passphrase is taken as UTF-8 of its NFC form, however it was typed.

        Raises:
            KeyFileError: the passphrase is empty or is not text.
            LimitError: the memory asked for cannot be had.
        """
        if not passphrase:
            raise KeyFileError("the passphrase is empty", "give a passphrase, or use a key file without one")
        try:
            encoded = unicodedata.normalize("NFC", passphrase).encode()
        except UnicodeEncodeError:
            raise KeyFileError("the passphrase is not valid UTF-8 text") from None
        try:
            return Argon2id(
                salt=self.salt,
                length=KEY_BYTES,
                iterations=self.iterations,
                lanes=self.lanes,
                memory_cost=self.memory_kib,
            ).derive(encoded)
        except MemoryError:
            raise LimitError(
                f"stretching the passphrase takes {self.memory_kib // 1024} MiB, which this machine cannot give",
                "close other programs, or use a key file without a passphrase",
            ) from None


class _Secret:
    """Secret bytes that repr, str, format and pickle do not reveal."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is never pickled or copied")


class Key(_Secret):
    """A master key of 32 bytes."""

    __slots__ = ()

    def __init__(self, master: bytes) -> None:
        if len(master) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(master)}")
        super().__init__(bytes(master))

    def __eq__(self, other: object) -> bool:
        return hmac.compare_digest(self._secret, other._secret) if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return hash((Key, self._secret))

    @classmethod
    def generate(cls) -> Key:
        """Draw a new key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_file(cls, path: PathLike, passphrase: str | None = None) -> Key:
        """Read a key file (see :meth:`from_bytes`).

        Raises:
            KeyFileError: the file cannot be read, or is not a key; the message says why.
            LimitError: its Argon2id parameters are out of bounds.
        """
        name = os.fsdecode(path)
        try:
            with Path(name).open("rb") as file:
                data = file.read(MAX_KEY_FILE + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise KeyFileError(f"key file {name!r} cannot be read: {reason}", "anonface keygen makes one") from None
        try:
            return cls.from_bytes(data, passphrase)
        except KeyFileError as error:
            raise KeyFileError(f"key file {name!r}: {error.message}", error.hint) from None

    @classmethod
    def from_bytes(cls, data: bytes, passphrase: str | None = None) -> Key:
        """Read a key from the contents of a key file: ``AFK1-...``, ``AFKP1-...`` or 32 raw bytes.

        Blanks around a text form, the case of its letters and a byte order mark do not matter, and UTF-16 is read.
        Of raw bytes, what can be typed is refused: it is a passphrase, which Argon2id is for. ``passphrase`` is used
        for the wrapped form alone.

        Raises:
            KeyFileError: not a key; the message says why.
            LimitError: the Argon2id parameters of a wrapped key are out of bounds.
        """
        text = key_text(data)
        if text.startswith(PLAIN_PREFIX):
            return cls(_decode_text(PLAIN_PREFIX, text, KEY_BYTES))
        if text.startswith(WRAPPED_PREFIX):
            return _unwrap(text, passphrase)
        if text.startswith("AFK"):
            raise KeyFileError(
                f"unknown key prefix {text.split('-')[0][:12]!r}", "a newer anonface may read this key file"
            )
        if len(data) == KEY_BYTES:
            if passphrases.is_text(data):
                raise KeyFileError(
                    "it holds text, which is no key of random bytes",
                    "as a passphrase it goes with --passphrase-file; `anonface keygen FILE` makes a key file",
                )
            return cls(data)
        hint = "a key file holds one line AFK1-..., or exactly 32 raw bytes; anonface keygen makes one"
        if not data:
            raise KeyFileError("it is empty", hint)
        if len(data) < KEY_BYTES:
            raise KeyFileError(f"too short for a key ({len(data)} of {KEY_BYTES} bytes)", hint)
        size = f"{len(data)}" if len(data) <= MAX_KEY_FILE else f"more than {MAX_KEY_FILE}"
        raise KeyFileError(f"unknown prefix, and {size} bytes where a raw key has {KEY_BYTES}", hint)

    @classmethod
    def from_passphrase(cls, text: str, kdf: Argon2) -> Key:
        """The key derived from a passphrase alone; recovery needs the same ``kdf``.

        Any passphrase is taken, as photos may have been made under it. Call
        :func:`anonface.crypto.passphrases.refuse_weak` on a new one.

        Raises:
            KeyFileError: the passphrase is empty or is not text.
            LimitError: the memory asked for cannot be had.
        """
        return cls(kdf.stretch(text))

    def flipped(self, bits: Iterable[int]) -> Key:
        """The key with these bits (0 to 255, each named once) flipped: a wrong guess."""
        mask = sum(1 << bit for bit in bits)
        return Key((int.from_bytes(self._secret, "little") ^ mask).to_bytes(KEY_BYTES, "little"))

    def to_text(self) -> str:
        """The key in its plain text form, ``AFK1-`` and 58 characters."""
        return _encode_text(PLAIN_PREFIX, self._secret)

    def wrap(self, passphrase: str, kdf: Argon2) -> str:
        """The key in its text form under a passphrase: ``AFKP1-`` and 119 characters.

        The payload is u32be memory_kib, u8 iterations, u8 lanes, the 16-byte salt, then the key under AES-256-GCM with
        what precedes as associated data. The nonce is zero: the wrapping key serves once, its salt being fresh.

        Raises:
            KeyFileError: the passphrase is empty or is not text.
            LimitError: the memory asked for cannot be had.
        """
        head = struct.pack(">IBB", kdf.memory_kib, kdf.iterations, kdf.lanes) + kdf.salt
        sealed = AESGCM(_wrapping_key(passphrase, kdf)).encrypt(bytes(12), self._secret, WRAPPED_PREFIX.encode() + head)
        return _encode_text(WRAPPED_PREFIX, head + sealed)

    def face(self, salt: bytes, backend: str, index: int) -> FaceKey:
        """The subkey of one face.

        Args:
            salt: the photo's flow salt, or :data:`CONSISTENT_SALT`.
            backend: the backend's name, printable ASCII.
            index: the face's place in the header's table, 0 to 65535; 0 for every face under ``--consistent``.
        """
        return self.photo(salt).face(salt, backend, index)

    def mark(self, salt: bytes) -> bytes:
        """32 public bytes that tell this key from others beside the same salt, and nothing beside another."""
        return self.face(salt, "journal", 0).derive("key-mark")

    def photo(self, salt: bytes) -> PhotoKey:
        """The key's share in the photos of one salt."""
        return PhotoKey(salt, hmac.digest(salt, self._secret, "sha256"))


class PhotoKey(_Secret):
    """HKDF's PRK of one salt and a master: enough for photos of that salt, and no way to the master."""

    __slots__ = ("salt",)

    def __init__(self, salt: bytes, prk: bytes) -> None:
        if len(prk) != KEY_BYTES:
            raise ValueError(f"a photo key has {KEY_BYTES} bytes, not {len(prk)}")
        super().__init__(bytes(prk))
        self.salt = salt

    def to_bytes(self) -> bytes:
        """The 32 secret bytes."""
        return self._secret

    def face(self, salt: bytes, backend: str, index: int) -> FaceKey:
        """As :meth:`Key.face`, for the one salt that this key is of."""
        if salt != self.salt:
            raise ValueError("a photo key serves its own salt alone")
        return FaceKey(self._secret, backend, index)


class FaceKey(_Secret):
    """The subkey of one face: labelled, reproducible streams. Made by :meth:`Key.face`.

    Two purposes give unrelated streams; a longer stream of one purpose begins with the shorter.

    Attributes:
        nonce: of the face's payload, 8 bytes, drawn for it or taken from its record; None if unknown.
        record: digest of the photo's record, empty without one.
    """

    __slots__ = ("backend", "index", "nonce", "record")

    def __init__(self, prk: bytes, backend: str, index: int) -> None:
        if not 0 <= index <= 0xFFFF:
            raise ValueError(f"a face index lies between 0 and 65535, not {index}")
        super().__init__(prk)
        self.backend = _label(backend)
        self.index = index
        self.nonce: bytes | None = None
        self.record = b""

    def of_face(self, nonce: bytes | None, record: bytes = b"") -> FaceKey:
        """The same subkey with the face's nonce and its photo's record."""
        key = FaceKey(self._secret, self.backend.decode(), self.index)
        key.nonce, key.record = nonce, record
        return key

    def payload(self, nonce: bytes) -> PayloadKey:
        """The key of a face's payloads; the only way to one.

        Args:
            nonce: drawn for this face (:func:`fresh_nonce`), 8 bytes.
        """
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        return PayloadKey(hmac.digest(PAYLOAD + nonce, self._secret, "sha256"), self.backend.decode(), self.index)

    def payload_of_version_5(self) -> PayloadKey:
        """The payload key of watermarks up to version 5. Photos of one salt share it, so it is for reading alone."""
        return PayloadKey(self._secret, self.backend.decode(), self.index, nonced=False)

    def derive(self, purpose: str) -> bytes:
        """The 32-byte key K of one purpose (printable ASCII)."""
        info = b"\0".join((CONTEXT, _label(purpose), self.backend, struct.pack(">H", self.index)))
        return HKDFExpand(SHA256(), KEY_BYTES, info).derive(self._secret)

    def stream(self, purpose: str, n: int) -> bytes:
        """The first ``n`` bytes of SHAKE256(K)."""
        return hashlib.shake_256(self.derive(purpose)).digest(n)

    def signed_unit(self, purpose: str, n: int) -> NDArray[np.float32]:
        """``n`` values in [-1, 1]: each byte b of the stream becomes b / 127.5 - 1 (iFADIT, Norm of equation 4)."""
        import numpy as np

        return (np.frombuffer(self.stream(purpose, n), np.uint8) / 127.5 - 1).astype(np.float32)

    def normal(self, purpose: str, n: int) -> NDArray[np.float64]:
        """``n`` standard normal values, one for every 8 bytes of the stream.

        The top 52 bits of each little-endian word choose one of 2^52 equal cells of (0, 1); the value is the inverse
        normal distribution function (Wichura's AS 241) at the cell's middle.
        """
        import numpy as np

        words = np.frombuffer(self.stream(purpose, 8 * n), "<u8")
        middles = ((words >> 12) * 2 + 1) * 2.0**-53
        inverse = statistics.NormalDist().inv_cdf
        return np.array([inverse(middle) for middle in middles.tolist()], np.float64)


class PayloadKey(FaceKey):
    """The key of one face's payload, made by :meth:`FaceKey.payload`.

    Attributes:
        nonced: whether it comes from a nonce, and so serves one face; false for watermarks up to version 5.
    """

    __slots__ = ("nonced",)

    def __init__(self, prk: bytes, backend: str, index: int, nonced: bool = True) -> None:
        super().__init__(prk, backend, index)
        self.nonced = nonced


def key_text(data: bytes) -> str:
    """The contents of a key file in capitals, as far as they are text."""
    try:
        text = passphrases.text_of(data)
    except KeyFileError:  # 32 raw bytes, or no key
        text = data.decode("ascii", errors="replace")
    return text.strip().upper()


def write_key_file(path: PathLike, key: Key, passphrase: str | None = None, weak: bool = False) -> None:
    """Write a key as one line into a new file that its owner alone can read (mode 0600), wrapped where a passphrase
    is given. Folders that its path lacks are made; an existing file is never touched.

    Args:
        weak: take a passphrase that :func:`anonface.crypto.passphrases.refuse_weak` refuses.

    Raises:
        KeyFileError: the passphrase is empty, weak, or is not text.
        OutputError: the file exists or cannot be written.
    """
    if passphrase and not weak:
        passphrases.refuse_weak(passphrase)
    line = key.to_text() if passphrase is None else key.wrap(passphrase, Argon2.fresh())
    name = os.fsdecode(path)
    try:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        if error.filename != name:
            raise OutputError(f"{name!r} cannot be written: {error.filename!r} is no folder", remedy(error)) from None
        raise OutputError(f"{name!r} exists", "keys are never overwritten: choose another name") from None
    except (OSError, ValueError) as error:
        raise OutputError(f"{name!r} cannot be written: {reason(error)}", remedy(error)) from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        Path(name).unlink()  # half a key is worse than none
        if isinstance(error, OSError):
            raise OutputError(f"{name!r} cannot be written: {reason(error)}", remedy(error)) from None
        raise


def loose_permissions(path: PathLike) -> bool:
    """Whether others than its owner may read or change a key file. Always false where POSIX modes mean nothing.

    Raises:
        KeyFileError: the file cannot be looked at.
    """
    name = os.fsdecode(path)
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise KeyFileError(f"key file {name!r} cannot be read: {reason}", "anonface keygen makes one") from None
    others = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH
    return os.name == "posix" and bool(mode & others)


def _label(text: str) -> bytes:
    """A label for a derivation: printable ASCII, so that the zero bytes between labels stay unambiguous."""
    if not text or not text.isascii() or not text.isprintable():
        raise ValueError(f"a label is printable ASCII, not {text!r}")
    return text.encode()


def _checksum(prefix: str, payload: bytes) -> bytes:
    return hashlib.sha256(prefix.encode() + payload).digest()[:CHECKSUM_BYTES]


def _encode_text(prefix: str, payload: bytes) -> str:
    return prefix + base64.b32encode(payload + _checksum(prefix, payload)).decode().rstrip("=")


def _decode_text(prefix: str, text: str, size: int) -> bytes:
    """The inverse of :func:`_encode_text`; ``size`` is the payload's length in bytes."""
    body = text.removeprefix(prefix)
    expected = -(-(size + CHECKSUM_BYTES) * 8 // 5)
    hint = "copy the key file again from where it was made"
    if len(body) != expected:
        kind = "short" if len(body) < expected else "long"
        raise KeyFileError(f"too {kind} after {prefix} ({len(body)} of {expected} characters)", hint)
    try:
        data = base64.b32decode(body + "=" * (-len(body) % 8))
    except binascii.Error:
        raise KeyFileError(f"a character after {prefix} is not base32 (A-Z, 2-7)", hint) from None
    payload = data[:size]
    if _encode_text(prefix, payload) != text:  # also refuses stray bits in the last character
        raise KeyFileError("its checksum is wrong: the key was mistyped or damaged", hint)
    return payload


def _wrapping_key(passphrase: str, kdf: Argon2) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=CONTEXT + b"\0key-file").derive(kdf.stretch(passphrase))


def _unwrap(text: str, passphrase: str | None) -> Key:
    """The inverse of :meth:`Key.wrap`."""
    head_size = 6 + SALT_BYTES
    payload = _decode_text(WRAPPED_PREFIX, text, head_size + KEY_BYTES + 16)
    head, sealed = payload[:head_size], payload[head_size:]
    memory_kib, iterations, lanes = struct.unpack(">IBB", head[:6])
    try:
        kdf = Argon2(head[6:], memory_kib, iterations, lanes)
    except ValueError as error:
        raise KeyFileError(f"malformed: {error}") from None
    if passphrase is None:
        raise KeyFileError("it needs its passphrase", "set ANONFACE_PASSPHRASE or use --passphrase-file")
    try:
        master = AESGCM(_wrapping_key(passphrase, kdf)).decrypt(bytes(12), sealed, WRAPPED_PREFIX.encode() + head)
    except InvalidTag:
        raise KeyFileError("the passphrase does not open it", "try the passphrase again") from None
    return Key(master)
