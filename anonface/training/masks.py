"""Photos with masks made by people, as CelebAMask-HQ (Lee et al. 2020) lays them out: training data of the face parser.

A folder holds ``images/N.jpg`` and ``labels/N.png``. A label is an index: 0 background, also hands and microphones
before the face; 1 skin, 2 nose, 3 glasses, 4 and 5 eyes, 6 and 7 brows, 8 and 9 ears, 10 mouth, 11 and 12 lips,
13 hair, 14 hat, 15 earring, 16 necklace, 17 neck, 18 clothes.

Some of them leave open which of the parser's classes a pixel has. So labels here are classes, or one of two codes for
"this class or that": :data:`ALLOWED` says which classes each code allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from anonface.errors import UsageError
from anonface.faces import align
from anonface.faces.detect import Pixels, build_detector
from anonface.models.face_parser import CLASSES

Labels = NDArray[np.uint8]

SIDE = 256  # px of an aligned photo
KEPT = 100  # pairs that are never learned from: those whose names sort last
DETECTED_AT = 320  # px of the longer side at which the face is looked for
LABEL = {name: index for index, name in enumerate(CLASSES)}
BEHIND = len(CLASSES)  # background or occluder
WORN = len(CLASSES) + 1  # glasses or lens
UNKNOWN = 255  # the label of unlabelled pixels

_NAMES = (
    "", "skin", "nose", "", "eyes", "eyes", "brows", "brows", "ears", "ears",
    "lips", "lips", "lips", "hair", "hat", "", "", "neck", "",
)  # fmt: skip
MEANING = np.full(256, UNKNOWN, np.uint8)  # label of a file -> label here
MEANING[: len(_NAMES)] = [LABEL[name] if name else BEHIND for name in _NAMES]
MEANING[3] = WORN


def allowed() -> Tensor:
    """Which classes each label allows, bool [len(CLASSES) + 2, len(CLASSES)]."""
    table = torch.eye(len(CLASSES) + 2, len(CLASSES), dtype=torch.bool)
    table[BEHIND, [LABEL["background"], LABEL["occluder"]]] = True
    table[WORN, [LABEL["glasses"], LABEL["lens"]]] = True
    return table


@dataclass(frozen=True)
class LabelledPhotos:
    """Images uint8 [N, SIDE, SIDE, 3] and labels uint8 [N, SIDE, SIDE]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)


def load_masks(
    file: Path, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> LabelledPhotos:
    """The aligned photos of a folder, in the order of their names; kept in ``file`` from the first call on.

    Raises:
        UsageError: the folder does not hold such pairs.
    """
    from safetensors.torch import load_file, save_file

    if not file.exists():
        pairs = _pairs(folder)
        rows = []
        for done, (image, labels) in enumerate(pairs, start=1):
            rows.append(_aligned(image, labels))
            progress(done, len(pairs))
        images, masks = (torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"images": images, "labels": masks}, f"{file}.part")
        Path(f"{file}.part").replace(file)
    return LabelledPhotos(**load_file(str(file)))


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    images = sorted((folder / "images").glob("*.jpg")) if folder.is_dir() else []
    pairs = [(image, folder / "labels" / f"{image.stem}.png") for image in images]
    if len(pairs) <= KEPT or not all(labels.is_file() for _, labels in pairs):
        raise UsageError(
            f"{str(folder)!r} does not hold more than {KEPT} photos with masks",
            "give --photos a folder with images/N.jpg and labels/N.png",
        )
    return pairs


def _aligned(image: Path, labels: Path) -> tuple[Pixels, Labels]:
    """A photo's largest face, aligned, and its labels; the whole photo where no face is found."""
    with Image.open(image) as photo, Image.open(labels) as mask:
        pixels = np.asarray(photo.convert("RGB"))
        told = np.array(mask.resize(photo.size, Image.Resampling.NEAREST))
        small = photo.convert("RGB")
        small.thumbnail((DETECTED_AT, DETECTED_AT))
    faces = build_detector("yunet").detect(np.asarray(small))
    height, width = pixels.shape[:2]
    quad = np.array([[0, 0], [0, height], [width, height], [width, 0]], float)
    if faces:
        face = max(faces, key=lambda one: one.box[2] * one.box[3])
        quad = align.ffhq_quad(align.mesh468(np.asarray(small), face)) * (width / small.width)
    move = np.asarray(align.photo_to_crop(quad, SIDE), np.float64)[:2]
    turned = cv2.warpAffine(told, move, (SIDE, SIDE), flags=cv2.INTER_NEAREST, borderValue=UNKNOWN)
    return align.crop(pixels, quad, SIDE), MEANING[turned]
