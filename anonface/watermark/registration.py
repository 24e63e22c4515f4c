"""The registration mark: where an aligned square lay, which of its pixels were replaced and, if asked, the face's
nonce. It is written under the key into the last bits of the synthetic face.

Recovery needs the same square again, to the pixel. A photo's record holds it. Without a record a detector finds the new
face, whose landmarks lie a few pixels off the old one's. So the last bits of the face's blue channel, where a step of
one is least visible, repeat the square's corners. Where they do, the face was replaced. Without the key those bits are
noise. They survive in lossless files alone.

A search begins with key and pixels alone, so its key is the same for all photos. Therefore each bit is encrypted by its
surroundings: a pseudorandom function of the pixel's place and of all but the last bits of the 5 x 5 pixels around it
flips it. Writing leaves these bits as they are. The function is AES-256 over the place and a universal hash of the bits
(sums of products with secret numbers modulo 2^64, Carter and Wegman). Two different surroundings have the same hash
with a chance of 2^-43 or less. A flip repeats only where two photos have the same 25 pixels at the same place, as in
clipped white or black. Pixels whose 25 are all alike therefore carry nothing. Nothing repeats within a photo.

Up to version 5 of the watermark, flips repeated after a tile of 256 px, which tied photos of one key to each other. So
photos made then with ``--stateless`` or ``--consistent`` count as exposed. They can still be read.
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

TILE = 256  # px, after which the key's flips repeated up to version 5
NUMBER, NUMBERS = 22, 6  # bits of a coordinate in 1/16 px, counted from -65,536 px; of three corners
CORNERS = NUMBER * NUMBERS
CHECK = 3  # bytes
NEAR = 2  # px on each side whose upper bits decide a pixel's flip
ROW = 61  # places from one row to the next; shares no divisor with a message's length
CENTRE, AXES = np.array([0.5, 0.57]), np.array([0.46, 0.5])  # of the ellipse of the square that is written to
BLOCK, PATCHES, STRIP = 8, (16, 24, 40), 256  # px, the last two multiples of the first
AROUND = 5  # px across, within which bits are counted that are right
STANDS = 0.85  # share of correct bits from which a mark is there
RIGHT, CHANCE = 0.88, 0.65  # share of correct bits around a pixel: from which it was replaced, below which it was not


@dataclass(frozen=True)
class RegistrationMark:
    """What a mark holds: a square's corners [4, 2], and its face's nonce, which may be empty."""

    quad: NDArray[np.float64]
    nonce: bytes = b""


class _Flips:
    """Whether a key flips the last bit of a photo's pixels, and which of them carry anything.

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
            flips = tile.reshape(TILE, TILE)[np.ix_(rows % TILE, columns % TILE)].astype(bool)
            return flips, np.ones_like(flips)
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
        flips = np.frombuffer(encrypted, np.uint8)[::16].reshape(down, across) & 1
        return flips.astype(bool), ~alike

    def _upper(self, left: int, top: int, across: int, down: int) -> NDArray[np.uint64]:
        """All but the last bits of each pixel of a rectangle and NEAR px about it; beyond the photo its rim again."""
        rows = np.clip(np.arange(top - NEAR, top + down + NEAR), 0, len(self._photo) - 1)
        columns = np.clip(np.arange(left - NEAR, left + across + NEAR), 0, self._photo.shape[1] - 1)
        red, green, blue = (self._photo[np.ix_(rows, columns)].astype(np.uint64) >> np.uint64(1)).transpose(2, 0, 1)
        return red | green << np.uint64(7) | blue << np.uint64(14)


def write(photo: Pixels, quad: NDArray[np.float64], changed: Mask, key: FaceKey, nonce: bytes = b"") -> Pixels:
    """The photo with the registration mark of one face.

    Args:
        photo: uint8 [H, W, 3], left as it is.
        quad: [4, 2], snapped (:func:`align.snap_quad`).
        changed: bool [H, W], the only pixels that may be written to. None of them moves by more than one grey level;
            a grey pixel stays grey.
        nonce: of the face, to be written too: none or NONCE_BYTES.
    """
    marked = photo.copy()
    bits = _message(RegistrationMark(quad, nonce), key)
    y, x, flipped, _ = _ellipse(photo, quad, key, changed)
    wanted = bits[_places(x, y, len(bits))] ^ flipped
    blue = marked[y, x, 2]
    moved = np.where((blue & 1) == wanted, blue, blue ^ 1)
    grey = (photo[y, x] == photo[y, x, :1]).all(1)
    marked[y, x] = np.where(grey[:, None], moved[:, None], np.stack([*photo[y, x, :2].T, moved], 1))
    return marked


def search(photo: Pixels, key: FaceKey, nonced: bool = False, *, tiled: bool = False) -> list[RegistrationMark]:
    """All marks that a photo holds under a key, from top to bottom, wherever they are.

    Every patch of the sides :data:`PATCHES` within a mark's ellipse holds all of it, or nearly.

    Args:
        nonced: whether they hold nonces.
        tiled: whether they are of version 5 or earlier.
    """
    found: dict[bytes, RegistrationMark] = {}
    length = _length(nonced)
    farthest = 4 * align.SNAP * max(photo.shape)
    for top in range(0, photo.shape[0], STRIP):  # some at a time: a photo has far more pixels than a mark needs
        tallies = _tallies(photo, top, key, length, tiled)
        sums = np.pad(tallies, ((1, 0), (1, 0), (0, 0))).cumsum(0).cumsum(1)
        for side in (patch // BLOCK for patch in PATCHES):
            patches = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
            decoded = patches.reshape(-1, length) > 0
            likely = (abs(_numbers(decoded)) < farthest).all(1)  # noise decodes to far greater numbers
            for bits in decoded[likely]:
                if np.array_equal(bits[-8 * CHECK :], _check(bits[: -8 * CHECK], key)):
                    found[bits.tobytes()] = _mark(bits)
    return sorted(found.values(), key=lambda mark: tuple(mark.quad.mean(0)[::-1]))


def replaced(photo: Pixels, quad: NDArray[np.float64], face: Mask, key: FaceKey, nonce: bytes = b"") -> Mask:
    """Which pixels of an aligned square were replaced, by its mark. Near their border, and without a mark, ``face``
    decides.

    Args:
        photo: uint8 [H, W, 3].
        quad, nonce: as they were written.
        face: bool [S, S], of the square: where a face seems to be.
    """
    for tiled in (False, True):
        y, x, flipped, (left, top, across, down) = _ellipse(photo, quad, key, tiled=tiled)
        if not len(y):
            return face
        bits = _message(RegistrationMark(quad, b"" if tiled else nonce), key)
        right = (photo[y, x, 2] & 1) == bits[_places(x, y, len(bits))] ^ flipped
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
    """The votes of each block of some rows for each bit, less the votes against: [blocks down, across, ``length``]."""
    bottom, across = min(top + STRIP + PATCHES[-1], photo.shape[0]), photo.shape[1]
    first = max(0, top - NEAR)
    rows = photo[first : bottom + NEAR]
    flipped, carries = _Flips(rows, key, first, tiled)(0, top - first, across, bottom - top)
    y, x = (side.ravel() for side in np.mgrid[: bottom - top, :across])
    votes = np.where(((photo[top:bottom, :, 2] & 1) == 1) ^ flipped, 1, -1) * carries
    down, wide = (-(-side // BLOCK) for side in (bottom - top, across))
    block = y // BLOCK * wide + x // BLOCK
    tallies = np.bincount(block * length + _places(x, top + y, length), votes.ravel(), down * wide * length)
    return tallies.astype(np.int32).reshape(down, wide, length)


def _length(nonced: bool) -> int:
    return CORNERS + 8 * NONCE_BYTES * nonced + 8 * CHECK


def _mark(bits: Bits) -> RegistrationMark:
    top_left, bottom_left, top_right = _numbers(bits[None]).reshape(3, 2) / align.SNAP
    quad = np.stack([top_left, bottom_left, bottom_left + top_right - top_left, top_right])
    return RegistrationMark(quad, np.packbits(bits[CORNERS : -8 * CHECK]).tobytes())


def _message(mark: RegistrationMark, key: FaceKey) -> Bits:
    """The corners' coordinates, the nonce, and the check of both."""
    numbers = np.rint(mark.quad[[0, 1, 3]] * align.SNAP).astype(np.int64).ravel() + (1 << (NUMBER - 1))
    corners = (numbers[:, None] >> np.arange(NUMBER) & 1).astype(bool).ravel()
    bits = np.concatenate([corners, np.unpackbits(np.frombuffer(mark.nonce, np.uint8)).astype(bool)])
    return np.concatenate([bits, _check(bits, key)])


def _check(bits: Bits, key: FaceKey) -> Bits:
    digest = hmac.digest(key.derive("anchor check"), np.packbits(bits).tobytes(), "sha256")[:CHECK]
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(bool)


def _numbers(bits: Bits) -> NDArray[np.int64]:
    """Coordinates [N, NUMBERS] in 1/16 px of messages' bits [N, ...]."""
    digits = bits[:, :CORNERS].reshape(-1, NUMBERS, NUMBER)
    return digits.astype(np.int64) @ (1 << np.arange(NUMBER)) - (1 << (NUMBER - 1))


def _places(x: NDArray[np.int64], y: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Which bit of a message each pixel of the photo holds, evenly over any patch."""
    return (x + ROW * y) % length


def _ellipse(
    photo: Pixels, quad: NDArray[np.float64], key: FaceKey, among: Mask | None = None, tiled: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64], Bits, tuple[int, int, int, int]]:
    """Rows and columns of the photo's pixels that hold the mark of a square, whether the key flips them, and the
    rectangle (left, top, across, down) they lie in."""
    left, top, across, down = _bounds(photo.shape, quad)
    y, x = (side.ravel() for side in np.mgrid[top : top + down, left : left + across])
    places = align.transform(align.photo_to_crop(quad, 1), np.stack([x, y], 1).astype(np.float64))
    inside = (((places - CENTRE) / AXES) ** 2).sum(1) <= 1
    if not inside.any():
        return y[inside], x[inside], inside[inside], (left, top, across, down)
    flipped, carries = _Flips(photo, key, tiled=tiled)(left, top, across, down)
    inside &= carries.ravel()
    if among is not None:
        inside &= among[y, x]
    return y[inside], x[inside], flipped.ravel()[inside], (left, top, across, down)


def _bounds(shape: tuple[int, ...], quad: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """The left and top pixel of the part of a photo that a square touches, and how many it is across and down."""
    left, top = np.clip(np.floor(quad.min(0)), 0, shape[1::-1]).astype(int)
    right, bottom = np.clip(np.ceil(quad.max(0)), 0, shape[1::-1]).astype(int)
    return int(left), int(top), int(right - left), int(bottom - top)
