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
from anonface.backends.base import Rim
from anonface.backends.generator import FINEST_HEAD, load_generator, sketching
from anonface.backends.ifadit.latent_residual import COORDINATES, CompensationParams, compensated, compensation
from anonface.backends.ifadit.refinement import (
    BARE,
    CHOICE,
    DISGUISE,
    FROM_THERE,
    RESTORE,
    Networks,
    RefineParams,
    Scene,
    in_mask,
    otherwise,
    refine,
    refined,
)
from anonface.backends.ifadit.target_identity import FEATURED, ONE, USUAL, cast, strangers
from anonface.backends.parts import Finished
from anonface.crypto.keys import FaceKey
from anonface.faces.analysis import Sight, load_eyes
from anonface.faces.augmentation import shrink
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.faces.occlusion import in_place, mended
from anonface.models.attribute_encoder import AttributeEncoder, LatentMapper
from anonface.models.face_parser import new_glasses
from anonface.models.identity import KEPT
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.mobile_stylegan import MappingNetwork
from anonface.models.realism_critic import RealismCritic, within

ELSEWHERE = 10.0  # nats of the critic's that a squared deviation of seeming East Asian, beyond FROM_THERE, is worth
LONER = 60.0  # and, where nothing of the eyes shows, a cosine to the other strangers more than to the seen face
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
    rim: Rim = "everywhere"
    lit = True
    residual_size = LATENTS * COORDINATES

    def __init__(self, mapping: MappingNetwork, device: torch.device | str = "cpu") -> None:
        self.device, self.mapping = torch.device(device), mapping
        self.attributes, mapper = AttributeEncoder(), LatentMapper()
        census, inversion, critic = LatentAttributes(), InversionEncoder(), RealismCritic()
        parts = (self.attributes, mapper, census, inversion, critic)
        for module, name in zip(parts, (*FILES, *CHOICE_FILES), strict=True):
            weights.load(module, name)
            module.requires_grad_(False).eval().to(self.device)
        generator = load_generator(self.device)
        self.networks = Networks(
            **vars(load_eyes(self.device)),
            generator=generator,
            sketch=sketching(generator, self.device),
            mapper=mapper,
            census=census,
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
        let_go: dict[str, Any] = {name: 0.0 for name in ("sex", "age") if name in freed}
        # with fewer steps than usual there is no time for another person's
        turns = DISGUISE.turns if steps >= USUAL_STEPS else 1
        self.disguise = replace(DISGUISE, steps=steps, turns=turns, **let_go)
        self.finishing = CompensationParams(rate=0.1, steps=max(steps * 2 // 3, FEWEST_STEPS) if steps else 0)
        self.restoration = replace(RESTORE, steps=steps * 3 // 2)
        self.casting = replace(USUAL if steps else ONE, free=freed)
        self.choice = replace(CHOICE, **let_go, **({"ethnicity": 0.0} if "tone" in freed else {}))

    def draw(self, face: Tensor, mask: Tensor, hidden: Tensor, key: FaceKey) -> Tensor:
        sight = self._sight(face)
        if self.steps:
            people, order, kept, scene = self.ranked(hidden, sight, shrink(mask, self.resolution))
            w = refined(people, order, kept, scene, self.networks.mapper)
        else:
            w = self._cast(hidden, sight)[0][0]
        return self._in_place(w, face, mask, sight, key)

    def ranked(self, hidden: Tensor, sight: Sight, mask: Tensor) -> tuple[list[Tensor], list[int], Tensor, Scene]:
        """Whom a hidden code casts for a face, latents each, in which order they fit into its place, the code's kept
        coordinates, and the place: what ``refine.refined`` asks for."""
        people, nobody, kept = self._cast(hidden, sight)
        scene = self._scene(sight, mask, self.disguise)
        return people, scene.ranked(people, nobody, kept, self.networks.mapper, self.choice), kept, scene

    def residual(self, finished: Finished, face: Tensor, original: Tensor, code: Tensor) -> Tensor | None:
        if not self.steps:
            return None
        mapper = self.networks.mapper
        start, base = (mapper.to_u(self.latents(x, code)) for x in (shrink(face, self.resolution), finished.plain))
        small, mask, seen = (shrink(x, self.resolution) for x in (original, finished.mask, finished.face))
        begun = (start - base)[..., :COORDINATES]
        return compensation(base, small, mask, seen, self.networks, self.finishing, begun).flatten()

    def redraw(self, finished: Finished, code: Tensor, residual: Tensor | None, clear: bool = True) -> Tensor:
        w, mapper = self.latents(finished.plain, code), self.networks.mapper
        if residual is not None:
            base = mapper.to_u(w)
            w = mapper.to_w(compensated(base, residual.to(base).view(1, -1, COORDINATES)))
        if self.steps and not clear:
            mask = shrink(finished.mask, self.resolution)
            w = refine(w, code, self._scene(self._sight(finished.face), mask, self.restoration), mapper)
        return self.drawn(w, finished.face, finished.mask)

    @torch.no_grad()
    def wrong_key_face(self, finished: Finished, code: Tensor) -> Tensor:
        face, mask = finished.face, finished.mask
        sight = self._sight(face)
        return self._in_place(self.wrong_key_latents(code, finished.plain, mask, sight), face, mask, sight)

    @torch.no_grad()
    def wrong_key_latents(self, hidden: Tensor, plain: Tensor, mask: Tensor, sight: Sight) -> Tensor:
        """Latents of whom a wrong key shows: who looks like a photo in the seen face's place, of its sex and about its
        age, and not East Asian: where the original seems so, a recognizer takes many others who do for the original.

        How far a stranger is from the original, the networks do not tell; but behind dark glasses, where one in seven
        is taken for the original, who is unlike the other strangers is farther, and who is like the seen face, which
        was chosen to be far.
        """
        networks, small, cover = self.networks, sight.face, shrink(mask, self.resolution)
        people, likely, codes = [], [], []
        for code, features in zip(*strangers(hidden, KEPT, sight, networks, self.mapping), strict=True):
            w = self.latents(plain, code[None])
            w[:, :FEATURED] += features
            placed = mended(networks.generator.synthesize(w, self.resolution), small, cover, sight, features=True)
            shown = composite(small, placed, cover)
            codes.append(networks.encoder(shown))
            worn = in_mask(new_glasses(networks.parser(shown), sight.parsed), cover, cover)
            other = otherwise(networks.apparent(shown)[0], sight.seems, self.choice) / self.choice.natural
            there = (networks.ethnicity(codes[-1]) - FROM_THERE).clamp_min(0).square().sum()
            likely.append(within(networks.critic(shown), cover).sum() - other - ELSEWHERE * there - BARE * worn)
            people.append(w)
        every = torch.cat(codes)
        alike = F.cosine_similarity(every, every.mean(0, keepdim=True)) - F.cosine_similarity(every, sight.code)
        return people[int((torch.stack(likely) - LONER * sight.eyes_hidden(cover) * alike).argmax())]

    @torch.no_grad()
    def latents(self, face: Tensor, code: Tensor) -> Tensor:
        """M(z, E_Attr(X)) for one face."""
        return self.networks.mapper(code.float(), self.attributes(face))

    def drawn(self, w: Tensor, face: Tensor, mask: Tensor) -> Tensor:
        """The face of latents in the photo's light, [1, 3, R, R] in [-1, 1] on the CPU."""
        return match_tones(self._render(w, face.shape[-1]), face, mask).clamp(-1, 1).cpu()

    def _sight(self, face: Tensor) -> Sight:
        return Sight(shrink(face, self.resolution), self.networks)

    def _scene(self, sight: Sight, mask: Tensor, params: RefineParams) -> Scene:
        networks = self.networks
        return Scene(sight, mask, networks.sketch, params, networks.critic if params.natural else None)

    def _cast(self, hidden: Tensor, sight: Sight) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """People, nobody, and the hidden code's kept coordinates with 0 for the rest."""
        kept = F.pad(hidden[:, :KEPT], (0, hidden.shape[1] - KEPT)).to(sight.face)
        people = cast(hidden, sight, self.latents(sight.face, kept), self.networks, self.mapping, self.casting)
        return *people, kept

    @torch.no_grad()
    def _in_place(self, w: Tensor, face: Tensor, mask: Tensor, sight: Sight, key: FaceKey | None = None) -> Tensor:
        return in_place(self._render(w, face.shape[-1]), face, mask, sight, key)

    @torch.no_grad()
    def _render(self, w: Tensor, side: int) -> Tensor:
        # a 256-px crop gets the 512-px head too, shrunk: it is the better one
        return shrink(self.networks.generator.synthesize(w, max(FINEST_HEAD, side)), side)
