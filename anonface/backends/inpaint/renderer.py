"""The inpainting renderer: the photo without its face, and the code of a target identity, give a new face in one pass.

draw      the hidden code names a target identity that the generator can draw; the inpainter draws it into the photo
redraw    the inpainter draws the recovered code into the finished photo
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface import weights
from anonface.backends.base import Margin
from anonface.backends.generator import load_generator
from anonface.backends.parts import Finished
from anonface.backends.target_identity import TargetParams, likeliest_styles
from anonface.crypto.keys import FaceKey
from anonface.faces.analysis import FaceAnalysis, load_analysis_networks, mesh_in_crop
from anonface.faces.augmentation import shrink
from anonface.faces.colour_transfer import match_contrast, match_tones
from anonface.faces.surroundings import inpainter_inputs
from anonface.models.code_landmarks import CodeLandmarks
from anonface.models.identity import KEPT
from anonface.models.inpainter import Inpainter
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN

LOOKED_AT = 256  # px at which the photo is analysed and target identities are drawn
TARGET = TargetParams(styles=1024, likely=64)


class InpaintingRenderer:
    """The renderer; see ``backends.parts.Renderer``.

    Args:
        inpainter: trained, frozen, on the device.
        mapping: StyleGAN's mapping network, by which codes become styles.
    """

    resolutions: tuple[int, ...] = (256, 512, 1024)
    margin: Margin = "everywhere"
    matches_light = True
    residual_size = 0

    def __init__(self, inpainter: Inpainter, mapping: MappingNetwork, device: torch.device | str = "cpu") -> None:
        self.device, self.inpainter, self.mapping = torch.device(device), inpainter, mapping
        self.analysis, self.generator = load_analysis_networks(self.device), load_generator(self.device)
        self.targeting, self.regressor = TARGET, LatentAttributes()
        self.code_landmarks = CodeLandmarks()
        for network, name in ((self.regressor, "census"), (self.code_landmarks, "code-landmarks")):
            weights.load(network, name)
            network.requires_grad_(False).eval().to(self.device)

    def under(self, free: str) -> InpaintingRenderer:
        """The same networks where keys may change these of CONDITIONS, comma-separated."""
        other = copy.copy(self)
        other.targeting = replace(TARGET, free=tuple(free.split(",")))
        return other

    def draw(self, face: Tensor, mask: Tensor, hidden: Tensor, key: FaceKey) -> Tensor:
        return self._drawn(face, mask, self.target(hidden, face))

    def residual(self, finished: Finished, face: Tensor, original: Tensor, code: Tensor) -> None:
        return None

    def redraw(self, finished: Finished, code: Tensor, residual: Tensor | None, legible: bool = True) -> Tensor:
        return self._drawn(self._plain(finished), finished.mask, code)

    def wrong_key_face(self, finished: Finished, code: Tensor) -> Tensor:
        plain = self._plain(finished)
        return self._drawn(plain, finished.mask, self.target(code, plain))

    @torch.inference_mode()
    def target(self, hidden: Tensor, face: Tensor) -> Tensor:
        """The code [1, d] of a drawn person of the photo's apparent sex, age and skin tone, whom a hidden code names.

        Its kept coordinates are the hidden code's, and it tells of the photo's pose and expression.
        """
        analysis = FaceAnalysis(shrink(face, LOOKED_AT), self.analysis)
        style = likeliest_styles(hidden, analysis, self.regressor, self.mapping, self.targeting)
        person = self.generator.synthesize(style[:, None].expand(-1, MobileStyleGAN.TIED, -1), LOOKED_AT)
        code, kept = self.analysis.encoder(person), hidden[:, :KEPT].to(person)
        rest = (1 - kept.square().sum(1, keepdim=True)).clamp_min(0).sqrt()
        code = torch.cat([kept, rest * F.normalize(code[:, KEPT:], dim=1)], 1)
        return self.code_landmarks(code, analysis.mesh)

    @torch.inference_mode()
    def _drawn(self, face: Tensor, mask: Tensor, code: Tensor) -> Tensor:
        """The face of a code in the photo's light, [1, 3, R, R] on the CPU."""
        network, side, wanted = self.inpainter, self.inpainter.params.side, face.shape[-1]
        small, cover = (F.interpolate(x, (side, side), mode="bilinear", antialias=True) for x in (face, mask))
        mesh = mesh_in_crop(self.analysis.landmarks, face)
        inputs = inpainter_inputs(small, cover, mesh)
        style, offsets = network.styles(network.told(inputs, mesh, code.float().to(face)))
        w = style[:, None] + offsets
        features = network.features(inputs, w)
        render = _enlarged(network.head(features, w[:, -1]), wanted)
        if wanted > side:
            render = render + self._detail(features, w, wanted)
        return match_contrast(match_tones(render, face, mask), face, mask).clamp(-1, 1).cpu()

    def _detail(self, features: Tensor, w: Tensor, wanted: int) -> Tensor:
        """What the generator's next levels draw finer than the inpainter's side, [1, 3, wanted, wanted]."""
        generator, side = self.generator, self.inpainter.params.side
        latents = torch.cat([w, w[:, -1:].expand(-1, generator.n_latents - w.shape[1], -1)], 1)
        x, first, last = features, generator.level(2 * side), generator.level(wanted)
        for level in range(first, last + 1):
            x = generator.layers[level](x, latents[:, 1 + 3 * level : 4 + 3 * level])
        fine = generator.head(x, latents, last)
        return fine - _enlarged(F.interpolate(fine, (side, side), mode="area"), wanted)

    def _plain(self, finished: Finished) -> Tensor:
        return F.interpolate(finished.plain, finished.face.shape[-2:], mode="bicubic", align_corners=False)


def _enlarged(picture: Tensor, side: int) -> Tensor:
    return F.interpolate(picture, (side, side), mode="bicubic", align_corners=False)
