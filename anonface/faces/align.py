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
from anonface.faces.detect import Face, Pixels, Points

Matrix = NDArray[np.float64]

SIZES = (128, 256, 512, 1024)  # the crop sizes that a backend may be asked for
SNAP = 16  # quads are stored in 1/SNAP px
MESH_INPUT = 192  # px, the landmark network's input
MESH_REACH = 1.5  # its square, relative to the face's box
# The landmarks are the mean over views of slightly different reach and turn (radians): the network's small errors
# depend on how the face lies on its pixel grid, and a mean over three lies twice as still as one of them.
VIEWS = ((MESH_REACH, 0.0), (1.4, 0.06), (1.65, -0.06))

# Rows of the 468-point mesh that lie where the 68-point scheme has its eye contours (36-41 and 42-47: corner, two of
# the upper lid, corner, two of the lower lid) and its mouth corners (48 and 54).
EYE_LEFT = [33, 160, 158, 133, 153, 144]
EYE_RIGHT = [362, 385, 387, 263, 373, 380]
MOUTH_LEFT, MOUTH_RIGHT = 61, 291
# The mesh's eye contours reach farther out and lie a little higher than those of the 68-point scheme: the distance
# between the eyes shrinks to EYE_REACH of itself and they sink by EYE_DROP of the way to the mouth. So aligned, faces
# of an FFHQ generator have quads that are, in the median, their whole picture.
EYE_REACH, EYE_DROP = 0.965, 0.01
NOSE_TIP, FOREHEAD, CHIN = 1, 10, 152
CHEEK_LEFT, CHEEK_RIGHT = 234, 454
# The face's outline, clockwise in the image from the top of the forehead.
OVAL = [10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377]
OVAL += [152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109]

# The rims of the eyes, 16 rows each, and the outer rim of the lips.
BROWS = [70, 63, 105, 66, 107, 55, 65, 52, 53, 46, 300, 293, 334, 296, 336, 285, 295, 282, 283, 276]
EYES = [33, 7, 163, 144, 145, 153, 154, 155, 133, 173, 157, 158, 159, 160, 161, 246]
EYES += [362, 382, 381, 380, 374, 373, 390, 249, 263, 466, 388, 387, 386, 385, 384, 398]
LIPS = [61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185]
NOSE = [168, 6, 197, 195, 5, 4, 1, 2, 98, 327, 129, 358, 48, 278]

# What can be synthesised. Below 16 px between the eyes' centres the quad wanders by more than 2 px of a 256-px crop.
# Beyond the turns below so little of the far side is seen that what the generator draws there is no natural face
# (the mesh flattens profiles: 55 degrees by its depth are some 65 in truth).
LEAST_EYE_DISTANCE = 16.0
MOST_YAW, MOST_PITCH = 40.0, 40.0
LEAST_INSIDE = 0.6  # share of the face's outline within the photo
MOST_DISSENT = 0.075  # mean distance of the mesh from the detector's five points, in sides of the quad
LEVEL_PITCH = -11.0  # degrees: the lean of a level face's forehead-to-chin line, by the mesh's depth
COVER_WIDTH, COVER_HEIGHT, COVER_RISE = 1.5, 1.5, 0.04  # of the ellipse that hides a face, in its box's measures
# Eyes, nose tip and mouth corners in the 112-px face that InsightFace's training data, and all that followed, show.
ARCFACE_POINTS = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
BESIDE = 0.3  # of a named box: how far from where they are expected landmarks may lie in the mean
# Where the five points lie in an upright frontal face's box, as shares of its width and height.
BOX_POINTS = np.array([[0.31, 0.41], [0.69, 0.41], [0.50, 0.59], [0.34, 0.77], [0.66, 0.77]])


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
    return inverted(crop_to_photo(quad, size))


def transform(matrix: Matrix, points: Points) -> Points:
    """Apply an affine ``[2, 3]`` matrix to ``[N, 2]`` points."""
    return points @ matrix[:, :2].T + matrix[:, 2]


def inverted(matrix: Matrix) -> Matrix:
    """The way back of an affine matrix."""
    return np.asarray(cv2.invertAffineTransform(matrix))


def similarity(points: Points, targets: Points) -> Matrix:
    """The turn, scale and shift ``[2, 3]`` that brings points ``[n, 2]`` nearest to targets, by least squares."""
    z, w = points @ (1, 1j), targets @ (1, 1j)
    z0, w0 = z.mean(), w.mean()
    a = np.vdot(z - z0, w - w0) / np.vdot(z - z0, z - z0).real
    b = w0 - a * z0
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


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


def cover_quad(face: Face) -> Points:
    """The rectangle whose inscribed ellipse hides a face that is not synthesised, from the hair's edge to the chin."""
    x, y, w, h = face.box
    half = np.array([COVER_WIDTH * w, COVER_HEIGHT * h]) / 2
    centre = np.array([x + w / 2, y + h / 2 - COVER_RISE * h])
    return centre + half * [(-1, -1), (-1, 1), (1, 1), (1, -1)]


def snap_quad(quad: Points) -> Points:
    """Round a quad to the 1/16 px grid it is stored in; it stays a parallelogram."""
    top_left, bottom_left, _, top_right = np.round(quad * SNAP) / SNAP
    return np.stack([top_left, bottom_left, bottom_left + top_right - top_left, top_right])


@functools.cache
def _mesh_network() -> tuple[cv2.dnn.Net, threading.Lock]:
    return cv2.dnn.readNetFromTFLite(str(weights.path("landmarks"))), threading.Lock()


def _mesh_in(rgb: NDArray, quad: Points) -> Points:
    """Run the landmark network on one upright square; returns ``[468, 3]`` in photo pixels."""
    blob = cv2.dnn.blobFromImage(crop(rgb, quad, MESH_INPUT), 1 / 255)
    network, lock = _mesh_network()
    with lock:
        network.setInput(blob)
        mesh = np.asarray(network.forward(), np.float64).reshape(468, 3)
    flat = transform(crop_to_photo(quad, MESH_INPUT), mesh[:, :2] + 0.5)  # the network counts from pixel centres
    return np.column_stack([flat, mesh[:, 2] * side_of(quad) / MESH_INPUT])


def _box_square(face: Face) -> Points:
    x, y, w, h = face.box
    right = face.points[1] - face.points[0]
    return square(np.array([x + w / 2, y + h / 2]), MESH_REACH * max(w, h), math.atan2(right[1], right[0]))


def _mesh_square(mesh: Points, reach: float = MESH_REACH, turn: float = 0.0) -> Points:
    """The square that the landmarks themselves ask for: upright but for ``turn``, around the middle of their span."""
    right = mesh[EYE_RIGHT, :2].mean(0) - mesh[EYE_LEFT, :2].mean(0)
    angle = math.atan2(right[1], right[0])
    upright = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    spread = mesh[:, :2] @ upright.T
    low, high = spread.min(0), spread.max(0)
    return square((low + high) / 2 @ upright, reach * float((high - low).max()), angle + turn)


def mesh468(rgb: NDArray, face: Face) -> Points:
    """Find 468 landmarks with depth.

    The network looks three times, each time on the square that the result before asks for, so that the outcome
    depends little on the detector's box; then the mean over VIEWS is taken.

    Args:
        rgb: uint8 ``[H, W, 3]`` photo.
        face: where to look.

    Returns:
        float64 ``[468, 3]``: x, y in photo coordinates and z in photo pixels, smaller z being nearer.
    """
    mesh = _mesh_in(rgb, _box_square(face))
    for _ in range(2):
        mesh = _mesh_in(rgb, _mesh_square(mesh))
    return np.mean([_mesh_in(rgb, _mesh_square(mesh, reach, turn)) for reach, turn in VIEWS], axis=0)


def landmarks468(rgb: NDArray, face: Face) -> Points:
    """The ``[468, 2]`` photo coordinates of :func:`mesh468`."""
    return mesh468(rgb, face)[:, :2]


def five_points(points: Points) -> Points:
    """Eyes' centres, nose tip and mouth corners ``[5, 2]`` of a 468-point mesh (``[468, 2]`` or ``[468, 3]``)."""
    flat = points[:, :2]
    return np.stack(
        [
            flat[EYE_LEFT].mean(0),
            flat[EYE_RIGHT].mean(0),
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
    mouth = (mouth_left + mouth_right) / 2
    eye_middle = (eye_left + eye_right) / 2 * (1 - EYE_DROP) + mouth * EYE_DROP
    eye_to_eye = (eye_right - eye_left) * EYE_REACH
    eye_to_mouth = mouth - eye_middle
    x = eye_to_eye - np.array([-eye_to_mouth[1], eye_to_mouth[0]])
    x *= max(np.linalg.norm(eye_to_eye) * 2.0, np.linalg.norm(eye_to_mouth) * 1.8) / np.linalg.norm(x)
    y = np.array([-x[1], x[0]])
    centre = eye_middle + eye_to_mouth * 0.1
    return np.stack([centre - x - y, centre - x + y, centre + x + y, centre + x - y])


def box_face(rgb: Pixels, box: tuple[float, float, float, float]) -> Face:
    """Make a face of a box alone, for a face that no detector sees.

    Args:
        rgb: the photo.
        box: ``(x, y, w, h)`` in photo coordinates, from the forehead to the chin of a more or less upright face.

    Returns:
        A face whose five points were found inside the box by the landmark network, or are where a face in such a box
        has them if it found those of a face beside it.
    """
    x, y, w, h = box
    guess = Face(box, BOX_POINTS * (w, h) + (x, y), 1.0)
    points = five_points(mesh468(rgb, guess))
    beside = np.abs(points.mean(0) - guess.points.mean(0)) > BESIDE * np.array([w, h])
    return guess if beside.any() else Face(box, points, 1.0)  # the landmarks of a face beside it are not its own


def head_pose(mesh: Points) -> Pose:
    """Estimate where the head points from a ``[468, 3]`` mesh."""
    across = mesh[EYE_RIGHT].mean(0) - mesh[EYE_LEFT].mean(0)
    wide = across + mesh[MOUTH_RIGHT] - mesh[MOUTH_LEFT] + mesh[CHEEK_RIGHT] - mesh[CHEEK_LEFT]
    x, y, z = np.cross(mesh[CHIN] - mesh[FOREHEAD], wide)  # out of the face; z points away from the camera
    yaw = math.degrees(math.atan2(x, -z))
    pitch = math.degrees(math.atan2(-y, math.hypot(x, z))) - LEVEL_PITCH
    return Pose(yaw, pitch, math.degrees(math.atan2(across[1], across[0])))


def obstacle(face: Face, mesh: Points, shape: tuple[int, ...]) -> str | None:
    """Say why a face cannot be synthesised.

    Args:
        face: as detected.
        mesh: its ``[468, 3]`` landmarks.
        shape: the photo's ``(H, W, ...)``.

    Returns:
        The reason in a few words, or None when nothing stands in the way.
    """
    points = five_points(mesh)
    eyes = float(np.linalg.norm(points[1] - points[0]))
    if eyes < LEAST_EYE_DISTANCE:
        return f"too small: {eyes:.0f} px between the eyes, {LEAST_EYE_DISTANCE:.0f} needed"
    pose = head_pose(mesh)
    if abs(pose.yaw) > MOST_YAW or abs(pose.pitch) > MOST_PITCH:
        return f"too turned: yaw {pose.yaw:.0f}, pitch {pose.pitch:.0f} degrees"
    outline = mesh[OVAL, :2]
    inside = ((outline >= 0) & (outline < (shape[1], shape[0]))).all(1).mean()
    if inside < LEAST_INSIDE:
        return f"cut off: {inside:.0%} of its outline lies in the photo"
    dissent = np.linalg.norm(points - face.points, axis=1).mean() / side_of(ffhq_quad(mesh))
    return "no clear landmarks" if dissent > MOST_DISSENT else None
