"""The anchor: a square's corners in the last bits of the face that was put there."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key
from anonface.faces import align
from anonface.watermark import registration

QUAD = align.snap_quad(np.array([[60.3, 40.1], [52.7, 180.9], [193.5, 188.5], [201.1, 47.7]]))


def face_key(seed: int = 1) -> FaceKey:
    return Key.from_bytes(bytes([seed]) * 31 + b"\xff").face(CONSISTENT_SALT, "diffusion", 0)


@pytest.fixture
def photo() -> np.ndarray:
    smooth = cv2.resize(np.random.default_rng(3).integers(0, 256, (12, 15, 3)).astype(np.uint8), (300, 240))
    smooth[:100, :150] //= 8  # some of it black, where a step down would wrap around
    return smooth


def quads_in(photo: np.ndarray, nonced: bool = False) -> list[np.ndarray]:
    return [found.quad for found in registration.search(photo, face_key(), nonced)]


def everywhere(photo: np.ndarray) -> np.ndarray:
    return np.ones(photo.shape[:2], bool)


def test_what_was_dropped_is_found_again(photo):
    anchored = registration.write(photo, QUAD, everywhere(photo), face_key())
    (said,) = registration.search(anchored, face_key())
    assert np.array_equal(said.quad, QUAD) and said.nonce == b""


def test_all_anchors_of_a_photo_are_found(photo):
    wide = np.concatenate([photo, photo[::-1]], 1)
    quads = [align.snap_quad(QUAD + np.array([300, 30])), QUAD]
    anchored = wide
    for quad in quads:
        anchored = registration.write(anchored, quad, everywhere(wide), face_key())
    assert np.array_equal(quads_in(anchored), quads[::-1])


def test_a_wrong_key_an_untouched_photo_and_a_jpeg_say_nothing(photo):
    anchored = registration.write(photo, QUAD, everywhere(photo), face_key())
    assert registration.search(anchored, face_key(2)) == []
    assert registration.search(photo, face_key()) == []
    lossy = cv2.imdecode(cv2.imencode(".jpg", anchored, [cv2.IMWRITE_JPEG_QUALITY, 95])[1], cv2.IMREAD_COLOR)
    assert registration.search(lossy, face_key()) == []


def test_only_the_blue_of_changed_pixels_moves_and_by_one(photo):
    changed = np.zeros(photo.shape[:2], bool)
    changed[90:150, 90:150] = True
    anchored = registration.write(photo, QUAD, changed, face_key())
    moved = anchored.astype(int) - photo
    assert not moved[~changed].any() and not moved[..., :2].any()
    assert abs(moved).max() == 1 and 0.4 < (moved[changed][:, 2] != 0).mean() < 0.6
    assert np.array_equal(quads_in(anchored), [QUAD])


def test_a_grey_photo_stays_grey(photo):
    grey = np.repeat(photo[..., :1], 3, 2)
    anchored = registration.write(grey, QUAD, everywhere(photo), face_key())
    assert (anchored == anchored[..., :1]).all() and not np.array_equal(anchored, grey)
    assert len(registration.search(anchored, face_key())) == 1


def test_a_face_of_64_px_and_one_that_reaches_beyond_the_photo_keep_theirs(photo):
    for quad in (QUAD[0] + (QUAD - QUAD[0]) * 64 / 141, QUAD - (90, 60)):
        snapped = align.snap_quad(quad)
        anchored = registration.write(photo, snapped, everywhere(photo), face_key())
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
    anchored = registration.write(photo, QUAD, changed, face_key())
    face = align.crop(seen.astype(np.float32), QUAD, 256) > 0.5
    found = registration.replaced(anchored, QUAD, face, face_key())
    assert found.dtype == bool and off(face, changed) > 0.04 and off(found, changed) < 0.25 * off(face, changed)


def test_without_the_anchor_a_face_is_what_the_parser_sees(photo):
    changed, seen = shapes()
    anchored = registration.write(photo, QUAD, changed, face_key())
    face = align.crop(seen.astype(np.float32), QUAD, 256) > 0.5
    lossy = cv2.imdecode(cv2.imencode(".jpg", anchored, [cv2.IMWRITE_JPEG_QUALITY, 95])[1], cv2.IMREAD_COLOR)
    for shown, quad, key in (
        (photo, QUAD, face_key()),
        (anchored, QUAD, face_key(2)),
        (anchored, align.snap_quad(QUAD + 1), face_key()),
        (lossy, QUAD, face_key()),
        (anchored, align.snap_quad(QUAD + 1000), face_key()),
    ):
        assert np.array_equal(registration.replaced(shown, quad, face, key), face)


def test_the_nonce_comes_along(photo):
    nonce = bytes(range(8))
    anchored = registration.write(photo, QUAD, everywhere(photo), face_key(), nonce)
    (found,) = registration.search(anchored, face_key(), nonced=True)
    assert np.array_equal(found.quad, QUAD) and found.nonce == nonce
    assert registration.search(anchored, face_key()) == []
    changed, seen = shapes()
    anchored = registration.write(photo, QUAD, changed, face_key(), nonce)
    face = align.crop(seen.astype(np.float32), QUAD, 256) > 0.5
    assert off(registration.replaced(anchored, QUAD, face, face_key(), nonce), changed) < 0.25 * off(face, changed)


def skin(seed: int) -> np.ndarray:
    """A picture with as little in it as skin has, of 512 px: two have many a colour in one place in common."""
    rng = np.random.default_rng(seed)
    smooth = cv2.resize(rng.normal([190, 150, 130], 4, (5, 5, 3)), (512, 512), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + rng.normal(0, 1.2, (512, 512, 3)), 0, 255).astype(np.uint8)


LARGE = np.array([[30.0, 20.0], [30.0, 490.0], [500.0, 490.0], [500.0, 20.0]])


def as_in_version_5(photo: np.ndarray, key: FaceKey) -> np.ndarray:
    """The planted weakness: bits turned by a tile of the key."""
    tile = np.unpackbits(np.frombuffer(key.stream("anchor", 8192), np.uint8)).reshape(256, 256)
    y, x = np.mgrid[:512, :512]
    bits = registration._message(registration.RegistrationMark(LARGE), key)[(x + 61 * y) % 156]
    anchored = photo.copy()
    anchored[..., 2] = photo[..., 2] & 0xFE | (bits ^ tile[y % 256, x % 256])
    return anchored


def today(photo: np.ndarray, key: FaceKey) -> np.ndarray:
    return registration.write(photo, LARGE, everywhere(photo), key)


def linked(a: np.ndarray, b: np.ndarray) -> float:
    """How far the last bits of two pictures are from independent, in deviations of what chance gives: the most of the
    statistics of their sum by place, of its neighbours and of it where their pixels are alike."""
    ellipse = np.zeros((512, 512), np.uint8)
    cv2.ellipse(ellipse, (265, 288), (190, 220), 0, 0, 360, 1, -1)
    y, x = np.nonzero(ellipse)
    apart = np.where((a[..., 2] ^ b[..., 2]) & 1, 0.5, -0.5) * ellipse
    found = []
    for period in (156, 220):
        place = (x + 61 * y) % period
        counts, sums = np.bincount(place, minlength=period), np.bincount(place, apart[y, x], period)
        found.append(((sums**2 / (counts / 4)).sum() - period) / np.sqrt(2 * period))
    for below, right in ((0, 1), (1, 0), (1, 1), (0, 2)):
        products = apart[below:, right:] * apart[: 512 - below, : 512 - right]
        found.append(products.sum() / (0.25 * np.sqrt((products != 0).sum())))
    for alike in ((a[..., 2] >> 1 == b[..., 2] >> 1), (a >> 1 == b >> 1).all(2)):
        some = apart[alike & (ellipse > 0)]
        found.append(some.sum() / (0.5 * np.sqrt(max(1, len(some)))))
    return float(np.abs(found).max())


def test_photos_of_one_key_are_not_told_by_their_last_bits():
    photos = [skin(seed) for seed in range(4)]
    pairs = [(a, b) for a in range(4) for b in range(a)]
    planted = [linked(*(as_in_version_5(photos[n], face_key()) for n in pair)) for pair in pairs]
    assert min(planted) > 20
    same = [linked(*(today(photos[n], face_key()) for n in pair)) for pair in pairs]
    other = [linked(today(photos[a], face_key()), today(photos[b], face_key(2))) for a, b in pairs]
    assert max(*same, *other) < 5  # of 48 normal values the greatest
    assert np.mean(np.array(same)[:, None] > other) < 0.85


def test_groups_of_photos_of_one_key_are_not_told_by_their_last_bits():
    """What ties two photos too faintly to be seen adds up over many."""

    def told(write, group: int) -> float:
        """How far a photo's last bits agree with those of seven others, in deviations, of all or of each residue."""
        bits = np.stack(
            [(write(skin(seed), face_key(1 if seed == 0 else group))[..., 2] & 1) - 0.5 for seed in range(8)]
        )
        products = bits[0] * bits[1:].sum(0)
        found = [products.sum() / (0.25 * np.sqrt(7) * 512)]
        y, x = np.mgrid[:512, :512]
        for period in (156, 220):
            place = ((x + 61 * y) % period).ravel()
            sums = np.bincount(place, products.ravel(), period) / (0.25 * np.sqrt(7 * np.bincount(place)))
            found.append(((sums**2).sum() - period) / np.sqrt(2 * period))
        return float(np.abs(found).max())

    assert told(as_in_version_5, 1) > 100
    assert told(today, 1) < 5 and told(today, 2) < 5


def test_nothing_repeats_within_a_photo():
    def repeats(photo: np.ndarray) -> float:
        """Of the last bits' autocorrelation the most, in deviations."""
        bits = (photo[..., 2] & 1) - 0.5
        correlation = np.fft.irfft2(np.abs(np.fft.rfft2(bits)) ** 2)
        correlation[0, 0] = 0
        return float(np.abs(correlation).max() / (0.25 * 512))

    assert repeats(as_in_version_5(skin(1), face_key())) > 20
    assert repeats(today(skin(1), face_key())) < 7


def test_the_very_same_surroundings_alone_turn_a_bit_alike():
    """And where nothing surrounds a pixel, as in clipped white, it says nothing."""
    photo, other = skin(1), skin(1)
    other[200, 200, 1] ^= 2
    first, second = today(photo, face_key()), today(other, face_key())
    differ = np.argwhere((first != second).any(2))
    assert 5 < len(differ) <= 25 and (abs(differ - 200) <= 2).all()
    white = photo.copy()
    white[100:200, 100:200] = 255
    assert (today(white, face_key())[102:198, 102:198] == 255).all()


def test_anchors_of_version_5_are_read():
    old = as_in_version_5(skin(1), face_key())
    (found,) = registration.search(old, face_key(), tiled=True)
    assert np.array_equal(found.quad, LARGE) and registration.search(old, face_key()) == []
    face = np.ones((256, 256), bool)
    face[40:] = False
    assert registration.replaced(old, LARGE, face, face_key()).mean() > 0.6
