"""The sharpener with random parameters."""

import torch
import torch.nn.functional as F

from anonface.models.sharpener import Sharpener, SharpenerParams


def perturbed() -> Sharpener:
    torch.manual_seed(0)
    sharpener = Sharpener(SharpenerParams(channels=8, blocks=2)).eval()
    for parameter in sharpener.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    return sharpener


def test_untrained_it_only_enlarges():
    pictures = torch.rand(2, 3, 16, 16) * 2 - 1
    enlarged = F.interpolate(pictures, scale_factor=2, mode="bilinear")
    assert torch.equal(Sharpener()(pictures), enlarged)
    assert (perturbed()(pictures) - enlarged).abs().mean() > 0.01


def test_a_crop_is_sharpened_like_the_same_place_of_the_picture():
    pictures = torch.rand(1, 3, 128, 128) * 2 - 1
    whole, part = perturbed()(pictures), perturbed()(pictures[..., 16:112, 16:112])
    torch.testing.assert_close(part[..., 64:128, 64:128], whole[..., 96:160, 96:160])


def test_colours_of_large_areas_stay():
    pictures = torch.rand(1, 3, 64, 64) * 2 - 1
    sharpener = perturbed()
    sharpener.close.bias.data += torch.linspace(0.3, 0.6, 48)  # a bias that would lighten everything
    added = sharpener(pictures) - F.interpolate(pictures, scale_factor=2, mode="bilinear")
    assert added.abs().mean() > 0.05 and F.avg_pool2d(added, 64).abs().max() < 0.02


def test_it_cannot_add_a_regular_pattern():
    sharpener = perturbed()
    weave = torch.randn(48)  # the same in every cell of the trunk
    sharpener.close.bias.data += weave
    pictures = torch.rand(1, 3, 64, 64) * 2 - 1
    woven = sharpener(pictures)
    sharpener.close.bias.data -= weave
    torch.testing.assert_close(sharpener(pictures), woven)


def test_no_picture_depends_on_the_rest_of_the_batch():
    pictures = torch.rand(2, 3, 16, 16) * 2 - 1
    torch.testing.assert_close(perturbed()(pictures)[1:], perturbed()(pictures[1:]))
