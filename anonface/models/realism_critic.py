"""Realism critic: how much a new face looks like a photo, at each place of the picture.

Its training data are described in ``training/realism_critic.py``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.attribute_encoder import MobileNetV2Features


class Member(nn.Module):
    """MobileNetV2 up to stride 16 with a linear head: faces [B, 3, 256, 256] in [-1, 1] -> logits [B, 16, 16]."""

    TAP = 13  # the backbone's last block at stride 16
    WIDTH = 96

    def __init__(self) -> None:
        super().__init__()
        self.backbone = MobileNetV2Features(taps=(self.TAP,))
        del self.backbone.features[self.TAP + 1 :]
        self.judge = nn.Conv2d(self.WIDTH, 1, 1)

    def forward(self, faces: Tensor) -> Tensor:
        return self.judge(self.backbone(faces)[0])[:, 0]


class RealismCritic(nn.Module):
    """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> logits [B, 16, 16], high where a place looks like a photo.

    The critic is trained on pairs of pictures, so only differences of logits between pictures of one photo have a
    meaning. The result is the mean of two independently trained members, or that of one ``member``. Optimisation that
    uses the members in turn cannot exploit the errors of either one.
    """

    SIDE = 256  # px
    MEMBERS = 2

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(Member() for _ in range(self.MEMBERS))

    def forward(self, faces: Tensor, member: int | None = None) -> Tensor:
        if faces.shape[-1] != self.SIDE:
            faces = F.interpolate(faces, (self.SIDE, self.SIDE), mode="bilinear", antialias=True)
        chosen = self.members if member is None else self.members[member : member + 1]
        return torch.stack([one(faces) for one in chosen]).mean(0)


def within(logits: Tensor, mask: Tensor) -> Tensor:
    """The mean [B] of logits [B, H, W], weighted by a soft mask [B, 1, R, R] in 0..1."""
    cover = F.adaptive_avg_pool2d(mask, logits.shape[-1])[:, 0]
    return (logits * cover).sum((1, 2)) / cover.sum((1, 2)).clamp_min(1.0)
