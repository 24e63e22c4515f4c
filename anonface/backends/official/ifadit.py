"""The authors' own iFADIT as a backend: their networks, their checkpoints, their key range, their composite.

Two departures: every face has its own key, where the authors' script draws one password and uses it for a whole
batch. The background of a recovered face is that of the anonymized one; the script pastes the original's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anonface import weights
from anonface.backends.base import Margin, Settings
from anonface.backends.official import published
from anonface.errors import UsageError
from anonface.models.ifadit_official import OfficialIFADIT, OfficialIFADITParams, composite
from anonface.models.psp import PSp

if TYPE_CHECKING:
    from anonface.crypto.keys import FaceKey

# The six components and their entries in weights.toml.
ENTRIES = {
    "identity_encoder": "ir-se50",
    "attribute_encoder": "ifadit-attributes",
    "mapper": "ifadit-mapper",
    "flow": "ifadit-flow",
    "compensation": "ifadit-compensation",
    "generator": "stylegan2-256",
}


class OfficialIFADITBackend:
    """Anonymize and recover faces of 256 px with the authors' networks."""

    name = "ifadit-official"
    exact = exact_recovery = False
    marked = False
    batched = True
    records_masks = False
    margin: Margin = "none"
    matches_light = False
    resolution = 256
    resolutions: tuple[int, ...] = (256,)

    def __init__(self, networks: OfficialIFADIT, device: str = "cpu") -> None:
        warnings.warn(
            "keys of the authors' iFADIT lie in [0.5, 1) and nearly coincide after the mapping network: "
            "a wrong key may come close to recovering a face",
            stacklevel=2,
        )
        self.networks = networks.to(device).eval()
        self.device = torch.device(device)

    @classmethod
    def from_weights(cls, device: str = "cpu", params: OfficialIFADITParams | None = None) -> OfficialIFADITBackend:
        """Load the authors' files as `anonface weights` knows them. Arguments and errors as :meth:`from_folder`."""
        return cls._from_files({part: weights.path(name) for part, name in ENTRIES.items()}, device, params)

    @classmethod
    def from_folder(
        cls, folder: Path, device: str = "cpu", params: OfficialIFADITParams | None = None
    ) -> OfficialIFADITBackend:
        """Load the authors' six files from a folder, whatever their digests.

        Args:
            folder: where they lie, under their published names.
            device: where the networks run.
            params: shapes other than the authors'. The layout of the flow's permutations is read off its file;
                `flow.halved` holds for index permutations only and is nothing that a file tells.

        Raises:
            WeightsError: if a file is missing, or holds other tensors than its network.
        """
        return cls._from_files(published.files_in(folder, ENTRIES), device, params)

    @classmethod
    def _from_files(
        cls, files: dict[str, Path], device: str, params: OfficialIFADITParams | None
    ) -> OfficialIFADITBackend:
        params = params or OfficialIFADITParams()
        layout = params.flow.matching(weights.load_checkpoint(files["flow"]))
        networks = OfficialIFADIT(replace(params, flow=layout))
        # The attributes' file holds a whole pSp, of which only the encoder is used.
        inversion = PSp(params.generator, backbone=params.recognizer)
        networks.attribute_encoder = inversion.encoder
        for part, file in files.items():
            published.fill(inversion if part == "attribute_encoder" else networks.get_submodule(part), file)
        return cls(networks, device)

    def parameters(self) -> dict[str, str | int | float | bool]:
        """What recovery must know beside the weights: the form of the flow's log scale."""
        return {"halved": self.networks.flow.params.halved}

    def under(self, settings: Settings) -> OfficialIFADITBackend:
        """Itself: its one parameter is a property of the loaded networks.

        Raises:
            UsageError: a setting that these networks do not have.
        """
        own = self.parameters()
        for name, value in settings.items():
            if own.get(name) != value:
                raise UsageError(f"the authors' iFADIT as loaded here does not have {name}={value}")
        return self

    def digest(self) -> bytes:
        """SHA-256 over all numbers of the networks."""
        return published.digest(self.networks)

    def visible(self, masks: Tensor) -> Tensor:
        """The masks themselves."""
        return masks

    @torch.no_grad()
    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, 256, 256] in [-1, 1] under masks [B, 1, 256, 256] in 0..1, a key each -> the same range."""
        images = self._images(faces, masks, keys)
        renders = self.networks.anonymize(images, self._codes(keys))
        return self._finish(renders, faces, masks)

    @torch.no_grad()
    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """The inverse of :meth:`anonymize` on anonymized faces; same shapes and ranges."""
        images = self._images(faces, masks, keys)
        renders = self.networks.recover(images, self._codes(keys))
        return self._finish(renders, faces, masks)

    def _images(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        side = self.resolution
        if faces.shape[1:] != (3, side, side) or masks.shape[1:] != (1, side, side):
            raise ValueError(f"faces and masks must have {side} px, not {tuple(faces.shape)}, {tuple(masks.shape)}")
        if not len(faces) == len(masks) == len(keys):
            raise ValueError(f"{len(faces)} faces, {len(masks)} masks and {len(keys)} keys: one of each is needed")
        return (faces.to(self.device) + 1) / 2

    def _codes(self, keys: Sequence[FaceKey]) -> Tensor:
        width = self.networks.params.width
        return self.networks.key_code(torch.stack([password(key, width) for key in keys]).to(self.device))

    def _finish(self, renders: Tensor, faces: Tensor, masks: Tensor) -> Tensor:
        return composite(renders, faces.to(self.device), masks.to(self.device)).clamp(-1, 1).to(faces.device)


def password(key: FaceKey, width: int = 512) -> Tensor:
    """A key's password: bytes of its stream as floats [width] in [0, 1)."""
    return torch.tensor(list(key.stream("flow", width))) / 256
