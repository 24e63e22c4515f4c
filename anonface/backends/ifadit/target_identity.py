"""The persona: who a hidden code becomes to the eye.

A keyed code is nobody's: no face embeds to it, and a face that is pushed towards it looks like no photo. So the code
draws styles of the generator, and those make people. ``models/latent_attributes.py`` knows them before they are
drawn: those come first who wear neither glasses nor hat nor fringe, are of the photo's sex, age and skin tone, and were
photographed in plain light.

Whoever is cast gets the photo's pose, expression and light by standing where the original stood: the photo is inverted
into styles, one for each code of StyleGAN2 (``models/inversion.py``), and there, or half way to an average face, the
original's own features make way for theirs. Features are what the census does not read of a person; the rest stays as
it is. Who is taken of those cast is seen in the photo (``refine.Scene.ranked``). The same code always casts alike, and
near codes mostly do. The watermark says the code itself.
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
from anonface.faces.analysis import Sight
from anonface.models.identity import CONDITIONS, KEPT
from anonface.models.inversion import CODE_OF_LATENT
from anonface.models.latent_attributes import SALIENT, LatentAttributes, columns

DECADE = 10.0  # years by which ages may differ
FEATURED = 12  # codes in which features lie; the finest hold grain and colour, which stay the photo's
SHADE, FILM = 0.5, 1.0  # deviations of light across a face, and of a picture, up to which they are plain
WORN = 2.0  # how much more glasses, a hat and a fringe count than anything else that is unusual
SIDE, TOGETHER = 256, 4  # px of the people who are drawn, and how many at a time
STYLE_LABEL = b"anonface/v1 persona"


@dataclass(frozen=True)
class Exchange:
    """How somebody comes to stand in a photo: ``photo`` is the share of its latents, beside those of an average face of
    its pose and light, ``left`` how much of the features there makes way, ``own`` how much of a person's takes their
    place. Beyond 1 the average face of all keys does not show through, but not everybody bears it."""

    photo: float
    left: float
    own: float


PLAIN, BOLD = Exchange(1.0, 1.0, 1.0), Exchange(0.5, 1.0, 1.4)


@dataclass(frozen=True)
class CastParams:
    """How many styles the census asks about, how many of these people are ``likely``, and how many of those are tried
    in the photo: who lies farthest out the way that the code says (:func:`bearing`).

    Each is tried as often as there are ``exchanges``: what suits one photo bends another's face. ``free`` names
    conditions that the code says, not the photo.
    """

    styles: int = 32768
    likely: int = 4096
    tried: int = 16
    exchanges: tuple[Exchange, ...] = (PLAIN, BOLD)
    free: tuple[str, ...] = ()


USUAL = CastParams()
ONE = CastParams(styles=2048, likely=32, tried=1, exchanges=(BOLD,))  # nobody looks whether he fits
COMPANY = CastParams(styles=512, likely=12, tried=12)  # who are tried for a wrong key


@torch.no_grad()
def cast(
    hidden: Tensor, sight: Sight, average: Tensor, networks: Networks, mapping: nn.Module, params: CastParams
) -> tuple[list[Tensor], list[Tensor]]:
    """People whom the generator can draw, likeliest first, as they would stand in the photo, and nobody there.

    Args:
        hidden: unit code [1, 448].
        sight: the aligned photo.
        average: latents [1, n, 512] that draw a face like nobody's in the photo's pose and light.

    Returns:
        Latents [1, n, 512] of each, by exchange and then by person, and those of a face without anybody's features, one
        by exchange: what all people of all keys have in common in this photo.
    """
    census, codes = networks.census, CODE_OF_LATENT[: average.shape[1]]
    people = census.features(likeliest(hidden, sight, census, mapping, params))
    photo = networks.inversion.to_w(networks.inversion(sight.face)[0])[:, list(codes)]
    first = sum(code < FEATURED for code in codes)

    def placed(person: Tensor, how: Exchange) -> Tensor:
        return exchanged(torch.lerp(average, photo, how.photo), person, census, how.left, how.own, first)

    there = [placed(person, how) for how in params.exchanges for person in people]
    return there, [placed(torch.zeros_like(people[0]), how) for how in params.exchanges]


def exchanged(
    codes: Tensor, features: Tensor, census: LatentAttributes, left: float, own: float, first: int = FEATURED
) -> Tensor:
    """Codes or latents [1, n, 512], in the ``first`` of which other features [512], ``own`` times, stand where ``left``
    times their own were."""
    codes = codes.clone()
    codes[:, :first] += own * features - left * census.features(codes[:, :first])
    return codes


@torch.no_grad()
def strangers(hidden: Tensor, kept: int, sight: Sight, networks: Networks, mapping: nn.Module) -> tuple[Tensor, Tensor]:
    """People for a wrong key, of whom the mapper is to draw one: in the seen face's own latents, as :func:`cast` has
    it, a stranger would come too near to the original.

    Returns:
        Unit codes [n, 448], whose first ``kept`` coordinates are the hidden one's, less what people have in common,
        and what is to be added to the first FEATURED of the mapper's latents for each, [n, 512].
    """
    w = likeliest(hidden, sight, networks.census, mapping, COMPANY)
    faces = (networks.generator.synthesize(some[:, None], SIDE) for some in w.split(TOGETHER))
    codes = torch.cat([networks.encoder(some) for some in faces])
    wanted = hidden[:, :kept].to(codes).expand(len(codes), -1)
    own = F.normalize(codes[:, kept:] - codes[:, kept:].mean(0, keepdim=True), dim=1)
    rest = (1 - wanted.square().sum(1, keepdim=True)).clamp_min(0).sqrt()
    return torch.cat([wanted, rest * own], dim=1), networks.census.features(w) / 2


@torch.no_grad()
def likeliest(hidden: Tensor, sight: Sight, census: LatentAttributes, mapping: nn.Module, params: CastParams) -> Tensor:
    """Styles [tried, 512] of those whom the census lets pass, who stands out most first; see :func:`cast`."""
    w = mapping(styles(hidden, params.styles).to(next(mapping.parameters()))).to(sight.face)
    likely = w[strangeness(census(w), census, hidden, sight.seems, params.free).argsort(stable=True)[: params.likely]]
    out = (census.salient_features(likely) @ bearing(hidden).to(likely)).argsort(stable=True, descending=True)
    return likely[out[: params.tried]]


def bearing(hidden: Tensor) -> Tensor:
    """Which way people of a code [1, 448] stand out, among the features by which recognizers most tell people apart: a
    unit vector [SALIENT]. Another key's code says another way, so two keys' people are less alike than any two. What a
    key leaves of the code has no say: all keys share it."""
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


def strangeness(
    read: Tensor, census: LatentAttributes, hidden: Tensor, seems: Tensor, free: tuple[str, ...] = ()
) -> Tensor:
    """How little people fit, [n], by what the census tells of them, [n, ATTRIBUTES].

    Nothing is counted against whoever wears less than is usual, was photographed plainly, is surely of the sex and
    within ten years of the age that the photo ``seems``, [2], and has about the skin tone that the code ``hidden``
    [1, 448] keeps; of these they do not choose among themselves, so that two keys' people stay different.
    """
    off_usual = (read - census.usual) / census.spread
    strange = WORN * off_usual[:, columns("worn")].clamp_min(0).sum(1)
    for name, plain in (("light", SHADE), ("picture", FILM)):
        strange = strange + (off_usual[:, columns(name)].abs() - plain).clamp_min(0).sum(1)
    for name, where in CONDITIONS.items():
        if name == "sex" and name not in free:
            # in doubt any sex is right that is certain: what is between looks like neither
            off = (CERTAIN - torch.where(seems[0] > 0, 1.0, -1.0) * read[:, columns("sex")][:, 0]) / CERTAIN
        elif name == "age" and name not in free:
            off = (read[:, columns("age")][:, 0] - seems[1]).abs() / DECADE - 1
        else:
            off = (read[:, where] - hidden[:, where].to(read)).norm(dim=1) / census.spread[where].norm() - 1
        strange = strange + off.clamp_min(0)
    return strange
