"""The backends by name, and how each is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anonface.backends.base import UNSETTABLE, Backend, Settings
from anonface.errors import UsageError

if TYPE_CHECKING:
    import torch

    from anonface.backends.official.dbaf import OfficialDBAFBackend
    from anonface.backends.official.ifadit import OfficialIFADITBackend


def _ifadit(device: torch.device, settings: Settings) -> Backend:
    from anonface.backends.ifadit.backend import IFADIT

    return IFADIT(device, settings)


def _ifadit_official(device: torch.device, settings: Settings) -> Backend:
    from anonface.backends.official.ifadit import OfficialIFADITBackend

    return _published(OfficialIFADITBackend, device, settings)


def _dbaf_official(device: torch.device, settings: Settings) -> Backend:
    from anonface.backends.official.dbaf import OfficialDBAFBackend

    return _published(OfficialDBAFBackend, device, settings)


def _published(
    family: type[OfficialIFADITBackend] | type[OfficialDBAFBackend], device: torch.device, settings: Settings
) -> Backend:
    """The authors' networks from the folder that the setting ``model`` names, or from the files of weights.toml."""
    unknown = sorted(set(settings) - {"model"})
    if unknown:
        raise UsageError(f"backend {family.name} has no setting {unknown[0]!r}", UNSETTABLE)
    folder = settings.get("model")
    return family.from_folder(Path(str(folder)), str(device)) if folder else family.from_weights(str(device))


def _diffusion(device: torch.device, settings: Settings) -> Backend:
    from anonface.backends.diffusion.backend import Diffusion

    return Diffusion.load(device, settings)


def _inpaint(device: torch.device, settings: Settings) -> Backend:
    from anonface.backends.inpaint.backend import Inpaint

    return Inpaint.load(device, settings)


def _latent_editing(name: str) -> Callable[[torch.device, Settings], Backend]:
    def load(device: torch.device, settings: Settings) -> Backend:
        from anonface.backends.latent_editing.backend import LatentEditingBackend

        return LatentEditingBackend.load(name, device, settings)

    return load


BACKENDS: dict[str, Callable[[torch.device, Settings], Backend]] = {
    "ifadit": _ifadit,
    "ifadit-official": _ifadit_official,
    "diffusion": _diffusion,
    "dbaf": _latent_editing("dbaf"),
    "dbaf-official": _dbaf_official,
    "hford": _latent_editing("hford"),
    "inpaint": _inpaint,
}


def build(name: str, device: torch.device, settings: Settings | None = None) -> Backend:
    """The backend of that name on that device.

    Args:
        settings: a parameter map as :meth:`Backend.parameters` gives it; what it leaves out takes its default.

    Raises:
        UsageError: there is no such backend, or a setting it does not know.
        WeightsError: its weights are missing.
    """
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}", f"choose one of: {', '.join(BACKENDS)}")
    return BACKENDS[name](device, settings or {})
