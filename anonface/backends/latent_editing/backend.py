"""DBAF and HFORD as backends: identity codes rewritten under the key, attributes and what hides a face kept.

    anonymize   X'' = G(A + phi([P, I]), M^)       of the photo             (DBAF 19 and 24, HFORD III-B)
    recover     the same, of the anonymized photo, under the same key       (DBAF 21 and 26)

A key is three vectors, one for each level of the codes. The edit goes further than the papers' from what all keys make
of a face. Encoding an anonymized photo again recovers a person only roughly. So the watermark holds what must be added
to the recovered codes (the latent residual) and to the face that they draw (the pixel residual).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import weights
from anonface.backends.base import UNSETTABLE, Margin, Settings
from anonface.backends.cpu import keep_large_buffers
from anonface.backends.generator import FINEST_HEAD, draft_renderer, load_generator, load_mapping
from anonface.backends.latent_editing.latent_residual import COORDINATES, ResidualParams, find_residual, with_residual
from anonface.backends.memory import Memory
from anonface.backends.official import published
from anonface.backends.target_identity import TargetParams, likeliest_styles
from anonface.crypto.keys import FaceKey, fresh_nonce
from anonface.errors import UsageError, WeightsError
from anonface.faces.analysis import AnalysisNetworks, FaceAnalysis, load_analysis_networks
from anonface.faces.augmentation import shrink
from anonface.faces.colour_transfer import match_tones
from anonface.models.dbaf import DBAF
from anonface.models.hford import HFORD
from anonface.models.identity import KEPT, IdentityEncoder
from anonface.models.inversion import Features, InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.latent_editing import CODES, LEVELS, FaceEditor, LatentEditor
from anonface.models.mobile_stylegan import Window
from anonface.watermark import channel, nonce, pixel_residual
from anonface.watermark.payload import LEGIBLE, Check, Payload, PayloadFormat, open_first_channel

EDITORS: dict[str, Callable[[], LatentEditor]] = {"dbaf": DBAF, "hford": HFORD}
SIDE = 256  # px at which the networks look
EDGE = 2  # px beyond a mask that are drawn as well: the photo's grid is another
STEPS, RATE = 5, 0.3  # of a latent residual
IDENTITY = 0.5  # weight of identity in it: so few steps leave open what shows, rather than who
# Of each code the first 16 coordinates go into the first channel, the next 16 into the second.
RESIDUALS = PayloadFormat("compensation", 0.5, 0.35), PayloadFormat("finer compensation", 0.4, 0.35, recorded=True)
NUMBERS = CODES * COORDINATES // 2  # numbers in each
EXCHANGED, EXCHANGE_SHARE = slice(2, 12), 0.3  # codes whose features are exchanged further, and how far
TARGET = TargetParams(styles=8192, likely=1024)
ENCODER = "inversion"  # the encoder's file and training run; one for both


@dataclass(frozen=True)
class _ResidualNetworks:
    """Frozen networks for the latent residual."""

    networks: FaceEditor
    draft: Callable[[Tensor, int, Window], Tensor]
    encoder: IdentityEncoder

    def draw(self, u: Tensor, side: int, window: Window) -> Tensor:
        """Codes -> their face, with what is kept of the features."""
        return self.draft(self.networks.encoder.to_latents(u), side, window)


@dataclass(frozen=True)
class TargetNetworks:
    """The networks that choose a target identity: face analysis and attribute regression."""

    analysis: AnalysisNetworks
    regressor: LatentAttributes


class LatentEditingBackend(published.WithoutSettings):
    """The backend; see ``base.Backend`` for the contract.

    Args:
        name: a key of EDITORS, the label of its keys.
        networks: encoder, editor and generator.
        mapping: StyleGAN's mapping network, [B, 512] -> [B, 512], by which keys become styles.
        encoder: of the identity codes for the latent residual.
        targeting: chooses among a key's target identities; without it the key's vectors are the identity.
    """

    exact, exact_recovery = False, True
    marked = True
    batched = False
    records_masks = False
    margin: Margin = "beyond"
    matches_light = False
    corrections = 3
    reached = COORDINATES  # coordinates of each code that a latent residual reaches, on which recovery rests
    networks: FaceEditor
    resolutions: tuple[int, ...] = (256, 512, 1024)

    def __init__(
        self,
        name: str,
        networks: FaceEditor,
        mapping: nn.Module,
        encoder: IdentityEncoder,
        device: torch.device | str = "cpu",
        targeting: TargetNetworks | None = None,
    ) -> None:
        keep_large_buffers()
        self.targeting = targeting
        self.name = name
        self.device = torch.device(device)
        self.networks = networks.requires_grad_(False).eval().to(self.device)
        self._draft = draft_renderer(self.networks.generator, self.device)
        self.mapping = mapping.requires_grad_(False).eval().to(self.device)
        self.encoder = encoder.requires_grad_(False).eval().to(self.device)
        self.residual_params = ResidualParams(steps=STEPS, rate=RATE, identity=IDENTITY)
        self._messages: Memory[tuple[Tensor | None, ...]] = Memory()
        self._checks: Memory[Check] = Memory()

    @cached_property
    def _networks_digest(self) -> bytes:
        return published.digest(self.networks)

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(self._networks_digest + channel.VERSION.encode()).digest()

    def earlier_digests(self) -> tuple[bytes, ...]:
        return tuple(hashlib.sha256(self._networks_digest + v.encode()).digest() for v in channel.EARLIER_VERSIONS)

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
        regressor = LatentAttributes()
        weights.load(regressor, "census")
        regressor.requires_grad_(False).eval().to(device)
        networks, analysis = FaceEditor(encoder, editor, load_generator()), load_analysis_networks(device)
        return cls(name, networks, load_mapping(), analysis.encoder, device, TargetNetworks(analysis, regressor))

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> synthetic faces in the faces' own light; not yet composited.

        One face at a time, so that no rounding depends on the rest of the batch.
        """
        return torch.cat([self._anonymized(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    @torch.no_grad()
    def _anonymized(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        image, cover = face.to(self.device), mask.to(self.device)
        codes, features = self.networks.encoder(image)
        self._messages.keep(face, key, ())  # a new face gets a new message
        if self.targeting is None:
            return self._drawn(self.networks.anonymize(codes, self._vectors(key)), features, image, cover)
        return self._drawn(self._chosen(self.targeting, codes, image, key), features, image, cover)

    def _chosen(self, targeting: TargetNetworks, codes: Tensor, image: Tensor, key: FaceKey) -> Tensor:
        """Codes of the key's target identity."""
        analysis = FaceAnalysis(shrink(image, SIDE), targeting.analysis)
        seen = analysis.code
        kept = F.pad(seen[:, :KEPT], (0, seen.shape[1] - KEPT))
        own = torch.from_numpy(key.normal("person", seen.shape[1] - KEPT)).to(seen)
        share = (1 - kept.square().sum()).clamp_min(0).sqrt()
        person = kept + share * F.pad(F.normalize(own, dim=0)[None], (KEPT, 0))
        likely = likeliest_styles(person, analysis, targeting.regressor, self.mapping, TARGET)
        return self._exchanged(targeting.regressor, codes, likely)

    def _exchanged(self, regressor: LatentAttributes, codes: Tensor, styles: Tensor) -> Tensor:
        """Edits [n, 14, 512] of codes [1, 14, 512] by candidates of styles [n, 512], with more of their features and
        less of the codes' than the editor gives."""
        encoder = self.networks.encoder
        candidates = encoder.to_u(styles[:, None]).expand(-1, len(LEVELS), -1)
        hidden = encoder.to_w(self.networks.anonymize(codes.expand(len(styles), -1, -1), candidates))
        own = encoder.to_w(codes)[:, EXCHANGED]
        hidden[:, EXCHANGED] += EXCHANGE_SHARE * (regressor.features(styles[:, None]) - regressor.features(own))
        return encoder.to_u(hidden)

    def write_watermark(
        self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey
    ) -> Tensor | None:
        """The watermark that a finished face still lacks."""
        shown, original, mask = (x.to(self.device) for x in (shown, original, mask))
        message = self._messages.recall(face, key) or self._message(shown, original, mask, key)
        self._messages.keep(face, key, message)
        return channel.STRENGTH * channel.write(shown, mask, *message).cpu()

    def _message(self, shown: Tensor, face: Tensor, mask: Tensor, key: FaceKey) -> tuple[Tensor | None, ...]:
        """The watermark's numbers: what recovery adds to the recovered codes, and to what they then draw."""
        base, features = self._recovered_codes(shown, key)
        seen, small, cover = (shrink(x, SIDE) for x in (shown, face, mask))
        drawing = _ResidualNetworks(self.networks, self._drafting(features, cover), self.encoder)
        with torch.no_grad():
            begun = (self.networks.encoder(face)[0] - base)[..., :COORDINATES]
        change = find_residual(base, small, cover, seen, drawing, self.residual_params, begun)
        halves = [half.flatten() for half in change.split(COORDINATES // 2, dim=2)]
        # one nonce for one message: no other is ever encrypted under this key
        named = key.nonce or fresh_nonce()
        payload = key.payload(named)
        message = [kind.encode(half, payload, key.record) for kind, half in zip(RESIDUALS, halves, strict=True)]
        decoded = [
            kind.decode(channel.Reading(one, 0.0), payload) for kind, one in zip(RESIDUALS, message, strict=True)
        ]
        draft = self._drawn(self._with_residuals(base, decoded), features, shown, mask).to(face)
        first = torch.cat([nonce.encode(named).to(message[0]), message[0]])
        return first, message[1], *pixel_residual.encode(face - draft, shown, mask, len(message[1]), payload)

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        return torch.cat([self._restored(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    def _restored(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        image, grey = face.to(self.device), channel.is_grey(face)
        first, finer, *rest = self.readings(image)
        opening = open_first_channel(first, key)
        coarse = opening.values[: RESIDUALS[0].length(NUMBERS)]
        both = channel.Reading(coarse, first.error), finer
        decoded = [kind.decode(one, opening.key, key.record) for kind, one in zip(RESIDUALS, both, strict=True)]
        legible = opening.key is not None and first.error < LEGIBLE
        fits = decoded[0] is not None if legible else None
        self._checks.keep(face, key, Check(opening.nonce, fits, decoded[1].record if decoded[1] else None))
        base, features = self._recovered_codes(image, key)
        codes, cover = self._with_residuals(base, decoded), mask.to(self.device)
        picture = self._drawn(codes, features, image, cover)
        missing = pixel_residual.decode(rest, face.shape[-1], grey, opening.key)
        if missing is not None:
            picture = picture + missing.to(picture)
        return picture.clamp(-1, 1)

    @torch.inference_mode()
    def readings(self, face: Tensor) -> list[channel.Reading]:
        """The encrypted numbers of each channel: nonce and latent residual, its finer half, twice the pixels."""
        coarse, fine = (kind.length(NUMBERS) for kind in RESIDUALS)
        return channel.read(face.to(self.device), nonce.LENGTH + coarse, fine, *pixel_residual.lengths())

    def checked(self, face: Tensor, key: FaceKey) -> Check | None:
        return self._checks.recall(face, key)

    @torch.no_grad()
    def _recovered_codes(self, shown: Tensor, key: FaceKey) -> tuple[Tensor, Features]:
        """The codes that a key recovers from a finished face without its watermark, and its features.

        Only the coordinates that are ``reached`` count: a trace of glasses in others would stay.
        """
        plain = F.interpolate(channel.without_watermark(shown), (SIDE, SIDE), mode="bilinear", align_corners=False)
        codes, features = self.networks.encoder(plain)
        back = self.networks.edit(codes, self._vectors(key))
        return with_residual(torch.zeros_like(back), back[..., : self.reached]), features

    def _with_residuals(self, base: Tensor, decoded: Sequence[Payload | None]) -> Tensor:
        """Codes with as much of their residual as was read."""
        nothing = base.new_zeros(1, CODES, COORDINATES // 2)
        halves = [nothing if one is None else one.numbers.view_as(nothing).to(base) for one in decoded]
        return with_residual(base, torch.cat(halves, dim=2))

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

    def _drafting(self, features: Features, mask: Tensor) -> Callable[[Tensor, int, Window], Tensor]:
        """Latents, a side and a window -> a sketch of their face, with the features that are kept around the mask."""
        with torch.no_grad():
            details = self.networks.editor.details(features, mask)
        return lambda w, side, window: self._draft(w, side, window, details)

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
    trained = f"a folder in which `anonface train` ran for reader, {ENCODER} and {name}"
    return f"give --model or --compare-with {name}= {trained}"
