"""Photo files: one through the library's :func:`anonymize` and :func:`recover`, many through :func:`run`.

Nothing here prints. A photo is read once, decoded, treated, and written in one step; whatever fails before that step
leaves no file behind.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import string
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from anonface import container
from anonface.container import Header
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    DeviceError,
    ImageError,
    NoFaceError,
    OutputError,
    UsageError,
    WeightsError,
)
from anonface.imagefile import MAX_PIXELS, Photo, check_output, encode_photo, read_file, read_photo, write_together
from anonface.journal import Journal, Record
from anonface.keys import Argon2, Key

if TYPE_CHECKING:
    from anonface.pipeline import Anonymized, Chosen, Engine, FaceReport, Recovered

Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]
Direction = Literal["anonymize", "recover"]
State = Literal["done", "copied", "skipped", "failed"]

SUFFIXES = {"png": ".png", "webp": ".webp", "jpeg": ".jpg"}
FORMATS = {".png": "png", ".webp": "webp", ".jpg": "jpeg", ".jpeg": "jpeg"}
OTHER_PHOTOS = {".jpe", ".jfif", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif", ".avif", ".ppm"}
SEARCHED = {*FORMATS, *OTHER_PHOTOS}
"""Suffixes that a folder is searched for; unreadable kinds too, so that none is passed over silently."""

QUALITY = 95

_RESULT = re.compile(r"\.(anon|recovered)(\.\w+)$", re.IGNORECASE)
_MARKS = {"anonymize": "anon", "recover": "recovered"}
_EXPECTED = {"anonymize": "", "recover": "anon"}
_FIELDS = ("stem", "suffix", "mark", "ext")
DEFAULT_NAME = "{stem}.{mark}{ext}"
_COLLISION_HINT = "rename one of them, or tell them apart with --name '{stem}{suffix}.{mark}{ext}'"
_MAGIC = re.compile(r"[*?[]")
OUT_OF_MEMORY = "out of memory"
_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|insufficient memory", re.IGNORECASE)


# --- One photo -------------------------------------------------------------------------------------------------------


@cache
def default_engine() -> Engine:
    """The engine with all defaults, made once."""
    from anonface.pipeline import Engine

    return Engine()


@dataclass(frozen=True)
class Opened:
    """A photo that was read: its name, its bytes, what they show, and the header of an anonymized one."""

    source: Path | None
    data: bytes
    photo: Photo
    header: Header | None = None


@dataclass(frozen=True)
class Treated:
    """A photo's new pixels with what is to be said about it: the tier of recovery, and notes of one line each."""

    result: Anonymized | Recovered
    tier: str
    notes: tuple[str, ...] = ()


class Task(Protocol):
    """What is done to every photo of a run, in steps: files are read and written beside the device's work."""

    def open(self, source: Pixels | str | Path, sidecar: Path | None = None) -> Opened:
        """Read a photo. Runs in any thread."""
        ...

    def ready(self) -> Engine:
        """Make the engine, if it is not made yet. What it raises concerns every photo."""
        ...

    def treat(self, opened: Opened) -> Treated:
        """Do the device's part."""
        ...

    def files(self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None) -> list[tuple[Path, bytes]]:
        """What to write where, the photo itself last. Runs in any thread."""
        ...


@dataclass(frozen=True)
class Anonymizing:
    """How photos are anonymized; the fields are as in :func:`anonymize`."""

    key: Key
    engine: Engine | Callable[[], Engine] = default_engine
    consistent: bool = False
    stateless: bool = False
    boxes: Sequence[Box] = ()
    kdf: Argon2 | None = None
    faces: Chosen = "all"
    faceless: bool = False
    quality: int = QUALITY
    keep_metadata: bool = False
    max_pixels: int = MAX_PIXELS

    def open(self, source: Pixels | str | Path, sidecar: Path | None = None) -> Opened:
        data, photo = open_photo(source, self.max_pixels)
        return Opened(_name(source), data, photo)

    def ready(self) -> Engine:
        return self.engine() if callable(self.engine) else self.engine

    def treat(self, opened: Opened) -> Treated:
        result = self.ready().anonymize(
            opened.photo.pixels,
            self.key,
            consistent=self.consistent or self.stateless,
            boxes=tuple(self.boxes),
            kdf=self.kdf,
            faces=self.faces,
            faceless=self.faceless,
        )
        notes = opened.photo.notes if result.faces else (*opened.photo.notes, "no face was found; only copied")
        return Treated(result, "stateless" if self.stateless else "none", notes)

    def files(self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None) -> list[tuple[Path, bytes]]:
        data = _encoded(target, opened.photo, treated.result.pixels, self.quality, self.keep_metadata)
        if self.stateless:
            return [(target, data)]
        record = container.encode(treated.result.header)  # type: ignore[union-attr]
        return [(sidecar, record), (target, data)] if sidecar else [(target, container.embed(data, record))]


@dataclass(frozen=True)
class Recovering:
    """How photos are led back; the fields are as in :func:`recover`."""

    key: Key | Callable[[Header | None], Key]
    engine: Engine | Callable[[], Engine] = default_engine
    stateless: bool = False
    faces: Chosen = "all"
    quality: int = QUALITY
    max_pixels: int = MAX_PIXELS

    def open(self, source: Pixels | str | Path, sidecar: Path | None = None) -> Opened:
        data, photo = open_photo(source, self.max_pixels)
        name = _name(source)
        header = read_header(name, data, sidecar) if name and not self.stateless else None
        return Opened(name, data, photo, header)

    def ready(self) -> Engine:
        return self.engine() if callable(self.engine) else self.engine

    def treat(self, opened: Opened) -> Treated:
        key = self.key(opened.header) if callable(self.key) else self.key
        result = self.ready().recover(opened.photo.pixels, key, opened.header, faces=self.faces)
        return Treated(result, "none" if opened.header else "stateless", opened.photo.notes)

    def files(self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None) -> list[tuple[Path, bytes]]:
        return [(target, _encoded(target, opened.photo, treated.result.pixels, self.quality))]


def anonymize(
    photo: Pixels | str | Path,
    key: Key,
    output: str | Path | None = None,
    *,
    engine: Engine | Callable[[], Engine] = default_engine,
    consistent: bool = False,
    stateless: bool = False,
    boxes: Sequence[Box] = (),
    kdf: Argon2 | None = None,
    faces: Chosen = "all",
    faceless: bool = False,
    sidecar: str | Path | None = None,
    quality: int = QUALITY,
    keep_metadata: bool = False,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Anonymized:
    """Make everybody in a photo somebody else.

    Args:
        photo: [H, W, 3] uint8 RGB, or a file.
        key: decides who they become.
        output: the file to write; its suffix (.png, .webp, .jpg) says how. None writes nothing.
        engine: an engine, or what gives one when the photo has been read.
        consistent: the same person becomes the same other person in every photo under this key.
        stateless: write no record, so that pixels and key alone lead back; implies ``consistent``.
        boxes: (x, y, w, h) in pixels of faces that the detector misses.
        kdf: how ``key`` was stretched from a passphrase, when it was; goes into the record.
        faces: "all", "largest", or the numbers of those to change, counted from 0, from top-left to bottom-right.
        faceless: write a photo without a face as it is, instead of refusing it.
        sidecar: write the record into this file instead of into the image.
        quality: of JPEG, 1 to 100; the other formats are lossless.
        keep_metadata: keep how the photo was taken (exposure, lens, density), nothing of where, when or by whom.
        overwrite: replace ``output`` where it exists.
        max_pixels: larger photos are refused.

    Returns:
        The new pixels, a report on every face, and the header that :func:`recover` wants for arrays.

    Raises:
        AnonfaceError: one of its kinds, see :mod:`anonface.errors`.
    """
    task = Anonymizing(
        key, engine, consistent, stateless, boxes, kdf, faces, faceless, quality, keep_metadata, max_pixels
    )
    target, beside = _path(output), _path(sidecar)
    for file in filter(None, (target, beside)):
        check_target(file, _name(photo), overwrite)
    opened = task.open(photo)
    treated = task.treat(opened)
    if target:
        write_files(task.files(opened, treated, target, beside), overwrite)
    return treated.result  # type: ignore[return-value]


def recover(
    photo: Pixels | str | Path,
    key: Key | Callable[[Header | None], Key],
    output: str | Path | None = None,
    *,
    engine: Engine | Callable[[], Engine] = default_engine,
    header: Header | None = None,
    sidecar: str | Path | None = None,
    stateless: bool = False,
    faces: Chosen = "all",
    quality: int = QUALITY,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Recovered:
    """Lead an anonymized photo back. A wrong key leads to some other plausible person, and nobody can tell.

    Args:
        photo: [H, W, 3] uint8 RGB, or a file.
        key: the one it was anonymized under, or what gives it once the header is known.
        output: the file to write; None writes nothing.
        engine: an engine, or what gives one when the photo has been read.
        header: what :func:`anonymize` returned. An array without one is recovered from pixels and key alone.
        sidecar: the file that holds the record of a photo file.
        stateless: recover a photo file from pixels and key alone, whatever record it carries.
        faces: as in :func:`anonymize`, for photos without a record; a record says it itself.
        quality, overwrite, max_pixels: as in :func:`anonymize`.

    Raises:
        ContainerError: the file carries no record, and no ``sidecar``, ``header`` or ``stateless`` is given.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    task = Recovering(key, engine, stateless or header is not None, faces, quality, max_pixels)
    target, beside = _path(output), _path(sidecar)
    if target:
        check_target(target, _name(photo), overwrite)
    opened = task.open(photo, beside)
    if header is not None:
        opened = replace(opened, header=header)
    treated = task.treat(opened)
    if target:
        write_files(task.files(opened, treated, target, beside), overwrite)
    return treated.result  # type: ignore[return-value]


def read_header(source: Path, data: bytes, sidecar: Path | None = None) -> Header:
    """The header of an anonymized photo, from its sidecar when one is named.

    Args:
        source: the photo's name, for messages.
        data: its bytes.

    Raises:
        ContainerError: there is none, or it is damaged or newer than this program.
    """
    record = container.extract(read_file(sidecar) if sidecar else data)
    if record is None:
        raise ContainerError(
            f"{source} carries no anonface record (saving it with another program drops it)",
            "give its sidecar with --sidecar, or --stateless if it was made so",
        )
    return container.decode(record)


def format_of(target: Path) -> str:
    """png, webp or jpeg, by the suffix.

    Raises:
        UsageError: any other suffix.
    """
    try:
        return FORMATS[target.suffix.lower()]
    except KeyError:
        raise UsageError(
            f"the name {target} does not say which format to write",
            f"end it with {', '.join(SUFFIXES.values())}, or with / for a folder",
        ) from None


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)


def _name(photo: Pixels | str | Path) -> Path | None:
    return None if isinstance(photo, np.ndarray) else Path(photo)


def open_photo(photo: Pixels | str | Path, max_pixels: int = MAX_PIXELS) -> tuple[bytes, Photo]:
    """The bytes of a file (none of an array) and what they show.

    Raises:
        ImageError: the file cannot be read or is no photo, or the array is no uint8 [H, W, 3].
        LimitError: more pixels than allowed.
    """
    if isinstance(photo, np.ndarray):
        if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3:
            raise ImageError(f"pixels must be uint8 [H, W, 3], not {photo.dtype} {list(photo.shape)}")
        return b"", Photo(photo, None, None, "png")
    data = read_file(photo)
    return data, read_photo(data, max_pixels, str(photo))


def _encoded(target: Path, opened: Photo, pixels: Pixels, quality: int, keep_metadata: bool = False) -> bytes:
    return encode_photo(replace(opened, pixels=pixels), format_of(target), quality, keep_metadata)


def write_files(files: Sequence[tuple[Path, bytes]], overwrite: bool) -> None:
    """Write a photo's files, the record before the photo: without its record it could never be led back.

    Raises:
        OutputError: one cannot be written; none is there then.
    """
    for file, _ in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder {file.parent} cannot be made: {error.strerror}") from error
    write_together(files, overwrite)


# --- Which photos, and what they become ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One photo to treat: the file, what it becomes, and where its record lies when that is a file of its own."""

    direction: Direction
    source: Path
    target: Path
    sidecar: Path | None = None

    @property
    def outputs(self) -> tuple[Path, ...]:
        """The files that the job writes, the photo last."""
        return (self.sidecar, self.target) if self.sidecar and self.direction == "anonymize" else (self.target,)


def plan(
    paths: Sequence[str],
    direction: Direction,
    *,
    output: str | None = None,
    name: str | None = None,
    format: str | None = None,
    sidecar: str | None = None,
    recursive: bool = False,
) -> list[Job]:
    """Lay out a run without touching anything.

    Args:
        paths: files, folders, and patterns with ``*``, ``?``, ``[]`` and ``**``. Where a file bears a pattern's name,
            the file is meant. Folders and patterns pass over the results of earlier runs: anonymizing takes no
            ``*.anon.*`` and ``*.recovered.*``; recovering a folder takes ``*.anon.*`` alone.
        output: a file for one photo (a folder when it is one or ends with a slash); else a folder, in which the tree
            below the deepest folder that all inputs share is repeated. None writes beside each photo.
        name: how a result is called: text with ``{stem}`` (the photo's name without its suffix and mark), ``{suffix}``
            (the photo's), ``{mark}`` (anon or recovered) and ``{ext}`` (the result's suffix, with its dot).
        format: png, webp or jpeg; None goes by the name of ``output``, or takes png.
        sidecar: as ``output``; in a folder, records are named after the anonymized photos with ``.anf`` appended.
        recursive: look into folders of folders.

    Raises:
        UsageError: nothing found, two inputs with one output, an output that is an input, or a senseless ``name``.
    """
    template = _template(name or DEFAULT_NAME)
    found = find(paths, direction, recursive)
    alone = len(paths) == 1 and not Path(paths[0]).is_dir() and not _is_pattern(paths[0])
    top = Path(os.path.commonpath([root.absolute() for root, _ in found]))
    jobs = []
    for _, source in found:
        branch = source.absolute().parent.relative_to(top)
        called = _result_name(template, source, direction, format or "png")
        target = _place(output, alone, branch, called) or source.with_name(called)
        if name and target.name != called:
            raise UsageError(f"--name says what is written in a folder, and {output} names a file", "give one of them")
        if format not in (None, format_of(target)):
            raise UsageError(f"--format {format} contradicts the name {target}")
        anonymized = target if direction == "anonymize" else source
        jobs.append(Job(direction, source, target, _place(sidecar, alone, branch, f"{anonymized.name}.anf")))
    _refuse_collisions(jobs)
    return jobs


def journal_folder(paths: Sequence[str], output: str | None) -> Path:
    """Where a run over several photos keeps its journal: among its results, or at the top of its first input."""
    if output is not None:
        return Path(output)
    first = Path(paths[0])
    if _is_pattern(paths[0]):
        return _fixed_part(paths[0])
    return first if first.is_dir() else first.parent


def check_target(target: Path, source: Path | None, overwrite: bool) -> None:
    """:func:`anonface.imagefile.check_output` for an output whose folders need not be there yet.

    Raises:
        OutputError: it must not or cannot be written.
    """
    folder = target.absolute().parent
    if folder.is_dir():
        check_output(target, [source] if source else [], overwrite)
        return
    there = next(place for place in folder.parents if os.path.lexists(place))
    if not there.is_dir() or os.path.lexists(folder):
        raise OutputError(f"'{target}' cannot be written: {there} is not a folder", "choose another output")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"'{target}' cannot be written: {there} is not writable", "choose another output")


def _is_pattern(path: str) -> bool:
    return bool(_MAGIC.search(path)) and not os.path.lexists(path)


def find(paths: Sequence[str], direction: Direction, recursive: bool) -> list[tuple[Path, Path]]:
    """The photos meant by ``paths``, each once, with the folder that its tree is counted from. See :func:`plan`."""
    found: dict[str, tuple[Path, Path]] = {}
    for path in paths:
        if _is_pattern(path):
            root, files = _matching(path, direction)
        elif Path(path).is_dir():
            root, files = Path(path), _inside(Path(path), direction, recursive)
        else:
            root, files = Path(path).parent, [Path(path)]
        if not files:
            hint = "" if recursive else "--recursive looks into the folders of a folder"
            raise UsageError(f"{path} holds no photo to {direction}", hint)
        for file in files:
            found.setdefault(os.path.realpath(file), (root, file))
    return list(found.values())


def _matching(pattern: str, direction: Direction) -> tuple[Path, list[Path]]:
    files = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 (Path.glob shows hidden files)
    taken = [file for file in files if file.is_file() and (direction == "recover" or not _RESULT.search(file.name))]
    return _fixed_part(pattern), taken


def _fixed_part(pattern: str) -> Path:
    return Path(*itertools.takewhile(lambda part: not _MAGIC.search(part), Path(pattern).parts))


def _inside(folder: Path, direction: Direction, recursive: bool) -> list[Path]:
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if recursive and not name.startswith("."))
        files += [Path(parent, name) for name in sorted(names) if not name.startswith(".")]
    return [file for file in files if file.suffix.lower() in SEARCHED and _mark(file) == _EXPECTED[direction]]


def _mark(file: Path) -> str:
    """The mark of this program's results, "anon" or "recovered"; nothing on other names."""
    result = _RESULT.search(file.name)
    return result[1].lower() if result else ""


def _template(text: str) -> str:
    """The text, if it names files by fields of :func:`plan` and nothing else."""
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise UsageError(f"--name {text!r}: {error}", f"for example {DEFAULT_NAME!r}") from None
    for name, spec, conversion in fields:
        if name is not None and (name not in _FIELDS or spec or conversion):
            known = ", ".join(f"{{{field}}}" for field in _FIELDS)
            raise UsageError(f"--name {text!r} has a field that is not known", f"there are {known}")
    if "/" in text or os.sep in text or "\0" in text:
        raise UsageError(f"--name {text!r} is not the name of a file", "-o says which folder")
    return text


def _result_name(template: str, source: Path, direction: Direction, format: str) -> str:
    """photo.jpg -> photo.anon.png, photo.anon.png -> photo.recovered.png."""
    name = Path(_RESULT.sub(r"\2", source.name) if direction == "recover" else source.name)
    return template.format(stem=name.stem, suffix=name.suffix, mark=_MARKS[direction], ext=SUFFIXES[format])


def _place(chosen: str | None, alone: bool, branch: Path, name: str) -> Path | None:
    if chosen is None:
        return None
    if alone and not (Path(chosen).is_dir() or chosen.endswith(("/", os.sep))):
        return Path(chosen)
    return Path(chosen) / branch / name


def _refuse_collisions(jobs: Sequence[Job]) -> None:
    inputs = {_canonical(job.source): job for job in jobs}
    writers: dict[str, Job] = {}
    for job in jobs:
        for file in job.outputs:
            place = _canonical(file)
            what, other = "also the output of", writers.get(place)
            if other is None and inputs.get(place) not in (None, job):
                what, other = "the input", inputs[place]
            if other is not None:
                raise UsageError(f"{file}, the output of {job.source}, is {what} {other.source}", _COLLISION_HINT)
            writers[place] = job


def _canonical(file: Path) -> str:
    return os.path.normcase(os.path.realpath(file))


# --- Many photos -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of one photo.

    Args:
        faces: one entry a face, kept ones included.
        tier: what recovery can build on, see :class:`Treated`; empty where nothing was written.
        seconds: from reading to writing, waiting left out.
        notes: what its owner may want to know, one line each.
        ends: the next photo would fare no better, so it was the last.
        resumed: an earlier run wrote it.
    """

    job: Job
    state: State
    faces: tuple[FaceReport, ...] = ()
    tier: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    error: AnonfaceError | None = None
    ends: bool = False
    resumed: bool = False

    def record(self) -> Record:
        """For reports and journals; names files, and holds no digest, no code of a face and no key."""
        written = self.state in ("done", "copied")
        error = self.error
        return {
            "input": str(self.job.source),
            "output": str(self.job.target) if written else None,
            "sidecar": str(self.job.sidecar) if self.job.sidecar and written else None,
            "state": self.state,
            "resumed": self.resumed,
            "tier": self.tier or None,
            "seconds": round(self.seconds, 3),
            "faces": [
                {"index": face.index, "kind": face.kind, "reason": face.reason, "box": [round(v, 1) for v in face.box]}
                for face in self.faces
            ],
            "warnings": list(self.notes),
            # Without a seal nobody can tell a right key from a wrong one.
            **({"verified": "unknown"} if self.job.direction == "recover" else {}),
            "error": {"code": error.exit_code, "message": error.message, "hint": error.hint} if error else None,
        }

    @classmethod
    def resume(cls, job: Job, record: Record) -> Outcome:
        """What an earlier run noted about a photo that it finished."""
        from anonface.pipeline import FaceReport

        faces = [
            FaceReport(face["index"], face["kind"], tuple(face["box"]), face["reason"]) for face in record["faces"]
        ]
        return cls(
            job,
            record["state"],
            tuple(faces),
            record["tier"] or "",
            record["seconds"],
            tuple(record["warnings"]),
            resumed=True,
        )


@dataclass(frozen=True)
class Rules:
    """What a run does with single photos.

    Args:
        overwrite: replace outputs that exist.
        skip_existing: pass over photos whose output exists.
        skip_faceless: pass over photos without a face.
        journal: notes what is written, and knows what an earlier run has written.
    """

    overwrite: bool = False
    skip_existing: bool = False
    skip_faceless: bool = False
    journal: Journal | None = None

    def sort_out(self, jobs: Sequence[Job], tell: Callable[[Outcome], None]) -> list[Job]:
        """The jobs that are to be done; of the others is told what became of them."""
        ready = []
        for job in jobs:
            if self.journal and (record := self.journal.finished(job.outputs)):
                tell(Outcome.resume(job, record))
            elif self.skip_existing and job.target.exists():
                tell(Outcome(job, "skipped", notes=(f"{job.target} exists",)))
            else:
                try:
                    for file in job.outputs:
                        check_target(file, job.source, self.overwrite)
                    ready.append(job)
                except OutputError as error:
                    tell(Outcome(job, "failed", error=error))
        return ready

    def failed(self, job: Job, raised: Exception, seconds: float = 0.0, ends: bool = False) -> Outcome:
        """What becomes of a photo that raises."""
        error = explained(raised)
        if isinstance(error, NoFaceError) and self.skip_faceless:
            return Outcome(job, "skipped", seconds=seconds, notes=(error.message,))
        # A device that is out of memory may do for a smaller photo; a lost one, or missing weights, will not.
        lost = isinstance(error, DeviceError) and not error.message.startswith(OUT_OF_MEMORY)
        ends = ends or lost or isinstance(error, WeightsError)
        return Outcome(job, "failed", seconds=seconds, error=error, ends=ends)

    def note(self, outcome: Outcome, sizes: Sequence[tuple[Path, int]]) -> None:
        """Into the journal, before the files are written."""
        if self.journal:
            self.journal.note(sizes, outcome.record())


NO_RULES = Rules()


def done(job: Job, treated: Treated, seconds: float) -> Outcome:
    """What becomes of a photo once its files are written."""
    faces = tuple(treated.result.faces)
    state: State = "done" if faces else "copied"
    return Outcome(job, state, faces, treated.tier, seconds, treated.notes)


@dataclass
class _InHand:
    """A photo on its way through a run."""

    job: Job
    opened: Future[tuple[Opened, float]] | None = None
    outcome: Outcome | None = None
    written: Future[None] | None = None


def run(
    jobs: Sequence[Job], task: Task, tell: Callable[[Outcome], None], rules: Rules = NO_RULES, workers: int = 1
) -> None:
    """Do the jobs in their order: photos are read ahead and written behind while the device works on one.

    All outputs are checked before the first photo; a photo that fails stops no other. An interrupt discards the photo
    that the device has in hand, and those behind it are written to their end and told before it goes on its way.

    Args:
        tell: called once a photo, in the order of the jobs save those that need no work, which come first.
        workers: threads. As many photos are read ahead, and as many wait to be written: memory holds at most
            2 * ``workers`` + 1 of them.
    """
    waiting = deque(rules.sort_out(jobs, tell))
    ahead: deque[_InHand] = deque()
    behind: deque[_InHand] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="anonface")

    def read_ahead() -> None:
        while waiting and len(ahead) < workers:
            ahead.append(_InHand(waiting.popleft()))
            ahead[-1].opened = pool.submit(_timed_open, task, ahead[-1].job)

    def close(hand: _InHand, opened: Opened, treated: Treated, seconds: float) -> None:
        started = time.perf_counter()
        try:
            files = task.files(opened, treated, hand.job.target, hand.job.sidecar)
            outcome = done(hand.job, treated, seconds + time.perf_counter() - started)
            rules.note(outcome, [(file, len(data)) for file, data in files])
            write_files(files, rules.overwrite)
            hand.outcome = outcome
        except Exception as raised:
            hand.outcome = rules.failed(hand.job, raised, seconds + time.perf_counter() - started)

    try:
        ends = False
        while (waiting or ahead) and not ends:
            read_ahead()
            hand = ahead.popleft()
            behind.append(hand)
            read_ahead()
            ends = _treat(hand, task, rules, pool, close)
            while behind and (behind[0].outcome or len(behind) > workers):
                if (first := behind[0]).written:
                    first.written.result()
                assert first.outcome
                behind.popleft()
                tell(first.outcome)
    finally:
        for hand in ahead:
            if hand.opened:
                hand.opened.cancel()
        pool.shutdown(wait=True)
        for hand in behind:
            if hand.outcome:
                tell(hand.outcome)


def _treat(hand: _InHand, task: Task, rules: Rules, pool: ThreadPoolExecutor, close: Callable[..., None]) -> bool:
    """The device's part of one photo, which is handed on to be written. Whether the run ends with it."""
    assert hand.opened
    try:
        opened, seconds = hand.opened.result()
    except Exception as raised:
        hand.outcome = rules.failed(hand.job, raised)
        return hand.outcome.ends
    hand.opened = None  # as soon as it is written, nothing holds its pixels any more
    try:
        task.ready()
    except Exception as raised:
        hand.outcome = rules.failed(hand.job, raised, ends=True)
        return True
    started = time.perf_counter()
    try:
        treated = task.treat(opened)
    except Exception as raised:
        hand.outcome = rules.failed(hand.job, raised, seconds + time.perf_counter() - started)
        return hand.outcome.ends
    hand.written = pool.submit(close, hand, opened, treated, seconds + time.perf_counter() - started)
    return False


def _timed_open(task: Task, job: Job) -> tuple[Opened, float]:
    started = time.perf_counter()
    opened = task.open(job.source, job.sidecar)
    return opened, time.perf_counter() - started


def explained(error: Exception) -> AnonfaceError:
    """The error as one of ours: running out of memory says what lowers the need, the unexpected is called so."""
    if isinstance(error, AnonfaceError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
        known: AnonfaceError = DeviceError(
            OUT_OF_MEMORY, "lower --batch-size, refuse large photos with --max-pixels, or choose --device cpu"
        )
    else:
        known = AnonfaceError(
            f"unexpected {type(error).__name__}: {text}", "this is a bug; `anonface --debug ...` shows where it arose"
        )
    known.__cause__ = error
    return known
