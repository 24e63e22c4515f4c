"""Where the faces are: boxes and five points, at any photo size.

Photo coordinates are continuous throughout :mod:`anonface.faces`: pixel ``(column c, row r)`` covers the square from
``(c, r)`` to ``(c + 1, r + 1)``, so its centre lies at ``(c + 0.5, r + 0.5)``, x runs to the right and y downwards.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface import weights
from anonface.errors import UsageError

Pixels = NDArray[np.uint8]
Points = NDArray[np.float64]
Box = tuple[float, float, float, float]

FLOOR = 0.5  # what YuNet scores lower is not looked at again
LIKELY = 0.6  # what is scored lower must be confirmed upright, with TURNED_SURE
SURE = 0.7  # what is scored so is a face
SECOND = 0.65  # what is scored lower is one if a closer look shows it upright with this score
TURNED_SURE = 0.8  # so is what it shows another way up, or larger, or a turned view or one without lines alone shows
TURNED = 2.0  # no score in a turned view is enough
LONE = 0.05  # what one angle alone shows is so much less sure
SAME_BOX = 0.45  # two detections are of one face if their boxes share this part of what they cover together
SAME_POINTS = 0.25  # and their points lie as near to each other in the mean, in sides of the boxes
OVERLAP = 0.45  # a detection that shares so much of the smaller box with a better one may be a part of its face
PART = 2.75  # but not if its sides are so many times smaller: parts were seen down to 0.38 of a face
# Scales: enlarged, for small faces and those before a larger one; 1 / STEP_DOWN and so on down, where what lies and
# what stands on its head is seen too; and the whole photo small, with room around it, for what fills or exceeds it.
ENLARGED = 1.5
STEP_DOWN = 2.5
LEAST = (640, 320, 160)  # px, the long sides of the whole photo
TILE = 1280  # a view larger than this is looked at in tiles
TILE_OVERLAP = 160  # px, so that a face up to this size lies whole in one; larger ones are whole at the next scale
RETINA_FLOOR = 0.85
RETINA_ANCHORS = [[10, 20], [32, 64], [128, 256]]  # px, of the strides 8, 16 and 32
SUPPRESSION = 0.7  # boxes of one view that share more are one: half-hidden faces share less with those before them
GREY = 128  # around a photo
CLOSE = 192  # px, at which a found face is looked at again
UPRIGHT_BONUS = 0.01  # so that a face is turned for a reason only
STEP = 45  # degrees between two such looks
CLEAR = 0.91  # what a closer look scores so needs no further one
BEYOND = 0.25  # of a box: so far beyond the photo its centre may lie; a closer look moves it
# Lines to be wiped out: the photo's long side in px, and brushes, wider than the lines, in px across and down.
LINES = (
    (640, ((7, 7),)),
    (320, ((9, 1), (1, 9))),
    (160, ((9, 1), (1, 9), (13, 1), (1, 13))),
    (80, ((9, 1), (1, 9))),
)
SQUEEZED_LEVELS = (1280, 320)  # px, the long sides at which the photo is looked at squeezed
SQUEEZE = 2.5  # how much, across or down: a face that was squeezed as much the other way is then as it was
EDGE = 17  # px: what differs from its surroundings of that side is an edge
EDGE_LEVELS, EDGE_SHARE = (320, 160), 97  # px, the drawing's long sides; per cent of its pixels that are not black
DARK_LEVEL, DARK = 640, (1.0, 16.0)  # px, and mean grey levels of a neighbourhood that is dark but not black
DARK_REACH, DARK_SHARE = 33, 0.01  # px across of such a neighbourhood, and the share of the photo from which it counts
ROOM = 8  # views of altered photos have room around them, of one part in so many of their short side
AROUND_KNOWN = 1.8  # of a known face's box: the box whose surroundings may show a face behind it
PAINTED = 1.2  # of its box: the ellipse over a known face that hides it, to see what is behind
BEHIND = 0.1  # a detection then is of a face behind a known one if their boxes share so much of the smaller
ALIKE = 1.6  # known faces whose sizes differ less may share one such look
MARGIN = 80  # px around the photo at each scale: room for faces cut by its border


@dataclass(frozen=True)
class Face:
    """One detected face.

    Attributes:
        box: ``(x, y, w, h)`` in photo coordinates; may reach beyond the photo.
        points: ``[5, 2]`` photo coordinates: the eye on the image's left, the other eye, nose tip, and the mouth
            corners on the image's left and right.
        score: the detector's certainty in 0..1.
    """

    box: Box
    points: Points
    score: float


class Detector(Protocol):
    """Finds faces; the same pixels give the same faces in the same order, top-left to bottom-right."""

    def detect(self, rgb: Pixels) -> list[Face]:
        """Return every face in ``rgb`` (uint8 ``[H, W, 3]``), sorted by :func:`reading_order`."""
        ...


def reading_order(faces: list[Face]) -> list[Face]:
    """Sort faces by the top edge of their boxes, then by the left edge."""
    return sorted(faces, key=lambda face: (face.box[1], face.box[0]))


def _spans(start: int, stop: int) -> list[tuple[int, int]]:
    """Cover ``range(start, stop)`` by spans of one length, TILE at most, that share at least TILE_OVERLAP."""
    length = stop - start
    count = max(1, math.ceil((length - TILE_OVERLAP) / (TILE - TILE_OVERLAP)))
    size = math.ceil((length + (count - 1) * TILE_OVERLAP) / count)
    return [(int(first), int(first) + size) for first in np.linspace(start, stop - size, count).round()]


def _scales(side: int) -> list[float]:
    """The scales at which a photo of that long side is looked at, from the largest down."""
    scales, scale = [ENLARGED], 1 / STEP_DOWN
    while side * scale > LEAST[0] * 1.25:
        scales.append(scale)
        scale /= STEP_DOWN
    return scales + [min(level / side, 1.0) for level in LEAST if level * 1.25 < side * scales[-1]]


def _views(rgb: Pixels) -> Iterator[tuple[Pixels, float, tuple[int, int], int]]:
    """Yield (view, scale, offset, quarter turns to look in): view coordinates = photo coordinates * scale - offset."""
    height, width = rgb.shape[:2]
    for scale in _scales(max(height, width)):
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        small = rgb if scale > 1 else np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
        turned = scale <= 1 / STEP_DOWN or max(size) <= LEAST[0] * 1.25
        for top, bottom in _spans(-MARGIN, size[1] + MARGIN):
            for left, right in _spans(-MARGIN, size[0] + MARGIN):
                view = (_enlarged if scale > 1 else _part)(small, top, bottom, left, right)
                for turns in range(4 if turned else 1):
                    yield view, scale, (left, top), turns


def _part(rgb: Pixels, top: int, bottom: int, left: int, right: int) -> Pixels:
    """Rows ``top`` to ``bottom`` and columns ``left`` to ``right`` of a picture; what lies outside of it is grey."""
    part = np.full((bottom - top, right - left, 3), GREY, np.uint8)
    inside = rgb[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    row, column = max(-top, 0), max(-left, 0)
    part[row : row + inside.shape[0], column : column + inside.shape[1]] = inside
    return part


def _enlarged(rgb: Pixels, top: int, bottom: int, left: int, right: int) -> Pixels:
    """As :func:`_part`, of the picture ENLARGED times as large."""
    first_row, first_column = max(int(top / ENLARGED) - 2, 0), max(int(left / ENLARGED) - 2, 0)
    part = rgb[first_row : int(bottom / ENLARGED) + 3, first_column : int(right / ENLARGED) + 3]
    shift = np.array([first_column, first_row]) * ENLARGED - (left, top) + (ENLARGED - 1) / 2
    matrix = np.array([[ENLARGED, 0, shift[0]], [0, ENLARGED, shift[1]]])
    size = (right - left, bottom - top)
    view = cv2.warpAffine(part, matrix, size, flags=cv2.INTER_LINEAR, borderValue=(GREY, GREY, GREY))
    return np.asarray(view, np.uint8)


def _find(rgb: Pixels, look: Callable[[Pixels], list[Face]]) -> list[Face]:
    """Run a single-scale detector over all views of a photo, merge what it finds and set its points right."""
    height, width = rgb.shape[:2]
    standing: list[Face] = []
    turned: list[Face] = []
    for view, scale, offset, turns in _views(rgb):
        for seen in look(np.ascontiguousarray(np.rot90(view, turns))):
            face = _placed(_turned_back(seen, turns, view.shape), np.array(offset), 1 / scale)
            x, y, w, h = face.box
            if -BEYOND * w <= x + w / 2 < width + BEYOND * w and -BEYOND * h <= y + h / 2 < height + BEYOND * h:
                (turned if turns else standing).append(face)
    sure = _confirmed(rgb, _merge(standing, same_face), look, SURE)
    further = [
        face
        for face in _merge(turned, lambda a, b: iou(a, b) >= SAME_BOX)
        if all(iou(face, other) < SAME_BOX for other in sure)
    ]
    if further:  # a closer look may see a small known face in the middle of a turned one, and nothing else
        painted = rgb.copy()
        _paint_over(painted, sure)
        sure += [face for picture in (rgb, painted) for face in _confirmed(picture, further, look, TURNED)]
    sure += [
        face for further in (_behind_lines, _squeezed, _in_edges, _in_the_dark) for face in further(rgb, sure, look)
    ]
    kept: list[Face] = []
    for face in _merge(sure, same_face):
        if all(_are_two_faces(rgb, other, face, look) for other in kept):
            kept.append(face)
    return reading_order(kept + _behind_faces(rgb, kept, look))


def _behind_lines(rgb: Pixels, known: list[Face], look: Callable[[Pixels], list[Face]]) -> list[Face]:
    """Further faces that a detector sees once dark or light lines are wiped out: a fence, a net, bars, blinds."""
    faces = []
    for level, brushes in LINES:
        small, scale = _resized(rgb, level)
        for across, down in brushes:
            brush, steps = np.ones((down, across), np.uint8), (cv2.MORPH_CLOSE, cv2.MORPH_OPEN)
            for first, then in (steps, steps[::-1]):
                wiped = cv2.morphologyEx(small, first, brush)
                wiped = cv2.morphologyEx(wiped, then, brush) if across == down else wiped  # crossed lines of both kinds
                faces += _further(np.asarray(wiped, np.uint8), scale, known, look)
    return faces


def _squeezed(rgb: Pixels, known: list[Face], look: Callable[[Pixels], list[Face]]) -> list[Face]:
    """Further faces that a detector sees once the photo is squeezed: those that were drawn out, down or across."""
    faces = []
    first, *smaller = SQUEEZED_LEVELS
    for level in (first, *(level for level in smaller if level < max(rgb.shape[:2]))):
        for squeeze in ((1, SQUEEZE), (SQUEEZE, 1)):
            faces += _further(*_resized(rgb, level, squeeze), known, look)
    return faces


def _in_edges(rgb: Pixels, known: list[Face], look: Callable[[Pixels], list[Face]]) -> list[Face]:
    """Further faces that a detector sees in a drawing of the photo's edges: embossed or traced ones.

    Fine relief has no light and shade, so nothing is left of it in a smaller photo.
    """
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    edges = np.repeat(cv2.absdiff(grey, cv2.blur(grey, (EDGE, EDGE)))[..., None], 3, 2)
    faces = []
    for level in EDGE_LEVELS:
        small, scale = _resized(np.asarray(edges, np.uint8), level)
        strength = 255 / max(float(np.percentile(small, EDGE_SHARE)), 1.0)
        drawing = 255 - np.asarray(cv2.convertScaleAbs(small, alpha=strength), np.uint8)
        faces += _further(drawing, scale, known, look)
    return faces


def _in_the_dark(rgb: Pixels, known: list[Face], look: Callable[[Pixels], list[Face]]) -> list[Face]:
    """Further faces that a detector sees once the dark parts of a photo are made lighter, as anybody can make them."""
    small, scale = _resized(rgb, DARK_LEVEL)
    around = cv2.blur(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float32), (DARK_REACH, DARK_REACH))
    if ((around > DARK[0]) & (around < DARK[1])).mean() < DARK_SHARE:
        return []
    lighter = small * (GREY / np.maximum(around, DARK[0]))[..., None]
    return _further(np.clip(lighter, 0, 255).astype(np.uint8), scale, known, look)


def _resized(rgb: Pixels, level: int, squeeze: tuple[float, float] = (1, 1)) -> tuple[Pixels, Points]:
    """A photo with that long side, or ENLARGED if it is less, squeezed across and down; and its scale in x and y."""
    height, width = rgb.shape[:2]
    scale = min(ENLARGED if squeeze != (1, 1) else 1.0, level / max(height, width)) / np.array(squeeze)
    size = (max(1, round(width * scale[0])), max(1, round(height * scale[1])))
    how = cv2.INTER_AREA if scale.max() <= 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(rgb, size, interpolation=how), np.uint8), scale


def _further(view: Pixels, scale: Points, known: list[Face], look: Callable[[Pixels], list[Face]]) -> list[Face]:
    """Faces in an altered photo of that scale that are not known."""
    height, width = view.shape[:2]
    room = min(height, width) // ROOM
    seen = [
        _placed(face, np.array([-room, -room]), 1 / scale)
        for face in look(_part(view, -room, height + room, -room, width + room))
        if face.score >= TURNED_SURE
    ]
    return [face for face in seen if all(share_of_smaller(face, other) < OVERLAP for other in known)]


def _behind_faces(rgb: Pixels, known: list[Face], look: Callable[[Pixels], list[Face]]) -> list[Face]:
    """Further faces that a detector sees once the known ones are painted over: those behind them, half hidden.

    A detector takes one of two faces for a part of the other if they lie so.
    """
    faces: list[Face] = []
    looked_at: list[Face] = []
    for face in sorted(known, key=lambda face: -face.box[2] * face.box[3]):
        if any(_beside(face, other) for other in looked_at):
            continue
        looked_at.append(face)
        x, y, w, h = face.box
        grown = (AROUND_KNOWN - 1) / 2
        box = (x - grown * w, y - grown * h, AROUND_KNOWN * w, AROUND_KNOWN * h)
        region, corner, scale = _surroundings(rgb, box)
        _paint_over(region, known, corner, scale)
        for seen in look(region):
            each = _placed(seen, corner * scale, 1 / scale)
            behind = each.score >= LIKELY and any(share_of_smaller(each, other) >= BEHIND for other in known)
            if behind and all(iou(each, other) < SAME_BOX for other in [*known, *faces]):
                faces.append(each)
    return faces


def _paint_over(picture: Pixels, faces: list[Face], corner: Points | float = 0.0, scale: float = 1.0) -> None:
    """Paint faces over in a picture of a photo, whose coordinates = (the photo's - corner) * scale."""
    for face in faces:
        x, y, w, h = face.box
        middle, half = (np.array([x + w / 2, y + h / 2]) - corner) * scale, PAINTED / 2 * scale * np.array([w, h])
        if (middle + half > 0).all() and (middle - half < picture.shape[1::-1]).all():
            at, axes = (np.rint(values).astype(int).tolist() for values in (middle, half))
            cv2.ellipse(picture, at, axes, 0, 0, 360, (0, 0, 0), -1)


def _beside(face: Face, other: Face) -> bool:
    """Whether a look around one face shows what is around another as well: it is near, and about as large."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = face.box, other.box
    apart = max(abs(ax + aw / 2 - bx - bw / 2), abs(ay + ah / 2 - by - bh / 2))
    return bool(apart < AROUND_KNOWN / 2 * max(bw, bh) and max(bw, bh) < ALIKE * max(aw, ah))


def _confirmed(rgb: Pixels, faces: list[Face], look: Callable[[Pixels], list[Face]], sure: float) -> list[Face]:
    """Those of some detections that have that score, or that a closer look confirms; as it shows them."""
    confirmed = []
    for face in faces:
        placed, second = _upright(rgb, face, look)
        upright, likely = placed is face, face.score >= LIKELY
        enough = SECOND if upright and likely and sure == SURE else TURNED_SURE
        if face.score >= sure or (second >= enough and (upright or likely)):
            confirmed.append(placed)
    return confirmed


def _placed(face: Face, offset: Points, scale: float | Points) -> Face:
    """Shift a face, then scale it."""
    x, y, w, h = face.box
    left, top = (np.array([x, y]) + offset) * scale
    width, height = np.array([w, h]) * scale
    return Face((float(left), float(top), float(width), float(height)), (face.points + offset) * scale, face.score)


def _turned_back(face: Face, turns: int, shape: tuple[int, ...]) -> Face:
    """Where a face lies in a picture of that shape, when it was seen after quarter turns anticlockwise."""
    if turns == 0:
        return face
    height = shape[turns % 2]  # of the turned picture
    x, y, w, h = face.box
    once = Face((height - y - h, x, h, w), np.column_stack([height - face.points[:, 1], face.points[:, 0]]), face.score)
    return _turned_back(once, turns - 1, shape)


def _upright(rgb: Pixels, face: Face, look: Callable[[Pixels], list[Face]], again: int = 2) -> tuple[Face, float]:
    """Look at a face again, turned by all angles in steps; returns it as the surest look shows it, and that score.

    Detectors see faces that lie on their side or stand on their head, but place the points as if they stood upright.
    They take parts of a large face for a small one, too. So if the closer look does not show this very face, what it
    shows instead is looked at in its turn, ``again`` times at most. What only one angle shows scores LONE less.
    """
    region, corner, scale = _surroundings(rgb, face.box)
    looks: list[tuple[float, int, Face]] = []
    for angle in range(0, 360, STEP):
        for seen in _close_look(region, angle, look):
            bonus = UPRIGHT_BONUS * (angle == 0)
            looks.append((seen.score + bonus, angle, _placed(seen, corner * scale, 1 / scale)))
        if max((score for score, *_ in looks), default=0.0) >= CLEAR:
            break
    if not looks:
        return face, 0.0
    own = max((seen.score for _, angle, seen in looks if angle == 0 and same_face(seen, face)), default=0.0)
    _, best, seen = max(looks, key=lambda it: (it[0], -it[1]))
    if (best == 0 and same_face(seen, face)) or (own >= SECOND and iou(seen, face) < SAME_BOX):
        return face, own
    alone = not any(a != best and other.score >= LIKELY and same_face(seen, other) for _, a, other in looks)
    if again and (alone or not same_face(seen, face)):
        return _upright(rgb, seen, look, again - 1)
    return seen, seen.score - LONE * alone


def _are_two_faces(rgb: Pixels, better: Face, worse: Face, look: Callable[[Pixels], list[Face]]) -> bool:
    """Whether two detections are of two faces: not if a look at both shows the better one alone."""
    small, large = sorted(face.box[2] * face.box[3] for face in (better, worse))
    if share_of_smaller(better, worse) < OVERLAP or PART * PART * small < large:
        return True
    (ax, ay, aw, ah), (bx, by, bw, bh) = better.box, worse.box
    left, top = min(ax, bx), min(ay, by)
    box = (left, top, max(ax + aw, bx + bw) - left, max(ay + ah, by + bh) - top)
    alone = False
    for close in (CLOSE, 2 * CLOSE):
        region, corner, scale = _surroundings(rgb, box, close)
        for angle in range(0, 360, STEP):
            for seen in _close_look(region, angle, look, close, close / 2):
                face = _placed(seen, corner * scale, 1 / scale)
                nearer = iou(face, worse) > iou(face, better)
                if nearer and same_face(face, worse):
                    return True
                alone = alone or (not nearer and same_face(face, better))
    return not alone


def _surroundings(
    rgb: Pixels, box: tuple[float, float, float, float], close: int = CLOSE
) -> tuple[Pixels, Points, float]:
    """Show what lies around a box in a small square; its coordinates = (the photo's - corner) * scale.

    Args:
        close: the side in pixels of the square's middle, in which the box takes half of either side.

    Returns:
        The square, wide enough for its middle to be turned by any angle, the corner and the scale.
    """
    x, y, w, h = box
    side = max(2.0, 2 * math.sqrt(2) * max(w, h))
    corner = np.array([x + w / 2, y + h / 2]) - side / 2
    (left, top), (right, bottom) = np.floor(corner).astype(int), np.ceil(corner + side).astype(int)
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, rgb.shape[1]), min(bottom, rgb.shape[0])
    length = round(close * math.sqrt(2))
    scale = length / side
    size = (max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale)))
    part = cv2.resize(rgb[top:bottom, left:right], size, interpolation=cv2.INTER_AREA)
    column, row = np.rint((np.array([left, top]) - corner) * scale).astype(int)
    region = np.full((length + 2, length + 2, 3), GREY, np.uint8)  # 1 px more on each side for what is rounded
    room = region[max(row + 1, 0) :, max(column + 1, 0) :]
    height, width = min(len(room), size[1]), min(room.shape[1], size[0])
    room[:height, :width] = part[:height, :width]
    return region, corner - 1 / scale, scale


def _close_look(
    region: Pixels, angle: float, look: Callable[[Pixels], list[Face]], close: int = CLOSE, reach: float = CLOSE / 5
) -> list[Face]:
    """Look at the middle of a region turned anticlockwise by so many degrees; the faces there, placed in it.

    Args:
        close: the middle's side in pixels.
        reach: how far from its centre, in either direction, a face's centre may lie.
    """
    middle = len(region) / 2
    matrix = np.asarray(cv2.getRotationMatrix2D((middle - 0.5, middle - 0.5), angle, 1.0), np.float64)
    matrix[:, 2] += close / 2 - middle
    view = cv2.warpAffine(region, matrix, (close, close), borderMode=cv2.BORDER_REPLICATE)
    back = cv2.invertAffineTransform(matrix)
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    central = []
    for face in look(np.asarray(view, np.uint8)):
        x, y, w, h = face.box
        if max(abs(x + w / 2 - close / 2), abs(y + h / 2 - close / 2)) < reach:
            places = np.vstack([face.points, (x + w / 2, y + h / 2)]) - 0.5
            places = places @ back[:, :2].T + back[:, 2] + 0.5
            # The box around the turned box's ellipse.
            w, h = math.hypot(w * cos, h * sin), math.hypot(w * sin, h * cos)
            central.append(Face((places[5, 0] - w / 2, places[5, 1] - h / 2, w, h), places[:5], face.score))
    return central


def same_face(a: Face, b: Face, box: float = SAME_BOX, points: float = SAME_POINTS) -> bool:
    """Whether two detections are of one face: their boxes and their five points agree."""
    side = (a.box[2] * a.box[3] * b.box[2] * b.box[3]) ** 0.25
    apart = float(np.linalg.norm(a.points - b.points, axis=1).mean())
    return iou(a, b) >= box and apart <= points * side


def _merge(faces: list[Face], same: Callable[[Face, Face], bool]) -> list[Face]:
    """Keep the best-scored of every group of detections of one face."""
    kept: list[Face] = []
    for face in sorted(faces, key=lambda face: (-face.score, face.box)):
        if not any(same(face, other) for other in kept):
            kept.append(face)
    return kept


def _common(a: Box, b: Box) -> float:
    """The area that two boxes share."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = a, b
    return max(min(ax + aw, bx + bw) - max(ax, bx), 0) * max(min(ay + ah, by + bh) - max(ay, by), 0)


def share_of_smaller(a: Face, b: Face) -> float:
    """The share of the smaller box that the larger one covers."""
    return _common(a.box, b.box) / min(a.box[2] * a.box[3], b.box[2] * b.box[3])


def iou(a: Face, b: Face) -> float:
    """:func:`box_iou` of two faces."""
    return box_iou(a.box, b.box)


def box_iou(a: Box, b: Box) -> float:
    """The share of what two boxes cover together that both cover: intersection over union."""
    common = _common(a, b)
    return common / (a[2] * a[3] + b[2] * b[3] - common)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Let OpenCV say nothing less than an error."""
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(min(level, cv2.utils.logging.LOG_LEVEL_ERROR))
    try:
        yield
    finally:
        cv2.utils.logging.setLogLevel(level)


class YuNet:
    """OpenCV's YuNet.

    Of upright faces 16 px wide it finds 19 in 20, of faces 12 px wide two in three, in photos of any size. Lying and
    turned faces are found from about 40 px on.
    """

    def __init__(self) -> None:
        file = str(weights.path("yunet"))
        with _without_warnings():  # OpenCV 5 warns of every choice of a target, its own default included
            self._network = cv2.FaceDetectorYN.create(file, "", (320, 320), FLOOR, SUPPRESSION, 5000)
        self._lock = threading.Lock()  # the network keeps its input size between two calls

    def detect(self, rgb: Pixels) -> list[Face]:
        """See :class:`Detector`."""
        return _find(rgb, self._look)

    def _look(self, rgb: Pixels) -> list[Face]:
        with self._lock:
            self._network.setInputSize((rgb.shape[1], rgb.shape[0]))
            _, rows = self._network.detect(cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
        return [] if rows is None else [_face(row[:4], row[4:14], row[14]) for row in rows]


class RetinaFace:
    """facexlib's RetinaFace with a MobileNet 0.25 backbone, on the CPU. Slower than YuNet, its size limits alike."""

    def __init__(self) -> None:
        from anonface import torchvision_adapter

        module = torchvision_adapter.load("facexlib.detection.retinaface")
        self._network = module.RetinaFace("mobile0.25", device="cpu")
        weights.load(self._network, "retinaface")
        # The file was trained with smaller anchors and plain ReLUs, not with the library's defaults for this layout.
        self._network.cfg["min_sizes"] = RETINA_ANCHORS
        for layer in self._network.modules():
            if hasattr(layer, "negative_slope"):
                layer.negative_slope = 0.0
        self._lock = threading.Lock()  # the network keeps the scale of its input

    def detect(self, rgb: Pixels) -> list[Face]:
        """See :class:`Detector`."""
        return _find(rgb, self._look)

    def _look(self, rgb: Pixels) -> list[Face]:
        import torch

        with self._lock, torch.inference_mode():
            rows = self._network.detect_faces(cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), RETINA_FLOOR, SUPPRESSION)
        return [_face((*row[:2], *(row[2:4] - row[:2])), row[5:15], row[4]) for row in rows]


def _face(box: Any, points: Any, score: Any) -> Face:
    x, y, w, h = (float(value) for value in box)
    return Face((x, y, w, h), np.asarray(points, np.float64).reshape(5, 2), float(score))


BUILDERS: dict[str, Callable[[], Detector]] = {"yunet": YuNet, "retinaface": RetinaFace}


@functools.cache
def build_detector(name: str = "yunet") -> Detector:
    """Return the detector of that name, loaded once.

    Raises:
        UsageError: no such detector.
        WeightsError: its weights are missing.
    """
    if name not in BUILDERS:
        raise UsageError(f"no detector named {name!r}", f"choose one of {', '.join(BUILDERS)}")
    return BUILDERS[name]()
