"""Head rotation, openness of eyes and mouth, gaze and expression. No network here was in a training loss."""

from __future__ import annotations

from typing import ClassVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from anonface import weights
from anonface.models.graph import Graph

Points = NDArray[np.float64]

# Points of a generic head (x right, y down, z away from the camera, any unit) and their indices among 68 landmarks:
# tip of the nose, chin, outer corners of the eyes, corners of the mouth.
HEAD = np.array(
    [[0, 0, 0], [0, 330, 65], [-225, -170, 135], [225, -170, 135], [-150, 150, 125], [150, 150, 125]], float
)
HEAD_POINTS = [30, 8, 36, 45, 48, 54]
EYELIDS = ((36, 37, 38, 39, 40, 41), (42, 43, 44, 45, 46, 47))
LIPS = (60, 62, 64, 66)  # inner corner, upper, inner corner, lower

EYE_CORNERS = ((33, 133), (362, 263))  # of the 468 points: the eye on the picture's left, then the other
EYE_REACH, EYE_SIDE = 2.3, 64  # side of the iris network's input, in widths of an eye and in px
EYE_WIDTH_IN_RADII = 30 / 12  # mm between an eye's corners over mm of its ball's radius, of an average adult
MOUTH_AND_BROWS = (64, 52, 152)  # top, left, side of the expression network's input in a 256-px FFHQ crop


def head_rotation(points: Points, shape: tuple[int, ...]) -> Points:
    """Rotation [3, 3] of a head from its 68 landmarks [68, 2] in a photo of shape (H, W, ...), by a pinhole camera."""
    height, width = shape[:2]
    camera = np.array([[max(height, width), 0, width / 2], [0, max(height, width), height / 2], [0, 0, 1]], float)
    _, rotation, _ = cv2.solvePnP(HEAD, points[HEAD_POINTS], camera, None, flags=cv2.SOLVEPNP_SQPNP)
    return np.asarray(cv2.Rodrigues(rotation)[0], np.float64)


def degrees_between(a: Points, b: Points) -> float:
    """Degrees between two rotations [3, 3]."""
    return float(np.degrees(np.linalg.norm(cv2.Rodrigues(a @ b.T)[0])))


def openness(points: Points) -> Points:
    """Height over width [3] of the left eye, the right eye and the mouth in the picture, from 68 landmarks."""
    lids = [points[list(rows)] for rows in EYELIDS]
    eyes = [(_length(p[1] - p[5]) + _length(p[2] - p[4])) / (2 * _length(p[0] - p[3])) for p in lids]
    left, upper, right, lower = points[list(LIPS)]
    return np.array([*eyes, _length(upper - lower) / _length(left - right)])


def gaze_degrees(a: Points, b: Points) -> float:
    """Degrees between two gazes, mean of both eyes, from irises [2, 2] as :meth:`Gaze.read` gives them.

    An iris that lies d eye widths beside the middle of its eye looks asin(d * 30 mm / 12 mm) to that side.
    """
    directions = []
    for irises in (a, b):
        across = np.clip(EYE_WIDTH_IN_RADII * irises, -0.7, 0.7)  # no farther than 45 degrees each way
        directions.append(np.column_stack([across, np.sqrt(1 - (across**2).sum(1))]))
    return float(np.degrees(np.arccos(np.clip((directions[0] * directions[1]).sum(1), -1, 1))).mean())


class Gaze:
    """MediaPipe's iris network.

    Raises:
        WeightsError: its weights cannot be had.
    """

    name: ClassVar[str] = "iris-landmarks"
    seen_by_loss: ClassVar[bool] = False

    def __init__(self) -> None:
        graph = weights.graph(self.name)
        self._iris = Graph(graph, graph.outputs[1]).eval()  # the first output is the eye's contour

    def read(self, crop: NDArray[np.uint8], mesh: Points) -> Points:
        """Positions of the irises in an aligned face.

        Args:
            crop: uint8 [R, R, 3].
            mesh: [468, 2] landmarks in its pixels.

        Returns:
            [2, 2], from the midpoint of an eye's corners, x along them, in widths of that eye.
        """
        return np.array([self._of_eye(crop, mesh[list(corners)], i == 1) for i, corners in enumerate(EYE_CORNERS)])

    @torch.inference_mode()
    def _of_eye(self, crop: NDArray[np.uint8], corners: Points, mirrored: bool) -> Points:
        """The network knows left eyes only; the other eye is mirrored."""
        axis, middle = corners[1] - corners[0], corners.mean(0)
        width = max(_length(axis), 1.0)
        scale, half = EYE_SIDE / (EYE_REACH * width), (EYE_SIDE - 1) / 2
        to_view = np.array([[scale, 0, half - scale * middle[0]], [0, scale, half - scale * middle[1]]])
        view = cv2.warpAffine(crop, to_view, (EYE_SIDE, EYE_SIDE), flags=cv2.INTER_LINEAR)
        view = view[:, ::-1].copy() if mirrored else view
        x, y = self._iris(torch.from_numpy(view).permute(2, 0, 1)[None].float() / 255).reshape(-1, 3)[0, :2].tolist()
        offset = np.array([half - x if mirrored else x - half, y - half]) / scale
        return np.array([offset @ axis, offset @ [-axis[1], axis[0]]]) / width**2


class Expression:
    """``emotion``: one of seven expressions.

    Raises:
        WeightsError: its weights cannot be had.
    """

    name: ClassVar[str] = "emotion"
    seen_by_loss: ClassVar[bool] = False
    NAMES: ClassVar[tuple[str, ...]] = ("angry", "disgusted", "afraid", "happy", "sad", "surprised", "neutral")
    SIDE: ClassVar[int] = 64  # px, grey, pixels in -1..1

    def __init__(self) -> None:
        self._network = Graph(weights.graph(self.name)).eval()

    @torch.inference_mode()
    def read(self, crop: NDArray[np.uint8]) -> Points:
        """Probabilities [7], in the order of NAMES, for an FFHQ-aligned face, uint8 [256, 256, 3]."""
        top, left, side = MOUTH_AND_BROWS
        face = cv2.cvtColor(crop[top : top + side, left : left + side], cv2.COLOR_RGB2GRAY)
        view = cv2.resize(face, (self.SIDE, self.SIDE), interpolation=cv2.INTER_AREA)
        return self._network(torch.from_numpy(view)[None, None].float() / 127.5 - 1)[0].double().numpy()


def _length(vector: Points) -> float:
    return float(np.hypot(*vector))
