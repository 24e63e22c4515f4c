"""Training of the sharpener, which restores the detail that the autoencoder of ``diffusion`` loses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.backends.cpu import mixed_precision
from anonface.backends.diffusion.backend import fixed_region
from anonface.backends.diffusion.ddim import move
from anonface.models.attribute_encoder import MobileNetV2Features, feature_error
from anonface.models.discriminator import Discriminator
from anonface.models.latent_diffusion import LatentDiffusion
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.models.sharpener import Sharpener
from anonface.training.adversarial import adversarial_losses
from anonface.training.data import draw_latents, relit, rounded, squares, tile
from anonface.training.loop import Objective

MARGIN = 4  # latents around a crop that are decoded with it, about the decoder's receptive field


class DetailPool:
    """Detailed faces and their latents; each draw adds one until there are ``size``.

    Faces are rendered at the generator's full size, because its smaller renders are softer than a downsized photo.
    """

    def __init__(self, model: LatentDiffusion, generator: MobileStyleGAN, mapping: MappingNetwork, size: int) -> None:
        self.model, self.generator, self.mapping, self.size = model, generator, mapping, size
        self.side = Sharpener.factor * model.resolution
        device = next(mapping.parameters()).device
        self.faces = torch.empty(0, 3, self.side, self.side, dtype=torch.uint8, device=device)
        self.latents = torch.empty(0, model.channels, model.side, model.side, device=device)

    @torch.no_grad()
    def render(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` new faces [count, 3, 2R, 2R] in [-1, 1]."""
        faces = [
            self.generator.synthesize(draw_latents(self.mapping, 1, rng), self.generator.sizes[-1])
            for _ in range(count)
        ]
        return torch.cat([F.adaptive_avg_pool2d(face.clamp(-1, 1), self.side) for face in faces])

    @torch.no_grad()
    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Faces [count, 3, 2R, 2R] in [-1, 1] and their latents [count, C, S, S]."""
        if len(self.faces) < self.size:
            new = relit(self.render(1, rng), rng)
            self.faces = torch.cat([self.faces, ((new + 1) * 127.5).round().byte()])
            self.latents = torch.cat([self.latents, self.model.read(new)])
        chosen = torch.randint(len(self.faces), (count,), generator=rng).to(self.faces.device)
        return self.faces[chosen].float() / 127.5 - 1, self.latents[chosen]


class SharpenerObjective(Objective):
    """Trains the sharpener on crops of decoded faces.

    For half of the faces, noise is added inside the fixed region and the UNet's prediction of the clean latents is
    decoded, which is softer than a decoded real face. A loss keeps the latents of the sharpened face equal to those of
    the input, because recovery depends on them.

    Args:
        crop: side of the crops in px, before they are enlarged.
    """

    GAMMA, R1_EVERY = 2.0, 16  # weight and interval in steps of the gradient penalty (lazy regularisation)
    NOISIEST = 500  # largest training step of the noise

    def __init__(
        self,
        model: LatentDiffusion,
        sharpener: Sharpener,
        features: MobileNetV2Features,
        discriminator: Discriminator,
        faces: DetailPool,
        batch: int = 8,
        crop: int = 64,
    ) -> None:
        self.model, self.sharpener, self.features, self.discriminator = model, sharpener, features, discriminator
        self.faces, self.batch, self.crop = faces, batch, crop
        model.requires_grad_(False)
        for network in (sharpener, features, discriminator):  # faster bfloat16 convolutions
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def modules(self) -> dict[str, nn.Module]:
        return {"diffusion-sharpener": self.sharpener, "discriminator": self.discriminator}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return {"diffusion-sharpener": self.sharpener.state_dict()}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        wanted, soft = self._crops(*self.faces.draw(self.batch, rng), rng)
        with mixed_precision(soft.device):
            made = self.sharpener(soft)
            perceived = feature_error(self.features, made, wanted)
            reduced = F.avg_pool2d(rounded(made.float()), Sharpener.factor)
            encoded = (self.model.encode(reduced) - self.model.encode(soft)).float()
            penalty = self.R1_EVERY * self.GAMMA if step % self.R1_EVERY == 0 else 0.0
            judged = adversarial_losses(self.discriminator, wanted, made, penalty)
        error = (made - wanted).float()
        return {
            "pixels": error.abs().mean(),
            "perceived": 0.1 * perceived,
            "encoded": 0.2 * encoded.square().mean(),
            "fooling": 0.2 * judged.fooling.mean(),
            "catching": judged.real + judged.caught.mean() + judged.slope,
            "_psnr": -10 * torch.log10(error.detach().square().mean() / 4),
        }

    @torch.no_grad()
    def _crops(self, faces: Tensor, latents: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Crops of the faces [B, 3, 2c, 2c], and the same crops of the decoded faces [B, 3, c, c]."""
        half = len(latents) // 2
        latents = torch.cat([self._predicted(latents[:half], rng), latents[half:]])
        side, grid = self.model.side, self.model.resolution // self.model.side
        crop = self.crop // grid
        window = min(side, crop + 2 * MARGIN)
        corners = torch.randint(side - crop + 1, (len(faces), 2), generator=rng)
        around = (corners - MARGIN).clamp(0, side - window)
        with mixed_precision(latents.device):
            decoded = rounded(self.model.decode(squares(latents, around, window)).float()).clamp(-1, 1)
        wanted = squares(faces, Sharpener.factor * grid * corners, Sharpener.factor * self.crop)
        soft = squares(decoded, grid * (corners - around), self.crop)
        return wanted.contiguous(memory_format=torch.channels_last), soft.contiguous(memory_format=torch.channels_last)

    def _predicted(self, latents: Tensor, rng: torch.Generator) -> Tensor:
        """The UNet's prediction of clean latents from one random level of noise."""
        if not len(latents):
            return latents
        step = int(torch.randint(1, self.NOISIEST, (), generator=rng))
        region = fixed_region(self.model.side).to(latents.device)
        noise = torch.randn(latents.shape, generator=rng).to(latents)
        at = torch.full((len(latents),), step, device=latents.device)
        seen = torch.where(region, self.model.diffusion.add_noise(latents, noise, at), latents)
        with mixed_precision(latents.device):
            predicted = self.model.noise(seen, step).float()
        kept = float(self.model.diffusion.alphas_cumprod[step])
        return torch.where(region, move(seen, predicted, kept, 1.0), latents)

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Columns: faces; decoded; sharpened; the UNet's prediction, decoded; the same sharpened."""
        rng = torch.Generator().manual_seed(99)
        faces = self.faces.render(2, rng)
        latents = self.model.read(faces)
        columns = [faces]
        for shown in (latents, self._predicted(latents, rng)):
            soft = self.model.decode(shown).clamp(-1, 1)
            columns += [F.interpolate(soft, scale_factor=Sharpener.factor), self.sharpener(soft)]
        return tile(columns)
