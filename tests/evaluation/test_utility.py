import cv2
import numpy as np
import pytest
from skimage import data

from anonface.evaluation import utility
from anonface.evaluation.judges import Judges
from anonface.evaluation.utility import (
    HEAD,
    HEAD_POINTS,
    Expression,
    Gaze,
    degrees_between,
    gaze_degrees,
    head_rotation,
    openness,
)


def seen_from(yaw, pitch=0.0):
    """68 points of which those of the generic head are where a camera of a 400-px photo sees them."""
    rotation = cv2.Rodrigues(np.radians([pitch, yaw, 0.0]))[0]
    camera = np.array([[400, 0, 200], [0, 400, 200], [0, 0, 1.0]])
    points = np.zeros((68, 2))
    points[HEAD_POINTS] = cv2.projectPoints(HEAD, cv2.Rodrigues(rotation)[0], np.array([0, 0, 1500.0]), camera, None)[
        0
    ][:, 0]
    return points


@pytest.mark.parametrize(("yaw", "pitch"), [(0, 0), (20, 0), (-35, 10), (0, -15)])
def test_the_turn_of_a_head_is_read_from_its_points(yaw, pitch):
    there, straight = (head_rotation(seen_from(*angles), (400, 400)) for angles in ((yaw, pitch), (0, 0)))
    expected = np.degrees(np.linalg.norm(np.radians([pitch, yaw])))
    assert degrees_between(there, straight) == pytest.approx(expected, abs=0.1)
    assert degrees_between(there, there) == pytest.approx(0, abs=1e-6)


def test_openness():
    points = np.zeros((68, 2))
    points[36:42] = [(0, 0), (1, 1), (2, 1), (3, 0), (2, -1), (1, -1)]
    points[42:48] = [(0, 0), (1, 0), (2, 0), (3, 0), (2, 0), (1, 0)]
    points[[60, 62, 64, 66]] = [(0, 0), (2, 2), (4, 0), (2, -1)]
    assert openness(points) == pytest.approx([2 / 3, 0, 3 / 4])
    assert openness(points * 7) == pytest.approx([2 / 3, 0, 3 / 4])


@pytest.fixture(scope="module")
def face():
    judges = Judges(recognizer=object())
    return judges.aligned(data.astronaut(), np.array([175, 65, 95, 130.0]))


def test_gaze_of_a_mirrored_face_is_mirrored(face):
    gaze = Gaze()
    there = gaze.read(face.crop, face.mesh)
    assert there.shape == (2, 2) and np.abs(there).max() < 0.5
    corners = face.mesh.copy()
    corners[:, 0] = 255 - corners[:, 0]
    corners[[33, 133, 362, 263]] = corners[[263, 362, 133, 33]]
    back = gaze.read(np.ascontiguousarray(face.crop[:, ::-1]), corners)
    assert back[::-1] * [-1, 1] == pytest.approx(there, abs=0.02)


def test_an_iris_that_moves_is_seen_to_move(face):
    gaze, moved = Gaze(), face.mesh.copy()
    width = np.linalg.norm(face.mesh[33] - face.mesh[133])
    moved[[33, 133]] += [0.1 * width, 0]  # the corners go right, so the iris lies left of where it was between them
    assert gaze.read(face.crop, moved)[0, 0] - gaze.read(face.crop, face.mesh)[0, 0] == pytest.approx(-0.1, abs=0.05)


def test_a_smile_is_read_as_one(face):
    shares = Expression().read(face.crop)
    assert shares.shape == (7,) and shares.sum() == pytest.approx(1, abs=1e-4)
    assert Expression.NAMES[int(shares.argmax())] == "happy"
    assert Expression.NAMES[int(Expression().read(np.full_like(face.crop, 90)).argmax())] != "happy"


def test_no_judge_here_took_part_in_training():
    assert not Gaze.seen_by_loss and not Expression.seen_by_loss
    assert utility.Gaze.name == "iris-landmarks"


def test_an_iris_a_fifth_of_the_eye_aside_looks_thirty_degrees_there():
    ahead, aside = np.zeros((2, 2)), np.array([[0.2, 0.0], [0.2, 0.0]])
    assert gaze_degrees(ahead, ahead) == 0
    assert gaze_degrees(ahead, aside) == gaze_degrees(aside, ahead) == pytest.approx(30)
    assert gaze_degrees(ahead, np.array([[0.2, 0.0], [0.0, 0.0]])) == pytest.approx(15)
    assert gaze_degrees(aside, -aside) == pytest.approx(60)
