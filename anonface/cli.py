"""The command line: parse, call, print, exit. Nothing else in the package prints or exits.

Results go to stdout, everything else to stderr. Every failure is one line ``anonface: error: ...``, where there is a
remedy a line ``hint: ...``, and an exit code of ``errors.py``. No secret is ever taken from the arguments. Imports are
made where they are used, so that help, ``keygen`` and ``inspect`` start at once.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anonface.errors import (
    AnonfaceError,
    DeviceError,
    ImageError,
    KeyFileError,
    LimitError,
    NoFaceError,
    UsageError,
    WeightsError,
    WrongKeyError,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.batch import Job, Outcome, Treated
    from anonface.container import FaceReport, Header, Tier
    from anonface.download import Progress
    from anonface.keys import Argon2, Key
    from anonface.pipeline import Engine
    from anonface.weights import Status

INTERRUPTED, TERMINATED = 130, 143
PARTLY_FAILED, NOT_READY = 3, 9
SECONDS_BETWEEN_LOSSES = 10.0
SHEET_CELL = 384  # px

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
StrictKeys = Annotated[bool, typer.Option("--strict-keys", help="Refuse a key file that others can read.")]
Sidecar = Annotated[
    str | None, typer.Option(help="Record beside the image instead of in it: file for one photo, folder for several.")
]
Seal = Annotated[
    Literal["file", "face", "none"] | None,
    typer.Option(help="What is stored under the key: the original file (default), the face pixels, or nothing."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Backend = Annotated[str, typer.Option(help="ifadit, or ifadit-official with the authors' weights.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Faces at a time; fewer need less memory.")]
Detector = Annotated[str, typer.Option(help="yunet or retinaface.")]
Parser = Annotated[str, typer.Option(help="landmarks, bisenet or parsenet.")]
Refine = Annotated[int | None, typer.Option(min=0, help="Optimisation steps a face. 0: the networks alone.")]
Format = Annotated[Literal["png", "webp", "jpeg"] | None, typer.Option(help="Default: as --output is named, else png.")]
Quality = Annotated[int | None, typer.Option(min=1, max=100, help="Of JPEG; default 95. Others are lossless.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
SkipExisting = Annotated[bool, typer.Option("--skip-existing", help="Pass over photos whose output exists.")]
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
    """Entry point of the ``anonface`` command."""
    import signal

    # As an exception, so that a terminated run tidies up and reports as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")  # its warnings would come before ours
    # Threads that spin while they wait make a machine shared with other work ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _forbid_core_dumps()
    session = Session(as_json="--json" in args)
    command = typer.main.get_command(app)
    try:
        code = command.main(list(args) or ["--help"], prog_name="anonface", standalone_mode=False, obj=session) or 0
        if code == INTERRUPTED:
            _say("anonface: interrupted")
        return code
    except typer.Abort:
        _say("anonface: interrupted")
        return INTERRUPTED
    except typer.TyperException as error:
        failure: AnonfaceError = UsageError(_sentence(error.format_message()), _usage_hint(error))
    except Exception as error:
        from anonface.batch import explained

        failure = explained(error)
    _complain(failure, session)
    if session.as_json:
        _print_json({"exit": failure.exit_code, "error": _error_json(failure)})
    return failure.exit_code


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
) -> None:
    """Make a key file, readable by you alone."""
    from anonface.keys import Key, write_key_file

    secret = _passphrase(passphrase_file, twice=True) if passphrase or passphrase_file else None
    write_key_file(file, Key.generate(), secret)
    _say(f"anonface: made {file}; without it no photo made under it leads back")


def _passphrase(file: Path | None, *, twice: bool = False) -> str:
    """From the file, the environment or the terminal, in this order.

    Raises:
        KeyFileError: none of them has one.
    """
    if file:
        try:
            text = file.read_text("utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"the passphrase file {file} cannot be read: {error}") from error
    else:
        text = os.environ.get("ANONFACE_PASSPHRASE") or _asked(twice)
    if not text:
        raise KeyFileError("the passphrase is empty")
    return text


def _asked(twice: bool) -> str:
    if not sys.stdin.isatty():
        raise KeyFileError("a passphrase is needed", "set ANONFACE_PASSPHRASE or use --passphrase-file")
    answer: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=twice, err=True)
    return answer


def _key_of_file(file: Path, passphrase_file: Path | None, strict: bool) -> Key:
    from anonface.keys import MAX_KEY_FILE, WRAPPED_PREFIX, Key, loose_permissions

    if loose_permissions(file):
        if strict:
            raise KeyFileError(f"key file {str(file)!r} can be read by others", f"chmod 600 {file}")
        _say(f"anonface: warning: key file {str(file)!r} can be read by others (chmod 600 mends it)")
    try:
        with file.open("rb") as stream:  # once: it may be a pipe
            data = stream.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise KeyFileError(f"key file {str(file)!r} cannot be read: {error.strerror}") from error
    wrapped = data.lstrip().upper().startswith(WRAPPED_PREFIX.encode())
    try:
        return Key.from_bytes(data, _passphrase(passphrase_file) if wrapped else None)
    except KeyFileError as error:
        raise KeyFileError(f"key file {str(file)!r}: {error.message}", error.hint) from error


@dataclass
class Secret:
    """A key file's key, or a passphrase: its key depends on each photo's stretching parameters."""

    key: Key | None
    passphrase: str = ""
    stretched: dict[Argon2, Key] = field(default_factory=dict)

    def fresh(self) -> tuple[Key, Argon2 | None]:
        """The key to anonymize with; a passphrase is stretched once a run."""
        from anonface.keys import Argon2

        if self.key:
            return self.key, None
        kdf = Argon2.fresh()
        return self._stretch(kdf), kdf

    def of(self, header: Header | None) -> Key:
        """The key to recover with.

        Raises:
            KeyFileError: the photo was made under the other kind of secret.
        """
        kdf = header.kdf if header else None
        if self.key:
            if kdf:
                raise KeyFileError("this photo was made under a passphrase, not a key file", "leave --key-file out")
            return self.key
        if kdf is None:
            raise KeyFileError("this photo was made under a key file, not a bare passphrase", "name it with --key-file")
        return self._stretch(kdf)

    def _stretch(self, kdf: Argon2) -> Key:
        from anonface.keys import Key

        if kdf not in self.stretched:
            self.stretched[kdf] = Key.from_passphrase(self.passphrase, kdf)
        return self.stretched[kdf]


def _secret(key_file: Path | None, passphrase_file: Path | None, strict: bool, stateless: bool = False) -> Secret:
    if key_file:
        return Secret(_key_of_file(key_file, passphrase_file, strict))
    if stateless:
        raise UsageError(
            "--stateless needs a key file: a bare passphrase's salt would have to be stored in the photo",
            "`anonface keygen FILE --passphrase` wraps a key in a passphrase; then --key-file FILE",
        )
    if not (passphrase_file or os.environ.get("ANONFACE_PASSPHRASE") or sys.stdin.isatty()):
        raise KeyFileError(
            "no key is given",
            "--key-file FILE (`anonface keygen FILE` makes one), --passphrase-file or ANONFACE_PASSPHRASE",
        )
    return Secret(None, _passphrase(passphrase_file))


# --- Photos ----------------------------------------------------------------------------------------------------------


@app.command(short_help="Make everybody in photos somebody else.")
def anonymize(
    ctx: typer.Context,
    paths: Paths,
    output: Output = None,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
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
    parser: Parser = "landmarks",
    refine: Refine = None,
    box: Annotated[
        list[str] | None,
        typer.Option(metavar="X,Y,W,H", help="A face that the detector misses, in pixels; repeatable."),
    ] = None,
    format: Format = None,
    quality: Quality = None,
    overwrite: Overwrite = False,
    skip_existing: SkipExisting = False,
    recursive: Recursive = False,
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
    jobs = batch.plan(paths, "anonymize", output=output, format=format, sidecar=sidecar, recursive=recursive)
    _check_quality(quality, jobs)
    for job in jobs:
        tier = batch.chosen_tier(seal, job.target, stateless)
    if boxes and len(jobs) > 1:
        raise UsageError("--box belongs to one photo", "anonymize that photo alone")
    if sheet:
        _check_sheet(sheet, overwrite)
    key, kdf = _secret(key_file, passphrase_file, strict_keys, stateless).fresh()
    engine = LazyEngine(backend, device, detector, parser, refine, batch_size)
    done: list[Job] = []

    def treat(job: Job) -> Treated:
        result = batch.anonymize(
            job.source,
            key,
            job.target,
            engine=engine,
            seal=tier,
            consistent=consistent,
            stateless=stateless,
            boxes=boxes,
            kdf=kdf,
            sidecar=job.sidecar,
            quality=quality or batch.QUALITY,
            overwrite=overwrite,
            max_pixels=max_pixels,
        )
        done.append(job)
        return batch.Treated(result.faces, job.target, tier)

    code = _do(ctx.obj, jobs, treat, engine, overwrite, skip_existing)
    if sheet and done:
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
    sidecar: Sidecar = None,
    seal: Annotated[
        Literal["best", "none"], typer.Option(help="none: let the networks lead back, whatever is sealed.")
    ] = "best",
    decoy: Annotated[
        bool, typer.Option("--decoy", help="Under a wrong key, write the face that it leads to; exit 7 all the same.")
    ] = False,
    device: Device = "auto",
    backend: Backend = "ifadit",
    batch_size: BatchSize = 4,
    detector: Detector = "yunet",
    parser: Parser = "landmarks",
    refine: Refine = None,
    format: Format = None,
    quality: Quality = None,
    overwrite: Overwrite = False,
    skip_existing: SkipExisting = False,
    recursive: Recursive = False,
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
    jobs = batch.plan(paths, "recover", output=output, format=format, sidecar=sidecar, recursive=recursive)
    _check_quality(quality, jobs)
    secret = _secret(key_file, passphrase_file, strict_keys, stateless)
    engine = LazyEngine(backend, device, detector, parser, refine, batch_size)

    def treat(job: Job) -> Treated:
        result = batch.recover(
            job.source,
            secret.of,
            job.target,
            engine=engine,
            sidecar=job.sidecar,
            unsealed=seal == "none",
            decoy=decoy,
            stateless=stateless,
            original_suffix=not job.named,
            quality=quality or batch.QUALITY,
            overwrite=overwrite,
            max_pixels=max_pixels,
        )
        if result.verified == "no":
            raise WrongKeyError(
                f"the key is not the one that this photo was sealed under; {result.file} is a decoy",
                "give the right key for the original",
            )
        return batch.Treated(result.faces, result.file or job.target, result.tier, result.verified)

    return _do(ctx.obj, jobs, treat, engine, overwrite, skip_existing)


def _check_options(overwrite: bool, skip_existing: bool, offline: bool) -> None:
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other")
    if offline:
        os.environ["ANONFACE_OFFLINE"] = "1"


def _check_quality(quality: int | None, jobs: Sequence[Job]) -> None:
    from anonface.batch import FORMATS

    if quality and all(FORMATS.get(job.target.suffix.lower()) != "jpeg" for job in jobs):
        raise UsageError("only JPEG knows a --quality, PNG and WebP are lossless", "--format jpeg, or no --quality")


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


class LazyEngine:
    """Makes the engine when the first photo is ready for it, and says its device."""

    def __init__(
        self, backend: str, device: str, detector: str, parser: str, refine: int | None, batch_size: int
    ) -> None:
        self._settings = (backend, device, detector, parser, refine, batch_size)
        self._engine: Engine | None = None
        self.failed = False

    def __call__(self) -> Engine:
        if self._engine is None:
            from anonface.pipeline import Engine

            self.failed = True
            if self._settings[0] == "ifadit":
                _fetch_missing()
            self._engine = Engine(*self._settings)
            self.failed = False
            _say(f"anonface: device {self._engine.device_name}")
        return self._engine

    @property
    def device_name(self) -> str | None:
        """None as long as nothing needed an engine."""
        return self._engine.device_name if self._engine else None


def _do(
    session: Session,
    jobs: Sequence[Job],
    treat: Callable[[Job], Treated],
    engine: LazyEngine,
    overwrite: bool,
    skip_existing: bool,
) -> int:
    """Run the jobs, report each, and sum up."""
    from anonface.batch import run as run_jobs

    outcomes: list[Outcome] = []
    started = time.monotonic()
    code = 0
    fatal: AnonfaceError | None = None
    with _progress("photos", len(jobs)) as advance, _notes():
        try:
            for outcome in run_jobs(jobs, treat, overwrite=overwrite, skip_existing=skip_existing):
                outcomes.append(outcome)
                if outcome.error and (len(jobs) == 1 or engine.failed or _stops_all(outcome.error)):
                    fatal = outcome.error
                    break
                _say(_line(outcome))
                faces = sum(len(done.faces) for done in outcomes)
                advance(len(outcomes), f"{faces} faces, {faces / (time.monotonic() - started):.2f}/s")
        except KeyboardInterrupt:
            code = INTERRUPTED
        except SystemExit:
            code = TERMINATED
    if len(jobs) > 1:
        _sum_up(outcomes, len(jobs), time.monotonic() - started, fatal)
    if fatal:
        of_photo = len(jobs) == 1 and not engine.failed and not _stops_all(fatal)
        _complain(fatal, session, jobs[0].source if of_photo else None)
        code = fatal.exit_code
    elif not code and any(outcome.error for outcome in outcomes):
        code = PARTLY_FAILED
    if session.as_json:
        _print_json(
            {
                "exit": code,
                "device": engine.device_name,
                "seconds": round(time.monotonic() - started, 3),
                "error": _error_json(fatal) if fatal else None,
                "photos": [_outcome_json(outcome) for outcome in outcomes],
            }
        )
    if session.debug and not fatal:
        _print_traces(outcome.error for outcome in outcomes)
    return code


def _stops_all(error: AnonfaceError) -> bool:
    """Whether the next photo would fare no better."""
    from anonface.batch import OUT_OF_MEMORY

    lost = isinstance(error, DeviceError) and not error.message.startswith(OUT_OF_MEMORY)
    return lost or isinstance(error, WeightsError)


@contextmanager
def _notes() -> Iterator[None]:
    """Say what the rooms below note about single photos."""
    import logging

    class Saying(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _say(f"anonface: note: {record.getMessage()}")

    logger, handler = logging.getLogger("anonface"), Saying(logging.INFO)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _line(outcome: Outcome) -> str:
    job = outcome.job
    if outcome.error:
        return f"{job.source}: failed: {outcome.error.message}"
    if outcome.state == "skipped":
        return f"{job.source}: skipped, {job.target} exists"
    mosaics = [face for face in outcome.faces if face.kind == "mosaic"]
    covered = f", {len(mosaics)} of them under a mosaic ({'; '.join(_reasons(mosaics))})" if mosaics else ""
    faces = f"{_count(len(outcome.faces), 'face')}{covered}"
    assert outcome.treated
    tier = _TIERS[job.direction][outcome.treated.tier]
    return f"{job.source} -> {outcome.treated.file}: {faces}, {tier}, {outcome.seconds:.1f} s"


_TIERS: dict[str, dict[Tier, str]] = {
    "anonymize": {
        "file": "original file sealed",
        "face": "face pixels sealed",
        "none": "nothing sealed",
    },
    "recover": {
        "file": "the original file",
        "face": "the original pixels",
        "none": "as the networks lead back",
    },
}


def _reasons(mosaics: Sequence[FaceReport]) -> list[str]:
    return list(dict.fromkeys(face.reason for face in mosaics))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _sum_up(outcomes: Sequence[Outcome], planned: int, seconds: float, fatal: AnonfaceError | None) -> None:
    by_state = {state: [o for o in outcomes if o.state == state] for state in ("done", "skipped", "failed")}
    faces = sum(len(outcome.faces) for outcome in outcomes)
    parts = [f"{len(found)} {state}" for state, found in by_state.items() if found]
    if planned > len(outcomes):
        parts.append(f"{planned - len(outcomes)} not reached")
    _say(f"{_count(planned, 'photo')}: {', '.join(parts)}; {_count(faces, 'face')} in {seconds:.1f} s")
    if failures := [outcome for outcome in by_state["failed"] if outcome.error is not fatal]:
        width = max(len(_shown(outcome.job.source)) for outcome in failures)
        _say(f"{'exit':>4}  {'photo':{width}}  reason")
        for outcome in failures:
            assert outcome.error
            _say(f"{outcome.error.exit_code:4}  {_shown(outcome.job.source):{width}}  {outcome.error.message}")


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    job, treated = outcome.job, outcome.treated
    return {
        "input": str(job.source),
        "output": str(treated.file) if treated else None,
        "sidecar": str(job.sidecar) if job.sidecar and outcome.state == "done" else None,
        "state": outcome.state,
        "seconds": round(outcome.seconds, 3),
        "faces": [
            {"index": face.index, "kind": face.kind, "reason": face.reason, "box": [round(v, 1) for v in face.box]}
            for face in outcome.faces
        ],
        "tier": treated.tier if treated else None,
        **({"verified": treated.verified if treated else "unknown"} if job.direction == "recover" else {}),
        "error": _error_json(outcome.error) if outcome.error else None,
    }


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo, or a sidecar.")],
    as_json: AsJson = False,
) -> None:
    """Show what is public about an anonymized photo, and what its recovery will need. Takes no key, changes nothing."""
    from anonface.carriers import describe
    from anonface.imagefile import read_file

    facts = describe(read_file(file), str(file))
    if as_json:
        _print_json({"exit": 0, "input": str(file), **facts})
        return
    faces = facts.pop("faces")
    for name, value in (*facts.items(), ("faces", len(faces))):
        shown = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        shown = "; ".join(value) if name == "needs" else shown
        print(_shown(f"{name.replace('_', ' '):15} {shown}"))
    for number, face in enumerate(faces, start=1):
        corners = " ".join(f"({x:g}, {y:g})" for x, y in face["quad"])
        print(_shown(f"face {number:<10} {face['kind']} {corners}"))


@app.command()
def strip(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: photo.anon.png -> photo.anon.stripped.png.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the photo without its record, every pixel as it is. That copy leads back to nobody's original."""
    from anonface.batch import strip as strip_photo

    target = output or file.with_name(f"{file.stem}.stripped{file.suffix}")
    strip_photo(file, target, overwrite=overwrite)
    _say(f"anonface: {target} carries no record; {file} still does")


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
) -> None:
    """Seal a photo under another key, every pixel as it is. Copies under the old key stay what they are."""
    from anonface.batch import rekey as rekey_photo

    target = output or file.with_name(f"{file.stem}.rekeyed{file.suffix}")
    old = _secret(old_key_file, passphrase_file, strict_keys)
    new = _key_of_file(new_key_file, new_passphrase_file, strict_keys)
    rekey_photo(file, old.of, new, target, overwrite=overwrite)
    _say(f"anonface: {target} answers to the new key; {file} still answers to the old one: delete it to take that away")


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
    detector: Detector = "yunet",
    parser: Parser = "landmarks",
    refine: Refine = None,
    cell: Annotated[int, typer.Option(min=64, max=1024, help="Side of a picture on the sheet, in pixels.")] = 256,
    overwrite: Overwrite = False,
    recursive: Recursive = False,
    max_pixels: MaxPixels = 64_000_000,
    offline: Offline = False,
) -> int:
    """Lay out original, anonymized, second key, recovered and wrong key side by side, recovered from pixels alone."""
    from anonface import batch

    _check_options(overwrite, False, offline)
    if output.suffix.lower() != ".png":
        raise UsageError(f"the sheet {output} must be a .png")
    from anonface.evaluation.sheet import COLUMNS, versions
    from anonface.keys import Key

    photos = [source for _, source in batch.find(paths, "anonymize", recursive)]
    batch.check_target(output, None, overwrite)
    key, _ = _secret(key_file, passphrase_file, strict_keys).fresh()
    second = Key.generate()
    engine = LazyEngine(backend, device, detector, parser, refine, 1)
    rows: list[Sequence[NDArray[np.uint8]]] = []
    shown: list[Path] = []
    failures: list[AnonfaceError] = []
    with _progress("photos", len(photos)) as advance:
        for done, photo in enumerate(photos, start=1):
            try:
                _, opened = batch.open_photo(photo, max_pixels)
                rows.append([_thumbnail(made, cell) for made in versions(engine(), opened.pixels, key, second)])
                shown.append(photo)
            except (ImageError, NoFaceError, LimitError) as error:
                failures.append(error)
                if len(photos) > 1:
                    _say(f"{photo}: failed: {error.message}")
            advance(done, "")
    if rows:
        _write_sheet(output, rows, COLUMNS, shown, cell, overwrite)
    if len(photos) == 1 and failures:
        _complain(failures[0], ctx.obj, photos[0])
        return failures[0].exit_code
    return PARTLY_FAILED if failures else 0


def _check_sheet(file: Path, overwrite: bool) -> None:
    from anonface.batch import check_target

    if file.suffix.lower() != ".png":
        raise UsageError(f"the sheet {file} must be a .png")
    check_target(file, None, overwrite)


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
    from anonface.imagefile import Photo, encode_photo, write_atomic

    sheet = contact_sheet(rows, columns=columns, captions=[_shown(photo.name) for photo in photos], cell=cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, encode_photo(Photo(sheet, None, None, "png")), overwrite=overwrite)
    _say(f"anonface: made {file} of {_count(len(rows), 'photo')}")


# --- Judging and training --------------------------------------------------------------------------------------------


@app.command(short_help="Measure privacy and recovery on photos.")
def evaluate(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Photos; identities.csv (file,identity) may name people.")
    ],
    keys: Annotated[int, typer.Option(min=1, help="Keys tried on each photo.")] = 4,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many photos.")] = None,
    split: Annotated[
        Literal["all", "even", "odd"], typer.Option(help="People of even or odd rank in identities.csv only.")
    ] = "all",
    device: Device = "auto",
    backend: Backend = "ifadit",
    detector: Detector = "yunet",
    parser: Parser = "landmarks",
    refine: Refine = None,
    offline: Offline = False,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a contact sheet (PNG) of the first key.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the sheet where it exists.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure on your own photos, from pixels: who is still recognised, who comes back, and with which key."""
    _check_options(False, False, offline)
    if sheet:
        _check_sheet(sheet, overwrite)
    from anonface.evaluation import report as reports
    from anonface.evaluation.run import Judges, Original, look_at_originals
    from anonface.evaluation.run import evaluate as measure
    from anonface.evaluation.sheet import around

    judges = Judges()
    with _progress("originals", 0) as advance:
        originals = look_at_originals(folder, judges, progress=lambda done, total: advance(done, "", total))
    engine = LazyEngine(backend, device, detector, parser, refine, 1)()
    pictures: dict[Path, list[NDArray[np.uint8]]] = {}

    def keep(original: Original, versions: list[NDArray[np.uint8]]) -> None:
        if original.box is not None:
            pictures[original.file] = [_thumbnail(around(picture, original.box), 256) for picture in versions]

    with _progress("photos", 0) as advance:
        report = measure(
            engine,
            folder,
            keys_per_photo=keys,
            limit=limit,
            split=split,
            judges=judges,
            originals=originals,
            progress=lambda done, total: advance(done, "", total),
            show=keep if sheet else None,
        )
    if sheet and pictures:
        columns = ("original", "anonymized", "right key", "wrong key")
        _write_sheet(sheet, list(pictures.values()), columns, list(pictures), 256, overwrite)
    if as_json:
        print(reports.to_json(report))
    elif markdown:
        print(reports.markdown(report))
    else:
        from rich.console import Console

        console = Console()
        for table in reports.tables(report):
            console.print(table)


@app.command()
def train(
    what: Annotated[
        str, typer.Argument(help="heads, identity, attributes, flow or ifadit; each builds on the former.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the run lives; an earlier one there goes on.")],
    steps: Annotated[int, typer.Option(min=0, help="Length of the run; 0: as the recipe says.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Stop after so long; 0: never.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 1,
    faces: Annotated[int, typer.Option(min=100, help="Synthetic faces rendered beforehand.")] = 3600,
) -> None:
    """Train networks on synthetic faces, on the CPU. Resumable; logs losses and contact sheets into DIR."""
    from anonface.training.run import Request, train_command

    request = Request(folder, steps, minutes, seed, faces)
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
            hint = "reinstall anonface" if needed else "only for `evaluate`: install anonface[evaluation]"
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
    print(_shown(text), file=sys.stderr, flush=True)


def _print_json(result: object) -> None:
    import json

    print(json.dumps(result))


def _error_json(error: AnonfaceError) -> dict[str, Any]:
    return {"code": error.exit_code, "message": error.message, "hint": error.hint}


def _complain(error: AnonfaceError, session: Session, about: Path | None = None) -> None:
    """The error line, after the file it is about unless the message names it, and the hint."""
    subject = f"{about}: " if about is not None and str(about) not in error.message else ""
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
    if not sys.stderr.isatty() or total == 1:
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
