"""The latent attribute regression: reading attributes, and identity features without them."""

from dataclasses import replace

import pytest
import torch

from anonface.backends.generator import load_generator, load_mapping
from anonface.faces.analysis import load_analysis_networks
from anonface.models.face_parser import CLASSES
from anonface.models.identity import KEPT
from anonface.models.latent_attributes import ATTRIBUTES, SALIENT, WIDTHS, columns
from anonface.training.latent_attributes import (
    DIRECTIONS,
    AttributeSamples,
    fit_latent_attributes,
    light_grid,
    picture_statistics,
    recognition_gradients,
    worn_shares,
)
from anonface.training.recognizer import load_recognizer

# Gradients of recognizers: large along the first coordinate of a style, smaller along two others, tiny elsewhere.
GRADIENTS = torch.randn(400, 512, generator=torch.Generator().manual_seed(5)) * 0.01
GRADIENTS[:, :3] += torch.randn(400, 3, generator=torch.Generator().manual_seed(6)) * torch.tensor([9.0, 3.0, 2.0])


def test_glasses_hats_and_fringes_are_distinguished_from_hair_beside_the_face():
    logits = torch.zeros(4, len(CLASSES), 64, 64)
    logits[:, CLASSES.index("skin")] = 20
    for one, name in zip(logits, ("glasses", "hat", "hair", "hair"), strict=True):
        one[CLASSES.index(name)] = 40
    logits[3, CLASSES.index("hair"), :, 16:] = 0  # on the left, outside the face
    corners = torch.tensor([[0.4, 0.4], [0.6, 0.4], [0.6, 0.6], [0.4, 0.6]])
    shares = worn_shares(logits, corners.repeat(117, 1).expand(4, -1, -1))
    assert torch.allclose(shares, torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]), atol=1e-4)


def test_light_is_its_distribution_not_its_brightness():
    corners = torch.tensor([[0.2, 0.2], [0.8, 0.2], [0.8, 0.8], [0.2, 0.8]]).repeat(117, 1).expand(3, -1, -1)
    faces = torch.zeros(3, 3, 64, 64)
    faces[1] = 0.5
    faces[2, :, :, 32:] = 0.5
    even, brighter, lopsided = light_grid(faces, corners)
    assert float(even.abs().max()) < 1e-5 and float(brighter.abs().max()) < 1e-5
    assert float((lopsided.view(4, 4)[:, 2:] - lopsided.view(4, 4)[:, :2]).min()) > 0.2


def test_picture_statistics_are_taken_within_the_face():
    corners = torch.tensor([[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]]).repeat(117, 1).expand(4, -1, -1)
    faces = torch.zeros(4, 3, 64, 64)
    faces[:, :, :8] = 1.0  # above the face
    faces[1] += 0.3
    faces[2, 0] += 0.4
    faces[3, :, ::2] += 0.5
    plain, bright, red, striped = picture_statistics(faces, corners)
    assert plain.shape == (WIDTHS["picture"],) and torch.allclose(plain, torch.zeros(7), atol=1e-6)
    assert torch.allclose(bright, torch.tensor([0.3, 0, 0, 0, 0, 0, 0]), atol=1e-5)
    assert float(red[3]) > 0.2 and float(red[2]) < 0 and float(red[1]) < 1e-4
    assert float(striped[1]) > 0.2 and float(striped[6]) > 0.4 and float(striped[2:6].abs().max()) < 1e-5


@pytest.fixture(scope="module")
def samples() -> AttributeSamples:
    """Attributes are linear in the styles, with some noise."""
    rng = torch.Generator().manual_seed(3)
    drawn = torch.randn(1500, 512, generator=rng) * torch.linspace(0.5, 2, 512)
    attributes = drawn @ (torch.randn(512, ATTRIBUTES, generator=rng) / 512**0.5)
    attributes = attributes + 0.3 * torch.randn(attributes.shape, generator=rng)
    parts = {name: attributes[:, columns(name)] for name in WIDTHS}

    def spread_out(attributes: torch.Tensor, width: int) -> torch.Tensor:
        """Vectors with these principal components."""
        axes = torch.linalg.qr(torch.randn(width, attributes.shape[1], generator=rng))[0].T
        return attributes * torch.linspace(6, 1, attributes.shape[1]) @ axes

    apparent = torch.cat([parts["sex"], parts["age"]], dim=1) + 30
    mesh = 0.5 + spread_out(torch.cat([parts["mesh"], parts["expression"]], dim=1), 936)
    lights = spread_out(parts["light"], 16)
    return AttributeSamples(drawn + 0.2, parts["kept"], apparent, mesh, lights, parts["picture"], parts["worn"])


def test_attributes_are_read_from_styles(samples):
    regression, explained = fit_latent_attributes(samples, GRADIENTS)
    assert explained.shape == (ATTRIBUTES,)
    assert all(float(explained[columns(name)].mean()) > 0.5 for name in WIDTHS)
    read = regression(samples.styles)
    seems = slice(columns("sex").start, columns("age").stop)
    off = (read[:, seems] - samples.apparent).std(0) / samples.apparent.std(0)
    assert float(off.max()) < 0.6 and float((regression.usual[seems] - 30).abs().max()) < 0.3
    assert float((read[:, columns("worn")] - samples.worn).std() / samples.worn.std()) < 0.6


def test_identity_features_hold_no_attributes(samples):
    regression = fit_latent_attributes(samples, GRADIENTS)[0]
    features = regression.features(samples.styles)
    whole = samples.styles - regression.mean
    assert float(regression.deviations(features + regression.mean).abs().max()) < 1e-3
    assert 0.7 < float(features.norm() / whole.norm()) < 0.999


def test_salient_features_are_those_with_the_largest_gradients(samples):
    regression = fit_latent_attributes(samples, GRADIENTS)[0]
    assert regression.marks.shape == (512, SALIENT)
    off = samples.styles - regression.mean
    marked = off @ regression.marks
    spread = marked.std(0)
    assert bool((spread[:-1] >= spread[1:] - 1e-4).all()) and float(spread[0] / spread[2]) > 2
    assert abs(float(torch.corrcoef(torch.stack([marked[:, 0], off[:, 0]]))[0, 1])) > 0.95
    assert torch.allclose(
        regression.salient_features(samples.styles), regression.features(samples.styles) @ regression.marks
    )


def test_attributes_unrelated_to_styles_are_not_explained(samples):
    kept = torch.randn(1500, KEPT, generator=torch.Generator().manual_seed(4))
    explained = fit_latent_attributes(replace(samples, kept=kept), GRADIENTS)[1]
    assert float(explained[:KEPT].max()) < 0.1 < float(explained[KEPT:].mean())


def test_both_recognizers_have_equal_weight():
    z = torch.randn(2, 512, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        styles = load_mapping()(z)
    gradients = recognition_gradients(styles, load_generator(), load_analysis_networks(), load_recognizer())
    assert gradients.shape == (2 * DIRECTIONS * 2, 512)
    encoder, recognizer = gradients.split(2 * DIRECTIONS)
    assert float(encoder.norm()) == pytest.approx(1, abs=1e-4) == float(recognizer.norm())
    assert float((encoder.abs().sum(1)).min()) > 0
