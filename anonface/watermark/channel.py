"""The watermark's channels: numbers in the detail of a finished face.

Recovery needs more than an anonymized face shows: the hidden code, and what the renderer cannot draw from it. Both are
written as detail of one or two grey levels, which looks like skin. Every number has a pattern, spread over all cells of
a fixed region. Readings are taken modulo a range, so the pattern that the picture already holds is not noise: only the
difference to the nearest correct reading is added (quantisation index modulation, Chen and Wornell 2001).

The *first* channel lies in the lightness, of which JPEG keeps most. The *second* and *third* have more room. They lie
in the hues, or in finer detail of a grey picture. The third holds many numbers at little amplitude, and any compression
destroys it. The *fourth* lies in the hues' finer detail, which only large colour faces have. Every channel begins with
pilots, numbers that are always the same: by them a reader finds the exact square.

The patterns are public. The numbers are encrypted beforehand (``cipher``), all but the nonce (``nonce``).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.crypto.keyed_noise import hartley
from anonface.faces.augmentation import luma

GRID, CELL = 128, 4  # px of the watermark's own grid along the side of the aligned square, and px of a cell's side
CENTRE, AXES = (0.5, 0.57), (0.27, 0.34)  # of the ellipse of the square that holds it, the inner face
PILOTS = 48  # a channel
CONTRAST = 7  # px across, within which the picture's own contrast is measured
PLAIN, BUSY = 0.4, 2.0  # least and most room, in shares of where contrast is ordinary
HIDDEN = 0.3  # of the soft mask: where less of the new face shows, nothing is written
YCBCR = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))  # JPEG's
LABEL = "anonface/v1 watermark"
VERSION = "watermark 7"  # format of channels and payloads; part of a backend's digest
EARLIER_VERSIONS: tuple[str, ...] = ("watermark 6", "watermark 5")  # their photos can still be read
LOOSE = 1e-3  # share of the usual room that counts as free everywhere
STRENGTH = 1.2  # of a written correction: resampling to the photo's grid takes part of it away


@dataclass(frozen=True)
class Channel:
    """How it is written.

    Attributes:
        range: of readings before they wrap, in grey levels of a pattern.
        least: share of the ellipse that must show; of less, nothing is written.
        varies: whether its count of numbers varies, so that a reader must try several.
    """

    name: str
    range: float
    least: float
    varies: bool = False


FIRST, SECOND = Channel("first", 7.0, 0.2), Channel("second", 8.0, 0.3)
THIRD, FOURTH = Channel("third", 4.0, 0.3, varies=True), Channel("fourth", 2.0, 0.3, varies=True)
CHANNELS = (FIRST, SECOND, THIRD, FOURTH)


@dataclass(frozen=True)
class Group:
    """Channels that share their cosines.

    Attributes:
        blocks: sets of cells, spread over the face, among which numbers are divided; each is solved for by itself.
        full: the share of visible coefficients that is used at most. More numbers disturb each other and are seen.
    """

    channels: tuple[Channel, ...]
    blocks: int
    full: float


FULL = 0.9  # the same of a grey picture, which has no fourth channel
GROUPS = Group((FIRST,), 1, FULL), Group((SECOND, THIRD), 4, 0.7), Group((FOURTH,), 4, FULL)


@dataclass(frozen=True)
class Reading:
    """Numbers of a channel: ``values`` [n] in [-1, 1), and their standard ``error``, measured on its pilots."""

    values: Tensor
    error: float


def write(picture: Tensor, mask: Tensor, *messages: Tensor | None) -> Tensor:
    """What is to be added to a finished face so that it holds these numbers.

    That is exact on the watermark's own grid. Resampling to the photo's grid takes some of it away, so writing is
    repeated on the result.

    Args:
        picture: the aligned square [1, 3, R, R] in [-1, 1].
        mask: [1, 1, R, R] in 0..1, 1 where pixels may change.
        messages: numbers [n] in [-1, 1) for each channel, in order; None or a missing one leaves a channel alone.

    Returns:
        [1, 3, GRID, GRID] in units of ``picture``; 0 where the mask is, and in a face that is mostly hidden; grey in a
        grey picture.
    """
    planes, grey = _planes(_on_grid(picture)), is_grey(picture)
    room = _room(picture, mask)
    share = _share(room)
    change = torch.zeros_like(planes)
    numbers = dict(zip(CHANNELS, messages, strict=False))
    for group in _groups(grey):
        wanted = {
            channel: torch.cat([_pilots(), values.cpu().float()])
            for channel in group.channels
            if (values := numbers.get(channel)) is not None and share >= channel.least
        }
        if wanted:
            change = change + _change(wanted, planes, room, group, grey)
    return _picture(change)


def room(channel: Channel, picture: Tensor, mask: Tensor, beside: int | None = None) -> int:
    """How many numbers a channel has room for, beside those of its group's other channel; else as :func:`write`."""
    grey = is_grey(picture)
    group = next((group for group in _groups(grey) if channel in group.channels), None)
    if group is None:
        return 0
    planes, band = _carrier(channel, grey)
    coefficients = len(planes) * int(_cells().sum()) * len(band)
    others = 0 if beside is None else PILOTS + beside
    return max(0, int((FULL if grey else group.full) * _share(_room(picture, mask)) * coefficients) - PILOTS - others)


def read(picture: Tensor, first: int, *counts: int | Sequence[int]) -> list[Reading]:
    """The numbers in a picture's channels.

    Args:
        picture: the aligned square [1, 3, R, R] in [-1, 1].
        first, counts: how many numbers each channel holds, or the possible counts: pilots tell which one it is.
    """
    grey = is_grey(picture)
    planes = _planes(_aligned(picture, grey))
    readings = []
    for channel, count in zip(CHANNELS, (first, *counts), strict=False):
        tried = [count] if isinstance(count, int) else count
        if _group(channel) in _groups(grey):
            coefficients = _coefficients(planes, channel, grey)
            each = [_reading(coefficients, channel, n, grey) for n in tried]
            readings.append(min(each, key=lambda reading: reading.error))
        else:
            readings.append(Reading(planes.new_zeros(tried[0]), 1.0))
    return readings


def _reading(coefficients: Tensor, channel: Channel, count: int, grey: bool) -> Reading:
    mixed = coefficients.new_empty(PILOTS + count)
    group = _group(channel)
    for block in range(group.blocks):
        places, mixing = _block(channel, PILOTS + count, block, grey)
        mixed[block :: group.blocks] = mixing.to(coefficients) @ coefficients[places]
    values = _wrapped(mixed, channel.range) / channel.range
    missed = _wrapped(values[:PILOTS] - _pilots().to(values), 1.0)
    return Reading(values[PILOTS:], float(missed.square().mean().sqrt()))


def without_watermark(picture: Tensor) -> Tensor:
    """A face without a watermark, or any detail that could be one, in [1, 3, GRID, GRID]: for networks that are to see
    the same before and after."""
    planes, grey = _planes(_on_grid(picture)), is_grey(picture)
    held = torch.zeros_like(planes)
    for group in _groups(grey):
        channel = group.channels[0]
        held = held + _planes_of(_coefficients(planes, channel, grey), channel, grey)
    return _picture(planes - held)


# --- Where it is read ------------------------------------------------------------------------------------------------

SURE = 0.15  # error of pilots up to which a square is accepted
# Near lattices are finer: between points half a px apart what is a third of one off is missed.
SHIFTS = (-0.6, -0.4, -0.2, 0, 0.2, 0.4, 0.6), (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)
SCALES, TURNS = (-0.012, -0.006, 0, 0.006, 0.012), (-0.01, -0.005, 0, 0.005, 0.01)
ROUNDS = 5  # of halved steps about the best of these


def _aligned(picture: Tensor, grey: bool) -> Tensor:
    """The picture on the watermark's grid, shifted (in its px), scaled and rotated (radians) until pilots fit."""
    plain = _on_grid(picture)
    places, mixing = _block(FIRST, PILOTS, 0, grey)
    mixing = mixing.to(plain)

    def errors(views: Tensor) -> Tensor:
        readings = torch.stack([mixing @ _coefficients(_planes(view[None]), FIRST, grey)[places] for view in views])
        return (1 - torch.cos(math.pi * (readings / FIRST.range - _pilots().to(readings)))).mean(1)

    sure = 1 - math.cos(math.pi * SURE)
    if float(errors(plain)) < sure:
        return plain
    fine = F.adaptive_avg_pool2d(picture, 2 * GRID) if picture.shape[-1] > 2 * GRID else picture
    found: list[tuple[float, Tensor]] = []
    for shifts in SHIFTS:
        tried = torch.cartesian_prod(*(torch.tensor(x, dtype=torch.float32) for x in (shifts, shifts, SCALES, TURNS)))
        for number in range(ROUNDS + 1):
            off = errors(_views(fine, tried))
            best = tried[int(off.argmin())]
            tried = best + 0.5**number * _NEIGHBOURS
        found.append((float(off.min()), best))
        if float(off.min()) < sure:
            break
    return _views(fine, min(found, key=lambda one: one[0])[1][None])


# Of a square (right, down, larger, turned) those a step away or none in each.
_NEIGHBOURS = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 4) * torch.tensor([0.25, 0.25, 0.003, 0.0025])


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


def _group(channel: Channel) -> Group:
    return next(group for group in GROUPS if channel in group.channels)


def _groups(grey: bool) -> tuple[Group, ...]:
    """Those that a picture has: the fourth channel's cosines are a grey one's for the second."""
    return tuple(group for group in GROUPS if not grey or FOURTH not in group.channels)


def _carrier(channel: Channel, grey: bool) -> tuple[Sequence[int], Tensor]:
    """The planes of a channel, and its cosines [p, CELL^2] in a cell of each."""
    fine = channel is FOURTH or (grey and channel is not FIRST)
    return ((0,) if grey or channel is FIRST else (1, 2)), _band(CELL // 2 + fine)


@functools.cache
def _band(number: int) -> Tensor:
    """The cosines of a cell whose higher frequency is ``number``: orthonormal, and none moves the cell's mean."""
    waves = torch.cos(torch.outer(torch.arange(CELL), torch.arange(CELL) + 0.5) * math.pi / CELL).double()
    waves /= waves.norm(dim=1, keepdim=True)
    pairs = [(a, b) for a in range(CELL) for b in range(CELL) if max(a, b) == number]
    return torch.stack([torch.outer(waves[a], waves[b]).flatten() for a, b in pairs]).float()


@functools.cache
def _pilots() -> Tensor:
    """The first numbers of every channel, [PILOTS] in [-1, 1)."""
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
    numbers, band = _carrier(channel, grey)
    cells = F.unfold(planes[list(numbers)][:, None], CELL, stride=CELL)[:, :, _cells()]
    return torch.einsum("dk,pkc->pcd", band.to(planes), cells).flatten()


def _block(channel: Channel, count: int, block: int, grey: bool) -> tuple[Tensor, Tensor]:
    """The coefficients of a block, [c], and the orthonormal patterns [n, c] of those of ``count`` numbers that are
    dealt to it; the same everywhere and always. Channels of one group share none."""
    places, basis = _patterns(_group(channel), block, grey)
    return places, basis[_assigned(channel, count, block, len(basis))]


def _assigned(channel: Channel, count: int, block: int, width: int) -> slice:
    """Which of a block's ``width`` patterns hold its part of a channel's ``count`` numbers."""
    own = len(range(block, count, _group(channel).blocks))
    return slice(width - own, width) if channel.varies else slice(own)


@functools.cache
def _patterns(group: Group, block: int, grey: bool) -> tuple[Tensor, Tensor]:
    """A block's coefficients, [c], and an orthonormal basis of them in which none stands out."""
    planes, band = _carrier(group.channels[0], grey)
    row, column = torch.nonzero(_cells().view(GRID // CELL, -1)).unbind(1)
    own = (column + 2 * row) % group.blocks == block  # neighbours fall to different ones
    places = torch.nonzero(own[None, :, None].expand(len(planes), -1, len(band)).flatten())[:, 0]
    width = len(places)
    label = f"{LABEL} {group.channels[0].name}{' grey' if grey else ''} {block}".encode()
    stream = np.frombuffer(hashlib.shake_256(label).digest(-(-width // 4)), np.uint8)
    before, after = torch.from_numpy(np.unpackbits(stream, count=2 * width) * 2.0 - 1).view(2, -1)
    return places, torch.cat([hartley(after * hartley(rows)) for rows in torch.diag(before).split(256)]).float()


def _change(wanted: Mapping[Channel, Tensor], planes: Tensor, room: Tensor, group: Group, grey: bool) -> Tensor:
    """The least change of the planes, relative to the room, by which a group's channels hold these numbers and pilots:
    [3, GRID, GRID]."""
    numbers, band = _carrier(group.channels[0], grey)
    free = room[:, None].expand(-1, len(band)).flatten().repeat(len(numbers)).square()
    coefficients = _coefficients(planes, group.channels[0], grey)
    change = torch.zeros_like(coefficients)
    for block in range(group.blocks):
        places, basis = _patterns(group, block, grey)
        basis = basis.to(planes)
        rows, missing = [], []
        for channel, values in wanted.items():
            used = _assigned(channel, len(values), block, len(basis))
            held = basis[used] @ coefficients[places]
            rows.append(used)
            own = channel.range * values[block :: group.blocks].to(held)
            missing.append(_wrapped(own - held, channel.range))
        change[places] = _least_change(basis, rows, torch.cat(missing), free[places])
    return _planes_of(change, group.channels[0], grey)


def _least_change(basis: Tensor, rows: Sequence[slice], wanted: Tensor, free: Tensor) -> Tensor:
    """The x [c] of least |x / sqrt(free)| of which rows of an orthonormal basis [c, c] measure what is ``wanted``.

    Where little is free, an error remains. x is a weighed sum of the rows, or the wanted values less a sum of the other
    rows; the shorter sum is solved for.
    """
    others = torch.ones(len(basis), dtype=torch.bool)
    for some in rows:
        others[some] = False
    used, unused = torch.cat([basis[some] for some in rows]), basis[others.to(basis.device)]
    spread = free + LOOSE * float((used.square() @ free).mean()) + 1e-9
    if len(used) < len(unused):
        return free * (torch.linalg.solve((used * spread) @ used.T, wanted) @ used)
    plain, weighed = wanted @ used, unused / spread
    return free / spread * (plain - torch.linalg.solve(weighed @ unused.T, weighed @ plain) @ unused)


def _planes_of(coefficients: Tensor, channel: Channel, grey: bool) -> Tensor:
    """Planes [3, GRID, GRID] that hold these of a channel's cosines and nothing else."""
    numbers, band = _carrier(channel, grey)
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
