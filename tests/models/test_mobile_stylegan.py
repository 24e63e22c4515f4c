"""The default generator against stored samples of an OpenVINO run of the same file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from anonface.backends import generator as backend
from anonface.backends.generator import draft_renderer, load_generator, load_mapping
from anonface.models.mobile_stylegan import MobileStyleGAN, MobileStyleGANParams, Window, haar, inverse_haar

SAMPLES = json.loads((Path(__file__).parents[1] / "vectors" / "openvino.json").read_text())


@pytest.fixture(scope="module")
def generator() -> MobileStyleGAN:
    return load_generator()


@pytest.fixture(scope="module")
def latent() -> torch.Tensor:
    z = np.random.Generator(np.random.PCG64(2021)).standard_normal((1, 512)).astype(np.float32)
    with torch.inference_mode():
        return load_mapping()(torch.from_numpy(z))


def test_mapping_agrees_with_openvino(latent):
    expected = {int(i): value for i, value in SAMPLES["w"].items()}
    assert np.abs(latent[0, list(expected)].numpy() - list(expected.values())).max() < 1e-4


def test_1024_px_agree_with_openvino(generator, latent):
    expected = {int(i): value for i, value in SAMPLES["image"].items()}
    with torch.inference_mode():
        image = generator.synthesize(latent[:, None], 1024)
    assert image.shape == (1, 3, 1024, 1024)
    assert np.abs(image.flatten()[list(expected)].numpy() - list(expected.values())).max() < 1e-3


def test_every_size_shows_the_same_face(generator, latent):
    with torch.inference_mode():
        images = [generator.synthesize(latent[:, None], size) for size in generator.sizes]
    assert generator.sizes == (256, 512, 1024)
    small = [torch.nn.functional.adaptive_avg_pool2d(image, 64).flatten() for image in images]
    for other in small[:-1]:
        assert torch.corrcoef(torch.stack([small[-1], other]))[0, 1] > 0.95


def test_a_short_code_is_completed_by_its_last_latent(generator):
    w = torch.randn(1, 17, 512, generator=torch.Generator().manual_seed(1)) * 0.4
    full = torch.cat([w, w[:, -1:].expand(-1, 6, -1)], dim=1)
    with torch.inference_mode():
        assert torch.equal(generator.synthesize(w, 256), generator.synthesize(full, 256))


@pytest.mark.parametrize("size", [256, 512])
@pytest.mark.parametrize("window", [(62, 238, 55, 201), (0, 97, 3, 256), (255, 256, 128, 129), (0, 256, 0, 256)])
def test_inside_a_window_the_render_is_the_same_and_far_outside_it_is_empty(generator, size, window):
    window = Window(*(edge * size // 256 for edge in window))
    rng = torch.Generator().manual_seed(4)
    w = torch.randn(1, 17, 512, generator=rng) * 0.5
    details = {32: tuple(torch.randn(1, 512, 32, 32, generator=rng) for _ in range(2))}
    details[64] = tuple(torch.randn(1, 512, 64, 64, generator=rng) for _ in range(2))
    with torch.inference_mode():
        whole, part = (generator.synthesize(w, size, some, details) for some in (None, window))
        plain = generator.synthesize(w, size, window)
    assert part.shape == whole.shape
    assert (window.of(whole) - window.of(part)).abs().max() < 1e-4 < window.of(whole - plain).abs().max()
    assert part[..., :1, :].any() == (window.top < size // 8) and part[..., -1:].any() == (window.right > size * 7 / 8)


def test_the_window_around_a_mask_is_the_smallest_and_everything_for_an_empty_mask():
    mask = torch.zeros(1, 1, 12, 16)
    assert Window.around(mask) == (0, 12, 0, 16)
    mask[..., 3, 5] = mask[..., 7, 2] = 0.1
    assert Window.around(mask) == (3, 8, 2, 6)


@pytest.mark.slow
@pytest.mark.parametrize("faster", [False, True])
def test_a_sketch_is_close_to_the_render_and_has_similar_gradients(generator, latent, faster, monkeypatch):
    monkeypatch.setattr(backend, "multiplies_bfloat16_faster", lambda device: faster)
    draft = draft_renderer(generator)
    views = []
    for draw in (generator.synthesize, draft):
        w = latent[:, None].clone().requires_grad_()
        image = draw(w, 256)
        image[:, 0].square().mean().backward()
        views.append((image.detach(), w.grad.flatten()))
    (drawn, led), (sketched, way) = views
    error = (drawn - sketched).square().mean()
    assert sketched.dtype == torch.float32 and error < 4 * 10**-4.5  # 45 dB
    assert bool(error > 0) is faster
    assert torch.cosine_similarity(led, way, dim=0) > 0.99
    assert next(generator.parameters()).dtype == torch.float32


def test_a_size_without_head_is_refused(generator):
    with pytest.raises(ValueError, match="no head for 300 px"):
        generator.synthesize(torch.zeros(1, 23, 512), 300)


def test_details_are_added_to_the_fixed_noise():
    torch.manual_seed(0)
    small = MobileStyleGAN(MobileStyleGANParams(style=8, base=8, channels=(8, 8, 4), early_heads=((0, 2),)))
    for parameter in small.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    w = torch.randn(2, 11, 8)
    nothing = {16: (torch.zeros(2, 8, 16, 16), torch.zeros(1, 8, 1, 1))}
    plain = small.synthesize(w, 64)
    assert torch.equal(small.synthesize(w, 64, details=nothing), plain)
    first, second = torch.randn(2, 2, 8, 16, 16)
    told = small.synthesize(w, 64, details={16: (first, second)})
    assert not torch.allclose(told, plain, atol=1e-2)
    level = small.layers[1]
    level.conv1.noise = torch.nn.Parameter(level.conv1.noise + first)
    level.conv2.noise = torch.nn.Parameter(level.conv2.noise + second)
    torch.testing.assert_close(small.synthesize(w, 64), told)


def test_haar_is_undone_by_its_inverse():
    x = torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(haar(x)[:, :3], x[..., ::2, ::2])
    assert torch.allclose(inverse_haar(haar(x)), x, atol=1e-6)


def test_sizes_follow_the_parameters():
    small = MobileStyleGAN(MobileStyleGANParams(style=8, base=8, channels=(8, 8, 4), early_heads=((0, 2),)))
    assert small.sizes == (16, 64) and small.n_latents == 11
    assert small.synthesize(torch.randn(2, 11, 8), 64).shape == (2, 3, 64, 64)
