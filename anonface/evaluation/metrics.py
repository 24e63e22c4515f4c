"""Match rates, thresholds, person-clustered intervals and landmark shifts. Pure numpy.

Conventions. A *distance* is Euclidean between two embeddings, and two faces *match* when it is below the threshold.
NaN stands for "no face was found to measure". A *cluster* is a person: photos of one person are not independent, so
every interval resamples people, never photos. Boxes are (x, y, w, h) in photo pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

DRAWS = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A point estimate with the bounds of its 95 % bootstrap interval.

    Attributes:
        value: the estimate; NaN when nothing was measured.
        low, high: 2.5 % and 97.5 % quantiles over resampled people; NaN when nothing was measured.
        n: number of measurements (photos times keys, or pairs) behind ``value``.
    """

    value: float
    low: float
    high: float
    n: int


def fixed(value: float) -> Interval:
    """A number that was not measured here."""
    return Interval(value, value, value, 0)


NOTHING = Interval(float("nan"), float("nan"), float("nan"), 0)


def match_rate(
    distances: ArrayLike, clusters: Sequence[str], threshold: float, *, missing_matches: bool = False
) -> Interval:
    """Share of distances below a threshold, with its person-clustered interval.

    Args:
        distances: [n] distances, NaN where no face was found.
        clusters: n names of the people concerned.
        threshold: a distance below it is a match.
        missing_matches: count NaN as a match (the worst reading of a privacy figure) rather than as none.
    """
    d = np.asarray(distances, dtype=np.float64)
    matched = np.where(np.isnan(d), missing_matches, d < threshold)
    return clustered_mean(matched, clusters)


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share, (0, 1) where nothing was counted."""
    if not count:
        return 0.0, 1.0
    share, z = hits / count, 1.96
    middle = share + z * z / (2 * count)
    half = z * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def clustered_mean(values: ArrayLike, clusters: Sequence[str], *, seed: int = 0) -> Interval:
    """Mean of the values that are not NaN; its interval resamples whole clusters.

    Args:
        values: [n] numbers; NaN entries are left out.
        clusters: n cluster names.
        seed: of the resampling, so that the same measurements print the same interval.
    """
    v = np.asarray(values, dtype=np.float64)
    kept = ~np.isnan(v)
    v = v[kept]
    if v.size == 0:
        return NOTHING
    sums, counts = _per_cluster(v, np.asarray(clusters)[kept])
    weights = _resampled(len(sums), seed)
    low, high = _bounds((weights @ sums) / (weights @ counts))
    return Interval(float(v.mean()), low, high, v.size)


def impostor_threshold(
    embeddings: ArrayLike, identities: Sequence[str], far: float = 0.001, *, draws: int = 1000, seed: int = 0
) -> Interval:
    """Threshold at a false accept rate from all pairs of different people, with its person-clustered interval.

    A resampled person drawn m times gives weight m to each of their pairs; copies of one person form no pair.

    Args:
        embeddings: [n, d], one a photo.
        identities: n names.
        far: false accept rate, 0..1.

    Returns:
        Interval whose ``n`` is the number of impostor pairs; NaN values where there is none.
    """
    e = np.asarray(embeddings, dtype=np.float64)
    people, index = np.unique(np.asarray(identities), return_inverse=True)
    first, second = np.triu_indices(len(e), k=1)
    apart = index[first] != index[second]
    first, second = first[apart], second[apart]
    if first.size == 0:
        return NOTHING
    distances = np.concatenate(
        [np.linalg.norm(e[i] - e[j], axis=1) for i, j in _chunks(first, second)]  # bounded memory for large folders
    )
    order = np.argsort(distances)
    distances, a, b = distances[order], index[first][order], index[second][order]
    drawn = []
    for weights in _resampled(len(people), seed, draws):
        pair = weights[a] * weights[b]
        if pair.any():
            drawn.append(_weighted_threshold(distances, pair, far))
    low, high = _bounds(np.asarray(drawn))
    return Interval(_weighted_threshold(distances, np.ones(distances.size), far), low, high, distances.size)


def overlap(box: ArrayLike, boxes: ArrayLike) -> Floats:
    """Intersection over union of one box with each of n boxes: [4], [n, 4] -> [n] in 0..1."""
    a = np.asarray(box, dtype=np.float64)
    b = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    corner = np.minimum(a[:2] + a[2:], b[:, :2] + b[:, 2:]) - np.maximum(a[:2], b[:, :2])
    shared = np.prod(np.clip(corner, 0, None), axis=1)
    return shared / (a[2] * a[3] + b[:, 2] * b[:, 3] - shared)


def landmark_shift(original: ArrayLike, changed: ArrayLike, size: int = 256) -> float:
    """Mean absolute difference of two sets of 68 points along the axes of the original's FFHQ crop, in crop pixels.

    The crop's half side is x = e - rot90(m) scaled to max(2 |e|, 1.8 |m|), e from eye to eye and m from eyes to
    mouth (FFHQ alignment, Karras et al. 2019), so the figure depends neither on the photo's size nor on the roll.

    Args:
        original, changed: [68, 2] landmarks in the order of the iBUG 300-W annotation, photo pixels.
        size: side of the crop that the shift is expressed in.
    """
    a, b = np.asarray(original, dtype=np.float64), np.asarray(changed, dtype=np.float64)
    left, right = a[36:42].mean(0), a[42:48].mean(0)
    eyes, mouth = right - left, (a[48] + a[54]) / 2 - (left + right) / 2
    axis = eyes + np.array([mouth[1], -mouth[0]])
    axis /= np.hypot(*axis)
    side = 2 * max(2.0 * np.hypot(*eyes), 1.8 * np.hypot(*mouth))
    moved = (b - a) @ np.array([[axis[0], -axis[1]], [axis[1], axis[0]]])
    return float(np.abs(moved).mean() * size / side)


def shift(original: ArrayLike, changed: ArrayLike, side: float, size: int = 256) -> float:
    """Mean absolute difference of two arrays of photo pixels, where ``side`` of these are shown as ``size``."""
    return float(np.abs(np.asarray(changed, dtype=np.float64) - np.asarray(original)).mean() * size / side)


def nearest_is(embedding: ArrayLike, gallery: ArrayLike, identities: Sequence[str], identity: str) -> bool:
    """Whether the nearest of a gallery's embeddings [n, d] is of that person: a hit at rank 1."""
    distances = np.linalg.norm(np.asarray(gallery, dtype=np.float64) - np.asarray(embedding), axis=1)
    return identities[int(np.argmin(distances))] == identity


def likeness(a: Floats, b: Floats) -> float:
    """Similarity of two embeddings: their negative Euclidean distance."""
    return -float(np.linalg.norm(a - b))


def _per_cluster(values: Floats, clusters: Sequence[str] | NDArray) -> tuple[Floats, Floats]:
    """Sum and number of the values of each cluster, clusters in sorted order."""
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.bincount(index, weights=values)
    return sums.astype(np.float64), np.bincount(index).astype(np.float64)


def _resampled(clusters: int, seed: int, draws: int = DRAWS) -> Floats:
    """How often each cluster is drawn in each bootstrap sample: [draws, clusters]."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=draws).astype(np.float64)


def _bounds(samples: Floats) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    return (
        float(np.quantile(samples, tail, method="lower")),
        float(np.quantile(samples, 1 - tail, method="higher")),
    )


def _weighted_threshold(ascending: Floats, weights: Floats, far: float) -> float:
    """Largest threshold with at most the share ``far`` of the weights strictly below it."""
    accepted = np.cumsum(weights)
    # The tolerance keeps far * n = k, an exact count, from being lost to rounding (0.001 * 3000 -> 3.0000000004).
    index = int(np.searchsorted(accepted, far * accepted[-1] * (1 + 1e-9), side="right"))
    return float(ascending[min(index, len(ascending) - 1)])


def _chunks(first: NDArray, second: NDArray, size: int = 65536) -> list[tuple[NDArray, NDArray]]:
    return [(first[i : i + size], second[i : i + size]) for i in range(0, len(first), size)]
