"""What an attacker holds who has the program but no key: its recognizer, its networks, and time."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anonface import weights
from anonface.backends.flow_backend import FlowBackend
from anonface.backends.generator import FINEST_HEAD, load_generator, load_mapping
from anonface.backends.latent_editing import backend as latent_editing
from anonface.backends.latent_editing.backend import LatentEditingBackend
from anonface.crypto.keys import CONSISTENT_SALT, Key
from anonface.evaluation.identity_ablation import without_identity
from anonface.evaluation.trials import Engine
from anonface.faces.augmentation import shrink
from anonface.models.identity import KEPT, IdentityEncoder
from anonface.models.identity_flow import FlowKey, SecureIdentityFlow
from anonface.pipeline import Engine as NetworkEngine
from anonface.watermark import cipher, nonce, pixel_residual
from anonface.watermark.face_watermark import RESIDUAL
from anonface.watermark.payload import LEGIBLE, open_first_channel

Pixels = NDArray[np.uint8]
Code = NDArray[np.float64]

SIDE = 256  # px of strangers' faces
FACES_SEED = 30_000_001  # training and evaluation draw from others


@dataclass(frozen=True)
class Model:
    """The attacker's means. What a backend does not have is None.

    Attributes:
        encode: an aligned crop, uint8 [R, R, 3] -> what the key is to hide of it, a unit code [d].
        meant: a crop and n keys -> the codes [n, d] of whom they make of the person, without rendering.
        lead: a crop of an anonymized face and a key -> the code that the key leads it back to, without rendering.
        stranger: a photo and a number -> the photo with that stranger's face in place, all else as it was.
        mute: recovers without an identity code.
        nonce: a crop of an anonymized face -> the nonce in it, None where it is illegible.
        said: a crop of an anonymized face -> the encrypted payload that it says [n], None where it is illegible.
        payload: the same under a key that is known, decrypted.
        block: side of the blocks in which a key mixes codes.
    """

    encode: Callable[[Pixels], Code]
    meant: Callable[[Pixels, tuple[Key, ...]], Code] | None = None
    lead: Callable[[Pixels, Key], Code] | None = None
    stranger: Callable[[Pixels, int], Pixels] | None = None
    mute: Engine | None = None
    nonce: Callable[[Pixels], bytes | None] | None = None
    said: Callable[[Pixels], Code | None] | None = None
    payload: Callable[[Pixels, Key], Code | None] | None = None
    block: int | None = None


def of(engine: NetworkEngine) -> Model:
    """What the program offers an attacker on this backend.

    Raises:
        WeightsError: the identity encoder's weights cannot be had.
    """
    backend = engine.backend
    nonce_of = functools.partial(_nonce, backend) if isinstance(backend, FlowBackend | LatentEditingBackend) else None
    if not isinstance(backend, FlowBackend):
        encoder = IdentityEncoder()
        weights.load(encoder, "identity")
        plain = Model(
            functools.partial(_encode, encoder.requires_grad_(False).eval().to(engine.device)), nonce=nonce_of
        )
        if not isinstance(backend, LatentEditingBackend):
            return plain
        reading = Reading(backend, latent_editing.RESIDUALS[1].name)
        return replace(plain, said=reading.said, payload=reading.payload)
    # a renderer without a latent residual leaves the pixel residual, of which the slow waves survive most
    written = backend.watermark.residual_size > 0
    reading = Reading(backend, RESIDUAL.name) if written else Reading(backend, pixel_residual.SLOW.kind.name, 2)
    return Model(
        encode=functools.partial(_encode, backend.identity.encoder),
        meant=Meant(backend),
        lead=functools.partial(_lead, backend),
        stranger=Strangers(engine),
        mute=without_identity(engine),
        nonce=nonce_of,
        said=reading.said,
        payload=reading.payload,
        block=backend.identity.flow.params.mix,
    )


class Strangers:
    """Photos with faces of nobody in them, which keep what the anonymizer keeps: pose, light, apparent sex and age."""

    def __init__(self, engine: NetworkEngine) -> None:
        assert isinstance(engine.backend, FlowBackend)
        backend = engine.backend.under({})
        self._flow = backend.identity.flow = _Replaced(backend.identity.flow.params)
        self._engine, self._encoder = copy.copy(engine), backend.identity.encoder
        self._engine.backend = backend
        self._generator = load_generator(backend.device)
        self._mapping = load_mapping(backend.device)
        self._codes: dict[int, Tensor] = {}

    def __call__(self, pixels: Pixels, number: int) -> Pixels:
        if number not in self._codes:
            self._codes[number] = self._draw(number)
        self._flow.stranger = self._codes[number]
        return self._engine.anonymize(pixels, Key(bytes(32)), consistent=True).pixels

    @torch.inference_mode()
    def _draw(self, number: int) -> Tensor:
        """The code of a face that the generator draws of random style."""
        z = torch.randn(1, 512, generator=torch.Generator().manual_seed(FACES_SEED + number))
        w = self._mapping(z.to(next(self._mapping.parameters()).device))
        face = shrink(self._generator.synthesize(w[:, None], FINEST_HEAD), SIDE)
        return self._encoder(face).cpu().double()


class Meant:
    """What keys make of a person, as codes."""

    def __init__(self, backend: FlowBackend) -> None:
        self._backend = backend
        self._derived: dict[tuple[Key, ...], FlowKey] = {}  # deriving a key costs more than using it

    @torch.inference_mode()
    def __call__(self, crop: Pixels, keys: tuple[Key, ...]) -> Code:
        backend, identity = self._backend, self._backend.identity
        if keys not in self._derived:
            self._derived[keys] = identity.keygen([key.face(CONSISTENT_SALT, backend.name, 0) for key in keys])
        code = identity.embed(_face(crop)).expand(len(keys), -1)
        return F.normalize(identity.flow(code, self._derived[keys])[:, KEPT:], dim=1).numpy()


class _Replaced(SecureIdentityFlow):
    """Instead of a key's transform: another person's code, with the conditions of the one who is there."""

    stranger: Tensor

    def forward(self, z: Tensor, key: FlowKey) -> Tensor:
        return self._join(z[:, : self.params.kept], self.stranger[:, self.params.kept :])


@torch.inference_mode()
def _encode(encoder: IdentityEncoder, crop: Pixels) -> Code:
    return _hidden_part(encoder(_face(crop).to(next(encoder.parameters()).device)))


@torch.inference_mode()
def _lead(backend: FlowBackend, crop: Pixels, key: Key) -> Code:
    return _hidden_part(backend.recovered_code(_face(crop), key.face(CONSISTENT_SALT, backend.name, 0)))


@dataclass(frozen=True)
class Reading:
    """What anybody, or a key's holder, reads of one channel of a finished face, whose message has that label."""

    backend: FlowBackend | LatentEditingBackend
    label: str
    channel: int = 1

    def said(self, crop: Pixels) -> Code | None:
        read = self.backend.readings(_face(crop))[self.channel]
        return read.values.cpu().double().numpy() if read.error < LEGIBLE else None

    def payload(self, crop: Pixels, key: Key) -> Code | None:
        readings = self.backend.readings(_face(crop))
        own, read = open_first_channel(readings[0], key.face(CONSISTENT_SALT, self.backend.name, 0)).key, None
        if own is not None and readings[self.channel].error <= LEGIBLE:
            read = cipher.decrypt(readings[self.channel].values.cpu(), own, self.label).numpy()
        return read


@torch.inference_mode()
def _nonce(backend: FlowBackend | LatentEditingBackend, crop: Pixels) -> bytes | None:
    return nonce.decode(backend.readings(_face(crop))[0].values[: nonce.LENGTH])


def _hidden_part(code: Tensor) -> Code:
    """A code without the coordinates of apparent sex, age and skin tone, which nobody promised to hide."""
    return F.normalize(code[0, KEPT:].cpu().double(), dim=0).numpy()


def _face(crop: Pixels) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(crop)).permute(2, 0, 1)[None].float() / 127.5 - 1
