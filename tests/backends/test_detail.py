"""The detail that latents leave open."""

import pytest
import torch
import torch.nn.functional as F

from anonface.backends import detail, watermark
from anonface.backends.watermark import Reading
from anonface.keys import Key

WAVES = detail.Waves((27, 32), (8, 9))


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
    numbers = detail.measured(picture, mask, WAVES, grey)
    assert numbers.shape == (detail.count(WAVES, grey),)
    left = (picture - detail.drawn(numbers, side, WAVES, grey)) * mask
    assert left.square().mean() < 0.15 * (picture * mask).square().mean()


def test_what_is_too_fine_is_left_alone():
    noise = torch.randn(1, 3, 256, 256, generator=torch.Generator().manual_seed(2))
    again = detail.drawn(detail.measured(noise, oval(256), WAVES, False), 256, WAVES, False)
    assert again.square().mean() < 0.05


def test_a_grey_face_has_no_hues():
    again = detail.drawn(torch.ones(detail.count(WAVES, True)), 256, WAVES, True)
    assert (again - again[:, :1]).abs().max() < 1e-5
    assert detail.count(WAVES, True) < detail.count(WAVES, False)


KEY, OTHER = (Key(bytes([n]) * 32).face(bytes(16), "ifadit", 0) for n in (1, 2))


def face(grey: bool, side: int = 256) -> torch.Tensor:
    return missing(side, grey, 24).expand(-1, 3, -1, -1) * 2


@pytest.mark.parametrize("grey", [False, True])
def test_the_more_of_a_face_shows_the_more_is_said(grey):
    shown, lacking = face(grey), missing(256, grey)
    told = {}
    for rows in (256, 190, 160, 110):
        mask = torch.ones(1, 1, 256, 256)
        mask[:, :, rows:] = 0
        said = detail.told(lacking, shown, mask, 600, KEY)
        told[rows] = 0 if said is None else len(said)
        assert told[rows] <= watermark.room_beside(shown, mask, 600)
    assert told[256] > told[190] > told[160] > told[110] == 0
    assert {*told.values()} <= {0, *detail.lengths(grey)}


@pytest.mark.parametrize("size", range(len(detail.SIZES)))
def test_however_much_is_said_it_is_heard_under_the_key_alone(size, monkeypatch):
    monkeypatch.setattr(watermark, "room_beside", lambda *_: detail.lengths(False)[size])
    lacking, mask = missing(256, False), oval(256)
    said = detail.told(lacking, face(False), mask, 0, KEY)
    assert said is not None and len(said) == detail.lengths(False)[size]
    heard = detail.heard(Reading(said, 0.0), 256, False, KEY)
    assert heard is not None and ((lacking - heard) * mask).square().mean() < 0.2 * (lacking * mask).square().mean()
    assert detail.heard(Reading(said, 0.0), 256, False, OTHER) is None


def test_sizes_fall_and_no_two_are_as_long():
    for grey in (False, True):
        lengths = detail.lengths(grey)
        assert lengths == sorted(set(lengths), reverse=True)
