"""Which pixels of an aligned crop belong to the face and may change.

A mask is float32 ``[size, size]``, 1 where the face is, 0 elsewhere. It covers skin, brows, eyes (behind glasses too),
nose and mouth; it leaves out hair, ears, neck and background.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface import weights
from anonface.errors import UsageError
from anonface.faces.align import BROWS, EYES, LIPS, NOSE, NOSE_TIP, OVAL
from anonface.faces.detect import Pixels, Points

if TYPE_CHECKING:
    from torch import nn

    from anonface.models.face_parser import FaceParser

Mask = NDArray[np.float32]

WORK = 128  # px, the side at which the landmark parser looks
SHARE_SIDE = 256  # px, the side at which masks are compared
NETWORK = 512  # px, the side that facexlib's parsers are trained for
FOREHEAD_DROP = 0.08  # how far below the mesh's upper rim the mask ends, in heights of the oval: what a render has of
# hair belongs to nobody's forehead, and the forehead above the brows tells little of who somebody is
CORE = 0.8  # the part of the oval (scaled about the nose) below the brows that is always face
SMOOTH = 1 / 80  # of the side: the rim is smoothed by this much
LEAST_AREA = 0.72  # a refined mask smaller than this share of the oval is not believed
TRAINED_REACH = 1.12  # how much wider than the mesh's (scaled about the nose) the outline is that bounds what the
# network calls face: it knows cheeks and chin better
LEAST_SEEN = 0.25  # the network is not believed where it sees less of the outline than this share
RIM = 0.06  # of a face's mean diameter: how much about it may change with it
SPECK = 0.003  # of the outline's area: what is smaller is neither face nor occluder
LENS = (0.8, 0.55)  # semi-axes, in widths of an eye, of the part of a lens through which it is seen
CLEAR = 0.6  # a lens at least this share as light as the face is one to see through
THIN = 0.5  # rims and dark lenses that take less than this share of glasses are too thin to stay whole
WORN, WORN_BELOW = 0.07, 0.06  # least shares that glasses cover of a face, and that lie below the eyes of them
ABOUT = 0.04  # of the side: how far a brow may reach beyond its landmarks
FLOATING = ("hair", "glasses")  # what may lie amid a face without reaching its rim

NOSE_BRIDGE = 168

# Classes of facexlib's parsers that are face, out of 19.
BISENET_FACE = [1, 2, 3, 4, 5, 6, 10, 11, 12, 13]
PARSENET_FACE = [1, 2, 3, 4, 5, 6, 7, 10, 11, 12]


def face_mask(crop: Pixels, landmarks: Points, size: int, parser: str = "trained") -> Mask:
    """Mask the face in an aligned crop.

    Args:
        crop: uint8 ``[S, S, 3]``.
        landmarks: ``[468, 2]`` in crop coordinates (0..S).
        size: side of the mask.
        parser: ``trained`` (this project's network, within the mesh's outline), ``landmarks`` (the outline alone, less
            what does not have the skin's colour), or ``bisenet`` or ``parsenet`` (facexlib's networks).

    Raises:
        UsageError: no such parser.
        WeightsError: the parser's weights are missing.
    """
    if parser not in PARSERS:
        raise UsageError(f"no parser named {parser!r}", f"choose one of {', '.join(PARSERS)}")
    mask = PARSERS[parser](crop, landmarks)
    return (cv2.resize(mask, (size, size), interpolation=cv2.INTER_CUBIC) > 0.5).astype(np.float32)


def with_margin(mask: Mask, crop: Pixels, landmarks: Points | None = None) -> Mask:
    """A mask [S, S], and what lies within RIM of it and is skin or hair: where the outline of another face may run.

    Within the outline of ``landmarks`` [468, 2], in the mask's px, where there are some, stays what hides the face.
    Holes that are no larger than a SPECK are filled: nothing real is left there.
    """
    from anonface.models.face_parser import BARE, FACE, HAIR

    side = len(mask)
    shares = _parsed(crop)[1][[*FACE, *BARE, *HAIR]].sum(0)
    beside = cv2.resize(shares, (side, side)) > 0.5
    if landmarks is not None:
        beside &= _polygon(outline(landmarks), side) == 0
    reach = RIM * math.sqrt(float(mask.sum()) * 4 / math.pi)  # not rounded: the same at every size
    result = np.maximum(mask, grown(mask.astype(np.uint8), reach) * beside)
    for part in _parts(result < 0.5):
        if part.sum() < SPECK * mask.sum():
            result[part] = 1
    return result


def grown(inside: NDArray[np.uint8], reach: float) -> NDArray[np.uint8]:
    """A mask of 0 and 1, and what lies within ``reach`` px of it: dilated by a disc, in a time that does not grow with
    the disc."""
    away = cv2.distanceTransform(1 - inside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    return (away <= reach).astype(np.uint8)


def share_shown(crop: Pixels, landmarks: Points, parser: str = "trained") -> float:
    """How much of a face's outline its mask holds, 0..1; arguments as of :func:`face_mask`.

    Of 85 in-the-wild faces 0.63 at least. Painted and tiled skin is taken for things before the face: half a painted
    face gives 0.44 to 0.58.
    """
    whole = face_mask(crop, landmarks, SHARE_SIDE, "landmarks") > 0.5
    return float((face_mask(crop, landmarks, SHARE_SIDE, parser) > 0.5)[whole].mean()) if whole.any() else 0.0


def hides_eyes(mask: Mask, landmarks: Points) -> bool:
    """Whether a mask [S, S] leaves out most of both eyes, as dark glasses do; ``landmarks`` [468, 2] in its px."""
    side = len(mask)
    eyes = (_hull(landmarks[rows, :2], side) > 0 for rows in (EYES[:16], EYES[16:]))
    return all(eye.any() and mask[eye].mean() < 0.5 for eye in eyes)


def _polygon(points: Points, side: int) -> Mask:
    """Fill a polygon of continuous coordinates."""
    canvas = np.zeros((side, side), np.uint8)
    cv2.fillPoly(canvas, [np.round((points - 0.5) * 16).astype(np.int32)], (1,), shift=4)
    return canvas.astype(np.float32)


def _hull(points: Points, side: int) -> Mask:
    return _polygon(cv2.convexHull(points.astype(np.float32))[:, 0].astype(np.float64), side)


def outline(landmarks: Points, drop: float = FOREHEAD_DROP) -> Points:
    """The face's outline ``[36, 2]``, its upper part lowered by ``drop`` heights onto the forehead."""
    oval = landmarks[OVAL, :2]
    brow, chin = landmarks[NOSE_BRIDGE, :2], oval[len(OVAL) // 2]
    up = (oval[0] - chin) / np.linalg.norm(oval[0] - chin)
    height = np.linalg.norm(oval[0] - chin)
    above = np.clip((oval - brow) @ up / max((oval[0] - brow) @ up, 1e-6), 0, 1)
    return oval - np.outer(above * drop * height, up)


def _landmark_mask(crop: Pixels, landmarks: Points) -> Mask:
    points = landmarks[:, :2] * (WORK / len(crop))
    oval = _polygon(outline(points), WORK)
    core = _core(points)
    small = np.asarray(cv2.resize(crop, (WORK, WORK), interpolation=cv2.INTER_AREA), np.uint8)
    refined = _refine(small, oval, core, _skin(points))
    return _smoothed(refined if refined.sum() >= LEAST_AREA * oval.sum() else np.maximum(oval, core))


def _smoothed(mask: Mask) -> Mask:
    return np.asarray(cv2.GaussianBlur(mask, (0, 0), SMOOTH * len(mask)), np.float32)


def _core(points: Points) -> Mask:
    """What is face whatever its colour: the features, and the middle of the face below the brows."""
    features = _hull(points[BROWS + EYES + LIPS + NOSE], WORK)
    centre = points[1]
    oval = points[OVAL]
    lower = _polygon(centre + (oval - centre) * CORE, WORK)
    brow = points[NOSE_BRIDGE]
    down = oval[len(OVAL) // 2] - brow
    grid = np.indices((WORK, WORK))[::-1].transpose(1, 2, 0) + 0.5
    lower *= (grid - brow) @ down > 0
    return np.maximum(features, lower)


def _skin(points: Points) -> Mask:
    """Where skin is sure to be seen: inside the oval, without brows, eyes, mouth and what is near the rim."""
    centre = points[1]
    inner = _polygon(centre + (points[OVAL] - centre) * 0.85, WORK)
    holes = [_hull(points[part], WORK) for part in (BROWS[:10], BROWS[10:], EYES[:16], EYES[16:], LIPS)]
    return inner * (1 - cv2.dilate(np.max(holes, axis=0), np.ones((5, 5), np.uint8)))


def _refine(small: Pixels, oval: Mask, core: Mask, skin: Mask) -> Mask:
    """Leave out what differs from the colour that the skin has nearby."""
    lab = cv2.cvtColor((small / 255).astype(np.float32), cv2.COLOR_RGB2Lab)
    lab = np.asarray(cv2.bilateralFilter(lab, 5, 12, 2), np.float32)
    weight = skin.copy()
    for _ in range(3):  # the skin's colour, varying slowly with the light; each round trusts outliers less
        local = _spread(lab, weight)
        off = (lab - local) / (16, 8, 8)
        distance = np.sqrt((off**2).sum(2))
        weight = (skin * np.exp(-(distance**2) / 2)).astype(np.float32)
    near = cv2.GaussianBlur(distance.astype(np.float32), (0, 0), 1) < 2
    mask = np.maximum(oval * near, core)
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (5, 5))
    mask = cv2.morphologyEx(cv2.morphologyEx(mask, cv2.MORPH_CLOSE, disc), cv2.MORPH_OPEN, disc)
    return _whole(np.maximum(mask * oval, core))


def _spread(values: NDArray, weight: Mask) -> NDArray:
    """Weighted local mean, reaching everywhere."""
    total = np.zeros_like(values)
    mass = np.zeros_like(weight)
    for sigma, trust in ((10, 1.0), (30, 0.05)):
        total += trust * cv2.GaussianBlur(values * weight[..., None], (0, 0), sigma)
        mass += trust * cv2.GaussianBlur(weight, (0, 0), sigma)
    return total / (mass[..., None] + 1e-6)


def _whole(mask: Mask) -> Mask:
    """The largest connected part, its holes filled."""
    outlines, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    canvas = np.zeros(mask.shape, np.uint8)
    cv2.drawContours(canvas, [max(outlines, key=cv2.contourArea)], -1, (1,), cv2.FILLED)
    return canvas.astype(np.float32)


@functools.cache
def _parser() -> FaceParser:
    from anonface.models.face_parser import FaceParser

    parser = FaceParser()
    weights.load(parser, "face-parser")
    return parser.eval()


def _trained_mask(crop: Pixels, landmarks: Points) -> Mask:
    """The network's faith that a pixel is face, within the outline; the landmark mask where it sees hardly any."""
    from anonface.models.face_parser import CLASSES, FACE

    pixels, shares = _parsed(crop)
    side, worn, lens = len(pixels), CLASSES.index("glasses"), CLASSES.index("lens")
    points = landmarks[:, :2] * (side / len(crop))
    rims, seen_through = ((shares[kind] > 0.5).sum() for kind in (worn, lens))
    # what remained of thin rims would be scraps; of dark lenses nothing is to be missing
    kept, gone = (lens, worn) if rims < THIN * (rims + seen_through) else (worn, lens)
    shares[kept] += shares[gone]
    shares[gone] = 0
    if not _worn(cv2.resize(shares[worn], (side, side)) > 0.5, points):
        # about the eyes what they are next likeliest to be; a strand of hair elsewhere
        about = _about_eyes(landmarks[:, :2] / len(crop), shares.shape[-1])
        shares[CLASSES.index("hair")] += shares[worn] * (1 - about)
        shares[worn] = 0
        shares /= np.maximum(shares.sum(0), np.finfo(np.float32).tiny)
    sums = (shares[list(FACE)].sum(0), shares[[CLASSES.index(name) for name in FLOATING]].sum(0), shares[worn])
    faith, floats, glasses = (cv2.resize(share, (side, side)) for share in sums)
    faith[_clear_lenses(pixels, points, glasses > 0.5, faith > 0.5)] = 1
    oval = _polygon(points[NOSE_TIP] + (outline(points) - points[NOSE_TIP]) * TRAINED_REACH, side)
    mask = cv2.GaussianBlur(oval, (0, 0), 1) * faith
    if (mask > 0.5).sum() < LEAST_SEEN * oval.sum():
        return _landmark_mask(crop, landmarks)
    return _plausible(mask, floats, oval, SPECK * float(oval.sum()))


def _parsed(crop: Pixels) -> tuple[Pixels, NDArray[np.float32]]:
    """The crop at the side at which the network looks, and the classes' shares [classes, side / 2, side / 2]."""
    import torch

    network = _parser()
    side = network.params.side
    how = cv2.INTER_AREA if len(crop) > side else cv2.INTER_CUBIC
    pixels = crop if len(crop) == side else np.asarray(cv2.resize(crop, (side, side), interpolation=how), np.uint8)
    with torch.inference_mode():
        shares = network(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 127.5 - 1)[0].softmax(0).numpy()
    return pixels, shares


def _clear_lenses(
    pixels: Pixels, points: Points, glasses: NDArray[np.bool_], face: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """What of the glasses is a clear lens before an eye: whose eyes are seen is seen by them."""
    light = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    lenses = np.zeros_like(glasses)
    down, across = np.indices(glasses.shape) + 0.5
    for rows in (EYES[:16], EYES[16:]):
        x, y = points[rows].mean(0)
        width = np.linalg.norm(points[rows[0]] - points[rows[8]])
        lens = glasses & (np.hypot((across - x) / LENS[0], (down - y) / LENS[1]) < width)
        if lens.any() and face.any() and light[lens].mean() >= CLEAR * np.median(light[face]):
            lenses |= lens
    return lenses


def _worn(glasses: NDArray[np.bool_], points: Points) -> bool:
    """Whether what is called glasses can be some: they reach below the eyes, and cover more than shadows of brows do,
    or the edge of a fringe."""
    down, across = np.indices(glasses.shape) + 0.5
    (x, y), (other_x, other_y) = ((points[rows, 0].mean(), points[rows, 1].max()) for rows in (EYES[:16], EYES[16:]))
    below = down > y + (other_y - y) * (across - x) / max(other_x - x, 1)
    oval = _polygon(outline(points), len(glasses)) > 0
    glasses = glasses & oval
    return bool(glasses.sum() > WORN * oval.sum() and glasses[below].sum() > WORN_BELOW * glasses.sum())


def _about_eyes(points: Points, side: int) -> Mask:
    """1 within ABOUT of eyes and brows, of landmarks in shares of the side, in px of which there are ``side``."""
    hull = _hull(points[BROWS + EYES] * side, side)
    return grown(hull.astype(np.uint8), round(ABOUT * side)).astype(np.float32)


def _plausible(mask: Mask, floats: Mask, oval: Mask, speck: float) -> Mask:
    """Drop parts of the face smaller than ``speck`` px, and give it back what nothing real can hide.

    What hides a face is held from somewhere: it stays out of the mask where it leads out of ``oval``. What is of the
    classes that float, whose shares are ``floats``, need only be no speck.
    """
    result = mask.copy()
    for part in _parts(mask > 0.5):
        if part.sum() < speck:
            result[part] = 0
    for part in _parts((result <= 0.5) & (1 - mask - floats > floats)):
        if oval[part].all():
            result[part] = 1
    for part in _parts(result <= 0.5):
        if part.sum() < speck:
            result[part] = 1
    return result


def _parts(where: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """The connected parts of a mask, one by one."""
    count, parts = cv2.connectedComponents(where.astype(np.uint8))
    return (parts == part for part in range(1, count))


@functools.cache
def _network(name: str) -> nn.Module:
    """facexlib's network of that name with its published weights, on the CPU."""
    from anonface import torchvision_adapter

    parsing = torchvision_adapter.load("facexlib.parsing")
    network: nn.Module = parsing.BiSeNet(19) if name == "bisenet" else parsing.ParseNet(NETWORK, NETWORK, parsing_ch=19)
    weights.load(network, name)
    return network.eval()


def _network_mask(crop: Pixels, name: str, mean: Sequence[float], deviation: Sequence[float], face: list[int]) -> Mask:
    """Run a parser on the crop; a pixel is face when its likeliest class is one of ``face``."""
    import torch

    enlarge = len(crop) < NETWORK
    resized = cv2.resize(crop, (NETWORK, NETWORK), interpolation=cv2.INTER_LINEAR if enlarge else cv2.INTER_AREA)
    pixels = ((resized / 255 - np.array(mean)) / np.array(deviation)).astype(np.float32)
    with torch.inference_mode():
        logits = _network(name)(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0]
    classes = logits[0].argmax(0).numpy()
    mask = np.isin(classes, face).astype(np.float32)
    return _smoothed(np.asarray(cv2.resize(mask, (WORK, WORK), interpolation=cv2.INTER_AREA), np.float32))


def _bisenet_mask(crop: Pixels, landmarks: Points) -> Mask:
    return _network_mask(crop, "bisenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), BISENET_FACE)


def _parsenet_mask(crop: Pixels, landmarks: Points) -> Mask:
    return _network_mask(crop, "parsenet", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), PARSENET_FACE)


PARSERS: dict[str, Callable[[Pixels, Points], Mask]] = {
    "trained": _trained_mask,
    "landmarks": _landmark_mask,
    "bisenet": _bisenet_mask,
    "parsenet": _parsenet_mask,
}
