"""What ties outputs together: one key behind two of them, or one person."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anonface.evaluation.audit.finding import Attack, Finding, counted, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject, by_code, by_look
from anonface.record import anf1, carriers

Likeness = Callable[[Seen | None, Seen | None], float]


def _run(subject: Subject) -> list[Finding]:
    return [_one_key(subject), _one_person(subject), *_one_record(subject)]


def _one_key(subject: Subject) -> Finding:
    """Outputs of different people: are those of one key and one salt more alike than those of two keys?"""

    def shares(number: int, like: Likeness) -> list[float]:
        mine, person = subject.hidden[number], subject.people[number]
        others = [j for j, other in enumerate(subject.people) if other != person]
        apart = [like(mine, subject.hidden_otherwise[j]) for j in others]
        return [standing(like(mine, subject.hidden[j]), apart) for j in others]

    return _told("two people's outputs tied by one key", subject, shares)


def _one_person(subject: Subject) -> Finding:
    """One person under two keys, in two photos where there are two, among other people of the same apparent sex."""

    def shares(number: int, like: Likeness) -> list[float]:
        mine, strangers = subject.hidden[number], {stranger.file for stranger in subject.strangers(number)}
        decoys = [subject.elsewhere[j] for j, other in enumerate(subject.targets) if other.file in strangers]
        return [standing(like(mine, subject.elsewhere[number]), [like(mine, decoy) for decoy in decoys])]

    return _told("one person's outputs under two keys tied", subject, shares, subject.alone)


def _told(
    measure: str, subject: Subject, shares: Callable[[int, Likeness], Sequence[float]], detail: str = ""
) -> Finding:
    scores = {}
    for name, like in (("recognizer", by_look), ("identity encoder", by_code)):
        of_each = [shares(number, like) for number in range(len(subject.targets))]
        scores[name] = [np.nan if np.isnan(each).all() else float(np.nanmean(each)) for each in of_each]
    return told_apart(measure, scores, subject.people, folded=True, detail=detail)


def _one_record(subject: Subject) -> list[Finding]:
    """Whether the public records of two photos of one key share anything that other keys' would not."""
    if len(subject.sealed) < 2:
        return []
    headers = [anf1.decode(carriers.expect(output.read_bytes(), str(output))) for _, output in subject.sealed]
    fields = [(h.flow_salt, h.seal.salt, h.seal.check) for h in headers if h.seal]
    shared = sum(a == b for a, b in zip(*fields[:2], strict=True))
    return [counted("records of one key: salts and check values shared", shared, 3)]


ATTACK = Attack(
    "linkability",
    shows="outputs betray that they belong to one key, or to one person whom two keys were to part",
    silent="what the rest of the photos says; one person under one key with --consistent, who is tied on purpose",
    published="none",
    run=_run,
)
