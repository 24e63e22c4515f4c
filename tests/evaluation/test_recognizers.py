import numpy as np
import pytest
from PIL import Image, ImageFilter
from skimage import data

from anonface.evaluation.recognizers import MIN_OVERLAP, Dlib, Mtcnn, choose

FACE = (175, 65, 95, 130)
"""Where the face of the test photo is, by eye."""


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return np.asarray(data.astronaut())


@pytest.fixture(scope="module")
def dlib() -> Dlib:
    return Dlib()


@pytest.fixture(scope="module")
def mtcnn() -> Mtcnn:
    return Mtcnn()


def test_dlib_sees_the_face(dlib, photo):
    look = dlib.look(photo)
    assert look is not None
    assert choose(look.box[None], FACE) is not None
    assert look.embedding.shape == (128,) and look.points.shape == (68, 2)
    x, y, w, h = FACE
    assert ((look.points > (x - 20, y - 20)) & (look.points < (x + w + 20, y + h + 20))).all()
    left, right = look.points[36:42].mean(0), look.points[42:48].mean(0)
    assert right[0] > left[0] and look.points[8, 1] > left[1]


def test_dlib_knows_the_same_face_again_and_loses_a_blurred_one(dlib, photo):
    original = dlib.look(photo).embedding
    smaller = np.asarray(Image.fromarray(photo).resize((400, 400)))
    assert np.linalg.norm(original - dlib.look(smaller).embedding) < 0.3 < dlib.threshold
    mirrored_pixels = dlib.look(np.ascontiguousarray(photo[:, ::-1])).embedding
    assert 0 < np.linalg.norm(original - mirrored_pixels) < dlib.threshold
    blurred = dlib.look(np.asarray(Image.fromarray(photo).filter(ImageFilter.GaussianBlur(8))))
    assert blurred is None or np.linalg.norm(original - blurred.embedding) > 0.3


def test_dlib_looks_where_it_is_told(dlib, photo):
    assert dlib.look(photo, near=FACE) is not None
    assert dlib.look(photo, near=(300, 300, 100, 130)) is None
    assert dlib.look(np.zeros((200, 200, 3), np.uint8)) is None


def test_dlib_looks_at_a_place_without_finding_a_face_there(dlib, photo):
    look = dlib.look(photo)
    assert (dlib.at(photo, look.box).embedding == look.embedding).all()
    covered = photo.copy()
    x, y, w, h = (int(v) for v in look.box)
    covered[y : y + h, x : x + w] = 0
    assert dlib.look(covered, look.box) is None
    assert np.linalg.norm(dlib.at(covered, look.box).embedding - look.embedding) > dlib.threshold


def test_mtcnn_finds_the_face_at_any_size(mtcnn, photo):
    for side in (512, 300, 150):
        faces = mtcnn.faces(np.asarray(Image.fromarray(photo).resize((side, side), Image.Resampling.BOX)))
        assert choose(np.array([face.box for face in faces]), np.array(FACE) * side / 512) is not None


def test_mtcnn_boxes_are_those_of_the_published_cascade(mtcnn, photo):
    # Reference: the facenet-pytorch 2.6.0 cascade with the same weights, (left, top, right, bottom).
    (face,) = mtcnn.faces(photo)
    x, y, w, h = face.box
    assert (x, y, x + w, y + h) == pytest.approx((181.051, 62.156, 267.747, 172.050), abs=0.01)


def test_mtcnn_gives_five_points_of_the_face(mtcnn, photo):
    (face,) = mtcnn.faces(photo)
    x, y, w, h = face.box
    eyes, nose, mouth = face.points[:2], face.points[2], face.points[3:]
    shares = (face.points - [x, y]) / [w, h]
    assert ((shares > 0.1) & (shares < 0.95)).all()
    assert eyes[0, 0] < nose[0] < eyes[1, 0] and mouth[0, 0] < mouth[1, 0]
    assert eyes[:, 1].max() < nose[1] < mouth[:, 1].min()
    (half,) = mtcnn.faces(np.asarray(Image.fromarray(photo).resize((256, 256), Image.Resampling.BOX)))
    assert half.points * 2 == pytest.approx(face.points, abs=4)


def test_mtcnn_sees_nothing_in_noise_or_in_tiny_photos(mtcnn):
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    assert mtcnn.faces(noise) == mtcnn.faces(noise[:10, :10]) == []


def test_no_judge_took_part_in_training(dlib):
    assert dlib.seen_by_loss is False


def test_choose():
    boxes = np.array([[0, 0, 10, 10], [50, 50, 30, 30], [52, 52, 30, 30]], dtype=float)
    assert choose(boxes, None) is not None and choose(boxes, None)[2] == 30
    assert (choose(boxes, (53, 53, 30, 30)) == boxes[2]).all()
    assert choose(boxes, (20, 20, 10, 10)) is None
    assert choose(np.empty((0, 4)), None) is None
    assert 0 < MIN_OVERLAP < 0.5
