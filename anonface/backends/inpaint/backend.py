"""``inpaint``: the keyed identity and watermark of ifadit, with the inpainting renderer.

Its network is the shipped one, or that of a folder which ``anonface train inpainter`` made (the setting ``model``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from anonface import weights
from anonface.backends.base import Settings
from anonface.backends.flow_backend import FlowBackend
from anonface.backends.flow_identity import FILES as IDENTITY_FILES
from anonface.backends.flow_identity import FlowIdentity
from anonface.backends.generator import GENERATOR_FILES, load_generator, load_mapping
from anonface.backends.inpaint.renderer import InpaintingRenderer
from anonface.errors import WeightsError
from anonface.models.inpainter import DRAWING, Inpainter, params_of
from anonface.watermark.face_watermark import CodeWatermark

FILE, NETWORK = "inpainter.safetensors", "inpainter"
FILES = (*GENERATOR_FILES, "identity", *IDENTITY_FILES, "landmarks", "code-landmarks")


class Inpaint(FlowBackend):
    """The backend; see ``base.Backend`` for the contract.

    Args:
        inpainter: trained.
        fingerprint: of its weights; part of the record's digest.
    """

    renderer: InpaintingRenderer

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
        """With the shipped network, or that of the folder which the setting ``model`` names.

        Raises:
            UsageError: there is another setting.
            WeightsError: the folder that is named, or the package, holds no fitting network.
        """
        file = Path(str(settings["model"])) / FILE if "model" in settings else weights.path(NETWORK)
        if not file.is_file():
            raise WeightsError(f"there is no {file}", "`anonface train inpainter` makes one")
        inpainter = steered(weights.load_checkpoint(file), str(file))
        backend = cls(inpainter, hashlib.sha256(file.read_bytes()).hexdigest(), device)
        backend.set({name: value for name, value in settings.items() if name != "model"})
        return backend

    def set(self, settings: Settings) -> None:
        super().set(settings)
        self.renderer = self.renderer.under(self.identity.free)

    def _digest(self, version: str) -> bytes:
        return super()._digest(f"{self.fingerprint} {version}")


def steered(tensors: Mapping[str, Tensor], source: str) -> Inpainter:
    """An inpainter of what training changes, and the generator's layers.

    Raises:
        WeightsError: the tensors, of that source, do not fit.
    """
    inpainter = Inpainter(params_of(tensors))
    inpainter.start_from(load_generator())
    generators = {name: value for name, value in inpainter.state_dict().items() if name.startswith(DRAWING)}
    weights.fit(inpainter, {**tensors, **generators}, source=source)
    return inpainter
