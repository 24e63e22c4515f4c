"""Face translator: an aligned photo and an identity code -> the same photo with the face of that identity, in one pass.

An encoder keeps maps of what the photo shows at four scales. The decoder starts from the coarsest and at every scale
but the finest mixes what the photo says with what the identity code says, pixel by pixel, by a learned attention map
(adaptive attentional denormalisation, FaceShifter, Li et al. 2020). The finest scale follows the identity alone: with
the photo's own map there the network learns to copy it. All convolutions run at half the picture's side or less.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PERSON_FIRST = 2.0  # logit of the identity's share before training: a start at the photo's side learns to copy


@dataclass(frozen=True)
class TranslatorParams:
    """``side`` of the pictures in px, ``widths`` in channels at a half, a quarter, ... of it.

    Raises:
        ValueError: the side cannot be halved so often.
    """

    side: int = 128
    widths: tuple[int, ...] = (48, 96, 160, 256)
    code: int = 448
    hidden: int = 320

    def __post_init__(self) -> None:
        if self.side % 2 ** len(self.widths):
            raise ValueError(f"side {self.side} cannot be halved {len(self.widths)} times")


class Translator(nn.Module):
    """Pictures [B, 3, side, side] in [-1, 1] and identity codes [B, code] of unit length -> pictures, not clamped."""

    def __init__(self, params: TranslatorParams | None = None) -> None:
        super().__init__()
        p = self.params = params or TranslatorParams()
        widths = p.widths
        self.stem = nn.Conv2d(12, widths[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(widths))
        self.see = nn.ModuleList(_Residual(width) for width in widths[1:-1])
        self.identity = nn.Sequential(
            nn.Linear(p.code, p.hidden), nn.LeakyReLU(0.2), nn.Linear(p.hidden, p.hidden), nn.LeakyReLU(0.2)
        )
        self.bottom = nn.ModuleList(_Mixing(widths[-1], p.hidden) for _ in range(2))
        self.up = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in pairwise(widths))
        self.mix = nn.ModuleList(_Mixing(width, p.hidden) for width in widths[1:-1])
        self.finish = _Styled(widths[0], p.hidden)
        self.paint = nn.Conv2d(widths[0], 12, 3, padding=1)

    def forward(self, pictures: Tensor, codes: Tensor) -> Tensor:
        scale = self.params.code**0.5  # coordinates of about unit variance
        style = self.identity(scale * codes)
        x = F.pixel_unshuffle(pictures, 2).contiguous(memory_format=torch.channels_last)
        seen = [self.stem(x)]
        for level, down in enumerate(self.down):
            x = down(F.leaky_relu(seen[-1], 0.2))
            seen.append(self.see[level](x) if level < len(self.see) else x)
        x = seen[-1]
        for mix in self.bottom:
            x = mix(x, seen[-1], style)
        for level in reversed(range(len(self.up))):
            x = self.up[level](F.interpolate(x, scale_factor=2, mode="nearest"))
            x = self.mix[level - 1](x, seen[level], style) if level else self.finish(x, style)
        return F.pixel_shuffle(self.paint(F.leaky_relu(x, 0.2)), 2)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(F.leaky_relu(F.instance_norm(x), 0.2))
        return x + self.second(F.leaky_relu(F.instance_norm(y), 0.2))


class _Styled(nn.Module):
    """A residual block whose normalisations the identity undoes."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.style = nn.Linear(hidden, 4 * width)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gain, shift, later_gain, later_shift = self.style(style)[..., None, None].chunk(4, 1)
        y = self.first(F.leaky_relu(F.instance_norm(x) * (1 + gain) + shift, 0.2))
        return x + self.second(F.leaky_relu(F.instance_norm(y) * (1 + later_gain) + later_shift, 0.2))


class _Mixing(nn.Module):
    """A residual block whose first normalisation is undone by the photo's map or by the identity, as its own map says;
    the second one by the identity alone."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.photo = nn.Conv2d(width, 2 * width, 1)
        self.attend = nn.Conv2d(2 * width, 1, 1)
        nn.init.constant_(self.attend.bias, PERSON_FIRST)  # type: ignore[arg-type]
        self.style = nn.Linear(hidden, 4 * width)

    def forward(self, x: Tensor, seen: Tensor, style: Tensor) -> Tensor:
        gain, shift, later_gain, later_shift = self.style(style)[..., None, None].chunk(4, 1)
        plain = F.instance_norm(x)
        photo_gain, photo_shift = self.photo(seen).chunk(2, 1)
        share = self.attend(torch.cat([plain, seen], 1)).sigmoid()
        photo = plain * photo_gain + photo_shift
        person = plain * (1 + gain) + shift
        y = self.first(F.leaky_relu(torch.lerp(photo, person, share), 0.2))
        y = F.instance_norm(y) * (1 + later_gain) + later_shift
        return x + self.second(F.leaky_relu(y, 0.2))


class PatchDiscriminator(nn.Module):
    """Pictures [B, 3, S, S] -> logits [B, 1, S / 16, S / 16], high where a patch looks like a photograph."""

    def __init__(self, widths: tuple[int, ...] = (48, 96, 160, 224)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(12, widths[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in pairwise(widths))
        self.judge = nn.Conv2d(widths[-1], 1, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.stem(F.pixel_unshuffle(pictures, 2).contiguous(memory_format=torch.channels_last))
        for down in self.down:
            x = down(F.leaky_relu(x, 0.2))
        return self.judge(F.leaky_relu(x, 0.2))
