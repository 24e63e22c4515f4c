"""A backend made of three parts: any renderer, a keyed identity and a face watermark (``backends.parts``).

anonymize   z = embed(X),  z* = hide(z, key),  X* = draw(z*);  the watermark holds z*, checks and residuals
recover     z = reveal(z*, key),  X = redraw(z, latent residual) + pixel residual
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from anonface import weights
from anonface.backends.base import UNSETTABLE, Parameter, Settings
from anonface.backends.memory import Memory
from anonface.backends.parts import FaceWatermark, Finished, KeyedIdentity, Renderer
from anonface.crypto.keys import FaceKey
from anonface.errors import UsageError
from anonface.watermark.face_watermark import Message
from anonface.watermark.payload import Check

CLEAR = 0.1  # error of a reading, in shares of the circle's half, above which a renderer may search


class RecoverableBackend:
    """The backend; see ``base.Backend`` for the contract. It takes one face at a time, whatever the batch.

    Args:
        name: the label of its keys.
        files: names of the weights that recovery depends on, in the order of the digest.
        device: where the parts run.
    """

    exact, exact_recovery = False, True
    marked = True
    batched = False
    records_masks = False
    corrections = 4
    stores_residuals = True  # whether new faces hold residuals
    adds_residuals = True  # whether recovery adds the residuals that it reads

    def __init__(
        self,
        name: str,
        identity: KeyedIdentity,
        renderer: Renderer,
        watermark: FaceWatermark,
        files: Sequence[str] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.name, self.files, self.device = name, tuple(files), torch.device(device)
        self.identity, self.renderer, self.watermark = identity, renderer, watermark
        self.resolutions, self.margin, self.matches_light = (
            renderer.resolutions,
            renderer.margin,
            renderer.matches_light,
        )
        self._messages: Memory[Message | None] = Memory()
        self._checks: Memory[Check] = Memory()

    def parameters(self) -> dict[str, Parameter]:
        return {}

    def under(self, settings: Settings) -> Self:
        for setting in settings:
            raise UsageError(f"backend {self.name} has no setting {setting!r}", UNSETTABLE)
        return self._copy()

    def _copy(self) -> Self:
        """The same parts with memories of their own."""
        other = copy.copy(self)
        other._messages, other._checks = Memory(), Memory()
        return other

    def digest(self) -> bytes:
        return self._digest(self.watermark.version)

    def earlier_digests(self) -> tuple[bytes, ...]:
        return tuple(self._digest(version) for version in self.watermark.earlier_versions)

    def _digest(self, version: str) -> bytes:
        parts = [*(weights.digest(name) for name in self.files), version]
        return hashlib.sha256("".join(parts).encode()).digest()

    def visible(self, masks: Tensor) -> Tensor:
        """The masks themselves."""
        return masks

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> synthetic faces in the faces' own light; not yet composited."""
        return torch.cat([self._anonymized(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    def _anonymized(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        self._messages.keep(face, key, None)  # a new face gets a new message
        hidden = self.identity.hide(self.identity.embed(face), key)
        return self.renderer.draw(face.to(self.device), mask.to(self.device), hidden, key)

    def write_watermark(
        self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey
    ) -> Tensor | None:
        """What of its watermark a finished face still lacks."""
        shown, original, mask = (x.to(self.device) for x in (shown, original, mask))
        message = self._messages.recall(face, key)
        if message is None:
            message = self._message(self._finished(shown, mask), face, original, key)
            self._messages.keep(face, key, message)
        return self.watermark.write(message, shown, mask)

    def _message(self, finished: Finished, face: Tensor, original: Tensor, key: FaceKey) -> Message:
        """The message of a face, found once for all corrections: a nonce serves one message alone."""
        code = self.identity.embed(face)
        hidden, seen = self.identity.hide(code, key), self.identity.embed(finished.plain)
        if not self.stores_residuals:
            return self.watermark.message(hidden, seen, key, None)
        code = code.to(finished.face)
        residual = self.renderer.residual(finished, face.to(self.device), original, code)
        message = self.watermark.message(hidden, seen, key, residual)
        # measured against the very face that recovery will draw
        missing = original - self.renderer.redraw(finished, code, message.residual).to(original)
        return self.watermark.with_pixels(message, missing, finished.face, finished.mask)

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """The inverse of :meth:`anonymize`, from finished faces; same shapes and ranges."""
        return torch.cat([self._recovered(*one) for one in zip(faces[:, None], masks[:, None], keys, strict=True)])

    def _recovered(self, face: Tensor, mask: Tensor, key: FaceKey) -> Tensor:
        finished = self._finished(face.to(self.device), mask.to(self.device))
        content = self.watermark.read(finished.face, self.identity.embed(finished.plain), key)
        self._checks.keep(face, key, content.check)
        hidden = self.identity.estimate(finished.face) if content.hidden is None else content.hidden
        code = self.identity.reveal(hidden, key).to(finished.face)
        if content.check.fits is False:
            return self.renderer.wrong_key_face(finished, code)
        residual = content.residual if self.adds_residuals else None
        complete = content.residual is not None or not self.renderer.residual_size
        picture = self.renderer.redraw(finished, code, residual, complete and content.error <= CLEAR)
        if self.adds_residuals and content.pixels is not None:
            picture = picture + content.pixels.to(picture)
        return picture.clamp(-1, 1)

    def checked(self, face: Tensor, key: FaceKey) -> Check | None:
        return self._checks.recall(face, key)

    def recovered_code(self, face: Tensor, key: FaceKey) -> Tensor:
        """The code [1, d] that a key reveals of a finished face: of its watermark, or of the face where that is
        illegible."""
        face = face.to(self.device)
        content = self.watermark.read(face, self.identity.embed(self.watermark.plain(face)), key)
        return self.identity.reveal(self.identity.estimate(face) if content.hidden is None else content.hidden, key)

    def _finished(self, face: Tensor, mask: Tensor) -> Finished:
        return Finished(face, self.watermark.plain(face), mask)
