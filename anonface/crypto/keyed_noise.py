"""Keyed transforms of Gaussian latents: each is its own inverse and leaves their distribution alone."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from anonface.crypto.keys import FaceKey

# Of the logarithm of a region's length over the square root of its elements: where it lies, and the logistic spread
# about it, of inverted photos; and the least share, beyond which lengths are no photo's.
LENGTHS, RAREST = (-0.265, 0.04), 1e-4


def signs(key: FaceKey, purpose: str, count: int) -> Tensor:
    """``count`` values +1 or -1, float64: the bits of the key's stream, lowest of each byte first."""
    stream = np.frombuffer(key.stream(purpose, -(-count // 8)), np.uint8)
    return torch.from_numpy(np.unpackbits(stream, count=count, bitorder="little") * 2.0 - 1)


def flip(latents: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
    """The sign-flip paper's transform, equations 4 and 6: a Rademacher vector times the latents inside the mask.

    Args:
        latents: [C, S, S]. Every element has its own sign, whatever the mask.
        mask: bool [S, S].
    """
    flips = signs(key, "sign", latents.numel()).to(latents).view_as(latents)
    return torch.where(mask, flips * latents, latents)


def mix(latents: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
    """A keyed orthogonal involution over all elements inside the mask together.

    M = Q^T D Q with D of keyed signs and Q = H D2 H D1, H being the orthonormal Hartley transform. Unlike a sign flip
    it keeps no |z|, and, Q being keyed too, none in any basis that can be known without the key; H D H alone would
    keep \\|H z\\|. The length becomes another one. Computed in float64 on the CPU, so that both ends agree on every
    device.

    Args:
        latents: [C, S, S].
        mask: bool [S, S]; the same at both ends, since a cell more or less changes everything.
    """
    inside = latents[:, mask]
    x = inside.double().cpu().flatten()
    first, second, middle = signs(key, "mix", 3 * len(x)).view(3, -1)
    x = hartley(second * hartley(first * x))
    x = first * hartley(second * hartley(middle * x))
    x *= other_length(float(x.norm()), len(x), key) / x.norm().clamp_min(1e-9)
    mixed = latents.clone()
    mixed[:, mask] = x.view_as(inside).to(latents)
    return mixed


def other_length(length: float, count: int, key: FaceKey) -> float:
    """The length that ``count`` mixed elements get: a keyed involution, for no orthogonal map hides a length.

    Logarithms of lengths are taken as logistic about LENGTHS, which turns them into shares of 0 to 1; the key's share
    less such a share, round the circle, is evenly spread whatever the share was, and made a length again. Lengths far
    beyond those of photos, of which an undertrained network makes some, stay what they are.
    """
    middle, spread = LENGTHS
    turn = int.from_bytes(key.stream("length", 8), "big") / 2**64
    place = (math.log(max(length, 1e-9) / count**0.5) - middle) / spread
    if abs(place) > math.log(1 / RAREST - 1):
        return length
    share = 1 / (1 + math.exp(-place))
    other = min(max((turn - share) % 1.0, RAREST), 1 - RAREST)
    return count**0.5 * math.exp(middle + spread * math.log(other / (1 - other)))


def hartley(x: Tensor) -> Tensor:
    """The orthonormal discrete Hartley transform over the last axis: symmetric, its own inverse, for any length."""
    spectrum = torch.fft.fft(x)
    return (spectrum.real - spectrum.imag) / math.sqrt(x.shape[-1])


def background_noise(key: FaceKey, shape: torch.Size) -> Tensor:
    """Standard normal noise of a face's key, float32 [C, S, S]."""
    return torch.from_numpy(key.normal("background", math.prod(shape)).astype(np.float32)).view(shape)


def signs_of_seed(seed: int, count: int, shape: tuple[int, ...]) -> Tensor:
    """The keys [count, *shape] that the sign-flip authors' script draws from a seed on a CPU.

    For their published results only: a key has 32 bits at most, and their runs drew on CUDA, whose stream is another.
    """
    seeds = torch.randint(2**32, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([_signs_of_own_seed(int(own), shape) for own in seeds])


def _signs_of_own_seed(seed: int, shape: tuple[int, ...]) -> Tensor:
    half = torch.full(shape, 0.5)
    return torch.bernoulli(half, generator=torch.Generator().manual_seed(seed)) * 2 - 1
