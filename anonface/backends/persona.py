"""The persona: who a hidden code becomes to the eye.

A keyed code is nobody's: no face embeds to it, and a face that is pushed towards it looks like no photo. So the code
draws styles of the generator, and those make people. The *census* (``models/census.py``) knows them before they are
drawn: those come first who wear neither glasses nor hat nor fringe and are of the photo's sex, age and skin tone. The
mapper gives them the photo's pose and mouth, and who is cast is seen in the photo (``refine.Scene.best``).

To a recognizer people have something in common, and two keys' people in one photo the more: so a person's code is given
less what all have in common, and the mapper's latents some of what is the person's alone. The same code always casts
alike, and near codes mostly do. The watermark says the code itself.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.backends.keyed_noise import hartley
from anonface.backends.refine import CERTAIN, Networks
from anonface.models.census import AGE, SEX, WORN, Census
from anonface.models.identity import CONDITIONS

SIDE = 256  # px of the people who are looked at
TOGETHER = 4  # of them at a time; the more, the more memory
DECADE = 10.0  # years by which ages may differ
FEATURED = 12  # latents that get a person's features; the finest would bring their grain and light
STYLE_LABEL = b"anonface/v1 persona"


@dataclass(frozen=True)
class CastParams:
    """How many styles the census asks about, how many of these people are drawn, and for how many of them the photo is
    tried.

    ``common`` is the share of what all who are drawn have in common that a code leaves out, ``own`` that of a person's
    own features which the mapper's latents get beside the code. ``free`` names conditions that the code says, not the
    photo.
    """

    styles: int = 512
    people: int = 24
    tried: int = 24
    common: float = 1.0
    own: float = 0.5
    free: tuple[str, ...] = ()


USUAL = CastParams()
QUICK = CastParams(people=1, tried=1, common=0.0)  # one alone has all in common with oneself
STRANGER = CastParams(people=12, tried=1)  # of a wrong key


@torch.no_grad()
def cast(
    hidden: Tensor, kept: int, face: Tensor, networks: Networks, mapping: nn.Module, params: CastParams
) -> tuple[Tensor, Tensor]:
    """People whom the generator can draw, likeliest first.

    Args:
        hidden: unit code [1, 448], of which the first ``kept`` coordinates are kept as they are.
        face: the aligned photo, [1, 3, R, R] in [-1, 1].

    Returns:
        Codes [n, 448], of unit length, and what is to be added to the mapper's latents of each, [n, FEATURED, 512].
    """
    w = mapping(styles(hidden, params.styles).to(next(mapping.parameters()))).to(face)
    census = networks.census
    likely = strangeness(census(w), census, hidden, networks.apparent(face)[0], params.free).argsort(stable=True)
    w = w[likely[: params.people]]
    code = _codes(w, networks)
    wanted, common = hidden[:, :kept].to(code), code[:, kept:].mean(0, keepdim=True)
    own = F.normalize(code[: params.tried, kept:] - params.common * common, dim=1)
    rest = (1 - wanted.square().sum(1, keepdim=True)).clamp_min(0).sqrt()
    features = params.own * census.features(w[: params.tried])
    return torch.cat([wanted.expand(len(own), -1), rest * own], dim=1), features[:, None].expand(-1, FEATURED, -1)


def styles(hidden: Tensor, count: int) -> Tensor:
    """Styles [count, 512] drawn by a code [1, 448], which is spread over all coordinates; signs tell styles apart."""
    first, signs = _signs(count)
    spread = hartley(first * F.pad(hidden.cpu().double(), (0, 512 - hidden.shape[1])))
    return (signs * spread * 512**0.5).float()


@functools.cache
def _signs(count: int) -> tuple[Tensor, Tensor]:
    stream = np.frombuffer(hashlib.shake_256(STYLE_LABEL).digest(64 * (count + 1)), np.uint8)
    signs = torch.from_numpy(np.unpackbits(stream) * 2.0 - 1).view(-1, 512)
    return signs[:1], signs[1:]


def strangeness(read: Tensor, census: Census, hidden: Tensor, seems: Tensor, free: tuple[str, ...] = ()) -> Tensor:
    """How little people fit, [n], by what the census tells of them, [n, READINGS].

    Nothing is counted against whoever wears less than is usual, is surely of the sex and within ten years of the age
    that the photo ``seems``, [2], and has about the skin tone that the code ``hidden`` [1, 448] keeps; of these they
    do not choose among themselves, so that two keys' people stay different.
    """
    strange = ((read - census.usual) / census.spread)[:, -len(WORN) :].clamp_min(0).sum(1)
    for name, where in CONDITIONS.items():
        if name == "sex" and name not in free:
            # in doubt any sex is right that is certain: what is between looks like neither
            off = (CERTAIN - torch.where(seems[0] > 0, 1.0, -1.0) * read[:, SEX]) / CERTAIN
        elif name == "age" and name not in free:
            off = (read[:, AGE] - seems[1]).abs() / DECADE - 1
        else:
            off = (read[:, where] - hidden[:, where].to(read)).norm(dim=1) / census.spread[where].norm() - 1
        strange = strange + off.clamp_min(0)
    return strange


def _codes(w: Tensor, networks: Networks) -> Tensor:
    """Identity codes [n, 448] of the people of some styles [n, 512]."""
    return torch.cat(
        [networks.encoder(networks.generator.synthesize(some[:, None], SIDE)) for some in w.split(TOGETHER)]
    )
