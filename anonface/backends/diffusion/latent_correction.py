"""Latent correction: faint changes after which a finished photo encodes to the latents it was decoded from.

A diffusion model's recovery starts from the latents of the finished photo. They differ from the decoded ones by the
autoencoder, the photo's grid, the soft border and 8 bits, and inversion magnifies every such error. An encoder makes
few numbers out of many pixels, so a correction of a few grey levels removes most of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.cpu import denormals_flushed
from anonface.faces.augmentation import schedule, shrink


@dataclass(frozen=True)
class SettlingParams:
    """Steps, Adam's rate in grey levels, and the correction's side in px: what is finer, a small face cannot hold."""

    steps: int = 12
    rate: float = 1.0
    side: int = 128


@denormals_flushed()
@torch.enable_grad()
def settle(
    shown: Tensor,
    mask: Tensor,
    target: Tensor,
    encode: Callable[[Tensor], Tensor],
    params: SettlingParams,
) -> Tensor:
    """What is to be added to one finished face: [1, 3, r, r] in units of ``shown``, r at most R, 0 outside the mask.

    Args:
        shown: the finished picture of the aligned face, [1, 3, R, R] in [-1, 1].
        mask: soft mask [1, 1, R, R] in 0..1, 1 where pixels may change.
        target: its latents, [1, C, S, S].
        encode: faces -> latents, differentiable.
    """
    room = shrink(mask, min(params.side, mask.shape[-1]))
    pattern = shown.new_zeros(1, 3, *room.shape[2:]).requires_grad_()
    optimiser = torch.optim.Adam([pattern], lr=params.rate / 127.5, betas=(0.7, 0.99))
    for step in range(params.steps):
        optimiser.param_groups[0]["lr"] = params.rate / 127.5 * schedule(step / params.steps)
        corrected = shown + F.interpolate(room * pattern, size=shown.shape[-1], mode="bilinear")
        loss = (encode(corrected.clamp(-1, 1)) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return (room * pattern).detach()
