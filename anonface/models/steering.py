"""Steering: people of the mapping network, moved until they look as is wanted.

What the generator's people look like is told by a few readings: six coordinates of an identity code (apparent sex, age
and skin tone), the first principal components of their landmarks (pose, mouth, the face's length and breadth), and how
much of the face the parser takes for glasses or a hat. Where the mapping network's last leaky ReLU is undone, its
styles are about normal (Zhu et al., "Improved StyleGAN embedding", 2020: P), and there each reading has a direction.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anonface.models.face_parser import CLASSES
from anonface.models.identity import KEPT

SLOPE = 0.2  # of the leaky ReLU that ends the mapping network
LANDMARKS = 468
MESH_AXES = 6  # principal components of landmarks that are read
WORN = tuple(CLASSES.index(name) for name in ("glasses", "hat"))
WORN_BOX = (0.16, 0.86, 0.19, 0.81)  # top, bottom, left, right of where they are looked for, in shares of the crop
READINGS = KEPT + MESH_AXES + len(WORN)
FARTHEST = 2.5  # standard deviations by which a reading is moved at once, no more


class StyleSteering(nn.Module):
    """Styles [B, 512] and how far their readings [B, READINGS] are to move -> styles [B, 512]."""

    move: Tensor
    spread: Tensor
    mesh_mean: Tensor
    mesh_axes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("move", torch.zeros(READINGS, 512))  # in P, of one unit of each reading
        self.register_buffer("spread", torch.ones(READINGS))
        self.register_buffer("mesh_mean", torch.zeros(2 * LANDMARKS))
        self.register_buffer("mesh_axes", torch.zeros(MESH_AXES, 2 * LANDMARKS))

    def forward(self, styles: Tensor, off: Tensor) -> Tensor:
        most = FARTHEST * self.spread
        return to_styles(to_normal(styles) + off.clamp(-most, most) @ self.move)

    def read(self, codes: Tensor, mesh: Tensor, parsed: Tensor) -> Tensor:
        """Readings [B, READINGS] of faces.

        Args:
            codes: of identity, [B, 448].
            mesh: landmarks [B, 468, 2] in shares of the crop's side.
            parsed: the face parser's logits [B, classes, side, side].
        """
        shape = (mesh.flatten(1) - self.mesh_mean) @ self.mesh_axes.T
        return torch.cat([codes[:, :KEPT], shape, worn(parsed)], dim=1)


def worn(parsed: Tensor) -> Tensor:
    """Parser logits [B, classes, side, side] -> the shares of the face that glasses and a hat take, [B, 2]."""
    top, bottom, left, right = (round(share * parsed.shape[-1]) for share in WORN_BOX)
    return parsed.float().softmax(1)[:, WORN, top:bottom, left:right].mean((2, 3))


def to_normal(styles: Tensor) -> Tensor:
    """W -> P: the leaky ReLU undone."""
    return torch.where(styles < 0, styles / SLOPE, styles)


def to_styles(normal: Tensor) -> Tensor:
    """P -> W, the inverse of :func:`to_normal`."""
    return torch.where(normal < 0, normal * SLOPE, normal)
