"""Keyed transforms: involutions; what each hides."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from anonface.crypto.keyed_noise import LENGTHS, background_noise, flip, hartley, mix, other_length, signs
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key

SHAPE = (4, 24, 24)
SIGNS = [-1, -1, 1, 1, 1, 1, -1, 1, 1, -1, -1, 1]
NOISE = [1.335782, 0.421291, -0.020232]


def face_key(seed: int = 1) -> FaceKey:
    data = bytes([seed]) * 32 if seed < 9 else bytes([seed, 200]) * 16  # text is no key
    return Key.from_bytes(data).face(CONSISTENT_SALT, "diffusion", 0)


@pytest.fixture
def latents() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def mask() -> torch.Tensor:
    return torch.rand(SHAPE[1:], generator=torch.Generator().manual_seed(6)) < 0.5


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


@pytest.mark.parametrize("transform", [flip, mix])
def test_a_transform_is_its_own_inverse_inside_the_mask_and_nothing_outside(transform, latents, mask):
    other = transform(latents, mask, face_key())
    assert abs(cosine(other[:, mask], latents[:, mask])) < 0.1
    assert torch.equal(other[:, ~mask], latents[:, ~mask])
    assert torch.allclose(transform(other, mask, face_key()), latents, atol=1e-5)
    assert 0.5 < other[:, mask].norm() / latents[:, mask].norm() < 1.6


@pytest.mark.parametrize("transform", [flip, mix])
def test_a_wrong_key_gives_neither_the_original_nor_the_transformed(transform, latents, mask):
    other = transform(latents, mask, face_key())
    false = transform(other, mask, face_key(2))[:, mask]
    assert abs(cosine(false, latents[:, mask])) < 0.1
    assert abs(cosine(false, other[:, mask])) < 0.1


def test_a_sign_flip_gives_the_magnitudes_away_and_the_mix_does_not(latents, mask):
    inside = latents[:, mask].flatten()
    flipped, mixed = (transform(latents, mask, face_key())[:, mask].flatten() for transform in (flip, mix))
    assert torch.equal(flipped.abs(), inside.abs())
    centred = [x.abs() - x.abs().mean() for x in (inside, mixed, hartley(inside), hartley(mixed))]
    assert abs(cosine(centred[0], centred[1])) < 0.1
    assert abs(cosine(centred[2], centred[3])) < 0.1  # nor in the basis that everybody knows


def test_a_sign_flip_gives_the_length_away_and_the_mix_does_not(latents, mask):
    """Whatever the length was, half of the keys make it longer than the middle, a tenth much longer."""
    length = latents[:, mask].norm()
    assert torch.allclose(flip(latents, mask, face_key())[:, mask].norm(), length)
    assert len({round(float(mix(latents, mask, face_key(n))[:, mask].norm()), 3) for n in range(5)}) == 5
    keys = [
        Key.from_bytes(hashlib.sha256(bytes([n % 256, n // 256])).digest()).face(CONSISTENT_SALT, "diffusion", 0)
        for n in range(400)
    ]
    middle, spread = LENGTHS
    for before in (-3.0, 0.0, 3.0):
        lengths = [other_length(1000**0.5 * math.exp(middle + before * spread), 1000, key) for key in keys]
        places = (torch.tensor(lengths).div(1000**0.5).log() - middle) / spread
        assert abs((places > 0).float().mean() - 0.5) < 0.08
        assert abs((places > math.log(9)).float().mean() - 0.1) < 0.05


def test_another_length_is_an_involution_and_stays_near_what_photos_have():
    for n in range(1, 40):
        for length in (22.0, 27.0, 31.6, 36.0):
            other = other_length(length, 1000, face_key(n))
            assert 17 < other < 45
            assert abs(other_length(other, 1000, face_key(n)) / length - 1) < 1e-6
    assert other_length(100.0, 1000, face_key()) == 100.0  # no photo's: it stays, so that it comes back
    assert len({round(other_length(31.6, 1000, face_key(n)), 4) for n in range(1, 40)}) == 39


def test_signs_of_one_cell_do_not_depend_on_the_mask(latents, mask):
    whole = flip(latents, torch.ones_like(mask), face_key())
    assert torch.equal(flip(latents, mask, face_key())[:, mask], whole[:, mask])


@pytest.mark.parametrize("length", [1, 7, 64, 1155])
def test_the_hartley_transform_is_an_orthonormal_involution(length):
    x = torch.randn(length, generator=torch.Generator().manual_seed(1)).double()
    assert torch.allclose(hartley(hartley(x)), x)
    assert torch.allclose(hartley(x).norm(), x.norm())


def test_streams_are_pinned():
    """A release that draws otherwise could not lead older photos back."""
    key = face_key()
    assert signs(key, "sign", 12).tolist() == SIGNS
    assert torch.allclose(background_noise(key, torch.Size((1, 1, 3))).flatten(), torch.tensor(NOISE), atol=1e-5)
