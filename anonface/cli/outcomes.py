"""Results of photos, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anonface.cli.console import escaped, say, shown, without_name
from anonface.errors import AnonfaceError, count

if TYPE_CHECKING:
    from anonface.batch.plan import Job
    from anonface.batch.run import Outcome


def outcome_line(outcome: Outcome) -> str:
    job, from_to = outcome.job, from_to_names(outcome.job)
    if outcome.error:
        return f"{job.source}: failed: {without_name(outcome.error, job.source)}"
    if outcome.state == "skipped":
        return f"{job.source}: skipped, {'; '.join(outcome.notes)}"
    if outcome.resumed:
        return f"{from_to}: written by an earlier run"
    tier = _TIERS[job.direction][outcome.tier]
    if job.direction == "recover" and outcome.tier == "face" and not outcome.exact:
        tier += ", not exact as a JPEG"
    return f"{from_to}: {_tally(_face_results(outcome))}, {tier}, {outcome.seconds:.1f} s"


def from_to_names(job: Job) -> str:
    """Such as "a.jpg -> a.anon.jpg"."""
    return f"{shown(job.source)} -> {shown(job.output, 'standard output')}"


def _face_results(outcome: Outcome) -> list[tuple[str, str]]:
    """The result and reason of each face. A record names only the changed faces, so recovery reports no others."""
    if outcome.job.direction == "recover" and outcome.tier in ("file", "face"):
        return [("recovered", "")] * len(outcome.faces)  # under a mosaic too
    words = _FACE_RESULTS[outcome.job.direction]
    return [(words[face.kind], face.reason) for face in outcome.faces]


_FACE_RESULTS = {
    "anonymize": {"synth": "replaced", "mosaic": "covered by a mosaic", "kept": "left unchanged"},
    "recover": {"synth": "recovered", "mosaic": "not recovered", "kept": "left unchanged"},
}


def _tally(results: Sequence[tuple[str, str]]) -> str:
    """Such as "3 faces: 2 replaced, 1 left unchanged (not among --faces)"."""
    reasons: dict[str, dict[str, None]] = {}
    for word, why_so in results:
        reasons.setdefault(word, {})[why_so] = None
    why = {word: "; ".join(filter(None, given)) for word, given in reasons.items()}
    described = {word: f"{word} ({why[word]})" if why[word] else word for word in reasons}
    faces, number = count(len(results), "face"), Counter(word for word, _ in results)
    if len(described) < 2:
        return " ".join((faces, *described.values()))
    return f"{faces}: {', '.join(f'{number[word]} {text}' for word, text in described.items())}"


_TIERS = {
    "anonymize": {
        "file": "original file encrypted",
        "face": "face pixels encrypted",
        "none": "nothing encrypted",
        "stateless": "nothing stored",
    },
    "recover": {
        "file": "the original file",
        "face": "the original pixels",
        "none": "approximately, by the networks",
        "stateless": "approximately, by the networks",
    },
}


def sum_up(outcomes: Sequence[Outcome], seconds: float, fatal: AnonfaceError | None) -> None:
    from anonface.batch.task import STATES

    number = Counter(outcome.state for outcome in outcomes)
    results = [(word, "") for outcome in outcomes if outcome.state != "decoy" for word, _ in _face_results(outcome)]
    parts = [f"{number[state]} {state}" for state in STATES if number[state]]
    say(f"{count(len(outcomes), 'photo')}: {', '.join(parts)}; {_tally(results)} in {seconds:.1f} s")
    if failures := [outcome for outcome in outcomes if outcome.error and outcome.error is not fatal]:
        width = max(len(escaped(outcome.job.source)) for outcome in failures)
        say(f"{'exit':>4}  {'photo':{width}}  reason")
        for outcome in failures:
            assert outcome.error
            why = without_name(outcome.error, outcome.job.source)
            say(f"{outcome.error.exit_code:4}  {escaped(outcome.job.source):{width}}  {why}")
