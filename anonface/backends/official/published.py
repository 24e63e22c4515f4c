"""What backends of fixed networks share: finding and reading published files, a digest, the want of settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from anonface import weights
from anonface.backends.base import UNSETTABLE
from anonface.errors import UsageError, WeightsError

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor, nn

    from anonface.backends.base import Parameter, Settings


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


class WithoutSettings:
    """The part of a backend (``base.Backend``) that is the same wherever the weights say it all."""

    name: str
    networks: nn.Module

    def parameters(self) -> dict[str, Parameter]:
        """Nothing."""
        return {}

    def under(self, settings: Settings) -> Self:
        """Itself: there is nothing to set.

        Raises:
            UsageError: a setting.
        """
        for setting in settings:
            raise UsageError(f"backend {self.name} has no setting {setting!r}", UNSETTABLE)
        return self

    def digest(self) -> bytes:
        """SHA-256 over all numbers of the networks."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return digest(self.networks)

    def visible(self, masks: Tensor) -> Tensor:
        """The masks themselves."""
        return masks
