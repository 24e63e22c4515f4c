"""What the networks' latents lack of a face."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from anonface.backends.ifadit.backend import IFADIT
from anonface.backends.latent_editing.latent_residual import (
    COORDINATES,
    SLOW,
    ResidualParams,
    find_residual,
    with_residual,
)
from anonface.faces.colour_transfer import match_tones
from anonface.models.attribute_encoder import LatentMapper
from anonface.models.identity import IdentityEncoder
from anonface.models.mobile_stylegan import MobileStyleGAN, Window


@dataclass(frozen=True)
class Networks:
    generator: MobileStyleGAN
    mapper: LatentMapper
    encoder: IdentityEncoder

    def draw(self, u: torch.Tensor, side: int, window: Window) -> torch.Tensor:
        return self.generator.synthesize(self.mapper.to_w(u), side, window)


@pytest.fixture(scope="module")
def backend() -> IFADIT:
    return IFADIT()


def networks_of(backend: IFADIT) -> Networks:
    return Networks(backend.renderer.generator, backend.renderer.mapper, backend.identity.encoder)


@pytest.mark.slow
def test_a_few_steps_draw_the_face_and_later_ones_go_on_from_there(backend):
    networks, mask = networks_of(backend), torch.zeros(1, 1, 256, 256)
    mask[..., 60:230, 60:196] = 1
    z = torch.randn(1, 512, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        w = backend.identity.keygen.mapping(z)
        face = networks.generator.synthesize(w[:, None], 256).clamp(-1, 1).clone()
    base = networks.mapper.to_u(backend.renderer.latents(face, backend.identity.embed(face)))
    few = ResidualParams(steps=6)

    @torch.no_grad()
    def error(change: torch.Tensor) -> float:
        render = networks.generator.synthesize(networks.mapper.to_w(with_residual(base, change)), 256)
        return float(((match_tones(render, face, mask) - face).square() * mask).mean())

    nothing = torch.zeros(1, base.shape[1], COORDINATES)
    change = find_residual(base, face, mask, face, networks, few)
    assert change.shape == nothing.shape and not change.requires_grad
    assert error(change) < 0.6 * error(nothing)
    further = find_residual(base, face, mask, face, networks, replace(few, rate=0.04), change)
    assert error(further) < error(change)
    larger = (F.interpolate(x, scale_factor=2) for x in (face, mask, face))
    torch.testing.assert_close(find_residual(base, *larger, networks, few), change, atol=2e-2, rtol=0)


@pytest.mark.slow
def test_fine_detail_counts_the_more_the_more_it_weighs(backend):
    networks, mask = networks_of(backend), torch.ones(1, 1, 256, 256)
    z = torch.randn(1, 512, generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        face = networks.generator.synthesize(backend.identity.keygen.mapping(z)[:, None], 256).clamp(-1, 1).clone()
    base = networks.mapper.to_u(backend.renderer.latents(face, backend.identity.embed(face)))

    def fine_error(weight: float) -> float:
        change = find_residual(base, face, mask, face, networks, ResidualParams(steps=8, fine=weight))
        with torch.no_grad():
            render = networks.generator.synthesize(networks.mapper.to_w(with_residual(base, change)), 256)
        error = match_tones(render, face, mask) - face
        return float((error - F.avg_pool2d(error, SLOW, 1, SLOW // 2)).abs().mean())

    assert fine_error(100.0) < 0.99 * fine_error(0.0)


def test_it_touches_the_first_coordinates_alone():
    base, change = torch.ones(1, 3, 40), torch.full((1, 3, COORDINATES), 2.0)
    assert torch.equal(with_residual(base, change)[..., :COORDINATES], torch.full_like(change, 3.0))
    assert torch.equal(with_residual(base, change)[..., COORDINATES:], base[..., COORDINATES:])
