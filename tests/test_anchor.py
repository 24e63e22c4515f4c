"""The anchor: a square's corners in the last bits of the face that was put there."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from anonface import anchor
from anonface.faces import align
from anonface.keys import CONSISTENT_SALT, FaceKey, Key

QUAD = align.snap_quad(np.array([[60.3, 40.1], [52.7, 180.9], [193.5, 188.5], [201.1, 47.7]]))


def face_key(seed: int = 1) -> FaceKey:
    return Key.from_bytes(bytes([seed]) * 32).face(CONSISTENT_SALT, "diffusion", 0)


@pytest.fixture
def photo() -> np.ndarray:
    smooth = cv2.resize(np.random.default_rng(3).integers(0, 256, (12, 15, 3)).astype(np.uint8), (300, 240))
    smooth[:100, :150] //= 8  # some of it black, where a step down would wrap around
    return smooth


def quads_in(photo: np.ndarray, nonced: bool = False) -> list[np.ndarray]:
    return [found.quad for found in anchor.search(photo, face_key(), nonced)]


def everywhere(photo: np.ndarray) -> np.ndarray:
    return np.ones(photo.shape[:2], bool)


def test_what_was_dropped_is_found_again(photo):
    anchored = anchor.drop(photo, QUAD, everywhere(photo), face_key())
    (said,) = anchor.search(anchored, face_key())
    assert np.array_equal(said.quad, QUAD) and said.nonce == b""


def test_all_anchors_of_a_photo_are_found(photo):
    wide = np.concatenate([photo, photo[::-1]], 1)
    quads = [align.snap_quad(QUAD + np.array([300, 30])), QUAD]
    anchored = wide
    for quad in quads:
        anchored = anchor.drop(anchored, quad, everywhere(wide), face_key())
    assert np.array_equal(quads_in(anchored), quads[::-1])


def test_a_wrong_key_an_untouched_photo_and_a_jpeg_say_nothing(photo):
    anchored = anchor.drop(photo, QUAD, everywhere(photo), face_key())
    assert anchor.search(anchored, face_key(2)) == []
    assert anchor.search(photo, face_key()) == []
    lossy = cv2.imdecode(cv2.imencode(".jpg", anchored, [cv2.IMWRITE_JPEG_QUALITY, 95])[1], cv2.IMREAD_COLOR)
    assert anchor.search(lossy, face_key()) == []


def test_only_the_blue_of_changed_pixels_moves_and_by_one(photo):
    changed = np.zeros(photo.shape[:2], bool)
    changed[90:150, 90:150] = True
    anchored = anchor.drop(photo, QUAD, changed, face_key())
    moved = anchored.astype(int) - photo
    assert not moved[~changed].any() and not moved[..., :2].any()
    assert abs(moved).max() == 1 and 0.4 < (moved[changed][:, 2] != 0).mean() < 0.6
    assert np.array_equal(quads_in(anchored), [QUAD])


def test_a_grey_photo_stays_grey(photo):
    grey = np.repeat(photo[..., :1], 3, 2)
    anchored = anchor.drop(grey, QUAD, everywhere(photo), face_key())
    assert (anchored == anchored[..., :1]).all() and not np.array_equal(anchored, grey)
    assert len(anchor.search(anchored, face_key())) == 1


def test_a_face_of_64_px_and_one_that_reaches_beyond_the_photo_keep_theirs(photo):
    for quad in (QUAD[0] + (QUAD - QUAD[0]) * 64 / 141, QUAD - (90, 60)):
        snapped = align.snap_quad(quad)
        anchored = anchor.drop(photo, snapped, everywhere(photo), face_key())
        assert np.array_equal(quads_in(anchored), [snapped])


def shapes() -> tuple[np.ndarray, np.ndarray]:
    """Where the photo was changed, and what a parser makes of it, who misses a fringe and a hand."""
    changed, seen = np.zeros((240, 300), np.uint8), np.zeros((240, 300), np.uint8)
    cv2.ellipse(changed, (127, 120), (40, 50), 0, 0, 360, 1, -1)
    seen[:] = changed
    changed[120:150, 90:115] = 0  # a hand stood there
    seen[80:100, 105:150] = 0  # and there somebody has drawn a fringe
    return changed.astype(bool), seen.astype(bool)


def off(found: np.ndarray, changed: np.ndarray) -> float:
    wanted = align.crop(changed.astype(np.float32), QUAD, len(found)) > 0.5
    return float((found != wanted).mean())


def test_what_was_replaced_is_known_whatever_a_parser_sees(photo):
    changed, seen = shapes()
    anchored = anchor.drop(photo, QUAD, changed, face_key())
    face = align.crop(seen.astype(np.float32), QUAD, 256) > 0.5
    found = anchor.replaced(anchored, QUAD, face, face_key())
    assert found.dtype == bool and off(face, changed) > 0.04 and off(found, changed) < 0.25 * off(face, changed)


def test_without_the_anchor_a_face_is_what_the_parser_sees(photo):
    changed, seen = shapes()
    anchored = anchor.drop(photo, QUAD, changed, face_key())
    face = align.crop(seen.astype(np.float32), QUAD, 256) > 0.5
    lossy = cv2.imdecode(cv2.imencode(".jpg", anchored, [cv2.IMWRITE_JPEG_QUALITY, 95])[1], cv2.IMREAD_COLOR)
    for shown, quad, key in (
        (photo, QUAD, face_key()),
        (anchored, QUAD, face_key(2)),
        (anchored, align.snap_quad(QUAD + 1), face_key()),
        (lossy, QUAD, face_key()),
        (anchored, align.snap_quad(QUAD + 1000), face_key()),
    ):
        assert np.array_equal(anchor.replaced(shown, quad, face, key), face)
