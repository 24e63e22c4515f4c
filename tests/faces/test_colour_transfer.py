"""The photo's light on a render."""

import pytest
import torch

from anonface.faces.colour_transfer import match_contrast, match_tones


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


def test_hues_vary_no_more_than_the_photos_and_no_less_than_they_do():
    mask = torch.ones(1, 1, 256, 256)
    red = torch.tensor([0.3, 0.0, -0.3])[None, :, None, None]
    blot = torch.zeros(1, 1, 256, 256)
    blot[..., 96:112, 96:112], blot[..., 96:112, 112:128] = 1, -1  # finer than the blur, coarser than a watermark
    vivid, pale = blot * red, 0.25 * blot * red
    height = lambda picture: float((picture[:, 0] - picture[:, 2])[:, 100:108, 100:108].mean())  # noqa: E731
    assert height(match_tones(vivid, pale, mask)) == pytest.approx(height(pale), rel=0.1)
    assert height(match_tones(pale, vivid, mask)) == pytest.approx(height(pale), rel=0.1)  # none are added
    assert height(match_tones(vivid, vivid, mask)) == pytest.approx(height(vivid), rel=0.1)
    # waves of 4 px, as a watermark's, make no photo colourful
    wave = 0.2 * (torch.arange(256) % 4 < 2).float().sub(0.5)[None, None, None] * red
    assert height(match_tones(vivid, pale + wave, mask)) == pytest.approx(height(pale), rel=0.1)


def test_a_soft_render_gets_the_contrast_of_a_sharp_photo_and_keeps_its_own_face():
    sharp = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(1)) * 0.2
    other = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(2)) * 0.12
    mask = torch.zeros(1, 1, 128, 128)
    mask[:, :, 32:96, 32:96] = 1
    matched = match_contrast(other, sharp, mask)[:, :, 32:96, 32:96]
    assert matched.std().item() == pytest.approx(0.2, rel=0.1)
    assert torch.corrcoef(torch.stack([matched.flatten(), other[:, :, 32:96, 32:96].flatten()]))[0, 1] > 0.95
    assert torch.corrcoef(torch.stack([matched.flatten(), sharp[:, :, 32:96, 32:96].flatten()]))[0, 1].abs() < 0.1


def test_contrast_is_changed_by_no_more_than_twice():
    plain = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(3)) * 0.01
    matched = match_contrast(plain, 50 * plain, torch.ones(1, 1, 64, 64))
    assert matched.std().item() == pytest.approx(0.02, rel=0.2)
    assert torch.equal(match_contrast(plain, plain, torch.zeros(1, 1, 64, 64)).isfinite().all(), torch.tensor(True))
