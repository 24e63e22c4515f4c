"""A face's nonce in the clear: the first numbers of the watermark's first channel.

Key and picture must be enough for recovery, and no two faces may be encrypted under one key. So each face holds the
nonce of its key. It is random: it tells nothing of the key or the person, and ties no two photos.

64 bits and 16 of their SHA-256 go through a tail-biting convolutional code (rate 1/2, constraint length 7, generators
171 and 133 octal). Each coded bit is one number: 0.5 or -0.5 of the circle's half. Soft Viterbi decoding reads them up
to an error of about 0.3 of a reading. Beyond that the rest of the channel is lost too.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anonface.crypto.keys import NONCE_BYTES

CHECK_BYTES = 2
BITS = 8 * (NONCE_BYTES + CHECK_BYTES)
LENGTH = 2 * BITS  # numbers
MEMORY, GENERATORS = 6, (0o171, 0o133)
ROUNDS = 3  # through the tail-biting code: the middle one is read


def encode(nonce: bytes) -> Tensor:
    """A nonce as numbers of the watermark, [LENGTH] float64."""
    bits = np.unpackbits(np.frombuffer(nonce + _check(nonce), np.uint8)).astype(int)
    states = sum(np.roll(bits, shift) << (MEMORY - shift) for shift in range(MEMORY + 1))
    return torch.from_numpy(0.5 * _OUTPUTS[states].astype(np.float64).ravel())


def decode(values: Tensor) -> bytes | None:
    """The nonce in numbers [LENGTH] in [-1, 1); None if it is illegible."""
    soft = np.sin(np.pi * values.detach().cpu().double().numpy()).reshape(BITS, 2)
    branches = np.tile(soft @ _OUTPUTS.T.astype(np.float64), (ROUNDS, 1))  # [steps, windows of MEMORY + 1 bits]
    scores = np.zeros(1 << MEMORY)
    choices = np.empty((len(branches), 1 << MEMORY), bool)
    for step, branch in enumerate(branches):
        # a window is the newest bit, the highest, and the state before it; it leads to the state without the oldest
        reached = (scores[_BEFORE] + branch).reshape(-1, 2)
        choices[step] = reached[:, 1] > reached[:, 0]
        scores = reached.max(1)
    state, bits = int(scores.argmax()), np.empty(len(branches), np.uint8)
    for step in reversed(range(len(branches))):
        bits[step] = state >> (MEMORY - 1)
        state = (state << 1 | int(choices[step, state])) & ((1 << MEMORY) - 1)
    decoded = np.packbits(bits[BITS : 2 * BITS]).tobytes()
    nonce = decoded[:NONCE_BYTES]
    return nonce if decoded[NONCE_BYTES:] == _check(nonce) else None


def _check(nonce: bytes) -> bytes:
    return hashlib.sha256(b"anonface/v1 nonce" + nonce).digest()[:CHECK_BYTES]


def _windows() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every window of MEMORY + 1 bits, the newest the highest: its two outputs, 1 or -1, and the state before it."""
    windows = np.arange(2 << MEMORY)
    ones = [[(int(window) & generator).bit_count() for generator in GENERATORS] for window in windows]
    return 1 - 2 * (np.array(ones) % 2), windows & ((1 << MEMORY) - 1)


_OUTPUTS, _BEFORE = _windows()
