"""Encryption of what a watermark says: numbers that nobody can read without the key.

    said = wrap(clip(Q values / REACH) + pad)      and back

Q is an orthogonal mix, pad a number for each, uniform round the circle; both are streams of the payload's own key
(:class:`anonface.crypto.keys.PayloadKey`). The pad alone is a stream cipher: what is said is uniform round the circle,
whatever the values are. A pad must serve once, so the key is of a nonce drawn for each face, and its purpose names the
message.

Up to version 5 of the watermark, photos of one salt (``--consistent``, ``--stateless``) shared Q and pad. What two of
them said then differed by Q times the difference of their values; known ones in the values gave Q's second signs, the
values' covariance its first, and so every payload (``evaluation/audit/keystream.py``). Such photos are read still, and
count as exposed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anonface.crypto.keyed_noise import hartley, signs
from anonface.crypto.keys import PayloadKey

REACH = 2.6  # in standard deviations of the values: what goes beyond is cut
MOST = 0.82  # of the circle's half: the rest keeps a reading's error from turning it round


def drop(values: Tensor, key: PayloadKey, purpose: str) -> Tensor:
    """Values [n] of about unit variance -> what may be said in public, [n] in [-1, 1), float64 on the CPU."""
    first, second = signs(key, f"{purpose} mix", 2 * len(values)).view(2, -1)
    mixed = hartley(second * hartley(first * values.cpu().double()))
    return _wrapped((mixed / REACH).clamp(-1, 1) * MOST + _pad(key, purpose, len(values)))


def lift(said: Tensor, key: PayloadKey, purpose: str) -> Tensor:
    """What :func:`drop` said -> the values. Under another key they are noise of a like spread."""
    mixed = _wrapped(said.cpu().double() - _pad(key, purpose, len(said))).clamp(-MOST, MOST) * (REACH / MOST)
    first, second = signs(key, f"{purpose} mix", 2 * len(said)).view(2, -1)
    return first * hartley(second * hartley(mixed))


def _pad(key: PayloadKey, purpose: str, count: int) -> Tensor:
    """Uniform over the circle, [count] in [-1, 1)."""
    stream = np.frombuffer(key.stream(f"{purpose} pad", 4 * count), "<u4")
    return torch.from_numpy(stream / 2.0**31 - 1)


def _wrapped(values: Tensor) -> Tensor:
    return (values + 1).remainder(2) - 1
