"""The watermark, on made-up pictures."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anonface.watermark import channel

SIDE = 256
COUNT, MORE, MOST, FINE = 60, 200, 900, 1500


def picture(grey: bool = False) -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    coarse = F.interpolate(torch.rand(1, 3, 12, 12, generator=rng) - 0.5, (SIDE, SIDE), mode="bicubic")
    noisy = coarse + 0.02 * torch.randn(1, 3, SIDE, SIDE, generator=rng)
    return noisy.mean(1, keepdim=True).expand(-1, 3, -1, -1).contiguous() if grey else noisy


def mask() -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    return torch.sigmoid(20 * (1 - ((x / 0.5) ** 2 + ((y - 0.12) / 0.6) ** 2)))[None, None]


def numbers(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) * 1.6 - 0.8


def in_8_bits(shown: torch.Tensor) -> torch.Tensor:
    return ((shown.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def written(shown: torch.Tensor, *messages: torch.Tensor | None) -> torch.Tensor:
    start, summed = shown, torch.zeros(1, 3, channel.GRID, channel.GRID)
    for _ in range(4):
        summed = summed + 1.2 * channel.write(shown, mask(), *messages)
        shown = in_8_bits(start + F.interpolate(summed, (SIDE, SIDE), mode="bicubic"))
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("grey", [False, True])
def test_what_is_written_is_read_again_after_rounding(grey):
    counts = (COUNT, MORE, MOST) if grey else (COUNT, MORE, MOST, FINE)
    numbers_of = [numbers(count, seed) for seed, count in enumerate(counts)]
    shown = in_8_bits(picture(grey))
    marked = written(shown, *numbers_of)
    for messages, meant in zip(channel.read(marked, *counts), numbers_of, strict=True):
        assert messages.error < 0.05 and (messages.values - meant).square().mean().sqrt() < 0.05
    assert all(messages.error > 0.4 for messages in channel.read(shown, *counts))
    change = 127.5 * (marked - shown)
    assert change.square().mean().sqrt() < 3 and not change[(mask() < 0.01).expand_as(change)].any()
    assert torch.equal(marked, marked[:, :1].expand_as(marked)) == grey


@pytest.mark.slow
def test_the_first_channel_outlasts_jpeg_and_a_square_that_lies_a_little_off():
    first = numbers(COUNT, 1)
    marked = written(in_8_bits(picture()), first)
    pixels = ((marked[0].permute(1, 2, 0).numpy() + 1) * 127.5).round().astype(np.uint8)
    moved = cv2.warpAffine(pixels, np.array([[1.004, 0.003, 1.1], [-0.003, 1.004, -1.4]]), (SIDE, SIDE))
    for shown in (pixels, moved):
        stored = cv2.imdecode(cv2.imencode(".jpg", shown, [cv2.IMWRITE_JPEG_QUALITY, 85])[1], cv2.IMREAD_COLOR)
        again = torch.from_numpy(stored).permute(2, 0, 1)[None] / 127.5 - 1
        messages, _ = channel.read(again, COUNT, MORE)
        assert messages.error < 0.3 and (messages.values - first).square().mean().sqrt() < 0.3


@pytest.mark.slow
def test_a_grainy_square_that_lies_between_the_points_of_the_wide_lattice_is_found_by_the_near_one(monkeypatch):
    first, second = numbers(COUNT, 0), numbers(MORE, 1)
    grain = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    marked = written(in_8_bits(picture() + 0.17 * grain), first, second)
    cos, sin, shift = 1.009 * np.cos(0.0075), 1.009 * np.sin(0.0075), 2 * 0.5 / SIDE
    way = torch.tensor([[[cos, -sin, shift], [sin, cos, shift]]], dtype=torch.float32)
    grid = F.affine_grid(way, [1, 3, SIDE, SIDE], align_corners=False)
    moved = in_8_bits(F.grid_sample(marked, grid, padding_mode="reflection", align_corners=False))
    messages = channel.read(moved, COUNT, MORE)[1]
    assert messages.error < 0.4 and (messages.values - second).abs().median() < 0.3  # some turn round
    monkeypatch.setattr(channel, "SHIFTS", channel.SHIFTS[1:])
    assert channel.read(moved, COUNT, MORE)[1].error > 0.5


def test_a_channel_is_read_alike_whether_or_not_another_one_speaks():
    first, second, third, fourth = (numbers(n, seed) for seed, n in enumerate((COUNT, MORE, MOST, FINE)))
    shown = in_8_bits(picture())
    for told in ((first, second, None, None), (first, second, third, fourth), (first, None, third, None)):
        messages = channel.read(written(shown, *told), COUNT, MORE, MOST, FINE)
        assert [one.error < 0.1 for one in messages] == [values is not None for values in told]


def test_pilots_tell_how_many_numbers_a_channel_holds():
    meant = numbers(MOST, 3), numbers(FINE, 4)
    marked = written(in_8_bits(picture()), numbers(COUNT, 1), None, *meant)
    counts = ((n + 40, n, n - 40) for n in (MOST, FINE))
    for messages, values in zip(channel.read(marked, COUNT, MORE, *counts)[2:], meant, strict=True):
        assert messages.error < 0.1 and (messages.values - values).square().mean().sqrt() < 0.1


@pytest.mark.slow
def test_a_grey_face_has_no_fourth_channel():
    shown = in_8_bits(picture(grey=True))
    fourth = numbers(FINE, 4)
    assert not channel.write(shown, mask(), None, None, None, fourth).any()
    assert channel.room(channel.FOURTH, shown, mask()) == 0 < channel.room(channel.THIRD, shown, mask(), MORE)
    *_, messages = channel.read(shown, COUNT, MORE, MOST, (FINE, FINE - 100))
    assert messages.error == 1


def test_what_a_small_face_cannot_say_finely_does_not_disturb_the_rest():
    meant = [numbers(n, seed) for seed, n in enumerate((COUNT, MORE, MOST, FINE))]
    small = lambda x: F.interpolate(x, (96, 96), mode="bilinear", antialias=True)  # noqa: E731
    large = lambda x: F.interpolate(x, (SIDE, SIDE), mode="bilinear")  # noqa: E731
    start = in_8_bits(small(picture()))
    stored, summed = start, torch.zeros(1, 3, channel.GRID, channel.GRID)
    for _ in range(4):
        summed = summed + 1.2 * channel.write(large(stored), mask(), *meant)
        stored = in_8_bits(start + small(summed))
    messages = channel.read(large(stored), COUNT, MORE, MOST, FINE)
    assert [one.error < 0.3 for one in messages] == [True, True, True, False]


def test_every_coefficient_is_in_one_block_and_patterns_are_orthonormal():
    for group in channel.GROUPS:
        blocks = [channel._patterns(group, block, False) for block in range(group.blocks)]
        places = torch.cat([places for places, _ in blocks])
        assert torch.equal(places.sort().values, torch.arange(len(places)))
        for own, patterns in blocks:
            assert abs(len(own) - len(places) / group.blocks) < 0.02 * len(places)
            assert (patterns @ patterns.T - torch.eye(len(own))).abs().max() < 1e-4


def test_a_face_is_the_same_without_its_watermark():
    shown = in_8_bits(picture())
    marked = written(shown, numbers(COUNT, 1), numbers(MORE, 2))
    before, after = (channel.without_watermark(x) for x in (shown, marked))
    plain = [F.avg_pool2d(x, SIDE // channel.GRID) for x in (shown, marked)]
    assert (before - after).abs().mean() < 0.25 * (plain[0] - plain[1]).abs().mean()
    assert 0 < (before - plain[0]).abs().mean() < 0.1


def test_a_face_that_is_mostly_hidden_is_not_covered_with_noise():
    shown, seen = in_8_bits(picture()), mask()
    rows = {}
    for lowest in (200, 120, 95):
        seen[:, :, lowest:] = 0
        pattern = channel.write(shown, seen, numbers(COUNT, 1), numbers(MORE, 2), numbers(MOST, 3))
        planes = channel._planes(pattern)
        rows[lowest] = bool(planes[0].abs().max() > 1), bool(planes[1:].abs().max() > 1)
    assert rows == {200: (True, True), 120: (True, False), 95: (False, False)}


def test_plain_parts_move_less_than_busy_ones():
    shown = picture()
    shown[..., : SIDE // 2] = 0.1
    change = channel.write(shown, torch.ones(1, 1, SIDE, SIDE), numbers(COUNT, 1)).abs().mean((0, 1))
    half = channel.GRID // 2
    assert change[:, : half - 4].mean() < 0.8 * change[:, half + 4 :].mean()


@pytest.mark.parametrize("wished", [(slice(3), slice(20, 22)), (slice(12), slice(16, 24))])
def test_the_least_change_that_says_what_is_wanted_is_found_whichever_rows_are_solved_for(wished):
    rng = torch.Generator().manual_seed(7)
    basis = torch.linalg.qr(torch.randn(24, 24, generator=rng, dtype=torch.float64)).Q
    free = 2 * torch.rand(24, generator=rng, dtype=torch.float64) + 0.2
    messages = torch.cat([basis[some] for some in wished])
    wanted = torch.randn(len(messages), generator=rng, dtype=torch.float64)
    found = channel._least_change(basis, wished, wanted, free)
    least = free.sqrt() * (torch.linalg.pinv(messages * free.sqrt()) @ wanted)
    assert (found - least).norm() < 0.01 * least.norm()  # but for what a wish may not cost
    assert (wanted @ messages - least).norm() > 0.05 * least.norm()  # the basis alone would not have found it
    free[:6] = 0
    assert not channel._least_change(basis, wished, wanted, free)[:6].any()
