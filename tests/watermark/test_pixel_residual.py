"""The detail that latents leave open."""

import pytest
import torch
import torch.nn.functional as F

from anonface.crypto.keys import Key
from anonface.watermark import channel, pixel_residual
from anonface.watermark.channel import Reading

SLOWEST = 800  # waves


def missing(side: int, grey: bool, cells: int = 9) -> torch.Tensor:
    coarse = 0.2 * torch.randn(1, 1 if grey else 3, cells, cells, generator=torch.Generator().manual_seed(1))
    return F.interpolate(coarse, (side, side), mode="bicubic", align_corners=False).expand(-1, 3, -1, -1)


def oval(side: int) -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")
    return ((((x - 0.5) / 0.26) ** 2 + ((y - 0.57) / 0.33) ** 2) < 1).float()[None, None]


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("side", [256, 512])
def test_slow_waves_come_back_where_the_mask_is(side, grey):
    picture, mask = missing(side, grey), oval(side)
    numbers = pixel_residual.measure(picture, mask, SLOWEST, grey)
    assert numbers.shape == (SLOWEST,)
    left = (picture - pixel_residual.picture_of(numbers, side, grey)) * mask
    assert left.square().mean() < 0.15 * (picture * mask).square().mean()


def test_the_more_waves_the_finer_and_what_is_too_fine_is_left_alone():
    noise, mask = torch.randn(1, 3, 256, 256, generator=torch.Generator().manual_seed(2)), oval(256)
    drawn = [
        pixel_residual.picture_of(pixel_residual.measure(noise, mask, count, False), 256, False)
        for count in (SLOWEST, 5000)
    ]
    left = [((noise - picture) * mask).square().mean() / (noise * mask).square().mean() for picture in drawn]
    assert drawn[0].square().mean() < 0.05 and 0.5 < left[1] < 0.97 * left[0]


def test_waves_fade_beyond_their_box_without_an_edge(monkeypatch):
    grid, (left, top) = (
        pixel_residual.GRID,
        (round(start * pixel_residual.GRID) for start in (pixel_residual.LEFT, pixel_residual.TOP)),
    )
    right, bottom = (
        round((pixel_residual.LEFT + pixel_residual.WIDTH) * grid),
        round((pixel_residual.TOP + pixel_residual.HEIGHT) * grid),
    )
    numbers = torch.ones(SLOWEST)  # of one sign: they are largest in the upper left corner
    fading = pixel_residual.picture_of(numbers, grid, True)[0, 0]
    monkeypatch.setattr(pixel_residual, "FADING", 0.0)
    cut = pixel_residual.picture_of(numbers, grid, True)[0, 0]
    assert torch.allclose(fading[top:bottom, left:right], cut[top:bottom, left:right], atol=1e-6)
    assert not cut[: top - 1].any() and not fading[: top - 12].any() and not fading[:, right + 12 :].any()
    edges = [
        max(
            float(shown[top - 3 : top + 3].diff(dim=0).abs().max()),
            float(shown[:, left - 3 : left + 3].diff().abs().max()),
        )
        for shown in (fading, cut)
    ]
    assert edges[0] < 0.3 * edges[1]


def test_a_grey_face_has_no_hues():
    again = pixel_residual.picture_of(torch.ones(SLOWEST), 256, True)
    assert (again - again[:, :1]).abs().max() < 1e-5
    colourful = pixel_residual.picture_of(torch.ones(SLOWEST), 256, False)
    assert (colourful - colourful[:, :1]).abs().max() > 0.1


KEY, OTHER = (Key(bytes([n]) * 32).face(bytes(16), "ifadit", 0).payload(bytes(8)) for n in (1, 2))


def face(grey: bool, side: int = 256) -> torch.Tensor:
    return missing(side, grey, 24).expand(-1, 3, -1, -1) * 2


@pytest.mark.parametrize("grey", [False, True])
def test_the_more_of_a_face_shows_the_more_is_said(grey):
    shown, lacking = face(grey), missing(256, grey)
    decoded = {}
    for rows in (256, 190, 160, 110):
        mask = torch.ones(1, 1, 256, 256)
        mask[:, :, rows:] = 0
        said = pixel_residual.encode(lacking, shown, mask, 600, KEY)
        decoded[rows] = [0 if values is None else len(values) for values in said]
        assert decoded[rows][0] <= channel.room(channel.THIRD, shown, mask, 600)
        assert decoded[rows][1] <= channel.room(channel.FOURTH, shown, mask)
    slow, fine = zip(*decoded.values(), strict=True)
    assert slow[0] > slow[1] > slow[2] > slow[3] == 0
    assert not any(fine) if grey else fine[0] > fine[1] > fine[2] > fine[3] == 0
    assert all({*many} <= {0, *known} for many, known in zip((slow, fine), pixel_residual.lengths(), strict=True))


def told_with(rooms: dict[channel.Channel, int], lacking: torch.Tensor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel, "room", lambda channel, *_: rooms[channel])
    return pixel_residual.encode(lacking, face(False), oval(256), 0, KEY)


@pytest.mark.parametrize("size", range(len(pixel_residual.SLOW.counts)))
def test_however_much_is_said_it_is_heard_under_the_key_alone(size, monkeypatch):
    slow, fine = (many[min(size, len(many) - 1)] for many in pixel_residual.lengths())
    lacking, mask = missing(256, False, 24), oval(256)

    def left(*said: Reading) -> float:
        heard = pixel_residual.decode(said, 256, False, KEY)
        assert heard is not None
        return float(((lacking - heard) * mask).square().mean() / (lacking * mask).square().mean())

    both = told_with({channel.THIRD: slow, channel.FOURTH: fine}, lacking, monkeypatch)
    first, second = (Reading(values, 0.0) for values in both)
    assert (len(first.values), len(second.values)) == (slow, fine)
    illegible = Reading(second.values, 0.5)
    assert left(first, second) < 0.8 * left(first, illegible)
    assert pixel_residual.decode((first, second), 256, False, OTHER) is None
    assert pixel_residual.decode((Reading(first.values, 0.5), second), 256, False, KEY) is None
    if size == 0:
        assert left(first, second) < 0.1
    lacking = missing(256, False)
    both = told_with({channel.THIRD: slow, channel.FOURTH: fine}, lacking, monkeypatch)
    assert left(*(Reading(values, 0.0) for values in both)) < 0.2


def test_what_has_no_room_for_slow_waves_says_no_fine_ones(monkeypatch):
    assert told_with({channel.THIRD: 100, channel.FOURTH: 4000}, missing(256, False), monkeypatch) == (None, None)


def test_numbers_of_waves_fall_and_no_two_are_alike():
    for many in pixel_residual.lengths():
        assert many == sorted(set(many), reverse=True)


@pytest.mark.parametrize("grey", [False, True])
def test_there_are_waves_for_all_that_can_be_said(grey):
    most = sum(part.counts[0] for part in pixel_residual.PARTS[: 1 if grey else 2])
    assert pixel_residual.picture_of(torch.ones(most), 64, grey).isfinite().all()
