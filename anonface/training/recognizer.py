"""A recognizer beside the identity encoder in losses: ArcFace, trained on other people.

The key transforms the encoder's codes, and both of its trunks are small. A face that is far from the original in these
codes may still be near it to other recognizers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import weights
from anonface.faces import align
from anonface.models.graph import Graph

SIDE = 112  # px of its input
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
    """The recognizer's frames: landmarks [B, 468, 2] in shares of the crop's side -> [B, 2, 3], as affine_grid's.

    The similarity that brings the five points nearest to where ArcFace's training showed them, by least squares.
    """
    five = [align.five_points(points) for points in mesh.detach().double().cpu().numpy()]
    turned = [align.similarity(2 * points - 1, 2 * align.ARCFACE_POINTS / SIDE - 1) for points in five]
    back = torch.stack([torch.from_numpy(align.inverted(matrix)) for matrix in turned])
    return back.to(mesh)


def load_recognizer() -> Recognizer:
    """ArcFace, frozen. Raises WeightsError: its file is missing or wrong."""
    return Recognizer(Graph(weights.graph("arcface-mobile"))).requires_grad_(False).eval()
