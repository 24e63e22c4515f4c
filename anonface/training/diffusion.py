"""The latent diffusion model of the ``diffusion`` backend: first its autoencoder, then its noise prediction.

Both are trained on faces that the generator draws on the training device itself, so that a GPU never waits for data.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from anonface.backends.ddim import Schedule, denoise
from anonface.backends.diffusion import fixed_region
from anonface.models.attributes import MobileNetV2Features
from anonface.models.latent_diffusion import LatentDiffusion
from anonface.training.data import FacePool, rounded, tile
from anonface.training.loop import Objective

AVERAGE_DECAY = 0.9995


class AutoencoderObjective(Objective):
    """Trains the autoencoder to be idempotent: E(round(D(z))) is close to z, which is what recovery rests on.

    Half of the latents of that loss are turned: inside the fixed region they are another face's, with noise, as the
    key leaves them. Latents are drawn towards mean 0 and spread 1, which the noise schedule takes for granted.
    """

    def __init__(self, model: LatentDiffusion, features: MobileNetV2Features, faces: FacePool, batch: int = 4):
        self.model, self.features, self.faces, self.batch = model, features, faces, batch
        self.region = fixed_region(model.side)

    def modules(self) -> dict[str, nn.Module]:
        return {"diffusion-autoencoder": self.model.autoencoder}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        faces = self.faces.draw(self.batch, rng)
        with torch.autocast(faces.device.type, torch.bfloat16, enabled=faces.device.type == "cuda"):
            latents = self.model.encode(faces)
            turned = self._turned(latents.detach(), rng)
            decoded, other = self.model.decode(latents), self.model.decode(turned)
            again = self.model.encode(rounded(torch.cat([decoded, other]).float()))
            perceived = [
                (a - b).abs().mean() for a, b in zip(self.features(decoded), self.features(faces), strict=True)
            ]
        error = (decoded - faces).float()
        spread = latents.float().var((0, 2, 3), correction=0)
        return {
            "pixels": error.abs().mean(),
            "perceived": 0.1 * torch.stack(perceived).mean(),
            "idempotent": (again - torch.cat([latents.detach(), turned])).float().square().mean(),
            "unit": 0.1 * (latents.float().mean((0, 2, 3)).square() + (spread + 1e-6).log().square()).mean(),
            "_psnr": -10 * torch.log10(error.detach().square().mean() / 4),
        }

    def _turned(self, latents: Tensor, rng: torch.Generator) -> Tensor:
        other = latents.roll(1, 0) + 0.1 * torch.randn(latents.shape, generator=rng).to(latents)
        return torch.where(self.region.to(latents.device), other, latents)

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Faces, their reconstructions, and those again."""
        faces = self.faces.render(4, torch.Generator().manual_seed(99)).float() / 127.5 - 1
        once = rounded(self.model.decode(self.model.encode(faces)))
        return tile([faces, once, self.model.decode(self.model.encode(once))])


class NoiseObjective(Objective):
    """Trains the UNet to predict the noise in latents, unconditionally (Ho et al. 2020); its moving average ships."""

    def __init__(self, model: LatentDiffusion, faces: FacePool, batch: int = 8) -> None:
        self.model, self.faces, self.batch = model, faces, batch
        model.autoencoder.requires_grad_(False)
        average = AveragedModel(model.unet, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE_DECAY))
        self.average = average.requires_grad_(False)

    def modules(self) -> dict[str, nn.Module]:
        return {"diffusion-unet": self.model.unet, "diffusion-average": self.average}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return {"diffusion-unet": self.average.module.state_dict()}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        if step:
            self.average.update_parameters(self.model.unet)
        faces = self.faces.draw(self.batch, rng)
        diffusion = self.model.diffusion
        with torch.autocast(faces.device.type, torch.bfloat16, enabled=faces.device.type == "cuda"):
            with torch.no_grad():
                latents = self.model.encode(faces).float()
            noise = torch.randn(latents.shape, generator=rng).to(latents)
            steps = torch.randint(diffusion.config.num_train_timesteps, (len(latents),), generator=rng)
            steps = steps.to(latents.device)
            predicted = self.model.unet(diffusion.add_noise(latents, noise, steps), steps).sample
        return {"noise": F.mse_loss(predicted.float(), noise)}

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Faces that the average draws from noise in 50 steps."""
        schedule = Schedule.of(self.model.diffusion, 50)
        shape = (4, self.model.channels, self.model.side, self.model.side)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(99)).to(self.faces.images.device)

        def predict(latents: Tensor, timestep: int) -> Tensor:
            return self.average.module(latents, timestep).sample

        everywhere = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=noise.device)
        nothing = [noise] * (len(schedule.timesteps) + 1)
        return tile([self.model.decode(denoise(noise, predict, schedule, everywhere, nothing))])
