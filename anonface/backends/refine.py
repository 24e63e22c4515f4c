"""Latent refinement: a few gradient steps on the latents of one photo.

What the feed-forward networks leave open is closed here: the latents move until the *composited* face, as it will stand
in the photo, embeds to its target code, while landmarks (pose, expression, gaze) and blurred colours (light, skin tone)
stay with the photo. Each face is optimised alone, so results do not depend on who shares a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.models.attributes import LatentMapper
from anonface.models.identity import IdentityEncoder
from anonface.models.mobile_stylegan import MobileStyleGAN


@dataclass(frozen=True)
class RefineParams:
    """Steps, and the weight of each loss; ``side`` is the render size in px, ``rate`` Adam's in whitened latents."""

    steps: int = 40
    side: int = 256
    rate: float = 0.05
    identity: float = 2.5
    colour: float = 1.0
    landmarks: float = 40.0
    prior: float = 0.01
    spread: float = 0.02
    views: int = 2


LandmarkNetwork = Callable[[Tensor], Tensor]
MESH_BOX = (0.135, 0.135, 0.73)  # left, top, side of the face in an FFHQ crop, for the 468-point network
MESH_INPUT = 192


def mesh_in_crop(network: LandmarkNetwork, faces: Tensor) -> Tensor:
    """468 landmarks of aligned faces [B, 3, R, R] in [-1, 1] -> [B, 468, 2] in shares of the crop's side."""
    left, top, side = MESH_BOX
    r = faces.shape[-1]
    t, l, s = round(top * r), round(left * r), round(side * r)
    view = F.interpolate(faces[:, :, t : t + s, l : l + s], (MESH_INPUT, MESH_INPUT), mode="bilinear", antialias=s > 192)
    points = network((view + 1) / 2).reshape(-1, 468, 3)[:, :, :2] / MESH_INPUT
    return points * side + points.new_tensor([left, top])


def refine(
    w: Tensor,
    face: Tensor,
    mask: Tensor,
    target: Tensor,
    generator: MobileStyleGAN,
    encoder: IdentityEncoder,
    mapper: LatentMapper,
    landmarks: LandmarkNetwork,
    params: RefineParams,
) -> Tensor:
    """Move one face's latents towards its target code.

    Args:
        w: start, [1, n, 512].
        face: the aligned photo [1, 3, R, R] in [-1, 1]; its landmarks and blurred colours are kept.
        mask: soft mask [1, 1, R, R] in 0..1, 1 where the render will be seen.
        target: unit code [1, 512].

    Returns:
        Latents [1, n, 512].
    """
    if params.steps == 0:
        return w
    face = F.adaptive_avg_pool2d(face, params.side)
    mask = F.adaptive_avg_pool2d(mask, params.side)
    with torch.no_grad():
        mesh = mesh_in_crop(landmarks, face)
        tones = _tones(face, mask)
    start = mapper.to_u(w)
    u = start.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([u], lr=params.rate, betas=(0.9, 0.95))
    for step in range(params.steps):
        optimiser.param_groups[0]["lr"] = params.rate * _schedule(step / params.steps)
        render = generator.synthesize(mapper.to_w(u), params.side)
        composite = mask * render + (1 - mask) * face
        seen = _views(composite, step, params.views)
        loss = params.identity * (1 - F.cosine_similarity(encoder(seen), target)).mean()
        loss = loss + params.colour * (_tones(render, mask) - tones).abs().mean()
        loss = loss + params.landmarks * (mesh_in_crop(landmarks, render) - mesh).abs().mean()
        centre = u.mean(1, keepdim=True)
        loss = loss + params.prior * centre.square().mean() + params.spread * (u - centre).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return mapper.to_w(u.detach())


def _schedule(progress: float) -> float:
    """Learning rate over a run: a short rise, then a cosine fall to a tenth."""
    if progress < 0.1:
        return 0.2 + 8 * progress
    return 0.55 + 0.45 * float(torch.cos(torch.tensor((progress - 0.1) / 0.9 * torch.pi)))


def _tones(image: Tensor, mask: Tensor, grid: int = 12) -> Tensor:
    """Mean colours of the masked face on a coarse grid: light and skin tone without features."""
    weight = F.adaptive_avg_pool2d(mask, grid)
    return F.adaptive_avg_pool2d(image * mask, grid) / (weight + 0.05)


def _views(composite: Tensor, step: int, count: int) -> Tensor:
    """The composite as other alignments and resolutions would show it, so that the code is met and not just fooled.

    Shifts and scales run through a fixed low-discrepancy sequence: no random state, the same on every device.
    """
    views = [composite]
    size = composite.shape[-1]
    for i in range(count - 1):
        n = step * (count - 1) + i + 1
        dx, dy, ds = ((n * phi) % 1 - 0.5 for phi in (0.7548776662, 0.5698402910, 0.8191725134))
        scale = 1 + 0.05 * ds
        theta = composite.new_tensor([[[scale, 0, 0.03 * dx], [0, scale, 0.03 * dy]]])
        grid = F.affine_grid(theta, [1, 3, size, size], align_corners=False)
        views.append(F.grid_sample(composite, grid, padding_mode="reflection", align_corners=False))
    return torch.cat(views)
