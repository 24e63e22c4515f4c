"""Whether keys and people matter: two outputs that should be of two people, and are of one."""

from __future__ import annotations

import itertools

import numpy as np

from anonface.evaluation.audit.finding import Attack, Finding, matched
from anonface.evaluation.audit.subject import Subject, by_look

SAME_PHOTO_RATE = 0.1  # pose, light and hair stay: two strangers drawn into one photo are matched about so often
TWO_PEOPLE_RATE = 0.02


def _run(subject: Subject) -> list[Finding]:
    number = range(len(subject.targets))
    apart = [(i, j) for i, j in itertools.permutations(number, 2) if subject.people[i] != subject.people[j]]
    return [
        _compared(subject, "one photo under two keys matched", [(i, i) for i in number], SAME_PHOTO_RATE),
        _compared(subject, "two people under two keys matched", apart, TWO_PEOPLE_RATE),
    ]


def _compared(subject: Subject, measure: str, pairs: list[tuple[int, int]], rate: float) -> Finding:
    distances = [-by_look(subject.hidden[i], subject.hidden_otherwise[j]) for i, j in pairs]
    people = [subject.people[i] for i, _ in pairs]
    found = [distance for distance in distances if not np.isnan(distance)]
    mean = f"mean distance {np.mean(found):.2f}" if found else ""
    return matched(measure, distances, people, subject.threshold, rate, mean)


ATTACK = Attack(
    "diversity",
    shows="the key changes nothing, or everybody becomes one and the same face",
    silent="how many different faces there are; two keys are tried",
    published="mean cosine over keys 0.062, KFFA 74.7 (iFADIT, ArcFace); not on this scale",
    run=_run,
)
