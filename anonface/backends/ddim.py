"""Deterministic DDIM (eta 0) on latents, up to noise and down again, with a part held to a given background.

A trajectory has T + 1 entries: 0 is the clean latent, T the noise. Step i of T lies between entries i and i + 1 and
calls the network at ``timesteps[i]``, the level of its noisier end, in both directions: equation 3 of the sign-flip
paper reads as if the cleaner end's were meant, the authors' code takes the noisier. Only so can the two directions be
each other's inverse, and with enough fixed-point iterations they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOLERANCE, MOST_CALLS = 0.01, 24

Predictor = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Schedule:
    """Training steps called, rising, and the share of signal (alpha-bar) of each trajectory entry, falling."""

    timesteps: tuple[int, ...]
    kept: tuple[float, ...]

    @classmethod
    def of(cls, diffusion: Any, steps: int, quadratic: bool = False) -> Schedule:
        """Of a diffusers ``DDIMScheduler``; ``steps`` up to the number it was trained with.

        Args:
            quadratic: space the training steps as i^2 rather than evenly (Song et al. 2021, appendix D.2): closely at
                the clean end, where an even step multiplies the noise by four and no iteration undoes that.
        """
        diffusion.set_timesteps(steps)
        timesteps = tuple(reversed(diffusion.timesteps.tolist()))
        if quadratic and steps > 1:
            last = timesteps[-1]
            spread: list[int] = []
            for i in range(steps):
                wanted = round(last * (i / (steps - 1)) ** 2)
                spread.append(min(max(wanted, spread[-1] + 1 if spread else 0), last - (steps - 1 - i)))
            timesteps = tuple(spread)
        kept = [float(diffusion.final_alpha_cumprod), *(float(diffusion.alphas_cumprod[t]) for t in timesteps)]
        return cls(timesteps, tuple(kept))

    def calls(self, step: int) -> int:
        """Network calls after which the fixed-point iteration of a step has what :data:`TOLERANCE` asks for.

        Where the data do not vary, predicted noise is what latents hold over the level's share of noise, so that each
        call leaves 1 - (the cleaner level's noise to signal) / (the noisier one's) of the error: most at the clean end.
        """
        cleaner, noisier = (((1 - kept) / kept) ** 0.5 for kept in self.kept[step : step + 2])
        left = 1 - cleaner / max(noisier, 1e-9)
        return 1 if left <= TOLERANCE else min(MOST_CALLS, math.ceil(math.log(TOLERANCE) / math.log(min(left, 0.999))))

    def noised(self, clean: Tensor, noise: Tensor) -> list[Tensor]:
        """A trajectory that needs no network: the clean latent under one given noise at every level, entry 0 bare."""
        return [clean, *(kept**0.5 * clean + (1 - kept) ** 0.5 * noise for kept in self.kept[1:])]


def move(latents: Tensor, noise: Tensor, kept: float, target: float) -> Tensor:
    """From one level to another along the predicted noise, equations 2 and 3."""
    clean = (latents - (1 - kept) ** 0.5 * noise) / kept**0.5
    return target**0.5 * clean + (1 - target) ** 0.5 * noise


def invert(
    clean: Tensor,
    predict: Predictor,
    schedule: Schedule,
    iterations: int = 1,
    mask: Tensor | None = None,
    background: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Clean latents [B, C, S, S] -> their trajectory, equation 3.

    Args:
        predict: latents and training step -> predicted noise.
        iterations: network calls a step; 0: as many as each step needs, :meth:`Schedule.calls`. The first takes the
            cleaner end for the noisier one, as is usual; each further one starts from the result of the one before,
            towards the exact inverse of :func:`denoise`.
        mask, background: outside the mask every entry is the background's, so that a :func:`denoise` under the same
            two is inverted.
    """
    trajectory = [clean]
    for i, timestep in enumerate(schedule.timesteps):
        end = trajectory[-1]
        for _ in range(iterations or schedule.calls(i)):
            end = move(trajectory[-1], predict(end, timestep), schedule.kept[i], schedule.kept[i + 1])
            if mask is not None and background is not None:
                end = torch.where(mask, end, background[i + 1])
        trajectory.append(end)
    return trajectory


def denoise(
    noise: Tensor, predict: Predictor, schedule: Schedule, mask: Tensor, background: Sequence[Tensor]
) -> Tensor:
    """Noise [B, C, S, S] -> clean latents, equation 2; outside the mask every entry is the background's, equation 5.

    Args:
        mask: bool, broadcasts against the latents; true where faces arise.
        background: a trajectory.
    """
    latents = torch.where(mask, noise, background[-1])
    for i in reversed(range(len(schedule.timesteps))):
        predicted = predict(latents, schedule.timesteps[i])
        latents = torch.where(mask, move(latents, predicted, schedule.kept[i + 1], schedule.kept[i]), background[i])
    return latents
