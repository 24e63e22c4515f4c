"""The pixel residual: what the renderer leaves open of a face, in waves down to a hundredth of the square's side.

A recovered face lacks what no latent draws: a crease, the edge of an eye, a shade. Slow and middle waves are most of
that to the eye, and some thousand numbers hold them. They are measured when a photo is anonymized, against the very
face that recovery will draw. The watermark holds as many of them, the slow ones first, as the face has room for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.crypto.keys import PayloadKey
from anonface.watermark import channel
from anonface.watermark.channel import FOURTH, THIRD, YCBCR, Channel, Reading
from anonface.watermark.payload import PayloadFormat

GRID = 256  # px along the side of the aligned square, on which waves are drawn
LEFT, TOP, WIDTH, HEIGHT = 0.18, 0.2, 0.64, 0.74  # of the square: where there can be a face
FADING = 0.04  # of the square: waves go on so far beyond the box and fade, as a turned face may reach out of it
ACROSS, DOWN = 82, 95  # cosines of the box, with up to 128 half waves along the square's side
# Usual size of a wave with f half waves along the square's side, of pictures in [-1, 1]: the first of each
# at the most, and the second over f.
USUAL = (2.0, 10.0), (0.32, 3.6)
HUES = 21, 5  # so much, in fifths, faster than a hue's is a wave of the lightness that matters as much
ROUNDS = 6  # of fitting waves to what the mask shows


@dataclass(frozen=True)
class Part:
    """A stretch of the waves, from slow to fast, its channel, and how many are written, as there is room."""

    channel: Channel
    kind: PayloadFormat
    counts: tuple[int, ...]


SLOW = Part(
    THIRD,
    PayloadFormat("detail", 1.1, 0.35),
    (1800, 1650, 1500, 1350, 1200, 1080, 960, 850, 750, 660, 580, 500, 420, 350, 280, 220),
)
FINE = Part(
    FOURTH,
    PayloadFormat("fine detail", 1.0, 0.35),
    (3600, 3350, 3100, 2850, 2600, 2350, 2100, 1850, 1600, 1350, 1150, 950, 800),
)
PARTS = SLOW, FINE


def encode(
    missing: Tensor, shown: Tensor, mask: Tensor, beside: int, key: PayloadKey
) -> tuple[Tensor | None, Tensor | None]:
    """Numbers of the third and the fourth channel for what is missing; None where too little of the face shows.

    Args:
        missing: original less drawn, [1, 3, R, R] in units of [-1, 1].
        shown: the finished face [1, 3, R, R] in [-1, 1], which will hold them.
        mask: where pixels may change, [1, 1, R, R] in 0..1.
        beside: how many numbers the second channel holds.
    """
    counts = []
    for part, others in zip(PARTS, (beside, None), strict=True):
        room = channel.room(part.channel, shown, mask, others)
        counts.append(next((count for count in part.counts if part.kind.length(count) <= room), 0))
    slow, fine = counts
    if not slow:
        return None, None
    numbers = measure(missing, mask, slow + fine, channel.is_grey(shown))
    first, second = numbers.split([slow, fine])
    return SLOW.kind.encode(first, key), FINE.kind.encode(second, key) if fine else None


def lengths() -> list[list[int]]:
    """How many numbers the third and the fourth channel may hold."""
    return [[part.kind.length(count) for count in part.counts] for part in PARTS]


def decode(readings: Sequence[Reading], side: int, grey: bool, key: PayloadKey | None) -> Tensor | None:
    """The picture [1, 3, side, side] to be added to what is drawn; None if there is none, or under another key.

    Args:
        readings: of the third and the fourth channel; the latter continues the former.
    """
    slow, fine = (part.kind.decode(one, key) for part, one in zip(PARTS, readings, strict=True))
    if slow is None:
        return None
    return picture_of(slow.numbers if fine is None else torch.cat([slow.numbers, fine.numbers]), side, grey)


def measure(missing: Tensor, mask: Tensor, count: int, grey: bool) -> Tensor:
    """What is missing of a picture, as so many numbers of about unit variance: [count].

    Args:
        missing: original less drawn, [1, 3, R, R] in units of [-1, 1].
        mask: where it matters, [1, 1, R, R] in 0..1.
    """
    planes = torch.einsum("pr,ryx->pyx", missing.new_tensor(YCBCR), F.adaptive_avg_pool2d(missing, GRID)[0])
    cover = F.adaptive_avg_pool2d(mask, GRID)[0, 0]
    across, down, places, usual = (x.to(planes) for x in (*_cosines_of_box(), *_waves(grey)))
    plane, rows, columns = places[:count].long().unbind(1)
    wave = planes.new_zeros(3, len(down), len(across))
    for _ in range(ROUNDS):  # outside the mask waves are free
        step = down @ (cover * (planes - down.T @ wave @ across)) @ across.T
        wave[plane, rows, columns] += step[plane, rows, columns]
    return wave[plane, rows, columns] / usual[:count]


def picture_of(numbers: Tensor, side: int, grey: bool) -> Tensor:
    """The picture that such numbers are, [1, 3, side, side]."""
    across, down, places, usual = (x.to(numbers) for x in (*_cosines_of_box(FADING), *_waves(grey)))
    plane, rows, columns = places[: len(numbers)].long().unbind(1)
    wave = numbers.new_zeros(3, len(down), len(across))
    wave[plane, rows, columns] = numbers * usual[: len(numbers)]
    planes = down.T @ wave @ across
    picture = torch.einsum("rp,pyx->ryx", torch.linalg.inv(planes.new_tensor(YCBCR)), planes)[None]
    return F.interpolate(picture, (side, side), mode="bicubic", align_corners=False)


@functools.cache
def _waves(grey: bool) -> tuple[Tensor, Tensor]:
    """All waves [n, 3] (plane, down, across) from slow to fast, and USUAL of each; a grey face has no hues."""
    places = torch.cartesian_prod(torch.arange(1 if grey else 3), torch.arange(DOWN), torch.arange(ACROSS))
    plane, down, across = places.unbind(1)
    hue = plane > 0
    speed = torch.hypot(down / HEIGHT, across / WIDTH)
    most, falling = torch.tensor(USUAL)[hue.long()].unbind(1)
    usual = torch.minimum(falling / speed.clamp_min(1), most)
    # in whole numbers: a machine that rounds otherwise must not exchange two waves
    squared = (round(100 * WIDTH) * down) ** 2 + (round(100 * HEIGHT) * across) ** 2
    order = (squared * torch.where(hue, HUES[0], HUES[1]) ** 2).argsort(stable=True)
    return places[order], usual[order]


@functools.cache
def _cosines_of_box(beyond: float = 0.0) -> tuple[Tensor, Tensor]:
    """Those across [ACROSS, GRID] and those down [DOWN, GRID]."""
    return _cosines(ACROSS, LEFT, WIDTH, beyond), _cosines(DOWN, TOP, HEIGHT, beyond)


def _cosines(number: int, start: float, length: float, beyond: float) -> Tensor:
    """Orthonormal cosines [number, GRID] of a stretch, on both sides of which they go on and fade to 0 within
    ``beyond``."""
    place = (torch.arange(GRID) + 0.5) / GRID
    waves = torch.cos(math.pi * torch.outer(torch.arange(number), (place - start) / length))
    outside = torch.maximum(start - place, place - start - length).clamp_min(0)
    near = (1 - outside / beyond).clamp_min(0) if beyond else (outside == 0).to(waves)
    return waves * near.square() * (3 - 2 * near) / (waves * (outside == 0)).norm(dim=1, keepdim=True)
