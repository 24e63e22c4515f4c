"""The watermark: numbers that a finished face says beside what it shows, in detail of a few pixels.

A restored face needs more than an anonymized one shows: exactly who it stands for, and what of the original the
generator's latents need beyond that. Both are written into the finished picture as detail of a grey level or two, which
the eye takes for skin. Every number is spread over all cells of a fixed region; what the picture holds of its pattern
anyhow is no noise but counts as said, for what is read turns round at the ends as a clock does, and only the way to the
nearest right reading is added (quantisation index modulation, Chen and Wornell 2001).

The *first* channel lies in the lightness, of which JPEG keeps most. The *second* and *third* have more room and lie in
the hues, or in a grey picture in finer detail; the third says much in little, and any compression silences it. A reader
whose square lies a little off finds the right one by the channels' pilots, numbers that are always the same.

The patterns are no secret. What they say has to be made unreadable beforehand (``veil``).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.keyed_noise import hartley
from anonface.backends.looks import luma

GRID, CELL = 128, 4  # px of the watermark's own grid along the side of the aligned square, and px of a cell's side
CENTRE, AXES = (0.5, 0.57), (0.27, 0.34)  # of the ellipse of the square that says it, the inner face
PILOTS = 48  # a channel
FULL = 0.93  # of a lane's coefficients that show; more numbers in them shout each other down
CONTRAST = 7  # px across, within which the picture's own contrast is measured
PLAIN, BUSY = 0.4, 2.0  # least and most room, in shares of where contrast is ordinary
HIDDEN = 0.3  # of the soft mask: where less of the new face shows, nothing is written
YCBCR = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))  # JPEG's
LABEL = "anonface/v1 watermark"
VERSION = "watermark 3"  # of what backends say, and how; another way is another number
STRENGTH = 1.2  # by which backends write a correction: a photo's own grid takes part of it away


@dataclass(frozen=True)
class Channel:
    """How it is written.

    ``range`` is in grey levels of a pattern: how far readings go before they turn round. Where less than the share
    ``least`` of the ellipse shows, nothing is written: so little of a face would be covered with noise.
    """

    name: str
    range: float
    least: float


FIRST, SECOND, THIRD = Channel("first", 7.0, 0.2), Channel("second", 8.0, 0.3), Channel("third", 4.0, 0.3)
CHANNELS = (FIRST, SECOND, THIRD)
LANES = (FIRST,), (SECOND, THIRD)  # channels that share their cosines


@dataclass(frozen=True)
class Reading:
    """What a channel says: ``values`` [n] in [-1, 1), and their standard ``error``, which its pilots tell."""

    values: Tensor
    error: float


def write(picture: Tensor, mask: Tensor, *said: Tensor | None) -> Tensor:
    """What is to be added to a finished face for it to say these numbers.

    So it is on the watermark's own grid; a photo's grid takes some of it away, and writing what is then missing, on
    what came of it, gives it back.

    Args:
        picture: the aligned square [1, 3, R, R] in [-1, 1].
        mask: [1, 1, R, R] in 0..1, 1 where pixels may change.
        said: numbers [n] in [-1, 1) for each channel, in order; None leaves a channel alone, as one that is missing.

    Returns:
        [1, 3, GRID, GRID] in units of ``picture``; 0 where the mask is, and in a face that is mostly hidden; grey in a
        grey picture.
    """
    planes, grey = _planes(_on_grid(picture)), is_grey(picture)
    room = _room(picture, mask)
    share = _share(room)
    change = torch.zeros_like(planes)
    numbers = dict(zip(CHANNELS, said, strict=False))
    for lane in LANES:
        spoken = {c: v for c in lane if (v := numbers.get(c)) is not None and share >= c.least}
        if spoken:
            ranges = torch.cat([planes.new_full((PILOTS + len(v),), c.range) for c, v in spoken.items()])
            wanted = torch.cat([torch.cat([_pilots(), v.to("cpu", torch.float32)]) for v in spoken.values()])
            mixing = torch.cat([_mixing(c, PILOTS + len(v), grey) for c, v in spoken.items()]).to(planes)
            heard = mixing @ _coefficients(planes, lane[0], grey)
            missing = _wrapped(wanted.to(planes) * ranges - heard, ranges)
            change = change + _least(missing, mixing, room, lane[0], grey)
    return _picture(change)


def room_beside(picture: Tensor, mask: Tensor, count: int) -> int:
    """How many numbers the third channel can say where the second says ``count``; arguments as of :func:`write`."""
    coefficients = len(_patterns(SECOND, is_grey(picture)))
    return max(0, int(FULL * _share(_room(picture, mask)) * coefficients) - 2 * PILOTS - count)


def read(picture: Tensor, first: int, *counts: int | Sequence[int]) -> list[Reading]:
    """What a picture says in its channels, in which so many numbers each are looked for.

    Args:
        picture: the aligned square [1, 3, R, R] in [-1, 1].
        first, counts: numbers of each channel, or several in which there can be: pilots tell which of them it is.
    """
    grey = is_grey(picture)
    planes = _planes(_found(picture, first, grey))
    said = []
    for channel, count in zip(CHANNELS, (first, *counts), strict=False):
        heard = _coefficients(planes, channel, grey)
        tried = [_heard(heard, channel, n, grey) for n in ([count] if isinstance(count, int) else count)]
        said.append(min(tried, key=lambda reading: reading.error))
    return said


def _heard(coefficients: Tensor, channel: Channel, count: int, grey: bool) -> Reading:
    mixing = _mixing(channel, PILOTS + count, grey).to(coefficients)
    values = _wrapped(mixing @ coefficients, channel.range) / channel.range
    missed = _wrapped(values[:PILOTS] - _pilots().to(values), 1.0)
    return Reading(values[PILOTS:], float(missed.square().mean().sqrt()))


def without(picture: Tensor) -> Tensor:
    """A face without a watermark, or any detail that could be one, in [1, 3, GRID, GRID]: for networks that are to see
    the same before and after."""
    planes, grey = _planes(_on_grid(picture)), is_grey(picture)
    held = torch.zeros_like(planes)
    for lane in LANES:
        held = held + _laid(_coefficients(planes, lane[0], grey), lane[0], grey)
    return _picture(planes - held)


# --- Where it is read ------------------------------------------------------------------------------------------------

SURE = 0.15  # error of pilots up to which a square is taken as it is
SHIFTS, SCALES, TURNS = (
    (-1.5, -1, -0.5, 0, 0.5, 1, 1.5),
    (-0.012, -0.006, 0, 0.006, 0.012),
    (-0.01, -0.005, 0, 0.005, 0.01),
)
ROUNDS = 5  # of halved steps about the best of these


def _found(picture: Tensor, count: int, grey: bool) -> Tensor:
    """The picture on the watermark's grid, shifted (in its px), scaled and turned (radians) until pilots are right."""
    plain = _on_grid(picture)
    mixing = _mixing(FIRST, PILOTS + count, grey)[:PILOTS].to(plain)

    def errors(views: Tensor) -> Tensor:
        heard = torch.stack([mixing @ _coefficients(_planes(view[None]), FIRST, grey) for view in views])
        return (1 - torch.cos(math.pi * (heard / FIRST.range - _pilots().to(heard)))).mean(1)

    if float(errors(plain)) < 1 - math.cos(math.pi * SURE):
        return plain
    fine = F.adaptive_avg_pool2d(picture, 2 * GRID) if picture.shape[-1] > 2 * GRID else picture
    best = torch.zeros(4)
    lattice = torch.cartesian_prod(*(torch.tensor(x, dtype=torch.float32) for x in (SHIFTS, SHIFTS, SCALES, TURNS)))
    steps = torch.tensor([0.25, 0.25, 0.003, 0.0025])
    for number in range(ROUNDS + 1):
        tried = best + (lattice if number == 0 else 0.5 ** (number - 1) * steps * _NEIGHBOURS)
        best = tried[int(errors(_views(fine, tried)).argmin())]
    return _views(fine, best[None])


_NEIGHBOURS = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 4)


def _views(picture: Tensor, moves: Tensor) -> Tensor:
    """The picture on the grid under moves [n, 4], each (right, down, larger, turned)."""
    shift, grow = moves[:, :2] * (2 / GRID), 1 + moves[:, 2]
    cos, sin = grow * torch.cos(moves[:, 3]), grow * torch.sin(moves[:, 3])
    rows = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    views = []
    for part in rows.to(picture).split(64):
        grid = F.affine_grid(part, [len(part), 3, *picture.shape[2:]], align_corners=False)
        seen = F.grid_sample(
            picture.expand(len(part), -1, -1, -1), grid, padding_mode="reflection", align_corners=False
        )
        views.append(F.adaptive_avg_pool2d(seen, GRID))
    return torch.cat(views)


# --- Patterns --------------------------------------------------------------------------------------------------------


def _on_grid(picture: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(picture, GRID)


def _planes(picture: Tensor) -> Tensor:
    """[1, 3, S, S] in [-1, 1] -> lightness and the two hues of JPEG in grey levels, [3, S, S]."""
    return 127.5 * torch.einsum("pr,ryx->pyx", picture.new_tensor(YCBCR), picture[0])


def _picture(planes: Tensor) -> Tensor:
    return torch.einsum("rp,pyx->ryx", torch.linalg.inv(planes.new_tensor(YCBCR)), planes)[None] / 127.5


def is_grey(picture: Tensor) -> bool:
    """Whether a picture [1, 3, R, R] has no hue at all."""
    return torch.equal(picture, picture[:, :1].expand_as(picture))


def _wrapped(values: Tensor, reach: float | Tensor) -> Tensor:
    return (values + reach).remainder(2 * reach) - reach


def _where(channel: Channel, grey: bool) -> tuple[Sequence[int], Tensor]:
    """The planes of a channel, and its cosines [p, CELL^2] in a cell of each."""
    if channel is FIRST or not grey:
        return ((0,) if channel is FIRST else (1, 2)), _band(CELL // 2)
    return (0,), _band(CELL // 2 + 1)


@functools.cache
def _band(number: int) -> Tensor:
    """The cosines of a cell whose higher frequency is ``number``: orthonormal, and none moves the cell's mean."""
    waves = torch.cos(torch.outer(torch.arange(CELL), torch.arange(CELL) + 0.5) * math.pi / CELL).double()
    waves /= waves.norm(dim=1, keepdim=True)
    pairs = [(a, b) for a in range(CELL) for b in range(CELL) if max(a, b) == number]
    return torch.stack([torch.outer(waves[a], waves[b]).flatten() for a, b in pairs]).float()


@functools.cache
def _pilots() -> Tensor:
    """What the first numbers of a channel always are, [PILOTS] in [-1, 1)."""
    stream = np.frombuffer(hashlib.shake_256(f"{LABEL} pilots".encode()).digest(4 * PILOTS), "<u4")
    return torch.from_numpy((stream / 2.0**31 - 1).astype(np.float32))


@functools.cache
def _cells() -> Tensor:
    """Which of the grid's cells, in reading order, lie in the ellipse."""
    middles = (np.arange(GRID // CELL) + 0.5) / (GRID // CELL)
    x, y = np.meshgrid(middles, middles)
    inside = ((x - CENTRE[0]) / AXES[0]) ** 2 + ((y - CENTRE[1]) / AXES[1]) ** 2 <= 1
    return torch.from_numpy(inside.ravel())


def _coefficients(planes: Tensor, channel: Channel, grey: bool) -> Tensor:
    """How much of each cosine the cells hold, in grey levels: [planes x cells x cosines]."""
    numbers, band = _where(channel, grey)
    cells = F.unfold(planes[list(numbers)][:, None], CELL, stride=CELL)[:, :, _cells()]
    return torch.einsum("dk,pkc->pcd", band.to(planes), cells).flatten()


def _mixing(channel: Channel, count: int, grey: bool) -> Tensor:
    """Orthonormal patterns [count, coefficients], the same everywhere and always; channels of one lane share none."""
    lane = next(lane for lane in LANES if channel in lane)
    patterns = _patterns(lane[0], grey)
    return patterns[:count] if channel is lane[0] else patterns[-count:]


@functools.cache
def _patterns(channel: Channel, grey: bool) -> Tensor:
    """An orthonormal basis of a lane's coefficients in which none of them stands out."""
    planes, band = _where(channel, grey)
    width = len(planes) * int(_cells().sum()) * len(band)
    label = f"{LABEL} {channel.name}{' grey' if grey else ''}".encode()
    stream = np.frombuffer(hashlib.shake_256(label).digest(-(-width // 4)), np.uint8)
    before, after = torch.from_numpy(np.unpackbits(stream, count=2 * width) * 2.0 - 1).view(2, -1)
    return torch.cat([hartley(after * hartley(rows)) for rows in torch.diag(before).split(256)]).float()


def _least(missing: Tensor, mixing: Tensor, room: Tensor, channel: Channel, grey: bool) -> Tensor:
    """Of all changes of the planes that say what is missing, the least, measured against the room: [3, GRID, GRID]."""
    numbers, band = _where(channel, grey)
    free = room[:, None].expand(-1, len(band)).flatten().repeat(len(numbers)).square()
    weighed = mixing * free
    product = weighed @ mixing.T
    product.diagonal().add_(1e-3 * float(product.diagonal().mean()) + 1e-9)
    return _laid(weighed.T @ torch.linalg.solve(product, missing), channel, grey)


def _laid(coefficients: Tensor, channel: Channel, grey: bool) -> Tensor:
    """Planes [3, GRID, GRID] that hold these of a channel's cosines and nothing else."""
    numbers, band = _where(channel, grey)
    cells = coefficients.new_zeros(len(numbers), CELL * CELL, len(_cells()))
    cells[:, :, _cells()] = (coefficients.view(len(numbers), -1, len(band)) @ band.to(coefficients)).transpose(1, 2)
    planes = coefficients.new_zeros(3, GRID, GRID)
    planes[list(numbers)] = F.fold(cells, GRID, CELL, stride=CELL)[:, 0]
    return planes


def _room(picture: Tensor, mask: Tensor) -> Tensor:
    """How far each cell of the ellipse may move: the eye sees detail less where there is contrast anyway (Weber)."""
    light = luma(_on_grid(picture))
    blur = lambda x: F.avg_pool2d(x, CONTRAST, 1, CONTRAST // 2, count_include_pad=False)  # noqa: E731
    contrast = (blur(light.square()) - blur(light).square()).clamp_min(0).sqrt()
    room = (PLAIN + 4 * contrast).clamp_max(BUSY) * F.adaptive_avg_pool2d(mask * (mask > HIDDEN), GRID)
    return F.avg_pool2d(room, CELL).flatten()[_cells().to(room.device)]


def _share(room: Tensor) -> float:
    """How much of the ellipse shows."""
    return float((room > PLAIN / 2).float().mean())
