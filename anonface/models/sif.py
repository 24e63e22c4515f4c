"""Secure identity flow (iFADIT section 3.3): keyed, invertible, on the unit sphere of identity codes.

    z'' = T(z, s),   z = T^-1(z'', s)                                                            (equation 3)

T is a keyed orthogonal mix followed by N secure affine coupling blocks (equations 5-8). The mix is drawn from the key's
own stream, so that two keys are unrelated whatever training did to the blocks; the blocks, conditioned on the key
vector k, bring mixed codes to where faces are.

A code is a direction only, since whoever re-embeds a face gets a unit vector back. So every block is built to be
homogeneous, T(r z) = r T(z): its functions see the other half's direction, and what they add grows with that half's
length. Then normalising T's result loses nothing, and the inverse stays exact on the sphere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class SIFParams:
    """``gain`` is the constant that multiplies a(.); ``mix`` is the side of the blocks of the keyed orthogonal mix."""

    code: int = 512
    key: int = 512
    hidden: int = 256
    blocks: int = 4
    gain: float = 0.5
    mix: int = 32


@dataclass(frozen=True)
class FlowKey:
    """What one key means to the flow, for a batch: ``k`` [B, 512] (equation 4), ``mix`` [B, 512 / 32, 32, 32]."""

    k: Tensor
    mix: Tensor

    def __getitem__(self, index: slice | Tensor) -> FlowKey:
        return FlowKey(self.k[index], self.mix[index])

    def to(self, device: torch.device | str) -> FlowKey:
        return FlowKey(self.k.to(device), self.mix.to(device))


def orthogonal_from_normals(normals: np.ndarray) -> np.ndarray:
    """Haar-distributed rotations or reflections, [..., n, n], from standard normals of that shape.

    QR with the signs of R's diagonal moved into Q (Mezzadri 2007), in float64, so that the result is the same wherever
    it is computed, to within rounding.
    """
    q, r = np.linalg.qr(normals.astype(np.float64))
    signs = np.sign(np.diagonal(r, axis1=-2, axis2=-1))
    return q * signs[..., None, :]


def _mlp(c_in: int, hidden: int, c_out: int) -> nn.Sequential:
    last = nn.Linear(hidden, c_out)
    nn.init.zeros_(last.weight)  # a fresh block is the identity
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(c_in, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), last)


def _context(half: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """A half's length [B, 1], and what the functions see: its direction (components of unit variance) beside k."""
    length = half.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return length, torch.cat([half / length * half.shape[1] ** 0.5, k], dim=1)


class SecureAffineCoupling(nn.Module):
    """One block: both halves are updated, each by functions of the other half and the key vector."""

    def __init__(self, params: SIFParams) -> None:
        super().__init__()
        half = params.code // 2
        self.omega, self.phi, self.rho, self.eta = (_mlp(half + params.key, params.hidden, half) for _ in range(4))
        self.gain = params.gain

    def _a(self, x: Tensor) -> Tensor:
        """a(.): a sigmoid times a constant, centred, so that a block at rest neither grows nor shrinks."""
        return self.gain * (2 * torch.sigmoid(x) - 1)

    def forward(self, z: Tensor, k: Tensor) -> Tensor:
        """[B, 512], [B, 512] -> [B, 512]; equations 5 and 6."""
        z1, z2 = z[:, 0::2], z[:, 1::2]  # codes are sorted by variance: alternate, so that the halves weigh the same
        length, context = _context(z1, k)
        z2 = z2 * torch.exp(self._a(self.omega(context))) + length * self.phi(context)
        length, context = _context(z2, k)
        z1 = z1 * torch.exp(self._a(self.rho(context))) + length * self.eta(context)
        return torch.stack([z1, z2], dim=2).flatten(1)

    def inverse(self, z: Tensor, k: Tensor) -> Tensor:
        """The exact inverse of :meth:`forward`; equations 7 and 8."""
        z1, z2 = z[:, 0::2], z[:, 1::2]
        length, context = _context(z2, k)
        z1 = (z1 - length * self.eta(context)) * torch.exp(-self._a(self.rho(context)))
        length, context = _context(z1, k)
        z2 = (z2 - length * self.phi(context)) * torch.exp(-self._a(self.omega(context)))
        return torch.stack([z1, z2], dim=2).flatten(1)


class SIF(nn.Module):
    """The flow on unit codes. ``forward`` and ``inverse`` map [B, 512] of unit length to [B, 512] of unit length."""

    key_mean: Tensor
    key_scale: Tensor

    def __init__(self, params: SIFParams | None = None) -> None:
        super().__init__()
        self.params = params or SIFParams()
        self.coupling = nn.ModuleList(SecureAffineCoupling(self.params) for _ in range(self.params.blocks))
        # k comes as a style code; these bring it to zero mean and unit variance
        self.register_buffer("key_mean", torch.zeros(self.params.key))
        self.register_buffer("key_scale", torch.ones(self.params.key))

    def forward(self, z: Tensor, key: FlowKey) -> Tensor:
        return F.normalize(self._through(self._rotate(z, key.mix), key.k), dim=1)

    def inverse(self, z: Tensor, key: FlowKey) -> Tensor:
        """T^-1, exact: the blocks' inverse of a direction is a direction."""
        return self._rotate(F.normalize(self._back(z, key.k), dim=1), key.mix.transpose(-1, -2))

    def _rotate(self, z: Tensor, mix: Tensor) -> Tensor:
        blocks = z.unflatten(1, (-1, self.params.mix))
        return torch.einsum("bgi,bgij->bgj", blocks, mix).flatten(1)

    def _through(self, z: Tensor, k: Tensor) -> Tensor:
        k = (k - self.key_mean) * self.key_scale
        for block in self.coupling:
            z = block(z, k)
        return z

    def _back(self, z: Tensor, k: Tensor) -> Tensor:
        k = (k - self.key_mean) * self.key_scale
        for block in reversed(list(self.coupling)):
            assert isinstance(block, SecureAffineCoupling)
            z = block.inverse(z, k)
        return z
