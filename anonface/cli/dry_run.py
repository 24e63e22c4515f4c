"""``anonface anonymize --dry-run``: what would be done, written and refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anonface.cli.console import Invocation, end, error_json, escaped, print_json, shown
from anonface.cli.detect import face_facts, face_line
from anonface.cli.outcomes import from_to_names
from anonface.errors import AnonfaceError, NoFaceError, count

if TYPE_CHECKING:
    from anonface.batch.plan import Job
    from anonface.batch.run import Rules
    from anonface.faces.locate import Chosen


def dry_run(
    invocation: Invocation,
    jobs: Sequence[Job],
    rules: Rules,
    detector: str,
    boxes: Sequence[tuple[float, float, float, float]],
    faces: Chosen,
    faceless: bool,
    max_pixels: int,
) -> int:
    """Print for each job what a run would do. Reads photos and writes nothing; needs no key and no backend.

    Returns:
        The exit code that a run would end with, as far as that is known beforehand.
    """
    from anonface.batch.run import Outcome
    from anonface.batch.task import open_photo
    from anonface.faces.detect import build_detector
    from anonface.faces.locate import chosen_numbers, locate, no_face, numbered

    settled: list[Outcome] = []
    ready = rules.sort_out(jobs, settled.append)
    results: list[dict[str, Any]] = []
    failures = [outcome.error for outcome in settled if outcome.error]
    for outcome in settled:
        results.append(_result(outcome.job, outcome.state, [], outcome.error))
        if not invocation.as_json:
            said = f"refused: {outcome.error.message}" if outcome.error else f"skipped: {'; '.join(outcome.notes)}"
            print(escaped(f"{shown(outcome.job.source)}: {said}"))
    finder = build_detector(detector)
    for job in ready:
        try:
            found = numbered(locate(open_photo(job.photo, max_pixels)[1].pixels, finder, boxes))
            changed = chosen_numbers([face.box for face in found], faces)
            if not found and not faceless:
                raise no_face()
        except AnonfaceError as error:
            skipped = isinstance(error, NoFaceError) and rules.skip_faceless
            if not skipped:
                failures.append(error)
            results.append(_result(job, "skipped" if skipped else "failed", [], None if skipped else error))
            if not invocation.as_json:
                print(escaped(f"{shown(job.source)}: would {'be skipped' if skipped else 'fail'}: {error.message}"))
            continue
        facts = [{**face_facts(face), "changed": face.index in changed} for face in found]
        results.append(_result(job, "would be done", facts, None))
        if not invocation.as_json:
            print(escaped(f"{from_to_names(job)}: {count(len(changed), 'face')} of {len(found)} would be changed"))
            for face in found:
                print(face_line(face) + ("" if face.index in changed else "; would stay"))
            if job.sidecar:
                print(escaped(f"  the record would be written to {job.sidecar}"))
    alone, code = end(failures, [job.source for job in jobs], invocation)
    if invocation.as_json:
        told = error_json(alone) if alone else None
        print_json({"exit": code, "dry_run": True, "error": told, "photos": results})
    return code


def _result(job: Job, state: str, faces: list[dict[str, Any]], error: AnonfaceError | None) -> dict[str, Any]:
    return {
        "input": str(job.source),
        "output": job.output if state == "would be done" else None,
        "sidecar": str(job.sidecar) if job.sidecar and state == "would be done" else None,
        "state": state,
        "faces": faces,
        "error": error_json(error) if error else None,
    }
