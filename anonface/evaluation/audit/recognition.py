"""Whoever only looks: is the anonymized face still the person, with or without the keyed code, and who becomes whom?"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from anonface.evaluation.audit.finding import Attack, Finding, matched, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject, by_look
from anonface.evaluation.metrics import likeness

PUBLISHED_RATE = 0.02  # HFORD and DBAF, FaceNet trained on VGGFace2, anonymized against its own original
# Measured apart, with many more people; README says it too. Rank r of n is a standing of (n - r) / (n - 1).
KNOWN = "rank 6.5 of 20, or 0.71, is known of ifadit"
SAME_PHOTO_RATE = 0.1  # pose, light and hair stay: two strangers drawn into one photo are matched about so often
TWO_PEOPLE_RATE = 0.02


def _viewer(subject: Subject) -> list[Finding]:
    return recognized(subject, subject.hidden)


def recognized(subject: Subject, results: list[Seen | None]) -> list[Finding]:
    """How often results match their originals, and whether the person can be told in another photo of theirs.

    Args:
        results: one a target.
    """
    distances, by_judge, by_code = [], [], []
    for number, (target, seen) in enumerate(zip(subject.targets, results, strict=True)):
        faces = (subject.partners[number], *subject.strangers(number))
        distance, judged, coded = np.nan, np.full(len(faces), np.nan), np.full(len(faces), np.nan)
        if seen and seen.look and target.look:
            distance = -likeness(seen.look.embedding, target.look.embedding)
            judged = np.array([likeness(seen.look.embedding, face.look.embedding) for face in faces if face.look])
        if seen and seen.code is not None:
            coded = np.array([likeness(seen.code, subject.code(face)) for face in faces])
        distances.append(distance)
        by_judge.append(standing(judged[0], judged[1:]))
        by_code.append(standing(coded[0], coded[1:]))
    name = subject.judges.recognizer.name
    scores = {name: by_judge, "identity encoder": by_code}
    return [
        matched(f"matched to the original by {name}", distances, subject.people, subject.threshold, PUBLISHED_RATE),
        told_apart("person told from strangers", scores, subject.people, folded=True, detail=subject.alone),
    ]


def _attributes(subject: Subject) -> list[Finding]:
    mute = subject.model.mute
    if mute is None:
        why = "this backend has no identity code to leave out"
        return [told_apart("recovered without an identity code", {}, subject.people, detail=why)]
    results = [subject.lead(mute, number, subject.key) for number in range(len(subject.targets))]
    matches, told = recognized(subject, results)
    return [matches, replace(told, detail="; ".join(filter(None, [told.detail, KNOWN])))]


def _diversity(subject: Subject) -> list[Finding]:
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


VIEWER = Attack(
    "viewer",
    shows="the anonymized face is recognised, or says whom to look for; an engine that returns its input ends here",
    silent="other recognizers than these two, people who know the person, what clothes and place give away",
    published="matched: 0.020 (HFORD), 0.012 to 0.020 (DBAF), FaceNet at 1.1, CelebA-HQ",
    run=_viewer,
)
ATTRIBUTES = Attack(
    "attributes",
    shows="identity passes through the attributes, past the key",
    silent="what a network trained for it would read from them: see inversion",
    published="none; iFADIT shows such faces in its figure 7 without a number",
    run=_attributes,
)
DIVERSITY = Attack(
    "diversity",
    shows="the key changes nothing, or everybody becomes one and the same face",
    silent="how many different faces there are; two keys are tried",
    published="mean cosine over keys 0.062, KFFA 74.7 (iFADIT, ArcFace); not on this scale",
    run=_diversity,
)
