"""iFADIT's renderer: a code and the photo's attributes become latents, and MobileStyleGAN draws them.

draw      target identities of the hidden code (``target_identity.py``), fitted into the photo (``refinement.py``)
redraw    w = M(z, E_Attr(X*)) + latent residual                         (equation 10, ``latent_residual.py``)
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface import weights
from anonface.backends.base import Margin
from anonface.backends.generator import FINEST_HEAD, draft_renderer, load_generator
from anonface.backends.ifadit.latent_residual import COORDINATES, ResidualParams, find_residual, with_residual
from anonface.backends.ifadit.refinement import (
    ANONYMIZE,
    CHOICE,
    ETHNICITY_MARGIN,
    GLASSES_WEIGHT,
    RECOVER,
    Networks,
    RefineParams,
    Scene,
    in_mask,
    refine,
    refine_best,
    sex_age_error,
)
from anonface.backends.ifadit.target_identity import FEATURED, SEVERAL, SINGLE, target_identities, wrong_key_identities
from anonface.backends.parts import Finished
from anonface.crypto.keys import FaceKey
from anonface.faces.analysis import FaceAnalysis, load_analysis_networks
from anonface.faces.augmentation import shrink
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.faces.occlusion import keep_photo_skin, place_render
from anonface.models.attribute_encoder import AttributeEncoder, LatentMapper
from anonface.models.face_parser import new_glasses
from anonface.models.identity import KEPT
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.mobile_stylegan import MappingNetwork
from anonface.models.realism_critic import RealismCritic, within

# Nats of realism: of a squared deviation of seeming East Asian beyond ETHNICITY_MARGIN; and, where the eyes are hidden,
# of a unit of cosine to the other candidates above that to the shown face.
ETHNICITY_WEIGHT, UNLIKE_WEIGHT = 10.0, 60.0
LATENTS = 17  # that a latent residual reaches
USUAL_STEPS = 20
FEWEST_STEPS = 6  # of a latent residual, if any are taken
FILES = ("attributes", "mapper")
CHOICE_FILES = ("census", "inversion", "critic")  # they choose the target identity, which recovery need not know


class GeneratorRenderer:
    """The renderer; see ``backends.parts.Renderer``.

    Args:
        mapping: StyleGAN's mapping network, by which codes become styles.
    """

    resolution = 256  # at which the networks look; renders have the size of the crop
    resolutions: tuple[int, ...] = (256, 512, 1024)
    margin: Margin = "everywhere"
    matches_light = True
    residual_size = LATENTS * COORDINATES

    def __init__(self, mapping: MappingNetwork, device: torch.device | str = "cpu") -> None:
        self.device, self.mapping = torch.device(device), mapping
        self.attributes, mapper = AttributeEncoder(), LatentMapper()
        regressor, inversion, critic = LatentAttributes(), InversionEncoder(), RealismCritic()
        parts = (self.attributes, mapper, regressor, inversion, critic)
        for module, name in zip(parts, (*FILES, *CHOICE_FILES), strict=True):
            weights.load(module, name)
            module.requires_grad_(False).eval().to(self.device)
        generator = load_generator(self.device)
        self.networks = Networks(
            **vars(load_analysis_networks(self.device)),
            generator=generator,
            draft=draft_renderer(generator, self.device),
            mapper=mapper,
            regressor=regressor,
            inversion=inversion,
            critic=critic,
        )
        self._set(USUAL_STEPS, "")

    def under(self, steps: int, free: str) -> GeneratorRenderer:
        """The same networks under other settings.

        Args:
            steps: of refinement. A latent residual takes two thirds as many, a face recovered without one half as many
                again. 0 is the networks alone.
            free: the conditions that the photo does not decide, comma-separated.
        """
        other = copy.copy(self)
        other._set(steps, free)
        return other

    def _set(self, steps: int, free: str) -> None:
        self.steps, freed = steps, tuple(free.split(","))
        freed_weights: dict[str, Any] = {name: 0.0 for name in ("sex", "age") if name in freed}
        # with fewer steps than usual there is no time for another candidate
        tries = ANONYMIZE.tries if steps >= USUAL_STEPS else 1
        self.anonymization = replace(ANONYMIZE, steps=steps, tries=tries, **freed_weights)
        self.residual_params = ResidualParams(rate=0.1, steps=max(steps * 2 // 3, FEWEST_STEPS) if steps else 0)
        self.restoration = replace(RECOVER, steps=steps * 3 // 2)
        self.targeting = replace(SEVERAL if steps else SINGLE, free=freed)
        self.choice = replace(CHOICE, **freed_weights, **({"ethnicity": 0.0} if "tone" in freed else {}))

    def draw(self, face: Tensor, mask: Tensor, hidden: Tensor, key: FaceKey) -> Tensor:
        analysis = self._sight(face)
        if self.steps:
            candidates, order, kept, scene = self.rank(hidden, analysis, shrink(mask, self.resolution))
            w = refine_best(candidates, order, kept, scene, self.networks.mapper)
        else:
            w = self._targets(hidden, analysis)[0][0]
        return self._place_render(w, face, mask, analysis, key)

    def rank(
        self, hidden: Tensor, analysis: FaceAnalysis, mask: Tensor
    ) -> tuple[list[Tensor], list[int], Tensor, Scene]:
        """Candidates of a hidden code, latents each, their order, the code's kept coordinates and the scene: the
        arguments of :func:`refine_best`."""
        candidates, neutral, kept = self._targets(hidden, analysis)
        scene = self._scene(analysis, mask, self.anonymization)
        return candidates, scene.rank(candidates, neutral, kept, self.networks.mapper, self.choice), kept, scene

    def residual(self, finished: Finished, face: Tensor, original: Tensor, code: Tensor) -> Tensor | None:
        if not self.steps:
            return None
        mapper = self.networks.mapper
        start, base = (mapper.to_u(self.latents(x, code)) for x in (shrink(face, self.resolution), finished.plain))
        small, mask, seen = (shrink(x, self.resolution) for x in (original, finished.mask, finished.face))
        begun = (start - base)[..., :COORDINATES]
        return find_residual(base, small, mask, seen, self.networks, self.residual_params, begun).flatten()

    def redraw(self, finished: Finished, code: Tensor, residual: Tensor | None, legible: bool = True) -> Tensor:
        w, mapper = self.latents(finished.plain, code), self.networks.mapper
        if residual is not None:
            base = mapper.to_u(w)
            w = mapper.to_w(with_residual(base, residual.to(base).view(1, -1, COORDINATES)))
        if self.steps and not legible:
            mask = shrink(finished.mask, self.resolution)
            w = refine(w, code, self._scene(self._sight(finished.face), mask, self.restoration), mapper)
        return self.drawn(w, finished.face, finished.mask)

    @torch.no_grad()
    def wrong_key_face(self, finished: Finished, code: Tensor) -> Tensor:
        if not self.steps:
            return self.redraw(finished, code, None)
        face, mask = finished.face, finished.mask
        analysis = self._sight(face)
        return self._place_render(self.wrong_key_latents(code, finished.plain, mask, analysis), face, mask, analysis)

    @torch.no_grad()
    def wrong_key_latents(self, hidden: Tensor, plain: Tensor, mask: Tensor, analysis: FaceAnalysis) -> Tensor:
        """Latents of the wrong-key face: the most realistic candidate of the shown face's apparent sex and age.

        Candidates who seem East Asian are avoided: where the original seems so, recognizers confuse many of them. The
        distance to the original is unknown here. Behind dark glasses, where one face in seven is taken for the
        original, a candidate unlike the others and like the shown face is farther from it.
        """
        networks, small, cover = self.networks, analysis.face, shrink(mask, self.resolution)
        candidates, likely, codes = [], [], []
        for code, features in zip(*wrong_key_identities(hidden, KEPT, analysis, networks, self.mapping), strict=True):
            w = self.latents(plain, code[None])
            w[:, :FEATURED] += features
            placed = keep_photo_skin(
                networks.generator.synthesize(w, self.resolution), small, cover, analysis, features=True
            )
            shown = composite(small, placed, cover)
            codes.append(networks.encoder(shown))
            worn = in_mask(new_glasses(networks.parser(shown), analysis.parsed), cover, cover)
            other = sex_age_error(networks.apparent(shown)[0], analysis.seems, self.choice) / self.choice.natural
            there = (networks.ethnicity(codes[-1]) - ETHNICITY_MARGIN).clamp_min(0).square().sum()
            likely.append(
                within(networks.critic(shown), cover).sum() - other - ETHNICITY_WEIGHT * there - GLASSES_WEIGHT * worn
            )
            candidates.append(w)
        every = torch.cat(codes)
        alike = F.cosine_similarity(every, every.mean(0, keepdim=True)) - F.cosine_similarity(every, analysis.code)
        return candidates[int((torch.stack(likely) - UNLIKE_WEIGHT * analysis.eyes_hidden(cover) * alike).argmax())]

    @torch.no_grad()
    def latents(self, face: Tensor, code: Tensor) -> Tensor:
        """M(z, E_Attr(X)) for one face."""
        return self.networks.mapper(code.float(), self.attributes(face))

    def drawn(self, w: Tensor, face: Tensor, mask: Tensor) -> Tensor:
        """The face of latents in the photo's light, [1, 3, R, R] in [-1, 1] on the CPU."""
        return match_tones(self._render(w, face.shape[-1]), face, mask).clamp(-1, 1).cpu()

    def _sight(self, face: Tensor) -> FaceAnalysis:
        return FaceAnalysis(shrink(face, self.resolution), self.networks)

    def _scene(self, analysis: FaceAnalysis, mask: Tensor, params: RefineParams) -> Scene:
        networks = self.networks
        return Scene(analysis, mask, networks.draft, params, networks.critic if params.natural else None)

    def _targets(self, hidden: Tensor, analysis: FaceAnalysis) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Candidates, the same without features, and the hidden code's kept coordinates with 0 for the rest."""
        kept = F.pad(hidden[:, :KEPT], (0, hidden.shape[1] - KEPT)).to(analysis.face)
        candidates = target_identities(
            hidden, analysis, self.latents(analysis.face, kept), self.networks, self.mapping, self.targeting
        )
        return *candidates, kept

    @torch.no_grad()
    def _place_render(
        self, w: Tensor, face: Tensor, mask: Tensor, analysis: FaceAnalysis, key: FaceKey | None = None
    ) -> Tensor:
        return place_render(self._render(w, face.shape[-1]), face, mask, analysis, key)

    @torch.no_grad()
    def _render(self, w: Tensor, side: int) -> Tensor:
        # a 256-px crop gets the 512-px head too, shrunk: that is better
        return shrink(self.networks.generator.synthesize(w, max(FINEST_HEAD, side)), side)
