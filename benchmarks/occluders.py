"""Faces behind hands, microphones, glasses, hair and hats: how well each backend preserves the occluders.

python benchmarks/occluders.py PHOTOS [--of ifadit,hford,dbaf] [--split odd] [--limit 24] [--sheet FILE]

The photos of a split are sorted by the share of the first face's outline that the parser does not label as face. Photos
with a face that is covered by a mosaic are left out, for instance with one that is turned too far. Each photo is
anonymized under one key. The table gives mean absolute changes in grey levels: of the whole photo outside the outline;
of the aligned square outside the face, mask margin included; of occluders within the outline; and of the face.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anonface.evaluation.judges import of_split, photos_of
from anonface.evaluation.trials import SEED_TEXT, evaluation_key
from anonface.faces import align, parse
from anonface.faces.detect import Pixels, Points, build_detector
from anonface.images.pictures import around, contact_sheet
from anonface.pipeline import MOSAIC, Engine

SIDE = 256
COLUMNS = ("the rest of the photo", "about the face", "where something hides it", "the face")
Where = NDArray[np.bool_]


@dataclass(frozen=True)
class Found:
    """The first face of a photo: its square; in it the outline, as corners [n, 2] and as pixels; the face mask."""

    file: Path
    photo: Pixels
    box: NDArray
    quad: Points
    corners: Points
    outline: Where
    face: Where

    @property
    def hidden(self) -> float:
        """The occluded share of the outline."""
        return float((self.outline & ~self.face).sum() / self.outline.sum())


def look(file: Path) -> Found | None:
    photo = np.asarray(Image.open(file).convert("RGB"))
    for face in build_detector("yunet").detect(photo)[:1]:
        mesh = align.landmarks468(photo, face)
        quad = align.ffhq_quad(mesh)
        crop = np.asarray(align.crop(photo, quad, SIDE), np.uint8)
        points = align.transform(align.photo_to_crop(quad, SIDE), mesh)
        corners = parse.outline(points)
        seen = parse.face_mask(crop, points, SIDE) > 0.5
        return Found(file, photo, face.box, quad, corners, _within(corners, seen.shape), seen)
    return None


def _within(corners: Points, shape: tuple[int, ...]) -> Where:
    filled = np.zeros(shape, np.uint8)
    cv2.fillPoly(filled, [np.rint(corners).astype(np.int32)], (1,))
    return filled > 0


def changes(found: Found, shown: Pixels) -> list[float]:
    """Mean absolute changes in the regions of COLUMNS; NaN for an empty one."""
    moved = np.abs(shown.astype(np.float32) - found.photo).mean(2)
    square = np.asarray(align.crop(moved, found.quad, SIDE))
    inside = _within(align.transform(align.crop_to_photo(found.quad, SIDE), found.corners), moved.shape)
    regions = ~found.outline, found.outline & ~found.face, found.outline & found.face
    return [float(moved[~inside].mean()), *(float(square[one].mean()) if one.any() else np.nan for one in regions)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--of", default="ifadit,hford,dbaf", help="backends, separated by commas")
    parser.add_argument("--split", default="odd")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--sheet", type=Path, help="photos and the results of each backend, as a PNG")
    args = parser.parse_args()
    every = [one for file in of_split(photos_of(args.photos), args.split) if (one := look(file))]
    chosen = sorted(every, key=lambda one: one.hidden, reverse=True)
    names = args.of.split(",")
    rows: dict[Path, list[Pixels]] = {}
    for name in names:
        engine, results = Engine(name), []
        for one in chosen:
            made = engine.anonymize(one.photo, evaluation_key(SEED_TEXT, one.file.name, 0), consistent=True)
            if any(face.kind == MOSAIC for face in made.header.faces):
                continue
            results.append(changes(one, made.pixels))
            rows.setdefault(one.file, [around(one.photo, one.box)]).append(around(made.pixels, one.box))
            if len(results) == args.limit:
                break
        if name == names[0]:
            print(f"| {len(results)} photos | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}", flush=True)
        means = [statistics.fmean(value for value in column if value == value) for column in zip(*results, strict=True)]
        print(f"| {name} | {' | '.join(f'{mean:.2f}' for mean in means)} |", flush=True)
    if args.sheet:
        captions = [f"{one.file.stem}: {one.hidden:.0%} hidden" for one in chosen if one.file in rows]
        sheet = contact_sheet(list(rows.values()), columns=("original", *names), captions=captions, cell=SIDE)
        Image.fromarray(sheet).save(args.sheet)


if __name__ == "__main__":
    main()
