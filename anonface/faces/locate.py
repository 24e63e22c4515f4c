"""Which faces a photo has: detected or named, each with its aligned square, and whether it can be replaced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anonface.errors import NoFaceError, UsageError
from anonface.faces import align
from anonface.faces.detect import Box, Detector, Face, Pixels, same_face

Quad = NDArray[np.float64]


class AllBut(tuple[int, ...]):
    """All faces of a photo but those of these numbers."""


Chosen = Literal["all", "largest"] | AllBut | Sequence[int]
"""Which faces of a photo. Numbers count from 0, by the upper edges of the boxes, from the top down."""

ONE_PLACE = 0.08  # of their quads' sides: how far the corners of two faces lie apart that are one
# Where FFHQ's alignment puts the five points in its square (eyes, nose tip, mouth corners), and the face's box.
ALIGNED_POINTS = np.array([[0.375, 0.47], [0.625, 0.47], [0.5, 0.62], [0.4, 0.73], [0.6, 0.73]])
ALIGNED_CENTRE, ALIGNED_SIDE = np.array([[0.5, 0.56]]), 0.6


@dataclass(frozen=True)
class Located:
    """A face to work on.

    Attributes:
        box: (x, y, w, h) in pixels.
        quad: its square [4, 2], as in :mod:`anonface.faces.align`.
        obstacle: why it cannot be replaced by a synthetic face; None where it can.
        face: as it was detected or named; None for one that a record or a registration mark tells of.
        nonce: of its registration mark.
    """

    box: Box
    quad: Quad
    obstacle: str | None
    face: Face | None = None
    nonce: bytes = b""

    @property
    def seen(self) -> Face:
        """The face for a detector to compare with."""
        return self.face or face_in(self.quad)


@dataclass(frozen=True)
class DetectedFace:
    """A face in a photo.

    Attributes:
        index: its number, counted from 0, from the top down. Every command and report uses it.
        box: (x, y, w, h) in pixels.
        points: (x, y) of the eyes, nose tip and mouth corners, the image's left one first.
        score: the detector's certainty, 0 to 1.
        obstacle: why it would be covered and not replaced; None if it can be replaced.
    """

    index: int
    box: Box
    points: tuple[tuple[float, float], ...]
    score: float
    obstacle: str | None


def numbered(located: Sequence[Located]) -> list[DetectedFace]:
    """The faces of :func:`locate`, as reports show them."""
    return [
        DetectedFace(
            i, face.box, tuple((float(x), float(y)) for x, y in face.seen.points), face.seen.score, face.obstacle
        )
        for i, face in enumerate(located)
    ]


def chosen_numbers(boxes: Sequence[Box], chosen: Chosen) -> set[int]:
    """The numbers of the chosen ones among faces with these boxes.

    Raises:
        UsageError: one of them is not there.
    """
    everyone = range(len(boxes))
    if chosen == "all":
        return set(everyone)
    if chosen == "largest":
        return set(sorted(everyone, key=lambda i: boxes[i][2] * boxes[i][3])[-1:])
    wanted = [int(i) for i in chosen]
    if missing := [i for i in wanted if i not in everyone]:
        raise UsageError(
            f"there is no face {missing[0]}: the photo has {len(boxes)}, counted from 0",
            "`anonface detect` lists them with their numbers",
        )
    return set(everyone).difference(wanted) if isinstance(chosen, AllBut) else set(wanted)


def no_face() -> NoFaceError:
    """What is said of a photo without a face."""
    return NoFaceError("no face was found", "name one with --box x,y,w,h, or try --detector retinaface")


def check_boxes(boxes: Sequence[Box], shape: tuple[int, ...]) -> None:
    """Check boxes that a user names, which needs no network.

    Args:
        boxes: ``(x, y, w, h)`` in photo coordinates.
        shape: the photo's ``(H, W, ...)``.

    Raises:
        UsageError: a box is empty, or its middle lies outside the photo.
    """
    for box in boxes:
        x, y, w, h = box
        inside = 0 <= x + w / 2 < shape[1] and 0 <= y + h / 2 < shape[0]
        if not (w > 0 and h > 0 and inside and all(map(math.isfinite, box))):
            given, size = ",".join(f"{value:g}" for value in box), f"{shape[1]} x {shape[0]}"
            raise UsageError(
                f"the box {given} does not lie in the photo of {size} px",
                "give left edge, top edge, width and height in pixels",
            )


def locate(pixels: Pixels, detector: Detector, boxes: Sequence[Box] = ()) -> list[Located]:
    """The faces of a photo, by the upper edges of their boxes, from the top down.

    Args:
        pixels: uint8 [H, W, 3].
        boxes: faces that the detector misses, as (x, y, w, h).

    Raises:
        UsageError: as :func:`check_boxes`.
    """
    check_boxes(boxes, pixels.shape)
    named = [align.box_face(pixels, box) for box in boxes]
    detected = [face for face in detector.detect(pixels) if not any(same_face(face, other) for other in named)]
    located: list[Located] = []
    for face in [*named, *detected]:
        placed = _placed(pixels, face)
        if placed.obstacle is not None or not any(_one_place(placed, other) for other in located):
            located.append(placed)
    return sorted(located, key=lambda face: (face.box[1], face.box[0]))


def face_in(quad: Quad) -> Face:
    """The face in an aligned square, for the landmark network."""
    to_photo = align.crop_to_photo(quad, 1)
    side = ALIGNED_SIDE * align.side_of(quad)
    x, y = align.transform(to_photo, ALIGNED_CENTRE)[0] - side / 2
    return Face((float(x), float(y), side, side), align.transform(to_photo, ALIGNED_POINTS), 1.0)


def _placed(pixels: Pixels, face: Face) -> Located:
    mesh = align.mesh468(pixels, face)
    obstacle = align.obstacle(face, mesh, pixels.shape)
    quad = align.ffhq_quad(mesh) if obstacle is None else align.cover_quad(face)
    return Located(face.box, align.snap_quad(quad), obstacle, face)


def _one_place(a: Located, b: Located) -> bool:
    """Whether two detections are one face, by their landmarks."""
    apart = float(np.abs(a.quad - b.quad).max())
    return b.obstacle is None and apart <= ONE_PLACE * min(align.side_of(a.quad), align.side_of(b.quad))
