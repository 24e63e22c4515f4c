"""Face inpainter: a photo without its face, the landmarks of what was there, and an identity code -> a face of that
identity in its place, in one pass.

The network never sees the face that it replaces: only its surroundings, its landmarks as lines, and its colours in
coarse cells. So nothing but the code says who is drawn. An encoder keeps maps of the surroundings at four scales. At
every scale the decoder mixes what they say with what the identity code says, pixel by pixel, by a learned attention map
(adaptive attentional denormalisation, FaceShifter, Li et al. 2020). Convolutions see patches of pixels as one place, so
none runs at the picture's own side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LINES = 5  # maps of landmarks: outline and nose, brows, eyes, lips, irises
INPUTS = 3 + 1 + LINES  # the picture without its face, the hole, and the lines


@dataclass(frozen=True)
class InpainterParams:
    """``side`` of the pictures and of ``patch``es in px, ``widths`` in channels at the side in patches, its half, ...

    Raises:
        ValueError: the side in patches cannot be halved so often.
    """

    side: int = 128
    patch: int = 2
    widths: tuple[int, ...] = (48, 96, 160, 256)
    code: int = 448
    hidden: int = 320

    def __post_init__(self) -> None:
        if self.side % (self.patch * 2 ** (len(self.widths) - 1)):
            raise ValueError(f"side {self.side} is no multiple of patches of {self.patch} px, halved with every width")


def params_of(tensors: Mapping[str, Tensor]) -> InpainterParams:
    """The sizes of the network that these tensors are of: the default one, or that for twice the side."""
    params = InpainterParams()
    stem = tensors.get("stem.weight")
    larger = stem is not None and stem.shape[1:2] == ((2 * params.patch) ** 2 * INPUTS,)
    return replace(params, side=2 * params.side, patch=2 * params.patch) if larger else params


class Inpainter(nn.Module):
    """Inputs [B, INPUTS, side, side] and identity codes [B, code] of unit length -> pictures [B, 3, side, side], about
    -1 to 1."""

    def __init__(self, params: InpainterParams | None = None) -> None:
        super().__init__()
        p = self.params = params or InpainterParams()
        widths = p.widths
        self.stem = nn.Conv2d(p.patch**2 * INPUTS, widths[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(widths))
        self.see = nn.ModuleList(_Residual(width) for width in widths[1:-1])
        self.identity = nn.Sequential(
            nn.Linear(p.code, p.hidden), nn.LeakyReLU(0.2), nn.Linear(p.hidden, p.hidden), nn.LeakyReLU(0.2)
        )
        self.bottom = nn.ModuleList(_Mixing(widths[-1], p.hidden) for _ in range(2))
        self.up = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in pairwise(widths))
        self.mix = nn.ModuleList(_Mixing(width, p.hidden) for width in widths[:-1])
        self.paint = nn.Conv2d(widths[0], 3 * p.patch**2, 3, padding=1)

    def forward(self, inputs: Tensor, codes: Tensor) -> Tensor:
        style = self.identity(self.params.code**0.5 * codes)  # coordinates of about unit variance
        x = F.pixel_unshuffle(inputs, self.params.patch).contiguous(memory_format=torch.channels_last)
        seen = [self.stem(x)]
        for level, down in enumerate(self.down):
            x = down(F.leaky_relu(seen[-1], 0.2))
            seen.append(self.see[level](x) if level < len(self.see) else x)
        x = seen[-1]
        for mix in self.bottom:
            x = mix(x, seen[-1], style)
        for level in reversed(range(len(self.up))):
            x = self.up[level](F.interpolate(x, scale_factor=2, mode="nearest"))
            x = self.mix[level](x, seen[level], style)
        return F.pixel_shuffle(self.paint(F.leaky_relu(x, 0.2)), self.params.patch)


def enlarged(inpainter: Inpainter) -> Inpainter:
    """An inpainter for pictures of twice the side, in patches of twice the side: a start for training.

    It draws what the smaller one draws, each pixel as four, of pictures that it sees averaged over four pixels.
    """
    p = inpainter.params
    larger = Inpainter(replace(p, side=2 * p.side, patch=2 * p.patch))
    state = dict(inpainter.state_dict())
    state["stem.weight"] = averaging(state["stem.weight"], p.patch)
    for name in ("paint.weight", "paint.bias"):
        state[name] = _finer(state[name], p.patch)
    larger.load_state_dict(state)
    return larger


def averaging(weight: Tensor, patch: int) -> Tensor:
    """Weights over patches -> the same over patches of twice the side, whose pixels it averages by fours."""
    return _finer(weight.transpose(0, 1), patch).transpose(0, 1) / 4


def _finer(rows: Tensor, patch: int) -> Tensor:
    """Rows [C * patch * patch, ...] of one place each -> rows of four places each."""
    places = rows.unflatten(0, (-1, patch, patch))
    return places.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(0, 2)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(F.leaky_relu(F.instance_norm(x), 0.2))
        return x + self.second(F.leaky_relu(F.instance_norm(y), 0.2))


class _Mixing(nn.Module):
    """A residual block whose first normalisation is undone by the surroundings' map or by the identity, as its own map
    says; the second one by the identity alone."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.photo = nn.Conv2d(width, 2 * width, 1)
        self.attend = nn.Conv2d(2 * width, 1, 1)
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
