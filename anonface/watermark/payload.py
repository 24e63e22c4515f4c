"""Payloads: encrypted numbers of any size, with checks of key and record.

A payload begins with a keyed check and the numbers' size. The check is a row of signs from the payload's key: a reader
knows by it that the key is right. Where a photo goes with a record, further signs depend on the record's digest too: a
reader knows by them that the record is the one the photo was made with. Under another key every sign is noise.

A tag over the numbers is impossible, because they are analogue and are read with an error. No sign is a constant, so a
known payload tells nothing of another one's key. Each key encrypts one payload (:mod:`cipher`). Up to version 5 the
check was a row of ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anonface.crypto.keyed_noise import signs
from anonface.crypto.keys import FaceKey, PayloadKey
from anonface.watermark import cipher, nonce
from anonface.watermark.channel import Reading

CHECK = 64  # signs of the key
RECORD = 32  # signs of key and record
LEGIBLE = 0.35  # error of a reading, in shares of the circle's half, above which it is noise
FITS = 0.5  # agreement with the signs from which the key fits; of another key it is 0 give or take 0.125
RECORD_FITS = 0.6  # the same for the record; of another record it is 0 give or take 0.18
CLEAR = 0.12  # error of a reading above which the record's signs are not judged


@dataclass(frozen=True)
class Payload:
    """A payload as it was read under a key that fits.

    Attributes:
        numbers: float64, shrunk by the error of the reading.
        record: whether the record is its own; None where that cannot be told.
    """

    numbers: Tensor
    record: bool | None = None


@dataclass(frozen=True)
class Check:
    """What a recovered face tells of key and record.

    Attributes:
        nonce: in the clear; None if it is illegible.
        fits: whether the key is the one it was made under; None where that cannot be told.
        record: whether the record is the one it was made with; None where that cannot be told, as under another key.
    """

    nonce: bytes | None
    fits: bool | None
    record: bool | None


@dataclass(frozen=True)
class PayloadFormat:
    """How numbers of one kind are encoded.

    Attributes:
        name: label of the key streams.
        middle, spread: of the logarithm of the numbers' root mean square.
        recorded: whether signs of the record stand before them.
    """

    name: str
    middle: float = 1.0
    spread: float = 1.0
    recorded: bool = False

    @property
    def head(self) -> int:
        """How many numbers the checks take."""
        return CHECK + RECORD * self.recorded

    def length(self, count: int) -> int:
        """How many numbers encode ``count`` of this kind."""
        return self.head + 1 + count if count else self.head

    def encode(self, numbers: Tensor, key: PayloadKey, record: bytes = b"") -> Tensor:
        """Numbers [n] -> encrypted numbers [length(n)] in [-1, 1); without numbers the checks alone."""
        head = self._signs(key, record).to(numbers)
        if not len(numbers):
            return cipher.encrypt(head, key, self.name)
        size = numbers.square().mean().sqrt().clamp_min(1e-3)
        level = ((size / self.middle).log() / self.spread).clamp(-cipher.REACH, cipher.REACH)
        return cipher.encrypt(torch.cat([head, level[None], numbers / size]), key, self.name)

    def decode(self, reading: Reading, key: PayloadKey | None, record: bytes = b"") -> Payload | None:
        """The payload again; None if it is illegible, or of another key."""
        if key is None or reading.error > LEGIBLE:
            return None
        head = self.head if key.nonced else CHECK
        values = cipher.decrypt(reading.values[: len(reading.values) - self.head + head], key, self.name)
        agreement = values[:head] * self._signs(key, record)[:head] / values.square().mean().sqrt()
        if agreement[:CHECK].mean() < FITS:
            return None
        own = bool(agreement[CHECK:].mean() >= RECORD_FITS) if head > CHECK and reading.error <= CLEAR else None
        if len(values) == head:
            return Payload(values[:0], own)
        size, shape = self.middle * (self.spread * values[head]).exp(), values[head + 1 :]
        noise = (reading.error * cipher.REACH / cipher.MOST) ** 2
        # of root mean square 1, unless there were no numbers
        return Payload(size * shape / shape.square().mean().sqrt().clamp_min(0.5) / (1 + noise) ** 0.5, own)

    def _signs(self, key: PayloadKey, record: bytes) -> Tensor:
        if not key.nonced:
            return torch.ones(self.head, dtype=torch.float64)
        own = signs(key, f"{self.name} check", CHECK)
        return torch.cat([own, signs(key, f"{self.name} record {record.hex()}", RECORD)]) if self.recorded else own


@dataclass(frozen=True)
class OpenedChannel:
    """A face's first channel: the nonce in the clear, the key of its payloads, and the encrypted numbers behind the
    nonce. What is illegible is None."""

    nonce: bytes | None
    key: PayloadKey | None
    values: Tensor


EARLIER = 0.3  # error of a reading below which a face without a nonce is of version 5


def open_first_channel(first: Reading, key: FaceKey) -> OpenedChannel:
    """The first channel under a key: with the nonce in the picture, else with the record's."""
    read = nonce.decode(first.values[: nonce.LENGTH])
    if read is None and key.nonce is None and first.error < EARLIER:
        return OpenedChannel(None, key.payload_of_version_5(), first.values)
    known = key.nonce if read is None else read
    return OpenedChannel(read, key.payload(known) if known else None, first.values[nonce.LENGTH :])
