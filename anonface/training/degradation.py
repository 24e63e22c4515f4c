"""Faults made by hand: what goes wrong where a face is put into a photo, at known places of a known picture.

``realism_critic.py``: they show what the generator does wrong, and a critic that has learnt only from them minds no
fault that steps have not found yet. These are what such faults look like, whoever makes them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.training.data import uniform

RIMMED = 0.25  # share of the pictures in which eyes have rims about them
# of the middle between eyes and of half their distance, in shares of the side, of their height, and of half a lens
EYES_AND_LENSES = ((0.48, 0.52), (0.115, 0.135), (0.45, 0.51), (0.085, 0.115), (0.06, 0.095))
RIM, ABOUT_RIMS = (0.002, 0.007), 0.03  # how thick rims are, and how far about one something is amiss
MOST = 3  # further faults in a picture
# of the side: half of how long and how wide a fault is, and a strand
LONG, WIDE, THIN = (0.04, 0.14), (0.03, 0.09), (0.003, 0.012)
STRENGTH = (0.35, 0.9)
SHIFTED = 4  # px by which another face that shines through lies otherwise
BENT = 0.12  # deviation of a displacement, in halves of the side
BLURRED = 13  # px of a box


def spoilt(pictures: Tensor, others: Tensor, masks: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures in which another face shines through, or a place is pale, tinted, blurred, bent, or crossed by a strand,
    or eyes have rims about them.

    Args:
        pictures: FFHQ-aligned faces [n, 3, S, S] in [-1, 1].
        others: of somebody else in the same places.
        masks: of the faces, [n, 1, S, S] in 0..1; where one is empty, nothing is spoilt.

    Returns:
        Such pictures, and where in 0..1 they are spoilt, [n, 1, S, S].
    """
    each = [_spoilt(*one, rng) for one in zip(pictures, others, masks, strict=True)]
    return torch.stack([picture for picture, _ in each]), torch.stack([where for _, where in each])


def _spoilt(picture: Tensor, other: Tensor, mask: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    where, inside = torch.zeros_like(mask), (mask[0] > 0.9).nonzero()
    if not len(inside):
        return picture, where
    if torch.rand((), generator=rng) < RIMMED:
        rims, about = _rims(picture.shape[-1], rng)
        colour = uniform(rng, -1, 0.2) + 0.2 * torch.rand(3, 1, 1, generator=rng)
        picture, where = picture + rims * mask * (colour - picture), about * mask
    for _ in range(int(torch.randint(1, MOST + 1, (), generator=rng))):
        centre = inside[int(torch.randint(len(inside), (), generator=rng))]
        angle, long, wide = (uniform(rng, *ends) for ends in ((0.0, math.pi), LONG, WIDE))
        fault, bow = FAULTS[int(torch.randint(len(FAULTS), (), generator=rng))], 0.0
        if fault is _stranded:
            wide, bow = uniform(rng, *THIN), uniform(rng, -1, 1)
        bell = _bell(picture.shape[-1], centre, angle, long, wide, bow) * mask[0]
        share = bell * uniform(rng, *STRENGTH)
        picture = fault(picture, other, bell, share, rng).clamp(-1, 1)
        where = torch.maximum(where, bell[None])
    return picture, where


def _bell(side: int, centre: Tensor, angle: float, long: float, wide: float, bow: float) -> Tensor:
    """[side, side] in 0..1 about a place (row, column): flat within, its axis turned by an angle and bowed."""
    places = torch.arange(side) + 0.5
    y, x = places[:, None] - centre[0], places[None, :] - centre[1]
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    across = across + along.square() / side * bow
    return torch.exp(-((along / (long * side)).square() + (across / (wide * side)).square()).square())


# Each returns a picture [3, S, S] of which ``share`` [S, S], its ``bell`` weakened, is spoilt.


def _shining_through(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    down, right = torch.randint(-SHIFTED, SHIFTED + 1, (2,), generator=rng).tolist()
    return picture + share * (other.roll((down, right), (1, 2)) - picture)


def _pale(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    mean = (picture * bell).sum((1, 2), keepdim=True) / bell.sum().clamp_min(1.0)
    return picture + share * (mean + uniform(rng, -0.3, 0.4) - picture)


def _tinted(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    return picture + share * 0.5 * torch.randn(3, 1, 1, generator=rng)


def _blurred(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    around = F.pad(picture[None], [BLURRED // 2] * 4, mode="replicate")
    return picture + share * (F.avg_pool2d(around, BLURRED, 1)[0] - picture)


def _bent(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    still = F.affine_grid(torch.eye(2, 3)[None], [1, *picture.shape], False)
    moved = still + share[..., None] * BENT * torch.randn(2, generator=rng)
    return picture + bell * (
        F.grid_sample(picture[None], moved, "bilinear", "border", align_corners=False)[0] - picture
    )


def _stranded(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    return picture + share * (picture.amin((1, 2), keepdim=True) + uniform(rng, 0, 0.5) - picture)


FAULTS = (_shining_through, _pale, _tinted, _blurred, _bent, _stranded)


def _rims(side: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Where rims of glasses are, about the eyes of an FFHQ-aligned face, and what lies about them, each [1, side, side]
    in 0..1."""
    places = (torch.arange(side) + 0.5) / side
    middle, apart, y, wide, high = (uniform(rng, *ends) for ends in EYES_AND_LENSES)
    thick = uniform(rng, *RIM)
    down = ((places[:, None] - y) / high).square()
    rounds = [(((places[None, :] - x) / wide).square() + down).sqrt() for x in (middle - apart, middle + apart)]
    off = high * (torch.stack(rounds) - 1).abs().amin(0)
    rims, about = (torch.exp(-(off / reach).square())[None] for reach in (thick, ABOUT_RIMS))
    return rims, about
