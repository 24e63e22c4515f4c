"""The authors' own DBAF as a backend: their networks, their checkpoints, keys as they draw them.

Recovery is the paper's (equations 21 and 26): the anonymized photo goes the same way under the same key. The published
test script has none, and training recovered with the features of the original, which nobody has; what their weights
make of it is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anonface import weights
from anonface.backends.base import Margin
from anonface.backends.official import published
from anonface.errors import WeightsError
from anonface.models.dbaf_official import OfficialDBAF, OfficialDBAFParams
from anonface.models.latent_editing import LEVELS
from anonface.models.psp import PSp
from anonface.models.stylegan2 import StyleGAN2

if TYPE_CHECKING:
    from torch import nn

    from anonface.crypto.keys import FaceKey

# The components and their entries in weights.toml.
ENTRIES = {
    "encoder": "e4e-ffhq-256",
    "disentangler": "dbaf-disentangler",
    "attributes": "dbaf-attributes",
    "anonymizer": "dbaf-anonymizer",
    "generator": "dbaf-generator",
    "key_mapping": "stylegan2-256",
}


class OfficialDBAFBackend(published.WithoutSettings):
    """Anonymize and recover faces of 256 px with the authors' networks, one at a time: theirs attend across a batch."""

    name = "dbaf-official"
    networks: OfficialDBAF
    exact = exact_recovery = False
    marked = False
    batched = True
    records_masks = False
    margin: Margin = "none"
    matches_light = False
    resolution = 256
    resolutions: tuple[int, ...] = (256,)

    def __init__(self, networks: OfficialDBAF, device: str = "cpu") -> None:
        self.networks = networks.requires_grad_(False).to(device).eval()
        self.device = torch.device(device)

    @classmethod
    def from_weights(cls, device: str = "cpu", params: OfficialDBAFParams | None = None) -> OfficialDBAFBackend:
        """Load the authors' files as `anonface weights` knows them. Arguments and errors as :meth:`from_folder`."""
        return cls._from_files({part: weights.path(name) for part, name in ENTRIES.items()}, device, params)

    @classmethod
    def from_folder(
        cls, folder: Path, device: str = "cpu", params: OfficialDBAFParams | None = None
    ) -> OfficialDBAFBackend:
        """Load the authors' six files from a folder, whatever their digests.

        Args:
            folder: where they lie, under their published names.
            device: where the networks run.
            params: shapes other than the authors'.

        Raises:
            WeightsError: if a file is missing, or holds other tensors than its network.
        """
        return cls._from_files(published.files_in(folder, ENTRIES), device, params)

    @classmethod
    def _from_files(cls, files: dict[str, Path], device: str, params: OfficialDBAFParams | None) -> OfficialDBAFBackend:
        params = params or OfficialDBAFParams()
        networks = OfficialDBAF(params)
        # Two files hold more than is used: a whole e4e, and the whole generator whose mapping network makes keys.
        inversion, start = PSp(params.generator, offsets=True, backbone=params.backbone), StyleGAN2(params.generator)
        networks.encoder, networks.key_mapping = inversion.encoder, start.style
        whole: dict[str, nn.Module] = {"encoder": inversion, "key_mapping": start}
        for part, file in files.items():
            latent_avg = published.fill(whole.get(part) or networks.get_submodule(part), file)
            if part == "encoder":
                if latent_avg is None:
                    raise WeightsError(f"{file.name} holds no latent_avg, from which its codes are offsets")
                networks.latent_avg.copy_(latent_avg)
        return cls(networks, device)

    @torch.inference_mode()
    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, 256, 256] in [-1, 1], a key each -> somebody else, the same range; masks play no part."""
        side = self.resolution
        if faces.shape[1:] != (3, side, side):
            raise ValueError(f"faces must have {side} px, not {tuple(faces.shape)}")
        if not len(faces) == len(masks) == len(keys):
            raise ValueError(f"{len(faces)} faces, {len(masks)} masks and {len(keys)} keys: one of each is needed")
        renders = [
            self.networks(face[None].to(self.device), self.networks.key_code(self._drawn(key)))
            for face, key in zip(faces, keys, strict=True)
        ]
        return torch.cat(renders).clamp(-1, 1).to(faces.device)

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        return self.anonymize(faces, masks, keys)

    def _drawn(self, key: FaceKey) -> Tensor:
        """A normal vector a level, as the authors draw them: [1, 3, 512]."""
        width = self.networks.params.generator.latent
        drawn = np.stack([key.normal(f"{level} key", width) for level in LEVELS])
        return torch.from_numpy(drawn)[None].float().to(self.device)
