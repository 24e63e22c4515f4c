"""Shape warp: features of a new face, moved by amounts that depend on its key and on the person.

A new face is fitted to the photo's landmarks, so under every key its features would lie where the original's do.
Therefore the render is warped a little, smoothly. Each *way* moves some features and their surroundings. Amounts of the
key alone would tie different people's photos to one key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.crypto.keys import FaceKey
from anonface.faces.align import BROWS, CHEEK_LEFT, CHEEK_RIGHT, CHIN, EYES, LIPS, MOUTH_LEFT, MOUTH_RIGHT, NOSE_TIP
from anonface.models.identity import KEPT

AMOUNT, MOST = 0.03, 1.5  # usual deviation of a feature's moves in distances of the eyes; how many are the most
GRID = 128  # cells along the side on which moves are found
LEFT, RIGHT, DOWN = (-1.0, 0.0), (1.0, 0.0), (0.0, 1.0)  # in the face's own axes


@dataclass(frozen=True)
class Move:
    """Landmarks whose middle moves, its direction, and the reach of the move in distances of the eyes."""

    rows: tuple[int, ...]
    way: tuple[float, float]
    reach: float


APART, BOTH_DOWN = (LEFT, RIGHT), (DOWN, DOWN)


def _pair(left: list[int], right: list[int], ways: tuple[tuple[float, float], ...], reach: float) -> tuple[Move, ...]:
    return tuple(Move(tuple(rows), way, reach) for rows, way in zip((left, right), ways, strict=True))


_EYE_LEFT, _EYE_RIGHT, _BROW_LEFT, _BROW_RIGHT = EYES[:16], EYES[16:], BROWS[:10], BROWS[10:]
WAYS: tuple[tuple[Move, ...], ...] = (
    _pair(_EYE_LEFT + _BROW_LEFT, _EYE_RIGHT + _BROW_RIGHT, APART, 0.35),
    _pair(_EYE_LEFT + _BROW_LEFT, _EYE_RIGHT + _BROW_RIGHT, BOTH_DOWN, 0.35),
    _pair(_BROW_LEFT, _BROW_RIGHT, BOTH_DOWN, 0.2),
    (Move((NOSE_TIP,), DOWN, 0.25),),
    _pair([129], [358], APART, 0.15),  # the nose's wings
    (Move(tuple(LIPS), DOWN, 0.3),),
    _pair([MOUTH_LEFT], [MOUTH_RIGHT], APART, 0.25),
    _pair([172], [397], APART, 0.4),  # the jaw's corners
    _pair([CHEEK_LEFT], [CHEEK_RIGHT], APART, 0.4),
    (Move((CHIN,), DOWN, 0.35),),
)


def keyed_amounts(key: FaceKey, code: Tensor) -> list[float]:
    """How far a face moves in each way, of about unit variance: a keyed projection of an identity code [1, d]."""
    person = F.normalize(code[0, KEPT:].detach().cpu().double(), dim=0)
    rows = torch.from_numpy(key.normal("shape", len(WAYS) * len(person)).reshape(len(WAYS), -1))
    return [float(moved) for moved in rows @ person]


def warp_shape(render: Tensor, mesh: Tensor, amounts: Sequence[float], amount: float = AMOUNT) -> Tensor:
    """A face warped by so much in each of WAYS, at most MOST.

    Args:
        render: the face [1, 3, R, R].
        mesh: landmarks [1, 468, 2] in shares of the side, to which the face was fitted.
        amount: deviation of a feature's moves in distances of the eyes.

    Returns:
        [1, 3, R, R].
    """
    cells = (torch.arange(GRID, dtype=mesh.dtype, device=mesh.device) + 0.5) / GRID
    x, y = cells[None, :], cells[:, None]
    across = mesh[0, _EYE_RIGHT].mean(0) - mesh[0, _EYE_LEFT].mean(0)
    axes = torch.stack([across, torch.stack([-across[1], across[0]])])
    moved = mesh.new_zeros(GRID, GRID, 2)
    for way, wanted in zip(WAYS, amounts, strict=True):
        share = min(max(wanted, -MOST), MOST)
        for move in way:
            (left, top), reach = mesh[0, list(move.rows)].mean(0), move.reach * across.norm()
            bell = torch.exp(-((x - left) ** 2 + (y - top) ** 2) / (2 * reach**2))
            moved = moved + bell[..., None] * (amount * share * mesh.new_tensor(move.way) @ axes)
    side = render.shape[-1]
    moved = F.interpolate(moved.permute(2, 0, 1)[None], (side, side), mode="bilinear").permute(0, 2, 3, 1)
    still = F.affine_grid(torch.eye(2, 3, dtype=render.dtype, device=render.device)[None], [1, 3, side, side], False)
    return F.grid_sample(render, still - 2 * moved.to(render), "bicubic", "border", align_corners=False)
