"""Messages: encrypted numbers of any size, of which a reader knows whether key and record fit.

Before the numbers stand keyed checks and the numbers' size. A check is a row of signs that only the payload's key can
draw: whoever reads them knows that the key is right. Where a photo goes with a record, further signs are drawn of the
record's digest too: they tell that the record is the one that the photo was made with. So a record is authenticated by
the picture, and to the key's holder alone: under another key every sign is noise, whatever the record says.

A tag over the numbers themselves cannot be had: they are analogue and are read with an error. No sign is a constant, so
nothing that is known of a message tells of another one's key; and each key says one message (:mod:`veil`). Up to
version 5 the check was a row of ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anonface.crypto.keyed_noise import signs
from anonface.crypto.keys import FaceKey, PayloadKey
from anonface.watermark import cipher
from anonface.watermark import nonce as nonce
from anonface.watermark.channel import Reading

CHECK = 64  # signs of the key
RECORD = 32  # signs of key and record
LEGIBLE = 0.35  # error of a reading, in shares of the circle's half, above which it is noise
FITS = 0.6  # mean agreement with the signs from which the key fits; of another key it is 0 give or take 0.22
CLEAR = 0.2  # error of a reading above which it is not said whether the record fits


@dataclass(frozen=True)
class Told:
    """A message as it was read under a key that fits: its numbers, float64, less of them the less clearly they are
    read, and whether the record is its own; None where that cannot be told."""

    numbers: Tensor
    record: bool | None = None


@dataclass(frozen=True)
class Check:
    """What a face that was recovered said of itself.

    Attributes:
        nonce: in the clear; None where it is illegible.
        fits: whether the key is the one it was made under; None where that cannot be told.
        record: whether the record is the one it was made with; None where that cannot be told, as under another key.
    """

    nonce: bytes | None
    fits: bool | None
    record: bool | None


@dataclass(frozen=True)
class Kind:
    """What numbers are said of: its label, the middle and the logarithm's spread of their root mean square, and whether
    signs of the record stand before them."""

    name: str
    middle: float = 1.0
    spread: float = 1.0
    recorded: bool = False

    @property
    def head(self) -> int:
        """How many numbers the checks take."""
        return CHECK + RECORD * self.recorded

    def length(self, count: int) -> int:
        """How many numbers say ``count`` of this kind."""
        return self.head + 1 + count if count else self.head

    def packed(self, numbers: Tensor, key: PayloadKey, record: bytes = b"") -> Tensor:
        """Numbers [n] -> what is said, [length(n)] in [-1, 1); without numbers the checks alone."""
        head = self._signs(key, record).to(numbers)
        if not len(numbers):
            return cipher.drop(head, key, self.name)
        size = numbers.square().mean().sqrt().clamp_min(1e-3)
        told = ((size / self.middle).log() / self.spread).clamp(-cipher.REACH, cipher.REACH)
        return cipher.drop(torch.cat([head, told[None], numbers / size]), key, self.name)

    def unpacked(self, said: Reading, key: PayloadKey | None, record: bytes = b"") -> Told | None:
        """The message again; None if it is not read, or is of another key."""
        if key is None or said.error > LEGIBLE:
            return None
        head = self.head if key.nonced else CHECK
        values = cipher.lift(said.values[: len(said.values) - self.head + head], key, self.name)
        agreement = values[:head] * self._signs(key, record)[:head]
        if agreement[:CHECK].mean() < FITS:
            return None
        own = bool(agreement[CHECK:].mean() >= FITS) if head > CHECK and said.error <= CLEAR else None
        if len(values) == head:
            return Told(values[:0], own)
        size, shape = self.middle * (self.spread * values[head]).exp(), values[head + 1 :]
        noise = (said.error * cipher.REACH / cipher.MOST) ** 2
        # of root mean square 1, unless nothing was there to be said
        return Told(size * shape / shape.square().mean().sqrt().clamp_min(0.5) / (1 + noise) ** 0.5, own)

    def _signs(self, key: PayloadKey, record: bytes) -> Tensor:
        if not key.nonced:
            return torch.ones(self.head, dtype=torch.float64)
        own = signs(key, f"{self.name} check", CHECK)
        return torch.cat([own, signs(key, f"{self.name} record {record.hex()}", RECORD)]) if self.recorded else own


@dataclass(frozen=True)
class Opening:
    """What a face's first channel comes to: the nonce it says in the clear, the key of its payload, and the encrypted
    numbers behind the nonce; None what cannot be read."""

    nonce: bytes | None
    key: PayloadKey | None
    values: Tensor


EARLIER = 0.3  # error of a reading below which a face that says no nonce is of version 5: a nonce would have been read


def opened(first: Reading, key: FaceKey) -> Opening:
    """How to read what a face says under a key: with the nonce that it says, else with the one that its record says."""
    said = nonce.heard(first.values[: nonce.LENGTH])
    if said is None and key.nonce is None and first.error < EARLIER:
        return Opening(None, key.payload_of_version_5(), first.values)
    known = key.nonce if said is None else said
    return Opening(said, key.payload(known) if known else None, first.values[nonce.LENGTH :])
