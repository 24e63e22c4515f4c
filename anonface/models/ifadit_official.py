"""iFADIT after its authors' code, which departs from the paper in places.

Names and order of the parameters are those of the authors' files. Where code and paper differ, this module follows the
code: the couplings change only one half and permute between blocks, the log scale is a clamped tanh, the password lies
in [0.5, 1), and the flow's output is not normalised. ``identity_flow`` and ``attribute_encoder`` follow the paper.

Images here are [B, 3, 256, 256] in [0, 1] on the way in; the generator's are about [-1, 1] and never clamped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from anonface.models.ir_se50 import IRSE50, IRSE50Params
from anonface.models.psp import StyleEncoder, StyleEncoderParams
from anonface.models.stylegan2 import StyleGAN2, StyleGAN2Params

FACE_ROWS = slice(35, 223)
FACE_COLUMNS = slice(32, 220)
MASK_GROWTH = 5
MASK_BLUR = 15
MASK_SIGMA = 2.6


class IdentityEncoder(IRSE50):
    """ArcFace on the middle of an FFHQ crop: [B, 3, 256, 256] in [-1, 1] -> unit vector [B, 512]."""

    def forward(self, faces: Tensor) -> Tensor:
        middle = faces[:, :, FACE_ROWS, FACE_COLUMNS]
        return super().forward(functional.adaptive_avg_pool2d(middle, self.params.image))


def _perceptron(widths: tuple[int, ...], slope: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(slope)]
    return nn.Sequential(*layers[:-1])


class LatentMapper(nn.Module):
    """The mapping network M of eq. 2: identity and attributes of each style -> w+.

    Takes [..., 1024] (identity first), gives [..., 512].
    """

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.model = _perceptron((2 * width, width, width), slope=0.2)

    def forward(self, joined: Tensor) -> Tensor:
        return self.model(joined)


class IdentityCompensation(nn.Module):
    """The identity compensation layer C of eq. 10: re-extracted identity [B, 512] -> the flow's output."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.model = _perceptron((width, 2 * width, 4 * width, 2 * width, width), slope=0.2)

    def forward(self, identity: Tensor) -> Tensor:
        return self.model(identity)


@dataclass(frozen=True)
class IdentityFlowParams:
    """Layout of the invertible network, which depends on the FrEIA release it was trained with.

    Attributes:
        matrices: True: permutations are stored as float matrices [512, 512] (PyPI release 0.2); False: as int64
            index vectors [512] (git since 2023-06-20).
        halved: True: log scale 2 tanh(a/2) (git since 2023-08-17); False: 2 tanh(a) (everything before).
        width: length of an identity and of a key.
        blocks: number of couplings.
        hidden: widths of a coupling's subnet between its ends.

    Raises:
        ValueError: matrices are combined with the halved form, which no release has.
    """

    matrices: bool = False
    halved: bool = True
    width: int = 512
    blocks: int = 4
    hidden: tuple[int, ...] = (256, 128, 128, 256)

    def __post_init__(self) -> None:
        if self.matrices and self.halved:
            raise ValueError("permutation matrices come from releases whose log scale is 2 tanh(a), not 2 tanh(a/2)")

    def matching(self, state: Mapping[str, Tensor]) -> IdentityFlowParams:
        """The same parameters with the permutations' layout of a checkpoint, recognised by its shapes."""
        matrices = any(tuple(tensor.shape) == (self.width, self.width) for tensor in state.values())
        return replace(self, matrices=matrices, halved=self.halved and not matrices)


class Coupling(nn.Module):
    """One affine coupling: the second half is transformed by functions of the first; then all is scaled and permuted.

    Both directions take [B, 512] and a key [B, 512], and return [B, 512] and the log of the Jacobian's
    determinant [B].
    """

    w_perm: Tensor
    w_perm_inv: Tensor

    def __init__(self, params: IdentityFlowParams) -> None:
        super().__init__()
        width = params.width
        order = torch.randperm(width)
        there, back = order, order.argsort()
        if params.matrices:
            there, back = torch.eye(width)[order], torch.eye(width)[order].T.contiguous()
        self.global_scale = nn.Parameter(torch.full((1, width), 10.0))
        self.global_offset = nn.Parameter(torch.zeros(1, width))
        self.register_buffer("w_perm", there)
        self.register_buffer("w_perm_inv", back)
        self.subnet = _perceptron((width // 2 + width, *params.hidden, width), slope=0.01)
        self.steepness = 0.5 if params.halved else 1.0

    def forward(self, x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = x.chunk(2, dim=1)
        log_scale, shift = self._affine(kept, key)
        coupled = torch.cat([kept, changed * log_scale.exp() + shift], dim=1)
        gain = self._gain()
        out = _permuted(coupled * gain + self.global_offset, self.w_perm)
        return out, log_scale.sum(dim=1) + gain.log().sum()

    def inverse(self, y: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        gain = self._gain()
        coupled = (_permuted(y, self.w_perm_inv) - self.global_offset) / gain
        kept, changed = coupled.chunk(2, dim=1)
        log_scale, shift = self._affine(kept, key)
        out = torch.cat([kept, (changed - shift) * (-log_scale).exp()], dim=1)
        return out, -log_scale.sum(dim=1) - gain.log().sum()

    def _affine(self, kept: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        a, shift = (0.1 * self.subnet(torch.cat([kept, key], dim=1))).chunk(2, dim=1)
        return 2 * torch.tanh(a * self.steepness), shift

    def _gain(self) -> Tensor:
        return 0.1 * functional.softplus(self.global_scale, beta=0.5)


def _permuted(x: Tensor, permutation: Tensor) -> Tensor:
    return x[:, permutation] if permutation.ndim == 1 else x @ permutation.T


class IdentityFlow(nn.Module):
    """The secure identity flow T of eq. 3: identity [B, 512] and key [B, 512] -> another identity, and back.

    Both directions return the result [B, 512] and the log of the Jacobian's determinant [B].
    """

    def __init__(self, params: IdentityFlowParams | None = None) -> None:
        super().__init__()
        self.params = params = params or IdentityFlowParams()
        self.module_list = nn.ModuleList(Coupling(params) for _ in range(params.blocks))

    def forward(self, identity: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        total = identity.new_zeros(len(identity))
        for block in self._blocks():
            identity, log_jacobian = block(identity, key)
            total = total + log_jacobian
        return identity, total

    def inverse(self, identity: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        total = identity.new_zeros(len(identity))
        for block in reversed(self._blocks()):
            identity, log_jacobian = block.inverse(identity, key)
            total = total + log_jacobian
        return identity, total

    def _blocks(self) -> list[Coupling]:
        return cast("list[Coupling]", list(self.module_list))


@dataclass(frozen=True)
class OfficialIFADITParams:
    """Shapes of the six networks; ``recognizer`` is also the shape of the attribute encoder's backbone.

    Raises:
        ValueError: if identity, latent and flow differ in width.
    """

    recognizer: IRSE50Params = field(default_factory=IRSE50Params)
    generator: StyleGAN2Params = field(default_factory=StyleGAN2Params)
    flow: IdentityFlowParams = field(default_factory=IdentityFlowParams)

    def __post_init__(self) -> None:
        widths = self.recognizer.embedding, self.generator.latent, self.flow.width
        if len(set(widths)) != 1:
            raise ValueError(f"identity, latent and flow must have one width, not {widths}")

    @property
    def width(self) -> int:
        """Length of identities, latents and keys."""
        return self.flow.width


class OfficialIFADIT(nn.Module):
    """The six networks together, eq. 9 and 10."""

    def __init__(self, params: OfficialIFADITParams | None = None) -> None:
        super().__init__()
        self.params = params = params or OfficialIFADITParams()
        attributes = StyleEncoderParams(params.generator.n_latents, params.width, backbone=params.recognizer)
        self.identity_encoder = IdentityEncoder(params.recognizer)
        self.attribute_encoder = StyleEncoder(attributes)
        self.mapper = LatentMapper(params.width)
        self.flow = IdentityFlow(params.flow)
        self.compensation = IdentityCompensation(params.width)
        self.generator = StyleGAN2(params.generator)

    def key_code(self, uniform: Tensor) -> Tensor:
        """KeyGen of the code: u [B, 512] in [0, 1) -> (u + 1) / 2 -> the generator's mapping network -> [B, 512].

        All inputs are positive, so the codes of different passwords nearly coincide.
        """
        return self.generator.mapping((uniform + 1) / 2)

    def identity(self, images: Tensor) -> Tensor:
        """Images in [0, 1] -> unit identity vectors [B, 512]."""
        return self.identity_encoder(2 * images - 1)

    def attributes(self, images: Tensor) -> Tensor:
        """Images in [0, 1], not rescaled for this encoder, -> [B, 14, 512]."""
        return self.attribute_encoder(images)

    def styles(self, identity: Tensor, attributes: Tensor) -> Tensor:
        """Identity [B, 512] repeated for every style, joined with the attributes [B, 14, 512] -> w+ [B, 14, 512]."""
        repeated = identity[:, None].expand_as(attributes)
        return self.mapper(torch.cat([repeated, attributes], dim=-1))

    def anonymize(self, images: Tensor, key: Tensor) -> Tensor:
        """Images [B, 3, 256, 256] in [0, 1] and key codes [B, 512] -> renders in about [-1, 1] (eq. 9)."""
        identity, _ = self.flow(self.identity(images), key)
        return self.generator(self.styles(identity, self.attributes(images)))

    def recover(self, images: Tensor, key: Tensor) -> Tensor:
        """Anonymized images in [0, 1] and key codes -> renders in about [-1, 1] (eq. 10)."""
        identity, _ = self.flow.inverse(self.compensation(self.identity(images)), key)
        return self.generator(self.styles(identity, self.attributes(images)))


def composite(images: Tensor, originals: Tensor, masks: Tensor) -> Tensor:
    """Paste images onto originals through a mask, grown by 2 px and then blurred over 15 px.

    Args:
        images, originals: [B, 3, h, w], any one range.
        masks: [B, 1, h, w] in 0..1; beyond the border counts as outside.

    Returns:
        [B, 3, h, w].
    """
    grown = functional.max_pool2d(masks, MASK_GROWTH, stride=1, padding=MASK_GROWTH // 2)
    reach = torch.arange(MASK_BLUR, dtype=masks.dtype, device=masks.device) - MASK_BLUR // 2
    taps = torch.exp(-reach.square() / (2 * MASK_SIGMA**2))
    taps = taps / taps.sum()
    soft = functional.pad(grown, (MASK_BLUR // 2,) * 4, mode="reflect")
    soft = functional.conv2d(functional.conv2d(soft, taps.view(1, 1, 1, -1)), taps.view(1, 1, -1, 1))
    return originals + soft * (images - originals)
