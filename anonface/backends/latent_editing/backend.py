"""DBAF and HFORD as backends: identity codes rewritten under the key, attributes and what hides a face kept.

    anonymize   X'' = G(A + phi([P, I]), M^)       of the photo             (DBAF 19 and 24, HFORD III-B)
    recover     the same, of the anonymized photo, under the same key       (DBAF 21 and 26)

A key is three vectors, one a level of the codes. A disguise goes further from what all keys make of a face than the
papers' edit does, and holds attributes where they are read (``FaceEditor.disguise``). To encode an anonymized photo
anew brings a person back only roughly; so the finished photo says, encrypted in a watermark, what has to be added to
the codes that come back (``compensate.py``), and to the face that they draw (``detail.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import weights
from anonface.backends.base import UNSETTABLE, Rim, Settings
from anonface.backends.cpu import keep_large_buffers
from anonface.backends.generator import FINEST_HEAD, load_generator, load_mapping, sketching
from anonface.backends.ifadit.latent_residual import COORDINATES, CompensationParams, compensated, compensation
from anonface.backends.ifadit.refinement import DISGUISE, ChoiceParams, Draw, Scene
from anonface.backends.ifadit.target_identity import USUAL, likeliest
from anonface.backends.memory import Memory
from anonface.backends.official import published
from anonface.crypto.keys import FaceKey, fresh_nonce
from anonface.errors import UsageError, WeightsError
from anonface.faces.analysis import Eyes, Sight, load_eyes
from anonface.faces.augmentation import shrink
from anonface.faces.colour_transfer import match_tones
from anonface.faces.occlusion import in_place
from anonface.models.dbaf import DBAF
from anonface.models.hford import HFORD
from anonface.models.identity import KEPT, IdentityEncoder
from anonface.models.inversion import Features, InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.latent_editing import CODES, LEVELS, FaceEditor, LatentEditor
from anonface.models.mobile_stylegan import Window
from anonface.models.realism_critic import RealismCritic
from anonface.watermark import channel, nonce, pixel_residual
from anonface.watermark.payload import LEGIBLE, Check, Kind, Told, opened

EDITORS: dict[str, Callable[[], LatentEditor]] = {"dbaf": DBAF, "hford": HFORD}
SIDE = 256  # px at which the networks look
EDGE = 2  # px beyond a mask that are drawn as well: the photo's grid is another
STEPS, RATE = 5, 0.3  # of a compensation
LIKENESS = 0.5  # weight of identity in it: what shows, rather than who, is left open by so few steps
MOVED = 0.027  # by how much shape differs under two keys: nobody is refined towards the photo's landmarks afterwards
# What is said: of each code the first 16 coordinates where much survives, the next 16 beside the detail.
COMPENSATION = Kind("compensation", 0.5, 0.35), Kind("finer compensation", 0.4, 0.35, recorded=True)
SAID = CODES * COORDINATES // 2  # numbers in each
FURTHER, MORE = slice(2, 12), 0.3  # codes in which features are exchanged beyond what the editor does, and how far
TRIED = replace(USUAL, styles=8192, likely=1024, tried=6)  # a refined face has time for more
# Of so few, naturalness would decide alone, and for whom the photo shows: no step will lead away from that one.
AMONG_FEW = ChoiceParams(
    natural=12.0,
    conditions=300.0,
    landmarks=2500.0,
    expression=1200.0,
    face=250.0,
    glasses=5000.0,
    fringe=2000.0,
    near=4000.0,
    far=0.08,
    unlike=100.0,
    seen=600.0,
    apart=600.0,
    sex=20.0,
    age=60.0,
    ethnicity=25.0,
)
# DBAF's editor makes two keys' people more alike: who is like nobody counts for more.
CHOICES = {"dbaf": replace(AMONG_FEW, unlike=250.0, apart=1500.0), "hford": AMONG_FEW}
# Nothing is refined: these only weigh how somebody fits.
FITTING = replace(DISGUISE, landmarks=300.0, expression=240.0, gaze=20.0)
ENCODER = "inversion"  # the encoder's file and training run; one for both


@dataclass(frozen=True)
class _Drawing:
    """What compensation looks through."""

    networks: FaceEditor
    sketch: Draw
    encoder: IdentityEncoder

    def draw(self, u: Tensor, side: int, window: Window) -> Tensor:
        """Codes -> their face, with what is kept of the features."""
        return self.sketch(self.networks.encoder.to_latents(u), side, window)


@dataclass(frozen=True)
class Casting:
    """By what it is found for whom a key may stand, and who of these looks right in a photo."""

    eyes: Eyes
    census: LatentAttributes
    critic: RealismCritic


class LatentEditingBackend(published.WithoutSettings):
    """The backend; see ``base.Backend`` for the contract.

    Args:
        name: a key of EDITORS, the label of its keys.
        networks: encoder, editor and generator.
        mapping: StyleGAN's mapping network, [B, 512] -> [B, 512], by which keys become styles.
        looks: by whose identity codes a compensation is found.
        casting: how a key's people are chosen; without it the key is its own person.
    """

    exact, exact_back = False, True
    anchored = True
    together = False
    outlined = False
    rim: Rim = "beyond"
    lit = False
    corrections = 3
    reached = COORDINATES  # of each code, on which recovery rests: those that a compensation reaches
    networks: FaceEditor
    resolutions: tuple[int, ...] = (256, 512, 1024)

    def __init__(
        self,
        name: str,
        networks: FaceEditor,
        mapping: nn.Module,
        looks: IdentityEncoder,
        device: torch.device | str = "cpu",
        casting: Casting | None = None,
    ) -> None:
        keep_large_buffers()
        self.casting = casting
        self.name = name
        self.device = torch.device(device)
        self.networks = networks.requires_grad_(False).eval().to(self.device)
        self._sketch = sketching(self.networks.generator, self.device)
        self.mapping = mapping.requires_grad_(False).eval().to(self.device)
        self.looks = looks.requires_grad_(False).eval().to(self.device)
        self.compensating = CompensationParams(steps=STEPS, rate=RATE, identity=LIKENESS)
        self._said: Memory[tuple[Tensor | None, ...]] = Memory()
        self._checks: Memory[Check] = Memory()

    @cached_property
    def _networks_digest(self) -> bytes:
        return published.digest(self.networks)

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(self._networks_digest + channel.VERSION.encode()).digest()

    def digest_of_version_5(self) -> bytes:
        return hashlib.sha256(self._networks_digest + channel.VERSION_5.encode()).digest()

    @classmethod
    def load(cls, name: str, device: torch.device, settings: Settings) -> LatentEditingBackend:
        """From files; the setting ``model`` names a folder in which it was trained, else they are the package's own.

        Raises:
            UsageError: another setting.
            WeightsError: a file is missing, or holds another network.
        """
        for setting in set(settings) - {"model"}:
            raise UsageError(f"backend {name} has no setting {setting!r}", UNSETTABLE)
        encoder, editor = InversionEncoder(), EDITORS[name]()
        files = _files(name, str(settings.get("model", "")))
        for part, file in zip((encoder, editor), files, strict=True):
            weights.fit(part, weights.load_checkpoint(file), source=str(file))
        census, critic = LatentAttributes(), RealismCritic()
        for module, called in ((census, "census"), (critic, "critic")):
            weights.load(module, called)
            module.requires_grad_(False).eval().to(device)
        networks, eyes = FaceEditor(encoder, editor, load_generator()), load_eyes(device)
        return cls(name, networks, load_mapping(), eyes.encoder, device, Casting(eyes, census, critic))

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> somebody else, in the faces' own colours of light; not yet composited.

        One face at a time, so that no rounding depends on the rest of the batch.
        """
        return torch.cat([self._disguised(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    @torch.no_grad()
    def _disguised(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        image, cover = face.to(self.device), mask.to(self.device)
        codes, features = self.networks.encoder(image)
        self._said.keep(face, key, ())  # what is said of it is found anew
        if self.casting is None:
            return self._drawn(self.networks.anonymize(codes, self._vectors(key)), features, image, cover)
        sight = Sight(shrink(image, SIDE), self.casting.eyes)
        hidden = self._tried(self.casting, codes, features, sight, cover, key)
        return in_place(self._render(hidden, features, cover), image, cover, sight, key, MOVED)

    def _tried(
        self, casting: Casting, codes: Tensor, features: Features, sight: Sight, mask: Tensor, key: FaceKey
    ) -> Tensor:
        """Codes of somebody else: of the people for whom the key may stand, who looks right in the photo."""
        networks, cover, seen = self.networks, shrink(mask, SIDE), sight.code
        kept = F.pad(seen[:, :KEPT], (0, seen.shape[1] - KEPT))
        own = torch.from_numpy(key.normal("person", seen.shape[1] - KEPT)).to(seen)
        share = (1 - kept.square().sum()).clamp_min(0).sqrt()
        person = kept + share * F.pad(F.normalize(own, dim=0)[None], (KEPT, 0))
        likely = likeliest(person, sight, casting.census, self.mapping, TRIED)
        edits = self._further(casting.census, codes, likely)
        scene = Scene(sight, cover, self._sketched(features, cover), FITTING, casting.critic)
        people = networks.encoder.to_latents(edits).split(1)
        first = scene.ranked(people, (), kept, networks.encoder, CHOICES[self.name])[0]
        return edits[first : first + 1]

    def _further(self, census: LatentAttributes, codes: Tensor, styles: Tensor) -> Tensor:
        """Disguises [n, 14, 512] of codes [1, 14, 512] by the people of styles [n, 512], with more of their features
        and less of the codes' than the editor puts there."""
        encoder = self.networks.encoder
        people = encoder.to_u(styles[:, None]).expand(-1, len(LEVELS), -1)
        hidden = encoder.to_w(self.networks.anonymize(codes.expand(len(styles), -1, -1), people))
        own = encoder.to_w(codes)[:, FURTHER]
        hidden[:, FURTHER] += MORE * (census.features(styles[:, None]) - census.features(own))
        return encoder.to_u(hidden)

    def imprint(self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey) -> Tensor | None:
        """The watermark that a finished face still lacks."""
        shown, original, mask = (x.to(self.device) for x in (shown, original, mask))
        said = self._said.recall(face, key) or self._message(shown, original, mask, key)
        self._said.keep(face, key, said)
        return channel.STRENGTH * channel.write(shown, mask, *said).cpu()

    def _message(self, shown: Tensor, face: Tensor, mask: Tensor, key: FaceKey) -> tuple[Tensor | None, ...]:
        """What recovery is to add to the codes that come back from the finished face, and to what they then draw."""
        base, features = self._led(shown, key)
        seen, small, cover = (shrink(x, SIDE) for x in (shown, face, mask))
        drawing = _Drawing(self.networks, self._sketched(features, cover), self.looks)
        with torch.no_grad():
            begun = (self.networks.encoder(face)[0] - base)[..., :COORDINATES]
        change = compensation(base, small, cover, seen, drawing, self.compensating, begun)
        halves = [half.flatten() for half in change.split(COORDINATES // 2, dim=2)]
        # one nonce for one message: no other is ever encrypted under this key
        named = key.nonce or fresh_nonce()
        payload = key.payload(named)
        said = [kind.packed(half, payload, key.record) for kind, half in zip(COMPENSATION, halves, strict=True)]
        told = [kind.unpacked(channel.Reading(one, 0.0), payload) for kind, one in zip(COMPENSATION, said, strict=True)]
        draft = self._drawn(self._compensated(base, told), features, shown, mask).to(face)
        first = torch.cat([nonce.numbers(named).to(said[0]), said[0]])
        return first, said[1], *pixel_residual.told(face - draft, shown, mask, len(said[1]), payload)

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        return torch.cat([self._restored(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    def _restored(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        image, grey = face.to(self.device), channel.is_grey(face)
        first, finer, *rest = self.readings(image)
        opening = opened(first, key)
        coarse = opening.values[: COMPENSATION[0].length(SAID)]
        heard = channel.Reading(coarse, first.error), finer
        told = [kind.unpacked(one, opening.key, key.record) for kind, one in zip(COMPENSATION, heard, strict=True)]
        legible = opening.key is not None and first.error < LEGIBLE
        fits = told[0] is not None if legible else None
        self._checks.keep(face, key, Check(opening.nonce, fits, told[1].record if told[1] else None))
        base, features = self._led(image, key)
        codes, cover = self._compensated(base, told), mask.to(self.device)
        if self.casting and fits is False:
            sight = Sight(shrink(image, SIDE), self.casting.eyes)
            with torch.no_grad():  # another key
                return in_place(self._render(codes, features, cover), image, cover, sight, None)
        picture = self._drawn(codes, features, image, cover)
        missing = pixel_residual.heard(rest, face.shape[-1], grey, opening.key)
        if missing is not None:
            picture = picture + missing.to(picture)
        return picture.clamp(-1, 1)

    @torch.inference_mode()
    def readings(self, face: Tensor) -> list[channel.Reading]:
        """What the watermark of a finished face says in its channels: nonce and compensation, the finer half of it,
        twice the detail."""
        coarse, fine = (kind.length(SAID) for kind in COMPENSATION)
        return channel.read(face.to(self.device), nonce.LENGTH + coarse, fine, *pixel_residual.lengths())

    def checked(self, face: Tensor, key: FaceKey) -> Check | None:
        return self._checks.recall(face, key)

    @torch.no_grad()
    def _led(self, shown: Tensor, key: FaceKey) -> tuple[Tensor, Features]:
        """The codes that come back from a finished face, without what a watermark adds to it, and its features.

        Of each code the coordinates that are ``reached``: a trace of glasses in others would stay.
        """
        plain = F.interpolate(channel.without(shown), (SIDE, SIDE), mode="bilinear", align_corners=False)
        codes, features = self.networks.encoder(plain)
        back = self.networks.edit(codes, self._vectors(key))
        return compensated(torch.zeros_like(back), back[..., : self.reached]), features

    def _compensated(self, base: Tensor, told: Sequence[Told | None]) -> Tensor:
        """Codes with as much of their compensation as was read."""
        nothing = base.new_zeros(1, CODES, COORDINATES // 2)
        halves = [nothing if one is None else one.numbers.view_as(nothing).to(base) for one in told]
        return compensated(base, torch.cat(halves, dim=2))

    @torch.no_grad()
    def _drawn(self, codes: Tensor, features: Features, face: Tensor, mask: Tensor) -> Tensor:
        seen = Window.around(mask).reaching(EDGE, 1, mask.shape[-1])
        render = self._render(codes, features, mask, seen)
        return match_tones(render, face, mask).clamp(-1, 1).cpu()

    def _render(self, codes: Tensor, features: Features, mask: Tensor, window: Window | None = None) -> Tensor:
        """As large as the mask; a window is in its px."""
        side = mask.shape[-1]
        size = max(FINEST_HEAD, side)
        seen = window and window.larger(size // side)
        return shrink(self.networks.render(codes, features, size, mask, seen), side)

    def _sketched(self, features: Features, mask: Tensor) -> Draw:
        """Latents, a side and a window -> a sketch of their face, with what is kept of the features about the mask."""
        with torch.no_grad():
            details = self.networks.editor.details(features, mask)
        return lambda w, side, window: self._sketch(w, side, window, details)

    def _vectors(self, key: FaceKey) -> Tensor:
        """The key's vectors in the coordinates of the codes, [1, 3, 512]."""
        with torch.no_grad():
            return self.networks.encoder.to_u(key_vectors(key, self.mapping).to(self.device))[None]


def key_vectors(key: FaceKey, mapping: nn.Module) -> Tensor:
    """KeyGen, [3, 512]: for each level of the codes a stream of its own in [-1, 1], through the mapping network.

    iFADIT's equation 4, three times.
    """
    weight = next(mapping.parameters())
    unit = np.stack([key.signed_unit(f"{level} key", weight.shape[1]) for level in LEVELS])
    return mapping(torch.from_numpy(unit).to(weight))


def _files(name: str, model: str) -> tuple[Path, Path]:
    """Encoder and editor, from a run's folder or the package."""
    if model:
        folder = Path(model).expanduser()
        files = folder / ENCODER / f"{ENCODER}.safetensors", folder / name / f"{name}.safetensors"
        if not folder.is_dir():
            raise WeightsError(f"there is no folder {folder}", _hint(name))
        for file in files:
            if not file.is_file():
                raise WeightsError(f"{folder} has no {file.relative_to(folder)}", _hint(name))
        return files
    if not {entry.name for entry in weights.entries()}.issuperset({ENCODER, name}):
        raise WeightsError(f"this version has no weights of its own for the {name} backend", _hint(name))
    return weights.path(ENCODER), weights.path(name)


def _hint(name: str) -> str:
    return f"give --model or --beside {name}= a folder in which `anonface train` ran for reader, {ENCODER} and {name}"
