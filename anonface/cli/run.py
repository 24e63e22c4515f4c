"""One run over photos: planned, done locally or by Ray, reported."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from anonface import signals
from anonface.cli.console import (
    ENDED_BY,
    INTERRUPTED,
    PARTLY_FAILED,
    Session,
    complain,
    count,
    ended_json,
    error_json,
    print_json,
    print_traces,
    progress_bar,
    say,
)
from anonface.cli.engines import EngineSettings, LazyEngine, Making, on_worker
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
)

if TYPE_CHECKING:
    from anonface.batch.plan import Job
    from anonface.batch.run import Outcome
    from anonface.batch.task import Direction


MOST_FOLDERS = 4  # named of those that a search skips


@dataclass(frozen=True)
class Order:
    """How the user wants a run to be done."""

    overwrite: bool
    skip_existing: bool
    skip_faceless: bool
    resume: bool
    report: Path | None
    runs_on: Literal["local", "ray"]
    workers: int | None


_OF_THE_PHOTO = (ContainerError, ImageError, KeyFileError, LimitError, NoFaceError, UsageError, WrongKeyError)


def run_photos(
    ctx: typer.Context,
    jobs: Sequence[Job],
    making: Making,
    keys: KeySource,
    settings: EngineSettings,
    options: dict[str, Any],
    order: Order,
) -> tuple[int, list[Outcome]]:
    """Run the jobs, report each, and sum up."""
    from anonface.batch import plan as plan_module
    from anonface.batch import run as run_module
    from anonface.images.paths import check_target

    session: Session = ctx.obj
    if order.report:
        again = (order.resume or order.skip_existing) and _is_report(order.report)
        check_target(order.report, None, order.overwrite or again)
    if settings.keep_faces:
        plan_module.find([str(settings.keep_faces)], "anonymize", recursive=True)
    if order.runs_on == "local":  # a cluster's nodes have devices of their own
        _check_device(settings.device)
    passed_over = count_passed_over(ctx, jobs[0].direction)
    secret = None if order.runs_on == "ray" else keys.secret()
    kdf = keys.fresh()
    file = journal_file(ctx) if len(jobs) > 1 else None
    begun = file is not None and file.exists()
    skip = order.skip_existing
    if order.resume and not begun and not order.overwrite and all(map(plan_module.existing, jobs)):
        say("anonface: note: no run was cut short, and all results are there: nothing is left to do")
        skip = True
    elif order.resume and not begun and file:
        say("anonface: note: there is nothing to resume; the run begins at its beginning")
    journal = open_journal(ctx, file, secret, kdf, order.resume) if file else None
    if journal and kdf:
        kdf = kdf_of(journal.terms)
    rules = run_module.Rules(order.overwrite, skip, order.skip_faceless, journal)
    engine = LazyEngine(settings)
    task = making(secret, kdf, engine, options) if secret else None
    outcomes: list[Outcome] = []
    started = time.monotonic()
    code = 0
    fatal: AnonfaceError | None = None
    about: Path | None = None
    pace = ""

    def tell(outcome: Outcome) -> None:
        nonlocal fatal, about, pace
        outcomes.append(outcome)
        for note in outcome.notes if outcome.state != "skipped" else ():
            say(f"anonface: note: {outcome.job.source}: {note}")
        if outcome.error and (outcome.ends or len(jobs) == 1):
            fatal = outcome.error
            about = None if outcome.ends else outcome.job.source
            return
        say(outcome_line(outcome))
        faces = sum(len(done.faces) for done in outcomes)
        pace = f"{count(faces, 'face')}, {faces / (time.monotonic() - started):.2f}/s"
        advance(len(outcomes), pace)

    def watch(doing: str, face: int, faces: int) -> None:
        advance(len(outcomes), f"{pace}{pace and '; '}{doing} face {face} of {faces}")

    engine.watch = watch
    with progress_bar("photos", len(jobs)) as advance:
        try:
            if task:
                run_module.run(jobs, task, tell, rules, order.workers or 1)
            else:
                from anonface.batch import ray_run

                there = replace(settings, keep_faces=settings.keep_faces and settings.keep_faces.absolute())
                make = partial(on_worker, making, keys.elsewhere(), kdf, there, options)
                gpu = None if settings.device == "auto" else settings.device.startswith("cuda")
                with redirect_stdout(sys.stderr):  # Ray has its own things to say
                    ray_run.run(jobs, make, tell, rules, workers=order.workers, gpu=gpu)
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
    outcomes += [run_module.Outcome(job, "not reached") for job in jobs if job.source not in reached]
    complete = not (code or fatal or any(outcome.error for outcome in outcomes))
    if journal and (complete or not (begun or any(outcome.state in run_module.WRITTEN for outcome in outcomes))):
        journal.remove()
    elif file and journal and file.exists():
        say(f"anonface: note: {file} remembers this run until the same command is through; it may be deleted")
    if len(jobs) > 1:
        rest = any(_may_fare_better(outcome, order.overwrite) for outcome in outcomes)
        if journal and rest and any(outcome.state in run_module.WRITTEN for outcome in outcomes):
            say("anonface: the same command with --resume goes on with the rest")
        sum_up(outcomes, time.monotonic() - started, fatal)
    if blind := sum(o.job.direction == "recover" and o.state == "done" and o.verified == "unknown" for o in outcomes):
        unsealed = f"nothing was sealed in {count(blind, 'photo')}"
        say(f"anonface: note: {unsealed}, so nobody can tell whether the key was right")
    if fatal:
        complain(fatal, session, about)
        code = code or fatal.exit_code
    elif not code and not complete:
        code = PARTLY_FAILED
    result = {
        "exit": code,
        "device": engine.device_name if task else "ray",
        "seconds": round(time.monotonic() - started, 3),
        "error": error_json(fatal) if fatal else ended_json(code) if code in ENDED_BY else None,
        "passed_over": passed_over,
        "photos": [outcome.record() for outcome in outcomes],
    }
    if order.report:
        _write_report(order.report, result)
    if session.as_json:
        print_json(result)
    if session.debug and not fatal:
        print_traces(outcome.error for outcome in outcomes)
    return code, outcomes


def _may_fare_better(outcome: Outcome, overwrite: bool) -> bool:
    """Whether the same command, going on, may write a photo that this run has not written."""
    from anonface.batch.plan import existing

    left = outcome.state in ("failed", "not reached") and not isinstance(outcome.error, _OF_THE_PHOTO)
    return left and (overwrite or not existing(outcome.job))  # what is there already would be refused again


def count_passed_over(ctx: typer.Context, direction: Direction = "anonymize") -> dict[str, int]:
    """Say how many files of the folders named are not taken, and return how many of which suffix."""
    from anonface.batch.plan import folders_left_out, in_words, passed_over

    paths, recursive = ctx.params["paths"], ctx.params["recursive"]
    for (what, why), folders in zip(_FOLDERS, folders_left_out(paths, recursive), strict=True):
        if folders:
            named = ", ".join(map(str, folders[:MOST_FOLDERS])) + ", ..." * (len(folders) > MOST_FOLDERS)
            say(f"anonface: {what}: {count(len(folders), 'folder')} skipped, {why}: {named}")
    found = passed_over(paths, direction, recursive)
    if found:
        say(f"anonface: note: {in_words(found)}")
    return found


_FOLDERS = (("note", "searched already by another name"), ("warning", "not readable"))


def _check_device(name: str) -> None:
    """Whether the device that a user names is there, though perhaps nothing will need it: a seal opens without."""
    if name not in ("auto", "cpu"):
        from anonface.backends.device import choose_device

        choose_device(name)


def _is_report(file: Path) -> bool:
    """Whether this is what an earlier run reported, which the run that resumes it may replace; anything else stays."""
    import json

    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"exit", "passed_over", "photos"} <= set(found)


def _write_report(file: Path, result: dict[str, Any]) -> None:
    import json

    from anonface.images import write_atomic

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(result, indent=1).encode() + b"\n", overwrite=True)
