"""Several photos of one key: what one known original opens, and what ties outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.audit.finding import Attack, Finding, counted, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject, by_code, by_look
from anonface.evaluation.metrics import likeness
from anonface.record import anf1, carriers

ALIKE = 512  # numbers of a payload by which groups are told

Floats = NDArray[np.float64]
Likeness = Callable[[Seen | None, Seen | None], float]
Transfer = Callable[[Floats, Floats, Floats], Floats]
"""(anonymized of the pair, original of the pair, another anonymized) -> a guess at the other original."""


def _known_pair(subject: Subject) -> list[Finding]:
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


def _linkability(subject: Subject) -> list[Finding]:
    return [_one_key(subject), _one_group(subject), _one_person(subject), *_one_record(subject)]


def _one_key(subject: Subject) -> Finding:
    """Outputs of different people: are those of one key and one salt more alike than those of two keys?"""

    def shares(number: int, like: Likeness) -> list[float]:
        mine, person = subject.hidden[number], subject.people[number]
        others = [j for j, other in enumerate(subject.people) if other != person]
        apart = [like(mine, subject.hidden_otherwise[j]) for j in others]
        return [standing(like(mine, subject.hidden[j]), apart) for j in others]

    return _told("two people's outputs tied by one key", subject, shares)


def _one_group(subject: Subject) -> Finding:
    """Outputs told to be of one of two keys by groups of them: the means of the same other people under either key.

    What ties two photos faintly adds up in a mean of many.
    """
    scores = {}
    for name, numbers in (("recognizer", _look), ("identity encoder", _code), ("payload", _said)):
        groups = [
            [numbers(subject, seen) for seen in seen_all] for seen_all in (subject.hidden, subject.hidden_otherwise)
        ]
        scores[name] = [_nearer_to_its_own(groups, subject.people, number) for number in range(len(subject.targets))]
    return told_apart("key of an output told by groups of two keys", scores, subject.people, folded=True, spread=0.5)


def _nearer_to_its_own(groups: Sequence[Sequence[Floats | None]], people: Sequence[str], number: int) -> float:
    """Of a photo under both keys, the share that lies nearer to the mean of its own key's photos; NaN where unknown."""
    other = [j for j, person in enumerate(people) if person != people[number]]
    first, second = ([own for j in other if (own := group[j]) is not None] for group in groups)
    one, same = (group[number] for group in groups)
    if one is None or same is None or min(len(first), len(second)) < 2:
        return np.nan
    means = [np.mean(group, axis=0) for group in (first, second)]
    towards = means[0] / np.linalg.norm(means[0]) - means[1] / np.linalg.norm(means[1])
    return standing(float(one @ towards), [float(same @ towards)])


def _look(subject: Subject, seen: Seen | None) -> Floats | None:
    return np.asarray(seen.look.embedding, np.float64) if seen and seen.look else None


def _code(subject: Subject, seen: Seen | None) -> Floats | None:
    return seen.code if seen else None


def _said(subject: Subject, seen: Seen | None) -> Floats | None:
    """A payload as it is said, on the circle."""
    said = subject.model.said(seen.crop) if subject.model.said and seen and seen.crop is not None else None
    if said is None:
        return None
    said = np.resize(said, ALIKE)  # more of a large face is said; the longer ones are cut, short ones go on anew
    return np.concatenate([np.cos(np.pi * said), np.sin(np.pi * said)])


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


KNOWN_PAIR = Attack(
    "known-pair",
    shows="one known original opens other photos of the key",
    silent="many pairs, which reveal any fixed linear map; photos with salts of their own, which share no map at all; "
    "the same person elsewhere, who is the same other person under one salt by design",
    published="none",
    run=_known_pair,
)
LINKABILITY = Attack(
    "linkability",
    shows="outputs betray that they belong to one key, or to one person whom two keys were to part",
    silent="what the rest of the photos says; one person under one key with --consistent, who is tied on purpose",
    published="none",
    run=_linkability,
)
