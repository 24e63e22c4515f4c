import numpy as np
import pytest

from anonface.evaluation.measurements import ANONYMIZED, RIGHT, Measured
from anonface.evaluation.set_distances import frechet, kernel
from anonface.evaluation.summary import Summary


def sample(n, mean, scale, seed):
    return list(np.random.default_rng(seed).normal(mean, scale, (n, 6)))


def test_frechet_of_gaussians_is_the_closed_form():
    a, b = sample(20_000, 0.0, 1.0, 1), sample(20_000, 0.5, 3.0, 2)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet(a, b) == pytest.approx(6 * 0.5**2 + 6 * (3 - 1) ** 2, rel=0.02)
    assert frechet(a, b) == pytest.approx(frechet(b, a))


def test_frechet_knows_directions():
    turned = np.array(sample(20_000, 0.0, 1.0, 3)) * (1, 2, 1, 1, 1, 1)
    other = np.array(sample(20_000, 0.0, 1.0, 4)) * (2, 1, 1, 1, 1, 1)
    assert frechet(list(turned), list(other)) == pytest.approx(2, rel=0.05)


def test_kernel_is_unbiased():
    small = [kernel(sample(10, 0.0, 1.0, 2 * i), sample(10, 0.0, 1.0, 2 * i + 1)) for i in range(400)]
    assert abs(np.mean(small)) < 3 * np.std(small) / 20
    assert kernel(sample(300, 0.0, 1.0, 1), sample(300, 1.0, 1.0, 2)) > 10 * np.std(small)


class Named:
    name = "some features"


class JudgesOf:
    features = Named()


def test_a_report_has_them_of_enough_faces():
    summary = Summary.__new__(Summary)
    summary.judges = JudgesOf()
    photos = [
        Measured(str(i), features={"original": [x], ANONYMIZED: [x + 1, x + 1], RIGHT: [x] if i < 3 else []})
        for i, x in enumerate(sample(12, 0.0, 1.0, 5))
    ]
    rows = summary.set_distances(photos)
    assert [row.title for row in rows] == ["anonymized: FID (some features)", "anonymized: KID x 1000 (some features)"]
    assert rows[0].interval.n == 24 and rows[0].interval.value > 1
    assert summary.set_distances(photos[:7]) == []
