"""The anchor: where an aligned square lay, said under the key by the last bits of the face that was put there.

A backend that moves single pixels, or single cells of a latent, needs the very square again. A photo's record holds it;
without a record the new face is searched for, and its landmarks lie a few pixels off the old one's. So the blue channel
of the new face, where a step of one is least seen, says the square's corners in its last bits, over and over. Without
the key those bits are noise, and a wrong key reads nothing. They outlast lossless files alone, as such a recovery does.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

from anonface.faces import align
from anonface.keys import FaceKey

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Bits = NDArray[np.bool_]

TILE = 256  # px, after which the key's turns repeat
NUMBER, NUMBERS = 22, 6  # bits of a coordinate in 1/16 px, counted from -65,536 px; of three corners
CHECK = 3  # bytes
LENGTH = NUMBER * NUMBERS + 8 * CHECK
ROW = 61  # places from one row to the next; no divisor of LENGTH
CENTRE, WRITTEN, READ = np.array([0.5, 0.57]), np.array([0.22, 0.28]), np.array([0.18, 0.23])  # ellipses of the square


def drop(photo: Pixels, quad: NDArray[np.float64], changed: Mask, key: FaceKey) -> Pixels:
    """The photo with the anchor of one face.

    Args:
        photo: uint8 [H, W, 3], left as it is.
        quad: [4, 2], snapped (:func:`align.snap_quad`).
        changed: bool [H, W], the only pixels that may be written to. None of them moves by more than one grey level;
            a grey pixel stays grey.
    """
    anchored = photo.copy()
    y, x = _ellipse(photo.shape, quad, WRITTEN)
    y, x = y[changed[y, x]], x[changed[y, x]]
    place, flip = _places(key, x, y)
    wanted = _said(quad, key)[place] ^ flip
    blue = anchored[y, x, 2]
    moved = np.where((blue & 1) == wanted, blue, blue ^ 1)
    grey = (photo[y, x] == photo[y, x, :1]).all(1)
    anchored[y, x] = np.where(grey[:, None], moved[:, None], np.stack([*photo[y, x, :2].T, moved], 1))
    return anchored


def read(photo: Pixels, found: NDArray[np.float64], key: FaceKey) -> NDArray[np.float64] | None:
    """The quad [4, 2] that a face's anchor says, or None where there is none under this key.

    Args:
        found: [4, 2], about where the face lies.
    """
    y, x = _ellipse(photo.shape, found, READ)
    place, flip = _places(key, x, y)
    votes = np.where(((photo[y, x, 2] & 1) == 1) ^ flip, 1, -1)
    bits = np.bincount(place, votes, LENGTH) > 0
    top_left, bottom_left, top_right = _numbers(bits[: NUMBER * NUMBERS]).reshape(3, 2) / align.SNAP
    quad = np.stack([top_left, bottom_left, bottom_left + top_right - top_left, top_right])
    said = _said(quad, key)
    return quad if np.array_equal(said, bits) else None


def _said(quad: NDArray[np.float64], key: FaceKey) -> Bits:
    """The corners' coordinates and their check, [LENGTH]."""
    numbers = np.rint(quad[[0, 1, 3]] * align.SNAP).astype(np.int64).ravel() + (1 << (NUMBER - 1))
    bits = (numbers[:, None] >> np.arange(NUMBER) & 1).astype(bool).ravel()
    check = hmac.new(key.derive("anchor check"), np.packbits(bits).tobytes(), hashlib.sha256).digest()[:CHECK]
    return np.concatenate([bits, np.unpackbits(np.frombuffer(check, np.uint8)).astype(bool)])


def _numbers(bits: Bits) -> NDArray[np.int64]:
    return (bits.reshape(NUMBERS, NUMBER).astype(np.int64) << np.arange(NUMBER)).sum(1) - (1 << (NUMBER - 1))


def _places(key: FaceKey, x: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[NDArray[np.int64], Bits]:
    """For pixels of the photo, which bit each says, evenly over any patch, and whether the key turns it."""
    flips = np.unpackbits(np.frombuffer(key.stream("anchor", TILE * TILE // 8), np.uint8)).reshape(TILE, TILE)
    return (x + ROW * y) % LENGTH, flips[y % TILE, x % TILE].astype(bool)


def _ellipse(
    shape: tuple[int, ...], quad: NDArray[np.float64], axes: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the photo's pixels that lie in an ellipse of the square."""
    left, top = np.clip(np.floor(quad.min(0)), 0, shape[1::-1]).astype(int)
    right, bottom = np.clip(np.ceil(quad.max(0)), 0, shape[1::-1]).astype(int)
    y, x = (side.ravel() for side in np.mgrid[top:bottom, left:right])
    places = align.transform(align.photo_to_crop(quad, 1), np.stack([x, y], 1).astype(np.float64))
    inside = (((places - CENTRE) / axes) ** 2).sum(1) <= 1
    return y[inside], x[inside]
