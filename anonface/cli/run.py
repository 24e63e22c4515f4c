"""One run over photos: done on this machine or by Ray, and reported."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from anonface import signals
from anonface.cli.annotations import write_annotations
from anonface.cli.console import (
    ENDED_BY,
    INTERRUPTED,
    PARTLY_FAILED,
    Invocation,
    complain,
    ended_json,
    error_json,
    print_json,
    print_traces,
    progress_bar,
    say,
    shown,
)
from anonface.cli.engines import EngineSettings, LazyEngine, MakeTask, on_worker
from anonface.cli.journals import journal_file, kdf_of, open_journal
from anonface.cli.key_sources import KeySource
from anonface.cli.outcomes import outcome_line, sum_up
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    ImageError,
    KeyFileError,
    LimitError,
    NoFaceError,
    UsageError,
    WrongKeyError,
    count,
)

if TYPE_CHECKING:
    from anonface.annotations.carry import Annotations
    from anonface.batch.plan import Job
    from anonface.batch.run import Outcome
    from anonface.batch.task import Direction, Write


MOST_FOLDERS = 4  # named of those that a search skips


@dataclass(frozen=True)
class RunOptions:
    """The options of a run."""

    overwrite: bool
    skip_existing: bool
    skip_faceless: bool
    resume: bool
    report: Path | None
    runs_on: Literal["local", "ray"]
    workers: int | None
    write: Write
    annotations: Annotations | None = None


_OF_THE_PHOTO = (ContainerError, ImageError, KeyFileError, LimitError, NoFaceError, UsageError, WrongKeyError)


def run_photos(
    ctx: typer.Context,
    jobs: Sequence[Job],
    make_task: MakeTask,
    keys: KeySource,
    settings: EngineSettings,
    options: dict[str, Any],
    run_options: RunOptions,
) -> tuple[int, list[Outcome]]:
    """Run the jobs, report each, and sum up."""
    from anonface.batch.plan import existing, find
    from anonface.batch.run import WRITTEN, Outcome, Rules, run
    from anonface.images.paths import check_target

    invocation: Invocation = ctx.obj
    replace_report = False
    reported: list[dict[str, Any]] = []
    again = run_options.resume or run_options.skip_existing
    if run_options.report:
        earlier = _photos_reported(run_options.report) if again else None
        replace_report = run_options.overwrite or earlier is not None
        check_target(run_options.report, None, replace_report)
        reported = earlier or [] if run_options.skip_existing else []
    if run_options.annotations:
        run_options.annotations.check(run_options.overwrite, again)
    if len(jobs) == 1 and jobs[0].data is None:
        _check_there(jobs[0].source)  # before a passphrase is asked for
    if settings.keep_faces:
        find([str(settings.keep_faces)], "anonymize", recursive=True)
    if run_options.runs_on == "local":  # a cluster's nodes have devices of their own
        _check_device(settings.device)
    carried_files = run_options.annotations.files if run_options.annotations else ()
    ignored = count_ignored(ctx, jobs[0].direction, carried_files)
    secret = None if run_options.runs_on == "ray" else keys.secret()
    kdf = keys.fresh()
    file = journal_file(ctx) if len(jobs) > 1 else None
    begun = file is not None and file.exists()
    skip = run_options.skip_existing
    if run_options.resume and not begun and not run_options.overwrite and all(map(existing, jobs)):
        say("anonface: note: no interrupted run was found and all results exist: nothing is left to do")
        skip = True
    elif run_options.resume and not begun and file:
        say("anonface: note: there is nothing to resume; the run starts from the beginning")
    journal = open_journal(ctx, file, secret, kdf, run_options.resume) if file else None
    if journal and kdf:
        kdf = kdf_of(journal.terms)
    rules = Rules(run_options.overwrite, skip, run_options.skip_faceless, journal, run_options.write)
    engine = LazyEngine(settings)
    task = make_task(secret, kdf, engine, options) if secret else None
    outcomes: list[Outcome] = []
    started = time.monotonic()
    code = 0
    fatal: AnonfaceError | None = None
    about: Path | None = None
    pace, faces, skipped = "", 0, 0

    def report(outcome: Outcome) -> None:
        nonlocal fatal, about, pace, faces, skipped
        outcomes.append(outcome)
        for note in outcome.notes if outcome.state != "skipped" else ():
            say(f"anonface: note: {shown(outcome.job.source)}: {note}")
        if outcome.error and (outcome.ends or len(jobs) == 1):
            fatal = outcome.error
            about = None if outcome.ends else outcome.job.source
            return
        say(outcome_line(outcome))
        if outcome.resumed or outcome.state == "skipped":
            skipped += 1
        else:
            faces += len(outcome.faces)
            pace = f"{count(faces, 'face')}, {faces / (time.monotonic() - started):.2f}/s"
        show(pace)

    def show(text: str) -> None:
        advance(len(outcomes), text, skipped=skipped)

    def watch(doing: str, face: int, faces: int) -> None:
        show(f"{pace}{pace and '; '}{doing} face {face} of {faces}")

    engine.watch, engine.state = watch, show
    with progress_bar("photos", len(jobs)) as advance:
        try:
            if task:
                run(jobs, task, report, rules, run_options.workers or 1)
            else:
                from anonface.batch.ray_run import run as run_on_ray

                on_node = replace(settings, keep_faces=settings.keep_faces and settings.keep_faces.absolute())
                make = partial(on_worker, make_task, keys.absolute(), kdf, on_node, options)
                gpu = None if settings.device == "auto" else settings.device.startswith("cuda")
                with redirect_stdout(sys.stderr):  # Ray prints messages of its own
                    run_on_ray(jobs, make, report, rules, workers=run_options.workers, gpu=gpu)
        except KeyboardInterrupt:
            code = signals.exit_code() or INTERRUPTED
        except AnonfaceError as error:
            code = signals.exit_code()
            fatal = None if code else error
        except Exception:
            code = signals.exit_code()
            if not code:
                raise
    reached = {outcome.job.source for outcome in outcomes}
    outcomes += [Outcome(job, "not reached") for job in jobs if job.source not in reached]
    complete = not (code or fatal or any(outcome.error for outcome in outcomes))
    if journal and (complete or not (begun or any(outcome.state in WRITTEN for outcome in outcomes))):
        journal.remove()
    elif file and journal and file.exists():
        say(f"anonface: note: {file} records this run until the same command is complete; it may be deleted")
    if journal:
        journal.close()
    if len(jobs) > 1:
        rest = any(_may_still_be_written(outcome, run_options.overwrite) for outcome in outcomes)
        if journal and rest and any(outcome.state in WRITTEN for outcome in outcomes):
            say("anonface: the same command with --resume continues with the rest")
        sum_up(outcomes, time.monotonic() - started, fatal)
    if unverified := sum(
        o.job.direction == "recover" and o.state == "done" and o.verified == "unknown" for o in outcomes
    ):
        unsealed = f"no original is stored in {count(unverified, 'photo')}"
        say(f"anonface: note: {unsealed}, so it is unknown whether the key was right")
    carried: dict[str, Any] = {}
    if run_options.annotations:
        try:
            told = write_annotations(run_options.annotations, outcomes, run_options.overwrite or again)
            carried = {"annotations": told}
        except AnonfaceError as error:
            fatal, about = fatal or error, None if not fatal else about
    if fatal:
        complain(fatal, invocation, about)
        code = code or fatal.exit_code
    elif not code and not complete:
        code = PARTLY_FAILED
    photos = [outcome.record() for outcome in outcomes]
    result: dict[str, Any] = {
        "exit": code,
        "device": engine.device_name if task else "ray",
        "seconds": round(time.monotonic() - started, 3),
        "error": error_json(fatal) if fatal else ended_json(code) if code in ENDED_BY else None,
        "ignored_files": ignored,
        "passed_over": ignored,  # the former name
        "photos": photos,
        **carried,
    }
    if run_options.report:
        whole = {**result, "photos": _with_earlier(photos, reported)}
        _write_report(run_options.report, whole, replace_report)
    if invocation.as_json:
        print_json(result)
    if invocation.debug and not fatal:
        print_traces(outcome.error for outcome in outcomes)
    return code, outcomes


def _may_still_be_written(outcome: Outcome, overwrite: bool) -> bool:
    """Whether the same command, resumed, may write a photo that this run has not written."""
    from anonface.batch.plan import existing

    left = outcome.state in ("failed", "not reached") and not isinstance(outcome.error, _OF_THE_PHOTO)
    return left and (overwrite or not existing(outcome.job))  # an existing output would be refused again


def count_ignored(ctx: typer.Context, direction: Direction = "anonymize", read: Iterable[Path] = ()) -> dict[str, int]:
    """Say how many files of the named folders are ignored, and return their number by suffix.

    Args:
        read: files that are no photos, but are read all the same.
    """
    from anonface.batch.plan import describe_ignored, ignored_files, skipped_folders

    paths, recursive = ctx.params["paths"], ctx.params["recursive"]
    for (what, why), folders in zip(_FOLDERS, skipped_folders(paths, recursive), strict=True):
        if folders:
            named = ", ".join(map(str, folders[:MOST_FOLDERS])) + ", ..." * (len(folders) > MOST_FOLDERS)
            say(f"anonface: {what}: {count(len(folders), 'folder')} skipped, {why}: {named}")
    found = ignored_files(paths, direction, recursive, read)
    if found:
        say(f"anonface: note: {describe_ignored(found)}")
    return found


_FOLDERS = (("note", "already searched under another name"), ("warning", "not readable"))


def _check_there(photo: Path) -> None:
    try:
        photo.stat()
    except (OSError, ValueError) as error:
        raise ImageError(f"{str(photo)!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _check_device(name: str) -> None:
    """Raise if the named device does not exist, even if no photo needs it: decryption does not."""
    if name not in ("auto", "cpu"):
        from anonface.backends.device import choose_device

        choose_device(name)


def _photos_reported(file: Path) -> list[dict[str, Any]] | None:
    """The photos of an earlier run's report; None if the file is none, and may not be replaced."""
    import json

    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not {"exit", "photos"} <= set(found):
        return None
    photos = found["photos"] if {"ignored_files", "passed_over"} & set(found) else None
    return photos if isinstance(photos, list) and all(isinstance(photo, dict) for photo in photos) else None


def _with_earlier(photos: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A report's photos, with what an earlier one says of those that this run skipped or did not name."""
    known = {photo.get("input"): photo for photo in earlier}
    now = [known.get(photo["input"], photo) if photo["state"] == "skipped" else photo for photo in photos]
    named = {photo["input"] for photo in photos}
    return [photo for photo in earlier if photo.get("input") not in named] + now


def _write_report(file: Path, result: dict[str, Any], overwrite: bool) -> None:
    import json

    from anonface.images import write_atomic

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(result, indent=1).encode() + b"\n", overwrite)
