"""The detail that latents leave open."""

import pytest
import torch
import torch.nn.functional as F

from anonface.backends import detail

WAVES = detail.Waves()


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
