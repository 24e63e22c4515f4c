"""Numbers of any size under the veil."""

import pytest
import torch

from anonface.crypto.keys import CONSISTENT_SALT, Key, PayloadKey
from anonface.watermark import cipher
from anonface.watermark.channel import Reading
from anonface.watermark.payload import CHECK, CLEAR, LEGIBLE, PayloadFormat

KIND = PayloadFormat("compensation", 0.5, 0.25)
RECORDED = PayloadFormat("compensation", 0.5, 0.25, recorded=True)


def face_key(seed: int, nonce: bytes = bytes(8)) -> PayloadKey:
    return Key.from_bytes(bytes([seed]) * 31 + b"\xff").face(CONSISTENT_SALT, "ifadit", 0).payload(nonce)


def numbers(size: float) -> torch.Tensor:
    return size * torch.randn(500, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("size", [0.35, 0.5, 0.8])
def test_the_key_tells_numbers_and_their_size(size):
    said = KIND.encode(numbers(size), face_key(1))
    assert said.shape == (KIND.length(500),) and float(said.abs().max()) <= 1
    again = KIND.decode(Reading(said, 0.0), face_key(1)).numbers
    assert (again - numbers(size)).square().mean().sqrt() < 0.1 * size


def test_another_key_is_known_to_be_another():
    """Of 2,000 keys none fits: a wrong one that did would be told that the record was changed."""
    said, owner = KIND.encode(numbers(0.5), face_key(1)), Key.from_bytes(bytes(31) + b"\xff")
    others = (owner.face(CONSISTENT_SALT, "ifadit", number) for number in range(2000))
    assert all(KIND.decode(Reading(said, 0.0), other.payload(bytes(8))) is None for other in others)
    assert PayloadFormat("detail", 0.5, 0.25).decode(Reading(said, 0.0), face_key(1)) is None
    assert KIND.decode(Reading(said, 0.0), face_key(1, b"12345678")) is None
    assert KIND.decode(Reading(said, 0.0), None) is None


def test_nothing_in_a_message_is_known_without_its_key():
    """The check is drawn of the key: two messages of one key share no plaintext."""
    checks = [cipher.decrypt(KIND.encode(numbers(0.5), key), key, KIND.name)[:CHECK].sign()
              for key in (face_key(1, bytes([n]) * 8) for n in range(30))]  # fmt: skip
    agreement = torch.corrcoef(torch.stack(checks)).fill_diagonal_(0)
    assert agreement.abs().max() < 0.6 and abs(float(agreement.mean())) < 0.02


@pytest.mark.parametrize("count", [500, 0])
def test_the_keys_holder_knows_whether_the_record_is_the_one_it_was_made_with(count):
    said = RECORDED.encode(numbers(0.5)[:count], face_key(1), b"as it was")
    assert len(said) == RECORDED.length(count)
    for error in (0.0, CLEAR - 0.05):
        noise = error * torch.randn(len(said), generator=torch.Generator().manual_seed(2)).double()
        reading = Reading((said + noise + 1).remainder(2) - 1, error)
        assert RECORDED.decode(reading, face_key(1), b"as it was").record is True
        others = [RECORDED.decode(reading, face_key(1), bytes([n])).record for n in range(40)]
        assert sum(others) <= 1
    assert RECORDED.decode(Reading(said, CLEAR + 0.01), face_key(1), b"as it was").record is None
    assert RECORDED.decode(Reading(said, 0.0), face_key(2), b"as it was") is None  # nothing is said of the record


def test_messages_of_version_5_are_read():
    """They began with ones, under a key that all photos of a salt share."""
    key = Key.from_bytes(bytes(range(32))).face(CONSISTENT_SALT, "ifadit", 0).payload_of_version_5()
    size = numbers(0.5).square().mean().sqrt()
    plain = torch.cat([torch.ones(64).double(), (size / 0.5).log()[None] / 0.25, numbers(0.5) / size])
    said = cipher.encrypt(plain, key, "compensation")
    longer = torch.cat([said, torch.zeros(32).double()])  # a channel is read as far as a newer message would go
    for kind, heard in ((KIND, said), (RECORDED, longer)):
        decoded = kind.decode(Reading(heard, 0.0), key, b"any")
        assert decoded.record is None and (decoded.numbers - numbers(0.5)).square().mean().sqrt() < 0.05


def test_an_unclear_reading_says_less_and_an_illegible_one_nothing():
    said = KIND.encode(numbers(0.5), face_key(1))
    decoded = [KIND.decode(Reading(said, error), face_key(1)) for error in (0.0, 0.1, 0.2, 0.3)]
    lengths = [float(one.numbers.norm()) for one in decoded]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] > 0.5 * lengths[0]
    noise = 0.15 * torch.randn(len(said), generator=torch.Generator().manual_seed(2)).double()
    assert KIND.decode(Reading((said + noise + 1).remainder(2) - 1, 0.15), face_key(1)) is not None
    assert KIND.decode(Reading(said, LEGIBLE + 0.01), face_key(1)) is None


def test_nothing_is_said_as_nothing():
    again = KIND.decode(Reading(KIND.encode(torch.zeros(500).double(), face_key(1)), 0.0), face_key(1))
    assert again.numbers.abs().max() < 1e-6
