"""One original with its anonymization, under the key and the salt of all others: what of another photo comes back?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.audit.finding import Attack, Finding, standing, told_apart
from anonface.evaluation.audit.subject import Subject
from anonface.evaluation.metrics import likeness

Floats = NDArray[np.float64]
Transfer = Callable[[Floats, Floats, Floats], Floats]
"""(anonymized of the pair, original of the pair, another anonymized) -> a guess at the other original."""


def _run(subject: Subject) -> list[Finding]:
    standings: dict[str, list[float]] = {}
    for name, transfer in _transfers(subject.model.block).items():
        standings[name] = [_led_back(subject, number, transfer) for number in range(len(subject.targets))]
    measure = "another photo's person told from strangers"
    return [told_apart(measure, standings, subject.people, folded=True, detail=subject.alone)]


def _led_back(subject: Subject, number: int, transfer: Transfer) -> float:
    """Mean standing of a target's person by the pairs that photos of other people give."""
    seen, own = subject.hidden[number], subject.code(subject.partners[number])
    if seen is None or seen.code is None:
        return np.nan
    standings = []
    for pair, (hidden, original) in enumerate(zip(subject.hidden, subject.originals, strict=True)):
        known = subject.people[pair]
        if known == subject.people[number] or hidden is None or hidden.code is None or original.code is None:
            continue
        guess = transfer(hidden.code, original.code, seen.code)
        strangers = [other for other in subject.strangers(number) if other.identity != known]
        standings.append(standing(likeness(guess, own), [likeness(guess, subject.code(other)) for other in strangers]))
    return float(np.nanmean(standings)) if not np.isnan(standings).all() else np.nan


def _transfers(block: int | None) -> dict[str, Transfer]:
    transfers: dict[str, Transfer] = {"difference": _by_difference, "rotation": _by_rotation, "signs": _by_signs}
    if block:
        transfers["rotation of each block"] = lambda *codes: np.concatenate(
            [_by_rotation(*parts) for parts in zip(*(code.reshape(-1, block) for code in codes), strict=True)]
        )
    return transfers


def _by_difference(hidden: Floats, original: Floats, other: Floats) -> Floats:
    return other + original - hidden


def _by_signs(hidden: Floats, original: Floats, other: Floats) -> Floats:
    return other * np.sign(hidden * original)


def _by_rotation(hidden: Floats, original: Floats, other: Floats) -> Floats:
    """The least rotation that leads the pair back, on the other: x - (a+b) (a+b)x / (1+ab) + 2 b ax."""
    a, b = (x / max(1e-9, float(np.linalg.norm(x))) for x in (hidden, original))
    return other - (a + b) * ((a + b) @ other) / max(1e-9, 1 + float(a @ b)) + 2 * b * (a @ other)


ATTACK = Attack(
    "known-pair",
    shows="one known original opens other photos of the key",
    silent="many pairs, which reveal any fixed linear map; photos with salts of their own, which share no map at all; "
    "the same person elsewhere, who is the same other person under one salt by design",
    published="none",
    run=_run,
)
