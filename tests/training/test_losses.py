"""Losses of the paper by their defining properties, and the degradations of training by theirs."""

import torch
import torch.nn.functional as F

from anonface.training import data
from anonface.training.ifadit import regions, ssim, theta_minus, theta_plus, visual_quality


def images(count: int = 2, side: int = 32) -> torch.Tensor:
    smooth = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return F.interpolate(smooth, (side, side), mode="bicubic").clamp(-1, 1)


def test_equations_16_and_19_on_known_angles():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    y = torch.tensor([[0.6, 0.8], [-1.0, 0.0]])
    assert torch.isclose(theta_plus(x, y), torch.tensor(0.3))
    assert torch.isclose(theta_minus(x, y), torch.tensor((0.4 + 2.0) / 2))


def test_visual_quality_is_zero_for_the_same_image_and_grows_with_noise():
    x = images()
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    assert torch.isclose(ssim(x, x), torch.tensor(1.0))
    assert visual_quality(x, x) < 1e-6 < visual_quality(x + 0.05 * noise, x) < visual_quality(x + 0.3 * noise, x)


def test_ssim_agrees_with_scikit_image():
    from skimage.metrics import structural_similarity

    x = images(1)
    y = x + 0.2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    expected = structural_similarity(
        x[0].numpy(), y[0].numpy(), channel_axis=0, data_range=2.0, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False,
    )  # fmt: skip
    assert abs(float(ssim(x, y)) - expected) < 0.02


def test_regions_move_with_the_landmarks():
    mesh = torch.rand(1, 468, 2, generator=torch.Generator().manual_seed(4)) * 0.5 + 0.2
    maps, moved = regions(mesh), regions(mesh + 5 / 24)
    assert maps.shape == (1, 5, 24, 24)
    assert not torch.allclose(maps, moved, atol=0.1)
    assert torch.allclose(maps[..., :-5, :-5], moved[..., 5:, 5:], atol=1e-4)


def test_rounding_keeps_gradients():
    x = torch.full((1, 3, 2, 2), 0.1234, requires_grad=True)
    y = data.rounded(x)
    y.sum().backward()
    assert torch.allclose((y.detach() + 1) * 127.5, ((y.detach() + 1) * 127.5).round(), atol=1e-4)
    assert torch.equal(x.grad, torch.ones_like(x))


def test_degradations_depend_on_the_generator_alone():
    x = images(2, 64)
    first, again, other = (data.photograph(x, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other) and first.shape == x.shape
    assert first.abs().max() <= 1


def test_jitter_moves_by_little():
    x = images(4, 64)
    moved = data.jitter(x, torch.Generator().manual_seed(3))
    assert 1e-3 < (moved - x).abs().mean() < 0.2
