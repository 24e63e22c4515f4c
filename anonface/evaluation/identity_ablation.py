"""Identity ablation: recovery without an identity code. What still looks like the person leaked through attributes.

The keyed coordinates are set to zero. Apparent sex, age and skin tone, which are public, are kept, or set to zero as
well.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from anonface.backends.flow_backend import FlowBackend
from anonface.evaluation.measurements import NO_CODE, NO_IDENTITY
from anonface.models.identity_flow import FlowKey, SecureIdentityFlow, SecureIdentityFlowParams
from anonface.pipeline import Engine


def ablations(engine: Engine) -> dict[str, Engine]:
    """Both ablations of the same loaded networks, by the name of the measurement; none for a backend without a code."""
    both = {NO_IDENTITY: without_identity(engine), NO_CODE: without_identity(engine, attributes=False)}
    return {name: ablated for name, ablated in both.items() if ablated}


def without_identity(engine: Engine, attributes: bool = True) -> Engine | None:
    """The same loaded networks, recovering without an identity code; None for a backend that has none.

    Args:
        attributes: whether to keep apparent sex, age and skin tone.
    """
    if not isinstance(engine.backend, FlowBackend):
        return None
    backend = copy.copy(engine.backend)
    backend.identity = copy.copy(backend.identity)
    params = replace(backend.identity.flow.params, blocks=0)
    backend.identity.flow = _FirstCoordinates(params, params.kept if attributes else 0)
    backend.adds_residuals = False
    ablated = copy.copy(engine)
    ablated.backend = backend
    return ablated


class _FirstCoordinates(SecureIdentityFlow):
    """Its inverse keeps the first ``kept`` coordinates and sets the others to zero, under any key."""

    def __init__(self, params: SecureIdentityFlowParams, kept: int) -> None:
        super().__init__(params)
        self.kept = kept

    def inverse(self, z: Tensor, key: FlowKey) -> Tensor:
        return torch.cat([z[:, : self.kept], torch.zeros_like(z[:, self.kept :])], dim=1)
