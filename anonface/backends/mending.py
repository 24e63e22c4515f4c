"""Mending: where a new face shows hair, glasses or a background, and the photo skin, the photo's own skin stays; and
beside the face, where the two show different things, what the photo shows.

Somebody else's face is seldom as broad as the one whose place it takes, and their hair falls otherwise: without this a
strand ends on the cheek, and a dark rim runs along the jaw. Only skin is kept so, never a feature.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.eyes import Eyes, mesh_in_crop
from anonface.backends.looks import shrink
from anonface.backends.tones import match_tones
from anonface.faces.align import BROWS, EYES, LIPS, NOSE
from anonface.models.face_parser import like_odds

SIDE = 256  # px at which it is told what is face
REACH = 5  # px by which more is kept than is no face
FEATURES = (BROWS[:10], BROWS[10:], EYES[:16], EYES[16:], LIPS, NOSE)  # rows of the mesh
NEAR = 0.025  # of the side: skin that goes with a feature
BORDER = 5  # px: the side of the square over which the rim is averaged, three times


def mended(render: Tensor, face: Tensor, mask: Tensor, eyes: Eyes, features: bool = False) -> Tensor:
    """A render in the photo's tones, with the photo's skin where it shows no face.

    Args:
        render: somebody else's face [1, 3, R, R] in about [-1, 1].
        face: the aligned photo, like it.
        mask: soft mask [1, 1, R, R] in 0..1 where the render is to be seen.
        features: whether the photo's features may stay as well: those of a face that is not the original's.

    Returns:
        [1, 3, R, R].
    """
    side, small, cover = render.shape[-1], shrink(face, SIDE), shrink(mask, SIDE)
    skin = torch.ones_like(cover) if features else skin_of(mesh_in_crop(eyes.landmarks, small), SIDE)
    odds = like_odds(eyes.parser(match_tones(shrink(render, SIDE), small, cover)), eyes.parser(small))
    kept = F.interpolate(skin_kept(odds, skin, cover), (side, side), mode="bilinear", antialias=side < SIDE)
    # in the photo's tones once more: what is not seen shall not colour what is
    return torch.lerp(match_tones(render, face, mask * (1 - kept)), face, kept)


def skin_of(mesh: Tensor, side: int) -> Tensor:
    """1 where there is no feature of landmarks [1, 468, 2] in shares of the side, 0 elsewhere, [1, 1, side, side]."""
    points, features = mesh[0].float().cpu().numpy() * side, np.zeros((side, side), np.uint8)
    for rows in FEATURES:
        cv2.fillConvexPoly(features, cv2.convexHull(points[rows]).astype(np.int32), 1)
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * round(NEAR * side) + 1,) * 2)
    return 1 - torch.from_numpy(cv2.dilate(features, disc)).to(mesh)[None, None]


@torch.no_grad()
def skin_kept(odds: Tensor, skin: Tensor, mask: Tensor) -> Tensor:
    """How much of the photo's own skin stays, [1, 1, S, S] in 0..1.

    Args:
        odds: log odds that a render shows what the photo does, [1, h, w].
        skin: of the photo, as :func:`skin_of` has it.
        mask: [1, 1, S, S] in 0..1, outside which nothing is asked.
    """
    fine = F.interpolate(odds[:, None], mask.shape[-2:], mode="bilinear")
    foreign = ((fine < 0) & (mask > 0)).to(mask)
    kept = F.max_pool2d(foreign, 2 * REACH + 1, 1, REACH) * skin
    for _ in range(3):
        kept = F.avg_pool2d(kept, BORDER, 1, BORDER // 2)
    return kept
