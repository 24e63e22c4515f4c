"""Latent diffusion models of a few thousand numbers, for the tests of what is done with them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from anonface.models.latent_diffusion import FFHQ_SCHEDULE, LatentDiffusion, build, diffusion_of
from anonface.models.sharpener import Sharpener, SharpenerParams

SIDE, FACTOR = 16, 4
UNET = {
    "_class_name": "UNet2DModel",
    "sample_size": SIDE,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [16, 32],
    "layers_per_block": 1,
    "norm_num_groups": 8,
}
AUTOENCODER = {
    "_class_name": "AutoencoderKL",
    "down_block_types": ["DownEncoderBlock2D"] * 3,
    "up_block_types": ["UpDecoderBlock2D"] * 3,
    "block_out_channels": [8, 8, 16],
    "latent_channels": 4,
    "norm_num_groups": 4,
    "sample_size": SIDE * FACTOR,
    "scaling_factor": 0.5,
}
VQ = {**AUTOENCODER, "_class_name": "VQModel", "num_vq_embeddings": 32}
TEXT_UNET = {
    **UNET,
    "_class_name": "UNet2DConditionModel",
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 12,
    "attention_head_dim": 4,
}


def drawn(config: dict[str, Any], seed: int = 0, scale: float = 1.0) -> Any:
    """A network with random numbers, its last convolution scaled."""
    torch.manual_seed(seed)
    network = build(config).eval()
    if scale != 1.0:
        network.conv_out.weight.data *= scale
    return network


def drawn_sharpener() -> Sharpener:
    """One whose every parameter does something."""
    torch.manual_seed(0)
    sharpener = Sharpener(SharpenerParams(channels=8, blocks=2)).eval()
    for parameter in sharpener.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    return sharpener.requires_grad_(False)


class Folding(torch.nn.Module):
    """An autoencoder that loses nothing, pixels folded into channels 4 x 4 at a time.

    In place of a trained one: its round trip is exact up to 8-bit rounding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            latent_channels=3 * FACTOR**2,
            in_channels=3,
            out_channels=3,
            block_out_channels=[1] * (1 + int(math.log2(FACTOR))),
            scaling_factor=4.0,
        )
        self.marker = torch.nn.Parameter(torch.zeros(1))

    def encode(self, faces: Tensor) -> Any:
        folded = torch.nn.functional.pixel_unshuffle(faces, FACTOR)
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: folded))

    def decode(self, latents: Tensor) -> Any:
        return SimpleNamespace(sample=torch.nn.functional.pixel_shuffle(latents, FACTOR))


class GaussianNoise(torch.nn.Module):
    """The exact noise prediction for latents that are normal with a spread of one in every direction but correlated
    along rows: linear, so that the tests know what DDIM must do."""

    def __init__(self, channels: int, alphas: Tensor, side: int = SIDE) -> None:
        super().__init__()
        self.config = SimpleNamespace(sample_size=side, in_channels=channels, out_channels=channels)
        distance = (torch.arange(side)[:, None] - torch.arange(side)[None]).abs()
        values, vectors = torch.linalg.eigh(0.8 ** distance.double())
        self.values, self.vectors, self.alphas = values.float(), vectors.float(), alphas

    def forward(self, latents: Tensor, step: Tensor) -> Any:
        kept = float(self.alphas[int(step)])
        gain = (1 - kept) ** 0.5 / (kept * self.values + 1 - kept)

        return SimpleNamespace(sample=((latents @ self.vectors) * gain) @ self.vectors.T)


def random_model(seed: int = 0) -> LatentDiffusion:
    """Untrained diffusers networks; the noise prediction is damped, so that DDIM stays tame."""
    return LatentDiffusion(drawn(UNET, seed, 0.1), drawn(AUTOENCODER, seed + 1), FFHQ_SCHEDULE).eval()


def gaussian_model(side: int = SIDE) -> LatentDiffusion:
    """The lossless autoencoder and the exact noise prediction: what training ought to end in."""
    alphas = diffusion_of(FFHQ_SCHEDULE).alphas_cumprod
    return LatentDiffusion(GaussianNoise(3 * FACTOR**2, alphas, side), Folding(), FFHQ_SCHEDULE).eval()


def gaussian_faces(count: int, seed: int = 4) -> Tensor:
    """8-bit pictures [count, 3, 64, 64] in [-1, 1] of the distribution that :func:`gaussian_model` knows."""
    model = gaussian_model()
    white = torch.randn(count, model.channels, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    faces = model.decode((white * model.unet.values.sqrt()) @ model.unet.vectors.T)
    return ((faces.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1
