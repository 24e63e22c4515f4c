"""Synthetic faces without limit: latents from the generator, degraded towards what real photos look like."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from anonface.models.mobile_stylegan import MappingNetwork


def draw_latents(
    mapping: MappingNetwork, count: int, rng: torch.Generator, n_latents: int = 23, mix: float = 0.5
) -> Tensor:
    """W+ codes [count, n_latents, 512]: each one w, or, with probability ``mix``, two joined at a random layer."""
    z = torch.randn(2 * count, 512, generator=rng)
    with torch.no_grad():
        w = mapping(z.to(next(mapping.parameters()).device))
    first, second = w[:count, None], w[count:, None]
    cut = torch.randint(1, n_latents, (count, 1, 1), generator=rng)
    cut = torch.where(torch.rand(count, 1, 1, generator=rng) < mix, cut, n_latents).to(w.device)
    late = torch.arange(n_latents, device=w.device)[None, :, None] >= cut
    return torch.where(late, second, first).contiguous()


def tile(columns: list[Tensor]) -> np.ndarray:
    """A contact sheet: each [B, 3, S, S] in [-1, 1] becomes a column; uint8 [B*S, len*S, 3]."""
    sheet = torch.cat([torch.cat(list(c.float().cpu()), dim=1) for c in columns], dim=2)
    return ((sheet.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
