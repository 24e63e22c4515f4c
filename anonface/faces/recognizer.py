"""A recognizer beside the identity encoder: what another network, trained on other people, takes a face for.

The encoder's codes are what is keyed, and both of its trunks are small; a face that has left the original in their eyes
may still be near it in others'. So whoever is drawn is looked at through a further network, ArcFace's, which knows
people far better, gives no code and says nothing that recovery would need.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.faces import align

SIDE = 112  # px at which it looks
FINE = 2  # samples a pixel along each axis, against aliasing


class Recognizer(nn.Module):
    """Aligned faces [B, 3, R, R] in [-1, 1] and frames [B, 2, 3] -> unit embeddings [B, d].

    Args:
        network: [B, 3, 112, 112] in [-1, 1], RGB, to embeddings of any length.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, faces: Tensor, frames: Tensor) -> Tensor:
        size = (len(faces), 3, FINE * SIDE, FINE * SIDE)
        grid = F.affine_grid(frames.expand(len(faces), -1, -1), list(size), align_corners=False)
        cut = F.grid_sample(faces, grid, padding_mode="reflection", align_corners=False)
        return F.normalize(self.network(F.avg_pool2d(cut, FINE)), dim=1)


def frames(mesh: Tensor) -> Tensor:
    """Where the recognizer looks: landmarks [B, 468, 2] in shares of the crop's side -> [B, 2, 3], as affine_grid's.

    The similarity that brings the five points nearest to where ArcFace's training showed them, by least squares.
    """
    five = [align.five_points(points) for points in mesh.detach().double().cpu().numpy()]
    turned = [align.similarity(2 * points - 1, 2 * align.ARCFACE_POINTS / SIDE - 1) for points in five]
    back = torch.stack([torch.from_numpy(align.inverted(matrix)) for matrix in turned])
    return back.to(mesh)
