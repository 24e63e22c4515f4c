"""The face inpainter and its discriminator: shapes, independence of the batch, and what a code changes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from anonface.models.discriminator import FeatureDiscriminator
from anonface.models.inpainter import INPUTS, LARGE, POINTS, Inpainter, InpainterParams, params_of
from anonface.models.mobile_stylegan import MobileStyleGAN, MobileStyleGANParams

SMALL = InpainterParams(
    channels=(16, 16, 16, 16), widths=(8, 8, 8, 8, 16), base=16, style=24, code=12, hidden=16, offsets=4, mid=8
)


@pytest.fixture
def inpainter() -> Inpainter:
    """With random weights also where training begins with zeros."""
    torch.manual_seed(3)
    network = Inpainter(SMALL).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    torch.nn.init.ones_(network.inject[0].size)
    return network


def rows(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, landmarks and codes."""
    rng = torch.Generator().manual_seed(seed)
    codes = F.normalize(torch.randn(count, SMALL.code, generator=rng), dim=1)
    return (
        torch.rand(count, INPUTS, 128, 128, generator=rng) * 2 - 1,
        torch.rand(count, POINTS, 2, generator=rng),
        codes,
    )


@torch.no_grad()
def test_a_picture_keeps_its_shape_and_a_batch_equals_its_members(inpainter):
    batch = rows(3)
    shown = inpainter(*batch)
    assert shown.shape == (3, 3, 128, 128)
    single = torch.cat([inpainter(*(x[i : i + 1] for x in batch)) for i in range(3)])
    assert torch.allclose(shown, single, atol=1e-3 * float(shown.abs().max()))


@torch.no_grad()
def test_code_surroundings_and_landmarks_each_change_the_picture(inpainter):
    inputs, mesh, codes = rows(1)
    other_inputs, other_mesh, other_codes = rows(1, seed=5)
    shown = inpainter(inputs, mesh, codes)
    for changed in ((other_inputs, mesh, codes), (inputs, other_mesh, codes), (inputs, mesh, other_codes)):
        assert float((inpainter(*changed) - shown).abs().mean()) > 1e-4 * float(shown.abs().mean())


@torch.no_grad()
def test_it_begins_as_the_generator_that_it_starts_from():
    torch.manual_seed(4)
    generator = MobileStyleGAN(MobileStyleGANParams(style=24, base=16, channels=(16,) * 6, early_heads=((3, 96),)))
    for parameter in generator.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    inpainter = Inpainter(SMALL)
    inpainter.start_from(generator)
    latents = torch.randn(2, SMALL.latents, 24)
    wanted = generator.synthesize(latents, 128)
    # the generator's head takes the mean of the remaining latents, of which the last is repeated
    assert torch.allclose(inpainter.draw(rows(2)[0], latents), wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


@torch.no_grad()
def test_a_larger_one_begins_as_the_smaller_one(inpainter):
    torch.manual_seed(6)
    generator = MobileStyleGAN(MobileStyleGANParams(style=24, base=16, channels=(16,) * 6, early_heads=((4, 96),)))
    for parameter in generator.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    inpainter.start_from(generator)
    larger = Inpainter(replace(SMALL, side=256, channels=(16,) * 5))
    larger.start_larger_from(inpainter, generator)
    inputs, mesh, codes = rows(2)
    wide = F.interpolate(inputs, scale_factor=2, mode="nearest")
    style, _ = inpainter.styles(inpainter.told(inputs, mesh, codes))
    larger_style, _ = larger.styles(larger.told(wide, mesh, codes))
    assert F.cosine_similarity(style, larger_style).min() > 0.99  # cells of colours do not end at pixels
    assert torch.equal(
        larger.offsets(hidden := torch.ones(1, 16))[0, : SMALL.latents * 24], inpainter.offsets(hidden)[0]
    )
    assert torch.equal(larger.head.weight, generator.heads["256"].weight)
    for small, large in zip(inpainter._seen(inputs), larger._seen(wide), strict=False):
        assert torch.allclose(small[..., 2:-2, 2:-2], large[..., 2:-2, 2:-2], atol=1e-3)


def test_levels_that_do_not_end_at_the_side_are_refused():
    with pytest.raises(ValueError, match="256"):
        InpainterParams(side=256)


def test_sizes_are_read_off_the_weights():
    for params in (InpainterParams(), LARGE):
        with torch.device("meta"):
            network = Inpainter(params)
        assert params_of(network.state_dict()) == params


def test_the_discriminator_has_a_logit_for_every_place_of_every_map():
    maps = [torch.randn(2, 8, 12, 12), torch.randn(2, 16, 6, 6)]
    discriminator = FeatureDiscriminator((8, 16), (1.0, 1.0))
    assert [logits.shape for logits in discriminator(maps)] == [(2, 1, 12, 12), (2, 1, 6, 6)]
    assert all(not mixture.requires_grad for mixture in discriminator.mixtures)
