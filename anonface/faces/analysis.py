"""Face analysis: the networks that measure a face, and their results for one face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface import weights
from anonface.models.attribute_classifiers import SexAgeClassifier
from anonface.models.graph import Graph
from anonface.models.identity import CONDITIONS, IdentityEncoder

MESH_BOX = (0.135, 0.135, 0.73)  # left, top, side of the face in an FFHQ crop, for the 468-point network
MESH_INPUT = 192
# Logits of "male" for one unit of a code's first coordinate: in photos it is 0.12 off 0, the logit 2.9.
SEX_OF_CODE = 25.0

LandmarkNetwork = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class AnalysisNetworks:
    """Frozen networks: identity codes, apparent sex and age, landmarks.

    ``landmarks`` takes [B, 3, 192, 192] in [0, 1] to 468 points (x, y, z) in pixels, flat.
    """

    encoder: IdentityEncoder
    landmarks: LandmarkNetwork
    apparent: SexAgeClassifier


def load_identity_encoder(device: torch.device | str = "cpu") -> IdentityEncoder:
    """E_ID, frozen. Raises WeightsError: its file is missing or wrong."""
    encoder = IdentityEncoder()
    weights.load(encoder, "identity")
    return encoder.requires_grad_(False).eval().to(device)


def load_analysis_networks(device: torch.device | str = "cpu") -> AnalysisNetworks:
    """The networks of the listed files.

    Raises:
        WeightsError: a file is missing or wrong.
    """
    landmarks, apparent = Graph(weights.graph("landmarks")), SexAgeClassifier(weights.graph("faceres"))
    for network in (landmarks, apparent):
        network.requires_grad_(False).eval().to(device)
    return AnalysisNetworks(encoder=load_identity_encoder(device), landmarks=landmarks, apparent=apparent)


class FaceAnalysis:
    """One aligned face [1, 3, R, R] in [-1, 1] and its measurements. Each is taken once, when first asked for."""

    def __init__(self, face: Tensor, networks: AnalysisNetworks) -> None:
        self.face, self.networks = face, networks

    @cached_property
    @torch.no_grad()
    def mesh(self) -> Tensor:
        """Landmarks [1, 468, 2] in shares of the side."""
        return mesh_in_crop(self.networks.landmarks, self.face)

    @cached_property
    @torch.no_grad()
    def seems(self) -> Tensor:
        """Apparent sex, the logit of "male", and age in years: [2]. Sex is the mean of the classifier
        and the code, since each errs on some people."""
        sex, age = self.networks.apparent(self.face)[0]
        return torch.stack([(sex + SEX_OF_CODE * self.code[0, CONDITIONS["sex"].start]) / 2, age])

    @cached_property
    @torch.no_grad()
    def code(self) -> Tensor:
        """Identity code [1, 448]."""
        return self.networks.encoder(self.face)


def mesh_in_crop(network: LandmarkNetwork, faces: Tensor) -> Tensor:
    """468 landmarks of aligned faces [B, 3, R, R] in [-1, 1] -> [B, 468, 2] in shares of the crop's side."""
    left, top, side = MESH_BOX
    r = faces.shape[-1]
    y, x, s = round(top * r), round(left * r), round(side * r)
    size = (MESH_INPUT, MESH_INPUT)
    view = F.interpolate(faces[:, :, y : y + s, x : x + s], size, mode="bilinear", antialias=s > MESH_INPUT)
    points = network((view + 1) / 2).reshape(-1, 468, 3)[:, :, :2] / MESH_INPUT
    return points * side + points.new_tensor([left, top])
