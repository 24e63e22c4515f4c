"""The latent residual: what has to be added to the networks' latents of a face for the generator to draw that face.

M(E_ID(X), E_Attr(X)) draws a similar person; some gradient steps find the difference. They are taken when a photo is
anonymized, where the original is at hand, and the watermark holds their result. A few hundred coordinates hold nearly
all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.cpu import denormals_flushed
from anonface.faces.augmentation import schedule, shrink
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.models.identity import IdentityEncoder
from anonface.models.mobile_stylegan import Window

COORDINATES = 32  # of a latent's principal ones, the first
ENCODED_EVERY = 2  # steps
SLOW = 7  # px across, of the blur that fine detail does not survive, on a side of 256


@dataclass(frozen=True)
class ResidualParams:
    """Steps, the render side in px, Adam's rate in whitened latents, and the weight of each loss.

    ``pixels`` weighs absolute differences, ``far`` squared ones. ``fine`` weighs absolute differences of what a blur
    takes away: the pixel residual holds slow waves, but not fine ones. ``stay`` keeps the residual small.
    """

    steps: int = 25
    side: int = 256
    rate: float = 0.08
    pixels: float = 8.0
    far: float = 20.0
    fine: float = 20.0
    identity: float = 1.5
    stay: float = 0.02


class ResidualNetworks(Protocol):
    """Frozen networks: latents into faces, faces into codes."""

    @property
    def encoder(self) -> IdentityEncoder: ...

    def draw(self, u: Tensor, side: int, window: Window) -> Tensor:
        """Whitened latents [1, n, 512] -> [1, 3, side, side] in about [-1, 1], in a window."""
        ...


@denormals_flushed()
def find_residual(
    base: Tensor,
    face: Tensor,
    mask: Tensor,
    tones: Tensor,
    networks: ResidualNetworks,
    params: ResidualParams,
    start: Tensor | None = None,
) -> Tensor:
    """What is to be added to whitened latents [1, n, 512]: [1, n, COORDINATES], for the first coordinates of each.

    Args:
        base: the networks' latents, whitened.
        face: to be drawn, [1, 3, R, R] in [-1, 1].
        mask: soft mask [1, 1, R, R] in 0..1.
        tones: the picture whose blurred colours a render will be given, like ``face``.
        start: where to begin, as what is returned; None is 0.
    """
    face, mask, tones = (shrink(x, params.side) for x in (face, mask, tones))
    window = Window.around(mask)
    with torch.no_grad():
        code = networks.encoder(face)
    initial = base.new_zeros(*base.shape[:2], COORDINATES) if start is None else start.clone()
    change = initial.requires_grad_(True)
    optimiser = torch.optim.Adam([change], lr=params.rate, betas=(0.9, 0.95))
    weight = mask / mask.mean().clamp_min(0.05)
    for step in range(params.steps):
        optimiser.param_groups[0]["lr"] = params.rate * schedule(step / params.steps)
        render = networks.draw(with_residual(base, change), params.side, window)
        toned = match_tones(render, tones, mask)
        error = toned - face
        apart = params.pixels * error.abs() + params.far * error.square()
        if params.fine:
            slow = F.avg_pool2d(error, SLOW, 1, SLOW // 2, count_include_pad=False)
            apart = apart + params.fine * (error - slow).abs()
        loss = (weight * apart).mean()
        if step % ENCODED_EVERY == 0:
            seen = networks.encoder(composite(face, toned, mask))
            loss = loss + ENCODED_EVERY * params.identity * (1 - F.cosine_similarity(seen, code)).mean()
        loss = loss + params.stay * change.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return change.detach()


def with_residual(base: Tensor, change: Tensor) -> Tensor:
    """Whitened latents [1, n, 512] with a residual [1, n, COORDINATES]."""
    return base + F.pad(change, (0, base.shape[2] - change.shape[2]))
