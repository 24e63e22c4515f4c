"""Pictures composed of faces of nobody, and whether all of their faces are treated.

A short run is part of the tests (test_composed.py). A long one, with the faces of the examples or of a folder:

    nice -n 10 python tests/faces/composed.py --pictures 200 [--faces FOLDER]
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface import pipeline, weights
from anonface.crypto.keys import Key
from anonface.faces.detect import Face, Pixels, build_detector, same_face

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = 110  # px, at which a face is looked at in its own crop where it is larger
SEEN = 0.7  # what YuNet scores so in a face's own crop is a face
TREATED = 0.5  # share of a face's visible middle that must have changed
LYING, LEAST_LYING = 30, 40  # degrees from which a face lies, and the width in px from which it is then found


@dataclass(frozen=True)
class Source:
    """A picture of one face."""

    pixels: Pixels
    face: Face


@dataclass(frozen=True)
class Laid:
    """A face in a picture: its matrix [2, 3] from the source, its width and turn, and where it is still to be seen."""

    source: Source
    matrix: NDArray[np.float64]
    width: float
    turn: float
    visible: NDArray[np.bool_]


class Inverting:
    """A backend that turns faces into their negatives: fast, and every pixel of a mask becomes another."""

    name, resolutions, margin = "inverting", (256,), "none"
    exact, batched, marked, records_masks, matches_light = True, True, False, False, True

    def parameters(self):
        return {}

    def digest(self):
        return bytes(32)

    def anonymize(self, faces, masks, keys):
        return (faces + 1).remainder(2) - 1 + 0.3 * (faces < 0)

    def visible(self, masks):
        return masks


def engine(detector: str = "yunet") -> pipeline.Engine:
    """The real pipeline around the backend above."""
    real = pipeline.build
    pipeline.build = lambda name, device, settings: Inverting()
    try:
        return pipeline.Engine(device="cpu", detector=detector)
    finally:
        pipeline.build = real


def sources(folder: Path | None = None) -> list[Source]:
    """The faces of the example photos, or of a folder of JPEG files, each with its surroundings."""
    found = []
    for path in sorted((folder or EXAMPLES).glob("*.jpg")):
        pixels = np.ascontiguousarray(cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)[..., ::-1])
        for face in build_detector().detect(pixels):
            x, y, w, h = face.box
            left, top = max(round(x - 0.45 * w), 0), max(round(y - 0.45 * h), 0)
            part = np.ascontiguousarray(pixels[top : round(y + 1.3 * h), left : round(x + 1.45 * w)])
            found.append(Source(part, Face((x - left, y - top, w, h), face.points - (left, top), face.score)))
    return found


def place(source: Source, centre: tuple[float, float], width: float, turn: float = 0.0) -> NDArray[np.float64]:
    """The matrix [2, 3] that lays a source's face around a point, so wide, turned by so many degrees."""
    x, y, w, h = source.face.box
    matrix = np.asarray(cv2.getRotationMatrix2D((x + w / 2, y + h / 2), turn, width / w))
    matrix[:, 2] += np.array(centre) - (x + w / 2, y + h / 2)
    return matrix


def lay(picture: Pixels, source: Source, matrix: NDArray[np.float64], oval: bool = False) -> NDArray[np.bool_]:
    """Draw a source into a picture; returns where it shows."""
    size = picture.shape[1::-1]
    scale = math.hypot(*matrix[0, :2])
    pixels = source.pixels
    if scale < 1:  # shrink by area first, so that nothing aliases
        shrunk = (max(2, round(pixels.shape[1] * scale)), max(2, round(pixels.shape[0] * scale)))
        x, y = pixels.shape[1] / shrunk[0], pixels.shape[0] / shrunk[1]
        pixels = np.asarray(cv2.resize(pixels, shrunk, interpolation=cv2.INTER_AREA), np.uint8)
        matrix = matrix @ np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]])
    mask = np.full(pixels.shape[:2], 255, np.uint8)
    if oval:
        mask[:] = 0
        middle = (pixels.shape[1] // 2, pixels.shape[0] // 2)
        cv2.ellipse(mask, middle, (middle[0] - 1, middle[1] - 1), 0, 0, 360, (255,), -1)
    shown = cv2.warpAffine(mask, matrix, size, flags=cv2.INTER_NEAREST) > 0
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    if len(rows):
        part = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
        moved = matrix - np.array([[0, 0, columns[0]], [0, 0, rows[0]]])
        extent = (int(columns[-1] - columns[0]) + 1, int(rows[-1] - rows[0]) + 1)
        drawn = cv2.warpAffine(pixels, moved, extent, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        picture[part][shown[part]] = drawn[shown[part]]
    return shown


def compose(rng: np.random.Generator, faces: list[Source], most: int = 4000) -> tuple[Pixels, list[Laid]]:
    """A picture up to ``most`` px long with one to six faces, 12 to 3,000 px wide, on a soft background."""
    side = round(math.exp(rng.uniform(math.log(400), math.log(most))))
    width, height = rng.permutation([side, round(side * rng.uniform(0.35, 1.0))])
    coarse = rng.integers(30, 226, (4, 5, 3), np.uint8)
    picture = np.asarray(cv2.resize(coarse, (int(width), int(height)), interpolation=cv2.INTER_CUBIC), np.uint8)
    laid: list[Laid] = []
    for _ in range(rng.integers(1, 7)):
        source = faces[rng.integers(len(faces))]
        size = math.exp(rng.uniform(math.log(12), math.log(min(3000, 1.1 * min(width, height)))))
        turn = float(rng.choice([rng.normal(0, 8), rng.uniform(-45, 45), rng.uniform(-180, 180)], p=[0.6, 0.2, 0.2]))
        centre = rng.uniform((0, 0), (width, height))
        if laid and rng.random() < 0.5:  # over or beside another
            near = laid[rng.integers(len(laid))]
            centre = _middle(near) + rng.normal(0, 0.5, 2) * near.width
        matrix = place(source, tuple(centre), size, turn)
        shown = lay(picture, source, matrix, oval=bool(rng.random() < 0.5))
        laid = [Laid(f.source, f.matrix, f.width, f.turn, f.visible & ~shown) for f in laid]
        laid.append(Laid(source, matrix, size, turn, shown))
    return picture, laid


def _middle(face: Laid) -> NDArray[np.float64]:
    x, y, w, h = face.source.face.box
    return np.asarray(face.matrix @ (x + w / 2, y + h / 2, 1))


@functools.cache
def _yunet() -> cv2.FaceDetectorYN:
    return cv2.FaceDetectorYN.create(str(weights.path("yunet")), "", (320, 320), SEEN, 0.7, 5000)


def seen_in_its_own_crop(picture: Pixels, face: Laid) -> bool:
    """Whether YuNet finds a face, turned upright, in a crop of the picture around it, at its own size or smaller."""
    x, y, w, h = face.source.face.box
    scale = min(face.width, OWN) / w
    size = (round(2 * w * scale), round(2 * h * scale))
    upright = np.array([[scale, 0, (w - x - w / 2) * scale], [0, scale, (h - y - h / 2) * scale]])
    to_crop = upright @ np.vstack([cv2.invertAffineTransform(face.matrix), (0, 0, 1)])
    samples = max(1, round(face.width / OWN))
    crop = cv2.warpAffine(
        picture, to_crop * samples, (size[0] * samples, size[1] * samples), borderMode=cv2.BORDER_REPLICATE
    )
    crop = cv2.resize(crop, size, interpolation=cv2.INTER_AREA)
    network = _yunet()
    network.setInputSize(size)
    _, rows = network.detect(np.ascontiguousarray(crop[..., ::-1]))
    points = face.source.face.points @ upright[:, :2].T + upright[:, 2]
    truth = Face((w * scale / 2, h * scale / 2, w * scale, h * scale), points, 1.0)
    found = [Face(tuple(row[:4]), row[4:14].reshape(5, 2), row[14]) for row in ([] if rows is None else rows)]
    return any(same_face(each, truth) for each in found)


def left_in_the_clear(picture: Pixels, laid: list[Laid], result: Pixels) -> Iterator[tuple[Laid, float]]:
    """The faces that YuNet finds in their own crops and that are as they were, with the share that changed."""
    changed = (picture != result).any(2)
    for face in laid:
        if abs(face.turn) > LYING and face.width < LEAST_LYING:
            continue
        if not seen_in_its_own_crop(picture, face):
            continue
        points = cv2.convexHull((face.source.face.points @ face.matrix[:, :2].T + face.matrix[:, 2]).astype(np.float32))
        hull = np.zeros(picture.shape[:2], np.uint8)
        cv2.fillConvexPoly(hull, np.rint(points).astype(np.int32), (1,))
        visible = (hull > 0) & face.visible
        if visible.any() and (share := float(changed[visible].mean())) < TREATED:
            yield face, share


def run(
    seed: int, faces: list[Source], treat: Callable[[Pixels], Pixels], most: int = 4000
) -> tuple[Pixels, list[Laid], list[tuple[Laid, float]]]:
    """Compose the picture of a seed and treat it; returns it, its faces, and those left in the clear."""
    picture, laid = compose(np.random.default_rng(seed), faces, most)
    return picture, laid, list(left_in_the_clear(picture, laid, treat(picture)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--faces", type=Path, help="a folder of JPEG files, one face each")
    parser.add_argument("--most", type=int, default=4000, help="px, the longest picture")
    parser.add_argument("--detector", default="yunet")
    chosen = parser.parse_args()
    treating, faces, count = engine(chosen.detector), sources(chosen.faces), Counter()
    start, key = time.perf_counter(), Key.from_bytes(bytes(range(32)))

    def treat(picture: Pixels) -> Pixels:
        result = treating.anonymize(picture, key, faceless=True)
        count.update(face.kind for face in result.faces)
        count["notes of the second look"] += sum("finished photo" in note for note in result.notes)
        return result.pixels

    for seed in range(chosen.first, chosen.first + chosen.pictures):
        picture, laid, left = run(seed, faces, treat, chosen.most)
        count["pictures"] += 1
        count["megapixels"] += picture.shape[0] * picture.shape[1] / 1e6
        count["laid"] += len(laid)
        count["left"] += len(left)
        for face, share in left:
            place = "x".join(str(round(value)) for value in _middle(face))
            shown = f"{face.width:.0f} px wide, turned by {face.turn:.0f} degrees, {share:.0%} changed"
            print(f"picture {seed}, {picture.shape[1]}x{picture.shape[0]} px: left at {place}, {shown}", flush=True)
    print(dict(count), f"{time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
