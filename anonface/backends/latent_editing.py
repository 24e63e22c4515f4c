"""DBAF and HFORD as backends: identity codes rewritten under the key, attributes and what hides a face kept.

    anonymize   X'' = G(A + phi([P, I]), M^)       of the photo             (DBAF 19 and 24, HFORD III-B)
    recover     the same, of the anonymized photo, under the same key       (DBAF 21 and 26)

A key is three vectors, one a level of the codes. Renders are pasted as they are: what the networks keep of a photo's
light and grain is theirs to carry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from anonface import weights
from anonface.backends import published
from anonface.backends.arena import keep_large_buffers
from anonface.backends.base import Settings
from anonface.backends.generator import load_generator, load_mapping
from anonface.errors import UsageError, WeightsError
from anonface.keys import FaceKey
from anonface.models.dbaf import DBAF
from anonface.models.hford import HFORD
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_editing import LEVELS, FaceEditor, LatentEditor

EDITORS: dict[str, Callable[[], LatentEditor]] = {"dbaf": DBAF, "hford": HFORD}
ENCODER = "inversion"  # the encoder's file and training run; one for both


class LatentEditingBackend(published.WithoutSettings):
    """The backend; see ``base.Backend`` for the contract.

    Args:
        name: a key of EDITORS, the label of its keys.
        networks: encoder, editor and generator.
        mapping: StyleGAN's mapping network, [B, 512] -> [B, 512], by which keys become styles.
    """

    exact = True
    anchored = True
    together = True
    outlined = False
    networks: FaceEditor
    resolutions: tuple[int, ...] = (256, 512, 1024)

    def __init__(self, name: str, networks: FaceEditor, mapping: nn.Module, device: torch.device | str = "cpu") -> None:
        keep_large_buffers()
        self.name = name
        self.device = torch.device(device)
        self.networks = networks.requires_grad_(False).eval().to(self.device)
        self.mapping = mapping.requires_grad_(False).eval().to(self.device)

    @classmethod
    def load(cls, name: str, device: torch.device, settings: Settings) -> LatentEditingBackend:
        """From files; the setting ``model`` names a folder in which it was trained, else they are the package's own.

        Raises:
            UsageError: another setting.
            WeightsError: a file is missing, or holds another network.
        """
        for setting in set(settings) - {"model"}:
            raise UsageError(f"backend {name} has no setting {setting!r}", "it has no refinement")
        encoder, editor = InversionEncoder(), EDITORS[name]()
        files = _files(name, str(settings.get("model", "")))
        for part, file in zip((encoder, editor), files, strict=True):
            weights.fit(part, weights.load_checkpoint(file), source=str(file))
        return cls(name, FaceEditor(encoder, editor, load_generator()), load_mapping(), device)

    @torch.inference_mode()
    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> somebody else; masks play no part.

        One face at a time, so that no rounding depends on the rest of the batch.
        """
        renders = []
        for face, key in zip(faces, keys, strict=True):
            image, vectors = face[None].to(self.device), key_vectors(key, self.mapping).to(self.device)
            code = self.networks.encoder.to_u(vectors)[None]
            renders.append(self.networks(image, code, face.shape[-1]).clamp(-1, 1))
        return torch.cat(renders).to(faces.device)

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        return self.anonymize(faces, masks, keys)


def key_vectors(key: FaceKey, mapping: nn.Module) -> Tensor:
    """KeyGen, [3, 512]: for each level of the codes a stream of its own in [-1, 1], through the mapping network.

    iFADIT's equation 4, three times.
    """
    weight = next(mapping.parameters())
    unit = np.stack([key.signed_unit(f"{level} key", weight.shape[1]) for level in LEVELS])
    return mapping(torch.from_numpy(unit).to(weight))


def _files(name: str, model: str) -> tuple[Path, Path]:
    """Encoder and editor, from a run's folder or the package."""
    if model:
        folder = Path(model).expanduser()
        files = folder / ENCODER / f"{ENCODER}.safetensors", folder / name / f"{name}.safetensors"
        for file in files:
            if not file.is_file():
                raise WeightsError(f"{folder} has no {file.relative_to(folder)}", _hint(name))
        return files
    if not {entry.name for entry in weights.entries()}.issuperset({ENCODER, name}):
        raise WeightsError(f"this version has no weights of its own for the {name} backend", _hint(name))
    return weights.path(ENCODER), weights.path(name)


def _hint(name: str) -> str:
    return f"name with --model a folder in which `anonface train {ENCODER}` and `anonface train {name}` have run"
