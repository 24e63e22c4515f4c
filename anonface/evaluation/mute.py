"""Recovery that is told nothing of who it was: what then still looks like the person has leaked through attributes.

Codes live on a sphere, where there is no zero; so the keyed coordinates are set to zero and the apparent sex, age
and skin tone stay, which are public. Nothing pulls refinement towards or away from anybody either. What is left is all
that the networks read from the anonymized photo besides identity.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from anonface.backends.ifadit import IFADIT
from anonface.models.sif import SIF, FlowKey
from anonface.pipeline import Engine


def without_identity(engine: Engine) -> Engine | None:
    """The same loaded networks, recovering without an identity code; None for a backend that has none."""
    if not isinstance(engine.backend, IFADIT):
        return None
    backend = copy.copy(engine.backend)
    backend.flow = _Mute(replace(backend.flow.params, blocks=0))
    backend.compensates = False
    backend.restoration = replace(backend.restoration, identity=0.0, leave=0.0)
    mute = copy.copy(engine)
    mute.backend = backend
    return mute


class _Mute(SIF):
    """Brings back the conditions alone, under any key."""

    def inverse(self, z: Tensor, key: FlowKey) -> Tensor:
        kept = self.params.kept
        return torch.cat([z[:, :kept], torch.zeros_like(z[:, kept:])], dim=1)
