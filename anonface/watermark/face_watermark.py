"""The message of one face, written into its finished picture and read from it: all that recovery needs.

The first channel holds the nonce in the clear and the hidden code. The second holds the checks of key and record, and
the renderer's latent residual if there is one. The third and fourth hold the pixel residual. All but the nonce is
encrypted under the nonce's key.

Of the hidden code, the coordinates that no key changes are written as differences from what the finished face shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.crypto.keys import FaceKey, PayloadKey, fresh_nonce
from anonface.models.identity import KEPT
from anonface.watermark import channel, cipher, nonce, pixel_residual
from anonface.watermark.payload import LEGIBLE, Check, OpenedChannel, Payload, PayloadFormat, open_first_channel

RESIDUAL = PayloadFormat("compensation", 0.5, 0.25, recorded=True)
CHECKS = PayloadFormat("checks", recorded=True)  # in its place, where there is no latent residual
# Spread of a code's keyed coordinates, in blocks of 26, of faces that the generator draws. The coordinates after these
# vary too little to be written.
SPREAD = torch.tensor([0.1377, 0.079, 0.0499, 0.0398, 0.0349, 0.0311, 0.0263, 0.0218, 0.0166, 0.0099]).double()
SPREAD = SPREAD.repeat_interleave(26)
SHIFT = 0.06  # spread of the kept coordinates' difference between an original and the finished face
WRITTEN = KEPT + len(SPREAD)  # coordinates of a code
MOST_RESIDUAL = 1900  # numbers: what the second channel has room for in a face that is wholly visible


@dataclass(frozen=True)
class Message:
    """What a face is to hold.

    Attributes:
        key: of this message alone.
        channels: numbers in [-1, 1) for each channel of the watermark, in order; None leaves one alone.
        residual: the latent residual as a reader will have it, float64.
    """

    key: PayloadKey
    channels: tuple[Tensor | None, ...]
    residual: Tensor | None = None


@dataclass(frozen=True)
class Content:
    """What was read from a face under a key. What is illegible, or another key's, is None.

    Attributes:
        check: nonce, and whether key and record fit.
        hidden: the hidden code [1, width], float64.
        residual: the latent residual [n], float64.
        pixels: the pixel residual as a picture [1, 3, R, R].
        error: standard error of the second channel, in shares of the circle's half.
    """

    check: Check
    hidden: Tensor | None
    residual: Tensor | None
    pixels: Tensor | None
    error: float


class CodeWatermark:
    """The watermark of faces whose hidden identity code must be written; see ``backends.parts.FaceWatermark``.

    Args:
        width: of a code of :class:`~anonface.backends.flow_identity.FlowIdentity`; another identity's codes have
            another spread, and need a watermark of their own.
        residual_size: numbers of a latent residual, 0 for none, at most MOST_RESIDUAL. Their root mean square is
            written from 0.26 to 0.96; others come back as the nearest of these.

    Raises:
        ValueError: a latent residual of that size does not fit into a face.
    """

    version, earlier_versions = channel.VERSION, channel.EARLIER_VERSIONS
    plain = staticmethod(channel.without_watermark)

    def __init__(self, width: int, residual_size: int = 0) -> None:
        if residual_size > MOST_RESIDUAL:
            raise ValueError(f"a latent residual holds at most {MOST_RESIDUAL} numbers, not {residual_size}")
        self.width, self.residual_size = width, residual_size

    def message(self, hidden: Tensor, shown: Tensor, key: FaceKey, residual: Tensor | None) -> Message:
        number = key.nonce or fresh_nonce()
        payload = key.payload(number)
        shift = (hidden - shown)[0, :KEPT] / SHIFT
        keyed = hidden[0, KEPT:WRITTEN] / SPREAD
        keyed = keyed / keyed.square().mean().sqrt()
        first = torch.cat([nonce.encode(number), cipher.encrypt(torch.cat([shift, keyed]), payload, "code")])
        if residual is None:
            return Message(payload, (first, CHECKS.encode(hidden.new_zeros(0), payload, key.record)))
        second = RESIDUAL.encode(residual, payload, key.record)
        read = RESIDUAL.decode(channel.Reading(second, 0.0), payload, key.record)
        assert read is not None
        return Message(payload, (first, second), read.numbers)

    def with_pixels(self, message: Message, missing: Tensor, face: Tensor, mask: Tensor) -> Message:
        second = message.channels[1]
        assert second is not None
        more = pixel_residual.encode(missing, face, mask, len(second), message.key)
        return replace(message, channels=(*message.channels[:2], *more))

    def write(self, message: Message, face: Tensor, mask: Tensor) -> Tensor:
        return channel.STRENGTH * channel.write(face, mask, *message.channels).cpu()

    def read(self, face: Tensor, shown: Tensor, key: FaceKey) -> Content:
        first, second, *rest = self.readings(face)
        opening = open_first_channel(first, key)
        residual = RESIDUAL.decode(second, opening.key, key.record) if self.residual_size else None
        checked = residual or self._checks(second, opening, key)
        fits = checked is not None if second.error < LEGIBLE and opening.key else None
        return Content(
            check=Check(opening.nonce, fits, checked.record if checked else None),
            hidden=self._hidden(opening, shown) if first.error < LEGIBLE else None,
            residual=residual.numbers if residual else None,
            pixels=pixel_residual.decode(rest, face.shape[-1], channel.is_grey(face), opening.key),
            error=second.error,
        )

    @torch.inference_mode()
    def readings(self, face: Tensor) -> list[channel.Reading]:
        """The encrypted numbers of each channel: nonce and code, checks and latent residual, twice the pixels."""
        counts = nonce.LENGTH + WRITTEN, RESIDUAL.length(self.residual_size)
        return channel.read(face, *counts, *pixel_residual.lengths())

    @staticmethod
    def _checks(second: channel.Reading, opening: OpenedChannel, key: FaceKey) -> Payload | None:
        """The second channel's checks where it holds nothing else."""
        if opening.key is None or not opening.key.nonced:
            return None
        return CHECKS.decode(channel.Reading(second.values[: CHECKS.head], second.error), opening.key, key.record)

    def _hidden(self, opening: OpenedChannel, shown: Tensor) -> Tensor | None:
        if opening.key is None:
            return None
        values = cipher.decrypt(opening.values[:WRITTEN], opening.key, "code")
        kept = shown[0, :KEPT] + SHIFT * values[:KEPT]
        keyed = F.normalize(SPREAD * values[KEPT:], dim=0) * (1 - kept.square().sum()).clamp_min(0.1).sqrt()
        return F.normalize(F.pad(torch.cat([kept, keyed]), (0, self.width - WRITTEN))[None], dim=1)
