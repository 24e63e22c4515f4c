"""The command line: commands, exit codes, signals."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from anonface import signals
from anonface.cli.anonymize import anonymize, recover
from anonface.cli.audit import audit
from anonface.cli.blind import blind_score
from anonface.cli.compare import compare
from anonface.cli.console import (
    ENDED_BY,
    INTERRUPTED,
    Invocation,
    complain,
    ended_json,
    error_json,
    print_json,
    say,
    sentence,
    usage_hint,
)
from anonface.cli.detect import detect
from anonface.cli.doctor import doctor
from anonface.cli.evaluate import evaluate
from anonface.cli.examples import EXAMPLES, FIRST_STEPS, WEIGHTS_STEPS
from anonface.cli.help import HelpCommand, HelpGroup, quick_help
from anonface.cli.keygen import keygen
from anonface.cli.man import man
from anonface.cli.records import inspect, rekey, strip
from anonface.cli.review import review
from anonface.cli.train import train
from anonface.cli.weights import list_weights, pull_weights, verify_weights, weights_licenses
from anonface.errors import AnonfaceError, UsageError
from anonface.streams import Stdout, open_standard_streams

app = typer.Typer(
    name="anonface",
    help="Replace the faces in photos by synthetic faces chosen by a key, and recover the originals with the key.",
    epilog=FIRST_STEPS,
    cls=HelpGroup,
    rich_markup_mode=None,  # panels take half a second, and leave 24 of 80 columns to the help of an option
    pretty_exceptions_enable=False,
)
COMPLETING = "_ANONFACE_COMPLETE"
weights_app = typer.Typer(
    help="List, download and check the network weights.", epilog=WEIGHTS_STEPS, cls=HelpGroup, rich_markup_mode=None
)


def main() -> None:
    """Run the command line of this process; :mod:`anonface.__main__` is the entry point."""
    try:
        signals.listen()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _end(signals.exit_code() or INTERRUPTED, Invocation(as_json="--json" in sys.argv))
    signals.end_at_once()
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")
    # Threads that spin without limit are slow on a shared machine; threads that sleep at once lose a third.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Otherwise matrix products of several threads differ in their last bits, and searches magnify that.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    _forbid_core_dumps()
    invocation = Invocation(as_json="--json" in args)
    open_standard_streams()
    before, sys.stdout = sys.stdout, cast(TextIO, output := Stdout(sys.stdout))
    try:
        with _notes_printed():
            code = _exit_code(list(args) or ["--help"], invocation)
    finally:
        sys.stdout = before
    if failure := output.failure():
        complain(failure, invocation)
        return code or failure.exit_code
    return code


def _exit_code(args: list[str], invocation: Invocation) -> int:
    """Run a command line, report its failure, and return its exit code."""
    failure: AnonfaceError
    try:
        code = _command(args, invocation)
        if code in ENDED_BY:
            code = signals.exit_code() or code  # typer treats both signals as an interrupt
            say(f"anonface: {ENDED_BY[code]}")
        return code
    except (typer.Abort, KeyboardInterrupt):
        return _end(signals.exit_code() or INTERRUPTED, invocation)
    except typer.TyperException as error:
        failure = UsageError(sentence(error.format_message()), usage_hint(error))
    except Exception as error:
        from anonface.batch.run import explained

        if code := signals.exit_code():
            return _end(code, invocation)
        failure = explained(error)
    complain(failure, invocation)
    if invocation.as_json:
        print_json({"exit": failure.exit_code, "error": error_json(failure)})
    return failure.exit_code


def _command(args: list[str], invocation: Invocation) -> int:
    """Run a command, in a working directory that exists."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(f"the working directory is gone: {error.strerror}", "cd to a folder that exists") from None
    command = typer.main.get_command(app)
    completing = COMPLETING in os.environ  # a shell asks, by the environment alone
    if not completing and isinstance(command, HelpGroup) and (text := quick_help(command, args)):
        print(text)
        return 0
    code: int = command.main(args, "anonface", standalone_mode=False, obj=invocation) or 0
    return code


def _end(code: int, invocation: Invocation) -> int:
    """Report that a signal ended the command."""
    say(f"anonface: {ENDED_BY[code]}")
    if invocation.as_json:
        print_json({"exit": code, "error": ended_json(code)})
    return code


class _Notes(logging.Handler):
    """Prints what other packages log."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"anonface: {'note' if record.levelno < logging.WARNING else 'warning'}: {record.getMessage()}")


@contextmanager
def _notes_printed() -> Iterator[None]:
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
    except ImportError:  # Windows, which writes none by default
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
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    ctx.obj.debug = debug


def _register(
    panel: str, function: Callable[..., Any], summary: str, name: str | None = None, group: typer.Typer = app
) -> None:
    name = name or function.__name__.replace("_", "-")
    examples = EXAMPLES[name if group is app else f"weights {name}"]
    register = group.command(name, cls=HelpCommand, short_help=summary, epilog=examples, rich_help_panel=panel)
    register(function)


app.callback()(_options)
_register("Keys and photos", keygen, "Make a key file that only you can read.")
_register("Keys and photos", anonymize, "Replace every face by a synthetic face.")
_register("Keys and photos", recover, "Recover the originals of anonymized photos.")
_register("Keys and photos", detect, "List and number the faces of photos.")
_register("Keys and photos", review, "Show every face before and after on one page.")
_register("Keys and photos", inspect, "Show what is public about an anonymized photo.")
_register("Keys and photos", strip, "Write a copy without the encrypted original.")
_register("Keys and photos", rekey, "Write a copy that another key recovers.")
_register("Measurement", compare, "Write a contact sheet of originals and results.")
_register("Measurement", evaluate, "Measure privacy and recovery on your photos.")
_register("Measurement", blind_score, "Score a blind test of naturalness.")
_register("Measurement", audit, "Attack the anonymization without the key.")
_register("Networks", train, "Train a network on synthetic faces.")
app.add_typer(weights_app, name="weights", rich_help_panel="Networks")
_register("Networks", doctor, "Check whether this machine is ready.")
_register("Help", man, "Print the manual page.")
_register("Commands", list_weights, "List all weight files, their purpose and their state.", "list", weights_app)
_register("Commands", pull_weights, "Download weight files.", "pull", weights_app)
_register("Commands", verify_weights, "Check the sha256 of every downloaded file.", "verify", weights_app)
_register("Commands", weights_licenses, "Show the licence and origin of every file.", "licenses", weights_app)
