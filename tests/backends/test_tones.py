"""The photo's light on a render."""

import torch

from anonface.backends.tones import match_tones


def test_a_grey_photo_makes_its_face_grey_and_a_coloured_one_does_not():
    rng = torch.Generator().manual_seed(1)
    mask = torch.ones(1, 1, 64, 64)
    render = torch.rand(1, 3, 64, 64, generator=rng) - 0.5
    grey = (torch.rand(1, 1, 64, 64, generator=rng) - 0.5).expand(1, 3, 64, 64)
    hues = lambda picture: float((picture.amax(1) - picture.amin(1)).mean())  # noqa: E731
    assert hues(render) > 0.2 and hues(match_tones(render, grey, mask)) < 0.01
    coloured = torch.rand(1, 3, 64, 64, generator=rng) - 0.5
    assert hues(match_tones(render, coloured, mask)) > 0.2


def test_a_tint_is_kept():
    rng = torch.Generator().manual_seed(2)
    mask = torch.ones(1, 1, 64, 64)
    tint = torch.tensor([0.2, 0.0, -0.2])[None, :, None, None]
    sepia = (torch.rand(1, 1, 64, 64, generator=rng) - 0.5) + tint
    toned = match_tones(torch.rand(1, 3, 64, 64, generator=rng) - 0.5, sepia, mask)
    luma = (toned * toned.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    expected = (tint * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    assert torch.allclose((toned - luma).mean((2, 3)), (tint - expected).mean((2, 3)), atol=0.02)
