"""What an attack is and what it found, and what luck alone would find. Numpy only.

Two kinds of measure. A *standing* is the share of decoys that the attack puts behind the truth: 0.5 by luck, 1 when the
truth always comes first; where it may come last just as tellingly, standings are folded at 0.5. A *match rate* is the
share of pairs that a recognizer takes for one person.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anonface.evaluation.metrics import NOTHING, Interval, clustered_mean

if TYPE_CHECKING:
    from anonface.evaluation.audit.subject import Subject

Floats = NDArray[np.float64]

CHANCE = 0.5
ALLOWED_STANDING = 0.6  # what an attack may reach, however many photos show that it is no luck
LUCK = 0.01  # how often an attack that knows nothing may be taken for a success
UNIFORM = 12**-0.5  # standard deviation of one standing of the truth among many decoys


@dataclass(frozen=True)
class Finding:
    """One measured outcome of an attack.

    Attributes:
        measure: what was measured.
        value: with its interval over people, where there are any.
        chance: what an attack that knows nothing reaches.
        limit: above it the attack has succeeded; it allows for luck, so it is wide for few photos.
        passed: whether the protection held; None where too little was measured to tell.
        detail: what else there is to say, in a few words.
        unit: "standing", "rate", "correlation" or "count".
    """

    measure: str
    value: Interval
    chance: float
    limit: float
    passed: bool | None
    detail: str = ""
    unit: str = "standing"


@dataclass(frozen=True)
class Attack:
    """One way to attack.

    Attributes:
        name: as ``--attacks`` takes it.
        shows: what it means when it succeeds.
        silent: what it says nothing about.
        published: what papers report in its place.
        run: tries it.
    """

    name: str
    shows: str
    silent: str
    published: str
    run: Callable[[Subject], list[Finding]]


def standing(truth: float, decoys: ArrayLike) -> float:
    """Share of decoys with a lower score than the truth's, ties counted half; NaN without decoys."""
    d = np.asarray(decoys, dtype=np.float64)
    d = d[~np.isnan(d)]
    if math.isnan(truth) or d.size == 0:
        return math.nan
    return float(((d < truth).sum() + 0.5 * (d == truth).sum()) / d.size)


def luck(n: int, spread: float = UNIFORM, tries: int = 1) -> float:
    """The mean of n standings that knowing nothing stays below in all but LUCK of cases, for the best of ``tries``."""
    return CHANCE + NormalDist().inv_cdf(1 - LUCK / tries) * spread / math.sqrt(n)


def told_apart(
    measure: str,
    scores: Mapping[str, ArrayLike],
    people: Sequence[str],
    *,
    folded: bool = False,
    spread: float = UNIFORM,
    detail: str = "",
) -> Finding:
    """The outcome of the best of several scores.

    Args:
        scores: [n] standings by the name of the score that made them; NaN where it could not be made.
        people: n names.
        folded: whether a truth that comes last is told as well as one that comes first.
        spread: standard deviation of one standing by luck.
    """
    best, name = NOTHING, ""
    for score, standings in scores.items():
        value = clustered_mean(standings, people)
        if folded and value.value < CHANCE:
            value = Interval(1 - value.value, 1 - value.high, 1 - value.low, value.n)
        if value.n and not value.value <= best.value:
            best, name = value, score
    if best.n == 0:
        return Finding(measure, NOTHING, CHANCE, ALLOWED_STANDING, None, detail or "nothing to compare")
    limit = max(ALLOWED_STANDING, luck(best.n, spread, len(scores) * (1 + folded)))
    passed = best.value <= limit if limit < 1 else None
    said = [f"by {name}"] if len(scores) > 1 else []
    return Finding(measure, best, CHANCE, limit, passed, "; ".join([*said, *([detail] if detail else [])]))


def matched(
    measure: str, distances: ArrayLike, people: Sequence[str], threshold: float, rate: float, detail: str = ""
) -> Finding:
    """The outcome of comparing pairs of faces.

    Args:
        distances: [n], NaN where there was no face to compare, which is no match.
        people: n names.
        threshold: a distance below it is a match.
        rate: share of matches that is no success.
    """
    d = np.asarray(distances, dtype=np.float64)
    value = clustered_mean(d < threshold, people)
    if value.n == 0:
        return Finding(measure, NOTHING, rate, rate, None, detail or "nothing to compare", "rate")
    limit = allowed(value.n, rate) / value.n
    passed = value.value <= limit if limit < 1 else None
    if missing := int(np.isnan(d).sum()):
        detail = "; ".join([*([detail] if detail else []), f"no face in {missing}"])
    return Finding(measure, value, rate, limit, passed, detail, "rate")


def allowed(n: int, rate: float) -> int:
    """The most matches among n that are still luck when the share ``rate`` matches in truth."""
    below = 0.0
    for count in range(n + 1):
        below += math.comb(n, count) * rate**count * (1 - rate) ** (n - count)
        if below >= 1 - LUCK:
            return count
    return n


def counted(measure: str, breaches: int, tried: int, detail: str = "") -> Finding:
    """The outcome of trials of which none may succeed."""
    share = Interval(float(breaches), math.nan, math.nan, tried)
    return Finding(measure, share, 0.0, 0.0, breaches == 0 if tried else None, detail, "count")
