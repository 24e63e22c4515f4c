"""The veil: back under its key, even for anybody else."""

import itertools

import pytest
import torch

from anonface.crypto.keys import CONSISTENT_SALT, Key, PayloadKey
from anonface.watermark import cipher


def face_key(seed: int = 1, nonce: bytes = bytes(8)) -> PayloadKey:
    return Key.from_bytes(bytes([seed]) * 31 + b"\xff").face(CONSISTENT_SALT, "ifadit", 0).payload(nonce)


def values(count: int = 300, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_key_lifts_it_and_a_bit_off_does_not():
    said = cipher.encrypt(values(), face_key(), "code")
    assert said.abs().max() <= 1
    assert (cipher.decrypt(said, face_key(), "code") - values()).abs().mean() < 0.08  # the farthest are cut
    for key, purpose in ((face_key(2), "code"), (face_key(1, b"12345678"), "code"), (face_key(), "compensation")):
        other = cipher.decrypt(said, key, purpose)
        assert abs(float(torch.corrcoef(torch.stack([other, values()]))[0, 1])) < 0.2
        assert 0.8 < other.square().mean().sqrt() < 2


def test_an_error_of_reading_stays_an_error_of_its_size():
    said = cipher.encrypt(values(), face_key(), "code")
    noise = 0.02 * values(seed=2)
    again = (said + noise + 1).remainder(2) - 1
    error = cipher.decrypt(again, face_key(), "code") - cipher.decrypt(said, face_key(), "code")
    assert float(error.square().mean().sqrt()) == pytest.approx(0.02 * cipher.REACH / cipher.MOST, rel=0.15)


def test_what_is_said_is_even_whatever_the_values_are():
    for meant in (torch.zeros(300, dtype=torch.float64), values(), 3 * values(seed=3)):
        shares = torch.histc(torch.cat([cipher.encrypt(meant, face_key(seed), "code") for seed in range(20)]), 8, -1, 1)
        assert (shares / shares.sum() - 1 / 8).abs().max() < 0.02


def test_of_two_photos_under_one_key_nothing_cancels():
    """Even of the very same values: what two of them say differs by even noise."""
    said = [cipher.encrypt(values(), face_key(1, bytes([n]) * 8), "code") for n in range(40)]
    between = torch.cat([(a - b + 1).remainder(2) - 1 for a, b in itertools.pairwise(said)])
    shares = torch.histc(between, 8, -1, 1)
    assert (shares / shares.sum() - 1 / 8).abs().max() < 0.02


@pytest.mark.parametrize("nonced", [True, False])
def test_vectors(nonced):
    face = Key(bytes([1]) * 32).face(CONSISTENT_SALT, "ifadit", 0)
    key = face.payload(bytes(range(8))) if nonced else face.payload_of_version_5()
    said = cipher.encrypt(torch.tensor([0.0, 1.0, -1.0, 2.0], dtype=torch.float64), key, "code")
    torch.testing.assert_close(said, torch.tensor(VECTORS[nonced], dtype=torch.float64), atol=1e-6, rtol=0)


VECTORS = {True: [-0.2114734, 0.9828038, 0.6188164, 0.7660569], False: [0.7995887, 0.8970158, -0.2404059, -0.701775]}
