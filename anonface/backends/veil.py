"""The veil: numbers as nobody can read them without the key.

    said = wrap(clip(Q values / REACH) + pad)      and back

Q is an orthogonal mix, pad a number for each, even round the circle, both of the key. What is said is then even round
the circle too, whatever the values were: of one photo it tells nothing. Where one key serves many photos
(``--consistent``), Q keeps a known pair of values and what is said of them from telling the pad.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anonface.backends.keyed_noise import hartley, signs
from anonface.keys import FaceKey

REACH = 2.6  # in standard deviations of the values: what goes beyond is cut
MOST = 0.82  # of the circle's half: the rest keeps a reading's error from turning it round


def drop(values: Tensor, key: FaceKey, purpose: str) -> Tensor:
    """Values [n] of about unit variance -> what may be said in public, [n] in [-1, 1), float64 on the CPU."""
    first, second = signs(key, f"{purpose} mix", 2 * len(values)).view(2, -1)
    mixed = hartley(second * hartley(first * values.cpu().double()))
    return _wrapped((mixed / REACH).clamp(-1, 1) * MOST + _pad(key, purpose, len(values)))


def lift(said: Tensor, key: FaceKey, purpose: str) -> Tensor:
    """What :func:`drop` said -> the values. Under another key they are noise of a like spread."""
    mixed = _wrapped(said.cpu().double() - _pad(key, purpose, len(said))).clamp(-MOST, MOST) * (REACH / MOST)
    first, second = signs(key, f"{purpose} mix", 2 * len(said)).view(2, -1)
    return first * hartley(second * hartley(mixed))


def _pad(key: FaceKey, purpose: str, count: int) -> Tensor:
    """Even over the circle, [count] in [-1, 1)."""
    stream = np.frombuffer(key.stream(f"{purpose} pad", 4 * count), "<u4")
    return torch.from_numpy(stream / 2.0**31 - 1)


def _wrapped(values: Tensor) -> Tensor:
    return (values + 1).remainder(2) - 1
