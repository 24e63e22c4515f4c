"""Output for users: lines, tables, JSON, progress, errors."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from anonface.errors import AnonfaceError
from anonface.streams import STREAM

if TYPE_CHECKING:
    from rich.console import Console

    from anonface.weights.download import Progress


INTERRUPTED, TERMINATED = 130, 143
ENDED_BY = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}
PARTLY_FAILED, NOT_READY = 3, 9
QUIET = 30.0  # seconds between two lines of progress where there is no terminal
LEAST_TAKEN = 1.0  # seconds of work before the time that is left is told
BAR, WIDE = 20, 80  # columns: width of a progress bar, and of a terminal that has room for one
LOADING = "loading the networks"


@dataclass
class Invocation:
    """Options of the whole command line."""

    as_json: bool
    debug: bool = False


def without_name(error: AnonfaceError, file: Path) -> str:
    """The message without the file's name at its beginning."""
    return error.message.removeprefix(f"{str(file)!r} ")


def shown(file: Path | str, stream: str = "standard input") -> str:
    """A file's name, with "-" in words."""
    return stream if str(file) == STREAM else str(file)


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
    named = about is None or shown(about) in error.message or repr(str(about)) in error.message
    subject = "" if about is None or named else f"{shown(about)}: "
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


@dataclass
class Pace:
    """How far a command has come.

    Args:
        what: what is counted, such as "photos".
        total: how many there are; 0 if that is not known yet.
        done: how many are done, and of these ``skipped`` without work.
        text: what is done at present.
    """

    what: str
    total: int
    done: int = 0
    skipped: int = 0
    text: str = ""
    started: float = field(default_factory=time.monotonic)
    last: float = 0.0  # when something was last completed

    def advance(self, done: int, text: str, total: int, skipped: int) -> None:
        now = time.monotonic()
        if self.text == LOADING and self.done == self.skipped:
            self.started = now  # what is loaded once says nothing of the rest
        if done != self.done:
            self.last = now
        self.done, self.text, self.total, self.skipped = done, text, total, skipped

    def left(self) -> str:
        """The time that is left, such as "12 min left"; empty while that cannot be told."""
        worked, taken = self.done - self.skipped, self.last - self.started
        if worked <= 0 or taken < LEAST_TAKEN or self.done >= self.total:
            return ""
        seconds = taken / worked * (self.total - self.done) - (time.monotonic() - self.last)
        return f"{duration(seconds)} left" if seconds > 0 else ""


def duration(seconds: float) -> str:
    """Such as "40 s", "12 min" or "3 h 05 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def animated() -> bool:
    """Whether stderr is a terminal on which a line can be drawn anew."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Advance]:
    """Yields ``advance(done, text, total, skipped)``: a bar on a terminal, else a line every QUIET seconds.

    The arguments of ``advance`` are as in :class:`Pace`.
    """
    pace = Pace(what, total)
    if not animated():
        with _lines(pace) as advance:
            yield advance
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    console = _terminal()

    class PaceColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            of = f"/{pace.total}" if pace.total else ""
            parts = [", ".join(filter(None, [f"{pace.done}{of} {what}", pace.left()])), pace.text]
            line = Text("; ".join(filter(None, map(escaped, parts))), no_wrap=True)
            line.truncate(console.width - room, overflow="ellipsis")
            return line

    bars = [BarColumn(BAR)] if console.width >= WIDE else []  # a narrow terminal has room for the words alone
    room = (BAR + 1) * len(bars) + 1
    with Progress(*bars, PaceColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total or None, text="")

        def advance_bar(done: int, text: str, total: int = total, skipped: int = 0) -> None:
            pace.advance(done, text, total, skipped)
            bar.update(task, completed=done, total=total or None, text=text)

        yield advance_bar


@contextmanager
def _lines(pace: Pace) -> Iterator[Advance]:
    """As :func:`progress_bar`, without a terminal. A thread speaks, since one face may take minutes."""
    stopped, started, first = threading.Event(), time.monotonic(), pace.total

    def advance(done: int, text: str, total: int = first, skipped: int = 0) -> None:
        pace.advance(done, text, total, skipped)

    def speak() -> None:
        while not stopped.wait(QUIET):
            if not (pace.done or pace.text or pace.total):  # nothing has begun that can be counted
                continue
            of = f" of {pace.total}" if pace.total else ""
            taken = ", ".join(filter(None, [f"{duration(time.monotonic() - started)} so far", pace.left()]))
            say(f"anonface: {'; '.join(filter(None, [f'{pace.done}{of} {pace.what}', pace.text, taken]))}")

    thread = threading.Thread(target=speak, name="anonface-progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        stopped.set()


@lru_cache(maxsize=1)
def _console_on(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream)


def _terminal() -> Console:
    """The console of stderr, one for all displays, so that those within others are drawn below them."""
    return _console_on(getattr(sys.stderr, "rich_proxied_file", sys.stderr))


@contextmanager
def download_progress() -> Iterator[Progress]:
    """Yields a progress function for downloads: bars on a terminal, else one line per file."""
    if not animated():
        begun: set[str] = set()

        def note(name: str, done: int, total: int) -> None:
            if name not in begun:
                begun.add(name)
                say(f"anonface: downloading {name} ({megabytes(total)} MB)")

        yield note
        return
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = _terminal()
    bar = [BarColumn()] if console.width >= WIDE else []
    columns = (TextColumn("{task.description}"), *bar, DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def update(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(escaped(name))
            bars.update(tasks[name], completed=done, total=total or None)

        yield update
