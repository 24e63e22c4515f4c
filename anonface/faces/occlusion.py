"""Mending: where a new face shows hair, glasses or a background, and the photo skin, the photo's own skin stays; and
beside the face, where the two show different things, what the photo shows.

Somebody else's face is seldom as broad as the one whose place it takes, and their hair falls otherwise: without this a
strand ends on the cheek, and a dark rim runs along the jaw. Only skin is kept so, never a feature; where the new face
wears glasses, which the photo does not show there, the nose too: else their rims hang below the photo's own. Where the
new face's hair hangs over the photo's brow, there is skin in the colour of what is about the brow: else a dark slab in
the shape of a brow is left of that hair.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.crypto.keys import FaceKey
from anonface.faces.align import BROWS, EYES, LIPS, NOSE
from anonface.faces.analysis import Sight
from anonface.faces.augmentation import luma, shrink
from anonface.faces.colour_transfer import match_tones
from anonface.faces.shape_warp import AMOUNT, shaped
from anonface.models.face_parser import BROW, FACE, SKIN, like_odds, new_glasses, new_hair_odds

REACH = 5  # px by which more is kept than is no face
FEATURES = (BROWS[:10], BROWS[10:], EYES[:16], EYES[16:], LIPS)  # rows of the mesh, beside the nose's
NEAR = 0.025  # of the side: skin that goes with a feature
RIM = 1.0  # nats by which a pixel is more surely glasses than in the photo
THIN, STRAND = 0.025, 0.3  # of the side: half of how wide a strand may be; how much darker it is than what is about it
MAYBE, BESIDE = 0.2, 5  # share from which on something may be a brow; side in cells of the square about it that may
GAP = 0.06  # of the side: half of what there may be between hair above a brow and hair below it
NEARBY = ((0.03, 1.0), (0.1, 0.01))  # of the side: how far skin lies whose colour is a brow's, and how much it counts
BORDER = 5  # px: the side of the square over which a rim is averaged, three times, and a brow's


def in_place(
    render: Tensor, face: Tensor, mask: Tensor, sight: Sight, key: FaceKey | None, amount: float = AMOUNT
) -> Tensor:
    """A render in the photo's place as it is shown: in the shape that a key says, mended; without a key a stranger's,
    beside whom features may stay. Arguments as of :func:`mended` and :func:`shaped`."""
    if key is not None:
        render = shaped(render, sight.mesh, key, amount)
    return mended(render, face, mask, sight, features=key is None).clamp(-1, 1).cpu()


def mended(render: Tensor, face: Tensor, mask: Tensor, sight: Sight, features: bool = False) -> Tensor:
    """A render in the photo's tones, with the photo's skin where it shows no face.

    Args:
        render: somebody else's face [1, 3, R, R] in about [-1, 1].
        face: the aligned photo, like it.
        mask: soft mask [1, 1, R, R] in 0..1 where the render is to be seen.
        sight: the photo in the px at which it is told what is face.
        features: whether the photo's features may stay as well: those of a face that is not the original's.

    Returns:
        [1, 3, R, R].
    """
    side, fine = render.shape[-1], sight.face.shape[-1]
    resize = partial(F.interpolate, size=(side, side), mode="bilinear", antialias=side < fine)
    cover = shrink(mask, fine)
    skin = torch.ones_like(cover).expand(-1, 2, -1, -1) if features else skin_of(sight.mesh, fine)
    shown = match_tones(shrink(render, fine), sight.face, cover)
    parsed = sight.eyes.parser(shown)
    odds, worn = like_odds(parsed, sight.parsed), new_glasses(parsed, sight.parsed)
    hidden, photo = grown(strands(shown, parsed, sight)) * skin[:, :1], face
    if not features:
        bare, brows = skin_about(sight)
        hidden = torch.maximum(hidden, over_brows(new_hair_odds(parsed, sight.parsed), brows, cover))
        photo = torch.lerp(face, resize(bare), resize(F.avg_pool2d(brows, BORDER, 1, BORDER // 2)))
    kept = resize(skin_kept(odds, worn, skin, cover, hidden))
    # in the photo's tones once more: what is not seen shall not colour what is
    return torch.lerp(match_tones(render, face, mask * (1 - kept)), photo, kept)


def skin_of(mesh: Tensor, side: int) -> Tensor:
    """1 where there is no feature of landmarks [1, 468, 2] in shares of the side, 0 elsewhere, [1, 2, side, side]; the
    second channel takes the nose for none."""
    drawn = [_features(mesh, side, parts) for parts in ((*FEATURES, NOSE), FEATURES)]
    return 1 - torch.cat(drawn, dim=1)


def _features(mesh: Tensor, side: int, parts: Sequence[list[int]]) -> Tensor:
    """1 within NEAR of the parts of a mesh, 0 elsewhere, [1, 1, side, side]."""
    points, drawn = mesh[0].float().cpu().numpy() * side, np.zeros((side, side), np.uint8)
    for rows in parts:
        cv2.fillConvexPoly(drawn, cv2.convexHull(points[rows]).astype(np.int32), 1)
    cv2.dilate(drawn, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * round(NEAR * side) + 1,) * 2), drawn)
    return torch.from_numpy(drawn).to(mesh)[None, None]


@torch.no_grad()
def skin_about(sight: Sight) -> tuple[Tensor, Tensor]:
    """The colour of the photo's skin about each pixel, [1, 3, S, S], and 1 where that is to be seen for a brow: where
    one is, and no other feature and nothing before it; [1, 1, S, S]."""
    face, mesh, side = sight.face, sight.mesh, sight.face.shape[-1]
    brows = _features(mesh, side, FEATURES[:2]) * (1 - _features(mesh, side, (*FEATURES[2:], NOSE)))
    seen = F.interpolate(sight.parsed.softmax(1), (side, side), mode="bilinear")
    brows = brows * (seen[:, FACE].sum(1, keepdim=True) > 0.5)
    skin = ((seen[:, SKIN] > 0.5) * skin_of(mesh, side)[:, :1])[0, 0].cpu().numpy()
    pixels = face[0].permute(1, 2, 0).cpu().numpy()
    total, mass = np.zeros_like(pixels), np.full_like(skin, np.finfo(np.float32).tiny)
    for reach, trust in NEARBY:
        total += trust * cv2.GaussianBlur(pixels * skin[..., None], (0, 0), reach * side)
        mass += trust * cv2.GaussianBlur(skin, (0, 0), reach * side)
    return torch.from_numpy(total / mass[..., None]).to(face).permute(2, 0, 1)[None], brows


@torch.no_grad()
def strands(shown: Tensor, parsed: Tensor, sight: Sight) -> Tensor:
    """1 where a face [1, 3, S, S] shows a thin dark line on the photo's forehead that the photo does not and that is no
    brow to the parser, whose logits are ``parsed``: hair too fine for it; [1, 1, S, S]."""
    side = shown.shape[-1]
    square = np.ones((2 * round(THIN * side) + 1,) * 2, np.uint8)
    new, before = (
        torch.from_numpy(cv2.morphologyEx(luma(one)[0, 0].cpu().numpy(), cv2.MORPH_BLACKHAT, square)).to(one)
        for one in (shown, sight.face)
    )
    above = torch.arange(side, device=shown.device)[:, None] < sight.mesh[0, BROWS, 1].min() * side
    brows = F.max_pool2d(parsed.softmax(1)[:, BROW], BESIDE, 1, BESIDE // 2)
    shares = torch.cat([brows, sight.parsed.softmax(1)[:, SKIN]], dim=1)
    brow, bare = F.interpolate(shares, (side, side), mode="bilinear").split(1, 1)
    return ((new - before > STRAND) & above & (brow < MAYBE) & (bare > 0.5)).to(shown)


@torch.no_grad()
def over_brows(hair: Tensor, brows: Tensor, mask: Tensor) -> Tensor:
    """1 where new hair hangs over the photo's brows, [1, 1, S, S].

    Args:
        hair: log odds that a render shows hair, and the photo none, [1, h, w].
        brows: as :func:`skin_about` has them.
        mask: [1, 1, S, S] in 0..1, outside which nothing is asked.
    """
    hangs = (F.interpolate(hair[:, None], mask.shape[-2:], mode="bilinear") > 0) * (mask > 0)
    # between hair above and hair below there is hair: a parser expects a brow there
    column = np.ones((2 * round(GAP * mask.shape[-1]) + 1, 1), np.uint8)
    closed = cv2.morphologyEx(hangs[0, 0].cpu().numpy().astype(np.uint8), cv2.MORPH_CLOSE, column)
    return grown(torch.from_numpy(closed).to(mask)[None, None]) * brows


def grown(foreign: Tensor) -> Tensor:
    """[B, C, S, S] of 0 and 1, and what lies within REACH of a 1."""
    return F.max_pool2d(foreign, 2 * REACH + 1, 1, REACH)


@torch.no_grad()
def skin_kept(odds: Tensor, worn: Tensor, skin: Tensor, mask: Tensor, hidden: Tensor | None = None) -> Tensor:
    """How much of the photo's own skin stays, [1, 1, S, S] in 0..1.

    Args:
        odds: log odds that a render shows what the photo does, [1, h, w].
        worn: by how many nats more surely it shows glasses, [1, h, w].
        skin: of the photo, as :func:`skin_of` has it.
        mask: [1, 1, S, S] in 0..1, outside which nothing is asked.
        hidden: 1 where else it stays, or what is painted over it, [1, 1, S, S].
    """
    unlike, rims = F.interpolate(torch.stack([-odds, worn - RIM], dim=1), mask.shape[-2:], mode="bilinear").split(1, 1)
    foreign = (torch.cat([unlike, torch.minimum(unlike, rims)], dim=1) > 0).to(mask) * (mask > 0)
    kept = (grown(foreign) * skin).amax(1, keepdim=True)
    kept = kept if hidden is None else torch.maximum(kept, hidden)
    for _ in range(3):
        kept = F.avg_pool2d(kept, BORDER, 1, BORDER // 2)
    return kept
