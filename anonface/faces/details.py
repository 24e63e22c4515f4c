"""What is known of each face beside the finished photo: which pixels were replaced, and its landmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anonface.faces import align, blend, regions
from anonface.faces.detect import Pixels, Points
from anonface.faces.locate import Located, face_in
from anonface.faces.parse import Mask


@dataclass(frozen=True)
class FaceDetails:
    """Of all faces of a photo.

    Attributes:
        labels: [H, W], uint8 or, of more than 255 faces, uint16: 1 + the number of the face that replaced or covered a
            pixel, else 0.
        landmarks: of each face [n, 2] in pixels: 468 in the finished photo; of a covered face, the detector's five in
            the original.
    """

    labels: NDArray[np.uint8] | NDArray[np.uint16]
    landmarks: tuple[Points, ...]


@dataclass(frozen=True)
class Replaced:
    """A replaced face: its number, aligned square, where it is seen in that [S, S], and its regions that stayed."""

    number: int
    quad: Points
    shown: Mask
    regions: Sequence[Points] = ()


def details(
    original: Pixels,
    finished: Pixels,
    faces: Sequence[Located],
    kept: Sequence[int],
    replaced: Sequence[Replaced],
    late: int,
) -> FaceDetails:
    """Collect them.

    Args:
        original, finished: the photo before and after, uint8 [H, W, 3].
        faces: all of them, with what was covered late from the number ``late`` on.
        kept: numbers of the faces that were left as they are.
        replaced: the others that were not covered.
    """
    labels = np.zeros(finished.shape[:2], np.uint8 if len(faces) < 256 else np.uint16)
    covered = [i for i, face in enumerate(faces) if face.obstacle is not None and i not in kept]

    def cover(number: int) -> None:
        if found := blend.ellipse(labels.shape, faces[number].quad):
            rows, columns, inside = found
            labels[rows, columns][inside] = number + 1

    for number in covered:
        if number < late:
            cover(number)
    for face in sorted(replaced, key=lambda face: -align.side_of(face.quad)):  # small ones lie before
        if found := blend.cover(labels.shape, face.shown, face.quad):
            rows, columns, share = found
            before = labels.copy() if face.regions else labels
            labels[rows, columns][share > 0] = face.number + 1
            regions.keep(labels, before, face.regions)
            beside = (original[rows, columns] != finished[rows, columns]).any(2)  # the watermark's rim
            labels[rows, columns][beside & (labels[rows, columns] == 0)] = face.number + 1
    for number in covered:
        if number >= late:
            cover(number)
    landmarks = [
        face.seen.points if i in covered else align.landmarks468(finished, face_in(face.quad))
        for i, face in enumerate(faces)
    ]
    return FaceDetails(labels, tuple(landmarks))
