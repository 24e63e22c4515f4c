"""The target identity: which synthetic person a hidden code becomes.

No face embeds to a keyed code, and a face that is pushed towards one looks like no photo. So the code draws styles of
the generator. ``models/latent_attributes.py`` predicts their looks before they are drawn. Candidates without glasses,
hat or fringe come first, of the photo's sex, age and skin tone, and in plain light.

A candidate gets the photo's pose, expression and light. The photo is inverted into styles, one for each code of
StyleGAN2 (``models/inversion.py``). There, or half way to an average face, the candidate's features replace the
original's. Features are what attribute regression does not explain of a person. ``refinement.Scene.rank`` chooses among
the candidates in the photo. The same code always gives the same candidates. The watermark holds the code itself.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.backends.ifadit.refinement import CERTAIN, Networks
from anonface.crypto.keyed_noise import hartley
from anonface.faces.analysis import FaceAnalysis
from anonface.models.identity import CONDITIONS, KEPT
from anonface.models.inversion import CODE_OF_LATENT
from anonface.models.latent_attributes import SALIENT, LatentAttributes, columns

DECADE = 10.0  # years by which ages may differ
FEATURED = 12  # codes in which features lie; the finest hold grain and colour, which stay the photo's
SHADE, FILM = 0.5, 1.0  # deviations of light across a face, and of a picture, up to which they are plain
WORN = 2.0  # how much more glasses, a hat and a fringe count than anything else that is unusual
SIDE, TOGETHER = 256, 4  # px of drawn candidates, and how many at a time
STYLE_LABEL = b"anonface/v1 persona"


@dataclass(frozen=True)
class Exchange:
    """How a candidate's features replace those of the photo.

    Attributes:
        photo: the share of the photo's latents, beside those of an average face of its pose and light.
        left: how much of the features there is removed.
        own: how much of the candidate's features is added. Above 1 keys differ more, but some faces look distorted.
    """

    photo: float
    left: float
    own: float


PLAIN, BOLD = Exchange(1.0, 1.0, 1.0), Exchange(0.5, 1.0, 1.4)


@dataclass(frozen=True)
class TargetParams:
    """How candidates are chosen.

    Attributes:
        styles: how many are drawn.
        likely: how many of them fit the photo best by attribute regression.
        tried: how many of those are drawn in the photo: the farthest in the code's direction (:func:`key_direction`).
        exchanges: each candidate is tried in all these ways.
        free: conditions that the code decides, not the photo.
    """

    styles: int = 32768
    likely: int = 4096
    tried: int = 16
    exchanges: tuple[Exchange, ...] = (PLAIN, BOLD)
    free: tuple[str, ...] = ()


SEVERAL = TargetParams()
SINGLE = TargetParams(styles=2048, likely=32, tried=1, exchanges=(BOLD,))  # nothing checks how it fits
WRONG_KEY = TargetParams(styles=512, likely=12, tried=12)  # of wrong-key faces


@torch.no_grad()
def target_identities(
    hidden: Tensor,
    analysis: FaceAnalysis,
    average: Tensor,
    networks: Networks,
    mapping: nn.Module,
    params: TargetParams,
) -> tuple[list[Tensor], list[Tensor]]:
    """Candidates in the photo's pose and light, best first, and the same face without anybody's features.

    Args:
        hidden: unit code [1, 448].
        analysis: of the aligned photo.
        average: latents [1, n, 512] of an average face in the photo's pose and light.

    Returns:
        Latents [1, n, 512] of each, by exchange and then by candidate, and one by exchange without features: what all
        candidates of all keys have in common in this photo.
    """
    regressor, codes = networks.regressor, CODE_OF_LATENT[: average.shape[1]]
    candidates = regressor.features(likeliest_styles(hidden, analysis, regressor, mapping, params))
    photo = networks.inversion.to_w(networks.inversion(analysis.face)[0])[:, list(codes)]
    first = sum(code < FEATURED for code in codes)

    def placed(person: Tensor, how: Exchange) -> Tensor:
        return exchanged(torch.lerp(average, photo, how.photo), person, regressor, how.left, how.own, first)

    there = [placed(person, how) for how in params.exchanges for person in candidates]
    return there, [placed(torch.zeros_like(candidates[0]), how) for how in params.exchanges]


def exchanged(
    codes: Tensor, features: Tensor, regressor: LatentAttributes, left: float, own: float, first: int = FEATURED
) -> Tensor:
    """Codes or latents [1, n, 512] whose ``first`` ones have ``own`` times other features [512] instead of ``left``
    times their own."""
    codes = codes.clone()
    codes[:, :first] += own * features - left * regressor.features(codes[:, :first])
    return codes


@torch.no_grad()
def wrong_key_identities(
    hidden: Tensor, kept: int, analysis: FaceAnalysis, networks: Networks, mapping: nn.Module
) -> tuple[Tensor, Tensor]:
    """Candidates for a wrong-key face, for the mapper to draw. In latents of the anonymized face, as those of
    :func:`target_identities`, they would be too like the original.

    Returns:
        Unit codes [n, 448] without what all candidates share, whose first ``kept`` coordinates are the hidden one's,
        and for each what to add to the first FEATURED of the mapper's latents, [n, 512].
    """
    w = likeliest_styles(hidden, analysis, networks.regressor, mapping, WRONG_KEY)
    faces = (networks.generator.synthesize(some[:, None], SIDE) for some in w.split(TOGETHER))
    codes = torch.cat([networks.encoder(some) for some in faces])
    wanted = hidden[:, :kept].to(codes).expand(len(codes), -1)
    own = F.normalize(codes[:, kept:] - codes[:, kept:].mean(0, keepdim=True), dim=1)
    rest = (1 - wanted.square().sum(1, keepdim=True)).clamp_min(0).sqrt()
    return torch.cat([wanted, rest * own], dim=1), networks.regressor.features(w) / 2


@torch.no_grad()
def likeliest_styles(
    hidden: Tensor, analysis: FaceAnalysis, regressor: LatentAttributes, mapping: nn.Module, params: TargetParams
) -> Tensor:
    """Styles [tried, 512] that fit by attribute regression, the most distinctive first; see :class:`TargetParams`."""
    w = mapping(styles(hidden, params.styles).to(next(mapping.parameters()))).to(analysis.face)
    likely = w[
        attribute_mismatch(regressor(w), regressor, hidden, analysis.seems, params.free).argsort(stable=True)[
            : params.likely
        ]
    ]
    out = (regressor.salient_features(likely) @ key_direction(hidden).to(likely)).argsort(stable=True, descending=True)
    return likely[out[: params.tried]]


def key_direction(hidden: Tensor) -> Tensor:
    """A code's direction among the features by which recognizers tell people apart most: a unit vector [SALIENT].

    Each key's code gives another direction, so target identities of two keys differ more than any two people. It
    depends on the keyed coordinates alone, as all keys share the others.
    """
    keyed = F.pad(hidden[:, KEPT:], (KEPT, 0))
    return F.normalize(styles(keyed, 1)[0, :SALIENT], dim=0)


def styles(hidden: Tensor, count: int) -> Tensor:
    """Styles [count, 512] drawn by a code [1, 448], which is spread over all coordinates; signs tell styles apart."""
    first, signs = _signs(count)
    spread = hartley(first * F.pad(hidden.cpu().double(), (0, 512 - hidden.shape[1])))
    return signs * (spread * 512**0.5).float()


@functools.cache
def _signs(count: int) -> tuple[Tensor, Tensor]:
    stream = np.frombuffer(hashlib.shake_256(STYLE_LABEL).digest(64 * (count + 1)), np.uint8)
    signs = torch.from_numpy(np.unpackbits(stream).view(np.int8) * 2 - 1).view(-1, 512)  # a byte each: there are many
    return signs[:1], signs[1:]


def attribute_mismatch(
    read: Tensor, regressor: LatentAttributes, hidden: Tensor, seems: Tensor, free: tuple[str, ...] = ()
) -> Tensor:
    """How little candidates fit, [n], by their regressed attributes [n, ATTRIBUTES].

    It is 0 for a candidate who wears no more than usual, in plain light, surely of the photo's apparent sex, within ten
    years of its apparent age (``seems``, [2]), and of about the skin tone that the code ``hidden`` [1, 448] keeps. It
    does not rank candidates beyond that, so that two keys' candidates stay different.
    """
    off_usual = (read - regressor.usual) / regressor.spread
    strange = WORN * off_usual[:, columns("worn")].clamp_min(0).sum(1)
    for name, plain in (("light", SHADE), ("picture", FILM)):
        strange = strange + (off_usual[:, columns(name)].abs() - plain).clamp_min(0).sum(1)
    for name, where in CONDITIONS.items():
        if name == "sex" and name not in free:
            # a candidate of uncertain sex looks like neither
            off = (CERTAIN - torch.where(seems[0] > 0, 1.0, -1.0) * read[:, columns("sex")][:, 0]) / CERTAIN
        elif name == "age" and name not in free:
            off = (read[:, columns("age")][:, 0] - seems[1]).abs() / DECADE - 1
        else:
            off = (read[:, where] - hidden[:, where].to(read)).norm(dim=1) / regressor.spread[where].norm() - 1
        strange = strange + off.clamp_min(0)
    return strange
