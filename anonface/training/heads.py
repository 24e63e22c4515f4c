"""Training of the image heads for 256 and 512 px; the released generator has a head for 1024 px only.

Each head learns to predict the area-averaged 1024-px render from the features of its level, on random latents with
style mixing. A 1024-px render costs far more than a training step of a head, so renders are kept in a pool, used
several times and replaced one by one. The linear part is initialised by least squares on the first renders.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.models.mobile_stylegan import EarlyHead, MappingNetwork, MobileStyleGAN, haar
from anonface.training.data import draw_latents, levels, tile
from anonface.training.loop import Objective

TURNS = ("256", "256", "512")  # the head trained at each step, in turn


class HeadsObjective(Objective):
    """Trains ``generator.heads`` against the generator's own 1024-px output; all else is frozen.

    Args:
        pool: number of renders in the pool, 0.8 MB each.
        refresh: interval in steps between two new renders once the pool is full.
    """

    def __init__(
        self, generator: MobileStyleGAN, mapping: MappingNetwork, batch: int = 4, pool: int = 256, refresh: int = 4
    ) -> None:
        self.generator, self.mapping, self.batch = generator, mapping, batch
        self.size, self.refresh = pool, refresh
        self.pool: list[tuple[Tensor, Tensor]] = []  # latents [n, 512] and renders uint8 [3, 512, 512]
        generator.requires_grad_(False)
        generator.heads.requires_grad_(True)
        if not any(head.weight.any() for head in self._heads()):
            self._start_from_least_squares()

    def _heads(self) -> list[EarlyHead]:
        return [head for head in self.generator.heads.values() if isinstance(head, EarlyHead)]

    def modules(self) -> dict[str, nn.Module]:
        return {"generator-heads": self.generator.heads}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        w, target = self._batch(rng, step)
        side = TURNS[step % len(TURNS)]
        level = self.generator.level(int(side))
        with torch.no_grad():
            features = self.generator.features(w, level)
        error = self.generator.head(features, w, level) - shrink(target, int(side))
        square = error.square().mean()
        psnr = -10 * torch.log10(square.detach() / 4)
        return {"error": 10 * square + error.abs().mean(), "_side": square.new_tensor(float(side)), "_psnr": psnr}

    @torch.no_grad()
    def _start_from_least_squares(self, count: int = 48) -> None:
        """Fit each head's linear part to about 4,096 pixels of each of ``count`` renders."""
        for _ in range(count):
            self._draw(torch.Generator().manual_seed(3000 + len(self.pool)))
        for side, head in zip(self.generator.heads, self._heads(), strict=True):
            level = self.generator.level(int(side))
            width = head.weight.shape[1] + 1
            gram, moment = torch.zeros(width, width).double(), torch.zeros(width, 12).double()
            for w, render in self.pool:
                x = self.generator.features(w[None], level)[0].flatten(1)
                y = haar(shrink(render[None].float() / 127.5 - 1, int(side)))[0].flatten(1)
                every = max(1, x.shape[1] // 4096)
                x = torch.cat([x[:, ::every], torch.ones(1, x[:, ::every].shape[1])]).double()
                gram, moment = gram + x @ x.T, moment + x @ y[:, ::every].T.double()
            ridge = 1e-3 * torch.eye(len(gram), dtype=torch.float64) * gram.diagonal().mean()
            solution = torch.linalg.solve(gram + ridge, moment).float().T
            head.weight.copy_(solution[:, :-1, None, None] / head.LINEAR_RATE)
            head.colour.bias.copy_(solution[:, -1])
            nn.init.normal_(head.weight_nonlinear, std=0.01)

    def _draw(self, rng: torch.Generator) -> None:
        w = draw_latents(self.mapping, 1, rng)
        render = shrink(self.generator.synthesize(w, self.generator.sizes[-1]), 512)
        if len(self.pool) == self.size:
            self.pool.pop(0)
        self.pool.append((w[0], levels(render[0])))

    @torch.no_grad()
    def _batch(self, rng: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        if len(self.pool) < self.size or step % self.refresh == 0:
            self._draw(rng)
        chosen = torch.randint(len(self.pool), (self.batch,), generator=rng).tolist()
        w = torch.stack([self.pool[i][0] for i in chosen])
        return w, torch.stack([self.pool[i][1] for i in chosen]).float() / 127.5 - 1

    @torch.no_grad()
    def sheet(self) -> NDArray:
        w = draw_latents(self.mapping, 4, torch.Generator().manual_seed(99))
        columns = [shrink(self.generator.synthesize(w, self.generator.sizes[-1]), 256)]
        for size in self.generator.heads:
            columns.append(F.interpolate(self.generator.synthesize(w, int(size)), (256, 256), mode="area"))
        return tile(columns)


def shrink(image: Tensor, side: int) -> Tensor:
    """Area average to ``side`` px."""
    return F.adaptive_avg_pool2d(image, side)
