from __future__ import annotations

import itertools
from pathlib import Path

import cv2
import numpy as np
import pytest
import skimage
from PIL import Image, ImageFilter

from anonface.errors import UsageError, WeightsError
from anonface.faces.detect import (
    Face,
    Pixels,
    YuNet,
    _find,
    _merge,
    _scales,
    _spans,
    box_iou,
    build_detector,
    reading_order,
    same_face,
)


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


def test_detections_are_one_face_only_if_boxes_and_points_agree() -> None:
    points = np.array([[30, 40], [70, 40], [50, 60], [35, 80], [65, 80]], float)
    whole, again = Face((0, 0, 100, 100), points, 0.9), Face((6, 4, 96, 104), points + 3, 0.8)
    inner, beside = (
        Face((20, 60, 30, 30), points * 0.3 + (20, 60), 0.7),
        Face((38, 0, 100, 100), np.add(points, (38, 0)), 0.6),
    )
    other = Face((0, 0, 100, 100), points[::-1], 0.5)
    assert _merge([other, inner, beside, again, whole], same_face) == [whole, inner, beside, other]


def synthetic(name: str, box: tuple[int, int, int, int]) -> Pixels:
    """A part of an example photo: somebody who does not exist."""
    picture = cv2.imread(str(Path(__file__).parents[2] / "examples" / name))
    assert picture is not None
    left, top, right, bottom = box
    return np.ascontiguousarray(picture[top:bottom, left:right, ::-1])


@pytest.mark.slow
def test_a_face_over_a_larger_one_is_found_beside_it() -> None:
    """A child, a badge or a picture within the box of a large face: 40 positions and sizes."""
    large = shrunk(synthetic("large.jpg", (0, 0, 1024, 1024)), 320)
    small = synthetic("evening.jpg", (120, 130, 520, 600))
    (behind,) = build_detector().detect(large)
    (alone,) = build_detector().detect(small)
    x, y, w, h = behind.box
    rng = np.random.default_rng(8)
    lost = []
    for number in range(40):
        front = shrunk(small, round(w * rng.uniform(0.14, 0.4)))
        scale = front.shape[1] / small.shape[1]
        left = round(x + rng.uniform(0, w - front.shape[1]))
        top = round(y + rng.uniform(0, h - front.shape[0]))
        photo = large.copy()
        photo[top : top + len(front), left : left + front.shape[1]] = front
        box = (left + alone.box[0] * scale, top + alone.box[1] * scale, alone.box[2] * scale, alone.box[3] * scale)
        wanted = Face(box, alone.points * scale + (left, top), 1.0)
        found = build_detector().detect(photo)
        if not all(any(same_face(face, each) for each in found) for face in (wanted, behind)):
            lost.append((number, left, top, front.shape[1]))
    assert lost == []


def test_a_half_hidden_face_is_found_beside_the_one_before_it() -> None:
    photo = np.zeros((600, 800, 3), np.uint8)
    man = cv2.resize(synthetic("large.jpg", (0, 0, 1024, 1024)), (400, 400))[66:400, 94:372]
    woman = cv2.resize(synthetic("evening.jpg", (0, 0, 640, 640)), (400, 400))[75:400, 95:377]
    photo[150:475, 100:382] = woman
    photo[160:494, 220:498] = man
    found = build_detector().detect(photo)
    assert sorted(face.box[0] > 160 for face in found) == [False, True]


@pytest.mark.parametrize(("pitch", "width", "level", "crossed"), [(24, 4, 20, 1), (16, 3, 235, 1), (38, 12, 25, 0)])
def test_a_face_behind_a_fence_is_found_beside_an_ordinary_one(
    pitch: int, width: int, level: int, crossed: int
) -> None:
    photo = np.full((420, 800, 3), 128, np.uint8)
    photo[10:410, 10:410] = cv2.resize(synthetic("evening.jpg", (0, 0, 640, 640)), (400, 400))
    photo[50:370, 450:770] = cv2.resize(synthetic("large.jpg", (0, 0, 1024, 1024)), (320, 320))
    for at in range(0, 320, pitch):
        photo[50:370, 450 + at : 450 + at + width] = level
        photo[50 + at : 50 + at + width * crossed, 450:770] = level
    assert sorted(face.box[0] > 420 for face in build_detector().detect(photo)) == [False, True]


def found_at(photo: Pixels, box: tuple[float, ...]) -> bool:
    return any(box_iou(face.box, box) > 0.4 for face in build_detector().detect(photo))


def man(side: int) -> tuple[Pixels, tuple[float, ...]]:
    """A picture of a man, and the box of his face."""
    picture = shrunk(synthetic("large.jpg", (0, 0, 1024, 1024)), side)
    (face,) = build_detector().detect(picture)
    return picture, face.box


@pytest.mark.parametrize(("width", "down"), [(0.7, 0.45), (0.7, 0.6), (1.0, 0.45), (1.4, 0.45)])
def test_a_face_behind_a_photo_held_over_its_upper_half(width: float, down: float) -> None:
    """A photo as wide as these shares of the face's box, that ends so far down the box."""
    picture, (x, y, w, h) = man(420)
    held = shrunk(synthetic("evening.jpg", (120, 130, 520, 600)), round(width * w))
    photo = np.full((620, 500, 3), 128, np.uint8)
    photo[180:600, 40:460] = picture
    x, y = x + 40, y + 180
    left, bottom = round(x + (1 - width) / 2 * w), round(y + down * h)
    photo[bottom - len(held) : bottom, left : left + held.shape[1]] = held
    assert found_at(photo, (x, y, w, h))


@pytest.mark.parametrize("shares", [(1 / 3, 1), (1, 1 / 3), (3, 1), (1, 3)])
def test_a_face_drawn_out_three_to_one(shares: tuple[float, float]) -> None:
    picture, (x, y, w, h) = man(330)
    drawn_out = cv2.resize(picture, None, fx=shares[0], fy=shares[1], interpolation=cv2.INTER_AREA)
    box = (x * shares[0], y * shares[1], w * shares[0], h * shares[1])
    assert found_at(np.asarray(drawn_out, np.uint8), box)


@pytest.mark.parametrize(
    ("name", "effect"),
    [("large", ImageFilter.EMBOSS), ("evening", ImageFilter.EMBOSS), ("evening", ImageFilter.FIND_EDGES)],
)
def test_a_face_without_light_and_shade(name: str, effect: ImageFilter.Filter) -> None:
    """Larger than what its fine relief leaves of it in a smaller photo."""
    side = {"large": 1024, "evening": 640}[name]
    picture = cv2.resize(synthetic(f"{name}.jpg", (0, 0, side, side)), (800, 800), interpolation=cv2.INTER_AREA)
    (face,) = build_detector().detect(np.asarray(picture, np.uint8))
    assert found_at(np.array(Image.fromarray(picture).filter(effect)), face.box)


@pytest.mark.parametrize("name", ["large", "evening"])
def test_a_face_in_the_dark(name: str) -> None:
    """At a twentieth of its light, which anybody can turn up again."""
    side = {"large": 1024, "evening": 640}[name]
    picture = shrunk(synthetic(f"{name}.jpg", (0, 0, side, side)), 400)
    (face,) = build_detector().detect(picture)
    assert found_at((picture * 0.05).astype(np.uint8), face.box)


@pytest.mark.parametrize(("pitch", "level", "across"), [(24, 20, 0), (24, 230, 0), (40, 230, 0), (24, 20, 1)])
def test_a_face_behind_bars_as_wide_as_the_gaps_between_them(pitch: int, level: int, across: int) -> None:
    picture, box = man(320)
    barred = picture.transpose(1, 0, 2) if across else picture
    for at in range(0, 320, pitch):
        barred[:, at : at + pitch // 2] = level
    assert found_at(picture, box)


def test_altered_views_show_no_face_where_there_is_none() -> None:
    for name in ("coffee", "rocket", "brick", "page"):
        picture = getattr(skimage.data, name)()
        picture = picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, 2)
        assert build_detector().detect(np.ascontiguousarray(picture)) == [], name


@pytest.mark.parametrize("side", [200, 640, 2400])
def test_a_close_up_beyond_the_frame_is_found_whole(side: int) -> None:
    close = synthetic("evening.jpg", (151, 178, 520, 547))
    found = build_detector().detect(
        np.asarray(cv2.resize(close, (side, side), interpolation=cv2.INTER_CUBIC), np.uint8)
    )
    eyes, mouth = np.array([[0.25, 0.34], [0.68, 0.33]]) * side, np.array([[0.42, 0.8]]) * side
    for face in found:
        x, y, w, h = face.box
        inside = [((p > (x, y)) & (p < (x + w, y + h))).all() for p in (eyes, mouth)]
        if all(inside):
            break
    else:
        pytest.fail(f"no box holds eyes and mouth: {[face.box for face in found]}")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(4000, 3000), (16000, 1600), (8192, 6144), (12000, 8400)])
def test_small_faces_are_found_whatever_the_size_of_the_photo(width: int, height: int) -> None:
    """Of 12 to 100 megapixels; of faces 18 px wide, at the corners, at the borders of tiles, and anywhere."""
    (alone,) = build_detector().detect(large := synthetic("large.jpg", (0, 0, 1024, 1024)))
    small = shrunk(large, round(18 / alone.box[2] * 1024))
    photo = np.full((height, width, 3), 120, np.uint8)
    photo[:, : width // 2] = (90, 110, 130)
    rng = np.random.default_rng(width)
    side = len(small)
    edges = [round((last - 80) / 1.5) - side // 2 for _, last in _spans(-80, round(width * 1.5) + 80)[:3]]
    corners = [(0, 0), (width - side, height - side), *((edge, 400) for edge in edges)]
    corners += [tuple(rng.integers(0, (width - side, height - side), 2).tolist()) for _ in range(6)]
    for left, top in corners:
        photo[top : top + side, left : left + side] = small
    yunet = YuNet()

    def look(view: Pixels) -> list[Face]:  # plain views show nothing; that they are quick keeps this test so
        return yunet._look(view) if np.ptp(view[::8, ::8, 0]) > 60 else []

    found = np.array([middle(each) for each in _find(photo, look)])
    expected = np.array(corners) + middle(alone) * side / 1024
    missed = np.linalg.norm(found[:, None] - expected, axis=2).min(0) > 6
    assert missed.sum() == 0 and len(found) <= len(corners)


def test_reading_order() -> None:
    points = np.zeros((5, 2))
    boxes = [(5.0, 9.0, 1.0, 1.0), (9.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0)]
    assert [face.box for face in reading_order([Face(box, points, 1) for box in boxes])] == boxes[::-1]


@pytest.mark.parametrize("length", [1, 1280, 1281, 3000, 9000])
def test_tiles_cover_and_overlap(length: int) -> None:
    spans = _spans(-80, length)
    assert spans[0][0] == -80 and spans[-1][1] == length
    assert all(before[1] - after[0] >= 160 for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("side", [30, 200, 300, 640, 801, 1600, 4000, 16000])
def test_scales_from_the_whole_photo_to_its_own_size(side: int) -> None:
    scales = _scales(side)
    assert scales[0] == 1.5 and scales[-1] * side <= 200
    assert all(1 < before / after <= 3.76 for before, after in itertools.pairwise(scales))


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
