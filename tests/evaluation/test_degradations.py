import numpy as np
import pytest
from skimage import data

from anonface.evaluation.degradations import DEGRADATIONS

SIZED = {
    "resize75": (0.75, 0.75),
    "resize50": (0.5, 0.5),
    "crop10": (0.9, 0.9),
    "screenshot": (0.85, 0.85),
    "company": (1, 2),
}


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return np.ascontiguousarray(data.astronaut()[:301, 100:340])


@pytest.mark.parametrize("name", DEGRADATIONS)
def test_every_attack_changes_pixels_and_nothing_else(photo, name):
    before = photo.copy()
    after = DEGRADATIONS[name](photo, 3)
    assert (photo == before).all()
    assert after.dtype == np.uint8 and after.flags.writeable
    high, wide = SIZED.get(name, (1.0, 1.0))
    assert after.shape == (pytest.approx(high * 301, abs=1), pytest.approx(wide * 240, abs=1), 3)
    if after.shape == photo.shape:
        assert (after != photo).mean() > 0.1
        assert np.abs(after.astype(int) - photo).mean() < 30


@pytest.mark.parametrize("name", DEGRADATIONS)
def test_every_attack_is_repeatable(photo, name):
    assert (DEGRADATIONS[name](photo, 3) == DEGRADATIONS[name](photo, 3)).all()


def test_a_seed_draws_other_noise(photo):
    assert (DEGRADATIONS["noise"](photo, 3) != DEGRADATIONS["noise"](photo, 4)).any()


def test_worse_quality_is_farther_from_the_photo(photo):
    off = [np.abs(DEGRADATIONS[f"jpeg{q}"](photo).astype(int) - photo).mean() for q in (95, 90, 85, 70, 50)]
    assert off == sorted(off) and off[0] < off[-1]


def test_jpeg_halves_colour():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2, 0] = stripes[:, 1::2, 2] = 200
    red_minus_blue = DEGRADATIONS["jpeg95"](stripes).astype(int) @ (1, 0, -1)
    assert np.abs(red_minus_blue).max() < 150  # of 200 in the original


@pytest.mark.parametrize("name", DEGRADATIONS)
def test_where_the_face_lies_afterwards_is_known(name):
    """A bright rectangle on black is found again where its box says."""
    photo = np.zeros((400, 300, 3), np.uint8)
    photo[120:220, 80:140] = 200
    x, y, w, h = DEGRADATIONS[name].moved((80, 120, 60, 100), photo.shape)
    seen = DEGRADATIONS[name](photo)
    rows, columns = np.nonzero(seen[:, : seen.shape[1] // (2 if name == "company" else 1), 1] > 100)
    assert (columns.min(), rows.min()) == (pytest.approx(x, abs=1), pytest.approx(y, abs=1))
    assert (columns.max() + 1, rows.max() + 1) == (pytest.approx(x + w, abs=1), pytest.approx(y + h, abs=1))


def test_company_is_the_photo_and_its_mirror_image(photo):
    both = DEGRADATIONS["company"](photo)
    assert (both[:, : photo.shape[1]] == photo).all() and (both[:, ::-1][:, : photo.shape[1]] == photo).all()
