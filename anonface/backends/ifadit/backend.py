"""iFADIT's default family: identity and attributes apart, identity through the keyed flow, rendered by MobileStyleGAN.

    anonymize   w = M(T(E_ID(X), s), E_Attr(X))              (equation 9)
    recover     w = M(T^-1(C(E_ID(X'')), s), E_Attr(X''))    (equation 10)

with three additions. The hidden code casts a person whom the generator can draw (``persona.py``), and latent
refinement fits that person into the photo (``refinement.py``). The finished photo holds the hidden code, what has to be
added to M's latents for them to draw the original (``latent_residual.py``), and what they still leave open
(``watermark.pixel_residual``), encrypted in a watermark (``watermark.channel``). Where that cannot be read, recovery
rests on the face alone, as in the paper. The flow runs in float64 on the CPU: its inverse is the same on every machine.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface import weights
from anonface.backends.base import Check, Parameter, Rim, Settings
from anonface.backends.generator import FINEST_HEAD, GENERATOR_FILES, load_generator, load_mapping, sketching
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
from anonface.backends.memory import Memory
from anonface.crypto.keys import FaceKey, PayloadKey, fresh_nonce
from anonface.errors import UsageError
from anonface.faces.analysis import Sight, load_eyes
from anonface.faces.augmentation import shrink
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.faces.occlusion import in_place, mended
from anonface.models.attribute_encoder import AttributeEncoder, IdentityCompensation, LatentMapper
from anonface.models.face_parser import new_glasses
from anonface.models.identity import CONDITIONS, KEPT
from anonface.models.identity_flow import FlowKey, SecureIdentityFlow, SecureIdentityFlowParams, orthogonal_mixes
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.realism_critic import RealismCritic, within
from anonface.watermark import channel, cipher, nonce, pixel_residual
from anonface.watermark.payload import LEGIBLE, Kind, Opening, Told, opened

ELSEWHERE = 10.0  # nats of the critic's that a squared deviation of seeming East Asian, beyond FROM_THERE, is worth
LONER = 60.0  # and, where nothing of the eyes shows, a cosine to the other strangers more than to the seen face
CLEAR = 0.1  # error of a reading, in shares of the circle's half, above which recovery helps it
COMPENSATION = Kind("compensation", 0.5, 0.25, recorded=True)
CHECKS = Kind("checks", recorded=True)  # in its place, where there is no compensation
# Spread of a code's keyed coordinates, in blocks of 26, of faces that the generator draws. Real faces have no more in
# those that follow; they are not said.
SPREAD = torch.tensor([0.1377, 0.079, 0.0499, 0.0398, 0.0349, 0.0311, 0.0263, 0.0218, 0.0166, 0.0099]).double()
SPREAD = SPREAD.repeat_interleave(26)
SHIFT = 0.06  # of the coordinates that no key changes, between an original and what was made of it
LATENTS = 17  # that a compensation reaches
TRAINED_FILES = ("identity", "attributes", "mapper", "flow", "compensation")
FOUND_IN = 6  # steps at least, if any are taken, in which it is found what a recovery will need
CASTING_FILES = ("census", "inversion", "critic")  # who is shown, not how recovery recovers


@dataclass(frozen=True)
class IFADITSettings:
    """What one photo's recovery must repeat.

    Attributes:
        refine: refinement steps of a disguise; a compensation takes two thirds as many, a face restored without one
            half as many again. 0 is the networks alone.
        free: which of CONDITIONS the key may change, comma-separated; the others stay as they are.
    """

    refine: int = 20
    free: str = ""

    @classmethod
    def of(cls, settings: Settings) -> IFADITSettings:
        known = {f.name for f in fields(cls)}
        for name in settings:
            if name not in known:
                raise UsageError(f"backend ifadit has no setting {name!r}", f"known: {', '.join(sorted(known))}")
        steps = settings.get("refine", cls.refine)
        if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= 1000:
            raise UsageError(f"setting refine must be a whole number from 0 to 1000, not {steps!r}")
        freed = {name for name in str(settings.get("free", cls.free)).split(",") if name}
        if unknown := freed - set(CONDITIONS):
            raise UsageError(f"cannot free {', '.join(sorted(unknown))}", f"one or more of {', '.join(CONDITIONS)}")
        return cls(steps, ",".join(name for name in CONDITIONS if name in freed))


@dataclass
class _Meant:
    """Of a face that was hidden: its code and the hidden one, M's whitened latents of it, what is to be said."""

    code: Tensor
    hidden: Tensor
    own: Tensor | None = None
    said: tuple[Tensor | None, ...] | None = None


class KeyGen:
    """Equation 4, k = f(Norm(KDF(s))), beside the key's own mix and its mirrors of freed conditions."""

    def __init__(self, params: SecureIdentityFlowParams, device: torch.device | str = "cpu") -> None:
        self.params = params
        self.mapping = load_mapping(device)

    def __call__(self, keys: Sequence[FaceKey], free: str = "") -> FlowKey:
        p = self.params
        unit = np.stack([key.signed_unit("flow", p.key) for key in keys])
        device = next(self.mapping.parameters()).device
        with torch.inference_mode():
            k = self.mapping(torch.from_numpy(unit).to(device)).cpu().double()
        shape = p.mixes
        normals = np.stack([key.normal("mix", int(np.prod(shape))).reshape(shape) for key in keys])
        low, high = p.cosines
        cosines = low + (high - low) * (np.concatenate([key.signed_unit("angle", 1) for key in keys]) + 1) / 2
        mirror = torch.ones(len(keys), p.kept, dtype=torch.float64)
        for name, where in CONDITIONS.items():
            if name in free.split(","):
                mirror[:, where] = torch.tensor([[1.0 - 2 * (key.stream(f"free {name}", 1)[0] & 1)] for key in keys])
        return FlowKey(k, torch.from_numpy(orthogonal_mixes(normals, cosines)), mirror)


class IFADIT:
    """The backend; see ``base.Backend`` for the contract."""

    name = "ifadit"
    exact, exact_back = False, True
    anchored = True
    together = False
    outlined = False
    rim: Rim = "everywhere"
    lit = True
    corrections = 4
    compensates = True  # whether recovery adds what the watermark says beside the code
    resolution = 256  # at which the networks look; renders have the size of the crop
    resolutions: tuple[int, ...] = (256, 512, 1024)

    def __init__(self, device: torch.device | str = "cpu", settings: Settings | None = None) -> None:
        self.device = torch.device(device)
        self.settings = IFADITSettings.of(settings or {})
        self.flow, self.compensation = SecureIdentityFlow(), IdentityCompensation()
        self.attributes, mapper = AttributeEncoder(), LatentMapper()
        census, inversion, critic = LatentAttributes(), InversionEncoder(), RealismCritic()
        parts = (self.attributes, mapper, self.flow, self.compensation, census, inversion, critic)
        for module, name in zip(parts, (*TRAINED_FILES[1:], *CASTING_FILES), strict=True):
            weights.load(module, name)
            module.requires_grad_(False).eval().to(self.device)
        self.flow.double().cpu()
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
        self.keygen = KeyGen(self.flow.params)
        self.restoration = RESTORE
        self.finishing = CompensationParams(rate=0.1)
        self._meant: Memory[_Meant] = Memory()
        self._checks: Memory[Check] = Memory()
        self._pace()

    def _pace(self) -> None:
        """Take the steps that the settings give to each optimisation."""
        steps, freed = self.settings.refine, tuple(self.settings.free.split(","))
        let_go: dict[str, Any] = {name: 0.0 for name in ("sex", "age") if name in freed}
        # who asks for fewer steps than usual has no time for another person's
        turns = DISGUISE.turns if steps >= IFADITSettings.refine else 1
        self.disguise = replace(DISGUISE, steps=steps, turns=turns, **let_go)
        self.finishing = replace(self.finishing, steps=max(steps * 2 // 3, FOUND_IN) if steps else 0)
        self.restoration = replace(self.restoration, steps=steps * 3 // 2)
        self.casting = replace(USUAL if steps else ONE, free=freed)
        self.choice = replace(CHOICE, **let_go, **({"ethnicity": 0.0} if "tone" in freed else {}))

    def parameters(self) -> dict[str, Parameter]:
        freed = {"free": self.settings.free} if self.settings.free else {}
        return {"refine": self.settings.refine, **freed}

    def under(self, settings: Settings) -> IFADIT:
        """The same loaded networks under other settings, a header's for instance."""
        other = copy.copy(self)
        # what a header does not say of freed conditions is that none were; only steps may come from elsewhere
        other.settings = IFADITSettings.of({"refine": self.settings.refine, **settings})
        other._meant, other._checks = Memory(), Memory()
        other._pace()
        return other

    def digest(self) -> bytes:
        return self._digest(channel.VERSION)

    def digest_of_version_5(self) -> bytes:
        return self._digest(channel.VERSION_5)

    def _digest(self, version: str) -> bytes:
        # neither the parser's nor CASTING_FILES': every photo made with older ones can be recovered with newer ones
        names = (*GENERATOR_FILES, *TRAINED_FILES, "landmarks")
        said = [*(weights.digest(name) for name in names), version]
        return hashlib.sha256("".join(said).encode()).digest()

    def visible(self, masks: Tensor) -> Tensor:
        """The masks themselves."""
        return masks

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> somebody else, in the faces' own colours of light; not yet composited.

        One face at a time, as all that follows: no slower here, and no rounding depends on the rest of the batch.
        """
        return torch.cat([self._disguised(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    def _disguised(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        code, hidden, given = self.embed(face), self.hide(face, key), face
        face, mask = face.to(self.device), mask.to(self.device)
        sight, mapper, meant = self._sight(face), self.networks.mapper, _Meant(code, hidden)
        if self.settings.refine:
            meant.own = mapper.to_u(self.latents(sight.face, code.to(sight.face)))
            people, order, kept, scene = self.ranked(hidden, sight, shrink(mask, self.resolution))
            w = refined(people, order, kept, scene, mapper)
        else:
            w = self._cast(hidden, sight)[0][0]
        self._meant.keep(given, key, meant)
        return self._in_place(w, face, mask, sight, key)

    def ranked(self, hidden: Tensor, sight: Sight, mask: Tensor) -> tuple[list[Tensor], list[int], Tensor, Scene]:
        """Whom a hidden code casts for a face, latents each, in which order they fit into its place, the code's kept
        coordinates, and the place: what ``refine.refined`` asks for."""
        people, nobody, kept = self._cast(hidden, sight)
        scene = self._scene(sight, mask, self.disguise)
        return people, scene.ranked(people, nobody, kept, self.networks.mapper, self.choice), kept, scene

    def hide(self, face: Tensor, key: FaceKey) -> Tensor:
        """T(E_ID(X), s) of one face, the code of whom it is to become: [1, 448], float64 on the CPU."""
        return self.flow(self.embed(face), self.keygen([key], self.settings.free))

    def imprint(self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey) -> Tensor | None:
        """The watermark that a finished face still lacks."""
        meant = self._meant.recall(face, key)
        if meant is None:
            self._disguised(face, mask, key)
            meant = self._meant.recall(face, key)
            assert meant is not None
        shown, original, mask = (x.to(self.device) for x in (shown, original, mask))
        if meant.said is None:
            # one nonce for one message: no other is ever encrypted under this key
            named = key.nonce or fresh_nonce()
            payload = key.payload(named)
            code = torch.cat([nonce.numbers(named), self._in_numbers(meant.hidden, shown, payload)]).to(shown)
            meant.said = code, *self._rest(meant, shown, original, mask, payload, key.record)
        return channel.STRENGTH * channel.write(shown, mask, *meant.said).cpu()

    def _in_numbers(self, hidden: Tensor, seen: Tensor, key: PayloadKey) -> Tensor:
        """A hidden code as the watermark says it: what of it the finished face does not show, encrypted."""
        shift = (hidden - self.embed(channel.without(seen)))[0, :KEPT] / SHIFT
        keyed = hidden[0, KEPT : KEPT + len(SPREAD)] / SPREAD
        keyed = keyed / keyed.square().mean().sqrt()
        return cipher.drop(torch.cat([shift, keyed]), key, "code")

    def _out_of_numbers(self, opening: Opening, key: PayloadKey, face: Tensor) -> Tensor:
        """The hidden code again, [1, 448]."""
        values = cipher.lift(opening.values[: KEPT + len(SPREAD)], key, "code")
        kept = self.embed(channel.without(face))[0, :KEPT] + SHIFT * values[:KEPT]
        keyed = F.normalize(SPREAD * values[KEPT:], dim=0) * (1 - kept.square().sum()).clamp_min(0.1).sqrt()
        return F.normalize(
            F.pad(torch.cat([kept, keyed]), (0, self.flow.params.code - KEPT - len(SPREAD)))[None], dim=1
        )

    def _rest(
        self, meant: _Meant, shown: Tensor, face: Tensor, mask: Tensor, key: PayloadKey, record: bytes
    ) -> tuple[Tensor | None, ...]:
        """What recovery is to add to M's latents of the finished face, and then to the face that they draw; without
        refinement it only checks key and record."""
        if meant.own is None:
            return (CHECKS.packed(meant.hidden.new_zeros(0), key, record),)
        base = self.networks.mapper.to_u(self.latents(channel.without(shown), meant.code.to(shown)))
        seen, small, cover = (shrink(x, self.resolution) for x in (shown, face, mask))
        begun = (meant.own - base)[..., :COORDINATES]
        change = compensation(base, small, cover, seen, self.networks, self.finishing, begun)
        first = COMPENSATION.packed(change.flatten(), key, record)
        told = COMPENSATION.unpacked(channel.Reading(first, 0.0), key, record)
        assert told is not None
        missing = face - self._drawn(self._compensated(base, told.numbers), shown, mask).to(face)
        return first, *pixel_residual.told(missing, shown, mask, len(first), key)

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        return torch.cat([self._restored(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    def _restored(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        given, face, mask = face, face.to(self.device), mask.to(self.device)
        first, more, *rest = self.heard(face)
        opening = opened(first, key)
        target = self._led(opening, first.error, face, key).to(face)
        added = COMPENSATION.unpacked(more, opening.key, key.record)
        told = added or self._alone(more, opening, key)
        fits = told is not None if more.error < LEGIBLE and opening.key else None
        self._checks.keep(given, key, Check(opening.nonce, fits, told.record if told else None))
        if fits is False and self.settings.refine:  # another key, whose code is nobody's
            sight = self._sight(face)
            return self._in_place(self._stranger(target, face, mask, sight), face, mask, sight)
        w = self.latents(channel.without(face), target)
        if self.compensates and added is not None:
            w = self._compensated(self.networks.mapper.to_u(w), added.numbers)
        if self.settings.refine and (more.error > CLEAR or added is None):
            scene = self._scene(self._sight(face), shrink(mask, self.resolution), self.restoration)
            w = refine(w, target, scene, self.networks.mapper)
        picture = self._drawn(w, face, mask)
        residual_key = None if fits is False else opening.key
        missing = pixel_residual.heard(rest, face.shape[-1], channel.is_grey(face), residual_key)
        if self.compensates and missing is not None:
            picture = picture + missing.to(picture)
        return picture.clamp(-1, 1)

    @staticmethod
    def _alone(more: channel.Reading, opening: Opening, key: FaceKey) -> Told | None:
        """What the second channel says where it says checks alone."""
        if opening.key is None or not opening.key.nonced:
            return None
        return CHECKS.unpacked(channel.Reading(more.values[: CHECKS.head], more.error), opening.key, key.record)

    def checked(self, face: Tensor, key: FaceKey) -> Check | None:
        return self._checks.recall(face, key)

    @torch.no_grad()
    def _stranger(self, hidden: Tensor, face: Tensor, mask: Tensor, sight: Sight) -> Tensor:
        """Latents of whom a wrong key shows: who looks like a photo in the seen face's place, of its sex and about its
        age, and not East Asian: where the original seems so, a recognizer takes many others who do for the original.

        How far a stranger is from the original, the networks do not tell; but behind dark glasses, where one in seven
        is taken for the original, who is unlike the other strangers is farther, and who is like the seen face, which
        was chosen to be far.
        """
        networks, small, cover = self.networks, sight.face, shrink(mask, self.resolution)
        people, likely, codes = [], [], []
        for code, features in zip(*strangers(hidden, KEPT, sight, networks, self.keygen.mapping), strict=True):
            w = self.latents(channel.without(face), code[None])
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

    def _compensated(self, base: Tensor, change: Tensor) -> Tensor:
        """Latents with a flat compensation, from whitened ones without."""
        return self.networks.mapper.to_w(compensated(base, change.to(base).view(1, -1, COORDINATES)))

    def lead(self, face: Tensor, key: FaceKey) -> Tensor:
        """T^-1(z, s) of one finished face, the code of whom it recovers to: [1, 448], float64 on the CPU.

        z is what the watermark says, or where that is illegible C(E_ID(X'')), the paper's.
        """
        first = self.heard(face)[0]
        return self._led(opened(first, key), first.error, face, key)

    def _led(self, opening: Opening, error: float, face: Tensor, key: FaceKey) -> Tensor:
        if opening.key and error < LEGIBLE:
            hidden = self._out_of_numbers(opening, opening.key, face)
        else:
            with torch.inference_mode():
                hidden = self.compensation(self.networks.encoder(face.to(self.device))).cpu().double()
        return self.flow.inverse(hidden, self.keygen([key], self.settings.free))

    @torch.inference_mode()
    def heard(self, face: Tensor) -> list[channel.Reading]:
        """What the watermark of a finished face says in its channels: nonce and code, the compensation, twice the
        detail."""
        counts = nonce.LENGTH + KEPT + len(SPREAD), COMPENSATION.length(LATENTS * COORDINATES)
        return channel.read(face.to(self.device), *counts, *pixel_residual.lengths())

    @torch.inference_mode()
    def embed(self, faces: Tensor) -> Tensor:
        """Unit identity codes [B, 448], float64 on the CPU."""
        codes = [self.networks.encoder(face[None].to(self.device)) for face in faces]
        return F.normalize(torch.cat(codes).cpu().double(), dim=1)

    def _sight(self, face: Tensor) -> Sight:
        return Sight(shrink(face, self.resolution), self.networks)

    def _scene(self, sight: Sight, mask: Tensor, params: RefineParams) -> Scene:
        networks = self.networks
        critic = networks.critic if params.natural else None
        return Scene(sight, mask, networks.sketch, params, critic)

    def latents(self, face: Tensor, code: Tensor) -> Tensor:
        """M(z, E_Attr(X)) for one face."""
        with torch.no_grad():
            return self.networks.mapper(code.float(), self.attributes(face))

    def _cast(self, hidden: Tensor, sight: Sight) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """People, nobody, and the hidden code's kept coordinates with 0 for the rest."""
        kept = F.pad(hidden[:, :KEPT], (0, hidden.shape[1] - KEPT)).to(sight.face)
        people = cast(hidden, sight, self.latents(sight.face, kept), self.networks, self.keygen.mapping, self.casting)
        return *people, kept

    def _drawn(self, w: Tensor, face: Tensor, mask: Tensor) -> Tensor:
        return match_tones(self._render(w, face.shape[-1]), face, mask).clamp(-1, 1).cpu()

    @torch.no_grad()
    def _in_place(self, w: Tensor, face: Tensor, mask: Tensor, sight: Sight, key: FaceKey | None = None) -> Tensor:
        return in_place(self._render(w, face.shape[-1]), face, mask, sight, key)

    @torch.no_grad()
    def _render(self, w: Tensor, side: int) -> Tensor:
        # a 256-px crop gets the 512-px head too, shrunk: it is the better one
        return shrink(self.networks.generator.synthesize(w, max(FINEST_HEAD, side)), side)
