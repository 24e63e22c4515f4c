"""Regions of a face that stay as they are in the photo, such as the eyes.

Anonymization and recovery need the same regions to the pixel, and landmarks of a new face lie a little elsewhere. So
the record holds each region's outline: the corners of a polygon, one byte a coordinate, in shares of the aligned
square's side, as hexadecimal digits. The polygon that is used is the one that the record says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.errors import UsageError
from anonface.faces import align
from anonface.faces.detect import Points
from anonface.faces.parse import Mask

# Rows of the 468-point mesh about each part of a region.
PARTS = {
    "eyes": (align.EYES[:16], align.EYES[16:]),
    "brows": (align.BROWS[:10], align.BROWS[10:]),
    "nose": (align.NOSE,),
    "mouth": (align.LIPS,),
}
REACH = 0.02  # of the side: how far beyond its landmarks a region reaches, so that lids and lips are whole
CORNERS = 12  # of the disc that is laid about each landmark
MOST_FACES = 64  # whose regions a record has room for


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The names in the order of PARTS, each once.

    Raises:
        UsageError: there is no such region, or all of them would stay.
    """
    if unknown := [name for name in names if name not in PARTS]:
        raise UsageError(f"there is no region {unknown[0]!r}", f"choose among {', '.join(PARTS)}")
    if set(names) == set(PARTS):
        raise UsageError("if all regions stay, hardly anything of a face is replaced", "keep three at most")
    return tuple(name for name in PARTS if name in names)


def outlines(mesh: Points, side: float, names: Sequence[str]) -> str:
    """The outlines of regions, for the record.

    Args:
        mesh: landmarks [468, 2] in an aligned square.
        side: of the square, in the same units.
    """
    turns = np.arange(CORNERS) * (2 * np.pi / CORNERS)
    disc = REACH * np.column_stack([np.cos(turns), np.sin(turns)])
    parts = []
    for rows in (rows for name in names for rows in PARTS[name]):
        about = (mesh[rows, None, :2] / side + disc).reshape(-1, 2)
        hull = cv2.convexHull(about.astype(np.float32))[:, 0]
        parts.append(np.rint(np.clip(hull, 0, 1) * 255).astype(np.uint8).tobytes().hex())
    return " ".join(parts)


def polygons(recorded: str, quad: Points) -> list[Points]:
    """Recorded outlines as polygons [n, 2] in the photo, whose aligned square is ``quad``.

    Raises:
        ValueError: they are no outlines.
    """
    found = []
    for part in recorded.split():
        corners = np.frombuffer(bytes.fromhex(part), np.uint8)
        if corners.size < 6 or corners.size % 2:
            raise ValueError("an outline of a region has at least three corners")
        found.append(align.transform(align.crop_to_photo(quad, 255), corners.reshape(-1, 2).astype(np.float64)))
    return found


def without(mask: Mask, regions: Sequence[Points], quad: Points) -> Mask:
    """A mask [S, S] of an aligned square without regions of the photo."""
    result = mask.copy()
    to_crop = align.photo_to_crop(quad, len(mask))
    for rows, columns, inside in _filled([align.transform(to_crop, region) for region in regions], mask.shape):
        result[rows, columns][inside] = 0
    return result


def keep(after: NDArray, before: NDArray, regions: Sequence[Points]) -> None:
    """Put the pixels of ``before`` back where regions of the photo are; both are [H, W, ...], the first is changed."""
    for rows, columns, inside in _filled(regions, before.shape):
        after[rows, columns][inside] = before[rows, columns][inside]


def _filled(regions: Sequence[Points], shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, NDArray[np.bool_]]]:
    """Rows and columns about each polygon, and which of their pixels it holds."""
    for region in regions:
        left, top = np.clip(np.floor(region.min(0)).astype(int) - 1, 0, shape[1::-1])
        right, bottom = np.clip(np.ceil(region.max(0)).astype(int) + 1, 0, shape[1::-1])
        if left < right and top < bottom:
            canvas = np.zeros((bottom - top, right - left), np.uint8)
            corners = np.rint((region - (left, top) - 0.5) * 16).astype(np.int32)
            cv2.fillPoly(canvas, [corners], (1,), shift=4)
            yield slice(top, bottom), slice(left, right), canvas > 0
