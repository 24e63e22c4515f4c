"""Secure identity flow (iFADIT section 3.3): keyed, invertible, on the unit sphere of identity codes.

    z'' = T(z, s),   z = T^-1(z'', s)                                                            (equation 3)

T is a keyed orthogonal mix followed by N secure affine coupling blocks (equations 5-8). The mix is drawn from the key's
own stream, so two keys are unrelated whatever the blocks have learned. The blocks are conditioned on the key vector k.
They move mixed codes to where codes of faces lie. The mix rotates all codes by one angle, which is part of the key and
near 90 degrees. So no key leaves a code near itself, and the angle says nothing about the person.

The first coordinates of a code hold the apparent sex, age and skin tone. They are conditions, not secrets. The flow
keeps them, or mirrors those that the user set free, and moves the other coordinates on the remaining sphere.

A re-embedded face gives a unit vector, so only the direction of a code counts. Therefore every block is homogeneous,
T(r z) = r T(z): its functions read the direction of the other half, and their offsets are scaled by that half's length.
So normalising the result of T loses nothing, and the inverse is exact on the sphere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class SecureIdentityFlowParams:
    """Sizes of the flow.

    Attributes:
        code: width of a code.
        kept: the number of its first coordinates that are conditions; the others are keyed.
        key: width of the key vector k.
        hidden: width of the blocks' perceptrons.
        blocks: number of coupling blocks.
        gain: the constant that multiplies a(.).
        mix: side of the diagonal blocks of the orthogonal mix. It is even and divides the number of keyed coordinates.
            Small blocks preserve the spectrum of codes, which are sorted by variance.
        cosines: bounds of the cosine between a keyed code before and after the mix.
    """

    code: int = 448
    kept: int = 6
    key: int = 512
    hidden: int = 256
    blocks: int = 4
    gain: float = 0.5
    mix: int = 26
    cosines: tuple[float, float] = (-0.2, 0.1)

    @property
    def keyed(self) -> int:
        return self.code - self.kept

    @property
    def mixes(self) -> tuple[int, int, int]:
        """Shape of one key's mixes."""
        return self.keyed // self.mix, self.mix, self.mix


@dataclass(frozen=True)
class FlowKey:
    """The keys of a batch, as the flow needs them.

    Attributes:
        k: [B, 512] (equation 4).
        mix: [B, 17, 26, 26], orthogonal.
        mirror: [B, 6] of +1 and -1, where -1 mirrors a kept coordinate. None mirrors none.
    """

    k: Tensor
    mix: Tensor
    mirror: Tensor | None = None

    def __getitem__(self, index: slice | Tensor) -> FlowKey:
        return FlowKey(self.k[index], self.mix[index], None if self.mirror is None else self.mirror[index])


def orthogonal_mixes(normals: np.ndarray, cosines: np.ndarray) -> np.ndarray:
    """Random orthogonal Q, [B, blocks, n, n] for even n, with z^T Q z = c |z|^2 for every z.

    Q = c I + sqrt(1 - c^2) O^T J O, where O is Haar-distributed and J swaps the two halves of a vector and negates one,
    so that J z is orthogonal to z. A Haar-distributed Q would reach this cosine only on average, and would leave some
    codes near themselves.

    Args:
        normals: standard normals of the result's shape. O is the Q of their QR decomposition, with the signs of R's
            diagonal moved into it (Mezzadri 2007). It is computed in float64, so that it is the same on every machine
            to within rounding.
        cosines: c of each key, [B].
    """
    o, r = np.linalg.qr(normals.astype(np.float64))
    o *= np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    side = normals.shape[-1]
    swapped = np.roll(o, side // 2, axis=-2)
    swapped[..., : side // 2, :] *= -1
    c = np.asarray(cosines, np.float64)[:, None, None, None]
    return c * np.eye(side) + np.sqrt(1 - c**2) * np.swapaxes(o, -1, -2) @ swapped


def _mlp(c_in: int, hidden: int, c_out: int) -> nn.Sequential:
    last = nn.Linear(hidden, c_out)
    nn.init.zeros_(last.weight)  # a fresh block is the identity
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(c_in, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), last)


def _context(half: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The length [B, 1] of a half, and the blocks' input: its direction (components of unit variance) beside k."""
    length = half.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return length, torch.cat([half / length * half.shape[1] ** 0.5, k], dim=1)


class SecureAffineCoupling(nn.Module):
    """One block: both halves are updated, each by functions of the other half and the key vector."""

    def __init__(self, params: SecureIdentityFlowParams) -> None:
        super().__init__()
        half = params.keyed // 2
        self.omega, self.phi, self.rho, self.eta = (_mlp(half + params.key, params.hidden, half) for _ in range(4))
        self.gain = params.gain

    def _a(self, x: Tensor) -> Tensor:
        """a(.): a scaled sigmoid, centred so that a fresh block does not change lengths."""
        return self.gain * (2 * torch.sigmoid(x) - 1)

    def forward(self, z: Tensor, k: Tensor) -> Tensor:
        """Keyed coordinates [B, 442], k [B, 512] -> [B, 442]; equations 5 and 6."""
        z1, z2 = z[:, 0::2], z[:, 1::2]  # codes are sorted by variance: alternating gives both halves the same weight
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


class SecureIdentityFlow(nn.Module):
    """The flow on unit codes. ``forward`` and ``inverse`` map [B, 448] of unit length to [B, 448] of unit length."""

    key_mean: Tensor
    key_scale: Tensor
    neutral: Tensor

    def __init__(self, params: SecureIdentityFlowParams | None = None) -> None:
        super().__init__()
        p = self.params = params or SecureIdentityFlowParams()
        self.coupling = nn.ModuleList(SecureAffineCoupling(p) for _ in range(p.blocks))
        # k is a style; these normalise it to zero mean and unit variance
        self.register_buffer("key_mean", torch.zeros(p.key))
        self.register_buffer("key_scale", torch.ones(p.key))
        self.register_buffer("neutral", torch.zeros(p.kept))  # the centre of mirroring

    def forward(self, z: Tensor, key: FlowKey) -> Tensor:
        kept, keyed = self._split(z)
        return self._join(self._conditions(kept, key), self._through(self._rotate(keyed, key.mix), key.k))

    def inverse(self, z: Tensor, key: FlowKey) -> Tensor:
        """T^-1, exact: the blocks are homogeneous, and mirroring is its own inverse."""
        kept, keyed = self._split(z)
        return self._join(self._conditions(kept, key), self._rotate(self._back(keyed, key.k), key.mix.mT))

    def mixed_only(self, z: Tensor, key: FlowKey) -> Tensor:
        """The result of :meth:`forward` without the coupling blocks."""
        kept, keyed = self._split(z)
        return self._join(self._conditions(kept, key), self._rotate(keyed, key.mix))

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z[:, : self.params.kept], F.normalize(z[:, self.params.kept :], dim=1)

    def _join(self, kept: Tensor, direction: Tensor) -> Tensor:
        """The unit code with these conditions and this direction of the keyed part."""
        length = (1 - kept.square().sum(1, keepdim=True)).clamp_min(1e-6).sqrt()
        return torch.cat([kept, length * F.normalize(direction, dim=1)], dim=1)

    def _conditions(self, kept: Tensor, key: FlowKey) -> Tensor:
        return kept if key.mirror is None else self.neutral + key.mirror * (kept - self.neutral)

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
