"""The command line: commands, exit codes, signals."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from anonface import signals
from anonface.cli.anonymize import anonymize, recover
from anonface.cli.audit import audit
from anonface.cli.blind import blind_score
from anonface.cli.compare import compare
from anonface.cli.console import (
    ENDED_BY,
    INTERRUPTED,
    Session,
    complain,
    ended_json,
    error_json,
    print_json,
    say,
    sentence,
    usage_hint,
)
from anonface.cli.doctor import doctor
from anonface.cli.evaluate import evaluate
from anonface.cli.keygen import keygen
from anonface.cli.records import inspect, rekey, strip
from anonface.cli.train import train
from anonface.cli.weights import list_weights, pull_weights, verify_weights, weights_licenses
from anonface.errors import (
    AnonfaceError,
    UsageError,
)
from anonface.streams import Stdout, open_standard_streams

app = typer.Typer(
    name="anonface",
    help="Anonymize faces in photos under a key, and give them back to whoever holds the key.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
weights_app = typer.Typer(help="Network weights: what there is, fetch, check, terms.", rich_markup_mode=None)
app.add_typer(weights_app, name="weights")


def main() -> None:
    """The ``anonface`` command, once it is loaded; :mod:`anonface.__main__` is where it is entered."""
    try:
        signals.listen()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _end(signals.exit_code() or INTERRUPTED, Session(as_json="--json" in sys.argv))
    signals.end_at_once()
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")  # its warnings would come before ours
    # Threads that spin without end while they wait crawl on a shared machine; threads that sleep at once lose a third.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # else matrix products of several threads differ from run to run in their last bits, and refinement magnifies that
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    _forbid_core_dumps()
    session = Session(as_json="--json" in args)
    open_standard_streams()
    before, sys.stdout = sys.stdout, cast(TextIO, output := Stdout(sys.stdout))
    try:
        with _notes_said():
            code = _end_of(list(args) or ["--help"], session)
    finally:
        sys.stdout = before
    if failure := output.failure():
        complain(failure, session)
        return code or failure.exit_code
    return code


def _end_of(args: list[str], session: Session) -> int:
    """The exit code of a command line, when all is said about it."""
    failure: AnonfaceError
    try:
        code = _command(args, session)
        if code in ENDED_BY:
            code = signals.exit_code() or code  # typer takes either signal for an interrupt
            say(f"anonface: {ENDED_BY[code]}")
        return code
    except (typer.Abort, KeyboardInterrupt):
        return _end(signals.exit_code() or INTERRUPTED, session)
    except typer.TyperException as error:
        failure = UsageError(sentence(error.format_message()), usage_hint(error))
    except Exception as error:
        from anonface.batch.run import explained

        if code := signals.exit_code():
            return _end(code, session)
        failure = explained(error)
    complain(failure, session)
    if session.as_json:
        print_json({"exit": failure.exit_code, "error": error_json(failure)})
    return failure.exit_code


def _command(args: list[str], session: Session) -> int:
    """Do what is asked, in a folder that is there: what libraries make of one that is gone is nobody's to read."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(f"the working directory is gone: {error.strerror}", "cd to a folder that is there") from None
    code: int = typer.main.get_command(app).main(args, "anonface", standalone_mode=False, obj=session) or 0
    return code


def _end(code: int, session: Session) -> int:
    """Say that a signal ended the command, whatever it was doing."""
    say(f"anonface: {ENDED_BY[code]}")
    if session.as_json:
        print_json({"exit": code, "error": ended_json(code)})
    return code


class _Notes(logging.Handler):
    """Says what rooms without a voice of their own have to tell."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"anonface: {'note' if record.levelno < logging.WARNING else 'warning'}: {record.getMessage()}")


@contextmanager
def _notes_said() -> Iterator[None]:
    logger, handler = logging.getLogger("anonface"), _Notes()
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _forbid_core_dumps() -> None:
    """A core dump would write the keys to disk."""
    try:
        import resource
    except ImportError:  # not on Windows, which writes none of its own accord
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _print_version(wanted: bool) -> None:
    if wanted:
        from anonface import __version__

        print(f"anonface {__version__}")
        raise typer.Exit


def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print where an error arose.")] = False,
) -> None:
    ctx.obj.debug = debug


app.callback()(_options)
app.command()(keygen)
app.command(short_help="Replace every face by a synthetic one.")(anonymize)
app.command(short_help="Recover originals from anonymized photos.")(recover)
app.command()(inspect)
app.command()(strip)
app.command()(rekey)
app.command(short_help="Make a contact sheet of photos.")(compare)
app.command(short_help="Measure privacy and recovery on photos.")(evaluate)
app.command("blind-score", short_help="Score a blind test of naturalness.")(blind_score)
app.command(short_help="Attack the anonymization of photos.")(audit)
app.command()(train)
weights_app.command("list")(list_weights)
weights_app.command("pull")(pull_weights)
weights_app.command("verify")(verify_weights)
weights_app.command("licenses")(weights_licenses)
app.command(short_help="Say whether this machine is ready.")(doctor)
