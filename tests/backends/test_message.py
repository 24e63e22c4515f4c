"""Numbers of any size under the veil."""

import pytest
import torch

from anonface.backends.message import LEGIBLE, Kind
from anonface.backends.watermark import Reading
from anonface.keys import CONSISTENT_SALT, FaceKey, Key

KIND = Kind("compensation", 0.5, 0.25)


def face_key(seed: int) -> FaceKey:
    return Key.from_bytes(bytes([seed]) * 32).face(CONSISTENT_SALT, "ifadit", 0)


def numbers(size: float) -> torch.Tensor:
    return size * torch.randn(500, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("size", [0.35, 0.5, 0.8])
def test_the_key_tells_numbers_and_their_size(size):
    said = KIND.packed(numbers(size), face_key(1))
    assert said.shape == (KIND.length(500),) and float(said.abs().max()) <= 1
    again = KIND.unpacked(Reading(said, 0.0), face_key(1))
    assert (again - numbers(size)).square().mean().sqrt() < 0.1 * size


def test_another_key_is_known_to_be_another():
    said = KIND.packed(numbers(0.5), face_key(1))
    told = [KIND.unpacked(Reading(said, 0.0), face_key(seed)) for seed in range(2, 60)]
    assert sum(one is not None for one in told) <= 1
    assert Kind("detail", 0.5, 0.25).unpacked(Reading(said, 0.0), face_key(1)) is None


def test_an_unclear_reading_says_less_and_an_illegible_one_nothing():
    said = KIND.packed(numbers(0.5), face_key(1))
    lengths = [float(KIND.unpacked(Reading(said, error), face_key(1)).norm()) for error in (0.0, 0.1, 0.2, 0.3)]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] > 0.5 * lengths[0]
    noise = 0.15 * torch.randn(len(said), generator=torch.Generator().manual_seed(2)).double()
    assert KIND.unpacked(Reading((said + noise + 1).remainder(2) - 1, 0.15), face_key(1)) is not None
    assert KIND.unpacked(Reading(said, LEGIBLE + 0.01), face_key(1)) is None


def test_nothing_is_said_as_nothing():
    again = KIND.unpacked(Reading(KIND.packed(torch.zeros(500).double(), face_key(1)), 0.0), face_key(1))
    assert again.abs().max() < 1e-6
