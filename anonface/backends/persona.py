"""The persona: who a hidden code becomes to the eye.

A keyed code is nobody's: no face embeds to it, and a face that is pushed towards it looks like no photo. So the code
draws styles of the generator, and those make people. Whose apparent sex, age and skin tone are nearest to those that
the code keeps come first; the mapper gives them the photo's pose and mouth, and who is cast is seen in the photo
(``refine.Scene.best``). To a recognizer people have something in common, and two keys' people in one photo the more: so
a person's code is given less what all have in common. The same code always casts alike, and near codes mostly do. The
watermark says the code itself.
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
from anonface.backends.looks import shrink
from anonface.backends.refine import SEX, Networks, apparent, mesh_in_crop

SIDE = 256  # px of the people who are looked at
TOGETHER = 4  # of them at a time; the more, the more memory
CORNERS, INNER_LIPS, OUTER_EYES, CHIN, CHEEKS = (61, 291), (13, 14), (33, 263), 152, (234, 454)  # rows of the mesh
STYLE_LABEL = b"anonface/v1 persona"


@dataclass(frozen=True)
class CastParams:
    """How many people are looked at, and how one is chosen.

    ``conditions`` and ``shape`` weigh how alike the kept coordinates and the face's proportions are to be, ``apart``
    how unlike what all people have in common; ``common`` is the share of that which the code leaves out. ``sex`` says
    how much more sex counts than age and tone. ``tried`` of them are worth a look in the photo itself.
    """

    people: int = 32
    conditions: float = 3.0
    shape: float = 20.0
    apart: float = 0.2
    common: float = 1.0
    sex: float = 1.0
    tried: int = 1


USUAL = CastParams(people=32, conditions=10.0, sex=SEX, apart=0.0, tried=24)
# too few to tell what they have in common
QUICK = CastParams(people=4, conditions=2.0, shape=10.0, apart=0.0, common=0.0)
STRANGER = CastParams(people=12, apart=0.0)  # of a wrong key


@torch.no_grad()
def cast(hidden: Tensor, kept: int, face: Tensor, networks: Networks, mapping: nn.Module, params: CastParams) -> Tensor:
    """Codes [n, 448], of unit length, of people whom the generator can draw, likeliest first.

    Args:
        hidden: unit code [1, 448], of which the first ``kept`` coordinates are kept as they are.
        face: the aligned photo, [1, 3, R, R] in [-1, 1].
    """
    w = mapping(styles(hidden, params.people).to(next(mapping.parameters()))).to(face)
    photo = shrink(face, SIDE)
    code, mesh = _looked_at(w, networks)
    shape = proportions(mesh)
    wanted = hidden[:, :kept].to(code)
    common = code[:, kept:].mean(0, keepdim=True)
    misfit = params.conditions * apparent(code, hidden.to(code), params.sex)
    misfit = misfit + params.shape * (shape - proportions(mesh_in_crop(networks.landmarks, photo))).square().sum(1)
    misfit = misfit + params.apart * F.cosine_similarity(code[:, kept:], common)
    likely = misfit.argsort()[: params.tried]
    own = F.normalize(code[likely, kept:] - params.common * common, dim=1)
    rest = (1 - wanted.square().sum(1, keepdim=True)).clamp_min(0).sqrt()
    return torch.cat([wanted.expand(len(likely), -1), rest * own], dim=1)


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


def _looked_at(w: Tensor, networks: Networks) -> list[Tensor]:
    """Codes and landmarks of the people of some styles [n, 512]."""
    looks = []
    for some in w.split(TOGETHER):
        people = networks.generator.synthesize(some[:, None], SIDE)
        looks.append([networks.encoder(people), torch.cat([mesh_in_crop(networks.landmarks, x[None]) for x in people])])
    return [torch.cat(kind) for kind in zip(*looks, strict=True)]


def proportions(mesh: Tensor) -> Tensor:
    """Landmarks [B, 468, 2] -> how far a mouth is open, how wide it is, how much its corners hang, how long and how
    broad the face is, [B, 5].

    In distances of the outer corners of the eyes; all but the first count by half.
    """
    between = lambda a, b: (mesh[:, a] - mesh[:, b]).norm(dim=1)  # noqa: E731
    hanging = (mesh[:, list(CORNERS)].mean(1) - mesh[:, INNER_LIPS[0]])[:, 1]
    long = (mesh[:, CHIN] - mesh[:, list(OUTER_EYES)].mean(1)).norm(dim=1)
    rest = torch.stack([between(*CORNERS), hanging, long, between(*CHEEKS)]) / 2
    return torch.cat([between(*INNER_LIPS)[None], rest]).T / between(*OUTER_EYES)[:, None]
