"""A backend of any renderer with iFADIT's keyed identity and a watermark that holds the hidden code."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from anonface.backends.base import Parameter, Settings
from anonface.backends.flow_identity import FlowIdentity, freed
from anonface.backends.recoverable import RecoverableBackend
from anonface.errors import UsageError
from anonface.watermark.channel import Reading
from anonface.watermark.face_watermark import CodeWatermark


class FlowBackend(RecoverableBackend):
    """The backend; see ``base.Backend`` for the contract. The setting ``free`` names conditions that keys may change.

    ``SETTINGS`` are the names of settings, ``IGNORED`` those of earlier versions, which photos made by them still hold.
    """

    SETTINGS: tuple[str, ...] = ("free",)
    IGNORED: tuple[str, ...] = ()
    identity: FlowIdentity
    watermark: CodeWatermark

    def readings(self, face: Tensor) -> list[Reading]:
        """The encrypted numbers of a finished face [1, 3, R, R], by channel."""
        return self.watermark.readings(face.to(self.device))

    def parameters(self) -> dict[str, Parameter]:
        return {"free": self.identity.free} if self.identity.free else {}

    def under(self, settings: Settings) -> Self:
        other = self._copy()
        other.set(settings)
        return other

    def set(self, settings: Settings) -> None:
        """Take settings.

        Raises:
            UsageError: one that the backend does not have, or that frees something else than a condition.
        """
        if unknown := sorted(set(settings) - {*self.SETTINGS, *self.IGNORED}):
            known = ", ".join(self.SETTINGS)
            raise UsageError(f"backend {self.name} has no setting {unknown[0]!r}", f"known: {known}")
        self.identity = self.identity.under(freed(settings))
