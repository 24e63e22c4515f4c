"""iFADIT's default family: the keyed identity, the renderer and the watermark, assembled.

    anonymize   w = M(T(E_ID(X), s), E_Attr(X))              (equation 9)
    recover     w = M(T^-1(C(E_ID(X*)), s), E_Attr(X*))      (equation 10)

with three additions. The hidden code chooses a target identity that the generator can draw, refinement fits it into the
photo, and a watermark holds the hidden code and what the networks leave open. Where the watermark is illegible,
recovery rests on the face alone, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from anonface.backends.base import Parameter, Settings
from anonface.backends.generator import GENERATOR_FILES, load_mapping
from anonface.backends.ifadit.identity import FILES as IDENTITY_FILES
from anonface.backends.ifadit.identity import FlowIdentity, freed
from anonface.backends.ifadit.renderer import FILES as RENDERER_FILES
from anonface.backends.ifadit.renderer import USUAL_STEPS, GeneratorRenderer
from anonface.backends.recoverable import RecoverableBackend
from anonface.errors import UsageError
from anonface.watermark.channel import Reading
from anonface.watermark.face_watermark import CodeWatermark

# Neither the parser's nor renderer.CHOICE_FILES: photos made with older ones can be recovered with newer ones.
FILES = (*GENERATOR_FILES, "identity", *RENDERER_FILES, *IDENTITY_FILES, "landmarks")


@dataclass(frozen=True)
class IFADITSettings:
    """What one photo's recovery must repeat.

    Attributes:
        refine: refinement steps (:class:`GeneratorRenderer`). 0 is the networks alone; the watermark then holds no
            residuals.
        free: which of CONDITIONS the key may change, comma-separated; the others stay as they are.
    """

    refine: int = USUAL_STEPS
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
        return cls(steps, freed(settings))


class IFADIT(RecoverableBackend):
    """The backend; see ``base.Backend`` for the contract."""

    identity: FlowIdentity
    renderer: GeneratorRenderer
    watermark: CodeWatermark

    def __init__(self, device: torch.device | str = "cpu", settings: Settings | None = None) -> None:
        chosen = IFADITSettings.of(settings or {})
        mapping = load_mapping()
        renderer = GeneratorRenderer(mapping, device)
        identity = FlowIdentity(renderer.networks.encoder, mapping, device)
        watermark = CodeWatermark(identity.flow.params.code, renderer.residual_size)
        super().__init__("ifadit", identity, renderer, watermark, FILES, device)
        self._set(chosen)

    def _set(self, settings: IFADITSettings) -> None:
        self.settings, self.stores_residuals = settings, settings.refine > 0
        self.identity = self.identity.under(settings.free)
        self.renderer = self.renderer.under(settings.refine, settings.free)

    def readings(self, face: Tensor) -> list[Reading]:
        """The encrypted numbers of a finished face [1, 3, R, R], by channel."""
        return self.watermark.readings(face.to(self.device))

    def parameters(self) -> dict[str, Parameter]:
        freed = {"free": self.settings.free} if self.settings.free else {}
        return {"refine": self.settings.refine, **freed}

    def under(self, settings: Settings) -> Self:
        other = self._copy()
        # a header without freed conditions has none; only steps may come from elsewhere
        other._set(IFADITSettings.of({"refine": self.settings.refine, **settings}))
        return other
