"""Settling: a finished face is corrected until it encodes to the target latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anonface.backends.diffusion.latent_correction import SettlingParams, settle

SIDE = 32


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 12, 4, 2, 1), nn.SiLU(), nn.Conv2d(12, 4, 4, 2, 1)).requires_grad_(False)


def error(latents: Tensor, target: Tensor) -> float:
    return float((latents - target).square().mean())


def test_the_finished_face_encodes_to_what_was_meant_after_rounding():
    encode, rng = encoder(), torch.Generator().manual_seed(1)
    render = torch.rand(1, 3, SIDE, SIDE, generator=rng) * 1.6 - 0.8
    target = encode(render)
    shown = (render + 0.04 * torch.randn(render.shape, generator=rng)).clamp(-1, 1)  # what the photo made of it
    pattern = settle(shown, torch.ones(1, 1, SIDE, SIDE), target, encode, SettlingParams(side=SIDE))
    finished = ((shown + pattern + 1) * 127.5).round() / 127.5 - 1
    assert error(encode(finished), target) < 0.05 * error(encode(shown), target)
    assert pattern.abs().max() < 13 / 127.5


def test_nothing_moves_outside_the_mask_and_a_face_smaller_than_the_pattern_has_its_own():
    encode, mask = encoder(), torch.zeros(1, 1, SIDE, SIDE)
    mask[..., 8:24, 8:24] = 1
    shown = torch.zeros(1, 3, SIDE, SIDE)
    pattern = settle(shown, mask, torch.ones(1, 4, SIDE // 4, SIDE // 4), encode, SettlingParams(steps=3))
    assert pattern.shape == shown.shape
    assert pattern[..., 8:24, 8:24].any() and not pattern[(1 - mask).expand_as(pattern).bool()].any()
