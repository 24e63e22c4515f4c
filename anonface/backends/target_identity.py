"""The target identity: which synthetic person a hidden code becomes.

No face embeds to a keyed code, and a face that is pushed towards one looks like no photo. So the code draws styles of
the generator. ``models/latent_attributes.py`` predicts their looks before they are drawn. Candidates without glasses,
hat or fringe come first, of the photo's sex, age and skin tone, and in plain light. The same code always gives the same
candidates. The watermark holds the code itself.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.crypto.keyed_noise import hartley
from anonface.faces.analysis import FaceAnalysis
from anonface.models.identity import CONDITIONS, KEPT
from anonface.models.latent_attributes import SALIENT, LatentAttributes, columns

CERTAIN = 3.0  # logit from which apparent sex is certain
DECADE = 10.0  # years by which ages may differ
SHADE, FILM = 0.5, 1.0  # deviations of light across a face, and of a picture, up to which they are plain
WORN = 2.0  # how much more glasses, a hat and a fringe count than anything else that is unusual
STYLE_LABEL = b"anonface/v1 persona"


@dataclass(frozen=True)
class TargetParams:
    """How candidates are chosen.

    Attributes:
        styles: how many are drawn.
        likely: how many of them fit the photo best by attribute regression.
        tried: how many of those are returned: the farthest in the code's direction (:func:`key_direction`).
        free: conditions that the code decides, not the photo.
    """

    styles: int = 4096
    likely: int = 256
    tried: int = 1
    free: tuple[str, ...] = ()


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
