"""Gross weaknesses that a report shows. Limits are wide: no reader would call such figures good."""

from __future__ import annotations

import math

from anonface.evaluation.measurements import ANONYMIZED, NO_IDENTITY, ONE_BIT, RANDOM, RIGHT, TWO_KEYS, TWO_PEOPLE
from anonface.evaluation.report import Report

NOT_ANONYMIZED = 0.5  # share of anonymized faces recognized
SAME = 0.8  # share of pairs, of keys or of people, that match
LEAST = 8  # measurements; a rate of fewer shows nothing
WITHOUT_KEY = 0.2  # share recovered without the key
WRONG_KEY = 0.5  # a wrong key's rate over the right key's


def gross_weaknesses(report: Report) -> str:
    """Their names joined, "none seen", or that too little was measured."""

    def rate(name: str, what: str = "matched to the original") -> float:
        """At the judge's own threshold; NaN, for which no comparison holds, where too little was measured."""
        found = report.rate(f"{name}: {what}")
        return found.value if found.n >= LEAST else math.nan

    right = rate(RIGHT)
    shown = {
        "the photo comes out as it went in, or nearly: most anonymized faces are still recognized": (
            rate(ANONYMIZED) > NOT_ANONYMIZED
        ),
        "the key is ignored: whatever the key, one photo becomes one person": (
            rate(TWO_KEYS, "matched to each other") > SAME
        ),
        "everybody becomes one face": rate(TWO_PEOPLE, "matched to each other") > SAME,
        "any key recovers the person": (
            right > WITHOUT_KEY and any(rate(name) > WRONG_KEY * right for name in (RANDOM, ONE_BIT))
        ),
        "identity passes beside the key: recovery without an identity code finds the person": (
            rate(NO_IDENTITY) > WITHOUT_KEY
        ),
    }
    if math.isnan(rate(ANONYMIZED)):
        return f"not known: fewer than {LEAST} anonymized faces"
    return "; ".join(name for name, is_shown in shown.items() if is_shown) or "none seen"
