"""Synthetic artifacts of face replacement, at known places of a picture, for training the realism critic.

A critic trained only on renders of the generator does not penalise artifacts that these do not show, and optimisation
would find them. So typical artifacts are painted into pictures.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.training.data import uniform

RIMMED = 0.25  # share of the pictures with painted rims of glasses
# Ranges in shares of the side: middle between the eyes, half their distance, their height, half width and height of a
# lens.
EYES_AND_LENSES = ((0.48, 0.52), (0.115, 0.135), (0.45, 0.51), (0.085, 0.115), (0.06, 0.095))
RIM, ABOUT_RIMS = (0.002, 0.007), 0.03  # thickness of rims, and the width of the region around them that is marked
MOST = 3  # largest number of other artifacts in a picture
# ranges, in shares of the side: half length and half width of an artifact, and half width of a strand
LONG, WIDE, THIN = (0.04, 0.14), (0.03, 0.09), (0.003, 0.012)
STRENGTH = (0.35, 0.9)
SHIFTED = 4  # largest offset in px of the other face in a ghost
WARP = 0.12  # standard deviation of a displacement, in units of half the side
BLURRED = 13  # px of the box filter


def with_artifacts(pictures: Tensor, others: Tensor, masks: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures with random artifacts: ghosts, pale, tinted, blurred or warped places, strands, and rims of glasses.

    Args:
        pictures: FFHQ-aligned faces [n, 3, S, S] in [-1, 1].
        others: the same photos with other faces; they are the ghosts.
        masks: of the faces, [n, 1, S, S] in 0..1; where one is empty, the picture is unchanged.

    Returns:
        The pictures, and maps of the artifacts [n, 1, S, S] in 0..1.
    """
    each = [_with_artifacts(*one, rng) for one in zip(pictures, others, masks, strict=True)]
    return torch.stack([picture for picture, _ in each]), torch.stack([where for _, where in each])


def _with_artifacts(picture: Tensor, other: Tensor, mask: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
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
        artifact, bow = ARTIFACTS[int(torch.randint(len(ARTIFACTS), (), generator=rng))], 0.0
        if artifact is _strand:
            wide, bow = uniform(rng, *THIN), uniform(rng, -1, 1)
        bell = _soft_ellipse(picture.shape[-1], centre, angle, long, wide, bow) * mask[0]
        share = bell * uniform(rng, *STRENGTH)
        picture = artifact(picture, other, bell, share, rng).clamp(-1, 1)
        where = torch.maximum(where, bell[None])
    return picture, where


def _soft_ellipse(side: int, centre: Tensor, angle: float, long: float, wide: float, bow: float) -> Tensor:
    """A map [side, side] in 0..1: flat inside an ellipse about ``centre`` (row, column), rotated and bent."""
    places = torch.arange(side) + 0.5
    y, x = places[:, None] - centre[0], places[None, :] - centre[1]
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    across = across + along.square() / side * bow
    return torch.exp(-((along / (long * side)).square() + (across / (wide * side)).square()).square())


# Each function returns the picture [3, S, S] with one artifact. ``bell`` [S, S] is its map, ``share`` the same times
# its strength.


def _ghost(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    down, right = torch.randint(-SHIFTED, SHIFTED + 1, (2,), generator=rng).tolist()
    return picture + share * (other.roll((down, right), (1, 2)) - picture)


def _pale(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    mean = (picture * bell).sum((1, 2), keepdim=True) / bell.sum().clamp_min(1.0)
    return picture + share * (mean + uniform(rng, -0.3, 0.4) - picture)


def _tint(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    return picture + share * 0.5 * torch.randn(3, 1, 1, generator=rng)


def _blur(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    around = F.pad(picture[None], [BLURRED // 2] * 4, mode="replicate")
    return picture + share * (F.avg_pool2d(around, BLURRED, 1)[0] - picture)


def _warp(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    still = F.affine_grid(torch.eye(2, 3)[None], [1, *picture.shape], False)
    moved = still + share[..., None] * WARP * torch.randn(2, generator=rng)
    return picture + bell * (
        F.grid_sample(picture[None], moved, "bilinear", "border", align_corners=False)[0] - picture
    )


def _strand(picture: Tensor, other: Tensor, bell: Tensor, share: Tensor, rng: torch.Generator) -> Tensor:
    return picture + share * (picture.amin((1, 2), keepdim=True) + uniform(rng, 0, 0.5) - picture)


ARTIFACTS = (_ghost, _pale, _tint, _blur, _warp, _strand)


def _rims(side: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Maps of rims of glasses on an FFHQ-aligned face, and of the region around them, [1, side, side] in 0..1 each."""
    places = (torch.arange(side) + 0.5) / side
    middle, apart, y, wide, high = (uniform(rng, *ends) for ends in EYES_AND_LENSES)
    thick = uniform(rng, *RIM)
    down = ((places[:, None] - y) / high).square()
    rounds = [(((places[None, :] - x) / wide).square() + down).sqrt() for x in (middle - apart, middle + apart)]
    off = high * (torch.stack(rounds) - 1).abs().amin(0)
    rims, about = (torch.exp(-(off / reach).square())[None] for reach in (thick, ABOUT_RIMS))
    return rims, about
