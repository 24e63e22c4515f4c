"""Putting a rendered face into the photo: soft border, light, grain, and the way back to the photo's own pixels.

Crops and renders are uint8 ``[S, S, 3]``, masks float32 ``[S, S]`` in 0..1, quads as in :mod:`anonface.faces.align`.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.faces.align import crop_to_photo, index_matrix, side_of, transform
from anonface.faces.detect import Pixels, Points
from anonface.faces.parse import Mask, grown

BORDER = 0.04  # width of the soft border, as a share of the face's mean diameter
THIN = 0.3  # width of the border about narrow things, as a share of that
LIGHT_GRID = 48  # cells along the crop's side on which light is matched: nothing finer passes from photo to render
LIGHT_REACH = 0.12  # of the crop's side: the rim of the mask whose colours are compared
MOST_GRAIN = 6.0  # grey levels
MOSAIC_CELLS = 5  # along each diameter of the covered ellipse


def composite(face: Any, render: Any, soft: Any) -> Any:
    """Alpha blending by the soft mask, equation 11 of iFADIT: ``soft * render + (1 - soft) * face``.

    Works on numpy arrays and torch tensors alike; the mask must broadcast against the pictures.
    """
    return soft * render + (1 - soft) * face


def soften(mask: Mask) -> Mask:
    """Give a mask a soft border that lies inside it (the Gaussian-blurred mask M of iFADIT's equation 11).

    The border is as wide as BORDER mean diameters of the mask, whatever its resolution; about what is narrower than
    that, a spectacle frame or a strand of hair, it is THIN as wide, or little of the new face would be left there.
    Where the mask is 0 the result is 0, so nothing outside it can change.
    """
    width = max(1.0, BORDER * math.sqrt(float(mask.sum()) * 4 / math.pi))
    inside = (mask > 0.5).astype(np.uint8)
    reach = round(width)
    # The depth of a pixel in the mask, counted from the picture's edge too, so that a mask that is cut there ends soft.
    closed = 1 - grown(1 - grown(np.pad(inside, 2 * reach), reach), reach)
    closed = closed[2 * reach : -2 * reach, 2 * reach : -2 * reach]
    soft = _ramp(closed, width) * _ramp(inside, THIN * width)
    return np.asarray(soft * inside, np.float32)


def _ramp(inside: NDArray[np.uint8], width: float) -> Mask:
    """A smooth rise from 0 at a mask's rim to 1 at ``width`` px within it."""
    depth = cv2.distanceTransform(np.pad(inside, 1), cv2.DIST_L2, 5)[1:-1, 1:-1]
    ramp = np.clip(depth / width, 0, 1)
    return np.asarray(np.clip(cv2.GaussianBlur(ramp * ramp * (3 - 2 * ramp), (0, 0), width / 6), 0, 1), np.float32)


def match_light(render: Pixels, crop: Pixels, mask: Mask) -> Pixels:
    """Give the render the light and colour that the crop has along the mask's rim.

    The difference in Lab between crop and render is taken on a coarse grid within the rim, freed of outliers (a
    strand of hair that only one of the two has), and carried over the whole picture by mean-value-like interpolation:
    the weights fall with the cube of the distance. Only differences that vary as slowly as the grid get through, and
    from the face's middle none at all.

    Args:
        render: what was made.
        crop: what it replaces.
        mask: where it will be put.

    Returns:
        The corrected render.
    """
    size = len(render)
    grid = [_shrink(_lab(picture)) for picture in (crop, render)]
    cover = _shrink(mask)
    inside = cv2.erode((cover > 0.5).astype(np.uint8), np.ones((3, 3), np.uint8), borderValue=0)
    depth = cv2.distanceTransform(inside, cv2.DIST_L2, 5)
    rim = (depth > 0) & (depth <= LIGHT_REACH * LIGHT_GRID)
    if not rim.any():
        return render
    difference = (grid[0] - grid[1])[rim]
    field = _carry(np.argwhere(rim).astype(np.float32), difference, _trust(difference))
    return _rgb(_lab(render) + cv2.resize(field, (size, size), interpolation=cv2.INTER_CUBIC))


def _trust(difference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights that fall for differences unlike the usual one: a redescending robust weight on the distance."""
    off = np.linalg.norm(difference - np.median(difference, axis=0), axis=1)
    scale = 1.5 * max(float(np.median(off)), 2.0)
    return np.asarray(1 / (1 + (off / scale) ** 4), np.float32)


def _carry(places: NDArray[np.float32], values: NDArray[np.float32], trust: NDArray[np.float32]) -> NDArray[np.float32]:
    """Interpolate scattered values ``[N, 3]`` at ``places`` ``[N, 2]`` (row, column) over the whole light grid."""
    cells = np.indices((LIGHT_GRID, LIGHT_GRID)).reshape(2, -1).T.astype(np.float32)
    squared = ((cells[:, None] - places[None]) ** 2).sum(2)
    weight = trust / (squared + 4.0) ** 1.5  # the offset of 2 cells smooths what the rim's cells disagree on
    field = weight @ values / weight.sum(1, keepdims=True)
    return np.asarray(field.reshape(LIGHT_GRID, LIGHT_GRID, 3), np.float32)


def _shrink(picture: NDArray) -> NDArray[np.float32]:
    return np.asarray(cv2.resize(picture, (LIGHT_GRID, LIGHT_GRID), interpolation=cv2.INTER_AREA), np.float32)


def _lab(picture: Pixels) -> NDArray[np.float32]:
    return np.asarray(cv2.cvtColor((picture / 255).astype(np.float32), cv2.COLOR_RGB2Lab), np.float32)


def _rgb(lab: NDArray[np.float32]) -> Pixels:
    return np.asarray(np.rint(np.clip(cv2.cvtColor(lab, cv2.COLOR_Lab2RGB), 0, 1) * 255), np.uint8)


def noise_level(picture: Pixels, where: Mask) -> float:
    """Estimate the standard deviation of a picture's noise, in grey levels.

    The response to Immerkaer's Laplacian difference (1996), which cancels flat and evenly sloping parts; its median
    over ``where`` is little disturbed by edges.
    """
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
    response = np.abs(cv2.filter2D(grey, -1, kernel))[where > 0.5]
    return float(np.median(response)) / (6 * 0.6745) if response.size else 0.0


def match_grain(render: Pixels, crop: Pixels, mask: Mask) -> Pixels:
    """Add the grain that the crop has more of than the render; the same pictures get the same grain."""
    lacking = noise_level(crop, mask) ** 2 - noise_level(render, mask) ** 2
    if lacking <= 0:
        return render
    grain = np.random.Generator(np.random.PCG64(len(render))).standard_normal(render.shape[:2], np.float32)
    strength = min(math.sqrt(lacking), MOST_GRAIN)
    return np.asarray(np.rint(np.clip(render + strength * grain[..., None], 0, 255)), np.uint8)


def paste(photo: Pixels, render: Pixels, soft: Mask, quad: Points) -> Pixels:
    """Put a render into a photo, at the photo's own resolution.

    Args:
        photo: uint8 ``[H, W, 3]``; left as it is.
        render: uint8 ``[S, S, 3]``, what to put into the quad.
        soft: ``[S, S]``, how much of it shows.
        quad: where the render belongs.

    Returns:
        A new photo. Pixels on which the mask does not fall are those of ``photo``, bit for bit.
    """
    pasted = photo.copy()
    box = _bounds(quad, photo.shape)
    if box is None:
        return pasted
    rows, columns = box
    render = _shrunk(render, quad)
    warp, extent = _way_into(quad, len(render), rows, columns)
    colours = cv2.warpAffine(render, warp, extent, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    share = _share(soft, quad, rows, columns)[..., None]
    part = pasted[rows, columns]
    mixed = np.rint(composite(part.astype(np.float32), colours.astype(np.float32), share))
    pasted[rows, columns] = np.where(share > 0, mixed, part)
    return pasted


def cover(shape: tuple[int, ...], soft: Mask, quad: Points) -> tuple[slice, slice, Mask] | None:
    """Where :func:`paste` puts something into a photo of this shape: rows, columns, and how much of it shows there in
    0..1; None where the quad misses the photo."""
    box = _bounds(quad, shape)
    return None if box is None else (*box, _share(soft, quad, *box))


def _shrunk(picture: NDArray[Any], quad: Points) -> NDArray[Any]:
    """A crop with no more pixels than its quad has in the photo: shrunk by area, so that the warp does not alias."""
    size = min(len(picture), max(1, round(side_of(quad))))
    if size == len(picture):
        return picture
    return np.asarray(cv2.resize(picture, (size, size), interpolation=cv2.INTER_AREA), picture.dtype)


def _share(soft: Mask, quad: Points, rows: slice, columns: slice) -> Mask:
    soft = _shrunk(soft, quad)
    warp, extent = _way_into(quad, len(soft), rows, columns)
    return np.asarray(cv2.warpAffine(soft, warp, extent, flags=cv2.INTER_LINEAR), np.float32)


def add(photo: Pixels, pattern: NDArray[np.float32], quad: Points) -> Pixels:
    """Add a pattern to what a photo shows in a quad.

    Args:
        photo: uint8 ``[H, W, 3]``; left as it is.
        pattern: float32 ``[S, S, 3]``, grey levels.
        quad: where the pattern belongs.

    Returns:
        A new photo. Pixels on which the pattern is 0 are those of ``photo``.
    """
    summed = photo.copy()
    box = _bounds(quad, photo.shape)
    if box is None:
        return summed
    rows, columns = box
    size = max(1, round(side_of(quad)))
    if size < len(pattern):
        pattern = np.asarray(cv2.resize(pattern, (size, size), interpolation=cv2.INTER_AREA), np.float32)
    laid = cv2.warpAffine(pattern, *_way_into(quad, len(pattern), rows, columns), flags=cv2.INTER_CUBIC)
    summed[rows, columns] = np.rint(np.clip(summed[rows, columns] + laid, 0, 255))
    return summed


def is_grey(photo: Pixels) -> bool:
    """Whether the three channels of uint8 ``[H, W, 3]`` are the same everywhere."""
    first, second, third = np.moveaxis(photo, 2, 0)
    return np.array_equal(first, second) and np.array_equal(first, third)


def as_grey(photo: Pixels) -> Pixels:
    """Every pixel's luma (ITU-R BT.601) in all three channels; what is grey already stays as it is, bit for bit."""
    return np.asarray(cv2.cvtColor(cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB), np.uint8)


def mosaic(photo: Pixels, quad: Points, cells: int = MOSAIC_CELLS) -> Pixels:
    """Cover the ellipse that fills a quad with a coarse mosaic.

    ``cells`` by ``cells`` mean colours, fewer where the photo cuts the quad, are all that is left of what lay under it.

    Args:
        photo: uint8 ``[H, W, 3]``; left as it is.
        quad: what to cover.
        cells: along each diameter; 1 leaves one colour.

    Returns:
        A new photo, unchanged outside the ellipse.
    """
    covered = photo.copy()
    found = ellipse(photo.shape, quad)
    if found is None:
        return covered
    rows, columns, inside = found
    part = covered[rows, columns]
    height, width = part.shape[:2]
    whole = quad.max(0) - quad.min(0)
    counts = tuple(
        min(length, max(1, round(cells * length / float(extent))))
        for length, extent in ((height, whole[1]), (width, whole[0]))
    )
    coarse = cv2.resize(part, counts[::-1], interpolation=cv2.INTER_AREA)
    blocks = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_NEAREST)
    covered[rows, columns] = np.where(inside[..., None], blocks, part)
    return covered


def ellipse(shape: tuple[int, ...], quad: Points) -> tuple[slice, slice, NDArray[np.bool_]] | None:
    """The ellipse that fills a quad, in a photo of this shape: rows, columns, and which of their pixels it holds; None
    where the quad misses the photo."""
    box = _bounds(quad, shape)
    if box is None:
        return None
    rows, columns = box
    turns = np.linspace(0, 2 * math.pi, 180, endpoint=False)
    outline = transform(crop_to_photo(quad, 2), 1 + np.column_stack([np.cos(turns), np.sin(turns)]))
    outline = np.rint((outline - (columns.start, rows.start) - 0.5) * 16).astype(np.int32)
    inside = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.uint8)
    cv2.fillConvexPoly(inside, outline, (1,), shift=4)
    return rows, columns, inside > 0


def _way_into(quad: Points, size: int, rows: slice, columns: slice) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """OpenCV's matrix and extent that lay a square of ``size`` px on a part of the photo."""
    matrix = crop_to_photo(quad, size)
    matrix[:, 2] -= (columns.start, rows.start)
    return index_matrix(matrix), (columns.stop - columns.start, rows.stop - rows.start)


def _bounds(quad: Points, shape: tuple[int, ...]) -> tuple[slice, slice] | None:
    """Rows and columns of a photo that a quad can touch, or None where it misses the photo."""
    left, top = np.maximum(np.floor(quad.min(0)).astype(int) - 1, 0)
    right, bottom = np.minimum(np.ceil(quad.max(0)).astype(int) + 1, (shape[1], shape[0]))
    return (slice(top, bottom), slice(left, right)) if left < right and top < bottom else None
