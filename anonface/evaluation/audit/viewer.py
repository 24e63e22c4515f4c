"""Whoever only looks: is the anonymized face still the person?"""

from __future__ import annotations

import numpy as np

from anonface.evaluation.audit.finding import Attack, Finding, matched, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject
from anonface.evaluation.metrics import likeness

PUBLISHED_RATE = 0.02  # HFORD and DBAF, FaceNet trained on VGGFace2, anonymized against its own original


def _run(subject: Subject) -> list[Finding]:
    return recognised(subject, subject.hidden, PUBLISHED_RATE)


def recognised(subject: Subject, results: list[Seen | None], rate: float) -> list[Finding]:
    """How often results match their originals, and whether the person can be told in another photo of theirs.

    Args:
        results: one a target.
        rate: of matches that is no success.
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
        matched(f"matched to the original by {name}", distances, subject.people, subject.threshold, rate),
        told_apart("person told from strangers", scores, subject.people, folded=True, detail=subject.alone),
    ]


ATTACK = Attack(
    "viewer",
    shows="the anonymized face is recognised, or says whom to look for; an engine that returns its input ends here",
    silent="other recognizers than these two, people who know the person, what clothes and place give away",
    published="matched: 0.020 (HFORD), 0.012 to 0.020 (DBAF), FaceNet at 1.1, CelebA-HQ",
    run=_run,
)
