from __future__ import annotations

import dataclasses
import math

import cv2
import numpy as np
import pytest

from anonface.errors import UsageError
from anonface.faces import align
from anonface.faces.detect import Face, Pixels, Points, build_detector
from anonface.faces.locate import check_boxes

TILTED = align.square(np.array([70.0, 60.0]), 50.0, 0.4)


def rectangle(left: float, top: float, side: float) -> Points:
    return align.square(np.array([left + side / 2, top + side / 2]), side, 0.0)


def shift_at_256(quad: Points, other: Points) -> float:
    return float(np.linalg.norm(quad - other, axis=1).mean()) / align.side_of(quad) * 256


def test_square_lists_its_corners_top_left_bottom_left_bottom_right_top_right() -> None:
    assert np.allclose(rectangle(10, 20, 30), [[10, 20], [10, 50], [40, 50], [40, 20]])


def test_the_way_there_and_back() -> None:
    points = np.array([[0.0, 0.0], [256.0, 256.0], [31.5, 200.25]])
    there = align.transform(align.crop_to_photo(TILTED, 256), points)
    assert np.allclose(there[:2], TILTED[[0, 2]])
    assert np.allclose(align.transform(align.photo_to_crop(TILTED, 256), there), points)


def test_a_crop_on_the_pixel_grid_is_the_pixels() -> None:
    photo = np.random.default_rng(1).integers(0, 256, (90, 80, 3), np.uint8)
    assert np.array_equal(align.crop(photo, rectangle(13, 7, 64), 64), photo[7:71, 13:77])


def test_shrinking_takes_the_mean() -> None:
    photo = np.random.default_rng(2).integers(0, 256, (256, 256, 3), np.uint8)
    means = photo.reshape(64, 4, 64, 4, 3).mean((1, 3))
    assert np.abs(align.crop(photo, rectangle(0, 0, 256), 64) - means).max() <= 1


def test_shrinking_does_not_alias() -> None:
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[:, ::2] = 255
    shrunk = align.crop(stripes, align.square(np.array([200.0, 200.0]), 250.0, 0.1), 100)
    assert np.abs(shrunk.astype(int) - 127).max() < 30


def test_beyond_the_photo_lies_its_mirror_image() -> None:
    photo = np.random.default_rng(3).integers(0, 256, (40, 40), np.uint8)
    beyond = align.crop(photo, rectangle(-20, 0, 40), 40)
    assert np.array_equal(beyond[:, 20:], photo[:, :20])
    assert np.array_equal(beyond[:, :20], photo[:, 20:0:-1])


@pytest.mark.parametrize(
    ("side", "size"), [(90, 128), (160, 128), (161, 256), (320, 256), (321, 512), (700, 1024), (3000, 1024)]
)
def test_the_crop_size_follows_the_face(side: int, size: int) -> None:
    assert align.crop_size(rectangle(0, 0, side)) == size


def test_snapping() -> None:
    snapped = align.snap_quad(TILTED)
    assert np.array_equal(snapped * 16, np.round(snapped * 16))
    assert np.array_equal(align.snap_quad(snapped), snapped)
    assert np.abs(snapped - TILTED).max() < 0.1
    assert np.array_equal(snapped[0] + snapped[2], snapped[1] + snapped[3])


def drawn_mesh() -> Points:
    """A mesh that is right where the alignment looks: eyes 60 px apart, the mouth 70 px below."""
    mesh = np.zeros((468, 3))
    mesh[align.EYE_LEFT, :2], mesh[align.EYE_RIGHT, :2] = (100, 100), (160, 100)
    mesh[align.MOUTH_LEFT, :2], mesh[align.MOUTH_RIGHT, :2] = (110, 170), (150, 170)
    return mesh


def test_ffhq_quad_by_hand() -> None:
    # Eyes 57.9 px apart around (130, 100.7), the mouth 69.3 px below: x = (57.9, 0) + (69.3, 0), scaled to
    # max(2 * 57.9, 1.8 * 69.3) = 124.74; centre = (130, 100.7) + 0.1 * (0, 69.3).
    left, top, right, bottom = 130 - 124.74, 107.63 - 124.74, 130 + 124.74, 107.63 + 124.74
    assert np.allclose(align.ffhq_quad(drawn_mesh()), [[left, top], [left, bottom], [right, bottom], [right, top]])


def test_ffhq_quad_turns_with_the_face() -> None:
    turn = np.array([[math.cos(0.5), -math.sin(0.5), 30], [math.sin(0.5), math.cos(0.5), -8]]) * (2, 2, 1)
    mesh = drawn_mesh()[:, :2]
    assert np.allclose(align.ffhq_quad(align.transform(turn, mesh)), align.transform(turn, align.ffhq_quad(mesh)))


def test_landmarks_meet_the_detector_and_the_crop_is_centred(face: Face, mesh: Points) -> None:
    quad = align.ffhq_quad(mesh)
    points = align.five_points(mesh)
    assert np.linalg.norm(points - face.points, axis=1).mean() < 0.04 * align.side_of(quad)
    in_crop = align.transform(align.photo_to_crop(quad, 1), points)
    assert np.allclose(in_crop[:2], [[0.38, 0.47], [0.62, 0.47]], atol=0.03)


def test_the_quad_depends_little_on_the_box(portrait: Pixels, face: Face, mesh: Points) -> None:
    x, y, w, h = face.box
    moved = dataclasses.replace(face, box=(x + 0.06 * w, y - 0.05 * h, w * 0.93, h * 1.06))
    assert shift_at_256(align.ffhq_quad(mesh), align.ffhq_quad(align.mesh468(portrait, moved))) < 1.5


def test_the_quad_survives_jpeg(portrait: Pixels, mesh: Points) -> None:
    _, encoded = cv2.imencode(".jpg", portrait, [cv2.IMWRITE_JPEG_QUALITY, 75])
    decoded = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), np.uint8)
    (found,) = build_detector().detect(decoded)
    assert shift_at_256(align.ffhq_quad(mesh), align.ffhq_quad(align.mesh468(decoded, found))) < 1.5


def test_a_box_alone_is_enough(portrait: Pixels, face: Face) -> None:
    given = align.box_face(portrait, face.box)
    assert np.linalg.norm(given.points - face.points, axis=1).mean() < 0.06 * face.box[2]
    assert align.obstacle(given, align.mesh468(portrait, given), portrait.shape) is None


@pytest.mark.parametrize("box", [(10, 10, 0, 40), (-500, 10, 40, 40), (10, 10, math.nan, 40)])
def test_useless_boxes(portrait: Pixels, box: tuple[float, float, float, float]) -> None:
    with pytest.raises(UsageError):
        check_boxes([box], portrait.shape)


def test_pose_of_mirrored_and_turned_heads(portrait: Pixels, mesh: Points) -> None:
    pose = align.head_pose(mesh)
    assert abs(pose.yaw) < 25 and abs(pose.pitch) < 25
    mirrored = np.ascontiguousarray(portrait[:, ::-1])
    (found,) = build_detector().detect(mirrored)
    other = align.head_pose(align.mesh468(mirrored, found))
    assert other.yaw == pytest.approx(-pose.yaw, abs=4) and other.roll == pytest.approx(-pose.roll, abs=3)
    turned = cv2.warpAffine(portrait, cv2.getRotationMatrix2D(tuple(mesh[1, :2]), -20, 1), (512, 512))
    (found,) = build_detector().detect(np.asarray(turned, np.uint8))
    assert align.head_pose(align.mesh468(turned, found)).roll == pytest.approx(pose.roll + 20, abs=4)


def test_what_cannot_be_synthesised(portrait: Pixels, face: Face, mesh: Points) -> None:
    shape = portrait.shape
    assert align.obstacle(face, mesh, shape) is None
    assert "small" in str(align.obstacle(face, mesh * 0.2, shape))
    assert "cut off" in str(align.obstacle(face, mesh, (shape[0], int(mesh[1, 0]))))
    stray = dataclasses.replace(face, points=face.points + 0.5 * face.box[2])
    assert "landmarks" in str(align.obstacle(stray, mesh, shape))
    angle = math.radians(65)
    centre = mesh[1]
    turn = np.array([[math.cos(angle), 0, -math.sin(angle)], [0, 1, 0], [math.sin(angle), 0, math.cos(angle)]])
    sideways = (mesh - centre) @ turn.T * 3 + centre
    assert "turned" in str(align.obstacle(face, sideways, (9000, 9000)))


def test_the_cover_contains_the_outline(face: Face, mesh: Points) -> None:
    in_cover = align.transform(align.photo_to_crop(align.cover_quad(face), 2), mesh[align.OVAL, :2])
    assert (np.linalg.norm(in_cover - 1, axis=1) < 1).all()
