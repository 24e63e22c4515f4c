"""The common parts of DBAF (arXiv 2311.08786) and HFORD; the parts of each paper are in ``dbaf`` and ``hford``.

    C, M = E(X)                          codes and features of a face                       (``inversion``)
    A, I = C - I, C - A                  attributes and identity, codes each                (DBAF 4, HFORD III-C)
    C^   = A + phi([P, I])               identity rewritten under the key                   (DBAF 19-23)
    X'   = G(C^, M^)                     rendered with attention maps of the features       (DBAF 24-28)

Recovery repeats these steps on the anonymized picture under the same key. Codes belong to three levels, which no part
mixes. The result for a face does not depend on the other faces of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.inversion import SIDES, Features, InversionEncoder
from anonface.models.mobile_stylegan import Details, MobileStyleGAN, Window
from anonface.models.stylegan2 import EqualLinear

LEVELS = {"coarse": 4, "medium": 4, "fine": 6}  # number of codes in each level, in order
CODES = sum(LEVELS.values())
# Initial weight of the key's identity in each code. It is highest in the codes of facial features, low in those of pose
# and light. It exceeds 1 because the held attributes (sex, age, landmarks) make identities more alike again.
KEY_WEIGHTS = (0.0, 0.4, 0.9, 0.9, 1.15, 1.15, 1.15, 1.15, 0.6, 0.4, 0.0, 0.0, 0.0, 0.0)
FEATURE_CODES = slice(2, 9)  # codes of facial features, without those of pose and light
SEPARATION = 1.25  # factor by which identities of different keys are moved apart in the feature codes
READ_COORDINATES = 128  # coordinates of each feature code from which attributes are read
READINGS = 9  # number of these attributes: sex, age and skin tone twice each, and three of the mouth
INITIAL_SCALE = 0.1  # factor on the initial weights of layers that add to a shortcut


def by_level(codes: Tensor) -> tuple[Tensor, ...]:
    """Codes [B, 14, C] -> the codes of each level, [B, 4, C], [B, 4, C] and [B, 6, C]."""
    return codes.split(list(LEVELS.values()), dim=1)


def expanded(key: Tensor) -> Tensor:
    """One key vector per level [B, 3, C] -> one per code [B, 14, C]."""
    lengths = torch.tensor(list(LEVELS.values()), device=key.device)
    return key.repeat_interleave(lengths, dim=1, output_size=CODES)


def initial_weights() -> tuple[Tensor, Tensor]:
    """Initial weights of the photo's codes and of the key's identity, [14, 1] each."""
    lent = torch.tensor(KEY_WEIGHTS)[:, None]
    return (1 - lent).clamp_min(0), lent


def key_identity(codes: Tensor, key: Tensor) -> Tensor:
    """Codes [B, 14, C] blended with the identity of a key [B, 3, C], with the initial weights."""
    kept, lent = (weight.to(codes) for weight in initial_weights())
    return kept * codes + lent * expanded(key)


class MultiHeadAttention(nn.Module):
    """Attention among the codes of one face, [B, N, C] -> [B, N, C]; DBAF equations 1-3, HFORD 1 and 2.

    Attention runs over N only, never over B.
    """

    def __init__(self, width: int, heads: int, head: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, heads * head, bias=False) for _ in range(3))
        self.out = nn.Linear(heads * head, width)
        scale_initial_weights(self.out)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


def equal_linear_block(widths: Sequence[int]) -> nn.Sequential:
    """Equalised linear layers of these widths, each but the last followed by a leaky ReLU."""
    last = len(widths) - 2
    layers = [EqualLinear(inputs, outputs, activate=i < last) for i, (inputs, outputs) in enumerate(pairwise(widths))]
    scale_initial_weights(layers[-1])
    return nn.Sequential(*layers)


def scale_initial_weights(layer: nn.Linear | EqualLinear) -> None:
    """Multiply the weights of a fresh layer by INITIAL_SCALE."""
    with torch.no_grad():
        layer.weight.mul_(INITIAL_SCALE)


class LatentEditor(nn.Module):
    """The three parts of a paper, with learned shortcuts beside two of them, and the strength of the attention maps.

    Without shortcuts, learning to pass on the input takes longer than a CPU can train. So ``kept`` weighs each
    coordinate of a code in the attributes, ``lent`` each coordinate of a key in the identity, and the layers add to
    both. Initially the identity is that of the key, weighed by KEY_WEIGHTS, and the attributes are the rest of the
    codes.

    Args:
        disentangler: codes [B, 14, 512] -> correction of their attributes [B, 14, 512].
        rewriter: key and identity side by side [B, 14, 1024] -> correction of the other identity [B, 14, 512].
        retention: features -> maps [B, 512, s, s] for s = 16, 32 and 64.
        width: coordinates of a code.
        key_share: weight, in 0..1, of the key's own identity against the trained edit in an anonymized face.
        landmark_components: number of principal components of the landmarks that are held beside the attributes.
    """

    def __init__(
        self,
        disentangler: nn.Module,
        rewriter: nn.Module,
        retention: nn.Module,
        width: int,
        key_share: float = 0.0,
        landmark_components: int = 0,
    ) -> None:
        super().__init__()
        self.key_share = key_share
        self.disentangler, self.rewriter, self.retention = disentangler, rewriter, retention
        self.kept, self.lent = (nn.Parameter(weight.repeat(1, width)) for weight in initial_weights())
        codes = FEATURE_CODES.stop - FEATURE_CODES.start
        readings = torch.zeros(codes, min(READ_COORDINATES, width), READINGS + landmark_components)
        self.register_buffer("readings", readings)
        # one per convolution; 0 renders without maps
        self.strength = nn.Parameter(torch.zeros(len(SIDES), 2))

    readings: Tensor

    def split(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Codes [B, 14, 512] -> identity and attributes, which add up to the codes (DBAF 4)."""
        attributes = self.kept * codes + self.disentangler(codes)
        return codes - attributes, attributes

    def rewrite(self, identity: Tensor, key: Tensor) -> Tensor:
        """Identity [B, 14, 512] and one key vector per level [B, 3, 512] -> another identity, phi of DBAF 19-23."""
        key = expanded(key)
        return self.lent * key + self.rewriter(torch.cat([key, identity], dim=2))

    def attribute_change(self, change: Tensor) -> Tensor:
        """The smallest change of codes [B, 14, 512] with the same effect on the attributes as ``change``.

        The columns of ``readings`` are the linear directions of apparent sex, age and skin tone, of the mouth's shape
        and of the landmarks' components.
        """
        codes, count, _ = self.readings.shape
        lines = self.readings.flatten(0, 1)
        projected = change[:, FEATURE_CODES, :count].flatten(1) @ lines @ torch.linalg.pinv(lines, rtol=1e-3)
        part = torch.zeros_like(change)
        part[:, FEATURE_CODES, :count] = projected.unflatten(1, (codes, count))
        return part

    def details(self, features: Features, replaced: Tensor | None = None) -> Details:
        """The maps that are added to the generator's fixed noise, from features.

        They are 0 within the mask ``replaced`` [B, 1, R, R] in 0..1, so that they carry no identity of that face.
        """
        maps = self.retention(features)
        if replaced is not None:
            maps = tuple(one * (1 - F.adaptive_avg_pool2d(replaced, one.shape[-1])) for one in maps)
        return {
            side: (first * kept, second * kept)
            for side, kept, (first, second) in zip(SIDES, maps, self.strength, strict=True)
        }


class FaceEditor(nn.Module):
    """Encoder, editor and generator: a face and a key -> a face of another identity."""

    def __init__(self, encoder: InversionEncoder, editor: LatentEditor, generator: MobileStyleGAN) -> None:
        super().__init__()
        self.encoder, self.editor, self.generator = encoder, editor, generator

    def edit(self, codes: Tensor, key: Tensor) -> Tensor:
        """Codes [B, 14, 512] and one key vector per level [B, 3, 512] -> codes of another identity (DBAF 19-23)."""
        identity, attributes = self.editor.split(codes)
        return attributes + self.editor.rewrite(identity, key)

    def anonymize(self, codes: Tensor, key: Tensor) -> Tensor:
        """Codes [B, 14, 512] and one key vector per level [B, 3, 512] -> codes of the anonymized face.

        The result of :meth:`edit` is blended with the key's own identity and moved away from the mean over keys. Then
        the photo's sex, age, skin tone, mouth and landmarks are restored.
        """
        hidden, usual = (
            torch.lerp(self.edit(codes, k), key_identity(codes, k), self.editor.key_share)
            for k in (key, torch.zeros_like(key))  # the mean key is 0
        )
        hidden[:, FEATURE_CODES] = usual[:, FEATURE_CODES] + SEPARATION * (hidden - usual)[:, FEATURE_CODES]
        return hidden + self.editor.attribute_change(codes - hidden)

    def render(
        self, codes: Tensor, features: Features, size: int, replaced: Tensor | None = None, window: Window | None = None
    ) -> Tensor:
        """Codes and features -> faces [B, 3, size, size] in about [-1, 1] (DBAF 9, 24-28).

        Pixels beyond a ``window``, in px, are undefined.
        """
        details = self.editor.details(features, replaced)
        return self.generator.synthesize(self.encoder.to_latents(codes), size, window, details)

    def forward(self, faces: Tensor, key: Tensor, size: int) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] and one key vector per level -> faces of ``size`` px, not clamped."""
        codes, features = self.encoder(faces)
        return self.render(self.edit(codes, key), features, size)
