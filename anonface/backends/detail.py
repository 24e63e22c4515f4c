"""Detail: what the generator's latents leave open of a face, in waves down to a fortieth of the square's side.

A restored face lacks what no latent draws: a crease, the very rim of an eye, a shade. Slow and middle waves are most of
that to the eye, and some thousand numbers hold them. They are found when a photo is anonymized, against the very
face that recovery will draw, and said by the finished photo under the veil.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends import watermark
from anonface.backends.message import Kind
from anonface.backends.watermark import YCBCR, Reading
from anonface.keys import FaceKey

GRID = 128  # px along the side of the aligned square, on which waves are drawn
LEFT, TOP, WIDTH, HEIGHT = 0.18, 0.2, 0.64, 0.74  # of the square: where there can be a face
# What is usually open of a wave with f half waves along the square's side, of pictures in [-1, 1]: the first of each
# at the most, and the second over f.
USUAL = (1.0, 5.0), (0.16, 1.8)
ROUNDS = 4  # of fitting waves to what the mask shows


@dataclass(frozen=True)
class Waves:
    """How many waves across and down the box, up to which those of the lightness and of the hues are said."""

    lightness: tuple[int, int]
    hues: tuple[int, int]


# As many are said as the face that shows has room for.
SIZES = (
    Waves((46, 54), (11, 13)),
    Waves((42, 49), (10, 12)),
    Waves((38, 45), (9, 11)),
    Waves((35, 41), (8, 9)),
    Waves((32, 38), (8, 9)),
    Waves((29, 34), (8, 9)),
    Waves((26, 30), (7, 8)),
    Waves((23, 27), (6, 7)),
    Waves((20, 24), (6, 7)),
)
KIND = Kind("detail", 1.0, 0.35)


def told(missing: Tensor, shown: Tensor, mask: Tensor, beside: int, key: FaceKey) -> Tensor | None:
    """What the third channel is to say of what is missing; None where too little of the face shows.

    Args:
        missing: original less drawn, [1, 3, R, R] in units of [-1, 1].
        shown: the finished face [1, 3, R, R] in [-1, 1], which will say it.
        mask: where pixels may change, [1, 1, R, R] in 0..1.
        beside: how many numbers the second channel says.
    """
    grey, room = watermark.is_grey(shown), watermark.room_beside(shown, mask, beside)
    waves = next((waves for waves in SIZES if KIND.length(count(waves, grey)) <= room), None)
    return None if waves is None else KIND.packed(measured(missing, mask, waves, grey), key)


def lengths(grey: bool) -> list[int]:
    """How many numbers the third channel may say."""
    return [KIND.length(count(waves, grey)) for waves in SIZES]


def heard(said: Reading, side: int, grey: bool, key: FaceKey) -> Tensor | None:
    """The picture [1, 3, side, side] to be added to what is drawn; None where none is said, or to another key."""
    numbers = KIND.unpacked(said, key)
    if numbers is None:
        return None
    return drawn(numbers, side, SIZES[lengths(grey).index(len(said.values))], grey)


def count(waves: Waves, grey: bool) -> int:
    """How many numbers say a face's detail; a grey one has no hues."""
    return sum(_lengths(waves, grey))


def measured(missing: Tensor, mask: Tensor, waves: Waves, grey: bool) -> Tensor:
    """What is missing of a picture, as numbers of about unit variance: [count].

    Args:
        missing: original less drawn, [1, 3, R, R] in units of [-1, 1].
        mask: where it matters, [1, 1, R, R] in 0..1.
    """
    planes = torch.einsum("pr,ryx->pyx", missing.new_tensor(YCBCR), F.adaptive_avg_pool2d(missing, GRID)[0])
    cover, numbers = F.adaptive_avg_pool2d(mask, GRID)[0, 0], []
    for number, plane in enumerate(planes[:1] if grey else planes):
        across, down, places, usual = (x.to(plane) for x in _waves(waves, number))
        rows, columns = places.long().unbind(1)
        wave = plane.new_zeros(len(down), len(across))
        for _ in range(ROUNDS):  # outside the mask waves may do what they like
            step = down @ (cover * (plane - down.T @ wave @ across)) @ across.T
            wave[rows, columns] += step[rows, columns]
        numbers.append(wave[rows, columns] / usual)
    return torch.cat(numbers)


def drawn(numbers: Tensor, side: int, waves: Waves, grey: bool) -> Tensor:
    """The picture that such numbers are, [1, 3, side, side]."""
    planes = numbers.new_zeros(3, GRID, GRID)
    for number, values in enumerate(numbers.split(_lengths(waves, grey))):
        across, down, places, usual = (x.to(numbers) for x in _waves(waves, number))
        wave = numbers.new_zeros(len(down), len(across))
        rows, columns = places.long().unbind(1)
        wave[rows, columns] = values * usual
        planes[number] = down.T @ wave @ across
    picture = torch.einsum("rp,pyx->ryx", torch.linalg.inv(planes.new_tensor(YCBCR)), planes)[None]
    return F.interpolate(picture, (side, side), mode="bicubic", align_corners=False)


def _lengths(waves: Waves, grey: bool) -> list[int]:
    return [len(_waves(waves, plane)[2]) for plane in range(1 if grey else 3)]


@functools.cache
def _waves(waves: Waves, plane: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cosines across [a, GRID] and down [d, GRID], the pairs [n, 2] (down, across) that are said, and USUAL of each."""
    a, d = waves.hues if plane else waves.lightness
    across, down = torch.meshgrid(torch.arange(a), torch.arange(d), indexing="xy")
    said = (across / a) ** 2 + (down / d) ** 2 < 1
    places = torch.stack([down[said], across[said]], 1)
    most, falling = USUAL[plane > 0]
    speed = torch.hypot(places[:, 0] / HEIGHT, places[:, 1] / WIDTH)
    return _cosines(a, LEFT, WIDTH), _cosines(d, TOP, HEIGHT), places, (falling / speed.clamp_min(1)).clamp_max(most)


def _cosines(number: int, start: float, length: float) -> Tensor:
    """Orthonormal cosines [number, GRID], 0 outside the stretch."""
    along = ((torch.arange(GRID) + 0.5) / GRID - start) / length
    waves = torch.cos(math.pi * torch.outer(torch.arange(number), along)) * ((along > 0) & (along < 1))
    return waves / waves.norm(dim=1, keepdim=True)
