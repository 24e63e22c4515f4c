"""A face's nonce in the clear, through errors of a reading."""

import secrets

import pytest
import torch

from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key
from anonface.watermark import nonce, payload
from anonface.watermark.channel import Reading

KEY = Key(bytes(range(32))).face(CONSISTENT_SALT, "ifadit", 0)


def misread(values: torch.Tensor, error: float, seed: int = 1) -> torch.Tensor:
    noise = error * torch.randn(len(values), generator=torch.Generator().manual_seed(seed)).double()
    return (values + noise + 1).remainder(2) - 1


def test_its_numbers_are_bits():
    said = nonce.encode(bytes(8))
    assert said.shape == (nonce.LENGTH,) and set(said.tolist()) == {-0.5, 0.5}
    assert nonce.encode(bytes(7) + b"\1").ne(said).sum() >= 10  # one bit of a nonce moves many


@pytest.mark.parametrize("error", [0.0, 0.1, 0.2, 0.25])
def test_it_is_read_through_errors_that_the_code_beside_it_outlasts(error):
    drawn = [secrets.token_bytes(8) for _ in range(20)]
    read = [nonce.decode(misread(nonce.encode(one), error, seed)) for seed, one in enumerate(drawn)]
    assert sum(a == b for a, b in zip(read, drawn, strict=True)) >= 19


def test_what_is_no_nonce_is_not_taken_for_one():
    noise = 2 * torch.rand(60, nonce.LENGTH, generator=torch.Generator().manual_seed(1)).double() - 1
    assert [nonce.decode(one) for one in noise] == [None] * 60


def test_a_face_that_says_none_has_its_records_or_is_of_an_earlier_version():
    rest, noise = torch.zeros(5).double(), misread(torch.zeros(nonce.LENGTH).double(), 0.6)
    said, other = bytes(range(8)), bytes(8)

    def open_first_channel(numbers: torch.Tensor, error: float, key: FaceKey) -> payload.OpenedChannel:
        return payload.open_first_channel(Reading(torch.cat([numbers, rest]), error), key)

    heard = open_first_channel(nonce.encode(said), 0.05, KEY.of_face(other))
    assert heard.nonce == said and heard.key.derive("x") == KEY.payload(said).derive("x") and len(heard.values) == 5
    lost = open_first_channel(noise, 0.4, KEY.of_face(other))
    assert lost.nonce is None and lost.key.derive("x") == KEY.payload(other).derive("x")
    early = open_first_channel(noise, 0.05, KEY)
    assert not early.key.nonced and early.key.derive("x") == KEY.derive("x") and len(early.values) == nonce.LENGTH + 5
    assert open_first_channel(noise, 0.4, KEY).key is None
