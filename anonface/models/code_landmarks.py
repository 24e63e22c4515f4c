"""Landmark regression of identity codes: the pose and expression that a code tells, and how to change them.

Recognizers read more from a face than who it is. From a code, linear regression tells the first principal components of
the landmarks, such as the head's turn and a smile, with R² up to 0.7. A target identity that comes from a smiling face
would smile in every photo. So its code is moved to where codes of faces with the photo's landmarks are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.identity import KEPT

CODE, POINTS, COMPONENTS = 448, 468, 16
FARTHEST = 3.0  # standard deviations, of a component; stranger faces count as if they were so strange
DISTINCT = 2.0  # how much farther from the usual code of such landmarks a person is placed, so that two keys differ
RIDGE = 0.03  # in mean variances of a code's coordinate


class CodeLandmarks(nn.Module):
    """Codes [B, 448] of unit length and landmarks [B, 468, 2] in shares of the crop's side -> codes [B, 448].

    Buffers:
        mean_mesh, mean_code: of the faces that it was fitted to.
        components: landmarks -> their principal components, in standard deviations.
        reading: codes -> what they tell of these components.
        moves: the most likely change of a code for one standard deviation of a component.
    """

    mean_mesh: Tensor
    mean_code: Tensor
    components: Tensor
    reading: Tensor
    moves: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean_mesh", torch.zeros(2 * POINTS))
        self.register_buffer("mean_code", torch.zeros(CODE))
        self.register_buffer("components", torch.zeros(2 * POINTS, COMPONENTS))
        self.register_buffer("reading", torch.zeros(CODE, COMPONENTS))
        self.register_buffer("moves", torch.zeros(COMPONENTS, CODE))

    def forward(self, codes: Tensor, mesh: Tensor) -> Tensor:
        """Codes of the same people with the pose and expression of the landmarks; the kept coordinates stay.

        What distinguishes a person from the usual code of such landmarks counts DISTINCT times.
        """
        wanted = self.shapes(mesh).clamp(-FARTHEST, FARTHEST)
        usual = self.mean_code + wanted @ self.moves
        own = codes - self.mean_code - self.told(codes) @ self.moves
        moved = usual + DISTINCT * own
        kept = codes[:, :KEPT]
        rest = (1 - kept.square().sum(1, keepdim=True)).clamp_min(0).sqrt()
        return torch.cat([kept, rest * F.normalize(moved[:, KEPT:], dim=1)], 1)

    def shapes(self, mesh: Tensor) -> Tensor:
        """Principal components of landmarks, [B, COMPONENTS]."""
        return (mesh.flatten(1) - self.mean_mesh) @ self.components

    def told(self, codes: Tensor) -> Tensor:
        """What codes tell of them, [B, COMPONENTS]."""
        return (codes - self.mean_code) @ self.reading

    @torch.no_grad()
    def fit(self, codes: Tensor, mesh: Tensor) -> None:
        """Fit to the codes and landmarks of N faces: ridge regression, and its inverse under the codes' covariance."""
        points, codes = mesh.flatten(1).double(), codes.double()
        mean_mesh, mean_code = points.mean(0), codes.mean(0)
        axes = torch.linalg.svd(points - mean_mesh, full_matrices=False)[2][:COMPONENTS].T
        components = axes / ((points - mean_mesh) @ axes).std(0)
        spread = (codes - mean_code).T @ (codes - mean_code) / len(codes)
        both = (codes - mean_code).T @ ((points - mean_mesh) @ components) / len(codes)
        ridge = RIDGE * spread.diagonal().mean() * torch.eye(CODE, dtype=torch.double)
        reading = torch.linalg.solve(spread + ridge, both)
        moves = torch.linalg.solve(reading.T @ spread @ reading, reading.T @ spread)
        for name, value in (
            ("mean_mesh", mean_mesh),
            ("mean_code", mean_code),
            ("components", components),
            ("reading", reading),
            ("moves", moves),
        ):
            getattr(self, name).copy_(value)
