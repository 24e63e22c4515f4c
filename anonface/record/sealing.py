"""Sealing: the original, encrypted under the key and bound to its record.

A payload is one Cobblestone-256 message (C2SP chunked-encryption: AES-256-GCM in chunks, committed to its key) under a
key of its own, with the record's header as context. Only its length is public: plaintexts are padded to Padme's
sizes and never compressed, since a compressed length speaks of what was compressed. docs/format.md has every byte.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from cryptography.cobblestone import Cobblestone256Decryptor, Cobblestone256Encryptor
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from anonface.crypto.keys import KEY_BYTES, Key, PhotoKey, fresh_salt
from anonface.errors import ContainerError, KeyFileError, UsageError, WrongKeyError
from anonface.record.anf1 import DIGEST_BYTES, Header, Seal, Tier, bound, damaged, encode

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]

OWN, CARRIED, WITHHELD = range(3)  # the networks' key: the master's own, in the payload, nowhere
SUFFIX = re.compile(r"(\.[A-Za-z0-9]{1,15})?")
_INTACT = "use the picture that was written with it, or one with the very same pixels"
CHUNK, TAG, SALT_AND_COMMITMENT = 16 * 1024, 16, 24 + 32  # bytes, of Cobblestone-256
STEP = 64 * 1024  # bytes that are encrypted at a time
STRIP = 64  # rows that are looked at at a time
THUMB, ALIKE = 48, 10.0  # px of a side, and grey levels of mean difference, within which pictures resemble each other


@dataclass(frozen=True)
class Contents:
    """The contents of a payload.

    Args:
        tier: what it restores.
        binding: SHA-256 over what it belongs to: the carrier's picture for a file, the anonymized photo outside the
            faces for pixels, zeros for nothing.
        suffix: of the original file's name, "" or "." and up to 15 ASCII letters and digits.
        data: the original file, or the original pixels as :func:`of_pixels` lays them out.
        network_key: the key that the networks ran under, where it is not the master's own; see :func:`rekeyed`.
        withheld: that key is not the master's own and not here either.
    """

    tier: Tier
    binding: bytes = bytes(DIGEST_BYTES)
    suffix: str = ""
    data: bytes | memoryview = b""
    network_key: PhotoKey | None = None
    withheld: bool = False


def of_file(data: bytes, suffix: str, picture: bytes) -> Contents:
    """The contents of tier "file".

    Args:
        data: the original file.
        suffix: of its name; one that is no plain suffix is left out.
        picture: the carrier's picture digest.
    """
    return Contents("file", picture, suffix if SUFFIX.fullmatch(suffix) else "", data)


def of_pixels(header: Header, original: Pixels, anonymized: Pixels, alpha: Pixels | None) -> Contents:
    """The contents of tier "face": the original's pixels in the region of the faces, row by row, three bytes each.

    Raises:
        ValueError: the photos differ outside that region, so it would not restore the original.
    """
    if any((original[rows] != anonymized[rows])[~inside].any() for rows, inside in _strips(header)):
        raise ValueError("the photo was changed outside its faces")
    data = b"".join(original[rows][inside].tobytes() for rows, inside in _strips(header))
    return Contents("face", _outside_digest(header, anonymized, alpha), data=data)


def mended(header: Header, contents: Contents, pixels: Pixels, alpha: Pixels | None) -> Pixels:
    """The original's pixels, from the anonymized photo and the contents of tier "face".

    Raises:
        ContainerError: the photo is not the one that they belong to.
    """
    if header.canvas != (pixels.shape[1], pixels.shape[0]):
        raise _foreign(_INTACT)
    if not hmac.compare_digest(_outside_digest(header, pixels, alpha), contents.binding):
        raise _foreign(_INTACT)
    inside = region(header)
    if len(contents.data) != 3 * int(inside.sum()):
        raise damaged("its pixels are not as many as its faces cover")
    result = pixels.copy()
    result[inside] = np.frombuffer(contents.data, np.uint8).reshape(-1, 3)
    return result


def check_picture(contents: Contents, picture: bytes) -> None:
    """Whether an original file belongs to the picture that carries it, by the picture's digest.

    Raises:
        ContainerError: it does not: the record comes from another file, or the picture was changed.
    """
    if not hmac.compare_digest(contents.binding, picture):
        raise _foreign("to take the sealed original nevertheless, name the file that holds the record with --sidecar")


def resembles(header: Header, original: Pixels, picture: Pixels) -> bool | None:
    """Whether a picture may be the anonymized one of an original, saved again or resized: similar except for the faces;
    None where faces fill it.

    Args:
        original, picture: uint8 [H, W, 3], not necessarily of one size.
    """
    import cv2

    outside = (~region(header)).astype(np.float32)
    lightness = [cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32) for pixels in (original, picture)]
    first, second, seen = (
        cv2.resize(plane, (THUMB, THUMB), interpolation=cv2.INTER_AREA) for plane in (*lightness, outside)
    )
    apart = np.abs(first - second)[seen > 0.99]
    return float(apart.mean()) < ALIKE if len(apart) else None


def seal(header: Header, key: Key, contents: Contents) -> bytes:
    """Header and contents -> record. Every call draws its own salt.

    Raises:
        LimitError: as :func:`anonface.record.anf1.encode`.
    """
    salt = fresh_salt()
    keys = key.face(salt, header.backend, 0)
    header = replace(header, seal=Seal(contents.tier, salt, keys.derive("seal-check")))
    encryptor = Cobblestone256Encryptor(keys.derive("seal"), bound(header))
    size = padded_size(len(_head(contents)) + len(contents.data))
    return encode(header, _encrypted(encryptor, contents), SALT_AND_COMMITMENT + size + TAG * (size // CHUNK + 1))


def unseal(header: Header, payload: bytes | memoryview, key: Key) -> Contents:
    """The inverse of :func:`seal`.

    Raises:
        WrongKeyError: the record was sealed under another key.
        ContainerError: the key is right, but header and payload were not sealed together.
    """
    if header.seal is None:
        return Contents("none")
    keys = key.face(header.seal.salt, header.backend, 0)
    if not hmac.compare_digest(keys.derive("seal-check"), header.seal.check):
        raise WrongKeyError(
            "the key is not the one that this photo was sealed under",
            "give the right key; --decoy writes the face that this wrong key produces",
        )
    decryptor = Cobblestone256Decryptor(keys.derive("seal"), bound(header))
    try:
        plaintext = decryptor.update(payload)
        if rest := decryptor.finalize():
            plaintext += rest
    except InvalidTag:
        raise damaged("header and payload were not sealed together") from None
    try:
        return _contents(header, memoryview(plaintext))
    except (ValueError, struct.error) as error:
        raise damaged(str(error)) from None


def network_key(contents: Contents, key: Key) -> Key | PhotoKey:
    """The key of the photo's networks.

    Raises:
        KeyFileError: it was withheld when the photo was given to this key.
    """
    if contents.withheld:
        raise KeyFileError(
            "the networks rendered this photo under an earlier key, which this one does not know",
            "without --seal none the sealed original comes back",
        )
    return contents.network_key or key


def rekeyed(header: Header, payload: bytes | memoryview, old: Key, new: Key) -> bytes:
    """The record under another key. The picture stays, and with it the old key that it was rendered under.

    What goes along is the old key's share in photos of this flow salt, so that it opens no other photo. Consistent
    photos have one salt in common: there it is withheld, and only what is sealed comes back under the new key.

    Raises:
        WrongKeyError, ContainerError: as :func:`unseal`.
        UsageError: a consistent photo without anything sealed.
    """
    contents = unseal(header, payload, old)
    if header.consistent:
        if contents.tier == "none":
            raise UsageError(
                "a consistent photo without a sealed original cannot be given to another key",
                "its networks' key would open every other consistent photo of the old key",
            )
        contents = replace(contents, withheld=True)
    elif contents.network_key is None:
        contents = replace(contents, network_key=old.photo(header.flow_salt))
    return seal(replace(header, kdf=None, seal=None), new, contents)


def padded_size(size: int) -> int:
    """The next size of Padme (Nikitin et al. 2019, algorithm 1): at most 12 % more, for ``size`` of 2 and above."""
    exponent = size.bit_length() - 1
    step = 1 << (exponent - exponent.bit_length())
    return -(-size // step) * step


def region(header: Header, rows: slice | None = None) -> Mask:
    """[H, W], true where a face may have been changed: in the upright boxes around the quads, one pixel wider.

    Args:
        rows: only those.
    """
    width, height = header.canvas
    first, last = (rows.start, rows.stop) if rows else (0, height)
    inside = np.zeros((last - first, width), bool)
    for face in header.faces:
        corners = np.array(face.quad)
        left, top = np.maximum(np.floor(corners.min(0)).astype(int) - 1, (0, first))
        right, bottom = np.maximum(np.ceil(corners.max(0)).astype(int) + 1, (0, first))
        inside[top - first : bottom - first, left:right] = True
    return inside


def _strips(header: Header) -> Iterator[tuple[slice, Mask]]:
    """Rows in parts with their region, so that no mask or second copy of a large photo is in memory."""
    height = header.canvas[1]
    for top in range(0, height, STRIP):
        rows = slice(top, min(top + STRIP, height))
        yield rows, region(header, rows)


def _outside_digest(header: Header, pixels: Pixels, alpha: Pixels | None) -> bytes:
    """SHA-256 over the pixels with zeros inside the region, then over alpha; an opaque alpha counts as none."""
    digest = hashlib.sha256()
    for rows, inside in _strips(header):
        strip = pixels[rows].copy()
        strip[inside] = 0
        digest.update(strip.tobytes())
    if alpha is not None and (alpha < 255).any():
        digest.update(alpha.tobytes())
    return digest.digest()


def _encrypted(encryptor: Cobblestone256Encryptor, contents: Contents) -> Iterator[bytes]:
    for piece in _plaintext(contents):
        yield encryptor.update(piece)
    yield encryptor.finalize()


def _head(contents: Contents) -> bytes:
    """The plaintext up to its data."""
    mode = WITHHELD if contents.withheld else CARRIED if contents.network_key else OWN
    head = bytes([mode])
    if contents.network_key and mode == CARRIED:
        head += contents.network_key.to_bytes()
    suffix = contents.suffix.encode()
    return head + contents.binding + bytes([len(suffix)]) + suffix + struct.pack(">Q", len(contents.data))


def _plaintext(contents: Contents) -> Iterator[bytes | memoryview]:
    head = _head(contents)
    yield head
    data = memoryview(contents.data)
    for at in range(0, len(data), STEP):
        yield data[at : at + STEP]
    size = len(head) + len(data)
    yield bytes(padded_size(size) - size)


def _contents(header: Header, plaintext: memoryview) -> Contents:
    """The inverse of :func:`_plaintext`; accepts only its results.

    Raises:
        ValueError, struct.error: malformed.
    """
    assert header.seal is not None
    (mode,) = struct.unpack_from(">B", plaintext)
    at = 1
    if mode > WITHHELD:
        raise ValueError(f"a networks' key cannot be of kind {mode}")
    network_key = None
    if mode == CARRIED:
        network_key = PhotoKey(header.flow_salt, bytes(plaintext[at : at + KEY_BYTES]))
        at += KEY_BYTES
    binding = bytes(plaintext[at : at + DIGEST_BYTES])
    (length,) = struct.unpack_from(">B", plaintext, at + DIGEST_BYTES)
    at += DIGEST_BYTES + 1
    suffix = bytes(plaintext[at : at + length]).decode("ascii")
    (size,) = struct.unpack_from(">Q", plaintext, at + length)
    at += length + 8
    if len(suffix) != length or not SUFFIX.fullmatch(suffix):
        raise ValueError("its suffix is none")
    if len(plaintext) != padded_size(at + size) or any(plaintext[at + size :]):
        raise ValueError("its padding is wrong")
    tier = header.seal.tier
    if (tier != "file" and suffix) or (tier == "none" and (size or any(binding))):
        raise ValueError(f"it holds more than its tier {tier!r}")
    return Contents(tier, binding, suffix, plaintext[at : at + size], network_key, mode == WITHHELD)


def _foreign(hint: str) -> ContainerError:
    return ContainerError(
        "the record does not belong to this picture: it comes from another file, or the picture was changed", hint
    )
