"""Output for users: lines, tables, JSON, progress, errors."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anonface.errors import AnonfaceError

if TYPE_CHECKING:
    from anonface.weights.download import Progress


INTERRUPTED, TERMINATED = 130, 143
ENDED_BY = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}
PARTLY_FAILED, NOT_READY = 3, 9
QUIET = 30.0  # seconds between two lines of progress where there is no terminal


@dataclass
class Invocation:
    """Options of the whole command line."""

    as_json: bool
    debug: bool = False


def without_name(error: AnonfaceError, file: Path) -> str:
    """The message without the file's name at its beginning."""
    return error.message.removeprefix(f"{str(file)!r} ")


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def escaped(value: object) -> str:
    """Text on one line: characters that do not print are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(value))


def say(text: str) -> None:
    with suppress(OSError, ValueError):  # a closed stderr must not fail the run
        print(escaped(text), file=sys.stderr, flush=True)


def print_json(result: object) -> None:
    import json

    print(json.dumps(result))


def end(
    failures: Sequence[AnonfaceError], photos: Sequence[Path], invocation: Invocation
) -> tuple[AnonfaceError | None, int]:
    """The error of a command's only photo, said, or None; and the exit code of a command over some photos."""
    if failures and len(photos) == 1:
        complain(failures[0], invocation, photos[0])
        return failures[0], failures[0].exit_code
    return None, PARTLY_FAILED if failures else 0


def error_json(error: AnonfaceError) -> dict[str, Any]:
    return {"code": error.exit_code, "message": error.message, "hint": error.hint}


def ended_json(code: int) -> dict[str, Any]:
    return {"code": code, "message": ENDED_BY[code], "hint": ""}


def complain(error: AnonfaceError, invocation: Invocation, about: Path | None = None) -> None:
    """Print the error line, with the file unless the message names it, and the hint."""
    if isinstance(error.__cause__, BrokenPipeError):
        return  # the reader closed the pipe on purpose
    named = about is None or str(about) in error.message or repr(str(about)) in error.message
    subject = "" if named else f"{about}: "
    say(f"anonface: error: {subject}{error.message}")
    if error.hint:
        say(f"hint: {error.hint}")
    if invocation.debug:
        print_traces([error])


def print_traces(errors: Iterable[AnonfaceError | None]) -> None:
    import traceback

    for error in filter(None, errors):
        traceback.print_exception(error)


def sentence(text: str) -> str:
    """A message of the option parser as one line, without its full stop."""
    return " ".join(text.split()).rstrip(".")


def usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context else "anonface --help"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}" if size else "?"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns; the last one may have any length."""
    widths = [max(len(row[column]) for row in (columns, *rows)) for column in range(len(columns) - 1)]
    for row in (columns, *rows):
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        print(escaped("  ".join((*cells, row[-1]))))


Advance = Callable[..., None]


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Advance]:
    """Yields ``advance(done, text, total)``: a bar if stderr is a terminal, else a line every QUIET seconds."""
    if not sys.stderr.isatty():
        with _lines(what, total) as advance:
            yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total or None, text="")

        def advance_bar(done: int, text: str, total: int = total) -> None:
            bar.update(task, completed=done, total=total or None, text=text)

        yield advance_bar


@contextmanager
def _lines(what: str, total: int) -> Iterator[Advance]:
    """As :func:`progress_bar`, without a terminal. A thread speaks, since one face may take minutes."""
    state, stopped, started = (0, "", total), threading.Event(), time.monotonic()

    def advance(done: int, text: str, total: int = total) -> None:
        nonlocal state
        state = done, text, total

    def speak() -> None:
        while not stopped.wait(QUIET):
            done, text, total = state
            if not (done or text or total):  # nothing has begun that can be counted
                continue
            of = f" of {total}" if total else ""
            doing = f"; {text}" if text else ""
            say(f"anonface: {done}{of} {what}{doing}; {time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=speak, name="anonface-progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        stopped.set()


@contextmanager
def download_progress() -> Iterator[Progress]:
    """Yields a progress function for downloads: bars on a terminal, else one line per file."""
    if not sys.stderr.isatty():
        begun: set[str] = set()

        def note(name: str, done: int, total: int) -> None:
            if name not in begun:
                begun.add(name)
                say(f"anonface: downloading {name} ({megabytes(total)} MB)")

        yield note
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def update(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(escaped(name))
            bars.update(tasks[name], completed=done, total=total or None)

        yield update
