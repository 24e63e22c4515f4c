"""The stream cipher of payloads: numbers that nobody can read without the key.

    encrypted = wrap(clip(Q values / REACH) + pad)      and back

Q is an orthogonal mix. The pad has one number for each value, uniform on the circle. Both are streams of the payload's
own key (:class:`anonface.crypto.keys.PayloadKey`). The pad alone makes the result uniform, whatever the values are. A
pad must serve once: the key comes from a nonce drawn for each face, and its purpose names the message.

Up to version 5 of the watermark, photos of one salt (``--consistent``, ``--stateless``) shared Q and pad. Two payloads
then differed by Q times the difference of their values, and known values gave Q away
(``evaluation/audit/keystream.py``). Such photos can still be read and count as exposed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anonface.crypto.keyed_noise import hartley, signs
from anonface.crypto.keys import PayloadKey

REACH = 2.6  # in standard deviations of the values, at which they are clipped
MOST = 0.82  # of the circle's half: the rest keeps a reading's error from wrapping it


def encrypt(values: Tensor, key: PayloadKey, purpose: str) -> Tensor:
    """Values [n] of about unit variance -> uniform numbers [n] in [-1, 1), float64 on the CPU."""
    first, second = signs(key, f"{purpose} mix", 2 * len(values)).view(2, -1)
    mixed = hartley(second * hartley(first * values.cpu().double()))
    return _wrapped((mixed / REACH).clamp(-1, 1) * MOST + _pad(key, purpose, len(values)))


def decrypt(encrypted: Tensor, key: PayloadKey, purpose: str) -> Tensor:
    """The inverse of :func:`encrypt`. Under another key the values are noise of a like spread."""
    mixed = _wrapped(encrypted.cpu().double() - _pad(key, purpose, len(encrypted))).clamp(-MOST, MOST) * (REACH / MOST)
    first, second = signs(key, f"{purpose} mix", 2 * len(encrypted)).view(2, -1)
    return first * hartley(second * hartley(mixed))


def _pad(key: PayloadKey, purpose: str, count: int) -> Tensor:
    """Uniform over the circle, [count] in [-1, 1)."""
    stream = np.frombuffer(key.stream(f"{purpose} pad", 4 * count), "<u4")
    return torch.from_numpy(stream / 2.0**31 - 1)


def _wrapped(values: Tensor) -> Tensor:
    return (values + 1).remainder(2) - 1
