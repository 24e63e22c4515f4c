"""The face inpainter and its discriminator: shapes, independence of the batch, and what a code changes."""

import pytest
import torch
import torch.nn.functional as F

from anonface.models.discriminator import PatchDiscriminator
from anonface.models.inpainter import INPUTS, Inpainter, InpainterParams, enlarged, params_of

SMALL = InpainterParams(side=32, widths=(8, 8, 16, 16), code=12, hidden=16)


@pytest.fixture
def inpainter() -> Inpainter:
    torch.manual_seed(3)
    return Inpainter(SMALL).eval()


def codes(count: int, seed: int = 1) -> torch.Tensor:
    return F.normalize(torch.randn(count, SMALL.code, generator=torch.Generator().manual_seed(seed)), dim=1)


def pictures(count: int) -> torch.Tensor:
    return torch.rand(count, INPUTS, 32, 32, generator=torch.Generator().manual_seed(2)) * 2 - 1


@torch.no_grad()
def test_a_picture_keeps_its_shape_and_a_batch_equals_its_members(inpainter):
    shown = inpainter(pictures(3), codes(3))
    assert shown.shape == (3, 3, 32, 32)
    single = torch.cat([inpainter(pictures(3)[i : i + 1], codes(3)[i : i + 1]) for i in range(3)])
    assert torch.allclose(shown, single, atol=1e-4)


@torch.no_grad()
def test_another_code_changes_the_picture_and_so_does_another_photo(inpainter):
    shown = inpainter(pictures(1), codes(1))
    assert float((inpainter(pictures(1), codes(1, seed=5)) - shown).abs().mean()) > 1e-3
    assert float((inpainter(pictures(1).flip(3), codes(1)) - shown).abs().mean()) > 1e-3


def test_a_side_that_cannot_be_halved_is_refused():
    with pytest.raises(ValueError, match="24"):
        InpainterParams(side=24, widths=(8, 8, 16, 16))


def test_sizes_are_read_off_the_weights():
    inpainter = Inpainter()
    assert params_of(inpainter.state_dict()) == inpainter.params == InpainterParams() == params_of({})
    larger = enlarged(inpainter)
    assert params_of(larger.state_dict()) == larger.params


def test_the_discriminator_judges_patches():
    assert PatchDiscriminator((8, 8, 16, 16))(pictures(2)[:, :3]).shape == (2, 1, 2, 2)


@torch.no_grad()
def test_an_enlarged_one_draws_the_same_at_twice_the_side(inpainter):
    larger = enlarged(inpainter)
    assert larger.params.side == 64 and larger.params.patch == 4
    wide = torch.rand(2, INPUTS, 64, 64, generator=torch.Generator().manual_seed(6))
    small = inpainter(F.avg_pool2d(wide, 2), codes(2))
    assert torch.allclose(larger(wide, codes(2)), F.interpolate(small, scale_factor=2), atol=1e-4)
