"""A second look at a finished photo: where a detector still sees a face that should be gone, it is covered.

The detector runs again around everything that was replaced or covered. A face that it finds there is right if it is a
replaced one or one to be kept. Any other is covered: a face that was missed at first, an original that shows through a
mask, or a mosaic in which a face is still visible. What was missed at first and is unchanged may be no face, such as a
hand: it is covered if a look at it alone shows a face too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anonface.faces import blend
from anonface.faces.align import cover_quad, snap_quad
from anonface.faces.detect import Box, Detector, Face, Pixels, Points, box_iou, iou, same_face, share_of_smaller

# Cells along each diameter of the covered ellipse, and its size: what is seen again is covered coarser and larger.
STRENGTHS = ((blend.MOSAIC_CELLS, 1.0), (3, 1.2), (1, 1.4))
ROUNDS = 4  # looks at most; each makes what it sees coarser
AROUND = 1.0  # of a face's box on every side of it: what is looked at again
ALONE = (1.0, 0.5)  # the same, of what is looked at alone: one such look must show a face
WHOLE = 0.5  # share of the photo from which on it is looked at as a whole
LIKE_BOX, LIKE_POINTS = 0.3, 0.35  # as detect.same_face; a new face's points lie not quite as the old one's
TOUCHED = 0.2  # share of the middle of a replaced face that is other than it was; with less it is covered
INSIDE = 0.6  # share of a face's box within a cover from which on the cover is what is seen


@dataclass(frozen=True)
class Cover:
    """A face that is covered: as it was seen, the quad whose ellipse is covered, and how strongly (of STRENGTHS)."""

    face: Face
    quad: Points
    strength: int = 0


def look_again(
    original: Pixels,
    finished: Pixels,
    detector: Detector,
    *,
    replaced: Sequence[Face],
    covered: Sequence[Cover],
    kept: Sequence[Face],
) -> tuple[Pixels, list[Cover]]:
    """Cover what is still seen in a finished photo.

    Args:
        original, finished: uint8 ``[H, W, 3]``, before and after the faces were replaced and covered.
        replaced, covered, kept: what became of the faces that were found in the original.

    Returns:
        The photo and all covers: those of ``covered`` in their order, stronger where they had to be, then new ones.
    """
    covers = list(covered)
    suspects = [*replaced, *(cover.face for cover in covers)]
    untouched = [face for face in replaced if _changed(original, finished, face) < TOUCHED]  # seen again or not
    for _ in range(ROUNDS):
        stronger: list[int] = []
        for face in [*_seen(finished, suspects, detector), *untouched]:
            if any(same_face(face, other, LIKE_BOX, LIKE_POINTS) for other in kept):
                continue
            new = any(same_face(face, other, LIKE_BOX, LIKE_POINTS) for other in replaced)
            if new and _changed(original, finished, face) >= TOUCHED:
                continue
            number = _cover_of(face, covers)
            if number is None:
                if not (new or _changed(original, finished, face) >= TOUCHED or _seen_alone(finished, face, detector)):
                    continue
                covers.append(Cover(face, snap_quad(cover_quad(face))))
                stronger.append(len(covers) - 1)
            elif number not in stronger and covers[number].strength + 1 < len(STRENGTHS):
                covers[number] = _strengthened(covers[number], face)
                stronger.append(number)
        if not stronger:
            break
        for number in stronger:
            finished = blend.mosaic(finished, covers[number].quad, STRENGTHS[covers[number].strength][0])
        suspects, untouched = [covers[number].face for number in stronger], []
    return finished, covers


def elsewhere(faces: Sequence[Face], places: Sequence[Box]) -> list[Box]:
    """The boxes of faces that agree with none of these boxes."""
    return [face.box for face in faces if all(box_iou(face.box, place) < LIKE_BOX for place in places)]


def _seen_alone(photo: Pixels, face: Face, detector: Detector) -> bool:
    """Whether a detector sees a face at its place, whatever way up, in a part of the photo around it alone."""
    return any(iou(face, other) >= LIKE_BOX for reach in ALONE for other in _seen(photo, [face], detector, reach))


def _seen(photo: Pixels, suspects: Sequence[Face], detector: Detector, around: float = AROUND) -> list[Face]:
    """The faces that a detector sees around others, each whole."""
    height, width = photo.shape[:2]
    seen: list[Face] = []
    for left, top, right, bottom in _regions(suspects, width, height, around):
        for face in detector.detect(np.ascontiguousarray(photo[top:bottom, left:right])):
            x, y, w, h = face.box
            x, y = x + left, y + top
            cut = (x < left > 0) or (y < top > 0) or (x + w > right < width) or (y + h > bottom < height)
            if not cut:
                seen.append(replace(face, box=(x, y, w, h), points=face.points + np.array([left, top])))
    return seen


def _regions(faces: Sequence[Face], width: int, height: int, around: float) -> list[tuple[int, int, int, int]]:
    """Where to look: (left, top, right, bottom), disjoint; the whole photo where that is not much more."""
    regions: list[tuple[int, int, int, int]] = []
    for face in faces:
        x, y, w, h = face.box
        reach = around * max(w, h)
        left, top = max(int(x - reach), 0), max(int(y - reach), 0)
        right, bottom = min(int(x + w + reach) + 1, width), min(int(y + h + reach) + 1, height)
        while touching := [r for r in regions if left < r[2] and r[0] < right and top < r[3] and r[1] < bottom]:
            regions = [r for r in regions if r not in touching]
            lefts, tops, rights, bottoms = zip((left, top, right, bottom), *touching, strict=True)
            left, top, right, bottom = min(lefts), min(tops), max(rights), max(bottoms)
        if left < right and top < bottom:
            regions.append((left, top, right, bottom))
    area = sum((right - left) * (bottom - top) for left, top, right, bottom in regions)
    return [(0, 0, width, height)] if area > WHOLE * width * height else regions


def _changed(original: Pixels, finished: Pixels, face: Face) -> float:
    """The share of other pixels in the middle of a face's box."""
    x, y, w, h = face.box
    rows = slice(max(round(y + h / 4), 0), max(round(y + 3 * h / 4), 0))
    columns = slice(max(round(x + w / 4), 0), max(round(x + 3 * w / 4), 0))
    different = (original[rows, columns] != finished[rows, columns]).any(2)
    return float(different.mean()) if different.size else 0.0


def _cover_of(face: Face, covers: Sequence[Cover]) -> int | None:
    """The number of the cover in which a face is seen, if there is one."""
    numbers = [
        n
        for n, cover in enumerate(covers)
        if iou(face, cover.face) >= LIKE_BOX
        or (
            share_of_smaller(face, laid := _laid(cover)) >= INSIDE
            and face.box[2] * face.box[3] < laid.box[2] * laid.box[3]
        )
    ]
    return max(numbers, key=lambda n: iou(face, covers[n].face), default=None)


def _laid(cover: Cover) -> Face:
    """The cover's own box, as a face's."""
    left, top = cover.quad.min(0)
    right, bottom = cover.quad.max(0)
    return replace(cover.face, box=(float(left), float(top), float(right - left), float(bottom - top)))


def _strengthened(cover: Cover, seen: Face) -> Cover:
    """The next stronger cover, over both what it hid and what is seen there now."""
    strength = cover.strength + 1
    corners = np.concatenate([cover.quad, cover_quad(seen)])
    left, top = corners.min(0)
    right, bottom = corners.max(0)
    centre = np.array([left + right, top + bottom]) / 2
    half = np.array([right - left, bottom - top]) / 2 * STRENGTHS[strength][1] / STRENGTHS[strength - 1][1]
    quad = centre + half * [(-1, -1), (-1, 1), (1, 1), (1, -1)]
    return Cover(cover.face, snap_quad(quad), strength)
