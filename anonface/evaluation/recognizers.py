"""dlib's recognizer and MTCNN, a detector whose rates papers report. No training loss used either.

The dlib recognizer is used the way the ``face_recognition`` package uses it: dlib's HOG frontal detector with one
upsampling, the 5-point shape predictor, one descriptor without jitter, and 0.6 as its own decision threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from anonface import weights
from anonface.errors import UsageError
from anonface.evaluation.metrics import overlap

MIN_OVERLAP = 0.25
"""Least intersection over union of two detectors' boxes of the same face."""


@dataclass(frozen=True)
class Look:
    """A recognizer's reading of one face.

    Attributes:
        box: [4] (x, y, w, h) in photo pixels.
        embedding: [d] float64; Euclidean distances between embeddings compare faces.
        points: [68, 2] landmarks in photo pixels, iBUG 300-W order.
    """

    box: NDArray[np.float64]
    embedding: NDArray[np.float64]
    points: NDArray[np.float64]


@dataclass(frozen=True)
class Detection:
    """A face as a detector finds it.

    Attributes:
        box: [4] (x, y, w, h) in photo pixels.
        points: [5, 2] eyes, tip of the nose and corners of the mouth, from a detector that gives them.
    """

    box: NDArray[np.float64]
    points: NDArray[np.float64] | None = None

    @property
    def corners(self) -> NDArray[np.float64]:
        """[4] (left, top, right, bottom), by which papers compare boxes."""
        return np.concatenate([self.box[:2], self.box[:2] + self.box[2:]])


class Dlib:
    """dlib's ResNet-29 recognizer (128-d) behind its HOG detector.

    Raises:
        UsageError: the ``dlib-bin`` package is not installed.
        WeightsError: its weights cannot be had.
    """

    name = "dlib"
    threshold = 0.6
    seen_by_loss = False

    def __init__(self) -> None:
        dlib = _import_dlib()
        self._rectangle = dlib.rectangle
        self._detector = dlib.get_frontal_face_detector()
        self._five = dlib.shape_predictor(str(weights.path("dlib-landmarks-5")))
        self._sixty_eight = dlib.shape_predictor(str(weights.path("dlib-landmarks-68")))
        self._network = dlib.face_recognition_model_v1(str(weights.path("dlib-recognizer")))

    def boxes(self, rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Faces found by the HOG detector, clipped to the photo: [H, W, 3] RGB -> [n, 4] (x, y, w, h)."""
        height, width = rgb.shape[:2]
        found = self._detector(np.ascontiguousarray(rgb), 1)
        corners = np.array([[r.left(), r.top(), r.right(), r.bottom()] for r in found], dtype=np.float64).reshape(-1, 4)
        corners = np.clip(corners, 0, [width, height, width, height])
        return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)

    def look(self, rgb: NDArray[np.uint8], near: ArrayLike | None = None) -> Look | None:
        """Embedding and landmarks of one face.

        Args:
            rgb: [H, W, 3] uint8.
            near: (x, y, w, h) of the wanted face; None takes the largest face found.

        Returns:
            None when no face is found, or none that overlaps ``near``.
        """
        box = choose(self.boxes(rgb), near)
        return None if box is None else self.at(rgb, box)

    def at(self, rgb: NDArray[np.uint8], box: NDArray[np.float64]) -> Look:
        """Reading of the face at (x, y, w, h), whether the detector finds one there or not."""
        image = np.ascontiguousarray(rgb)
        x, y, w, h = (int(v) for v in box)
        rectangle = self._rectangle(x, y, x + w, y + h)
        descriptor = self._network.compute_face_descriptor(image, self._five(image, rectangle), 1)
        points = [(p.x, p.y) for p in self._sixty_eight(image, rectangle).parts()]
        return Look(box, np.asarray(descriptor, dtype=np.float64), np.asarray(points, dtype=np.float64))


def choose(boxes: NDArray[np.float64], near: ArrayLike | None) -> NDArray[np.float64] | None:
    """The box [4] of [n, 4] that best overlaps ``near`` (at least ``MIN_OVERLAP``), or the largest without ``near``."""
    if len(boxes) == 0:
        return None
    if near is None:
        return boxes[int(np.argmax(boxes[:, 2] * boxes[:, 3]))]
    shared = overlap(near, boxes)
    best = int(np.argmax(shared))
    return boxes[best] if shared[best] >= MIN_OVERLAP else None


class Mtcnn:
    """The three-stage cascade of Zhang et al. 2016 (MTCNN), with its usual settings.

    Faces from 20 pixels, pyramid factor 0.709, thresholds 0.6, 0.7, 0.7. Pixels enter as (v - 127.5) / 128.

    Raises:
        WeightsError: its weights cannot be had.
    """

    smallest = 20
    factor = 0.709
    thresholds = (0.6, 0.7, 0.7)

    def __init__(self) -> None:
        self._propose, self._refine, self._output = ProposalNet(), RefineNet(), OutputNet()
        for name, network in (("pnet", self._propose), ("rnet", self._refine), ("onet", self._output)):
            weights.load(network, f"mtcnn-{name}")
            network.eval()

    @torch.inference_mode()
    def faces(self, rgb: NDArray[np.uint8]) -> list[Detection]:
        """Faces found in [H, W, 3] uint8 RGB, with their points, best score first."""
        image = torch.from_numpy(np.array(rgb)).permute(2, 0, 1)[None].float()
        image = (image - 127.5) / 128
        corners = self._proposals(image)
        corners, scores, shifts, _ = _judged(self._refine, image, corners, 24, self.thresholds[1])
        picked = _suppressed(corners, scores, 0.7)
        corners = _squared(_shifted(corners[picked], shifts[picked]))
        corners, scores, shifts, shares = _judged(self._output, image, corners, 48, self.thresholds[2])
        points = _within(corners, shares)
        corners = _shifted(corners, shifts)
        kept = _suppressed(corners, scores, 0.7, of_smaller=True)
        found = corners[kept].double().numpy()
        boxes = np.concatenate([found[:, :2], found[:, 2:] - found[:, :2]], axis=1)
        return [Detection(*face) for face in zip(boxes, points[kept].double().numpy(), strict=True)]

    def _proposals(self, image: Tensor) -> Tensor:
        """Square candidate corners [n, 4] (left, top, right, bottom) from the fully convolutional first stage."""
        height, width = image.shape[-2:]
        corners, scores, shifts = [torch.zeros(0, 4)], [torch.zeros(0)], [torch.zeros(0, 4)]
        scale = 12 / self.smallest
        while min(height, width) * scale >= 12:
            small = F.interpolate(image, size=(int(height * scale + 1), int(width * scale + 1)), mode="area")
            score, shift = self._propose(small)
            rows, columns = torch.nonzero(score >= self.thresholds[0], as_tuple=True)
            start = torch.stack([columns, rows], dim=1) * 2.0
            cells = torch.cat([start + 1, start + 12], dim=1).div(scale).floor()
            picked = _suppressed(cells, score[rows, columns], 0.5)
            corners.append(cells[picked])
            scores.append(score[rows, columns][picked])
            shifts.append(shift[:, rows, columns].T[picked])
            scale *= self.factor
        all_corners, all_shifts = torch.cat(corners), torch.cat(shifts)
        picked = _suppressed(all_corners, torch.cat(scores), 0.7)
        return _squared(_shifted(all_corners[picked], all_shifts[picked], inclusive=0))


class ProposalNet(nn.Module):
    """First stage: [1, 3, H, W] -> face probability [h, w] and corner shifts [4, h, w], stride 2, field 12."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(self.prelu1(self.conv1(x)), 2, 2, ceil_mode=True)
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_1(x).softmax(1)[0, 1], self.conv4_2(x)[0]


class RefineNet(nn.Module):
    """Second stage: [n, 3, 24, 24] -> face probability [n], corner shifts [n, 4], and no points [n, 0]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.max_pool2d(self.prelu1(self.conv1(x)), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.prelu2(self.conv2(x)), 3, 2, ceil_mode=True)
        x = self.prelu4(self.dense4(_column_major(self.prelu3(self.conv3(x)))))
        return self.dense5_1(x).softmax(1)[:, 1], self.dense5_2(x), x.new_zeros(len(x), 0)


class OutputNet(nn.Module):
    """Third stage: [n, 3, 48, 48] -> face probability [n], corner shifts [n, 4], five points [n, 10], all x first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.max_pool2d(self.prelu1(self.conv1(x)), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.prelu2(self.conv2(x)), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.prelu3(self.conv3(x)), 2, 2, ceil_mode=True)
        x = self.prelu5(self.dense5(_column_major(self.prelu4(self.conv4(x)))))
        return self.dense6_1(x).softmax(1)[:, 1], self.dense6_2(x), self.dense6_3(x)


def _column_major(x: Tensor) -> Tensor:
    # The weights come from a framework that flattened width before height before channels.
    return x.permute(0, 3, 2, 1).flatten(1)


def _judged(
    network: nn.Module, image: Tensor, corners: Tensor, size: int, threshold: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Corners, scores, shifts and points of the candidates that a stage scores above its threshold."""
    scores, shifts, points = network(_cut(image, corners, size))
    kept = scores > threshold
    return corners[kept], scores[kept], shifts[kept], points[kept]


def _within(corners: Tensor, shares: Tensor) -> Tensor:
    """Five points [n, 5, 2] in photo pixels; shares of a candidate's width and height [n, 10], all x first."""
    start, size = corners[:, None, :2], corners[:, None, 2:] - corners[:, None, :2] + 1
    return start + shares.unflatten(1, (2, 5)).mT * size - 1  # candidates count pixels from 1


def _cut(image: Tensor, corners: Tensor, size: int) -> Tensor:
    """Candidates [n, 4], cut at the photo's border, as [n, 3, size, size]."""
    height, width = image.shape[-2:]
    crops = [image.new_zeros(0, 3, size, size)]
    for left, top, right, bottom in corners.trunc().int().tolist():
        # Coordinates count pixels from 1; a candidate keeps at least one pixel inside the photo.
        left, top = min(max(left, 1), width), min(max(top, 1), height)
        right, bottom = max(min(right, width), left), max(min(bottom, height), top)
        crops.append(F.interpolate(image[:, :, top - 1 : bottom, left - 1 : right], size=(size, size), mode="area"))
    return torch.cat(crops)


def _shifted(corners: Tensor, shifts: Tensor, inclusive: int = 1) -> Tensor:
    """Corners moved by shifts in units of their width and height; the last two stages count both end pixels."""
    size = (corners[:, 2:] - corners[:, :2] + inclusive).repeat(1, 2)
    return corners + shifts * size


def _squared(corners: Tensor) -> Tensor:
    """Squares of the longer side around the same centres."""
    size = corners[:, 2:] - corners[:, :2]
    side = size.amax(dim=1, keepdim=True)
    start = corners[:, :2] + (size - side) / 2
    return torch.cat([start, start + side], dim=1)


def _suppressed(corners: Tensor, scores: Tensor, limit: float, *, of_smaller: bool = False) -> Tensor:
    """Indices kept by greedy non-maximum suppression, best score first.

    The overlap is intersection over union, or over the smaller of both boxes with ``of_smaller``.
    """
    c = corners.double().numpy()
    area = (c[:, 2] - c[:, 0]) * (c[:, 3] - c[:, 1])
    order = np.argsort(-scores.numpy(), kind="stable")
    kept = []
    while order.size:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        start, end = np.maximum(c[best, :2], c[rest, :2]), np.minimum(c[best, 2:], c[rest, 2:])
        shared = np.prod(np.clip(end - start, 0, None), axis=1)
        base = np.minimum(area[best], area[rest]) if of_smaller else area[best] + area[rest] - shared
        order = rest[shared <= limit * base]
    return torch.tensor(kept, dtype=torch.long)


def _import_dlib() -> ModuleType:
    try:
        import dlib
    except ImportError as error:
        remedy = "pip install '.[evaluation]' in a clone of anonface"
        raise UsageError("the evaluation needs dlib, which is not installed", remedy) from error
    return dlib
