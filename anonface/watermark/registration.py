"""The anchor: where an aligned square lay, which of its pixels were replaced and, if asked, the face's nonce, said
under the key by the last bits of the face that was put there.

A backend that moves single pixels, or single cells of a latent, needs the very square again. A photo's record holds it;
without a record a detector finds the new face, whose landmarks lie a few pixels off the old one's. So the blue channel
of the new face, where a step of one is least seen, says the square's corners in its last bits, over and over. Where it
does, the face was replaced: a parser may see hair in what a network drew. Without the key those bits are noise, and a
wrong key reads nothing. They outlast lossless files alone, as such a recovery does.

The key of a search is one for all photos, since a search begins with key and pixels alone. So each bit is encrypted by
what surrounds it: it is turned by a pseudorandom function of the pixel's place and of all but the last bits of the
5 x 5 pixels about it, which writing leaves as they are. The function is AES-256 over the place and a universal hash of
these bits (sums of products with secret numbers modulo 2^64, Carter and Wegman): two of the 25 that differ somewhere
have one hash with a chance of 2^-43 or less, and to tell AES from chance takes its key. The same turn comes twice only
where two photos have the same place and the very same 25 pixels but for their last bits, as in clipped white or black;
such pixels, whose 25 are all alike, say nothing and stay as they are. Nothing repeats within a photo.

Up to version 5 of the watermark the key turned bits by a tile of 256 px. Two photos of one key were told by it from
others, so those made with ``--stateless`` or ``--consistent`` count as exposed; they are read still.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import cv2
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from anonface.crypto.keys import NONCE_BYTES, FaceKey
from anonface.faces import align

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Bits = NDArray[np.bool_]

TILE = 256  # px, after which the key's turns repeated up to version 5
NUMBER, NUMBERS = 22, 6  # bits of a coordinate in 1/16 px, counted from -65,536 px; of three corners
CORNERS = NUMBER * NUMBERS
CHECK = 3  # bytes
NEAR = 2  # px on each side whose upper bits turn a pixel's last one
ROW = 61  # places from one row to the next; shares no divisor with a message's length
CENTRE, AXES = np.array([0.5, 0.57]), np.array([0.46, 0.5])  # of the ellipse of the square that is written to
BLOCK, PATCHES, STRIP = 8, (16, 24, 40), 256  # px, the last two multiples of the first
AROUND = 5  # px across, within which bits are counted that are right
STANDS = 0.85  # share of a face's bits that are right, from which an anchor is there
RIGHT, CHANCE = 0.88, 0.65  # of the bits around a pixel: from which it was replaced, below which it was not


@dataclass(frozen=True)
class Anchor:
    """What an anchor says: a square's corners [4, 2], and its face's nonce, empty where none is said."""

    quad: NDArray[np.float64]
    nonce: bytes = b""


class _Turns:
    """Whether a key turns the last bit of a photo's pixels, and which of them say anything.

    Args:
        photo: uint8 [H, W, 3]; only bits above the last count.
        top: the row of the photo at which these rows begin.
        tiled: as up to version 5.
    """

    def __init__(self, photo: Pixels, key: FaceKey, top: int = 0, tiled: bool = False) -> None:
        self._photo, self._key, self._top, self._tiled = photo, key, top, tiled

    def __call__(self, left: int, top: int, across: int, down: int) -> tuple[Bits, Bits]:
        """Of a rectangle of these rows: bool [down, across] each."""
        if self._tiled:
            tile = np.unpackbits(np.frombuffer(self._key.stream("anchor", TILE * TILE // 8), np.uint8))
            rows, columns = np.arange(down) + self._top + top, np.arange(across) + left
            turns = tile.reshape(TILE, TILE)[np.ix_(rows % TILE, columns % TILE)].astype(bool)
            return turns, np.ones_like(turns)
        stream = self._key.stream("anchor turns", 32 + 8 * (2 * NEAR + 1) ** 2)
        numbers = iter(np.frombuffer(stream[32:], "<u8"))
        upper = self._upper(left, top, across, down)
        hashed = np.zeros((down, across), np.uint64)
        alike = np.ones((down, across), bool)
        middle = upper[NEAR : NEAR + down, NEAR : NEAR + across]
        for row in range(2 * NEAR + 1):
            for column in range(2 * NEAR + 1):
                part = upper[row : row + down, column : column + across]
                hashed += part * next(numbers)
                alike &= part == middle
        blocks = np.empty((down, across, 2), "<u8")
        y, x = np.arange(down).astype(np.uint64) + np.uint64(self._top + top), np.arange(across) + left
        blocks[..., 0] = (y[:, None] << np.uint64(32)) | x.astype(np.uint64)
        blocks[..., 1] = hashed
        # every block is another one: a place comes once
        encrypted = Cipher(algorithms.AES(stream[:32]), modes.ECB()).encryptor().update(blocks.tobytes())
        turns = np.frombuffer(encrypted, np.uint8)[::16].reshape(down, across) & 1
        return turns.astype(bool), ~alike

    def _upper(self, left: int, top: int, across: int, down: int) -> NDArray[np.uint64]:
        """All but the last bits of each pixel of a rectangle and NEAR px about it; beyond the photo its rim again."""
        rows = np.clip(np.arange(top - NEAR, top + down + NEAR), 0, len(self._photo) - 1)
        columns = np.clip(np.arange(left - NEAR, left + across + NEAR), 0, self._photo.shape[1] - 1)
        red, green, blue = (self._photo[np.ix_(rows, columns)].astype(np.uint64) >> np.uint64(1)).transpose(2, 0, 1)
        return red | green << np.uint64(7) | blue << np.uint64(14)


def drop(photo: Pixels, quad: NDArray[np.float64], changed: Mask, key: FaceKey, nonce: bytes = b"") -> Pixels:
    """The photo with the anchor of one face.

    Args:
        photo: uint8 [H, W, 3], left as it is.
        quad: [4, 2], snapped (:func:`align.snap_quad`).
        changed: bool [H, W], the only pixels that may be written to. None of them moves by more than one grey level;
            a grey pixel stays grey.
        nonce: of the face, to be said too: none or NONCE_BYTES.
    """
    anchored = photo.copy()
    bits = _said(Anchor(quad, nonce), key)
    y, x, turned, _ = _ellipse(photo, quad, key, changed)
    wanted = bits[_places(x, y, len(bits))] ^ turned
    blue = anchored[y, x, 2]
    moved = np.where((blue & 1) == wanted, blue, blue ^ 1)
    grey = (photo[y, x] == photo[y, x, :1]).all(1)
    anchored[y, x] = np.where(grey[:, None], moved[:, None], np.stack([*photo[y, x, :2].T, moved], 1))
    return anchored


def search(photo: Pixels, key: FaceKey, nonced: bool = False, *, tiled: bool = False) -> list[Anchor]:
    """All anchors that a photo holds under a key, from top to bottom, wherever they are.

    Every patch of the sides :data:`PATCHES` that lies within an anchor's ellipse says the whole of it, or nearly.

    Args:
        nonced: whether they say nonces.
        tiled: whether they are of version 5 or earlier.
    """
    found: dict[bytes, Anchor] = {}
    length = _length(nonced)
    farthest = 4 * align.SNAP * max(photo.shape)
    for top in range(0, photo.shape[0], STRIP):  # some at a time: a photo has far more pixels than an anchor needs
        tallies = _tallies(photo, top, key, length, tiled)
        sums = np.pad(tallies, ((1, 0), (1, 0), (0, 0))).cumsum(0).cumsum(1)
        for side in (patch // BLOCK for patch in PATCHES):
            patches = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
            said = patches.reshape(-1, length) > 0
            likely = (abs(_numbers(said)) < farthest).all(1)  # numbers out of noise are far greater, one in a million
            for bits in said[likely]:
                if np.array_equal(bits[-8 * CHECK :], _check(bits[: -8 * CHECK], key)):
                    found[bits.tobytes()] = _anchor(bits)
    return sorted(found.values(), key=lambda anchor: tuple(anchor.quad.mean(0)[::-1]))


def replaced(photo: Pixels, quad: NDArray[np.float64], face: Mask, key: FaceKey, nonce: bytes = b"") -> Mask:
    """Which pixels of an aligned square were replaced, as its anchor says; about their rim, and where there is no
    anchor, what is known otherwise.

    Args:
        photo: uint8 [H, W, 3].
        quad, nonce: as they were dropped.
        face: bool [S, S], of the square: what else is known.
    """
    for tiled in (False, True):
        y, x, turned, (left, top, across, down) = _ellipse(photo, quad, key, tiled=tiled)
        if not len(y):
            return face
        bits = _said(Anchor(quad, b"" if tiled else nonce), key)
        right = (photo[y, x, 2] & 1) == bits[_places(x, y, len(bits))] ^ turned
        counts = np.zeros((2, down, across), np.float32)
        counts[0, y - top, x - left], counts[1, y - top, x - left] = 1, right
        near, true = (cv2.boxFilter(plane, -1, (AROUND, AROUND), normalize=False) for plane in counts)
        share = true / np.maximum(near, 1)
        known, share = (align.crop(x, quad - (left, top), len(face)) for x in (counts[0], share))
        known = known > 0.99
        if (face & known).any() and share[face & known].mean() >= STANDS:
            return np.asarray((face & ~(known & (share < CHANCE))) | (known & (share > RIGHT)))
    return face


def _tallies(photo: Pixels, top: int, key: FaceKey, length: int, tiled: bool) -> NDArray[np.int32]:
    """What the pixels of each block of some rows say of each bit, votes for less votes against: [blocks down, across,
    ``length``]."""
    bottom, across = min(top + STRIP + PATCHES[-1], photo.shape[0]), photo.shape[1]
    first = max(0, top - NEAR)
    rows = photo[first : bottom + NEAR]
    turned, says = _Turns(rows, key, first, tiled)(0, top - first, across, bottom - top)
    y, x = (side.ravel() for side in np.mgrid[: bottom - top, :across])
    votes = np.where(((photo[top:bottom, :, 2] & 1) == 1) ^ turned, 1, -1) * says
    down, wide = (-(-side // BLOCK) for side in (bottom - top, across))
    block = y // BLOCK * wide + x // BLOCK
    tallies = np.bincount(block * length + _places(x, top + y, length), votes.ravel(), down * wide * length)
    return tallies.astype(np.int32).reshape(down, wide, length)


def _length(nonced: bool) -> int:
    return CORNERS + 8 * NONCE_BYTES * nonced + 8 * CHECK


def _anchor(bits: Bits) -> Anchor:
    top_left, bottom_left, top_right = _numbers(bits[None]).reshape(3, 2) / align.SNAP
    quad = np.stack([top_left, bottom_left, bottom_left + top_right - top_left, top_right])
    return Anchor(quad, np.packbits(bits[CORNERS : -8 * CHECK]).tobytes())


def _said(anchor: Anchor, key: FaceKey) -> Bits:
    """The corners' coordinates, the nonce, and the check of both."""
    numbers = np.rint(anchor.quad[[0, 1, 3]] * align.SNAP).astype(np.int64).ravel() + (1 << (NUMBER - 1))
    corners = (numbers[:, None] >> np.arange(NUMBER) & 1).astype(bool).ravel()
    bits = np.concatenate([corners, np.unpackbits(np.frombuffer(anchor.nonce, np.uint8)).astype(bool)])
    return np.concatenate([bits, _check(bits, key)])


def _check(bits: Bits, key: FaceKey) -> Bits:
    digest = hmac.digest(key.derive("anchor check"), np.packbits(bits).tobytes(), "sha256")[:CHECK]
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(bool)


def _numbers(bits: Bits) -> NDArray[np.int64]:
    """Coordinates [N, NUMBERS] in 1/16 px of messages' bits [N, ...]."""
    digits = bits[:, :CORNERS].reshape(-1, NUMBERS, NUMBER)
    return digits.astype(np.int64) @ (1 << np.arange(NUMBER)) - (1 << (NUMBER - 1))


def _places(x: NDArray[np.int64], y: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Which bit of a message each pixel of the photo says, evenly over any patch."""
    return (x + ROW * y) % length


def _ellipse(
    photo: Pixels, quad: NDArray[np.float64], key: FaceKey, among: Mask | None = None, tiled: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64], Bits, tuple[int, int, int, int]]:
    """Rows and columns of the photo's pixels that say the anchor of a square, whether the key turns them, and the
    rectangle (left, top, across, down) they lie in."""
    left, top, across, down = _bounds(photo.shape, quad)
    y, x = (side.ravel() for side in np.mgrid[top : top + down, left : left + across])
    places = align.transform(align.photo_to_crop(quad, 1), np.stack([x, y], 1).astype(np.float64))
    inside = (((places - CENTRE) / AXES) ** 2).sum(1) <= 1
    if not inside.any():
        return y[inside], x[inside], inside[inside], (left, top, across, down)
    turned, says = _Turns(photo, key, tiled=tiled)(left, top, across, down)
    inside &= says.ravel()
    if among is not None:
        inside &= among[y, x]
    return y[inside], x[inside], turned.ravel()[inside], (left, top, across, down)


def _bounds(shape: tuple[int, ...], quad: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """The left and top pixel of the part of a photo that a square touches, and how many it is across and down."""
    left, top = np.clip(np.floor(quad.min(0)), 0, shape[1::-1]).astype(int)
    right, bottom = np.clip(np.ceil(quad.max(0)), 0, shape[1::-1]).astype(int)
    return int(left), int(top), int(right - left), int(bottom - top)
