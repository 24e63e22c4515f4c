from __future__ import annotations

import cv2
import numpy as np
import pytest

from anonface.faces import align, blend
from anonface.faces.detect import Pixels

SIZE = 256


def disc(size: int = SIZE, radius: float = 0.3) -> np.ndarray:
    rows, columns = np.indices((size, size)) + 0.5
    return (np.hypot(rows - size / 2, columns - size / 2) < radius * size).astype(np.float32)


def plain(*colour: int, size: int = SIZE) -> Pixels:
    return np.full((size, size, 3), colour, np.uint8)


def noise(seed: int, height: int = SIZE, width: int = SIZE) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_composite_of_arrays_and_tensors() -> None:
    import torch

    face, render, soft = np.array([10.0, 20.0]), np.array([30.0, 40.0]), np.array([0.25, 1.0])
    assert np.allclose(blend.composite(face, render, soft), [15, 40])
    mixed = blend.composite(torch.from_numpy(face), torch.from_numpy(render), torch.from_numpy(soft))
    assert torch.allclose(mixed, torch.tensor([15.0, 40.0], dtype=torch.float64))


@pytest.mark.parametrize("size", [256, 1024])
def test_the_soft_border_lies_inside_and_scales(size: int) -> None:
    mask = disc(size)
    soft = blend.soften(mask)
    assert soft.dtype == np.float32 and soft.min() == 0 and soft.max() <= 1
    assert (soft[mask == 0] == 0).all()
    row = soft[size // 2]
    assert row[size // 2] == pytest.approx(1, abs=1e-3)
    border = ((row > 0.02) & (row < 0.98)).sum() / 2 / size
    assert 0.02 < border < 0.05
    assert np.abs(np.diff(row)).max() < 0.3 * 256 / size


def test_a_mask_cut_by_the_crop_ends_soft() -> None:
    assert blend.soften(np.ones((SIZE, SIZE), np.float32))[0].max() < 0.15


def test_light_of_another_colour_is_taken_over() -> None:
    crop, render = plain(200, 150, 120), plain(140, 120, 110)
    matched = blend.match_light(render, crop, disc())
    inside = disc() > 0
    assert np.abs(matched[inside].astype(int) - crop[inside]).max() <= 3


def test_light_from_one_side_is_taken_over() -> None:
    slope = np.linspace(80, 180, SIZE).astype(np.uint8)
    crop = np.repeat(np.repeat(slope[None, :, None], SIZE, 0), 3, 2)
    matched = blend.match_light(plain(130, 130, 130), crop, disc())
    left, right = matched[128, 70].mean(), matched[128, 186].mean()
    assert right - left > 20


def test_light_brings_no_detail_back() -> None:
    crop = plain(150, 120, 100)
    cv2.circle(crop, (128, 128), 40, (20, 20, 20), -1)  # deep inside: none of it may pass
    crop[::4] += 30  # fine stripes
    matched = blend.match_light(plain(150, 120, 100), crop, disc()).astype(int)
    inside = disc(radius=0.28) > 0
    assert np.abs(matched[inside] - matched[128, 128]).max() <= 2
    assert matched[128, 128, 0] > 140


def test_a_strand_of_hair_does_not_colour_the_face() -> None:
    crop, render = plain(180, 140, 120), plain(170, 130, 110)
    crop[50:70, 100:150] = (10, 10, 10)
    matched = blend.match_light(render, crop, disc()).astype(int)
    assert np.abs(matched[128, 128] - (180, 140, 120)).max() <= 4


def test_an_empty_mask_changes_nothing() -> None:
    nothing = np.zeros((SIZE, SIZE), np.float32)
    assert np.array_equal(blend.match_light(noise(1), noise(2), nothing), noise(1))
    assert np.array_equal(blend.match_grain(noise(1), noise(2), nothing), noise(1))


@pytest.mark.parametrize("deviation", [2.0, 5.0])
def test_grain_is_measured_and_matched(deviation: float) -> None:
    grain = np.random.default_rng(5).normal(0, deviation, (SIZE, SIZE, 1))
    crop = np.clip(np.rint(128 + np.repeat(grain, 3, 2)), 0, 255).astype(np.uint8)
    mask = disc()
    assert blend.noise_level(crop, mask) == pytest.approx(deviation, rel=0.15)
    matched = blend.match_grain(plain(128, 128, 128), crop, mask)
    assert blend.noise_level(matched, mask) == pytest.approx(deviation, rel=0.2)
    assert np.array_equal(matched, blend.match_grain(plain(128, 128, 128), crop, mask))
    assert np.array_equal(blend.match_grain(crop, plain(128, 128, 128), mask), crop)


def test_pasting_on_the_grid_is_exact() -> None:
    photo, render = noise(1, 300, 320), noise(2)
    quad = align.square(np.array([20 + SIZE / 2, 30 + SIZE / 2]), SIZE, 0.0)
    pasted = blend.paste(photo, render, disc(), quad)
    expected = photo.copy()
    expected[30:286, 20:276][disc() > 0] = render[disc() > 0]
    assert np.array_equal(pasted, expected)


@pytest.mark.parametrize(("side", "angle"), [(60.0, 0.3), (700.0, -0.6)])
def test_pasting_changes_nothing_outside_the_mask(side: float, angle: float) -> None:
    photo = noise(1, 800, 900)
    centre = np.array([860.0, 400.0])  # across the photo's border
    before = photo.copy()
    pasted = blend.paste(photo, plain(9, 9, 9), blend.soften(disc()), align.square(centre, side, angle))
    assert np.array_equal(photo, before)
    rows, columns = np.indices(photo.shape[:2]) + 0.5
    far = np.hypot(columns - centre[0], rows - centre[1])
    assert np.array_equal(pasted[far > 0.31 * side + 1], photo[far > 0.31 * side + 1])
    assert (pasted[far < 0.22 * side] == 9).all()


def test_pasting_a_large_render_does_not_alias() -> None:
    stripes = plain(0, 0, 0, size=1024)
    stripes[:, ::2] = 255
    quad = align.square(np.array([50.0, 50.0]), 90.0, 0.2)
    pasted = blend.paste(plain(0, 0, 0, size=100), stripes, np.ones((1024, 1024), np.float32), quad)
    assert np.abs(pasted[30:70, 30:70].astype(int) - 128).max() < 12


def test_cutting_out_and_pasting_back_gives_the_photo() -> None:
    photo = np.asarray(cv2.GaussianBlur(noise(4, 300, 300), (0, 0), 3), np.uint8)
    quad = align.square(np.array([150.3, 140.7]), 180.0, 0.35)
    back = blend.paste(photo, align.crop(photo, quad, 256), blend.soften(disc()), quad)
    assert np.abs(back.astype(int) - photo).max() <= 3


def test_adding_a_pattern_on_the_grid_is_exact_and_changes_nothing_elsewhere() -> None:
    photo, pattern = plain(100, 120, 140, size=300), np.zeros((64, 64, 3), np.float32)
    pattern[16:48, 16:48] = (2.0, -3.4, 300.0)
    added = blend.add(photo, pattern, align.square(np.array([62.0, 52.0]), 64.0, 0.0))
    expected = photo.copy()
    expected[36:68, 46:78] = (102, 117, 255)
    assert np.array_equal(added, expected) and (photo == plain(100, 120, 140, size=300)).all()


def test_adding_a_pattern_to_a_small_face_keeps_its_mean() -> None:
    stripes = np.zeros((128, 128, 3), np.float32)
    stripes[:, ::2] = 20.0
    added = blend.add(plain(90, 90, 90, size=100), stripes, align.square(np.array([50.0, 50.0]), 40.0, 0.3))
    assert abs(float(added[42:58, 42:58].mean()) - 100) < 1


def test_a_quad_beyond_the_photo_changes_nothing() -> None:
    quad = align.square(np.array([-500.0, 50.0]), 100.0, 0.0)
    photo = noise(1, 100, 100)
    assert np.array_equal(blend.add(photo, np.ones((8, 8, 3), np.float32), quad), photo)
    assert np.array_equal(blend.paste(photo, noise(2), disc(), quad), photo)
    assert np.array_equal(blend.mosaic(photo, quad), photo)


def test_what_is_nearly_grey_becomes_grey_and_grey_stays() -> None:
    grey = noise(1)[..., :1].repeat(3, 2)
    assert blend.is_grey(grey) and np.array_equal(blend.as_grey(grey), grey)
    tinted = grey.copy()
    tinted[5, 7] = (100, 101, 99)
    assert not blend.is_grey(tinted) and blend.is_grey(blend.as_grey(tinted))
    assert tuple(blend.as_grey(tinted)[5, 7]) == (100, 100, 100)
    assert not blend.is_grey(noise(1))


def test_the_mosaic_leaves_few_colours_and_touches_only_the_ellipse() -> None:
    photo = noise(1, 400, 500)
    quad = align.square(np.array([250.0, 200.0]), 200.0, 0.3)
    covered = blend.mosaic(photo, quad)
    rows, columns = np.indices(photo.shape[:2]) + 0.5
    distance = np.hypot(columns - 250, rows - 200)
    assert np.array_equal(covered[distance > 101], photo[distance > 101])
    assert len(np.unique(covered[distance < 99], axis=0)) <= 36


def test_the_mosaic_of_a_cut_face_is_as_coarse() -> None:
    photo = noise(1, 200, 200)
    covered = blend.mosaic(photo, align.square(np.array([0.0, 100.0]), 100.0, 0.0))
    assert len(np.unique(covered[60:140, :30].reshape(-1, 3), axis=0)) <= 18


def test_the_mosaic_of_the_smallest_faces() -> None:
    photo = noise(1, 20, 20)
    covered = blend.mosaic(photo, align.square(np.array([10.0, 10.0]), 12.0, 0.0))
    assert len(np.unique(covered[6:14, 6:14].reshape(-1, 3), axis=0)) <= 25
