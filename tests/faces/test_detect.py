from __future__ import annotations

import itertools

import cv2
import numpy as np
import pytest

from anonface.errors import UsageError, WeightsError
from anonface.faces.detect import Face, Pixels, YuNet, _merge, _spans, build_detector, reading_order


def middle(face: Face) -> np.ndarray:
    x, y, w, h = face.box
    return np.array([x + w / 2, y + h / 2])


def shrunk(picture: Pixels, width: int) -> Pixels:
    height = round(picture.shape[0] * width / picture.shape[1])
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def test_points_lie_in_the_box_in_their_order(face: Face) -> None:
    x, y, w, h = face.box
    assert ((face.points > (x, y)) & (face.points < (x + w, y + h))).all()
    left, right, nose, mouth_left, mouth_right = face.points
    assert left[0] < nose[0] < right[0] and mouth_left[0] < mouth_right[0]
    assert max(left[1], right[1]) < nose[1] < min(mouth_left[1], mouth_right[1])


def test_the_same_photo_gives_the_same_faces(portrait: Pixels, face: Face) -> None:
    (again,) = build_detector().detect(portrait)
    assert again.box == face.box and np.array_equal(again.points, face.points)


def test_opencv_is_silent_and_afterwards_as_loud_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    level = cv2.utils.logging.getLogLevel()
    loud = cv2.utils.logging.LOG_LEVEL_WARNING
    try:
        cv2.utils.logging.setLogLevel(loud)
        YuNet().detect(np.full((64, 64, 3), 128, np.uint8))
        assert cv2.utils.logging.getLogLevel() == loud and capfd.readouterr() == ("", "")
    finally:
        cv2.utils.logging.setLogLevel(level)


def test_small_faces_in_a_large_photo_and_their_order(portrait: Pixels, face: Face) -> None:
    photo = np.full((3000, 4000, 3), 120, np.uint8)
    width = 110  # of the portrait; its face is then about 20 px wide
    small = shrunk(portrait, width)
    corners = [(2500, 40), (60, 1500), (1270, 1500), (3880, 2880)]  # one across the border of two tiles
    for left, top in corners:
        photo[top : top + len(small), left : left + width] = small
    found = build_detector().detect(photo)
    expected = np.array(corners) + middle(face) * width / portrait.shape[1]
    assert len(found) == len(corners)
    middles = np.array([middle(each) for each in found])
    assert np.linalg.norm(middles[:, None] - expected, axis=2).min(0).max() < 6
    assert found == sorted(found, key=lambda each: (each.box[1], each.box[0]))


def test_a_face_that_fills_a_large_photo_is_one_face(portrait: Pixels, face: Face) -> None:
    x, y, w, h = (round(value) for value in face.box)
    close = portrait[y - h // 8 : y + h, x - w // 8 : x + w + w // 8]
    large = cv2.resize(close, None, fx=18, fy=18, interpolation=cv2.INTER_CUBIC)
    (found,) = build_detector().detect(np.asarray(large, np.uint8))
    assert found.box[2] > 0.6 * large.shape[1]


def test_a_face_cut_by_the_border(portrait: Pixels, face: Face) -> None:
    nose = round(face.points[2, 0])
    cut = np.ascontiguousarray(portrait[:, nose - round(face.box[2] * 0.25) :])
    (found,) = build_detector().detect(cut)
    assert found.box[0] < 2


@pytest.mark.parametrize("angle", [45, 90, 150, 180, 270])
def test_turned_faces_are_found_as_they_lie(portrait: Pixels, face: Face, angle: int) -> None:
    matrix = cv2.getRotationMatrix2D((255.5, 255.5), angle, 0.7)
    turned = cv2.warpAffine(portrait, matrix, (512, 512), borderMode=cv2.BORDER_REPLICATE)
    (found,) = build_detector().detect(np.asarray(turned, np.uint8))
    expected = (face.points - 0.5) @ matrix[:, :2].T + matrix[:, 2] + 0.5
    assert np.linalg.norm(found.points - expected, axis=1).mean() < 0.12 * 0.7 * face.box[2]


def test_a_photo_without_faces() -> None:
    assert build_detector().detect(np.zeros((40, 5, 3), np.uint8)) == []


def test_overlapping_detections_merge_to_the_best() -> None:
    points = np.zeros((5, 2))
    whole, part, other = (
        Face((0, 0, 100, 100), points, 0.9),
        Face((20, 60, 30, 30), points, 0.8),
        Face((90, 0, 100, 100), points, 0.7),
    )
    assert _merge([part, other, whole]) == [whole, other]


def test_reading_order() -> None:
    points = np.zeros((5, 2))
    boxes = [(5.0, 9.0, 1.0, 1.0), (9.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0)]
    assert [face.box for face in reading_order([Face(box, points, 1) for box in boxes])] == boxes[::-1]


@pytest.mark.parametrize("length", [1, 1280, 1281, 3000, 9000])
def test_tiles_cover_and_overlap(length: int) -> None:
    spans = _spans(length)
    assert spans[0][0] == 0 and spans[-1][1] == length
    assert all(before[1] - after[0] >= 256 for before, after in itertools.pairwise(spans))


def test_unknown_detector() -> None:
    with pytest.raises(UsageError, match="haar"):
        build_detector("haar")


def test_retinaface_agrees_with_yunet(portrait: Pixels, face: Face) -> None:
    try:
        detector = build_detector("retinaface")
    except WeightsError as error:
        pytest.skip(str(error))
    (found,) = detector.detect(portrait)
    assert np.linalg.norm(found.points - face.points, axis=1).mean() < 0.06 * face.box[2]
    assert found.box[2] == pytest.approx(face.box[2], rel=0.15)
