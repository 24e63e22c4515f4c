"""Photo files: one through the library's :func:`anonymize` and :func:`recover`, many one after the other through these.

Nothing here prints. A photo is read once, decoded, treated, and written in one step; whatever fails before that step
leaves no file behind.
"""

from __future__ import annotations

import glob
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from anonface import container
from anonface.container import Header
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    DeviceError,
    ImageError,
    OutputError,
    UsageError,
)
from anonface.imagefile import MAX_PIXELS, Photo, check_output, encode_photo, read_file, read_photo, write_together
from anonface.keys import Argon2, Key

if TYPE_CHECKING:
    from anonface.pipeline import Anonymized, Engine, FaceReport, Recovered

_log = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]
Direction = Literal["anonymize", "recover"]
State = Literal["done", "skipped", "failed"]

SUFFIXES = {"png": ".png", "webp": ".webp", "jpeg": ".jpg"}
FORMATS = {".png": "png", ".webp": "webp", ".jpg": "jpeg", ".jpeg": "jpeg"}
OTHER_PHOTOS = {".jpe", ".jfif", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif", ".avif", ".ppm"}
SEARCHED = {*FORMATS, *OTHER_PHOTOS}
"""Suffixes that a folder is searched for; unreadable kinds too, so that none is passed over silently."""

QUALITY = 95

_RESULT = re.compile(r"\.(anon|recovered)(\.\w+)$", re.IGNORECASE)
_MARKS = {"anonymize": "anon", "recover": "recovered"}
_EXPECTED = {"anonymize": "", "recover": "anon"}
_MAGIC = re.compile(r"[*?[]")
OUT_OF_MEMORY = "out of memory"
_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|insufficient memory", re.IGNORECASE)


# --- One photo -------------------------------------------------------------------------------------------------------


@cache
def default_engine() -> Engine:
    """The engine with all defaults, made once."""
    from anonface.pipeline import Engine

    return Engine()


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
    source, target, beside = _paths(photo, output, sidecar)
    for file in filter(None, (target, beside)):
        check_target(file, source, overwrite)
    _, opened = open_photo(photo, max_pixels)
    ready = engine() if callable(engine) else engine
    result = ready.anonymize(opened.pixels, key, consistent=consistent or stateless, boxes=tuple(boxes), kdf=kdf)
    if target:
        data = _encoded(target, opened, result.pixels, quality, keep_metadata)
        record = None if stateless else container.encode(result.header)
        if record and not beside:
            data = container.embed(data, record)
        _write(target, data, beside, record if beside else None, overwrite)
    return result


def recover(
    photo: Pixels | str | Path,
    key: Key | Callable[[Header | None], Key],
    output: str | Path | None = None,
    *,
    engine: Engine | Callable[[], Engine] = default_engine,
    header: Header | None = None,
    sidecar: str | Path | None = None,
    stateless: bool = False,
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
        quality, overwrite, max_pixels: as in :func:`anonymize`.

    Raises:
        ContainerError: the file carries no record, and no ``sidecar``, ``header`` or ``stateless`` is given.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    source, target, beside = _paths(photo, output, sidecar)
    if target:
        check_target(target, source, overwrite)
    data, opened = open_photo(photo, max_pixels)
    if source and header is None and not stateless:
        header = read_header(source, data, beside)
    chosen = key(header) if callable(key) else key
    ready = engine() if callable(engine) else engine
    result = ready.recover(opened.pixels, chosen, header)
    if target:
        _write(target, _encoded(target, opened, result.pixels, quality), None, None, overwrite)
    return result


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


def _paths(
    photo: Pixels | str | Path, output: str | Path | None, sidecar: str | Path | None
) -> tuple[Path | None, Path | None, Path | None]:
    source = None if isinstance(photo, np.ndarray) else Path(photo)
    return source, None if output is None else Path(output), None if sidecar is None else Path(sidecar)


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
    opened = read_photo(data, max_pixels, str(photo))
    for note in opened.notes:
        _log.info("%s: %s", photo, note)
    return data, opened


def _encoded(target: Path, opened: Photo, pixels: Pixels, quality: int, keep_metadata: bool = False) -> bytes:
    return encode_photo(replace(opened, pixels=pixels), format_of(target), quality, keep_metadata)


def _write(target: Path, data: bytes, sidecar: Path | None, record: bytes | None, overwrite: bool) -> None:
    """The photo, and the record that leads it back before it, or neither."""
    for file in filter(None, (target, sidecar)):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder {file.parent} cannot be made: {error.strerror}") from error
    records = [(sidecar, record)] if sidecar and record is not None else []
    write_together([*records, (target, data)], overwrite)


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
        """The files that the job writes."""
        return (self.target, self.sidecar) if self.sidecar and self.direction == "anonymize" else (self.target,)


def plan(
    paths: Sequence[str],
    direction: Direction,
    *,
    output: str | None = None,
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
        format: png, webp or jpeg; None goes by the name of ``output``, or takes png.
        sidecar: as ``output``; in a folder, records are named after the anonymized photos with ``.anf`` appended.
        recursive: look into folders of folders.

    Raises:
        UsageError: nothing found, two inputs with one output, or an output that is an input.
    """
    found = find(paths, direction, recursive)
    alone = len(paths) == 1 and not Path(paths[0]).is_dir() and not _is_pattern(paths[0])
    top = Path(os.path.commonpath([root.absolute() for root, _ in found]))
    jobs = []
    for _, source in found:
        branch = source.absolute().parent.relative_to(top)
        name = _result_name(source, direction, format or "png")
        target = _place(output, alone, branch, name) or source.with_name(name)
        if format not in (None, format_of(target)):
            raise UsageError(f"--format {format} contradicts the name {target}")
        anonymized = target if direction == "anonymize" else source
        jobs.append(Job(direction, source, target, _place(sidecar, alone, branch, f"{anonymized.name}.anf")))
    _refuse_collisions(jobs)
    return jobs


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
    fixed = itertools.takewhile(lambda part: not _MAGIC.search(part), Path(pattern).parts)
    files = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 (Path.glob shows hidden files)
    taken = [file for file in files if file.is_file() and (direction == "recover" or not _RESULT.search(file.name))]
    return Path(*fixed), taken


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


def _result_name(source: Path, direction: Direction, format: str) -> str:
    """photo.jpg -> photo.anon.png, photo.anon.png -> photo.recovered.png."""
    name = _RESULT.sub(r"\2", source.name) if direction == "recover" else source.name
    return f"{Path(name).stem}.{_MARKS[direction]}{SUFFIXES[format]}"


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
                raise UsageError(f"{file}, the output of {job.source}, is {what} {other.source}", "rename one of them")
            writers[place] = job


def _canonical(file: Path) -> str:
    return os.path.normcase(os.path.realpath(file))


# --- One after the other ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of one photo; ``seconds`` from reading to writing."""

    job: Job
    state: State
    faces: tuple[FaceReport, ...] = ()
    seconds: float = 0.0
    error: AnonfaceError | None = None


def run(
    jobs: Sequence[Job],
    treat: Callable[[Job], Sequence[FaceReport]],
    *,
    overwrite: bool = False,
    skip_existing: bool = False,
) -> Iterator[Outcome]:
    """Do the jobs one after the other. A photo that fails stops no other; all outputs are checked before the first."""
    ready = []
    for job in jobs:
        if skip_existing and job.target.exists():
            yield Outcome(job, "skipped")
            continue
        try:
            for file in job.outputs:
                check_target(file, job.source, overwrite)
        except OutputError as error:
            yield Outcome(job, "failed", error=error)
        else:
            ready.append(job)
    for job in ready:
        started = time.perf_counter()
        try:
            faces = tuple(treat(job))
        except Exception as raised:
            yield Outcome(job, "failed", seconds=time.perf_counter() - started, error=explained(raised))
        else:
            yield Outcome(job, "done", faces, time.perf_counter() - started)


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
