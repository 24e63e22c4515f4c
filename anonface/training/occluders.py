"""Synthetic occluders of faces with their masks: hands, microphones, cups, cloth, hair, spectacles, hats.

Pictures are float32 [S, S, 3] in 0..1 with S = SIDE; labels are uint8 [S, S], indices of
``models.face_parser.CLASSES``. Round occluders have a height map, from which they are shaded. All occluders cast a
shadow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.models.face_parser import FACE
from anonface.training.masks import LABEL, SIDE, WORN, Labels

Picture = NDArray[np.float32]
Points = NDArray[np.float64]
Other = Callable[[], tuple[Picture, Labels]]  # gives another labelled face as a source of textures

GRID: Points = np.stack(np.meshgrid(np.arange(SIDE) + 0.5, np.arange(SIDE) + 0.5), axis=-1)
SKIN_TONES = ((0.93, 0.76, 0.66), (0.82, 0.62, 0.49), (0.66, 0.46, 0.34), (0.45, 0.29, 0.20), (0.30, 0.19, 0.14))


class Occluder(NamedTuple):
    """An occluder: its colours, its coverage of every pixel in 0..1, and its class."""

    colours: Picture
    cover: Picture
    label: int


class Layout(NamedTuple):
    """Place of a face: mask, centre, half width and half height in px, and the eyes' centres [2, 2] if visible."""

    mask: Picture
    centre: Points
    half: Points
    eyes: Points | None


def occlude(image: Picture, labels: Labels, other: Other, rng: np.random.Generator) -> tuple[Picture, Labels]:
    """Paste one or two occluders on a face, and sometimes a shadow, which changes no label.

    Returns:
        A new picture and its labels.
    """
    layout = face_layout(labels)
    if layout is None:
        return image, labels
    if rng.random() < 0.3:
        image = _shadowed(image, layout, rng)
    for _ in range(1 + (rng.random() < 0.35)):
        draw = DRAWERS[rng.choice(len(DRAWERS), p=SHARES)]
        occluder = draw(image, labels, layout, other, rng)
        if occluder is not None:
            image, labels = paste(image, labels, occluder, rng)
    return image, labels


def paste(image: Picture, labels: Labels, occluder: Occluder, rng: np.random.Generator) -> tuple[Picture, Labels]:
    """Paste an occluder and its shadow; pixels that it covers by more than half get its class."""
    offset = rng.normal(0, 4, 2)
    shifted = cv2.warpAffine(occluder.cover, np.array([[1, 0, offset[0]], [0, 1, offset[1]]]), (SIDE, SIDE))
    shade = cv2.GaussianBlur(shifted, (0, 0), rng.uniform(1.5, 7)) * rng.uniform(0, 0.55)
    cover = cv2.GaussianBlur(occluder.cover, (0, 0), rng.uniform(0.4, 1.2))[..., None]
    mixed = cover * occluder.colours + (1 - cover) * image * (1 - shade[..., None])
    return mixed.astype(np.float32), np.where(cover[..., 0] > 0.5, occluder.label, labels).astype(np.uint8)


def face_layout(labels: Labels) -> Layout | None:
    """The place of the face from its labels, or None if less than 5 % of the picture is face."""
    mask = np.isin(labels, FACE).astype(np.float32)
    rows, columns = np.nonzero(mask)
    if len(rows) < 0.05 * SIDE**2:
        return None
    low, high = (np.percentile(np.column_stack([columns, rows]), q, axis=0) for q in (2, 98))
    centre = (low + high) / 2
    eyes = []
    for side in (-1, 1):
        found = np.argwhere((labels == LABEL["eyes"]) & ((GRID[..., 0] - centre[0]) * side > 0))[:, ::-1]
        eyes.append(found.mean(0) if len(found) > 40 else np.full(2, np.nan))
    known = np.stack(eyes)
    level = abs(known[1, 1] - known[0, 1]) < 0.4 * (known[1, 0] - known[0, 0])
    return Layout(mask, centre, (high - low) / 2, known if level else None)


# --- Surfaces --------------------------------------------------------------------------------------------------------


def _noise(rng: np.random.Generator, scale: float) -> Picture:
    """Smooth noise of standard deviation about 1 and correlation length ``scale`` px."""
    cells = max(2, round(SIDE / scale))
    coarse = rng.standard_normal((cells, cells)).astype(np.float32)
    return np.asarray(cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC), np.float32)


def _lit(height: Picture, rng: np.random.Generator, gloss: float = 0.0) -> tuple[Picture, Picture]:
    """Diffuse shading (about 1) and highlights (0..1) of a height map under a light from a random direction."""
    dy, dx = np.gradient(cv2.GaussianBlur(height, (0, 0), 1.0))
    normal = np.stack([-dx, -dy, np.ones_like(dx)], axis=-1)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    turn, slant = rng.uniform(0, 2 * math.pi), rng.uniform(0.2, 1.1)
    light = np.array([math.cos(turn) * math.sin(slant), math.sin(turn) * math.sin(slant), math.cos(slant)])
    falls = np.clip(normal @ light, 0, 1)
    ambient = rng.uniform(0.25, 0.7)
    shading = (ambient + (1 - ambient) * falls / max(light[2], 0.5)).astype(np.float32)
    return shading, (gloss * falls**20).astype(np.float32)


def _painted(colour: NDArray, height: Picture, rng: np.random.Generator, gloss: float = 0.0) -> Picture:
    shading, highlight = _lit(height, rng, gloss)
    return np.clip(colour * shading[..., None] + highlight[..., None], 0, 1).astype(np.float32)


def _capsule(height: Picture, start: NDArray, end: NDArray, radii: tuple[float, float], flat: float = 1.0) -> None:
    """Add a rounded bar between two points to ``height``, scaled vertically by ``flat``."""
    along = end - start
    t = np.clip(((GRID - start) @ along) / max(float(along @ along), 1e-6), 0, 1)
    off = GRID - start - t[..., None] * along
    room = (radii[0] + (radii[1] - radii[0]) * t) ** 2 - (off**2).sum(-1)
    np.maximum(height, flat * np.sqrt(np.maximum(room, 0)), out=height)


def _fabric(other: Other, rng: np.random.Generator) -> Picture:
    """A random texture: an enlarged, rotated piece of another picture; one colour; or stripes or checks of two."""
    kind = rng.random()
    if kind < 0.45:
        piece, _ = other()
        move = _turn(rng.uniform(0, SIDE, 2), rng.uniform(0, 360), rng.uniform(1, 4))
        move[:, 2] = SIDE / 2 - move[:, :2] @ rng.uniform(0, SIDE, 2)
        return np.asarray(cv2.warpAffine(piece, move, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT), np.float32)
    first, second = rng.uniform(0, 1, (2, 3))
    if rng.random() < 0.4:  # many objects and clothes are nearly grey
        first = first.mean() + 0.1 * (first - first.mean())
    surface = np.broadcast_to(first, (SIDE, SIDE, 3)).astype(np.float32)
    if kind < 0.65:
        turn, width = rng.uniform(0, math.pi), rng.uniform(3, 25)
        waves = np.sin(2 * math.pi / width * (GRID @ (math.cos(turn), math.sin(turn))))
        if rng.random() < 0.4:
            waves = waves * np.sin(2 * math.pi / width * (GRID @ (-math.sin(turn), math.cos(turn))))
        surface = np.where(waves[..., None] > rng.uniform(-0.3, 0.6), surface, second.astype(np.float32))
    grain = rng.uniform(0, 0.06) * _noise(rng, rng.uniform(1, 4)) + rng.uniform(0, 0.1) * _noise(rng, 40)
    return np.clip(surface + grain[..., None], 0, 1).astype(np.float32)


def _turn(centre: NDArray, degrees: float, scale: float) -> Points:
    """The affine matrix [2, 3] of a rotation and scaling about a point."""
    return np.asarray(cv2.getRotationMatrix2D((float(centre[0]), float(centre[1])), degrees, scale), np.float64)


def _median_colour(image: Picture, labels: Labels, name: str) -> NDArray | None:
    found = image[labels == LABEL[name]]
    return np.median(found, axis=0) if len(found) > 300 else None


def _edge(layout: Layout, rng: np.random.Generator, low: float = 0.3, high: float = 1.1) -> tuple[Points, float]:
    """A random point near the face's border, mostly in its lower half, and the direction inwards in radians."""
    turn = rng.uniform(0, math.pi) if rng.random() < 0.7 else rng.uniform(0, 2 * math.pi)
    place = layout.centre + layout.half * (math.cos(turn), math.sin(turn)) * rng.uniform(low, high)
    inwards = layout.centre - place + rng.normal(0, 0.3, 2) * layout.half
    return place, math.atan2(inwards[1], inwards[0])


# --- Occluders -------------------------------------------------------------------------------------------------------


def _hand(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder:
    """Fingers, palm and forearm as rounded bars, mostly in the skin tone of the face."""
    height = np.zeros((SIDE, SIDE), np.float32)
    wide = layout.half[0] * rng.uniform(0.38, 0.6)  # half the palm's width
    tip, turn = _edge(layout, rng, -0.1, 0.9)
    ahead, aside = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
    finger, length = wide * rng.uniform(0.24, 0.3), wide * rng.uniform(0.7, 2.1)
    palm = tip - ahead * length
    count, spread, curl = int(rng.integers(1, 6)), rng.uniform(0, 0.12), rng.normal(0, 0.35)
    creases = []
    for i in range(count):
        lateral = (i - (min(count, 4) - 1) / 2) * 2 * finger * rng.uniform(0.9, 1.1)
        bend, reach = (
            spread * (i - 1.5) + rng.normal(0, 0.06),
            length * (1 - 0.06 * (i - 1.5) ** 2) * rng.uniform(0.85, 1),
        )
        if i == 4:  # the thumb
            lateral, bend, reach = wide * rng.choice([-1, 1]), rng.normal(0, 0.9), length * 0.7
        start = palm + aside * lateral
        for part in (0.5, 0.5):
            bend += curl * part
            end = start + (ahead * math.cos(bend) + aside * math.sin(bend)) * reach * part
            _capsule(height, start, end, (finger, finger * 0.9))
            creases.append((end, bend))
            start = end
    middle = palm - ahead * wide * 0.9
    _capsule(height, palm - ahead * finger, middle, (wide * 0.95, wide * 0.9), flat=0.5)
    if rng.random() < 0.8:
        _capsule(height, middle, middle - ahead * SIDE + aside * rng.normal(0, 60), (wide * 0.75, wide * 0.9), flat=0.7)
    own = _median_colour(image, labels, "skin")
    tone = own if own is not None and rng.random() < 0.75 else np.array(SKIN_TONES[rng.integers(len(SKIN_TONES))])
    tone = tone * rng.uniform(0.7, 1.2) * (1 + rng.normal(0, 0.04, 3))
    redder = np.array([0.02, -0.015, -0.015]) * _noise(rng, 30)[..., None]
    colours = _painted(tone + redder + 0.03 * _noise(rng, 18)[..., None], height, rng, rng.uniform(0, 0.15))
    crease = np.zeros((SIDE, SIDE), np.uint8)
    for place, bend in creases:
        across = finger * (aside * math.cos(bend) - ahead * math.sin(bend))
        for shift in rng.uniform(-0.3, 0.3, 2):
            _line(crease, np.stack([place + s * across + ahead * shift * finger for s in (-0.7, 0.7)]), (255,), 1)
    colours *= 1 - (rng.uniform(0.1, 0.5) / 255) * cv2.GaussianBlur(crease, (0, 0), 0.7)[..., None]
    if rng.random() < 0.3:  # a sleeve
        sleeve = ((GRID - middle) @ ahead < -wide * rng.uniform(0.3, 1.2)) & (height > 0)
        colours[sleeve] = (_fabric(other, rng) * _lit(height, rng)[0][..., None])[sleeve]
    return Occluder(colours.clip(0, 1), (height > 0.5).astype(np.float32), LABEL["occluder"])


def _microphone(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder:
    height = np.zeros((SIDE, SIDE), np.float32)
    head, turn = _edge(layout, rng, 0.2, 1.0)
    radius = layout.half[0] * rng.uniform(0.15, 0.42)
    away = -np.array([math.cos(turn), math.sin(turn)])
    _capsule(height, head, head + away * radius * rng.uniform(0, 0.8), (radius, radius * rng.uniform(0.8, 1)))
    net = rng.uniform(3, 6)
    weave = np.sin(2 * math.pi / net * GRID[..., 0]) * np.sin(2 * math.pi / net * GRID[..., 1])
    dark = np.full(3, rng.choice([rng.uniform(0.03, 0.2), rng.uniform(0.3, 0.7)])) * (1 + rng.normal(0, 0.05, 3))
    colour = dark + (rng.uniform(0, 0.12) * weave * (rng.random() < 0.7))[..., None]
    if rng.random() < 0.15:
        colour = np.broadcast_to(rng.uniform(0, 1, 3), (SIDE, SIDE, 3))
    colours = _painted(colour, height, rng, rng.uniform(0, 0.5))
    handle = np.zeros_like(height)
    thick = radius * rng.uniform(0.4, 0.75)
    _capsule(handle, head + away * radius, head + away * SIDE, (thick, thick * 0.8))
    stick = _painted(dark * rng.uniform(0.5, 1.3), handle, rng, rng.uniform(0, 0.6))
    colours = np.where((height > 0)[..., None], colours, stick)
    return Occluder(colours, (np.maximum(height, handle) > 0.5).astype(np.float32), LABEL["occluder"])


def _cup(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder:
    """A cup, can, bottle or telephone: a quadrilateral with round or flat shading."""
    place, turn = _edge(layout, rng, 0.2, 1.1)
    ahead, aside = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
    width, length = layout.half[0] * rng.uniform(0.15, 0.6), layout.half[0] * rng.uniform(0.5, 2)
    taper = rng.uniform(0.7, 1.1)
    corners = [place + aside * width, place - aside * width]
    corners += [place - ahead * length - aside * width * taper, place - ahead * length + aside * width * taper]
    cover = np.zeros((SIDE, SIDE), np.float32)
    _area(cover, np.stack(corners))
    across = np.clip(np.abs((GRID - place) @ aside) / width, 0, 1)
    height = (width * np.sqrt(1 - across**2)).astype(np.float32) if rng.random() < 0.6 else np.zeros_like(cover)
    colours = np.clip(_fabric(other, rng) * _lit(height, rng)[0][..., None], 0, 1)
    return Occluder(colours.astype(np.float32), cover, LABEL["occluder"])


def _patch(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder:
    """A random smooth shape, as of a flower, a toy or a shoulder."""
    place, _ = _edge(layout, rng, 0.1, 1.1)
    turns = np.linspace(0, 2 * math.pi, 64, endpoint=False)
    reach = layout.half[0] * rng.uniform(0.15, 0.7)
    radius = np.ones(64) * reach
    for k in range(2, 7):
        radius += reach * rng.normal(0, 0.5 / k) * np.cos(k * turns + rng.uniform(0, 2 * math.pi))
    stretch = rng.uniform(0.4, 1, 2)
    cover = np.zeros((SIDE, SIDE), np.float32)
    _area(cover, place + np.column_stack([np.cos(turns), np.sin(turns)]) * radius[:, None] * stretch)
    depth = cv2.distanceTransform(cover.astype(np.uint8), cv2.DIST_L2, 3)
    shading = _lit(np.asarray(np.sqrt(depth) * rng.uniform(0, 6), np.float32), rng)[0]
    return Occluder(np.clip(_fabric(other, rng) * shading[..., None], 0, 1), cover, LABEL["occluder"])


def _cut_out(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder | None:
    """The occluder of another face, or else a piece of its neck, ear or clothes, moved to this face."""
    picture, theirs = other()
    source = (theirs == LABEL["occluder"]).astype(np.uint8)
    if source.sum() < 0.01 * SIDE**2:
        source = np.isin(theirs, (LABEL["ears"], LABEL["neck"], LABEL["background"])).astype(np.uint8)
        source[: SIDE * 3 // 5] = 0
    count, parts, stats, centres = cv2.connectedComponentsWithStats(source)
    if count < 2:
        return None
    chosen = 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())
    place, _ = _edge(layout, rng, 0.1, 1.0)
    move = _turn(centres[chosen], rng.uniform(-60, 60), rng.uniform(0.6, 1.4))
    move[:, 2] += place - centres[chosen]
    cover = np.asarray(cv2.warpAffine((parts == chosen).astype(np.float32), move, (SIDE, SIDE)), np.float32)
    colours = np.asarray(cv2.warpAffine(picture, move, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT), np.float32)
    own = _median_colour(image, labels, "skin")
    if own is not None and rng.random() < 0.5 and cover.sum() > 50:
        colours = np.clip(colours * (own / (np.median(colours[cover > 0.5], axis=0) + 0.05)).clip(0.5, 2), 0, 1)
    return Occluder(colours.astype(np.float32), cover, LABEL["occluder"])


def _cloth(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder:
    """A mask or scarf over the lower face."""
    top = layout.centre[1] + layout.half[1] * rng.uniform(-0.1, 0.75)
    bow = rng.uniform(-0.3, 0.3) * layout.half[1]
    slope = rng.normal(0, 0.15)
    across = (GRID[..., 0] - layout.centre[0]) / layout.half[0]
    below = GRID[..., 1] > top + bow * across**2 + slope * (GRID[..., 0] - layout.centre[0])
    reach = int(rng.uniform(1, 16))
    near = cv2.dilate(layout.mask, np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    cover = near if rng.random() < 0.5 else np.ones_like(near)
    folds = 3 * _noise(rng, 60) + rng.uniform(0, 2) * np.sin(GRID[..., 1] / rng.uniform(2, 7) + _noise(rng, 80))
    colours = np.clip(_fabric(other, rng) * _lit(folds.astype(np.float32), rng)[0][..., None], 0, 1)
    return Occluder(colours.astype(np.float32), (cover * below).astype(np.float32), LABEL["occluder"])


def _hair(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder:
    """A fringe or strands over the face, mostly in the colour of the head's own hair."""
    own = _median_colour(image, labels, "hair")
    if own is None or rng.random() < 0.2:
        own = np.array([[0.1, 0.08, 0.07], [0.3, 0.2, 0.13], [0.7, 0.55, 0.35], [0.6, 0.6, 0.6], [0.5, 0.2, 0.1]])[
            rng.integers(5)
        ]
    strands, cover = np.zeros((SIDE, SIDE, 3), np.uint8), np.zeros((SIDE, SIDE), np.uint8)
    fringe = rng.random() < 0.5
    top = layout.centre[1] - layout.half[1] * rng.uniform(1.0, 1.5)
    width = layout.half[0] * (rng.uniform(0.6, 1.2) if fringe else rng.uniform(0.02, 0.25))
    root = layout.centre[0] + layout.half[0] * (rng.normal(0, 0.2) if fringe else rng.uniform(-1.1, 1.1))
    length = layout.half[1] * (rng.uniform(0.4, 1.3) if fringe else rng.uniform(0.8, 2.6))
    sweep, bow, ragged = rng.normal(0, 0.35) * length, rng.normal(0, 0.2) * length, rng.uniform(0.05, 0.3)
    t = np.linspace(0, 1, 16)[:, None]
    for _ in range(int(width * rng.uniform(1.0, 4)) + 3):
        start = np.array([root + rng.uniform(-width, width), top + rng.normal(0, 5)])
        fall = np.array([sweep * rng.normal(1, 0.2), length * rng.uniform(1 - ragged, 1 + ragged)])
        end = start + fall
        bent = (start + end) / 2 + (bow + rng.normal(0, 4), 0)
        curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * bent + t**2 * end
        thick = int(rng.integers(1, 4))
        _line(strands, curve, tuple(255 * own.clip(0, 1) * rng.uniform(0.7, 1.2)), thick)
        _line(cover, curve, (255,), thick)
    hidden = cv2.GaussianBlur(cover, (0, 0), 0.7).astype(np.float32) / 255
    weight = cv2.GaussianBlur(cover, (0, 0), 1.0).astype(np.float32)[..., None] + 1
    colours = cv2.GaussianBlur(strands.astype(np.float32), (0, 0), 1.0) / weight
    sheen = 1 + rng.uniform(0, 0.25) * _noise(rng, 25)[..., None]
    return Occluder(np.clip(colours * sheen, 0, 1).astype(np.float32), hidden.clip(0, 1), LABEL["hair"])


def _spectacles(
    image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator
) -> Occluder | None:
    """Spectacles; only frames and dark glass cover. Clear glass changes the picture, and is labelled in place."""
    if layout.eyes is None or np.isin(labels, (LABEL["glasses"], LABEL["lens"], WORN)).sum() > 200:
        return None
    left, right = layout.eyes
    along = right - left
    apart = float(np.linalg.norm(along))
    along, down = along / apart, np.array([-along[1], along[0]]) / apart
    turns = np.linspace(0, 2 * math.pi, 48)
    power, wide, high = rng.uniform(0.4, 1.0), apart * rng.uniform(0.32, 0.44), apart * rng.uniform(0.2, 0.4)
    sag, droop = rng.uniform(-0.05, 0.15) * apart, rng.uniform(-0.15, 0.15)
    shape = np.sign(np.column_stack([np.cos(turns), np.sin(turns)]))
    shape = shape * np.abs(np.column_stack([np.cos(turns), np.sin(turns)])) ** power
    shape[:, 0] *= 1 + droop * shape[:, 1]
    rims = [
        eye + np.outer(shape[:, 0] * wide, along) + np.outer(shape[:, 1] * high + sag, down) for eye in (left, right)
    ]
    frame, glass = np.zeros((SIDE, SIDE), np.uint8), np.zeros((SIDE, SIDE), np.float32)
    thick = int(rng.choice([1, 2, 2, 3, 4, 5]))
    rimless = rng.random() < 0.12
    bridge = [left + along * wide + down * sag, (left + right) / 2 + down * (sag - 0.05 * apart)]
    lines = [np.stack([*bridge, right - along * wide + down * sag])]
    for eye, way in ((left, -1), (right, 1)):
        hinge = eye + along * way * wide * 0.97 + down * (sag - high * rng.uniform(0.1, 0.6))
        lines.append(np.stack([hinge, hinge + along * way * apart * rng.uniform(0.2, 0.6) + down * rng.normal(0, 4)]))
    for rim in rims:
        _area(glass, rim)
    for line in lines if rimless else [*rims, *lines]:
        _line(frame, line, (255,), thick)
    colour = rng.uniform(0, 1, 3) if rng.random() < 0.3 else np.full(3, rng.choice([0.04, 0.1, 0.25, 0.6, 0.8]))
    colours = np.broadcast_to(colour, image.shape) + 0.08 * _noise(rng, 6)[..., None]
    kind = rng.random()
    tint, clear = (rng.uniform(0.75, 1), 0.0) if kind < 0.3 else (0.0, rng.uniform(0, 0.25))
    pane = rng.uniform(0, 0.25, 3) + rng.uniform(0, 0.5) * np.clip((GRID[..., 1:] - left[1]) / 60 + 0.3, 0, 1)
    if rng.random() < 0.3:  # a reflection
        pane = 0.6 * pane + 0.4 * _fabric(other, rng)
    seen = tint * pane + (1 - tint) * (image * (1 - clear) + clear * rng.uniform(0.3, 1))
    rim = (frame / 255).astype(np.float32)
    colours = np.where(frame[..., None] > 0, colours, seen).clip(0, 1)
    if not tint:
        image[:] = np.where((glass > 0)[..., None], seen, image)
        labels[(glass > 0) & ~np.isin(labels, (LABEL["hair"], LABEL["hat"], LABEL["occluder"]))] = LABEL["lens"]
    return Occluder(colours.astype(np.float32), np.maximum(rim, glass * (tint > 0)), LABEL["glasses"])


def _brim(image: Picture, labels: Labels, layout: Layout, other: Other, rng: np.random.Generator) -> Occluder:
    """A hat, hood or helmet over the forehead."""
    edge = layout.centre[1] - layout.half[1] * rng.uniform(0.35, 1.05)
    across = (GRID[..., 0] - layout.centre[0]) / layout.half[0]
    above = GRID[..., 1] < edge + rng.uniform(-0.25, 0.3) * layout.half[1] * across**2 + rng.normal(0, 8) * across
    crown = np.abs(across) ** rng.uniform(1.5, 4) < rng.uniform(0.8, 2.5)
    cover = (above & crown).astype(np.float32)
    bulge = (layout.half[0] * np.sqrt(np.clip(2 - across**2, 0.01, None)) / 2).astype(np.float32)
    folds = bulge + rng.uniform(0, 3) * _noise(rng, 30)
    colours = np.clip(_fabric(other, rng) * _lit(folds, rng)[0][..., None], 0, 1)
    return Occluder(colours.astype(np.float32), cover, LABEL["hat"])


def _shadowed(image: Picture, layout: Layout, rng: np.random.Generator) -> Picture:
    """The picture with a shadow or a bright area whose edge is sharp or soft."""
    turn = rng.uniform(0, 2 * math.pi)
    place = layout.centre + rng.normal(0, 0.5, 2) * layout.half
    side = (GRID - place) @ (math.cos(turn), math.sin(turn)) + rng.uniform(0, 15) * _noise(rng, rng.uniform(20, 90))
    soft = 1 / (1 + np.exp(-np.clip(side / rng.uniform(0.7, 12), -30, 30)))
    return np.clip(image * (1 + rng.uniform(-0.65, 0.4) * soft[..., None]), 0, 1).astype(np.float32)


def _line(canvas: NDArray[np.uint8], points: NDArray, value: Sequence[float], width: int) -> None:
    fixed = np.round((points - 0.5) * 16).astype(np.int32)
    cv2.polylines(canvas, [fixed], False, [float(v) for v in value], width, cv2.LINE_AA, shift=4)


def _area(canvas: NDArray, points: NDArray) -> None:
    cv2.fillPoly(canvas, [np.round((points - 0.5) * 16).astype(np.int32)], (1.0,), shift=4)


DRAWERS = (_hand, _cut_out, _microphone, _cup, _patch, _cloth, _hair, _spectacles, _brim)
SHARES = (0.28, 0.1, 0.09, 0.08, 0.08, 0.06, 0.13, 0.11, 0.07)
