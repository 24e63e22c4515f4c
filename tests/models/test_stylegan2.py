from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from anonface import weights
from anonface.errors import WeightsError
from anonface.models.stylegan2 import Blur, StyleGAN2, StyleGAN2Params, Upsample

SMALL = StyleGAN2Params(size=32, latent=16, mapping_layers=2, max_channels=8)


@pytest.fixture
def generator() -> StyleGAN2:
    torch.manual_seed(0)
    return StyleGAN2(SMALL).eval()


@pytest.mark.parametrize(("size", "rows"), [(8, 4), (256, 14), (1024, 18)])
def test_rows_of_w_plus(size: int, rows: int) -> None:
    assert StyleGAN2Params(size=size).n_latents == rows


@pytest.mark.parametrize("size", [0, 4, 100])
def test_odd_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        StyleGAN2Params(size=size)


@torch.no_grad()
def test_mapping_ignores_the_length_of_z(generator: StyleGAN2) -> None:
    z = torch.randn(3, 16)
    torch.testing.assert_close(generator.mapping(z), generator.mapping(5 * z))


@torch.no_grad()
def test_a_batch_renders_as_its_members_do(generator: StyleGAN2) -> None:
    w = torch.randn(3, generator.n_latents, 16)
    together = generator.synthesize(w)
    assert together.shape == (3, 3, 32, 32)
    torch.testing.assert_close(together, torch.cat([generator.synthesize(row[None]) for row in w]))


@torch.no_grad()
def test_a_smaller_size_is_the_area_average(generator: StyleGAN2) -> None:
    w = torch.randn(1, generator.n_latents, 16)
    full = generator.synthesize(w)
    torch.testing.assert_close(
        generator.synthesize(w, 8), functional.interpolate(full, size=8, mode="area"), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(ValueError, match="does not divide"):
        generator.synthesize(w, 12)


@torch.no_grad()
def test_noise_can_be_replaced_layer_by_layer(generator: StyleGAN2) -> None:
    for layer in generator.modules():
        if hasattr(layer, "noise"):
            torch.nn.init.ones_(layer.noise.weight)
    w = torch.randn(2, generator.n_latents, 16)
    stored = generator.noises.maps()
    torch.testing.assert_close(generator(w, stored), generator(w))
    wide = [noise.expand(2, 8, -1, -1) for noise in stored]
    torch.testing.assert_close(generator(w, wide), generator(w))
    assert not torch.allclose(generator(w, [torch.zeros_like(noise) for noise in stored]), generator(w))


def test_wrong_numbers_of_layers_are_refused(generator: StyleGAN2) -> None:
    with pytest.raises(ValueError, match="expected 8 styles"):
        generator(torch.randn(1, 9, 16))
    with pytest.raises(ValueError, match="7 noise maps"):
        generator(torch.randn(1, 8, 16), generator.noises.maps()[:-1])


def test_doubling_keeps_the_brightness_of_a_flat_image() -> None:
    inner = (..., slice(2, -2), slice(2, -2))
    assert torch.equal(Upsample()(torch.ones(1, 2, 6, 6))[inner], torch.ones(1, 2, 8, 8))
    # Three of four pixels are zero after the zero insertion that the blur makes up for.
    assert torch.equal(Blur()(torch.ones(1, 2, 13, 13))[inner], torch.full((1, 2, 8, 8), 4.0))


def test_checkpoints_load_however_they_are_wrapped(generator: StyleGAN2, tmp_path: Path) -> None:
    state = generator.state_dict()
    contents = {
        "training": {"g": StyleGAN2(SMALL).state_dict(), "g_ema": state, "g_optim": {"step": 3}},
        "with options": {"state_dict": state, "opts": Namespace(size=32)},
        "bare": state,
        "parallel": {f"module.{name}": tensor for name, tensor in state.items()},
    }
    for name, content in contents.items():
        torch.save(content, tmp_path / name)
        copy = StyleGAN2(SMALL)
        weights.fit(copy, weights.load_checkpoint(tmp_path / name), by="name")
        assert all(torch.equal(tensor, state[key]) for key, tensor in copy.state_dict().items()), name


def test_another_naming_in_the_same_order_loads(generator: StyleGAN2, tmp_path: Path) -> None:
    state = generator.state_dict()
    torch.save({f"layer{i}": tensor for i, tensor in enumerate(state.values())}, tmp_path / "renamed.pt")
    renamed = weights.load_checkpoint(tmp_path / "renamed.pt")
    copy = StyleGAN2(SMALL)
    with pytest.raises(WeightsError):
        weights.fit(copy, renamed, by="name")
    weights.fit(copy, renamed, by="order")
    assert all(torch.equal(tensor, state[key]) for key, tensor in copy.state_dict().items())
