"""How optimisations look at faces."""

from itertools import pairwise

import torch
import torch.nn.functional as F

from anonface.faces.augmentation import augmented, luma, schedule, shrink


def picture(side: int = 64) -> torch.Tensor:
    cells = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return F.interpolate(cells, (side, side), mode="bicubic")


def test_still_and_jittered_looks_take_turns():
    looks = [augmented(picture(), step) for step in range(4)]
    assert all(seen.shape == (1, 3, 64, 64) for seen in looks)
    assert torch.equal(looks[0], picture()) and torch.equal(looks[2], picture())
    differences = [float((looks[a] - looks[b]).abs().mean()) for a, b in ((0, 1), (0, 3), (1, 3))]
    assert min(differences) > 0.003
    assert torch.equal(looks[1], augmented(picture(), 1))


def test_light_and_size():
    grey = torch.full((1, 3, 8, 8), 0.25)
    assert torch.allclose(luma(grey), grey[:, :1])
    assert luma(torch.tensor([0.0, 1.0, 0.0])[None, :, None, None]).item() > 0.5
    assert shrink(grey, 8) is grey and shrink(picture(), 16).shape == (1, 3, 16, 16)


def test_the_rate_rises_then_falls():
    rates = [schedule(step / 30) for step in range(30)]
    assert rates[0] < 0.3 and max(rates) <= 1.0 and rates[-1] < 0.15
    assert all(a >= b for a, b in pairwise(rates[4:]))
