"""iFADIT's renderer: a code and the photo's attributes become latents, and MobileStyleGAN draws them.

    draw      w = M(z*, E_Attr(X))                                     (equation 9)
    redraw    w = M(z, E_Attr(X*))                                     (equation 10)

Earlier photos hold a latent residual, which is added to the latents of equation 10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anonface import weights
from anonface.backends.base import Margin
from anonface.backends.generator import FINEST_HEAD, load_generator
from anonface.backends.latent_editing.latent_residual import COORDINATES, with_residual
from anonface.backends.parts import Finished
from anonface.crypto.keys import FaceKey
from anonface.faces.augmentation import shrink
from anonface.faces.colour_transfer import match_tones
from anonface.models.attribute_encoder import AttributeEncoder, LatentMapper

LATENTS = 17  # that a latent residual reaches
FILES = ("attributes", "mapper")


class GeneratorRenderer:
    """The renderer; see ``backends.parts.Renderer``."""

    resolution = 256  # at which the networks look; renders have the size of the crop
    resolutions: tuple[int, ...] = (256, 512, 1024)
    margin: Margin = "everywhere"
    matches_light = True
    residual_size = LATENTS * COORDINATES

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.attributes, self.mapper, self.generator = AttributeEncoder(), LatentMapper(), load_generator(self.device)
        for module, name in zip((self.attributes, self.mapper), FILES, strict=True):
            weights.load(module, name)
            module.requires_grad_(False).eval().to(self.device)

    def draw(self, face: Tensor, mask: Tensor, hidden: Tensor, key: FaceKey) -> Tensor:
        return self.drawn(self.latents(shrink(face, self.resolution), hidden.to(face)), face, mask)

    def residual(self, finished: Finished, face: Tensor, original: Tensor, code: Tensor) -> None:
        return None

    def redraw(self, finished: Finished, code: Tensor, residual: Tensor | None, legible: bool = True) -> Tensor:
        w = self.latents(finished.plain, code)
        if residual is not None:
            w = self.mapper.to_w(with_residual(self.mapper.to_u(w), residual.to(w).view(1, -1, COORDINATES)))
        return self.drawn(w, finished.face, finished.mask)

    def wrong_key_face(self, finished: Finished, code: Tensor) -> Tensor:
        return self.redraw(finished, code, None)

    @torch.no_grad()
    def latents(self, face: Tensor, code: Tensor) -> Tensor:
        """M(z, E_Attr(X)) for one face."""
        return self.mapper(code.float(), self.attributes(face))

    @torch.no_grad()
    def drawn(self, w: Tensor, face: Tensor, mask: Tensor) -> Tensor:
        """The face of latents in the photo's light, [1, 3, R, R] in [-1, 1] on the CPU."""
        side = face.shape[-1]
        # a 256-px crop gets the 512-px head too, shrunk: that is better
        render = shrink(self.generator.synthesize(w, max(FINEST_HEAD, side)), side)
        return match_tones(render, face, mask).clamp(-1, 1).cpu()
