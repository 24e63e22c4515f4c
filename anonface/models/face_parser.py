"""Face parser: the class of each pixel of an FFHQ-aligned crop.

The backbone is MobileNetV2. A feature pyramid (Lin et al. 2017) upsamples its maps to half the crop's side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.attribute_encoder import MobileNetV2Features

# Clothes count as background; teeth and tongue as lips; a beard as skin; rims and dark lenses as glasses; clear lenses
# as lens; hands, cups, masks and all else that hides the face as occluder.
CLASSES = (
    "background", "skin", "brows", "eyes", "nose", "lips", "ears", "neck", "hair", "glasses", "hat", "occluder", "lens",
)  # fmt: skip

# the classes of the face mask: behind a clear lens the face is seen
FACE = tuple(CLASSES.index(name) for name in ("skin", "brows", "eyes", "nose", "lips", "lens"))
SKIN, BROW = ((CLASSES.index(name),) for name in ("skin", "brows"))
BARE = tuple(CLASSES.index(name) for name in ("ears", "neck"))  # skin outside the face
HAIR = (CLASSES.index("hair"),)
GLASSES = (CLASSES.index("glasses"),)


@dataclass(frozen=True)
class FaceParserParams:
    """``side`` of the crop in px, a multiple of 32; ``width`` of the pyramid in channels."""

    side: int = 256
    width: int = 64

    def __post_init__(self) -> None:
        if self.side % 32:
            raise ValueError(f"side {self.side} is not a multiple of 32")


class FaceParser(nn.Module):
    """Crops [B, 3, side, side] in [-1, 1] -> logits [B, classes, side / 2, side / 2]."""

    TAPS = (1, 3, 6, 13, 17)  # the backbone's last blocks at strides 2, 4, 8, 16 and 32
    WIDTHS = (16, 24, 32, 96, 320)

    def __init__(self, params: FaceParserParams | None = None) -> None:
        super().__init__()
        p = self.params = params or FaceParserParams()
        self.backbone = MobileNetV2Features()
        self.lateral = nn.ModuleList(nn.Conv2d(width, p.width, 1) for width in self.WIDTHS)
        self.smooth = nn.ModuleList(_smoothing(p.width) for _ in self.WIDTHS[:-1])
        self.classify = nn.Conv2d(p.width, len(CLASSES), 1)

    def forward(self, crops: Tensor) -> Tensor:
        x, taps = self.backbone.normalised(crops), []
        for i, block in enumerate(self.backbone.features):
            x = block(x)
            if i in self.TAPS:
                taps.append(x)
        x = self.lateral[-1](taps[-1])
        for i in reversed(range(len(taps) - 1)):
            up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = self.smooth[i](up + self.lateral[i](taps[i]))
        return self.classify(x)


def face_odds(logits: Tensor) -> Tensor:
    """Log odds that a pixel is face, from class logits [B, classes, H, W] -> [B, H, W]."""
    rest = [index for index in range(logits.shape[1]) if index not in FACE]
    return logits[:, list(FACE)].logsumexp(1) - logits[:, rest].logsumexp(1)


def _smoothing(width: int) -> nn.Sequential:
    """A depthwise 5x5 and a pointwise convolution: the receptive field of a full one at a fraction of its cost."""
    return nn.Sequential(
        nn.Conv2d(width, width, 5, padding=2, groups=width), nn.Conv2d(width, width, 1), nn.LeakyReLU(0.2)
    )
