"""Recovery that is told no identity: what comes back has leaked through what is not keyed."""

from __future__ import annotations

from dataclasses import replace

from anonface.evaluation.audit.finding import ALLOWED_STANDING, CHANCE, Attack, Finding
from anonface.evaluation.audit.subject import Subject
from anonface.evaluation.audit.viewer import PUBLISHED_RATE, recognised
from anonface.evaluation.metrics import NOTHING

# Measured apart, with many more people; README says it too. Rank r of n is a standing of (n - r) / (n - 1).
KNOWN = "rank 6.5 of 20, or 0.71, is known of ifadit"


def _run(subject: Subject) -> list[Finding]:
    mute = subject.model.mute
    if mute is None:
        why = "this backend has no identity code to leave out"
        return [Finding("recovered without an identity code", NOTHING, CHANCE, ALLOWED_STANDING, None, why)]
    results = [subject.lead(mute, number, subject.key) for number in range(len(subject.targets))]
    matches, told = recognised(subject, results, PUBLISHED_RATE)
    return [matches, replace(told, detail="; ".join(filter(None, [told.detail, KNOWN])))]


ATTACK = Attack(
    "attributes",
    shows="identity passes through the attributes, past the key",
    silent="what a network trained for it would read from them: see inversion",
    published="none; iFADIT shows such faces in its figure 7 without a number",
    run=_run,
)
