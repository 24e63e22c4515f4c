"""What DBAF (arXiv 2311.08786) and HFORD share; each paper's own parts are in the files of their names.

    C, M = E(X)                          codes and features of a face                       (``inversion``)
    A, I = C - I, C - A                  attributes and identity, codes each                (DBAF 4, HFORD III-C)
    C^   = A + phi([P, I])               identity rewritten under the key                   (DBAF 19-23)
    X'   = G(C^, M^)                     with what attention keeps of the features          (DBAF 24-28)

Recovery is the same way again, from the anonymized picture and under the same key. Codes fall into three levels, which
no part mixes; every face is on its own, whoever else is in its batch.
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

LEVELS = {"coarse": 4, "medium": 4, "fine": 6}  # and how many of the fourteen codes each has, in order
CODES = sum(LEVELS.values())
# How far from the mean face the key's person goes in each code at first: in those where features lie, more than pose
# and light, and beyond what that person is, because sex, age and layout then draw everybody together again.
LENT = (0.0, 0.4, 0.9, 0.9, 1.15, 1.15, 1.15, 1.15, 0.6, 0.4, 0.0, 0.0, 0.0, 0.0)
# In which codes two keys' people are parted and attributes held: where features lie, not pose or light.
SHAPED, APART = slice(2, 9), 1.25
HELD, READINGS = 128, 9  # coordinates of each of these off which attributes are read, and how many those are
FAINT = 0.1  # of usual weights, with which layers begin that add to a shortcut


def by_level(codes: Tensor) -> tuple[Tensor, ...]:
    """Codes [B, 14, C] -> those of each level, [B, 4, C], [B, 4, C] and [B, 6, C]."""
    return codes.split(list(LEVELS.values()), dim=1)


def every_code(key: Tensor) -> Tensor:
    """A key vector a level [B, 3, C] -> for each code that of its level, [B, 14, C]."""
    lengths = torch.tensor(list(LEVELS.values()), device=key.device)
    return key.repeat_interleave(lengths, dim=1, output_size=CODES)


def shares() -> tuple[Tensor, Tensor]:
    """How much of each code stays at first, and how much the key's person lends: [14, 1] each."""
    lent = torch.tensor(LENT)[:, None]
    return (1 - lent).clamp_min(0), lent


def cast(codes: Tensor, key: Tensor) -> Tensor:
    """Codes [B, 14, C] with the features of the person whom a key [B, 3, C] stands for, as far as LENT says."""
    kept, lent = (share.to(codes) for share in shares())
    return kept * codes + lent * every_code(key)


class MultiHeadAttention(nn.Module):
    """Attention among the codes of one face, [B, N, C] -> [B, N, C]; DBAF equations 1-3, HFORD 1 and 2.

    N is what is attended over. B never is: a face's result does not depend on its companions.
    """

    def __init__(self, width: int, heads: int, head: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, heads * head, bias=False) for _ in range(3))
        self.out = nn.Linear(heads * head, width)
        faint(self.out)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


def equal_linear_block(widths: Sequence[int]) -> nn.Sequential:
    """Equalised linear layers between these widths, all but the last followed by a leaky ReLU."""
    last = len(widths) - 2
    layers = [EqualLinear(inputs, outputs, activate=i < last) for i, (inputs, outputs) in enumerate(pairwise(widths))]
    faint(layers[-1])
    return nn.Sequential(*layers)


def faint(layer: nn.Linear | EqualLinear) -> None:
    """Let a fresh layer say little."""
    with torch.no_grad():
        layer.weight.mul_(FAINT)


class LatentEditor(nn.Module):
    """A paper's three parts, a shortcut beside two of them, and how strongly its maps enter the generator.

    Layers alone take far longer than a CPU has to learn to pass on what they are given. So each coordinate of a code
    has a share in the attributes, and each of a key one in the identity, to which the layers add. At first the identity
    is the key's person as far as LENT says, and attributes are what is left of the codes beside it.

    Args:
        disentangler: codes [B, 14, 512] -> what is to be added to the attributes in them, of that shape.
        rewriter: identity and key side by side [B, 14, 1024] -> what is to be added to another identity [B, 14, 512].
        retention: features -> maps [B, 512, s, s] for s = 16, 32 and 64.
        width: coordinates of a code.
        person: how far a disguise goes back from what training made of an edit to the person whom the key casts.
        layout: how many components of the landmarks are read and held beside the attributes.
    """

    def __init__(
        self,
        disentangler: nn.Module,
        rewriter: nn.Module,
        retention: nn.Module,
        width: int,
        person: float = 0.0,
        layout: int = 0,
    ) -> None:
        super().__init__()
        self.person = person
        self.disentangler, self.rewriter, self.retention = disentangler, rewriter, retention
        self.kept, self.lent = (nn.Parameter(share.repeat(1, width)) for share in shares())
        self.register_buffer("readings", torch.zeros(SHAPED.stop - SHAPED.start, min(HELD, width), READINGS + layout))
        # one a convolution; at 0 the generator draws as if there were no maps
        self.strength = nn.Parameter(torch.zeros(len(SIDES), 2))

    readings: Tensor

    def split(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Codes [B, 14, 512] -> identity and attributes, whose sum they are (DBAF 4)."""
        attributes = self.kept * codes + self.disentangler(codes)
        return codes - attributes, attributes

    def rewrite(self, identity: Tensor, key: Tensor) -> Tensor:
        """Identity [B, 14, 512] under a key vector a level [B, 3, 512] -> another identity, phi of DBAF 19-23."""
        key = every_code(key)
        return self.lent * key + self.rewriter(torch.cat([key, identity], dim=2))

    def held(self, change: Tensor) -> Tensor:
        """Of a change of codes [B, 14, 512] the least part that reads as all of it does, [B, 14, 512].

        ``readings`` read apparent sex, age and tone, the shape of the mouth and how landmarks lie off codes: they lie
        along lines there.
        """
        codes, count, _ = self.readings.shape
        lines = self.readings.flatten(0, 1)
        told = change[:, SHAPED, :count].flatten(1) @ lines @ torch.linalg.pinv(lines, rtol=1e-3)
        part = torch.zeros_like(change)
        part[:, SHAPED, :count] = told.unflatten(1, (codes, count))
        return part

    def details(self, features: Features, replaced: Tensor | None = None) -> Details:
        """What of the features goes into the generator, where its baked noise stands.

        Nothing does of a face that is ``replaced``, [B, 1, R, R] in 0..1: who it is would come along.
        """
        maps = self.retention(features)
        if replaced is not None:
            maps = tuple(one * (1 - F.adaptive_avg_pool2d(replaced, one.shape[-1])) for one in maps)
        return {
            side: (first * kept, second * kept)
            for side, kept, (first, second) in zip(SIDES, maps, self.strength, strict=True)
        }


class FaceEditor(nn.Module):
    """Encoder, editor and generator: a face and a key in, another face out."""

    def __init__(self, encoder: InversionEncoder, editor: LatentEditor, generator: MobileStyleGAN) -> None:
        super().__init__()
        self.encoder, self.editor, self.generator = encoder, editor, generator

    def edit(self, codes: Tensor, key: Tensor) -> Tensor:
        """Codes [B, 14, 512] under a key vector a level [B, 3, 512] -> codes of somebody else (DBAF 19-23)."""
        identity, attributes = self.editor.split(codes)
        return attributes + self.editor.rewrite(identity, key)

    def disguise(self, codes: Tensor, key: Tensor) -> Tensor:
        """Codes of somebody else: those of :meth:`edit`, in part of the key's person as cast, further from what all
        keys make of this face, and with the sex, age, tone, mouth and layout that are read off the codes given."""
        hidden, usual = (
            torch.lerp(self.edit(codes, k), cast(codes, k), self.editor.person) for k in (key, torch.zeros_like(key))
        )
        hidden[:, SHAPED] = usual[:, SHAPED] + APART * (hidden - usual)[:, SHAPED]  # keys are spread about 0
        return hidden + self.editor.held(codes - hidden)

    def render(
        self, codes: Tensor, features: Features, size: int, replaced: Tensor | None = None, window: Window | None = None
    ) -> Tensor:
        """Codes, with what is kept of the features, -> faces [B, 3, size, size] in about [-1, 1] (DBAF 9, 24-28); what
        lies beyond a ``window``, in px, is not to be looked at."""
        details = self.editor.details(features, replaced)
        return self.generator.synthesize(self.encoder.to_latents(codes), size, window, details)

    def forward(self, faces: Tensor, key: Tensor, size: int) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] under a key vector a level -> faces of ``size`` px, not clamped."""
        codes, features = self.encoder(faces)
        return self.render(self.edit(codes, key), features, size)
