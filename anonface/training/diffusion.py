"""Training of the ``diffusion`` backend's latent diffusion model: first the autoencoder, then the UNet.

The generator draws the training faces on the training device, so that a GPU never waits for data.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from anonface.backends.cpu import mixed_precision
from anonface.backends.diffusion.backend import OWN, fixed_region
from anonface.backends.diffusion.ddim import Schedule, denoise
from anonface.models.attribute_encoder import MobileNetV2Features, feature_error
from anonface.models.latent_diffusion import LatentDiffusion
from anonface.training.data import FacePool, cropped, jitter, relit, rounded, tile
from anonface.training.loop import Objective

AVERAGE_DECAY = 0.999
UNCONDITIONAL = 0.15  # share of faces that are noisy everywhere
PIXEL_SPREAD = 0.27  # standard deviation of block means of faces, pixels in 0..1


class AutoencoderObjective(Objective):
    """Trains the autoencoder to be idempotent, E(round(D(z))) close to z, because recovery depends on it.

    Half of the latents in that loss are mixed with another face's latents and noise inside an ellipse, similar to what
    a key does. Latents are regularised to mean 0 and standard deviation 1, which the noise schedule assumes.

    Args:
        crop: side in px of random crops for training, which make steps faster; 0: whole faces.
        repeat_every: interval in steps of the idempotence loss, which costs more than all others.
    """

    def __init__(
        self,
        model: LatentDiffusion,
        features: MobileNetV2Features,
        faces: FacePool,
        batch: int = 4,
        crop: int = 0,
        repeat_every: int = 1,
    ):
        self.model, self.features, self.faces, self.batch = model, features, faces, batch
        self.crop, self.repeat_every = crop or faces.side, repeat_every

    def modules(self) -> dict[str, nn.Module]:
        return {"diffusion-autoencoder": self.model.autoencoder}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        faces = cropped(self.faces.draw(self.batch, rng), self.crop, rng)
        faces = faces.contiguous(memory_format=torch.channels_last)
        with mixed_precision(faces.device):
            latents = self.model.encode(faces)
            decoded = self.model.decode(latents)
            perceived = feature_error(self.features, decoded, faces)
            repeated = self._repeated(latents, decoded, rng) if step % self.repeat_every == 0 else latents.new_zeros(())
        error = (decoded - faces).float()
        spread = latents.float().var((0, 2, 3), correction=0)
        return {
            "pixels": error.abs().mean(),
            "perceived": 0.1 * perceived,
            "idempotent": repeated,
            "unit": 0.1 * (latents.float().mean((0, 2, 3)).square() + (spread + 1e-6).log().square()).mean(),
            "_psnr": -10 * torch.log10(error.detach().square().mean() / 4),
        }

    def _repeated(self, latents: Tensor, decoded: Tensor, rng: torch.Generator) -> Tensor:
        """Mean square of E(round(D(z))) - z, over the faces' own latents and mixed ones."""
        mixed = self._mixed(latents.detach(), rng)
        again = self.model.encode(rounded(torch.cat([decoded, self.model.decode(mixed)]).float()))
        return (again - torch.cat([latents.detach(), mixed])).float().square().mean()

    def _mixed(self, latents: Tensor, rng: torch.Generator) -> Tensor:
        """Latents [B, C, S, S] with another picture's latents and noise inside a random ellipse."""
        other = latents.roll(1, 0) + 0.1 * torch.randn(latents.shape, generator=rng).to(latents)
        places = (torch.arange(latents.shape[-1]) + 0.5) / latents.shape[-1]
        centre, axes = torch.rand(2, len(latents), 2, 1, generator=rng)
        x, y = ((places - centre) / (0.2 + 0.5 * axes)).square().unbind(1)
        region = (x[:, None, None, :] + y[:, None, :, None] <= 1).to(latents.device)
        return torch.where(region, other, latents)

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Columns: faces, their reconstructions, and the reconstructions of these."""
        faces = self.faces.render(4, torch.Generator().manual_seed(99)).float() / 127.5 - 1
        once = rounded(self.model.decode(self.model.encode(faces)))
        return tile([faces, once, self.model.decode(self.model.encode(once))])


def _averaged(average: Any, current: Any, steps: Tensor | int) -> None:
    """An exponential moving average with a warm-up of its decay, so that short runs forget the random start."""
    decay = min(AVERAGE_DECAY, (1 + int(steps)) / (10 + int(steps)))
    get_ema_multi_avg_fn(decay)(average, current, steps)


@torch.no_grad()
def start_from_block_means(autoencoder: Any) -> None:
    """Initialise an ``AutoencoderTiny`` so that latents are means of 8 x 8 px and are decoded as flat blocks.

    Its blocks are residual and end in a ReLU. Pictures in 0..1 are not negative, so they pass unchanged, and what the
    blocks add starts near zero. Without this initialisation colours take a thousand steps.
    """
    blocks = [m for m in autoencoder.modules() if hasattr(m, "fuse")]
    for block in blocks:
        block.conv[-1].weight.mul_(0.1)
        block.conv[-1].bias.zero_()
    for part in (autoencoder.encoder, autoencoder.decoder):
        convolutions: list[Any] = [m for m in part.layers if isinstance(m, nn.Conv2d)]
        first, *middle, last = convolutions
        for conv in middle:
            nn.init.dirac_(conv.weight)
            if conv.stride == (2, 2):
                corners = [conv.weight.roll(by, (2, 3)) for by in ((0, 0), (1, 0), (0, 1), (1, 1))]
                conv.weight.copy_(torch.stack(corners).mean(0))
            if conv.bias is not None:
                conv.bias.zero_()
        for conv in (first, last):
            conv.weight[:3].zero_()
            conv.weight[range(3), range(3), 1, 1] = 1
            conv.bias[:3] = 0
    encode, decode = autoencoder.encoder.layers[-1], autoencoder.decoder.layers[0]
    encode.weight[:3] *= PIXEL_SPREAD**-1
    encode.bias[:3] = -0.5 / PIXEL_SPREAD
    decode.weight[:3] *= PIXEL_SPREAD
    decode.bias[:3] = 0.5


class LatentPool:
    """A pool of encoded faces, each of them as drawn and augmented (mirrored, moved, relit).

    Until the pool is full, each draw adds as many faces as it returns; later it adds ``fresh`` ones.
    """

    def __init__(self, model: LatentDiffusion, faces: FacePool) -> None:
        self.model, self.faces = model, faces
        self.latents = torch.empty(0, model.channels, model.side, model.side, device=faces.images.device)

    @torch.no_grad()
    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Random latents [count, C, S, S] of the pool."""
        if new := count if len(self.latents) < 2 * self.faces.size else self.faces.fresh:
            self._add(self.faces.render(new, rng).float() / 127.5 - 1, rng)
        chosen = torch.randint(len(self.latents), (count,), generator=rng)
        return self.latents[chosen.to(self.latents.device)]

    def _add(self, faces: Tensor, rng: torch.Generator) -> None:
        pictures = torch.cat([faces, relit(jitter(faces.flip(3), rng), rng)])
        with mixed_precision(pictures.device):
            encoded = self.model.encode(pictures.contiguous(memory_format=torch.channels_last))
        self.latents = torch.cat([self.latents, encoded.to(self.latents)])[-2 * self.faces.size :]


def _plain_attention(device: torch.device) -> AbstractContextManager[None]:
    """Context without fused attention on a CPU, where its backward pass would take an eighth of every step."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


class NoiseObjective(Objective):
    """Trains the UNet to predict the velocity of latents; its moving average is shipped.

    Most faces have noise only inside the fixed region, as in face replacement, so the network learns to inpaint. A
    share UNCONDITIONAL has noise everywhere, as in the paper. The velocity is sqrt(a) noise - sqrt(1 - a) clean latents
    at the signal level a (Salimans and Ho 2022).
    """

    def __init__(self, model: LatentDiffusion, faces: FacePool, batch: int = 8) -> None:
        self.model, self.faces, self.batch = model, faces, batch
        model.autoencoder.requires_grad_(False)
        self.latents = LatentPool(model, faces)
        average = AveragedModel(model.unet, multi_avg_fn=_averaged)
        self.average = average.requires_grad_(False)

    def modules(self) -> dict[str, nn.Module]:
        return {"diffusion-unet": self.model.unet, "diffusion-average": self.average}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return {"diffusion-unet": self.average.module.state_dict()}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        if step:
            self.average.update_parameters(self.model.unet)
        latents, diffusion = self.latents.draw(self.batch, rng), self.model.diffusion
        noise = torch.randn(latents.shape, generator=rng).to(latents)
        steps = torch.randint(diffusion.config.num_train_timesteps, (len(latents),), generator=rng).to(latents.device)
        everywhere = torch.rand(len(latents), 1, 1, 1, generator=rng) < UNCONDITIONAL
        learnt = (everywhere | fixed_region(self.model.side)).to(latents.device)
        seen = torch.where(learnt, diffusion.add_noise(latents, noise, steps), latents)
        with mixed_precision(latents.device), _plain_attention(latents.device):
            predicted = self.model.unet(seen, steps).sample
        error = (predicted.float() - diffusion.get_velocity(latents, noise, steps)).square()
        return {"velocity": (error * learnt).sum() / (learnt.sum() * latents.shape[1])}

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Columns: faces; inpainted by plain sampling; inpainted with the backend's guidance and spread."""
        rng, steps = torch.Generator().manual_seed(99), 50
        faces = self.faces.render(6, rng).float() / 127.5 - 1
        clean = self.model.encode(faces)
        schedule = Schedule.of(self.model.diffusion, steps, int(OWN["first"]))
        region = fixed_region(self.model.side).to(clean.device)
        drawn = torch.randn(clean.shape, generator=rng).to(clean)
        averaged = LatentDiffusion(self.average.module, self.model.autoencoder, self.model.diffusion.config)

        def replaced(guidance: float, spread: float) -> Tensor:
            predict = functools.partial(averaged.noise, guidance=guidance)
            return self.model.decode(denoise(spread * drawn, predict, schedule, region, [clean] * (steps + 1)))

        return tile([faces, replaced(0, 1), replaced(float(OWN["guidance"]), float(OWN["spread"]))])
