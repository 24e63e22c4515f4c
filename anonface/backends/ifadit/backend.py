"""iFADIT: the keyed identity, the renderer and the watermark, assembled.

    anonymize   w = M(T(E_ID(X), s), E_Attr(X))              (equation 9)
    recover     w = M(T^-1(C(E_ID(X*)), s), E_Attr(X*))      (equation 10)

with one addition: a watermark holds the hidden code and what the networks leave open of the pixels. Where the watermark
is illegible, recovery rests on the face alone, as in the paper.
"""

from __future__ import annotations

import torch

from anonface.backends.base import Settings
from anonface.backends.flow_backend import FlowBackend
from anonface.backends.flow_identity import FILES as IDENTITY_FILES
from anonface.backends.flow_identity import FlowIdentity
from anonface.backends.generator import GENERATOR_FILES, load_mapping
from anonface.backends.ifadit.renderer import FILES as RENDERER_FILES
from anonface.backends.ifadit.renderer import GeneratorRenderer
from anonface.faces.analysis import load_identity_encoder
from anonface.watermark.face_watermark import CodeWatermark

FILES = (*GENERATOR_FILES, "identity", *RENDERER_FILES, *IDENTITY_FILES, "landmarks")


class IFADIT(FlowBackend):
    """The backend; see ``base.Backend`` for the contract."""

    IGNORED = ("refine",)  # steps of a search whose result the watermark tells
    renderer: GeneratorRenderer

    def __init__(self, device: torch.device | str = "cpu", settings: Settings | None = None) -> None:
        renderer = GeneratorRenderer(device)
        identity = FlowIdentity(load_identity_encoder(device), load_mapping(), device)
        watermark = CodeWatermark(identity.flow.params.code, renderer.residual_size)
        super().__init__("ifadit", identity, renderer, watermark, FILES, device)
        self.set(settings or {})
