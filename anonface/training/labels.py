"""Labelled synthetic faces: the class of every pixel is predicted from the generator's features (DatasetGAN, 2021).

Some synthetic faces are labelled by hand with strokes (``strokes.txt``). Brows, eyes, nose, lips and the middle of the
skin are labelled by landmarks. A small network fitted to these pixels labels all pixels of any number of faces (Zhang
et al. 2021).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.faces.align import BROWS, EYES, LIPS, OVAL
from anonface.faces.analysis import LandmarkNetwork, mesh_in_crop
from anonface.models.face_parser import CLASSES
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.data import draw_latents, drawn_rows, levels

Labels = NDArray[np.uint8]

SIDE = 256  # px of a labelled face
UNKNOWN = 255  # the label of unlabelled pixels
LEVELS = (1, 2, 3, 4)  # levels of the generator whose features are used
READ_SIDE = 128  # px, the last of these levels
MIN_CONFIDENCE = 0.55  # pixels with a lower probability stay unlabelled
HAND_SEED, BANK_SEED = 900_000, 500_000  # of hand-labelled faces, and of all others
ROUNDS = 12  # epochs of the reader's training
STROKES = Path(__file__).with_name("strokes.txt")

NOSE = [168, 193, 122, 196, 236, 198, 209, 129, 98, 97, 2, 326, 327, 358, 429, 420, 456, 419, 351, 417]
PARTS = (("nose", NOSE), ("brows", BROWS[:10]), ("brows", BROWS[10:]), ("eyes", EYES[:16]), ("eyes", EYES[16:]))
INNER = 0.72  # scale about the nose of the face's oval; inside it all below the eyes is skin


@dataclass(frozen=True)
class Stroke:
    """A filled polygon (``width`` 0) or a line ``width`` px wide, ``points`` [N, 2] in px of the face."""

    label: int
    width: int
    points: NDArray[np.float64]


@dataclass(frozen=True)
class HandLabels:
    """The strokes on one face; ``parts``: whether landmarks add labels; ``brows``: whether they add those of brows."""

    strokes: tuple[Stroke, ...]
    parts: bool
    brows: bool


def read_strokes(text: str) -> dict[int, HandLabels]:
    """Parse lines ``FACE CLASS: P x,y x,y ... ; L6 x,y ...``.

    The class ``noauto`` means that landmarks add no labels to that face, ``nobrows`` that they add no brows.
    """
    drawn: dict[int, list[Stroke]] = {}
    flags: set[tuple[int, str]] = set()
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        (face, label), shapes = line.split(":")[0].split(), line.split(":")[1]
        strokes = drawn.setdefault(int(face), [])
        if label.startswith("no"):
            flags.add((int(face), label))
            continue
        for shape in shapes.split(";"):
            kind, *pairs = shape.split()
            points = np.array([[float(value) for value in pair.split(",")] for pair in pairs])
            strokes.append(Stroke(CLASSES.index(label), int(kind[1:] or 0), points))
    return {
        face: HandLabels(tuple(strokes), (face, "noauto") not in flags, (face, "nobrows") not in flags)
        for face, strokes in drawn.items()
    }


def draw_labels(hand: HandLabels, mesh: NDArray[np.float64]) -> Labels:
    """The labels [SIDE, SIDE] of one face, UNKNOWN where there are none; ``mesh`` [468, 2] in px."""
    labels = _landmark_labels(mesh, hand.brows) if hand.parts else np.full((SIDE, SIDE), UNKNOWN, np.uint8)
    for stroke in hand.strokes:
        if stroke.width:
            line = np.round(stroke.points).astype(np.int32)
            cv2.polylines(labels, [line], False, (stroke.label,), stroke.width)
        else:
            _fill(labels, stroke.points, stroke.label)
    return labels


def _landmark_labels(mesh: NDArray[np.float64], brows: bool) -> Labels:
    labels = np.full((SIDE, SIDE), UNKNOWN, np.uint8)
    centre = mesh[1]
    _fill(labels, centre + (mesh[OVAL] - centre) * INNER, CLASSES.index("skin"))
    labels[: int(mesh[EYES].mean(0)[1] + 6)] = UNKNOWN
    for name, part in (*PARTS, ("lips", LIPS)):
        if name == "brows" and not brows:
            continue
        shape = np.zeros((SIDE, SIDE), np.uint8)
        _fill(shape, cv2.convexHull(mesh[part].astype(np.float32))[:, 0], 1)
        labels[cv2.dilate(shape, np.ones((5, 5), np.uint8)) > 0] = UNKNOWN
        inner = shape if name == "eyes" else cv2.erode(shape, np.ones((3, 3), np.uint8))
        labels[inner > 0] = CLASSES.index(name)
    return labels


def _fill(canvas: Labels, points: NDArray, value: int) -> None:
    cv2.fillPoly(canvas, [np.round(points * 16).astype(np.int32)], (value,), shift=4)


class FeatureReader(nn.Module):
    """Generator features of LEVELS and the image [B, 3, 256, 256] -> logits [B, classes, 128, 128]."""

    def __init__(self, channels: tuple[int, ...] = (512, 512, 512, 256), hidden: int = 96) -> None:
        super().__init__()
        self.features = nn.ModuleList(nn.Conv2d(c, hidden, 1) for c in channels)
        self.colour = nn.Conv2d(12, hidden, 1)
        self.mix = nn.Sequential(
            nn.LeakyReLU(0.2), nn.Conv2d(hidden, hidden, 1), nn.LeakyReLU(0.2), nn.Conv2d(hidden, len(CLASSES), 1)
        )

    def forward(self, features: list[Tensor], image: Tensor) -> Tensor:
        x = self.colour(F.pixel_unshuffle(image, SIDE // READ_SIDE))
        for project, level in zip(self.features, features, strict=True):
            x = x + F.interpolate(project(level), (READ_SIDE, READ_SIDE), mode="bilinear", align_corners=False)
        return self.mix(x)

    def standardise(self, features: list[Tensor]) -> None:
        """Fold a normalisation of these features (mean 0, standard deviation 0.5) into the first layer."""
        with torch.no_grad():
            for project, level in zip(self.features, features, strict=True):
                assert isinstance(project, nn.Conv2d) and project.bias is not None
                project.weight.mul_(0.5 / (level.std((0, 2, 3)) + 1e-4)[None, :, None, None])
                project.bias.sub_(project.weight[:, :, 0, 0] @ level.mean((0, 2, 3)))


@torch.inference_mode()
def _render(generator: MobileStyleGAN, w: Tensor) -> tuple[list[Tensor], Tensor]:
    """Features of LEVELS and the image at SIDE px, in one pass."""
    features = [generator.features(w, LEVELS[0])]
    complete = torch.cat([w, w[:, -1:].expand(-1, generator.n_latents - w.shape[1], -1)], dim=1)
    for i in LEVELS[1:]:
        features.append(generator.layers[i](features[-1], complete[:, 1 + 3 * i : 4 + 3 * i]))
    return features, generator.head(features[-1], w, LEVELS[-1])


def _latents(mapping: MappingNetwork, seed: int, mix: float) -> Tensor:
    """Four faces [4, n, 512]."""
    return draw_latents(mapping, 4, torch.Generator().manual_seed(seed), mix=mix)


def fit_reader(
    generator: MobileStyleGAN,
    mapping: MappingNetwork,
    landmarks: LandmarkNetwork,
) -> FeatureReader:
    """Fit the reader to the hand-labelled faces of ``strokes.txt``; takes about a minute on one core."""
    hand = read_strokes(STROKES.read_text("utf-8"))
    features: list[list[Tensor]] = []
    images, labels = [], []
    for face, drawn in hand.items():
        w = _latents(mapping, HAND_SEED + face // 4, mix=0.15)[face % 4 :][:1].half().float()
        levels, image = _render(generator, w)
        mesh = mesh_in_crop(landmarks, image)[0].double().numpy() * SIDE
        features.append(levels)
        images.append(image)
        labels.append(torch.from_numpy(draw_labels(drawn, mesh)))
    levels = [torch.cat(level).clone() for level in zip(*features, strict=True)]
    image, target = torch.cat(images).clone(), _agreed(torch.stack(labels))
    torch.manual_seed(0)
    reader = FeatureReader(tuple(level.shape[1] for level in levels))
    reader.standardise(levels)
    count = torch.bincount(target[target != UNKNOWN], minlength=len(CLASSES)).float()
    weight = (count.sum() / (count + 1)) ** 0.4
    optimiser = torch.optim.Adam(reader.parameters(), lr=1.5e-3, weight_decay=1e-5)
    for _ in range(ROUNDS):
        for part in torch.randperm(len(target)).split(4):
            dropped = [F.dropout2d(level[part], 0.15) for level in levels]
            loss = F.cross_entropy(
                reader(dropped, image[part]), target[part], weight, ignore_index=UNKNOWN, label_smoothing=0.02
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        for group in optimiser.param_groups:
            group["lr"] *= 0.86
    return reader.requires_grad_(False).eval()


def _agreed(labels: Tensor) -> Tensor:
    """Labels at READ_SIDE; cells with differing pixels are UNKNOWN."""
    cells = F.pixel_unshuffle(labels[:, None].float(), SIDE // READ_SIDE)
    return torch.where((cells == cells[:, :1]).all(1), cells[:, 0], float(UNKNOWN)).long()


@dataclass
class LabelledBank:
    """Stored faces: images uint8 [N, SIDE, SIDE, 3] and labels uint8 [N, SIDE, SIDE]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)


def load_labelled(
    file: Path,
    generator: MobileStyleGAN,
    mapping: MappingNetwork,
    reader: Callable[[], FeatureReader],
    count: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LabelledBank:
    """The first ``count`` labelled faces of ``file``; missing ones are rendered and saved first."""
    fitted = functools.cache(reader)  # fitted only if faces are missing

    def draw(done: int) -> dict[str, Tensor]:
        images, labels = _labelled(generator, mapping, fitted(), done)
        return {"images": images, "labels": labels}

    return LabelledBank(**drawn_rows(file, count, draw, 400, progress))


def _labelled(
    generator: MobileStyleGAN, mapping: MappingNetwork, reader: FeatureReader, first: int
) -> tuple[Tensor, Tensor]:
    """Four faces uint8 [4, S, S, 3] and their labels uint8 [4, S, S]."""
    features, image = _render(generator, _latents(mapping, BANK_SEED + first, mix=0.3))
    with torch.inference_mode():
        logits = F.interpolate(reader(features, image), (SIDE, SIDE), mode="bilinear", align_corners=False)
        confidence, label = logits.softmax(1).max(1)
    label = torch.where(confidence < MIN_CONFIDENCE, UNKNOWN, label).to(torch.uint8)
    return levels(image).permute(0, 2, 3, 1).contiguous(), label
