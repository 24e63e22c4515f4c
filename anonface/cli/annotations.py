"""``--annotations``: annotation files of a run's photos, for the pictures that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anonface.cli.console import say
from anonface.errors import UsageError, count

if TYPE_CHECKING:
    from anonface.annotations.carry import Annotations
    from anonface.batch.plan import Job
    from anonface.batch.run import Outcome


def read_annotations(paths: Sequence[Path] | None, jobs: Sequence[Job], output: str | None) -> Annotations | None:
    """The annotations that were named, read and checked; None where none were.

    Raises:
        AnonfaceError: as :class:`anonface.annotations.carry.Annotations`.
    """
    if not paths:
        return None
    if output is None or jobs[0].named:
        raise UsageError(
            "--annotations needs a folder for the results", "name one with -o, outside the annotations' folder"
        )
    from anonface.annotations.carry import Annotations, Photo
    from anonface.batch.plan import SEARCHED

    photos = [Photo(job.source, job.target) for job in jobs]
    return Annotations(paths, photos, Path(output), sorted(SEARCHED), jobs[0].direction == "recover")


def write_annotations(annotations: Annotations, outcomes: Sequence[Outcome], overwrite: bool) -> dict[str, Any]:
    """Write the annotations of the pictures that are there, say so, and return it for the report.

    Args:
        overwrite: replace files; :meth:`Annotations.check` has said which may be.

    Raises:
        OutputError: they cannot be written.
    """
    if any(outcome.state == "not reached" for outcome in outcomes):
        say("anonface: note: annotations are written once every photo was reached")
        return {"files": [], "written": False}
    results = {outcome.job.source: file for outcome in outcomes if (file := _result(outcome))}
    done = annotations.write(results, overwrite)
    left = {"failed or skipped": done.without_result, "not among the photos": done.elsewhere}
    why = ", ".join(f"{number} {what}" for what, number in left.items() if number)
    left_out = f"{done.pictures - done.carried} of {count(done.pictures, 'entry', 'entries')} left out ({why})"
    say(f"annotations: {count(len(done.files), 'file')} written" + (f"; {left_out}" if why else ""))
    for note in done.notes:
        say(f"anonface: note: annotations: {note}")
    return {
        "files": [str(file) for file in done.files],
        "written": bool(done.files),
        "pictures": done.pictures,
        "carried": done.carried,
        "failed_or_skipped": done.without_result,
        "not_among_the_photos": done.elsewhere,
        "notes": list(done.notes),
    }


def _result(outcome: Outcome) -> Path | None:
    """The picture that is there after a run, if the photo has one."""
    from anonface.batch.plan import existing

    if outcome.state in ("done", "copied"):
        return outcome.job.target
    return existing(outcome.job) if outcome.state == "skipped" else None
