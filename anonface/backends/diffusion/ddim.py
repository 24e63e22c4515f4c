"""Deterministic DDIM (eta 0) on latents, up to noise and down again, with a part held to a given background.

A trajectory has T + 1 entries: 0 is the clean latent, T the noise. Step i of T lies between entries i and i + 1 and
calls the network at ``timesteps[i]``, the level of its noisier end, in both directions: equation 3 of the sign-flip
paper reads as if the cleaner end's were meant, the authors' code takes the noisier. Only so can the two directions be
each other's inverse.

A step up is then the solution z of F(z) = z_i, F being the step down. Plain inversion calls the network once, at z_i
itself; calling it again at each result is a fixed-point iteration, z + g (z_i - F(z)) with g the ratio of the levels'
signal. But more is known of F: an ideal network's prediction of the clean latent has the posterior covariance for its
Jacobian, which is symmetric and of no negative direction, so the eigenvalues of F lie between the ratios of the levels'
noise and of their signal. For such an F the best gains are Chebyshev's; and since noise changes slowly along a
trajectory, its last two predictions, continued straight on, are the better start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOLERANCE, MOST_CALLS = 0.2, 24

Predictor = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Schedule:
    """Training steps called, rising, and the share of signal (alpha-bar) of each trajectory entry, falling."""

    timesteps: tuple[int, ...]
    kept: tuple[float, ...]

    @classmethod
    def of(cls, diffusion: Any, steps: int, first: int = -1) -> Schedule:
        """Of a diffusers ``DDIMScheduler``; ``steps`` up to the number it was trained with.

        Args:
            first: the training step to begin at, whose noise the latents of photos are then taken to hold; steps lie as
                i^2 from there (Song et al. 2021, appendix D.2), closely at the clean end, where an even step multiplies
                the noise by four and no iteration undoes that. -1: evenly, from no noise at all.
        """
        diffusion.set_timesteps(steps)
        timesteps = tuple(reversed(diffusion.timesteps.tolist()))
        cleanest = diffusion.final_alpha_cumprod
        if first >= 0 and steps > 1:
            last, spread = timesteps[-1], list[int]()
            for i in range(steps):
                wanted = round(first + (last - first) * (i / (steps - 1)) ** 2)
                spread.append(min(max(wanted, spread[-1] + 1 if spread else 0), last - (steps - 1 - i)))
            timesteps = tuple(spread)
            cleanest = diffusion.alphas_cumprod[timesteps[0]] if first else cleanest
        return cls(timesteps, (float(cleanest), *(float(diffusion.alphas_cumprod[t]) for t in timesteps)))

    def gains(self, step: int) -> tuple[float, ...]:
        """Chebyshev's, of one network call each, of as many calls as shrink what the start of a step missed to
        :data:`TOLERANCE` of it: the more, the further apart the levels are (Golub and Van Loan 2013, chapter 11.2)."""
        cleaner, noisier = self.kept[step : step + 2]
        low, high = ((1 - cleaner) / (1 - noisier)) ** 0.5, (cleaner / noisier) ** 0.5
        condition = (high / max(low, 1e-6)) ** 0.5
        count = 1
        if condition > 1:
            count = math.ceil(math.log(2 / TOLERANCE) / math.log((condition + 1) / (condition - 1)))
        angles = (math.pi * (j + 0.5) / count for j in range(min(count, MOST_CALLS)))
        return tuple(2 / (high + low + (high - low) * math.cos(angle)) for angle in angles)

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
        iterations: network calls a step of fixed-point iteration, of which one is plain inversion; 0: as many as each
            step needs, with :meth:`Schedule.gains`.
        mask, background: outside the mask every entry is the background's, so that a :func:`denoise` under the same
            two is inverted.
    """

    def held(latents: Tensor, level: int) -> Tensor:
        return latents if mask is None or background is None else torch.where(mask, latents, background[level])

    trajectory, noises = [clean], list[Tensor]()  # of each step's last call
    for i, timestep in enumerate(schedule.timesteps):
        start, levels = trajectory[-1], schedule.kept[i : i + 2]
        end = start
        if iterations == 0 and i > 1:
            end = held(move(start, 2 * noises[-1] - noises[-2], *levels), i + 1)
        for gain in schedule.gains(i) if iterations == 0 else [None] * iterations:
            noise = predict(end, timestep)
            if gain is None:
                end = move(start, noise, *levels)
            else:
                end = end + gain * (start - move(end, noise, *levels[::-1]))
            end = held(end, i + 1)
        noises = [*noises[-1:], noise]
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
