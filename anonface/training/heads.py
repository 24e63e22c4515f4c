"""Image heads for 128, 256 and 512 px: the released generator has one for 1024 px only.

Each head learns to give the area-averaged 1024-px render from the features of its own level, on latents drawn without
limit (style mixing included). Loss: squared and absolute error, in equal parts by their usual size.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.data import draw_latents, tile


class HeadsObjective:
    """Trains ``generator.heads`` against its own 1024-px output; everything else stays fixed."""

    def __init__(self, generator: MobileStyleGAN, mapping: MappingNetwork, batch: int = 2) -> None:
        self.generator, self.mapping, self.batch = generator, mapping, batch
        generator.requires_grad_(False)
        generator.heads.requires_grad_(True)
        for head in generator.heads.values():
            if not head.weight.any():  # a fresh run: random start, neutral modulation
                nn.init.normal_(head.weight, std=0.1)
                head.modulation.scale = 1.0

    def modules(self) -> dict[str, nn.Module]:
        return {"generator-heads": self.generator.heads}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        w = draw_latents(self.mapping, self.batch, rng)
        with torch.no_grad():
            levels, target = self._levels(w)
        losses = {}
        for side, (level, features) in levels.items():
            error = self.generator.head(features, w, level) - shrink(target, int(side))
            losses[f"head{side}"] = 10 * error.square().mean() + error.abs().mean()
            losses[f"_psnr{side}"] = -10 * torch.log10(error.detach().square().mean() / 4)
        return losses

    def _levels(self, w: Tensor) -> tuple[dict[str, tuple[int, Tensor]], Tensor]:
        """Features of every level with a head (by its output side), and the 1024-px render, in one pass."""
        g = self.generator
        kept = {}
        x = g.conv1(g.input.expand(w.shape[0], -1, -1, -1), w[:, 0])
        for i, layer in enumerate(g.layers):
            x = layer(x, w[:, 1 + 3 * i : 4 + 3 * i])
            side = str(g.params.side(i))
            if side in g.heads:
                kept[side] = (i, x)
        return kept, g.head(x, w, len(g.layers) - 1)

    @torch.no_grad()
    def sheet(self) -> np.ndarray:
        w = draw_latents(self.mapping, 4, torch.Generator().manual_seed(99))
        _, full = self._levels(w)
        columns = [shrink(full, 256)]
        for size in self.generator.heads:
            columns.append(F.interpolate(self.generator.synthesize(w, int(size)), (256, 256), mode="area"))
        return tile(columns)


def shrink(image: Tensor, side: int) -> Tensor:
    """Area average to ``side`` px."""
    return F.adaptive_avg_pool2d(image, side)
