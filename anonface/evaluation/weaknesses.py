"""Gross weaknesses that a report's rows betray, each by its name.

The limits are wide on purpose: what is named here no reader of the tables would call good, whatever the photos.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from anonface.evaluation.report import Report
from anonface.evaluation.trials import ANONYMIZED, NO_IDENTITY, ONE_BIT, RANDOM, RIGHT, TWO_KEYS, TWO_PEOPLE

UNHIDDEN = 0.5  # of the hidden faces recognised
SAME = 0.8  # of the pairs, of keys or of people, that give one person
LEAST = 8  # measurements, below which a rate names nothing
LEAKED = 0.2  # led back without the key
KEYLESS = 0.5  # of the right key's rate reached by a wrong one


@dataclass(frozen=True)
class Weakness:
    """Something gross.

    Attributes:
        name: in a few words.
        shows: whether a report shows it.
    """

    name: str
    shows: Callable[[Report], bool]


def _rate(report: Report, name: str, what: str = "matched to the original") -> float:
    """A rate at the judge's own threshold; NaN, which no comparison holds for, where too little was measured."""
    try:
        rate = report.rate(f"{name}: {what}")
    except KeyError:
        return math.nan
    return rate.value if rate.n >= LEAST else math.nan


def _any_key(report: Report) -> bool:
    right = _rate(report, RIGHT)
    return right > LEAKED and any(_rate(report, name) > KEYLESS * right for name in (RANDOM, ONE_BIT))


WEAKNESSES = (
    Weakness(
        "the photo comes out as it went in, or nearly: most hidden faces are still recognised",
        lambda report: _rate(report, ANONYMIZED) > UNHIDDEN,
    ),
    Weakness(
        "the key is ignored: whatever the key, one photo becomes one person",
        lambda report: _rate(report, TWO_KEYS, "matched to each other") > SAME,
    ),
    Weakness(
        "everybody becomes one face",
        lambda report: _rate(report, TWO_PEOPLE, "matched to each other") > SAME,
    ),
    Weakness("any key leads back", _any_key),
    Weakness(
        "identity passes beside the key: recovery without an identity code finds the person",
        lambda report: _rate(report, NO_IDENTITY) > LEAKED,
    ),
)


def verdict(report: Report) -> str:
    """The names of those that the report shows; that it shows none, or that it says too little to tell."""
    shown = [weakness.name for weakness in WEAKNESSES if weakness.shows(report)]
    if math.isnan(_rate(report, ANONYMIZED)):
        return f"untold: fewer than {LEAST} hidden faces"
    return "; ".join(shown) or "none seen"
