import math

import pytest
import torch
import torch.nn.functional as F

from anonface.watermark import qim

SIDE, GAIN = 8, 0.15
EVERYWHERE = torch.ones(1, 1, SIDE, SIDE)


def texture(resolution: int, strength: float = 40.0) -> torch.Tensor:
    """A picture of edges and noise of so many grey levels."""
    rng = torch.Generator().manual_seed(5)
    coarse = F.interpolate(torch.rand(2, 3, 6, 6, generator=rng), size=resolution) - 0.5
    return (coarse + strength / 127.5 * torch.randn(2, 3, resolution, resolution, generator=rng)).clamp(-0.9, 0.9)


def wish(most: float = qim.MOST) -> torch.Tensor:
    return most * (2 * torch.rand(2, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(6)) - 1)


def laid(pictures: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """Each pixel of the grain's grid over as many of the picture, in 8 bits."""
    added = pictures + F.interpolate(pattern, size=pictures.shape[-1])
    return ((added.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


@pytest.mark.parametrize("resolution", [4 * SIDE, 8 * SIDE, 16 * SIDE])
def test_what_is_said_is_read_whatever_the_picture_shows(resolution: int) -> None:
    pictures, wanted = texture(resolution), wish()
    assert (qim.read(pictures, 4, SIDE, GAIN) - wanted).square().mean() > 0.02
    finished = laid(pictures, qim.write(pictures, wanted, GAIN, EVERYWHERE))
    error = (qim.read(finished, 4, SIDE, GAIN) - wanted).abs()
    assert error.mean() < 0.02  # 8 bits
    assert not torch.equal(finished, pictures)


def test_it_moves_no_colour_of_a_cell_and_little_of_a_busy_picture() -> None:
    for strength in (0.0, 100.0):
        pictures = texture(8 * SIDE, strength)
        pattern = qim.write(pictures, wish(), GAIN, EVERYWHERE)
        assert F.avg_pool2d(pattern, 4).abs().max() < 1e-5
        # four patterns, none by more than half a turn: RANGE
        assert 127.5 * pattern.square().mean().sqrt() < 2 * qim.RANGE / GAIN / math.sqrt(3) * 1.3


def test_only_the_cells_that_are_asked_say_something() -> None:
    where = torch.zeros(1, 1, SIDE, SIDE)
    where[..., 2:4, 5] = 1
    pattern = qim.write(texture(8 * SIDE), wish(), GAIN, where)
    assert torch.equal(F.max_pool2d(pattern.abs().amax(1, keepdim=True), 4) > 0, (where > 0).expand(2, -1, -1, -1))


def test_too_much_is_said_as_the_most_there_is() -> None:
    pictures, wanted = texture(8 * SIDE), wish(3 * qim.MOST)
    finished = laid(pictures, qim.write(pictures, wanted, GAIN, EVERYWHERE))
    said = qim.read(finished, 4, SIDE, GAIN)
    torch.testing.assert_close(said, wanted.clamp(-qim.MOST, qim.MOST), atol=0.04, rtol=0)


def test_what_a_grid_takes_away_is_given_back_by_saying_it_again() -> None:
    pictures, wanted = texture(8 * SIDE, 10.0), wish()
    finished, errors = pictures, []
    for _ in range(5):
        blurred = F.interpolate(qim.write(finished, wanted, GAIN, EVERYWHERE), size=8 * SIDE, mode="bilinear")
        finished = finished + blurred
        errors.append(float((qim.read(finished, 4, SIDE, GAIN) - wanted).square().mean().sqrt()))
    assert errors[-1] < 0.2 * errors[0]


@pytest.mark.parametrize(("resolution", "channels"), [(4 * SIDE, 3), (8 * SIDE, 4)])
def test_a_grey_picture_stays_grey_and_says_what_it_has_room_for(resolution: int, channels: int) -> None:
    pictures, wanted = texture(resolution)[:, :1].expand(-1, 3, -1, -1), wish()
    finished = laid(pictures, qim.write(pictures, wanted, GAIN, EVERYWHERE))
    assert torch.equal(finished[:, :1].expand_as(finished), finished)
    said = qim.read(finished, 4, SIDE, GAIN)
    assert (said - wanted)[:, :channels].abs().mean() < 0.03
    assert not said[:, channels:].any()


def test_the_patterns_are_the_same_everywhere_and_always() -> None:
    patterns = qim._patterns(4, SIDE, 4, 3)
    grams = patterns @ patterns.transpose(1, 2)
    torch.testing.assert_close(grams, torch.eye(4).expand_as(grams))
    torch.testing.assert_close(patterns[0, 0, :4], torch.tensor([0.1218, -0.2292, -0.2523, 0.0660]), atol=1e-4, rtol=0)
