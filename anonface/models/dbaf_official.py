"""DBAF after its authors' code (arXiv 2311.08786, whose first version was HFORD), for their checkpoints.

Names and order of the parameters are those of the authors' files. Where code and paper differ, this module follows the
code: three transformers instead of one shared attention, CBAM for the spatial features, and one mapper of eight layers
per level. ``dbaf`` follows the paper.

The authors' transformers treat the batch as the sequence, so attention runs ACROSS THE IMAGES of a batch and a result
depends on the other images. This is kept for conformance with their results. Give one image at a time: then the softmax
is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from anonface.models.ir_se50 import IRSE50Params
from anonface.models.psp import StyleEncoder, StyleEncoderParams
from anonface.models.stylegan2 import EqualLinear, StyleGAN2, StyleGAN2Params

SPLIT = (4, 4, 6)  # numbers of coarse, medium and fine styles
NOISES = (3, 5, 7)  # the first of the two noise maps of 16, 32 and 64 px


@dataclass(frozen=True)
class DisentanglerParams:
    """Shape of a level's transformer: number of blocks and heads, width of a head, hidden width of the perceptron."""

    latent: int = 512
    depth: int = 6
    heads: int = 14
    head: int = 64
    hidden: int = 2048


class _Attention(nn.Module):
    """Self-attention along axis 1 of [B, N, latent]."""

    def __init__(self, params: DisentanglerParams) -> None:
        super().__init__()
        inner = params.heads * params.head
        self.heads = params.heads
        self.to_qkv = nn.Linear(params.latent, 3 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, params.latent), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.to_qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self.to_out(seen.transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def __init__(self, params: DisentanglerParams) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(params.latent, params.hidden), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(params.hidden, params.latent), nn.Dropout(0.1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class _PreNorm(nn.Module):
    def __init__(self, width: int, fn: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class _Block(nn.Sequential):
    """Residual modules in sequence."""

    def forward(self, x: Tensor) -> Tensor:
        for part in self:
            x = part(x) + x
        return x


class _Transformer(nn.Module):
    def __init__(self, params: DisentanglerParams) -> None:
        super().__init__()
        kinds = _Attention, _FeedForward
        self.layers = nn.Sequential(
            *(_Block(*(_PreNorm(params.latent, kind(params)) for kind in kinds)) for _ in range(params.depth))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class _Level(nn.Module):
    def __init__(self, params: DisentanglerParams) -> None:
        super().__init__()
        self.transformer = _Transformer(params)

    def forward(self, x: Tensor) -> Tensor:
        return self.transformer(x)


class Disentangler(nn.Module):
    """Codes [B, 14, 512] -> their attributes [B, 14, 512]; the identity is codes minus attributes."""

    def __init__(self, params: DisentanglerParams | None = None) -> None:
        super().__init__()
        params = params or DisentanglerParams()
        self.pos_embedding = nn.Parameter(torch.randn(sum(SPLIT), 1, params.latent))
        self.linear_w = nn.Linear(params.latent, params.latent)
        self.layers = nn.ModuleList(_Level(params) for _ in SPLIT)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.linear_w(codes).transpose(0, 1) + self.pos_embedding
        levels = zip(self.layers, x.split(SPLIT), strict=True)
        return torch.cat([level(part) for level, part in levels]).transpose(0, 1)


class _ChannelGate(nn.Module):
    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        hidden = channels // reduction
        self.mlp = nn.Sequential(nn.Flatten(), nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.mlp(x.mean(dim=(2, 3))) + self.mlp(x.amax(dim=(2, 3)))
        return x * torch.sigmoid(weight)[:, :, None, None]


class _BasicConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.bn = nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class _SpatialGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spatial = _BasicConv()

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.cat([x.amax(dim=1, keepdim=True), x.mean(dim=1, keepdim=True)], dim=1)
        return x * torch.sigmoid(self.spatial(pooled))


class CBAM(nn.Module):
    """Channel, then spatial attention (Woo et al. 2018): [B, C, h, w] -> [B, C, h, w]."""

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        self.ChannelGate = _ChannelGate(channels, reduction)
        self.SpatialGate = _SpatialGate()

    def forward(self, x: Tensor) -> Tensor:
        return self.SpatialGate(self.ChannelGate(x))


class AttributeBlock(nn.Module):
    """The encoder's features c3, c2, c1 -> maps of the generator's width at 16, 32 and 64 px.

    Args:
        widths: channels of c3, c2 and c1.
        out: channels of a map.
    """

    def __init__(self, widths: tuple[int, int, int] = (512, 256, 128), out: int = 512) -> None:
        super().__init__()
        self.cbam_c3, self.cbam_c2, self.cbam_c1 = (CBAM(out) for _ in widths)
        self.conv_c3, self.conv_c2, self.conv_c1 = (nn.Conv2d(width, out, 1) for width in widths)

    def forward(self, features: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        c3, c2, c1 = features
        return self.cbam_c3(self.conv_c3(c3)), self.cbam_c2(self.conv_c2(c2)), self.cbam_c1(self.conv_c1(c1))


class _Mapper(nn.Module):
    RATE = 0.01

    def __init__(self, latent: int) -> None:
        super().__init__()
        widths = (2 * latent, 4 * latent, 2 * latent, latent)
        pairs = [*pairwise(widths), *[(latent, latent)] * 4]
        layers = [EqualLinear(inputs, outputs, self.RATE, activate=True) for inputs, outputs in pairs]
        self.model = nn.Sequential(*layers, nn.Linear(latent, latent))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class AnonymizationNet(nn.Module):
    """Identity [B, 14, 512] and keys [B, 14, 512] -> another identity, with one mapper per level."""

    def __init__(self, latent: int = 512) -> None:
        super().__init__()
        self.mapper = nn.ModuleList(_Mapper(latent) for _ in SPLIT)

    def forward(self, identity: Tensor, key: Tensor) -> Tensor:
        joined = torch.cat([identity, key], dim=2).split(SPLIT, dim=1)
        return torch.cat([mapper(part) for mapper, part in zip(self.mapper, joined, strict=True)], dim=1)


@dataclass(frozen=True)
class OfficialDBAFParams:
    """Shapes of the networks.

    Raises:
        ValueError: the generator's number of styles is not the sum over the levels.
    """

    backbone: IRSE50Params = field(default_factory=IRSE50Params)
    generator: StyleGAN2Params = field(default_factory=StyleGAN2Params)
    disentangler: DisentanglerParams = field(default_factory=DisentanglerParams)

    def __post_init__(self) -> None:
        if self.generator.n_latents != sum(SPLIT):
            raise ValueError(f"DBAF's levels hold {sum(SPLIT)} styles, the generator {self.generator.n_latents}")


class OfficialDBAF(nn.Module):
    """All networks together.

    ``generator`` is the fine-tuned one. ``key_mapping`` is the mapping network of the original generator and maps keys.
    ``latent_avg`` [14, 512] is the mean style; the encoder gives offsets from it.
    """

    latent_avg: Tensor

    def __init__(self, params: OfficialDBAFParams | None = None) -> None:
        super().__init__()
        self.params = params = params or OfficialDBAFParams()
        shape, width = params.generator, params.generator.latent
        stages = [channels for channels, _ in params.backbone.stages]
        self.encoder = StyleEncoder(StyleEncoderParams(shape.n_latents, width, offsets=True, backbone=params.backbone))
        self.disentangler = Disentangler(params.disentangler)
        self.attributes = AttributeBlock((stages[3], stages[2], stages[1]), shape.channels(16))
        self.anonymizer = AnonymizationNet(width)
        self.generator = StyleGAN2(shape)
        self.key_mapping = StyleGAN2(shape).style
        self.register_buffer("latent_avg", torch.zeros(shape.n_latents, width))

    def key_code(self, z: Tensor) -> Tensor:
        """One normal vector per level, [B, 3, 512] -> styles [B, 14, 512], repeated within each level."""
        levels = self.key_mapping(z.flatten(0, 1)).unflatten(0, z.shape[:2])
        return levels.repeat_interleave(torch.tensor(SPLIT, device=z.device), dim=1)

    def render(self, codes: Tensor, maps: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Styles [B, 14, 512] and attribute maps -> images in about [-1, 1]; the maps replace stored noise."""
        noise = self.generator.noises.maps()
        for first, attributes in zip(NOISES, maps, strict=True):
            noise[first] = noise[first + 1] = attributes
        return self.generator(codes, noise)

    def forward(self, images: Tensor, key: Tensor) -> Tensor:
        """Images [1, 3, 256, 256] in [-1, 1] and keys [1, 14, 512] -> anonymized faces in about [-1, 1]."""
        features = self.encoder.features(images)
        codes = self.encoder.read(features) + self.latent_avg
        kept = self.disentangler(codes)
        return self.render(kept + self.anonymizer(codes - kept, key), self.attributes(features))
