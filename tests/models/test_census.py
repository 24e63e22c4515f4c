"""The census: what is read of people, and what is left of them without that."""

import pytest
import torch

from anonface.models.census import MESH_AXES, READINGS, WORN
from anonface.models.face_parser import CLASSES
from anonface.models.identity import KEPT
from anonface.training.census import People, take_census, worn


def test_glasses_hats_and_fringes_are_told_from_hair_beside_the_face():
    logits = torch.zeros(4, len(CLASSES), 64, 64)
    logits[:, CLASSES.index("skin")] = 20
    for one, name in zip(logits, ("glasses", "hat", "hair", "hair"), strict=True):
        one[CLASSES.index(name)] = 40
    logits[3, CLASSES.index("hair"), :, 16:] = 0  # on the left, where the face is not
    corners = torch.tensor([[0.4, 0.4], [0.6, 0.4], [0.6, 0.6], [0.4, 0.6]])
    shares = worn(logits, corners.repeat(117, 1).expand(4, -1, -1))
    assert torch.allclose(shares, torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]), atol=1e-4)


@pytest.fixture(scope="module")
def people() -> People:
    """Made up: what they look like is linear in their styles, with some noise."""
    rng = torch.Generator().manual_seed(3)
    drawn = torch.randn(1500, 512, generator=rng) * torch.linspace(0.5, 2, 512)
    said = drawn @ (torch.randn(512, READINGS, generator=rng) / 512**0.5)
    said = said + 0.3 * torch.randn(said.shape, generator=rng)
    kept, seems, shape, wear = said.split((KEPT, 2, MESH_AXES, len(WORN)), dim=1)
    axes = torch.linalg.qr(torch.randn(936, MESH_AXES, generator=rng))[0].T
    return People(drawn + 0.2, kept, seems + 30, 0.5 + shape * torch.linspace(6, 1, MESH_AXES) @ axes, wear)


def test_a_census_tells_of_people_what_they_look_like(people):
    census, told = take_census(people)
    assert told.shape == (READINGS,) and float(told.mean()) > 0.5
    read = census(people.styles)
    off = (read[:, KEPT : KEPT + 2] - people.apparent).std(0) / people.apparent.std(0)
    assert float(off.max()) < 0.6 and float((census.usual[KEPT : KEPT + 2] - 30).abs().max()) < 0.3
    assert float((read[:, -len(WORN) :] - people.worn).std() / people.worn.std()) < 0.6


def test_features_are_what_the_census_does_not_read(people):
    census = take_census(people)[0]
    features = census.features(people.styles)
    whole = people.styles - census.mean
    assert float(census.deviations(features + census.mean).abs().max()) < 1e-3
    assert 0.7 < float(features.norm() / whole.norm()) < 0.999


def test_nothing_is_told_of_what_styles_do_not_say(people):
    kept = torch.randn(1500, KEPT, generator=torch.Generator().manual_seed(4))
    told = take_census(People(people.styles, kept, people.apparent, people.mesh, people.worn))[1]
    assert float(told[:KEPT].max()) < 0.1 < float(told[KEPT:].mean())
