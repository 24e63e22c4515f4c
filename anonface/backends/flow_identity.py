"""iFADIT's keyed identity: E_ID embeds a face, the secure identity flow T hides its code under a key.

    z* = T(E_ID(X), s),   z = T^-1(z*, s),   z* = C(E_ID(X*)) where nothing else tells it    (equations 3, 9 and 10)

The flow runs in float64 on the CPU, so its inverse is the same on every machine.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface import weights
from anonface.backends.base import Settings
from anonface.crypto.keys import FaceKey
from anonface.errors import UsageError
from anonface.models.attribute_encoder import IdentityCompensation
from anonface.models.identity import CONDITIONS, IdentityEncoder
from anonface.models.identity_flow import FlowKey, SecureIdentityFlow, SecureIdentityFlowParams, orthogonal_mixes
from anonface.models.mobile_stylegan import MappingNetwork

FILES = ("flow", "compensation")


def freed(settings: Settings) -> str:
    """The setting ``free``, in the order of CONDITIONS: which of them keys may change, comma-separated.

    Raises:
        UsageError: it names something else.
    """
    named = {name for name in str(settings.get("free", "")).split(",") if name}
    if unknown := named - set(CONDITIONS):
        raise UsageError(f"cannot free {', '.join(sorted(unknown))}", f"one or more of {', '.join(CONDITIONS)}")
    return ",".join(name for name in CONDITIONS if name in named)


class KeyGen:
    """Equation 4, k = f(Norm(KDF(s))), beside the key's own mix and its mirrors of freed conditions.

    ``mapping`` is f, StyleGAN's mapping network.
    """

    def __init__(self, params: SecureIdentityFlowParams, mapping: MappingNetwork) -> None:
        self.params, self.mapping = params, mapping

    def __call__(self, keys: Sequence[FaceKey], free: str = "") -> FlowKey:
        p = self.params
        unit = np.stack([key.signed_unit("flow", p.key) for key in keys])
        device = next(self.mapping.parameters()).device
        with torch.inference_mode():
            k = self.mapping(torch.from_numpy(unit).to(device)).cpu().double()
        shape = p.mixes
        normals = np.stack([key.normal("mix", int(np.prod(shape))).reshape(shape) for key in keys])
        low, high = p.cosines
        cosines = low + (high - low) * (np.concatenate([key.signed_unit("angle", 1) for key in keys]) + 1) / 2
        mirror = torch.ones(len(keys), p.kept, dtype=torch.float64)
        for name, where in CONDITIONS.items():
            if name in free.split(","):
                mirror[:, where] = torch.tensor([[1.0 - 2 * (key.stream(f"free {name}", 1)[0] & 1)] for key in keys])
        return FlowKey(k, torch.from_numpy(orthogonal_mixes(normals, cosines)), mirror)


class FlowIdentity:
    """The identity; see ``backends.parts.KeyedIdentity``. Codes are [B, 448], float64 on the CPU.

    Args:
        encoder: E_ID, on the device.
        mapping: f of equation 4.
    """

    def __init__(self, encoder: IdentityEncoder, mapping: MappingNetwork, device: torch.device | str = "cpu") -> None:
        self.encoder, self.device, self.free = encoder, torch.device(device), ""
        self.flow, self.compensation = SecureIdentityFlow(), IdentityCompensation()
        for module, name in zip((self.flow, self.compensation), FILES, strict=True):
            weights.load(module, name)
            module.requires_grad_(False).eval()
        self.flow.double()
        self.compensation.to(self.device)
        self.keygen = KeyGen(self.flow.params, mapping)

    def under(self, free: str) -> FlowIdentity:
        """The same networks where keys may change these of CONDITIONS, comma-separated."""
        other = copy.copy(self)
        other.free = free
        return other

    @torch.inference_mode()
    def embed(self, faces: Tensor) -> Tensor:
        codes = [self.encoder(face[None].to(self.device)) for face in faces]
        return F.normalize(torch.cat(codes).cpu().double(), dim=1)

    def hide(self, code: Tensor, key: FaceKey) -> Tensor:
        return self.flow(code, self.keygen([key], self.free))

    def reveal(self, hidden: Tensor, key: FaceKey) -> Tensor:
        return self.flow.inverse(hidden, self.keygen([key], self.free))

    @torch.inference_mode()
    def estimate(self, face: Tensor) -> Tensor:
        return self.compensation(self.encoder(face.to(self.device))).cpu().double()
