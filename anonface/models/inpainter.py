"""Face inpainter: a photo without its face, the landmarks of what was there, and an identity code -> a face of that
identity in its place, in one pass.

The network never sees the face that it replaces: only its surroundings, its landmarks, and its colours in coarse cells.
So nothing but the code says who is drawn. StyleGAN's generator draws, as in co-modulated inpainting (Zhao et al. 2021):
a style that code, landmarks and colours name modulates its layers, and maps of the surroundings scale and shift its
features at every resolution (spatial feature transform, GFP-GAN, Wang et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.mobile_stylegan import EarlyHead, Level, MobileStyleGAN, StyledConv

LINES = 5  # maps of landmarks: outline and nose, brows, eyes, lips, irises
INPUTS = 3 + 1 + LINES  # the picture without its face, the hole, and the lines
POINTS = 468  # landmarks
COLOURS = 12  # cells along the side whose colours the style sees
HEAD_HIDDEN = 96  # channels of the generator's head
DRAWING = ("input", "conv1.", "layers.")  # beginnings of the names of the generator's tensors


@dataclass(frozen=True)
class InpainterParams:
    """``side`` of the pictures in px; ``channels`` of the generator after each level, of 8 px, 16 px, ... side / 2.

    ``widths`` are the encoder's channels at 64 px, 32 px, ... 4 px, ``mid`` those of the injections.

    Raises:
        ValueError: the number of levels does not match the side.
    """

    side: int = 128
    channels: tuple[int, ...] = (512, 512, 512, 512)
    widths: tuple[int, ...] = (48, 96, 160, 192, 256)
    base: int = 512
    style: int = 512
    code: int = 448
    hidden: int = 384
    offsets: int = 64
    mid: int = 64

    def __post_init__(self) -> None:
        if self.side != 8 * 2 ** len(self.channels):
            raise ValueError(f"{len(self.channels)} levels do not end at {self.side} px")

    @property
    def latents(self) -> int:
        return 3 * len(self.channels) + 2

    @property
    def told(self) -> int:
        """Numbers that the style is a function of."""
        return self.code + 2 * POINTS + 3 * COLOURS**2


LARGE = replace(InpainterParams(), side=256, channels=(512, 512, 512, 512, 256))


def params_of(tensors: Mapping[str, Tensor]) -> InpainterParams:
    """The sizes of the network that these tensors are of: those for 256 px or for 128 px."""
    return LARGE if "fine.weight" in tensors else InpainterParams()


class Inpainter(nn.Module):
    """Inputs [B, INPUTS, side, side], landmarks [B, 468, 2] in shares of the side and identity codes [B, code] of unit
    length -> pictures [B, 3, side, side], about -1 to 1."""

    mean_mesh: Tensor

    def __init__(self, params: InpainterParams | None = None) -> None:
        super().__init__()
        p = self.params = params or InpainterParams()
        # the generator, with its own names
        self.input = nn.Parameter(torch.zeros(1, p.base, 4, 4))
        self.conv1 = StyledConv(p.style, p.base, p.base, 4, full=True)
        widths = (p.base, *p.channels)
        self.layers = nn.ModuleList(Level(p.style, widths[i], widths[i + 1], 8 * 2**i) for i in range(len(p.channels)))
        self.head = EarlyHead(p.style, p.channels[-1], HEAD_HIDDEN)
        # the style
        self.register_buffer("mean_mesh", torch.full((POINTS, 2), 0.5))
        self.linear = nn.Linear(p.told, p.style)
        self.network = nn.Sequential(
            nn.Linear(p.told, p.hidden), nn.LeakyReLU(0.2), nn.Linear(p.hidden, p.hidden), nn.LeakyReLU(0.2)
        )
        self.style = nn.Linear(p.hidden, p.style)
        self.offsets = nn.Sequential(nn.Linear(p.hidden, p.offsets), nn.Linear(p.offsets, p.latents * p.style))
        # the surroundings
        patch = p.side // 64
        self.stem = nn.Conv2d(INPUTS * patch**2, p.widths[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(p.widths))
        self.see = nn.ModuleList(_Residual(width) for width in p.widths[1:])
        self.inject = nn.ModuleList(Injection(widths[i] // 4, width, p.mid) for i, width in enumerate(p.widths[-2::-1]))
        self.fine = nn.Conv2d(INPUTS * 4, 32, 3, padding=1) if p.side > 128 else None
        if self.fine is not None:
            self.inject.append(Injection(widths[4] // 4, 32, p.mid))
        for last in (self.style, self.offsets[-1]):
            _zero(last)

    def told(self, inputs: Tensor, mesh: Tensor, codes: Tensor) -> Tensor:
        """What the style is a function of: code, landmarks and coarse colours, of about unit variance; [B, told]."""
        colours = F.adaptive_avg_pool2d(inputs[:, :3], COLOURS).flatten(1)
        points = 30 * (mesh - self.mean_mesh).flatten(1)
        return torch.cat([self.params.code**0.5 * codes, points, 2 * colours], 1)

    def styles(self, told: Tensor) -> tuple[Tensor, Tensor]:
        """The style [B, style] and the offsets of every layer [B, latents, style] from it."""
        hidden = self.network(told)
        offsets = self.offsets(hidden).unflatten(1, (self.params.latents, -1))
        return self.linear(told / self.params.told**0.5) + self.style(hidden), offsets

    def forward(self, inputs: Tensor, mesh: Tensor, codes: Tensor) -> Tensor:
        style, offsets = self.styles(self.told(inputs, mesh, codes))
        return self.draw(inputs, style[:, None] + offsets)

    def draw(self, inputs: Tensor, w: Tensor) -> Tensor:
        """The picture of latents [B, latents, style] in these surroundings."""
        return self.head(self.features(inputs, w), w[:, -1])

    def features(self, inputs: Tensor, w: Tensor) -> Tensor:
        """The generator's features after the last level, [B, channels, side / 2, side / 2]."""
        seen = self._seen(inputs)
        x = self.conv1(self.input.expand(len(w), -1, -1, -1), w[:, 0])
        for i, (level, inject) in enumerate(zip(self.layers, self.inject, strict=True)):
            assert isinstance(level, Level)
            x = inject(level.up(x, w[:, 1 + 3 * i]), seen[i])
            x = level.conv2(level.conv1(x, w[:, 2 + 3 * i]), w[:, 3 + 3 * i])
        return x

    def _seen(self, inputs: Tensor) -> list[Tensor]:
        """Maps of the surroundings at 8 px, 16 px, ... as wide as each level's."""
        patch = self.params.side // 64
        x = self.stem(F.pixel_unshuffle(inputs, patch).contiguous(memory_format=torch.channels_last))
        maps = [x]
        for down, see in zip(self.down, self.see, strict=True):
            x = see(down(F.leaky_relu(x, 0.2)))
            maps.append(x)
        bottom = F.interpolate(maps.pop(), scale_factor=2, mode="nearest")
        maps[-1] = maps[-1] + bottom[:, : maps[-1].shape[1]]
        maps.reverse()
        if self.fine is not None:
            maps.append(self.fine(F.pixel_unshuffle(inputs, 2).contiguous(memory_format=torch.channels_last)))
        return maps

    @torch.no_grad()
    def start_from(self, generator: MobileStyleGAN) -> None:
        """Take the generator's layers, and its head where it has one of this side; the mean style is the bias."""
        own = self.state_dict()
        parts = {name: value for name, value in generator.state_dict().items() if name in own}
        head = f"heads.{self.params.side}."
        parts.update({f"head.{n[len(head) :]}": v for n, v in generator.state_dict().items() if n.startswith(head)})
        self.load_state_dict(parts, strict=False)

    @torch.no_grad()
    def start_larger_from(self, smaller: Inpainter, generator: MobileStyleGAN) -> None:
        """Begin as an inpainter for half the side; the last level and the head are the generator's.

        The encoder sees averages of four pixels; what sees single ones adds nothing yet.
        """
        self.start_from(generator)
        state = smaller.state_dict()
        own = self.state_dict()
        parts = {name: value for name, value in state.items() if not name.startswith("head.")}
        patch = smaller.params.side // 64
        rows = state["stem.weight"].transpose(0, 1).unflatten(0, (-1, patch, patch))
        parts["stem.weight"] = rows.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(0, 2).transpose(0, 1) / 4
        for name in ("offsets.1.weight", "offsets.1.bias"):  # the last latent, the head's, becomes the last level's
            value = state[name].unflatten(0, (smaller.params.latents, -1))
            added = self.params.latents - smaller.params.latents
            parts[name] = torch.cat([value, value[-1:].expand(added, *value.shape[1:])]).flatten(0, 1)
        self.load_state_dict({**own, **parts})

    def drawing(self) -> list[nn.Parameter]:
        """The parameters that are the generator's, and stay as they are."""
        return [parameter for name, parameter in self.named_parameters() if name.startswith(DRAWING)]

    def steering(self) -> dict[str, Tensor]:
        """The tensors that are not the generator's: all that training changes."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith(DRAWING)}


def _zero(layer: nn.Module) -> None:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(F.leaky_relu(F.instance_norm(x) if x.shape[-1] > 4 else x, 0.2))
        return x + self.second(F.leaky_relu(y, 0.2)) / math.sqrt(2)


class Injection(nn.Module):
    """Scales and shifts features by what they and the surroundings' map say, pixel by pixel; at first it does
    nothing."""

    def __init__(self, channels: int, seen: int, mid: int) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.ones(()))  # of the features, for both to count alike
        self.look = nn.Sequential(
            nn.Conv2d(channels + seen, mid, 1), nn.LeakyReLU(0.2), nn.Conv2d(mid, mid, 3, padding=1), nn.LeakyReLU(0.2)
        )
        self.turn = nn.Conv2d(mid, 2 * channels, 1)
        _zero(self.turn)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        y = self.look(torch.cat([x / self.size, F.leaky_relu(seen, 0.2)], 1))
        gain, shift = self.turn(y).chunk(2, 1)
        return x * (1 + gain) + shift * self.size
