"""Steering: what is read of people, and people moved until they read otherwise."""

import pytest
import torch

from anonface.models.face_parser import CLASSES
from anonface.models.identity import KEPT
from anonface.models.steering import FARTHEST, MESH_AXES, READINGS, StyleSteering, to_normal, to_styles, worn
from anonface.training.steering import People, fit_steering


def test_the_leaky_relu_is_undone_and_redone():
    styles = torch.randn(3, 512)
    assert torch.allclose(to_styles(to_normal(styles)), styles, atol=1e-6)
    assert not torch.allclose(to_normal(styles), styles, atol=0.1)


def test_glasses_and_hats_are_told_apart_from_hair():
    logits = torch.zeros(3, len(CLASSES), 64, 64)
    for one, name in zip(logits, ("glasses", "hat", "hair"), strict=True):
        one[CLASSES.index(name)] = 20
    assert torch.allclose(worn(logits), torch.tensor([[1.0, 0], [0, 1], [0, 0]]), atol=1e-4)


def test_no_reading_moves_further_than_it_spreads():
    steering = StyleSteering()
    steering.move.normal_(generator=torch.Generator().manual_seed(1))
    steering.spread.fill_(0.1)
    styles = torch.randn(2, 512, generator=torch.Generator().manual_seed(2))
    far, farther = (steering(styles, torch.full((2, READINGS), x)) for x in (0.1 * FARTHEST, 10.0))
    assert torch.allclose(far, farther) and not torch.allclose(far, styles, atol=0.1)
    assert torch.allclose(steering(styles, torch.zeros(2, READINGS)), styles, atol=1e-6)


@pytest.fixture(scope="module")
def people() -> People:
    """Made up: what they look like is linear in P, with some noise."""
    rng = torch.Generator().manual_seed(3)
    normal = torch.randn(1500, 512, generator=rng) * torch.linspace(0.5, 2, 512)
    lines = torch.randn(512, KEPT + MESH_AXES + 2, generator=rng) / 512**0.5
    said = normal @ lines
    said = said + 0.3 * torch.randn(said.shape, generator=rng)
    kept, shape, wear = said.split((KEPT, MESH_AXES, 2), dim=1)
    axes = torch.linalg.qr(torch.randn(936, MESH_AXES, generator=rng))[0].T
    return People(to_styles(normal), kept, 0.5 + shape * torch.linspace(6, 1, MESH_AXES) @ axes, wear)


def test_a_fit_moves_readings_where_they_are_wanted(people):
    steering, told = fit_steering(people)
    assert told.shape == (READINGS,) and float(told.mean()) > 0.5
    read = lambda who: torch.cat([who.kept, (who.mesh - steering.mesh_mean) @ steering.mesh_axes.T, who.worn], dim=1)  # noqa: E731
    y = read(people)
    assert float((y.std(0) / steering.spread - 1).abs().max()) < 0.01
    # the direction of one reading, found again by regression on the moved people
    x = to_normal(people.styles)
    lines = torch.linalg.lstsq(x - x.mean(0), y - y.mean(0)).solution
    wanted = steering.spread.diag()
    change = (
        to_normal(steering(people.styles[:1].expand(READINGS, -1), wanted)) - to_normal(people.styles[:1])
    ) @ lines
    share = change / steering.spread
    assert float(share.diagonal().min()) > 0.4 and float((share - share.diagonal().diag()).abs().max()) < 0.25


def test_people_without_anything_to_read_are_not_moved(people):
    blind = People(
        people.styles, torch.randn(1500, KEPT, generator=torch.Generator().manual_seed(4)), people.mesh, people.worn
    )
    steering, told = fit_steering(blind)
    other = fit_steering(people)[0]
    assert float(told[:KEPT].max()) < 0.1
    assert float(steering.move[:KEPT].norm()) < float(other.move[:KEPT].norm())
