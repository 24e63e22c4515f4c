"""How optimisations look at faces."""

from itertools import pairwise

import torch
import torch.nn.functional as F

from anonface.backends.looks import luma, schedule, shrink, views

PLAIN = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
QUARTER = torch.tensor([[[0.5, 0, -0.5], [0, 0.5, -0.5]]])  # the upper left quarter


def picture(side: int = 64) -> torch.Tensor:
    cells = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return F.interpolate(cells, (side, side), mode="bicubic")


def test_the_first_look_is_the_picture_and_the_others_differ_step_by_step():
    looks, later = (views(picture(), step, 3) for step in (0, 1))
    assert looks.shape == (3, 3, 64, 64) and torch.equal(looks[:1], picture())
    differences = [
        float((a - b).abs().mean()) for a, b in ((looks[0], looks[1]), (looks[1], looks[2]), (looks[1], later[1]))
    ]
    assert min(differences) > 0.003
    assert torch.equal(looks, views(picture(), 0, 3))


def test_a_frame_is_where_one_looks():
    framed = views(picture(), 0, 1, QUARTER)
    quarter = F.interpolate(picture()[:, :, :32, :32], (64, 64), mode="bilinear")
    assert (framed - quarter)[:, :, 2:-2, 2:-2].abs().max() < 0.02
    assert torch.allclose(views(picture(), 3, 2, PLAIN), views(picture(), 3, 2), atol=1e-4)


def test_jitter_is_smaller_in_a_smaller_frame():
    whole, part = ((lambda v: (v[0] - v[1]).abs().mean())(views(picture(), 0, 2, f)) for f in (PLAIN, QUARTER))
    assert 0 < part < whole


def test_light_and_size():
    grey = torch.full((1, 3, 8, 8), 0.25)
    assert torch.allclose(luma(grey), grey[:, :1])
    assert luma(torch.tensor([0.0, 1.0, 0.0])[None, :, None, None]).item() > 0.5
    assert shrink(grey, 8) is grey and shrink(picture(), 16).shape == (1, 3, 16, 16)


def test_the_rate_rises_then_falls():
    rates = [schedule(step / 30) for step in range(30)]
    assert rates[0] < 0.3 and max(rates) <= 1.0 and rates[-1] < 0.15
    assert all(a >= b for a, b in pairwise(rates[4:]))
