"""Recovery that is told nothing of who it was: what then still looks like the person has leaked through attributes.

The keyed coordinates are set to zero, and the apparent sex, age and skin tone stay, which are public; or these as well
are set to zero, which is no code of anybody's. Nothing pulls refinement towards or away from anybody either. What is
left is all that the networks read from the anonymized photo besides identity.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from anonface.backends.ifadit import IFADIT
from anonface.evaluation.trials import NO_CODE, NO_IDENTITY
from anonface.models.sif import SIF, FlowKey, SIFParams
from anonface.pipeline import Engine


def ablations(engine: Engine) -> dict[str, Engine]:
    """The same loaded networks in either way, by what an evaluation calls it; none for a backend without a code."""
    found = (
        (title, without_identity(engine, conditions)) for title, conditions in ((NO_IDENTITY, True), (NO_CODE, False))
    )
    return {title: mute for title, mute in found if mute}


def without_identity(engine: Engine, conditions: bool = True) -> Engine | None:
    """The same loaded networks, recovering without an identity code; None for a backend that has none.

    Args:
        conditions: whether the apparent sex, age and skin tone stay.
    """
    if not isinstance(engine.backend, IFADIT):
        return None
    backend = copy.copy(engine.backend)
    params = replace(backend.flow.params, blocks=0)
    backend.flow = _Mute(params, params.kept if conditions else 0)
    backend.compensates = False
    backend.restoration = replace(backend.restoration, identity=0.0, leave=0.0)
    mute = copy.copy(engine)
    mute.backend = backend
    return mute


class _Mute(SIF):
    """Brings back the first ``left`` coordinates alone, under any key."""

    def __init__(self, params: SIFParams, left: int) -> None:
        super().__init__(params)
        self.left = left

    def inverse(self, z: Tensor, key: FlowKey) -> Tensor:
        return torch.cat([z[:, : self.left], torch.zeros_like(z[:, self.left :])], dim=1)
