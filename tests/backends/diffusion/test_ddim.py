"""DDIM up and down on models whose noise is known."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from tiny_diffusion import SIDE, GaussianNoise, random_model

from anonface.backends.diffusion.ddim import TOLERANCE, Schedule, denoise, invert, move
from anonface.models.latent_diffusion import FFHQ_SCHEDULE, diffusion_of


@pytest.fixture
def clean() -> torch.Tensor:
    """Latents of the distribution that GaussianNoise predicts."""
    rows = GaussianNoise(4, torch.ones(1))
    white = torch.randn(1, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    return (white * rows.values.sqrt()) @ rows.vectors.T


@pytest.fixture
def mask() -> torch.Tensor:
    cells = torch.zeros(1, 1, SIDE, SIDE, dtype=torch.bool)
    cells[..., 4:12, 4:12] = True
    return cells


def analytic(diffusion):
    network = GaussianNoise(4, diffusion.alphas_cumprod)
    return lambda latents, timestep: network(latents, torch.tensor(timestep)).sample


def test_the_schedule_follows_the_scheduler():
    diffusion = diffusion_of(FFHQ_SCHEDULE)
    schedule = Schedule.of(diffusion, 50)
    assert schedule.timesteps == tuple(range(0, 1000, 20))
    assert schedule.kept[0] == 1 and len(schedule.kept) == 51
    assert all(a > b for a, b in zip(schedule.kept, schedule.kept[1:], strict=False))
    stable = diffusion_of({**FFHQ_SCHEDULE, "steps_offset": 1, "set_alpha_to_one": False})
    assert Schedule.of(stable, 10).timesteps[0] == 1
    assert Schedule.of(stable, 10).kept[0] == pytest.approx(1 - 0.0015)


def test_the_steps_are_those_of_diffusers(clean):
    """Against both of its schedulers, a random network between."""
    from diffusers import DDIMInverseScheduler

    model = random_model()
    schedule = Schedule.of(model.diffusion, 10)
    upwards = DDIMInverseScheduler.from_config(model.diffusion.config)
    upwards.set_timesteps(10)
    with torch.inference_mode():
        ours = invert(clean, model.noise, schedule)
        theirs = clean
        for timestep in upwards.timesteps:
            theirs = upwards.step(model.unet(theirs, timestep).sample, timestep, theirs).prev_sample
        torch.testing.assert_close(ours[-1], theirs, atol=1e-5, rtol=1e-5)
        everywhere = torch.ones(1, 1, SIDE, SIDE, dtype=torch.bool)
        back = denoise(ours[-1], model.noise, schedule, everywhere, ours)
        for timestep in model.diffusion.timesteps:
            theirs = model.diffusion.step(model.unet(theirs, timestep).sample, timestep, theirs).prev_sample
    torch.testing.assert_close(back, theirs, atol=1e-5, rtol=1e-5)
    assert (back - clean).norm() > 1e-3 * clean.norm()  # one call a step does not recover exactly


def test_more_iterations_lead_back_exactly(clean, mask):
    diffusion = diffusion_of(FFHQ_SCHEDULE)
    schedule, predict = Schedule.of(diffusion, 50), analytic(diffusion)
    background = schedule.noised(clean, torch.randn(clean.shape, generator=torch.Generator().manual_seed(3)))
    errors = []
    for iterations in (1, 3, 30):
        trajectory = invert(clean, predict, schedule, iterations, mask, background)
        back = denoise(trajectory[-1], predict, schedule, mask, background)
        errors.append(float((back - clean).norm() / clean.norm()))
    assert errors[0] > 1e-3 and errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 1e-4


def test_inversion_makes_noise_of_latents(clean):
    diffusion = diffusion_of(FFHQ_SCHEDULE)
    noise = invert(clean, analytic(diffusion), Schedule.of(diffusion, 100), 5)[-1]
    neighbours = [float((x[..., 1:] * x[..., :-1]).mean() / x.square().mean()) for x in (clean, noise)]
    assert neighbours[0] > 0.7 and abs(neighbours[1]) < 0.25
    assert float(noise.std()) == pytest.approx(1, abs=0.15)


def test_steps_may_lie_closely_at_the_clean_end():
    diffusion = diffusion_of(FFHQ_SCHEDULE)
    even, close = Schedule.of(diffusion, 50), Schedule.of(diffusion, 50, first=0)
    assert close.timesteps[:5] == (0, 1, 2, 4, 7) and close.timesteps[-1] == even.timesteps[-1]
    assert all(a < b for a, b in pairwise(close.timesteps)) and len(close.timesteps) == 50
    assert Schedule.of(diffusion, 1000, first=0) == Schedule.of(diffusion, 1000)
    assert len(set(Schedule.of(diffusion, 999, first=0).timesteps)) == 999


def test_steps_take_the_calls_that_they_need(clean, mask):
    """Most where the noise grows most; and what they come to is as exact as many calls everywhere."""
    diffusion = diffusion_of(FFHQ_SCHEDULE)
    predict = analytic(diffusion)
    for steps, most in ((50, 80), (15, 50)):
        schedule, calls = Schedule.of(diffusion, steps, first=0), []
        needed = [len(schedule.gains(i)) for i in range(steps)]
        assert max(needed) == needed[0] and min(needed) < 4 and sum(needed) < most

        def counted(latents, timestep, calls=calls):
            calls.append(timestep)
            return predict(latents, timestep)

        background = schedule.noised(clean, torch.zeros_like(clean))
        ends = [invert(clean, seen, schedule, n, mask, background)[-1] for seen, n in ((counted, 0), (predict, 40))]
        assert len(calls) == sum(needed)
        assert (ends[0] - ends[1]).norm() < 0.01 * ends[1].norm()
        as_many = invert(clean, predict, schedule, round(len(calls) / steps), mask, background)[-1]
        assert (ends[0] - ends[1]).norm() < 0.5 * (as_many - ends[1]).norm()  # of plain iteration's, evenly


def test_gains_are_those_of_a_step_whose_eigenvalues_are_known():
    """The error left of every eigenvalue between the levels' ratios is at most what was asked for."""
    schedule = Schedule.of(diffusion_of({**FFHQ_SCHEDULE, "set_alpha_to_one": False}), 20, first=0)
    assert schedule.gains(0) == (1.0,)  # from a level to itself
    for i in range(1, 20):
        cleaner, noisier = schedule.kept[i : i + 2]
        low, high = ((1 - cleaner) / (1 - noisier)) ** 0.5, (cleaner / noisier) ** 0.5
        left = [math.prod(1 - gain * (low + (high - low) * x / 50) for gain in schedule.gains(i)) for x in range(51)]
        assert 0 < max(map(abs, left)) < TOLERANCE


def test_the_background_is_held_at_every_level(clean, mask):
    diffusion = diffusion_of(FFHQ_SCHEDULE)
    schedule, seen = Schedule.of(diffusion, 5), []
    background = schedule.noised(clean, torch.ones_like(clean))

    def predict(latents, timestep):
        seen.append(latents)
        return torch.zeros_like(latents)

    result = denoise(torch.full_like(clean, 9.0), predict, schedule, mask, background)
    outside = ~mask.expand_as(clean)
    assert torch.equal(result[outside], clean[outside]) and not torch.equal(result, clean)
    for latents, level in zip(seen, reversed(background), strict=False):
        assert torch.equal(latents[outside], level[outside])


def test_moving_there_and_back_is_nothing(clean):
    noise = torch.ones_like(clean)
    torch.testing.assert_close(move(move(clean, noise, 0.9, 0.4), noise, 0.4, 0.9), clean)


def test_a_schedule_that_ends_in_pure_noise_is_refused():
    with pytest.raises(ValueError, match="pure noise"):
        diffusion_of({**FFHQ_SCHEDULE, "rescale_betas_zero_snr": True})
