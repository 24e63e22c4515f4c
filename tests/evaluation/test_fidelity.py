import math

import numpy as np
import pytest
from skimage import data
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from anonface.evaluation.fidelity import MOST_PSNR, psnr, ssim, tone

PHOTO = data.astronaut()[:128, 150:278]
NOISY = np.clip(PHOTO + np.random.default_rng(0).normal(0, 8, PHOTO.shape), 0, 255).astype(np.uint8)
EVERYWHERE = np.ones(PHOTO.shape[:2], bool)


def test_over_the_whole_picture_they_are_what_others_compute():
    assert psnr(PHOTO, NOISY, EVERYWHERE) == pytest.approx(peak_signal_noise_ratio(PHOTO, NOISY), abs=1e-9)
    common = structural_similarity(
        PHOTO, NOISY, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    inside = ~EVERYWHERE
    inside[5:-5, 5:-5] = True  # the mean that is usual leaves half a window out all round
    assert ssim(PHOTO, NOISY, inside) == pytest.approx(common, abs=1e-9)


def test_only_the_named_pixels_count():
    face = EVERYWHERE.copy()
    face[:64] = False
    elsewhere = PHOTO.copy()
    elsewhere[:50] = 0
    assert psnr(PHOTO, elsewhere, face) == MOST_PSNR and ssim(PHOTO, elsewhere, face) == pytest.approx(1)
    assert psnr(PHOTO, elsewhere, EVERYWHERE) < 15 and ssim(PHOTO, elsewhere, EVERYWHERE) < 0.8


def test_without_a_face_nothing_is_said():
    assert math.isnan(psnr(PHOTO, NOISY, ~EVERYWHERE)) and math.isnan(ssim(PHOTO, NOISY, ~EVERYWHERE))


def test_skin_tone_is_compared_by_eye():
    face, where = np.full((8, 8, 3), (180, 140, 120), np.uint8), np.ones((8, 8), bool)
    assert tone(face, face, where) == 0
    lighter, other = face + np.uint8(4), np.full_like(face, (90, 60, 50))
    assert 0.5 < tone(face, lighter, where) < 3 < tone(face, other, where)
    assert np.isnan(tone(face, other, ~where))
