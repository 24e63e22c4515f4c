"""SFace: whether a replaced face still matches its original. No network of this project was trained against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface import weights
from anonface.errors import UsageError
from anonface.faces import align
from anonface.faces.detect import Face, Pixels

Vector = NDArray[np.float64]
Run = Callable[[Pixels], Vector]

NAME, LIMIT = "sface", 1.128
"""Its name in weights.toml, and the distance of unit embeddings below which two faces count as one person: OpenCV's."""
CROP = 256  # px, of an aligned face
ARCFACE_SIDE = 112  # px


class Recognizer(Protocol):
    """What compares faces."""

    @property
    def name(self) -> str: ...

    def embed(self, crop: Pixels, mesh: NDArray[np.float64]) -> Vector:
        """The embedding, of unit length, of an FFHQ-aligned face, uint8 [256, 256, 3], and its landmarks [468, 2]."""
        ...


class SFace:
    """The network.

    Raises:
        WeightsError: its weights cannot be had.
        UsageError: this OpenCV cannot read them.
    """

    name = NAME

    def __init__(self) -> None:
        self._run = network(NAME)

    def embed(self, crop: Pixels, mesh: NDArray[np.float64]) -> Vector:
        embedding = self._run(five_point_face(crop, mesh))
        return np.asarray(embedding / np.linalg.norm(embedding), np.float64)


def distance(recognizer: Recognizer, before: Pixels, then: Face, after: Pixels, now: Face) -> float:
    """How far a face of the original is from one of the result, 0 to 2; less than LIMIT for one person.

    Args:
        before, after: the photos, uint8 [H, W, 3].
        then, now: the face in each.
    """
    return float(np.linalg.norm(_embedding(recognizer, before, then) - _embedding(recognizer, after, now)))


def _embedding(recognizer: Recognizer, pixels: Pixels, face: Face) -> Vector:
    mesh = align.landmarks468(pixels, face)
    quad = align.ffhq_quad(mesh)
    points = align.transform(align.photo_to_crop(quad, CROP), mesh)
    return recognizer.embed(align.crop(pixels, quad, CROP), points)


def five_point_face(crop: Pixels, mesh: NDArray[np.float64]) -> Pixels:
    """The 112-px input of ArcFace: five points on ARCFACE_POINTS by a similarity transform."""
    fine = 2  # samples a pixel along each axis
    matrix = align.index_matrix(align.similarity(align.five_points(mesh), align.ARCFACE_POINTS * fine))
    size = (ARCFACE_SIDE * fine, ARCFACE_SIDE * fine)
    warped = cv2.warpAffine(crop, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(cv2.resize(warped, (ARCFACE_SIDE, ARCFACE_SIDE), interpolation=cv2.INTER_AREA), np.uint8)


def network(name: str) -> Run:
    """SFace, from its input to an embedding [128] of any length."""
    loaded = read_onnx(name)

    def run(pixels: Pixels) -> Vector:
        loaded.setInput(cv2.dnn.blobFromImage(pixels), "data")  # the file lists its constants as inputs too
        return np.asarray(loaded.forward()[0], np.float64)

    return run


def read_onnx(name: str) -> cv2.dnn.Net:
    """An ONNX network of weights.toml.

    Raises:
        WeightsError: it cannot be had.
        UsageError: this OpenCV cannot read it.
    """
    try:
        return cv2.dnn.readNetFromONNX(str(weights.path(name)))
    except cv2.error as error:
        raise UsageError("this OpenCV cannot read it", "pip install -U opencv-python") from error
