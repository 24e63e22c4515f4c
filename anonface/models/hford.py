"""High-Fidelity and Occlusion-Robust De-identification (HFORD): its three modules, after the paper's equations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anonface.models.inversion import WIDTHS, Features
from anonface.models.latent_editing import (
    LEVELS,
    LatentEditor,
    MultiHeadAttention,
    by_level,
    equal_linear_block,
    scale_initial_weights,
)


@dataclass(frozen=True)
class HFORDParams:
    """Sizes of a code, of IDM's transformers, of the encoder's features and ARM's attention, and of a cMLP."""

    code: int = 512
    depth: int = 1
    heads: int = 4
    head: int = 32
    hidden: int = 256
    features: tuple[int, int, int] = WIDTHS
    maps: int = 512
    reduction: int = 16
    kernel: int = 7
    layers: int = 3
    width: int = 384


class _Block(nn.Module):
    """ViT's block (Dosovitskiy et al. 2021): attention, then a perceptron, each with a norm before and a shortcut."""

    def __init__(self, params: HFORDParams) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(params.code), nn.LayerNorm(params.code)
        self.attention = MultiHeadAttention(params.code, params.heads, params.head)
        self.perceptron = nn.Sequential(
            nn.Linear(params.code, params.hidden), nn.GELU(), nn.Linear(params.hidden, params.code)
        )
        scale_initial_weights(self.perceptron[-1])  # type: ignore[arg-type]  # the layer above

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.perceptron(self.second_norm(x))


class _LevelDisentanglement(nn.Module):
    """The part of IDM for one level."""

    def __init__(self, count: int, params: HFORDParams) -> None:
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(count, params.code))
        self.blocks = nn.Sequential(*(_Block(params) for _ in range(params.depth)))

    def forward(self, codes: Tensor) -> Tensor:
        return self.blocks(codes + self.place) - codes  # the editor adds the shortcut


class IdentityDisentanglementModule(nn.Module):
    """IDM: one ViT per level (codes 1-4, 5-8 and 9-14) reads attributes from the codes (equations 1 and 2)."""

    def __init__(self, params: HFORDParams) -> None:
        super().__init__()
        self.levels = nn.ModuleList(_LevelDisentanglement(count, params) for count in LEVELS.values())

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, 14, 512] -> correction of their attributes [B, 14, 512]."""
        return torch.cat([level(part) for level, part in zip(self.levels, by_level(codes), strict=True)], dim=1)


class ConditionalMLP(nn.Module):
    """cMLP: one perceptron per level, whose input is the key beside the identity code."""

    def __init__(self, params: HFORDParams) -> None:
        super().__init__()
        widths = 2 * params.code, *[params.width] * (params.layers - 1), params.code
        self.levels = nn.ModuleList(equal_linear_block(widths) for _ in LEVELS)

    def forward(self, joined: Tensor) -> Tensor:
        """Key and identity side by side [B, 14, 1024] -> correction of the other identity [B, 14, 512]."""
        return torch.cat([level(part) for level, part in zip(self.levels, by_level(joined), strict=True)], dim=1)


class _ScaleRetention(nn.Module):
    """ARM at one scale: [B, C, s, s] -> [B, d, s, s]."""

    def __init__(self, inputs: int, params: HFORDParams) -> None:
        super().__init__()
        wide, narrow = params.maps, max(1, params.maps // params.reduction)
        self.expand = nn.Conv2d(inputs, wide, 1)
        self.channel = nn.Sequential(nn.Linear(wide, narrow), nn.ReLU(), nn.Linear(narrow, wide))
        self.spatial = nn.Conv2d(2, 1, params.kernel, padding=params.kernel // 2)

    def forward(self, features: Tensor) -> Tensor:
        wide = self.expand(features)
        by_channel = torch.sigmoid(self.channel(wide.mean(dim=(2, 3))) + self.channel(wide.amax(dim=(2, 3))))  # 4
        weighed = wide * by_channel[:, :, None, None]
        pooled = torch.cat([weighed.amax(dim=1, keepdim=True), weighed.mean(dim=1, keepdim=True)], dim=1)
        return torch.sigmoid(self.spatial(pooled)) * weighed  # equations 3 and 5


class AttributeRetentionModule(nn.Module):
    """ARM: features -> attention-weighted maps of the generator's width (equations 3-5).

    Equation 5 takes the spatial attention of the channel weights, which are constant over the map. Here it is taken of
    the weighed features, as in CBAM.
    """

    def __init__(self, params: HFORDParams) -> None:
        super().__init__()
        self.scales = nn.ModuleList(_ScaleRetention(inputs, params) for inputs in params.features)

    def forward(self, features: Features) -> Features:
        """Maps of 16, 32 and 64 px a side -> maps of the same sides with 512 channels."""
        c3, c2, c1 = (scale(seen) for scale, seen in zip(self.scales, features, strict=True))
        return c3, c2, c1


class HFORD(LatentEditor):
    """IDM, the cMLPs and ARM."""

    def __init__(self, params: HFORDParams | None = None) -> None:
        p = params or HFORDParams()
        super().__init__(
            IdentityDisentanglementModule(p),
            ConditionalMLP(p),
            AttributeRetentionModule(p),
            p.code,
            key_share=0.5,
            landmark_components=12,
        )
