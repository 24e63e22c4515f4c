"""The anchor: where an aligned square lay and which of its pixels were replaced, said under the key by the last bits of
the face that was put there.

A backend that moves single pixels, or single cells of a latent, needs the very square again. A photo's record holds it;
without a record a detector finds the new face, whose landmarks lie a few pixels off the old one's. So the blue channel
of the new face, where a step of one is least seen, says the square's corners in its last bits, over and over. Where it
does, the face was replaced: a parser may see hair in what a network drew. Without the key those bits are noise, and a
wrong key reads nothing. They outlast lossless files alone, as such a recovery does.
"""

from __future__ import annotations

import hmac

import cv2
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
CENTRE, AXES = np.array([0.5, 0.57]), np.array([0.46, 0.5])  # of the ellipse of the square that is written to
BLOCK, PATCHES, STRIP = 8, (16, 24, 40), 256  # px, the last two multiples of the first
AROUND = 5  # px across, within which bits are counted that are right
STANDS = 0.85  # share of a face's bits that are right, from which an anchor is there
RIGHT, CHANCE = 0.88, 0.65  # of the bits around a pixel: from which it was replaced, below which it was not


def drop(photo: Pixels, quad: NDArray[np.float64], changed: Mask, key: FaceKey) -> Pixels:
    """The photo with the anchor of one face.

    Args:
        photo: uint8 [H, W, 3], left as it is.
        quad: [4, 2], snapped (:func:`align.snap_quad`).
        changed: bool [H, W], the only pixels that may be written to. None of them moves by more than one grey level;
            a grey pixel stays grey.
    """
    anchored = photo.copy()
    y, x = _ellipse(photo.shape, quad)
    y, x = y[changed[y, x]], x[changed[y, x]]
    place, flip = _places(key, x, y)
    wanted = _said(quad, key)[place] ^ flip
    blue = anchored[y, x, 2]
    moved = np.where((blue & 1) == wanted, blue, blue ^ 1)
    grey = (photo[y, x] == photo[y, x, :1]).all(1)
    anchored[y, x] = np.where(grey[:, None], moved[:, None], np.stack([*photo[y, x, :2].T, moved], 1))
    return anchored


def search(photo: Pixels, key: FaceKey) -> list[NDArray[np.float64]]:
    """The quads [4, 2] of all anchors that a photo holds under a key, from top to bottom, wherever they are.

    Every patch of the sides :data:`PATCHES` that lies within an anchor's ellipse says the whole of it.
    """
    found: dict[bytes, NDArray[np.float64]] = {}
    farthest = 4 * align.SNAP * max(photo.shape)
    for top in range(0, photo.shape[0], STRIP):  # some at a time: a photo has far more pixels than an anchor needs
        tallies = _tallies(photo[top : top + STRIP + PATCHES[-1]], top, key)
        sums = np.pad(tallies, ((1, 0), (1, 0), (0, 0))).cumsum(0).cumsum(1)
        for side in (patch // BLOCK for patch in PATCHES):
            patches = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
            said = patches.reshape(-1, LENGTH) > 0
            likely = (abs(_numbers(said)) < farthest).all(1)  # numbers out of noise are far greater, one in a million
            for bits in said[likely]:
                if np.array_equal(bits[NUMBER * NUMBERS :], _check(bits[: NUMBER * NUMBERS], key)):
                    found[bits.tobytes()] = _quad(bits)
    return sorted(found.values(), key=lambda quad: tuple(quad.mean(0)[::-1]))


def replaced(photo: Pixels, quad: NDArray[np.float64], face: Mask, key: FaceKey) -> Mask:
    """Which pixels of an aligned square were replaced, as its anchor says; about their rim, and where there is no
    anchor, what is known otherwise.

    Args:
        photo: uint8 [H, W, 3].
        quad: [4, 2], as it was dropped.
        face: bool [S, S], of the square: what else is known.
    """
    y, x = _ellipse(photo.shape, quad)
    if not len(y):
        return face
    place, flip = _places(key, x, y)
    right = (photo[y, x, 2] & 1) == _said(quad, key)[place] ^ flip
    left, top, across, down = _bounds(photo.shape, quad)
    counts = np.zeros((2, down, across), np.float32)
    counts[0, y - top, x - left], counts[1, y - top, x - left] = 1, right
    near, true = (cv2.boxFilter(plane, -1, (AROUND, AROUND), normalize=False) for plane in counts)
    share = true / np.maximum(near, 1)
    known, share = (align.crop(x, quad - (left, top), len(face)) for x in (counts[0], share))
    known = known > 0.99
    if not (face & known).any() or share[face & known].mean() < STANDS:
        return face
    return np.asarray((face & ~(known & (share < CHANCE))) | (known & (share > RIGHT)))


def _tallies(rows: Pixels, top: int, key: FaceKey) -> NDArray[np.int32]:
    """What the pixels of each block say of each bit, votes for less votes against: [blocks down, across, LENGTH]."""
    y, x = (side.ravel() for side in np.mgrid[: rows.shape[0], : rows.shape[1]])
    place, flip = _places(key, x, top + y)
    votes = np.where(((rows[..., 2].ravel() & 1) == 1) ^ flip, 1, -1)
    down, across = (-(-side // BLOCK) for side in rows.shape[:2])
    block = y // BLOCK * across + x // BLOCK
    tallies = np.bincount(block * LENGTH + place, votes, down * across * LENGTH)
    return tallies.astype(np.int32).reshape(down, across, LENGTH)


def _quad(bits: Bits) -> NDArray[np.float64]:
    top_left, bottom_left, top_right = _numbers(bits[None]).reshape(3, 2) / align.SNAP
    return np.stack([top_left, bottom_left, bottom_left + top_right - top_left, top_right])


def _said(quad: NDArray[np.float64], key: FaceKey) -> Bits:
    """The corners' coordinates and their check, [LENGTH]."""
    numbers = np.rint(quad[[0, 1, 3]] * align.SNAP).astype(np.int64).ravel() + (1 << (NUMBER - 1))
    bits = (numbers[:, None] >> np.arange(NUMBER) & 1).astype(bool).ravel()
    return np.concatenate([bits, _check(bits, key)])


def _check(bits: Bits, key: FaceKey) -> Bits:
    digest = hmac.digest(key.derive("anchor check"), np.packbits(bits).tobytes(), "sha256")[:CHECK]
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(bool)


def _numbers(bits: Bits) -> NDArray[np.int64]:
    """Coordinates [N, NUMBERS] in 1/16 px of bits [N, LENGTH]."""
    digits = bits[:, : NUMBER * NUMBERS].reshape(-1, NUMBERS, NUMBER)
    return digits.astype(np.int64) @ (1 << np.arange(NUMBER)) - (1 << (NUMBER - 1))


def _places(key: FaceKey, x: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[NDArray[np.int64], Bits]:
    """For pixels of the photo, which bit each says, evenly over any patch, and whether the key turns it."""
    flips = np.unpackbits(np.frombuffer(key.stream("anchor", TILE * TILE // 8), np.uint8)).reshape(TILE, TILE)
    return (x + ROW * y) % LENGTH, flips[y % TILE, x % TILE].astype(bool)


def _ellipse(shape: tuple[int, ...], quad: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the photo's pixels that lie in the ellipse of the square."""
    left, top, across, down = _bounds(shape, quad)
    y, x = (side.ravel() for side in np.mgrid[top : top + down, left : left + across])
    places = align.transform(align.photo_to_crop(quad, 1), np.stack([x, y], 1).astype(np.float64))
    inside = (((places - CENTRE) / AXES) ** 2).sum(1) <= 1
    return y[inside], x[inside]


def _bounds(shape: tuple[int, ...], quad: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """The left and top pixel of the part of a photo that a square touches, and how many it is across and down."""
    left, top = np.clip(np.floor(quad.min(0)), 0, shape[1::-1]).astype(int)
    right, bottom = np.clip(np.ceil(quad.max(0)), 0, shape[1::-1]).astype(int)
    return int(left), int(top), int(right - left), int(bottom - top)
