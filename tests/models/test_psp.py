from __future__ import annotations

import pytest
import torch

from anonface.models.ir_se50 import IRSE50Params
from anonface.models.psp import PSp, StyleEncoder, StyleEncoderParams
from anonface.models.stylegan2 import StyleGAN2Params

BACKBONE = IRSE50Params(stages=((4, 1), (8, 1), (8, 1), (16, 1)), reduction=4, embedding=16)
GENERATOR = StyleGAN2Params(latent=16, mapping_layers=1, max_channels=8, channel_base=1024)


def small_encoder(offsets: bool) -> StyleEncoder:
    torch.manual_seed(0)
    return StyleEncoder(StyleEncoderParams(latent=16, offsets=offsets, backbone=BACKBONE)).eval()


@torch.no_grad()
def test_e4e_adds_every_head_to_the_first() -> None:
    faces = torch.rand(2, 3, 256, 256) * 2 - 1
    heads, styles = small_encoder(offsets=False)(faces), small_encoder(offsets=True)(faces)
    assert heads.shape == (2, 14, 16)
    torch.testing.assert_close(styles[:, 0], heads[:, 0])
    torch.testing.assert_close(styles[:, 1:], heads[:, 1:] + heads[:, :1])


@torch.no_grad()
def test_the_mean_latent_is_added_and_the_image_rendered() -> None:
    torch.manual_seed(0)
    network = PSp(GENERATOR, backbone=BACKBONE).eval()
    face, mean = torch.zeros(1, 3, 256, 256), torch.randn(14, 16)
    codes = network.encode(face, mean)
    torch.testing.assert_close(codes, network.encode(face) + mean)
    torch.testing.assert_close(network(face, mean, size=64), network.decoder.synthesize(codes, 64))


def test_a_backbone_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="four stages"):
        StyleEncoderParams(latent=32, backbone=BACKBONE)
