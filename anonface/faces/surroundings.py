"""What an inpainter is told of a face: its surroundings, its colours in coarse cells, and its landmarks as lines.

Within an open mouth the cells are finer: teeth and tongue make the expression, and say little of a person.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.faces.align import EYES, OVAL
from anonface.models.inpainter import INPUTS, LINES

CELLS = 10  # along the square's side, a face's width is about six: no features pass
MOUTH_CELLS = 40  # the same within an open mouth, which is about eight wide
GROWN = 1 / 64  # of the side: by how much the hole is wider than the mask
SHIFT = 4  # bits of a pixel's fraction, for OpenCV

NOSE_BRIDGE, NOSE_BASE = [168, 6, 197, 195, 5, 4], [98, 97, 2, 326, 327]
BROW_LINES = [70, 63, 105, 66, 107], [46, 53, 52, 65, 55], [300, 293, 334, 296, 336], [276, 283, 282, 295, 285]
LIP_RINGS = (
    [61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185],
    [78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191],
)
EYE_RINGS = EYES[:16], EYES[16:]


def inpainter_inputs(pictures: Tensor, masks: Tensor, mesh: Tensor) -> Tensor:
    """Inputs of the inpainter, [B, INPUTS, S, S].

    Args:
        pictures: aligned squares [B, 3, S, S] in [-1, 1].
        masks: [B, 1, S, S] in 0..1, what is to be drawn.
        mesh: landmarks [B, 468, 2] in shares of the side.
    """
    side = pictures.shape[-1]
    grown = round(GROWN * side)
    rows = F.max_pool2d(masks, (2 * grown + 1, 1), 1, (grown, 0))
    hole = (F.max_pool2d(rows, (1, 2 * grown + 1), 1, (0, grown)) > 0).to(pictures)
    lines = torch.stack([_lines(*one) for one in zip(pictures.detach(), mesh.detach(), strict=True)])
    given = torch.lerp(pictures, coarse_colours(pictures, masks, CELLS), hole)
    mouths = torch.stack([_mouth(one, side) for one in mesh.detach()]).to(pictures)
    given = torch.lerp(given, coarse_colours(pictures, mouths, MOUTH_CELLS), hole * mouths)
    inputs = torch.cat([given, hole, lines.to(pictures)], 1)
    assert inputs.shape[1] == INPUTS
    return inputs


def draw_in_square(inpainter: nn.Module, pictures: Tensor, masks: Tensor, mesh: Tensor, codes: Tensor) -> Tensor:
    """What an inpainter draws in aligned squares [B, 3, S, S] of its side; arguments as above."""
    drawn: Tensor = inpainter(inpainter_inputs(pictures, masks, mesh), mesh, codes)
    return drawn


def coarse_colours(pictures: Tensor, masks: Tensor, count: int) -> Tensor:
    """The pictures' colours within masks, in count x count cells, each smoothed with those about it."""
    kernel = torch.tensor([0.25, 0.5, 0.25]).to(pictures)
    kernel = (kernel[:, None] * kernel).expand(pictures.shape[1], 1, 3, 3)

    def mean(x: Tensor) -> Tensor:
        cells = F.interpolate(x, (count, count), mode="area")
        return F.conv2d(cells, kernel[: x.shape[1]], padding=1, groups=x.shape[1])

    cells = mean(pictures * masks) / (mean(masks) + 1e-3)
    return F.interpolate(cells, pictures.shape[-2:], mode="bilinear")


def _lines(picture: Tensor, mesh: Tensor) -> Tensor:
    """Landmarks of one face as lines, and its irises as dots: [LINES, S, S] in 0..1."""
    side = picture.shape[-1]
    points = mesh.double().cpu().numpy() * side
    maps = np.zeros((LINES, side, side), np.uint8)
    drawn = ([OVAL], True), (BROW_LINES, False), (EYE_RINGS, True), (LIP_RINGS, True)
    for canvas, (lines, closed) in zip(maps, drawn, strict=False):
        _draw(canvas, points, lines, closed)
    _draw(maps[0], points, [NOSE_BRIDGE, NOSE_BASE], False)
    grey = picture.mean(0).cpu().numpy()
    for ring in EYE_RINGS:
        x, y = np.rint((_iris(grey, points[ring]) - 0.5) * (1 << SHIFT)).astype(int).tolist()
        radius = round(float(np.linalg.norm(points[ring[0]] - points[ring[8]])) / 8 * (1 << SHIFT))
        cv2.circle(maps[4], (x, y), radius, 255, -1, cv2.LINE_AA, SHIFT)
    return torch.from_numpy(maps.astype(np.float32) / 255)


def _mouth(mesh: Tensor, side: int) -> Tensor:
    """What lies between the lips of one face: [1, S, S], 0 or 1; nothing where they are shut."""
    canvas = np.zeros((side, side), np.uint8)
    corners = np.rint((mesh[LIP_RINGS[1]].double().cpu().numpy() * side - 0.5) * (1 << SHIFT)).astype(np.int32)
    cv2.fillPoly(canvas, [corners], 1, shift=SHIFT)
    return torch.from_numpy(cv2.erode(canvas, np.ones((3, 3), np.uint8)))[None].float()


def _draw(canvas: NDArray[np.uint8], points: NDArray[np.float64], lines: Sequence[list[int]], closed: bool) -> None:
    corners = [np.rint((points[line] - 0.5) * (1 << SHIFT)).astype(np.int32) for line in lines]
    width = max(1, round(len(canvas) / 160))
    cv2.polylines(canvas, corners, closed, 255, width, cv2.LINE_AA, SHIFT)


def _iris(grey: NDArray[np.float32], ring: NDArray[np.float64]) -> NDArray[np.float64]:
    """The centre of what is dark within an eye's outline; the outline's own where nothing is."""
    middle = ring.mean(0)
    left, top = np.maximum(np.floor(ring.min(0)).astype(int), 0)
    right, bottom = np.minimum(np.ceil(ring.max(0)).astype(int) + 1, grey.shape[::-1])
    if right - left < 3 or bottom - top < 2:
        return middle
    inside = np.zeros((bottom - top, right - left), np.uint8)
    corners = np.rint((ring - (left, top) - 0.5) * (1 << SHIFT)).astype(np.int32)
    cv2.fillPoly(inside, [corners], 1, shift=SHIFT)
    part = grey[top:bottom, left:right]
    if inside.sum() < 4:
        return middle
    dark = np.clip(np.median(part[inside > 0]) - part, 0, None) * inside
    if dark.sum() <= 0:
        return middle
    rows, columns = np.indices(dark.shape)
    return np.array([(dark * columns).sum(), (dark * rows).sum()]) / dark.sum() + (left + 0.5, top + 0.5)
