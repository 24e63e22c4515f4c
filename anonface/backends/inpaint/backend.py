"""``inpaint``: the keyed identity and watermark of ifadit, with the inpainting renderer.

Its network is not shipped. The setting ``model`` names a folder that ``anonface train inpainter`` made.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from anonface import weights
from anonface.backends.base import UNSETTABLE, Settings
from anonface.backends.generator import GENERATOR_FILES, load_mapping
from anonface.backends.ifadit.identity import FILES as IDENTITY_FILES
from anonface.backends.ifadit.identity import FlowIdentity
from anonface.backends.inpaint.renderer import InpaintingRenderer
from anonface.backends.recoverable import RecoverableBackend
from anonface.errors import UsageError, WeightsError
from anonface.models.inpainter import Inpainter, params_of
from anonface.watermark.face_watermark import CodeWatermark

FILE = "inpainter.safetensors"
FILES = (*GENERATOR_FILES, "identity", *IDENTITY_FILES, "landmarks")


class Inpaint(RecoverableBackend):
    """The backend; see ``base.Backend`` for the contract.

    Args:
        inpainter: trained.
        fingerprint: of its weights; part of the record's digest.
    """

    def __init__(self, inpainter: Inpainter, fingerprint: str, device: torch.device | str = "cpu") -> None:
        mapping = load_mapping()
        inpainter = inpainter.requires_grad_(False).eval().to(device)
        renderer = InpaintingRenderer(inpainter, mapping, device)
        identity = FlowIdentity(renderer.analysis.encoder, mapping, device)
        watermark = CodeWatermark(identity.flow.params.code)
        super().__init__("inpaint", identity, renderer, watermark, FILES, device)
        self.fingerprint = fingerprint

    @classmethod
    def load(cls, device: torch.device | str, settings: Settings) -> Inpaint:
        """From the folder that the setting ``model`` names.

        Raises:
            UsageError: there is another setting.
            WeightsError: no folder is named, or it holds no fitting network.
        """
        if unknown := sorted(set(settings) - {"model"}):
            raise UsageError(f"backend inpaint has no setting {unknown[0]!r}", UNSETTABLE)
        if "model" not in settings:
            raise WeightsError("the network of backend inpaint is not shipped", "name a folder of it with --model")
        file = Path(str(settings["model"])) / FILE
        if not file.is_file():
            raise WeightsError(f"there is no {file}", "`anonface train inpainter` makes one")
        tensors = weights.load_checkpoint(file)
        inpainter = Inpainter(params_of(tensors))
        weights.fit(inpainter, tensors, source=str(file))
        return cls(inpainter, hashlib.sha256(file.read_bytes()).hexdigest(), device)

    def _digest(self, version: str) -> bytes:
        return super()._digest(f"{self.fingerprint} {version}")
