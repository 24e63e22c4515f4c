"""Steering, fitted: which way the mapping network's people go when they are to look otherwise.

Ridge regression tells every reading of drawn people from their styles. The move that a wanted change of readings asks
for is the likeliest one given that change, with readings as noisy as the regression left them: nothing is trained by
gradient steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anonface.backends.eyes import LandmarkNetwork
from anonface.backends.persona import SIDE
from anonface.backends.refine import mesh_in_crop
from anonface.models.face_parser import FaceParser
from anonface.models.identity import KEPT, IdentityEncoder
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.models.steering import MESH_AXES, StyleSteering, to_normal, worn

TOGETHER = 4  # people drawn at a time
PEOPLE = 3000  # whom the regression learns from
HELD_OUT = 6  # one person in so many tells how well people are read
SAVED_EVERY = 400


@dataclass(frozen=True)
class People:
    """Styles [N, 512] of drawn people, their codes' kept coordinates [N, 6], landmarks [N, 936] and what they wear."""

    styles: Tensor
    kept: Tensor
    mesh: Tensor
    worn: Tensor


@dataclass(frozen=True)
class SteeringParams:
    """``ridge`` of the regression in variances of a whitened coordinate; ``doubt`` scales the noise of readings."""

    ridge: float = 0.1
    doubt: float = 0.7


def load_people(
    file: Path,
    generator: MobileStyleGAN,
    mapping: MappingNetwork,
    encoder: IdentityEncoder,
    landmarks: LandmarkNetwork,
    parser: FaceParser,
    count: int,
    seed: int = 11,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> People:
    """The people in ``file``, drawn first where the file is missing or holds fewer than ``count``."""
    from safetensors.torch import load_file, save_file

    parts = {"styles": torch.empty(0, 512), "kept": torch.empty(0, KEPT), "mesh": torch.empty(0, 936)}
    parts["worn"] = torch.empty(0, 2)
    if file.exists():
        parts = load_file(str(file))
    while (done := len(parts["styles"])) < count:
        rng = torch.Generator().manual_seed(seed * 1_000_003 + done)
        with torch.inference_mode():
            styles = mapping(torch.randn(TOGETHER, 512, generator=rng))
            faces = generator.synthesize(styles[:, None], SIDE)
            mesh = torch.cat([mesh_in_crop(landmarks, face[None]) for face in faces])
            fresh = styles, encoder(faces)[:, :KEPT], mesh.flatten(1), worn(parser(faces))
        parts = {name: torch.cat([old, new]) for (name, old), new in zip(parts.items(), fresh, strict=True)}
        done += TOGETHER
        if done % SAVED_EVERY == 0 or done >= count:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file(parts, str(file))
        progress(done, count)
    return People(parts["styles"], parts["kept"], parts["mesh"], parts["worn"])


def fit_steering(people: People, params: SteeringParams | None = None) -> tuple[StyleSteering, Tensor]:
    """The steering that people teach, and what share of each reading's variance is told from styles held out."""
    params = params or SteeringParams()
    steering, mesh = StyleSteering(), people.mesh.double()
    mean = mesh.mean(0)
    axes = torch.linalg.svd(mesh - mean, full_matrices=False).Vh[:MESH_AXES]
    y = torch.cat([people.kept.double(), (mesh - mean) @ axes.T, people.worn.double()], dim=1)
    off = y - y.mean(0)

    normal = to_normal(people.styles.double())
    centred = normal - normal.mean(0)
    variances, turn = torch.linalg.eigh(torch.cov(normal.T))
    scale = variances.clamp_min(1e-6).sqrt()
    x = centred @ (turn / scale)  # whitened

    told = torch.arange(len(x)) % HELD_OUT != 0
    left = off[~told] - x[~told] @ _ridge(x[told], off[told], params.ridge)
    slopes = _ridge(x, off, params.ridge)
    # x is standard normal and y = slopes^T x + noise, so E[x | y] = slopes (slopes^T slopes + cov noise)^-1 y
    noise = params.doubt * torch.cov(left.T)
    likeliest = slopes @ torch.linalg.inv(slopes.T @ slopes + noise)
    steering.move.copy_((turn * scale @ likeliest).T)
    steering.spread.copy_(y.std(0))
    steering.mesh_mean.copy_(mean)
    steering.mesh_axes.copy_(axes)
    return steering, 1 - left.square().sum(0) / off[~told].square().sum(0)


def _ridge(x: Tensor, y: Tensor, share: float) -> Tensor:
    gram = x.T @ x / len(x) + share * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(gram, x.T @ y / len(x))
