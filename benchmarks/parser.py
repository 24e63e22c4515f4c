"""The face parser against masks made by people, on photos that it never learned from.

python benchmarks/parser.py MASKS [--cache FILE]

MASKS holds images/N.jpg and labels/N.png as CelebAMask-HQ lays them out; the last photos by name are judged. The table
gives the F1 of each class over all pixels, in crops that are aligned as the program aligns faces. Glasses are rims and
lenses together, as the masks know no difference.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface import weights
from anonface.models.face_parser import CLASSES, FACE, FaceParser
from anonface.training.masks import KEPT, LABEL, SIDE, UNKNOWN, WORN, load_masks

ROWS = {
    "face": (FACE, FACE),
    **{name: ((LABEL[name],), (LABEL[name],)) for name in ("skin", "brows", "eyes", "nose", "lips", "hair", "hat")},
    "glasses": ((LABEL["glasses"], LABEL["lens"]), (WORN,)),
}


def f1(found: Tensor, wanted: Tensor, known: Tensor) -> float:
    """Of two sets of pixels; NaN if both are empty."""
    both, sizes = (found & wanted & known).sum(), (found & known).sum() + (wanted & known).sum()
    return float(2 * both / sizes)


@torch.inference_mode()
def classes(parser: FaceParser, images: Tensor) -> Tensor:
    """The likeliest class of every pixel, [N, SIDE, SIDE], of images uint8 [N, SIDE, SIDE, 3]."""
    rows = []
    for part in images.split(8):
        logits = parser(part.permute(0, 3, 1, 2).float() / 127.5 - 1)
        rows.append(F.interpolate(logits, (SIDE, SIDE), mode="bilinear", align_corners=False).argmax(1))
    return torch.cat(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("masks", type=Path)
    options.add_argument("--cache", type=Path, help="where aligned photos are kept")
    given = options.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        photos = load_masks(given.cache or Path(folder) / "masks.safetensors", given.masks)
    parser = FaceParser()
    weights.load(parser, "face-parser")
    labels = photos.labels[-KEPT:]
    seen = classes(parser.eval(), photos.images[-KEPT:])
    # a face behind glasses: where masks say "glasses" nobody knows
    known = {name: labels != UNKNOWN if name == "glasses" else (labels != UNKNOWN) & (labels != WORN) for name in ROWS}
    print(f"{len(labels)} photos, {len(CLASSES)} classes")
    for name, (found, wanted) in ROWS.items():
        score = f1(torch.isin(seen, torch.tensor(found)), torch.isin(labels, torch.tensor(wanted)), known[name])
        print(f"{name:8} {score:.3f}")


if __name__ == "__main__":
    main()
