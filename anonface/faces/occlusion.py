"""Occlusion-aware compositing: the photo's skin stays where a new face shows hair, glasses or a background instead.

A new face is seldom as broad as the one it replaces, and its hair falls differently. Otherwise a strand would end on
the cheek, and a dark line would run along the jaw. Only skin is kept, never a feature. Where the new face wears glasses
that the photo does not show, the nose is kept too. Where its hair hangs over the photo's brow, the brow is painted over
in the colour of the skin around it.
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
from anonface.faces.analysis import FaceAnalysis
from anonface.faces.augmentation import luma, shrink
from anonface.faces.colour_transfer import match_tones
from anonface.faces.shape_warp import AMOUNT, keyed_amounts, warp_shape
from anonface.models.face_parser import BROW, FACE, SKIN, like_odds, new_glasses, new_hair_odds

REACH = 5  # px by which the kept region is dilated
FEATURES = (BROWS[:10], BROWS[10:], EYES[:16], EYES[16:], LIPS)  # rows of the mesh, without the nose's
NEAR = 0.025  # of the side: skin that goes with a feature
RIM = 1.0  # nats by which a pixel is more surely glasses than in the photo
THIN, STRAND = 0.025, 0.3  # of the side: half of how wide a strand may be; how much darker it is than what is about it
MAYBE, BESIDE = 0.2, 5  # share from which on something may be a brow; side in cells of the square about it that may
GAP = 0.06  # of the side: half of what there may be between hair above a brow and hair below it
NEARBY = ((0.03, 1.0), (0.1, 0.01))  # of the side: how far skin lies whose colour is a brow's, and how much it counts
BORDER = 5  # px: the side of the square over which a rim is averaged, three times, and a brow's


def place_render(
    render: Tensor, face: Tensor, mask: Tensor, analysis: FaceAnalysis, key: FaceKey | None, amount: float = AMOUNT
) -> Tensor:
    """A render as it is shown in the photo: warped under its key, with the photo's skin kept. Without a key it is a
    wrong-key face, beside which features may stay. Arguments as of :func:`keep_photo_skin` and :func:`warp_shape`."""
    if key is not None:
        render = warp_shape(render, analysis.mesh, keyed_amounts(key, analysis.code), amount)
    return keep_photo_skin(render, face, mask, analysis, features=key is None).clamp(-1, 1).cpu()


def keep_photo_skin(
    render: Tensor, face: Tensor, mask: Tensor, analysis: FaceAnalysis, features: bool = False
) -> Tensor:
    """A render in the photo's light, with the photo's skin where the render shows no face.

    Args:
        render: a synthetic face [1, 3, R, R] in about [-1, 1].
        face: the aligned photo, like it.
        mask: soft mask [1, 1, R, R] in 0..1 where the render is seen.
        analysis: of the photo, at the resolution of the parser.
        features: whether the photo's features may stay as well, as those of an anonymized photo may.

    Returns:
        [1, 3, R, R].
    """
    side, fine = render.shape[-1], analysis.face.shape[-1]
    resize = partial(F.interpolate, size=(side, side), mode="bilinear", antialias=side < fine)
    cover = shrink(mask, fine)
    skin = torch.ones_like(cover).expand(-1, 2, -1, -1) if features else skin_of(analysis.mesh, fine)
    shown = match_tones(shrink(render, fine), analysis.face, cover)
    parsed = analysis.networks.parser(shown)
    odds, worn = like_odds(parsed, analysis.parsed), new_glasses(parsed, analysis.parsed)
    hidden, photo = dilated(strands(shown, parsed, analysis)) * skin[:, :1], face
    if not features:
        bare, brows = skin_around(analysis)
        hidden = torch.maximum(hidden, over_brows(new_hair_odds(parsed, analysis.parsed), brows, cover))
        photo = torch.lerp(face, resize(bare), resize(F.avg_pool2d(brows, BORDER, 1, BORDER // 2)))
    kept = resize(skin_kept(odds, worn, skin, cover, hidden))
    # light is matched again: hidden pixels must not colour visible ones
    return torch.lerp(match_tones(render, face, mask * (1 - kept)), photo, kept)


def skin_of(mesh: Tensor, side: int) -> Tensor:
    """1 where there is no feature of landmarks [1, 468, 2] in shares of the side, 0 elsewhere, [1, 2, side, side]; the
    second channel counts the nose as skin."""
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
def skin_around(analysis: FaceAnalysis) -> tuple[Tensor, Tensor]:
    """The colour of the photo's skin about each pixel, [1, 3, S, S], and 1 where that is to be seen for a brow: where
    one is, and no other feature and nothing before it; [1, 1, S, S]."""
    face, mesh, side = analysis.face, analysis.mesh, analysis.face.shape[-1]
    brows = _features(mesh, side, FEATURES[:2]) * (1 - _features(mesh, side, (*FEATURES[2:], NOSE)))
    seen = F.interpolate(analysis.parsed.softmax(1), (side, side), mode="bilinear")
    brows = brows * (seen[:, FACE].sum(1, keepdim=True) > 0.5)
    skin = ((seen[:, SKIN] > 0.5) * skin_of(mesh, side)[:, :1])[0, 0].cpu().numpy()
    pixels = face[0].permute(1, 2, 0).cpu().numpy()
    total, mass = np.zeros_like(pixels), np.full_like(skin, np.finfo(np.float32).tiny)
    for reach, trust in NEARBY:
        total += trust * cv2.GaussianBlur(pixels * skin[..., None], (0, 0), reach * side)
        mass += trust * cv2.GaussianBlur(skin, (0, 0), reach * side)
    return torch.from_numpy(total / mass[..., None]).to(face).permute(2, 0, 1)[None], brows


@torch.no_grad()
def strands(shown: Tensor, parsed: Tensor, analysis: FaceAnalysis) -> Tensor:
    """1 where a face [1, 3, S, S] shows a thin dark line on the photo's forehead that the photo does not and that is no
    brow to the parser, whose logits are ``parsed``: hair too fine for it; [1, 1, S, S]."""
    side = shown.shape[-1]
    square = np.ones((2 * round(THIN * side) + 1,) * 2, np.uint8)
    new, before = (
        torch.from_numpy(cv2.morphologyEx(luma(one)[0, 0].cpu().numpy(), cv2.MORPH_BLACKHAT, square)).to(one)
        for one in (shown, analysis.face)
    )
    above = torch.arange(side, device=shown.device)[:, None] < analysis.mesh[0, BROWS, 1].min() * side
    brows = F.max_pool2d(parsed.softmax(1)[:, BROW], BESIDE, 1, BESIDE // 2)
    shares = torch.cat([brows, analysis.parsed.softmax(1)[:, SKIN]], dim=1)
    brow, bare = F.interpolate(shares, (side, side), mode="bilinear").split(1, 1)
    return ((new - before > STRAND) & above & (brow < MAYBE) & (bare > 0.5)).to(shown)


@torch.no_grad()
def over_brows(hair: Tensor, brows: Tensor, mask: Tensor) -> Tensor:
    """1 where new hair hangs over the photo's brows, [1, 1, S, S].

    Args:
        hair: log odds that a render shows hair, and the photo none, [1, h, w].
        brows: as :func:`skin_around` has them.
        mask: [1, 1, S, S] in 0..1, outside which nothing is asked.
    """
    hangs = (F.interpolate(hair[:, None], mask.shape[-2:], mode="bilinear") > 0) * (mask > 0)
    # between hair above and hair below there is hair: a parser expects a brow there
    column = np.ones((2 * round(GAP * mask.shape[-1]) + 1, 1), np.uint8)
    closed = cv2.morphologyEx(hangs[0, 0].cpu().numpy().astype(np.uint8), cv2.MORPH_CLOSE, column)
    return dilated(torch.from_numpy(closed).to(mask)[None, None]) * brows


def dilated(foreign: Tensor) -> Tensor:
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
    kept = (dilated(foreign) * skin).amax(1, keepdim=True)
    kept = kept if hidden is None else torch.maximum(kept, hidden)
    for _ in range(3):
        kept = F.avg_pool2d(kept, BORDER, 1, BORDER // 2)
    return kept
