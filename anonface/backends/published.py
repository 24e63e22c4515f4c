"""What backends of published networks share: finding the files, filling networks from them, their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from anonface import weights
from anonface.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor, nn


def files_in(folder: Path, entries: Mapping[str, str]) -> dict[str, Path]:
    """Components and their files in a folder, whatever the digests.

    Args:
        folder: where they lie, under their published names.
        entries: components and their names in weights.toml.

    Raises:
        WeightsError: one is not there.
    """
    return {part: _find(folder, name, len(entries)) for part, name in entries.items()}


def _find(folder: Path, name: str, count: int) -> Path:
    entry = weights.entry(name)
    for file in (entry.file, *entry.also_named):
        if (folder / file).is_file():
            return folder / file
    raise WeightsError(
        f"{folder} has no {entry.file}, {entry.role}",
        f"put the authors' {count} files into one folder under their published names",
    )


def fill(network: nn.Module, file: Path) -> Tensor | None:
    """Fill a network by name if the names agree, else in order, as authors do who pair by order and size.

    Returns:
        The mean latent that often lies beside the weights of a generator or an encoder, if it does.

    Raises:
        WeightsError: the file is no checkpoint, or holds other tensors than the network.
    """
    state = weights.load_checkpoint(file)
    latent_avg = state.pop("latent_avg", None)
    try:
        weights.fit(network, state, by="name", source=file.name)
    except WeightsError:
        weights.fit(network, state, by="order", source=file.name)
    return latent_avg


def digest(network: nn.Module) -> bytes:
    """SHA-256 over all numbers of a network."""
    total = hashlib.sha256()
    for tensor in network.state_dict().values():
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.digest()
