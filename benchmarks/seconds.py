"""Seconds that a face takes from a photo in memory to a finished one, hidden and led back, by each backend, warm.

python benchmarks/seconds.py PHOTO... [--of ifadit,hford,dbaf] [--limit 10] [--device cpu]

Photos are hidden without a record, each under a key of its own, and found and led back as anybody's would be; a folder
stands for the photos in it. The first photo goes through once before anything counts. What several faces of a photo
take is divided by their number. Of each backend the mean is told, the most, and how many times the first one's it is.
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
    """Seconds a face to hide a photo and to lead it back; None if a face is covered or none is found."""
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
    parser.add_argument("--of", default="ifadit,hford,dbaf", help="backends; the others are held against the first")
    parser.add_argument("--limit", type=int, help="of the photos with a face that is not covered, the first so many")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    files = [file for some in args.photos for file in (sorted(photos_of(some)) if some.is_dir() else [some])]
    print(
        f"{'seconds a face':16}{'photos':>7}"
        + f"{'hide':>12}{'most':>8}{'ratio':>8}{'back':>12}{'most':>8}{'ratio':>8}"
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
