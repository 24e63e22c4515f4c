"""Disentangle Before Anonymize (DBAF, arXiv 2311.08786): its three modules, after the paper's equations.

The authors' code departs from the paper in places. ``dbaf_official`` follows that code, for their checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anonface.models.inversion import WIDTHS, Features
from anonface.models.latent_editing import CODES, LatentEditor, MultiHeadAttention, by_level, equal_linear_block


@dataclass(frozen=True)
class DBAFParams:
    """Sizes of a code, of the attention's heads, of the encoder's features and of the maps; the layers of KRIA."""

    code: int = 512
    heads: int = 8
    head: int = 64
    features: tuple[int, int, int] = WIDTHS
    maps: int = 512
    layers: int = 7


class ContrastiveIdentityDisentanglement(nn.Module):
    """CID: one multi-head attention, shared by the levels, reads attributes from the codes of a level (equations 1-3).

    ``place`` is a learned positional embedding, because attention alone ignores the order of the codes.
    """

    def __init__(self, params: DBAFParams) -> None:
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(CODES, params.code))
        self.attention = MultiHeadAttention(params.code, params.heads, params.head)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, 14, 512] -> correction of their attributes [B, 14, 512]."""
        return torch.cat([self.attention(level) for level in by_level(codes + self.place)], dim=1)


class KeyAuthorizedReversibleIdentityAnonymization(nn.Module):
    """KRIA: seven equalised linear layers, shared by all codes (equations 19-23)."""

    def __init__(self, params: DBAFParams) -> None:
        super().__init__()
        self.block = equal_linear_block((2 * params.code, *[params.code] * params.layers))

    def forward(self, joined: Tensor) -> Tensor:
        """Key and identity side by side [B, 14, 1024] -> correction of the other identity [B, 14, 512]."""
        return self.block(joined)


class _ScaleRetention(nn.Module):
    """MAAR at one scale: [B, C, s, s] -> [B, d, s, s]."""

    def __init__(self, inputs: int, maps: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(inputs, maps, 1)
        self.channel = nn.Conv2d(1, maps, 1)
        self.spatial = nn.Linear(2 * maps, maps)

    def forward(self, features: Tensor) -> Tensor:
        wide = self.expand(features)
        # Equation 6 repeats the pooled map along the channels; one copy is enough for a linear layer.
        pooled = wide.amax(dim=1, keepdim=True) + wide.mean(dim=1, keepdim=True)
        by_channel = torch.sigmoid(self.channel(pooled))
        pooled = torch.cat([by_channel.amax(dim=(2, 3)), by_channel.mean(dim=(2, 3))], dim=1)
        by_place = torch.sigmoid(self.spatial(pooled))[:, :, None, None]  # equation 7
        return by_place * by_channel * wide  # equation 8


class MultiScaleAttentionalAttributeRetention(nn.Module):
    """MAAR: features -> attention-weighted maps of the generator's width (equations 6-8)."""

    def __init__(self, params: DBAFParams) -> None:
        super().__init__()
        self.scales = nn.ModuleList(_ScaleRetention(inputs, params.maps) for inputs in params.features)

    def forward(self, features: Features) -> Features:
        """Maps of 16, 32 and 64 px a side -> maps of the same sides with 512 channels."""
        c3, c2, c1 = (scale(seen) for scale, seen in zip(self.scales, features, strict=True))
        return c3, c2, c1


class DBAF(LatentEditor):
    """CID, KRIA and MAAR."""

    def __init__(self, params: DBAFParams | None = None) -> None:
        p = params or DBAFParams()
        super().__init__(
            ContrastiveIdentityDisentanglement(p),
            KeyAuthorizedReversibleIdentityAnonymization(p),
            MultiScaleAttentionalAttributeRetention(p),
            p.code,
            landmark_components=4,
        )
