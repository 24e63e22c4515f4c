"""Seconds per face to anonymize and to recover a photo in memory, for each backend, after a warm-up.

python benchmarks/seconds.py PHOTO... [--of ifadit,hford,dbaf] [--limit 10] [--device cpu]

Photos are anonymized without a record, each under its own key, and recovered after detecting the faces again. A folder
stands for the photos in it. The first photo is processed once for warm-up. The time of a photo is divided by its number
of faces. For each backend the table gives mean and maximum, and the ratio of the mean to that of the first backend.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from anonface.evaluation.judges import photos_of
from anonface.evaluation.trials import SEED_TEXT, evaluation_key
from anonface.pipeline import MOSAIC, Engine


def measured(engine: Engine, file: Path) -> tuple[float, float] | None:
    """Seconds per face to anonymize and to recover a photo; None if there is no face or a mosaic."""
    photo, key = np.asarray(Image.open(file).convert("RGB")), evaluation_key(SEED_TEXT, file.name, 0)
    start = time.perf_counter()
    made = engine.anonymize(photo, key, consistent=True, faceless=True)
    hidden = time.perf_counter()
    faces = made.header.faces
    if not faces or any(face.kind == MOSAIC for face in faces):
        return None
    engine.recover(made.pixels, key)
    return (hidden - start) / len(faces), (time.perf_counter() - hidden) / len(faces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="+", metavar="PHOTO", help="photos, or folders of them")
    parser.add_argument("--of", default="ifadit,hford,dbaf", help="backends; the others are compared with the first")
    parser.add_argument(
        "--limit", type=int, help="number of photos to measure, without those that have no face or a covered one"
    )
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    files = [file for some in args.photos for file in (sorted(photos_of(some)) if some.is_dir() else [some])]
    print(
        f"{'seconds a face':16}{'photos':>7}"
        + f"{'anonymize':>12}{'max':>8}{'ratio':>8}{'recover':>12}{'max':>8}{'ratio':>8}"
    )
    first: list[float] = []
    for name in args.of.split(","):
        engine = Engine(name, args.device)
        measured(engine, files[0])
        times = list(islice(filter(None, (measured(engine, file) for file in files)), args.limit))
        if not times:
            raise SystemExit("no photo has a face that is replaced")
        ways = list(zip(*times, strict=True))
        means = [statistics.mean(way) for way in ways]
        first = first or means
        row = f"{name:16}{len(times):7}"
        for mean, way, base in zip(means, ways, first, strict=True):
            row += f"{mean:12.2f}{max(way):8.2f}{mean / base:8.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
