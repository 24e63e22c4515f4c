"""A recognizer that has learned how suspects look once anonymized.

The attacker anonymizes other photos of the suspects under keys of their own and fits a linear discriminant head
(Fisher's, with a shrunk covariance) to both recognizers' embeddings of the results.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.audit.finding import ALLOWED_STANDING, CHANCE, Attack, Finding, standing, told_apart
from anonface.evaluation.audit.inversion import features
from anonface.evaluation.audit.subject import Subject
from anonface.evaluation.metrics import NOTHING

Floats = NDArray[np.float64]

MEASURE = "person told from suspects by an adapted recognizer"
SHRINK = 0.5  # weight of a round covariance


def _run(subject: Subject) -> list[Finding]:
    examples = [(photo.identity, features(seen)) for photo, seen in subject.practice]
    known = {person for person, count in Counter(person for person, _ in examples).items() if count > 1}
    examples = [(person, x) for person, x in examples if person in known]
    if len(known) < 2 or not known & set(subject.people):
        why = "nobody under attack has other photos to learn from"
        return [Finding(MEASURE, NOTHING, CHANCE, ALLOWED_STANDING, None, why)]
    means, whitening = _head(examples)
    standings, first = [], 0
    for number, seen in enumerate(subject.hidden):
        person = subject.people[number]
        if person not in means or seen is None or seen.code is None or seen.look is None:
            standings.append(np.nan)
            continue
        suspects = [other for other in means if other != person and other in _same_kind(subject, number)]
        x = features(seen) @ whitening
        scores = [-float(np.linalg.norm(x - means[other] @ whitening)) for other in (person, *suspects)]
        standings.append(standing(scores[0], scores[1:]))
        first += scores[0] > max(scores[1:], default=np.inf)
    tried = int((~np.isnan(standings)).sum())
    detail = f"{len(examples)} examples of {len(means)} suspects; the person came first in {first} of {tried}"
    return [told_apart(MEASURE, {"": standings}, subject.people, detail=detail)]


def _same_kind(subject: Subject, number: int) -> set[str]:
    """Suspects of the target's apparent sex, which is kept on purpose."""
    photos = [*subject.gallery.kin, *subject.gallery.practice]
    return {photo.identity for photo in subject.alike(subject.targets[number], photos)}


def _head(examples: list[tuple[str, Floats]]) -> tuple[dict[str, Floats], Floats]:
    """The mean of each person, and the map after which a person's examples spread alike in all directions."""
    people = {person: np.stack([x for other, x in examples if other == person]) for person, _ in examples}
    means = {person: rows.mean(0) for person, rows in people.items()}
    within = np.concatenate([rows - means[person] for person, rows in people.items()])
    covariance = within.T @ within / len(within)
    round_one = np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    values, axes = np.linalg.eigh((1 - SHRINK) * covariance + SHRINK * round_one + 1e-12 * np.eye(len(covariance)))
    return means, axes / np.sqrt(values)


ATTACK = Attack(
    "parrot",
    shows="suspects can be recognised by how they look once anonymized, under any key",
    silent="networks trained as a whole on many anonymized photos; people who are not on the list",
    published="none; the papers test recognizers as they are",
    run=_run,
)
