"""Latent diffusion: an autoencoder, and a UNet that predicts the noise of its latents. Both are classes of diffusers.

This module holds their configurations, and one interface for all kinds of model: VQ or KL autoencoder, and a UNet that
is unconditional, conditioned on a text prompt, or controlled by a segmentation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import torchvision_adapter
from anonface.models.segmentation_control import SegmentationControlNet
from anonface.models.sharpener import Sharpener

Config = Mapping[str, Any]

# Of the sign-flip paper: CompVis' latent diffusion on FFHQ at 256 px (ffhq-ldm-vq-4), in diffusers' terms.
FFHQ_UNET: Config = {
    "_class_name": "UNet2DModel",
    "sample_size": 64,
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [224, 448, 672, 896],
    "attention_head_dim": 32,
}
FFHQ_AUTOENCODER: Config = {
    "_class_name": "VQModel",
    "down_block_types": ["DownEncoderBlock2D"] * 3,
    "up_block_types": ["UpDecoderBlock2D"] * 3,
    "block_out_channels": [128, 256, 512],
    "layers_per_block": 2,
    "latent_channels": 3,
    "sample_size": 256,
    "num_vq_embeddings": 8192,
}
FFHQ_SCHEDULE: Config = {"beta_start": 0.0015, "beta_end": 0.0195, "beta_schedule": "scaled_linear"}

# The model trained here: 32 x 32 x 4 latents of 256-px faces, trained to mean 0 and standard deviation 1. The
# autoencoder has TAESD's form, without normalisation, so a crop is encoded in the same way as that part of the whole
# picture. Autoencoder and UNet have 17.9 M parameters, 36 MB in fp16.
OWN_UNET: Config = {
    "_class_name": "UNet2DModel",
    "sample_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ["DownBlock2D", "DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D", "UpBlock2D"],
    "block_out_channels": [64, 128, 256],
    "attention_head_dim": 32,
}
OWN_AUTOENCODER: Config = {
    "_class_name": "AutoencoderTiny",
    "encoder_block_out_channels": [64] * 4,
    "decoder_block_out_channels": [64] * 4,
    "num_encoder_blocks": [1, 2, 3, 3],
    "num_decoder_blocks": [3, 3, 2, 1],
    "latent_channels": 4,
    "scaling_factor": 1.0,
}
# The UNet predicts velocity. At high noise levels, which decide colours and outline, a small error of predicted noise
# would be a large error of the face. The trajectory ends at the first trained level, because a step to zero noise would
# be a projection, which cannot be inverted.
OWN_SCHEDULE: Config = {**FFHQ_SCHEDULE, "prediction_type": "v_prediction", "set_alpha_to_one": False}

# Fields that are read from the configuration of any scheduler of diffusers.
SCHEDULE_FIELDS = (
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "set_alpha_to_one",
    "steps_offset",
    "prediction_type",
    "timestep_spacing",
)

UNETS, AUTOENCODERS = (
    ("UNet2DModel", "UNet2DConditionModel"),
    ("VQModel", "AutoencoderKL", "AutoencoderTiny"),
)


def build(config: Config) -> Any:
    """The diffusers network of a configuration, with random weights.

    Raises:
        ValueError: its ``_class_name`` is none of :data:`UNETS` and :data:`AUTOENCODERS`, or its sizes do not fit.
    """
    name = config.get("_class_name")
    if name not in (*UNETS, *AUTOENCODERS):
        raise ValueError(f"{name!r} is none of {', '.join((*UNETS, *AUTOENCODERS))}")
    return getattr(torchvision_adapter.load("diffusers"), name).from_config(dict(config))


def diffusion_of(schedule: Config) -> Any:
    """diffusers' ``DDIMScheduler`` of a training schedule, without clipping.

    Raises:
        ValueError: its last level holds no signal, so that nothing can be recovered from it.
    """
    if schedule.get("rescale_betas_zero_snr"):
        raise ValueError("its last level is pure noise, from which nothing can be recovered")
    fields = {name: schedule[name] for name in SCHEDULE_FIELDS if name in schedule}
    return torchvision_adapter.load("diffusers").DDIMScheduler(**fields, clip_sample=False)


class LatentDiffusion(nn.Module):
    """A complete model. Faces are [B, 3, R, R] in [-1, 1] with R = :attr:`resolution`, latents [B, C, S, S].

    Args:
        unet, autoencoder: as :func:`build` makes them.
        schedule: the training schedule, a diffusers scheduler's configuration.
        prompt: embedding of the text prompt [1, L, D], for a UNet with cross attention.
        control: conditions ``unet``, which it contains, on the face's segmentation.
        continues: whether ``unet`` was trained to inpaint a region with noise-free surroundings.
        sharpener: adds detail to decoded faces, at twice their side.

    Raises:
        ValueError: the parts do not fit each other.
    """

    prompt: Tensor | None

    def __init__(
        self,
        unet: Any,
        autoencoder: Any,
        schedule: Config,
        prompt: Tensor | None = None,
        control: SegmentationControlNet | None = None,
        continues: bool = False,
        sharpener: Sharpener | None = None,
    ) -> None:
        super().__init__()
        self.continues = continues
        self.unet, self.autoencoder, self.control, self.sharpener = unet, autoencoder, control, sharpener
        self.register_buffer("prompt", prompt)
        self.diffusion = diffusion_of(schedule)
        channels = autoencoder.config.latent_channels
        if (unet.config.in_channels, unet.config.out_channels) != (channels, channels):
            raise ValueError(
                f"the UNet takes {unet.config.in_channels} channels and gives {unet.config.out_channels}, "
                f"the autoencoder's latents have {channels}"
            )
        if (autoencoder.config.in_channels, autoencoder.config.out_channels) != (3, 3):
            raise ValueError("the autoencoder is not one of RGB pictures")
        if hasattr(unet.config, "cross_attention_dim") != (prompt is not None):
            raise ValueError("a UNet with cross attention needs a prompt, and no other takes one")
        wider = prompt is not None and prompt.shape[-1] != unet.config.cross_attention_dim
        if wider or getattr(unet.config, "addition_embed_type", None):
            raise ValueError("the UNet wants more than the one text encoder of Stable Diffusion 1 or 2 gives")

    @property
    def quantised(self) -> bool:
        return hasattr(self.autoencoder, "quantize")

    @property
    def channels(self) -> int:
        return int(self.autoencoder.config.latent_channels)

    @property
    def side(self) -> int:
        """Side of the latents."""
        return int(self.unet.config.sample_size)

    @property
    def resolution(self) -> int:
        """Side of the faces in px."""
        return self.side * 2 ** (len(self.autoencoder.config.block_out_channels) - 1)

    @property
    def resolutions(self) -> tuple[int, ...]:
        """Sides in px of faces from :meth:`picture` and for :meth:`read`."""
        smaller = (self.resolution // 2,) if self.resolution >= 8 * self.side else ()  # at least 4 px per latent
        larger = () if self.sharpener is None else (Sharpener.factor * self.resolution,)
        return (*smaller, self.resolution, *larger)

    def encode(self, faces: Tensor) -> Tensor:
        """Faces -> latents: before quantisation for a VQ model, else (a KL model's mean) times the scaling factor."""
        encoded = self.autoencoder.encode(faces)
        if self.quantised:
            return encoded.latents
        latents = encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latents
        return latents * self.autoencoder.config.scaling_factor

    def decode(self, latents: Tensor) -> Tensor:
        """Latents -> faces; a VQ model first quantises them."""
        if self.quantised:
            return self.autoencoder.decode(latents).sample
        return self.autoencoder.decode(latents / self.autoencoder.config.scaling_factor).sample

    def read(self, faces: Tensor) -> Tensor:
        """:meth:`encode` of faces of any of :attr:`resolutions`, resized to what the encoder takes."""
        if faces.shape[-1] < self.resolution:
            return self.encode(F.interpolate(faces, size=self.resolution, mode="bicubic"))
        return self.encode(F.adaptive_avg_pool2d(faces, self.resolution))

    def picture(self, latents: Tensor, side: int) -> Tensor:
        """Latents -> faces [B, 3, ``side``, ``side``] in [-1, 1], sharpened if there is a sharpener."""
        picture = self.decode(latents).clamp(-1, 1)
        if self.sharpener is not None:
            picture = self.sharpener(picture).float().clamp(-1, 1)
        return F.adaptive_avg_pool2d(picture, side)

    @property
    def guidable(self) -> bool:
        """Whether :meth:`noise` can be guided: the UNet has self-attention and no other condition."""
        return self.prompt is None and self.control is None and bool(self._attention())

    def noise(self, latents: Tensor, timestep: int, hint: Tensor | None = None, guidance: float = 0.0) -> Tensor:
        """The predicted noise of latents at a training step.

        Args:
            hint: from :meth:`SegmentationControlNet.hint`; only with ``control``.
            guidance: scale of perturbed-attention guidance (Ahn et al. 2024), which extrapolates away from a prediction
                with identity attention; only where :attr:`guidable`.
        """
        step = torch.tensor(timestep, device=latents.device)
        seen = latents.to(getattr(self.unet, "dtype", latents.dtype))
        if hint is not None and self.control is not None:
            predicted = self.control(seen, step, hint)
        elif self.prompt is not None:
            prompt = self.prompt.expand(len(latents), -1, -1)
            predicted = self.unet(seen, step, encoder_hidden_states=prompt).sample
        elif guidance:
            with self._attention_half_perturbed():
                good, bad = self.unet(torch.cat([seen, seen]), step).sample.float().chunk(2)
            predicted = good + guidance * (good - bad)
        else:
            predicted = self.unet(seen, step).sample
        return self.noise_of(predicted.to(latents), latents, timestep)

    def _attention(self) -> list[Any]:
        kind = torchvision_adapter.load("diffusers").models.attention_processor.Attention
        return [module for module in self.unet.modules() if isinstance(module, kind)]

    @contextlib.contextmanager
    def _attention_half_perturbed(self) -> Iterator[None]:
        """Context in which attention is unchanged for the first half of a batch and the identity for the second."""
        modules = self._attention()
        before = [module.processor for module in modules]
        perturbing = torchvision_adapter.load("diffusers").models.attention_processor.PAGIdentitySelfAttnProcessor2_0()
        try:
            for module in modules:
                module.processor = perturbing
            yield
        finally:
            for module, processor in zip(modules, before, strict=True):
                module.processor = processor

    def noise_of(self, predicted: Tensor, latents: Tensor, timestep: int) -> Tensor:
        """A prediction of the schedule's type (noise, velocity or clean latents), converted to noise."""
        if self.diffusion.config.prediction_type == "epsilon":
            return predicted
        kept = float(self.diffusion.alphas_cumprod[timestep])
        if self.diffusion.config.prediction_type == "v_prediction":
            return kept**0.5 * predicted + (1 - kept) ** 0.5 * latents
        return (latents - kept**0.5 * predicted) / (1 - kept) ** 0.5
