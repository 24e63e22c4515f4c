import math

import numpy as np
import pytest

from anonface.evaluation import metrics


def test_match_rate_counts_strictly_below_the_threshold():
    rate = metrics.match_rate([0.2, 0.6, 0.59, math.nan], ["a", "a", "b", "c"], 0.6)
    assert (rate.value, rate.n) == (0.5, 4)


def test_missing_faces_can_count_as_matches():
    distances, people = [0.2, math.nan, 0.9, math.nan], ["a", "b", "c", "d"]
    assert metrics.match_rate(distances, people, 0.6).value == 0.25
    assert metrics.match_rate(distances, people, 0.6, missing_matches=True).value == 0.75


def test_mean_leaves_out_what_was_not_measured():
    mean = metrics.clustered_mean([1.0, math.nan, 3.0], ["a", "b", "c"])
    assert (mean.value, mean.n) == (2.0, 2)
    nothing = metrics.clustered_mean([math.nan], ["a"])
    assert math.isnan(nothing.value) and nothing.n == 0


def test_intervals_resample_people_not_photos():
    # Two people whose photos all agree: people vary between 0 and 1, photos as independent ones would not.
    values = np.repeat([0.0, 1.0], 100)
    by_person = metrics.clustered_mean(values, ["a"] * 100 + ["b"] * 100)
    by_photo = metrics.clustered_mean(values, [str(i) for i in range(200)])
    assert (by_person.low, by_person.high) == (0.0, 1.0)
    # Standard error of a share of one half among 200: 0.0354.
    assert by_photo.low == pytest.approx(0.5 - 1.96 * 0.0354, abs=0.015)
    assert by_photo.high == pytest.approx(0.5 + 1.96 * 0.0354, abs=0.015)


def test_one_person_alone_gives_no_width():
    mean = metrics.clustered_mean([0.0, 1.0, 1.0, 1.0], ["a"] * 4)
    assert (mean.value, mean.low, mean.high) == (0.75, 0.75, 0.75)


@pytest.mark.parametrize(("n", "far", "accepted"), [(1000, 0.001, 1), (999, 0.001, 0), (3000, 0.001, 3), (50, 0.1, 5)])
def test_threshold_accepts_the_stated_share_of_impostors(n, far, accepted):
    distances = np.arange(1, n + 1) / n
    threshold = metrics._weighted_threshold(distances, np.ones(n), far)
    assert threshold == pytest.approx((accepted + 1) / n)
    assert (distances < threshold).sum() == accepted


def test_impostor_threshold_uses_pairs_of_different_people_only():
    # On a line: a at 0 and 0.1, b at 1, c at 3. Impostor distances: 1, 0.9, 3, 2.9, 2 (a-a is left out).
    embeddings, people = [[0.0], [0.1], [1.0], [3.0]], ["a", "a", "b", "c"]
    found = metrics.impostor_threshold(embeddings, people, far=0.2)
    assert (found.value, found.n) == (1.0, 5)
    assert found.low <= found.value <= found.high
    assert metrics.impostor_threshold(embeddings, ["a"] * 4).n == 0


def test_impostor_interval_widens_with_fewer_people():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(60, 8))
    many = metrics.impostor_threshold(points, [str(i) for i in range(60)], far=0.02, draws=300)
    few = metrics.impostor_threshold(points[:12], [str(i) for i in range(12)], far=0.02, draws=300)
    assert few.high - few.low > many.high - many.low > 0


def test_overlap():
    shared = metrics.overlap((0, 0, 10, 10), [(0, 0, 10, 10), (5, 0, 10, 10), (10, 0, 10, 10), (2, 2, 5, 5)])
    assert shared == pytest.approx([1.0, 50 / 150, 0.0, 0.25])
    assert metrics.overlap((0, 0, 1, 1), np.empty((0, 4))).shape == (0,)


def face68(turn: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """Eyes 60 px apart, mouth 70 px below them: the crop's half side is 126 px (1.8 * 70)."""
    points = np.zeros((68, 2))
    points[36:42], points[42:48] = (-30, 0), (30, 0)
    points[48], points[54] = (-20, 70), (20, 70)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return scale * points @ rotation.T + 200


def test_landmark_shift_is_in_crop_pixels():
    a = face68()
    # (6, 3) photo pixels: mean over x and y is 4.5, in a crop of 252 px shown at 256.
    assert metrics.landmark_shift(a, a + np.array([6.0, -3.0])) == pytest.approx(4.5 * 256 / 252)
    assert metrics.landmark_shift(a, a) == 0


def test_landmark_shift_ignores_roll_and_size():
    moved = np.random.default_rng(0).normal(size=(68, 2))
    turn = 0.7
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    upright = metrics.landmark_shift(face68(), face68() + moved)
    turned = metrics.landmark_shift(face68(turn, 3.0), face68(turn, 3.0) + 3.0 * moved @ rotation.T)
    assert turned == pytest.approx(upright)
