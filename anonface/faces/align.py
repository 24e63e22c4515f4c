"""How a face lies in the photo: dense landmarks, the aligned square, and the way there and back.

A *quad* is a float64 ``[4, 2]`` array of photo coordinates (see :mod:`anonface.faces.detect`): the corners of the
aligned square in the order top-left, bottom-left, bottom-right, top-right. Crop coordinates are continuous too:
0..size over the whole crop, pixel centres at halves.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface import weights
from anonface.faces.detect import Face, Points

Matrix = NDArray[np.float64]

SIZES = (256, 512, 1024)  # the crop sizes that a backend may be asked for
SNAP = 16  # quads are stored in 1/SNAP px
MESH_INPUT = 192  # px, the landmark network's input
MESH_REACH = 1.5  # its square, relative to the face's box

# Rows of the 468-point mesh that lie where the 68-point scheme has its eye contours (36-41 and 42-47: corner, two of
# the upper lid, corner, two of the lower lid) and its mouth corners (48 and 54).
EYE_LEFT = (33, 160, 158, 133, 153, 144)
EYE_RIGHT = (362, 385, 387, 263, 373, 380)
MOUTH_LEFT, MOUTH_RIGHT = 61, 291
NOSE_TIP, FOREHEAD, CHIN = 1, 10, 152
CHEEK_LEFT, CHEEK_RIGHT = 234, 454


class Pose(NamedTuple):
    """Where a head points, in degrees: yaw > 0 to the image's right, pitch > 0 upwards, roll > 0 clockwise."""

    yaw: float
    pitch: float
    roll: float


def square(centre: Points, side: float, angle: float) -> Points:
    """A quad from its centre, its side in pixels and its clockwise turn in radians."""
    half = side / 2 * np.array([math.cos(angle), math.sin(angle)])
    down = np.array([-half[1], half[0]])
    return np.stack([centre - half - down, centre - half + down, centre + half + down, centre + half - down])


def crop_to_photo(quad: Points, size: int) -> Matrix:
    """The affine ``[2, 3]`` matrix from crop coordinates (0..size) to photo coordinates."""
    top_left, bottom_left, _, top_right = quad
    return np.column_stack([(top_right - top_left) / size, (bottom_left - top_left) / size, top_left])


def photo_to_crop(quad: Points, size: int) -> Matrix:
    """The exact inverse of :func:`crop_to_photo`."""
    return np.asarray(cv2.invertAffineTransform(crop_to_photo(quad, size)))


def transform(matrix: Matrix, points: Points) -> Points:
    """Apply an affine ``[2, 3]`` matrix to ``[N, 2]`` points."""
    return points @ matrix[:, :2].T + matrix[:, 2]


def index_matrix(matrix: Matrix) -> Matrix:
    """Restate an affine matrix of continuous coordinates for OpenCV, whose pixel centres lie at whole numbers."""
    shifted = matrix.copy()
    shifted[:, 2] += matrix[:, :2] @ (0.5, 0.5) - 0.5
    return shifted


def side_of(quad: Points) -> float:
    """The mean side length of a quad, in photo pixels."""
    return float(np.linalg.norm(quad - np.roll(quad, -1, axis=0), axis=1).mean())


def crop(rgb: NDArray, quad: Points, size: int) -> NDArray:
    """Cut the quad out of a photo as an upright square.

    Outside the photo its mirror image is seen. When shrinking, every pixel is the mean of at least as many samples as
    it covers photo pixels, so nothing aliases; when enlarging, it is interpolated cubically.

    Args:
        rgb: ``[H, W]`` or ``[H, W, C]``, uint8 or float32.
        quad: ``[4, 2]`` photo coordinates.
        size: side of the result in pixels.

    Returns:
        An array ``[size, size]`` or ``[size, size, C]`` of the same type.
    """
    samples = max(1, math.ceil(side_of(quad) / size - 1e-3))
    fine = size * samples
    matrix = index_matrix(crop_to_photo(quad, fine))
    how = cv2.INTER_CUBIC if samples == 1 else cv2.INTER_LINEAR
    sampled = cv2.warpAffine(
        rgb, matrix, (fine, fine), flags=how | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REFLECT_101
    )
    return sampled if samples == 1 else cv2.resize(sampled, (size, size), interpolation=cv2.INTER_AREA)


def crop_size(quad: Points) -> int:
    """The smallest of SIZES that shows the face with all the detail that the photo has, else the largest."""
    side = side_of(quad)
    return next((size for size in SIZES if side <= size * 1.25), SIZES[-1])


def snap_quad(quad: Points) -> Points:
    """Round a quad to the 1/16 px grid it is stored in; it stays a parallelogram."""
    top_left, bottom_left, _, top_right = np.round(quad * SNAP) / SNAP
    return np.stack([top_left, bottom_left, bottom_left + top_right - top_left, top_right])


@functools.cache
def _mesh_network() -> tuple[cv2.dnn.Net, threading.Lock]:
    return cv2.dnn.readNetFromTFLite(str(weights.path("face-landmarks"))), threading.Lock()


def _mesh_in(rgb: NDArray, quad: Points) -> Points:
    """Run the landmark network on one upright square; returns ``[468, 3]`` in photo pixels."""
    blob = cv2.dnn.blobFromImage(crop(rgb, quad, MESH_INPUT), 1 / 255)
    network, lock = _mesh_network()
    with lock:
        network.setInput(blob)
        mesh = np.asarray(network.forward(), np.float64).reshape(468, 3)
    flat = transform(crop_to_photo(quad, MESH_INPUT), mesh[:, :2])
    return np.column_stack([flat, mesh[:, 2] * side_of(quad) / MESH_INPUT])


def _box_square(face: Face) -> Points:
    x, y, w, h = face.box
    right = face.points[1] - face.points[0]
    return square(np.array([x + w / 2, y + h / 2]), MESH_REACH * max(w, h), math.atan2(right[1], right[0]))


def _mesh_square(mesh: Points) -> Points:
    """The square that the landmarks themselves ask for: upright, around the middle of what they span."""
    right = mesh[list(EYE_RIGHT), :2].mean(0) - mesh[list(EYE_LEFT), :2].mean(0)
    angle = math.atan2(right[1], right[0])
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    upright = mesh[:, :2] @ turn.T
    low, high = upright.min(0), upright.max(0)
    return square((low + high) / 2 @ turn, MESH_REACH * float((high - low).max()), angle)


def mesh468(rgb: NDArray, face: Face) -> Points:
    """Find 468 landmarks with depth.

    The network runs twice, the second time on the square that the first result asks for, so that the outcome depends
    little on the detector's box.

    Args:
        rgb: uint8 ``[H, W, 3]`` photo.
        face: where to look.

    Returns:
        float64 ``[468, 3]``: x, y in photo coordinates and z in photo pixels, smaller z being nearer.
    """
    return _mesh_in(rgb, _mesh_square(_mesh_in(rgb, _box_square(face))))


def landmarks468(rgb: NDArray, face: Face) -> Points:
    """The ``[468, 2]`` photo coordinates of :func:`mesh468`."""
    return mesh468(rgb, face)[:, :2]


def five_points(points: Points) -> Points:
    """Eyes' centres, nose tip and mouth corners ``[5, 2]`` of a 468-point mesh (``[468, 2]`` or ``[468, 3]``)."""
    flat = points[:, :2]
    return np.stack(
        [
            flat[list(EYE_LEFT)].mean(0),
            flat[list(EYE_RIGHT)].mean(0),
            flat[NOSE_TIP],
            flat[MOUTH_LEFT],
            flat[MOUTH_RIGHT],
        ]
    )


def ffhq_quad(points: Points) -> Points:
    """The aligned square of FFHQ (Karras et al. 2019, appendix A) from 468 landmarks.

    Its published formula, from the eyes' centres and the mouth's corners: x is the normalised difference of the eye
    line and the turned eye-to-mouth line, scaled by the larger of 2.0 eye distances and 1.8 eye-to-mouth distances.

    Args:
        points: ``[468, 2]`` (or more columns) photo coordinates.

    Returns:
        The quad, not yet snapped.
    """
    eye_left, eye_right, _, mouth_left, mouth_right = five_points(points)
    eye_middle = (eye_left + eye_right) / 2
    eye_to_eye = eye_right - eye_left
    eye_to_mouth = (mouth_left + mouth_right) / 2 - eye_middle
    x = eye_to_eye - np.array([-eye_to_mouth[1], eye_to_mouth[0]])
    x *= max(np.linalg.norm(eye_to_eye) * 2.0, np.linalg.norm(eye_to_mouth) * 1.8) / np.linalg.norm(x)
    y = np.array([-x[1], x[0]])
    centre = eye_middle + eye_to_mouth * 0.1
    return np.stack([centre - x - y, centre - x + y, centre + x + y, centre + x - y])
