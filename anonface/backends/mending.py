"""Mending: where a new face shows hair, glasses or a background, and the photo skin, the photo's own skin stays; and
beside the face, where the two show different things, what the photo shows.

Somebody else's face is seldom as broad as the one whose place it takes, and their hair falls otherwise: without this a
strand ends on the cheek, and a dark rim runs along the jaw. Only skin is kept so, never a feature; where the new face
wears glasses, which the photo does not show there, the nose too: else their rims hang below the photo's own.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.eyes import Sight
from anonface.backends.looks import shrink
from anonface.backends.shape import shaped
from anonface.backends.tones import match_tones
from anonface.faces.align import BROWS, EYES, LIPS, NOSE
from anonface.keys import FaceKey
from anonface.models.face_parser import like_odds, new_glasses

REACH = 5  # px by which more is kept than is no face
FEATURES = (BROWS[:10], BROWS[10:], EYES[:16], EYES[16:], LIPS)  # rows of the mesh, beside the nose's
NEAR = 0.025  # of the side: skin that goes with a feature
RIM = 1.0  # nats by which a pixel is more surely glasses than in the photo
BORDER = 5  # px: the side of the square over which the rim is averaged, three times


def in_place(render: Tensor, face: Tensor, mask: Tensor, sight: Sight, key: FaceKey | None) -> Tensor:
    """A render in the photo's place as it is shown: in the shape that a key says, mended; without a key a stranger's,
    beside whom features may stay. Arguments as of :func:`mended`."""
    if key is not None:
        render = shaped(render, sight.mesh, key)
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
    side, fine, small = render.shape[-1], sight.face.shape[-1], sight.face
    cover = shrink(mask, fine)
    skin = torch.ones_like(cover).expand(-1, 2, -1, -1) if features else skin_of(sight.mesh, fine)
    parsed = sight.eyes.parser(match_tones(shrink(render, fine), small, cover))
    kept = skin_kept(like_odds(parsed, sight.parsed), new_glasses(parsed, sight.parsed), skin, cover)
    kept = F.interpolate(kept, (side, side), mode="bilinear", antialias=side < fine)
    # in the photo's tones once more: what is not seen shall not colour what is
    return torch.lerp(match_tones(render, face, mask * (1 - kept)), face, kept)


def skin_of(mesh: Tensor, side: int) -> Tensor:
    """1 where there is no feature of landmarks [1, 468, 2] in shares of the side, 0 elsewhere, [1, 2, side, side]; the
    second channel takes the nose for none."""
    points, features = mesh[0].float().cpu().numpy() * side, np.zeros((2, side, side), np.uint8)
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * round(NEAR * side) + 1,) * 2)
    for drawn, parts in zip(features, ((*FEATURES, NOSE), FEATURES), strict=True):
        for rows in parts:
            cv2.fillConvexPoly(drawn, cv2.convexHull(points[rows]).astype(np.int32), 1)
        cv2.dilate(drawn, disc, drawn)
    return 1 - torch.from_numpy(features).to(mesh)[None]


@torch.no_grad()
def skin_kept(odds: Tensor, worn: Tensor, skin: Tensor, mask: Tensor) -> Tensor:
    """How much of the photo's own skin stays, [1, 1, S, S] in 0..1.

    Args:
        odds: log odds that a render shows what the photo does, [1, h, w].
        worn: by how many nats more surely it shows glasses, [1, h, w].
        skin: of the photo, as :func:`skin_of` has it.
        mask: [1, 1, S, S] in 0..1, outside which nothing is asked.
    """
    unlike, rims = F.interpolate(torch.stack([-odds, worn - RIM], dim=1), mask.shape[-2:], mode="bilinear").split(1, 1)
    foreign = (torch.cat([unlike, torch.minimum(unlike, rims)], dim=1) > 0).to(mask) * (mask > 0)
    kept = (F.max_pool2d(foreign, 2 * REACH + 1, 1, REACH) * skin).amax(1, keepdim=True)
    for _ in range(3):
        kept = F.avg_pool2d(kept, BORDER, 1, BORDER // 2)
    return kept
