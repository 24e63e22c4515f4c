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
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anonface import carriers, container, sealing
from anonface.container import FaceReport, Header, Tier
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    DeviceError,
    ImageError,
    LimitError,
    OutputError,
    UsageError,
    WrongKeyError,
)
from anonface.imagefile import (
    MAX_FILE_BYTES,
    MAX_PIXELS,
    Photo,
    check_output,
    encode_photo,
    read_file,
    read_photo,
    write_atomic,
)
from anonface.keys import Argon2, Key

if TYPE_CHECKING:
    from anonface.pipeline import Anonymized, Engine

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
    seal: Tier | None = None,
    consistent: bool = False,
    stateless: bool = False,
    boxes: Sequence[Box] = (),
    kdf: Argon2 | None = None,
    sidecar: str | Path | None = None,
    quality: int = QUALITY,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Anonymized:
    """Make everybody in a photo somebody else.

    Args:
        photo: [H, W, 3] uint8 RGB, or a file.
        key: decides who they become.
        output: the file to write; its suffix (.png, .webp, .jpg) says how. None writes nothing.
        engine: an engine, or what gives one when the photo has been read.
        seal: what is stored, encrypted: the whole original "file" (the default), the "face" pixels alone, or "none".
            Of an array, which is no file, the face pixels.
        consistent: the same person becomes the same other person in every photo under this key.
        stateless: write no record, so that pixels and key alone lead back; implies ``consistent``.
        boxes: (x, y, w, h) in pixels of faces that the detector misses.
        kdf: how ``key`` was stretched from a passphrase, when it was; goes into the record.
        sidecar: write the record into this file instead of into the image.
        quality: of JPEG, 1 to 100; the other formats are lossless.
        overwrite: replace ``output`` where it exists.
        max_pixels: larger photos are refused.

    Returns:
        The new pixels, a report on every face, and the header that :func:`recover` wants for arrays.

    Raises:
        AnonfaceError: one of its kinds, see :mod:`anonface.errors`.
    """
    source, target, beside = _paths(photo, output, sidecar)
    tier = chosen_tier(seal, target, stateless, array=source is None)
    for file in filter(None, (target, beside)):
        check_target(file, source, overwrite)
    original, opened = open_photo(photo, max_pixels)
    ready = engine() if callable(engine) else engine
    result = ready.anonymize(opened.pixels, key, consistent=consistent or stateless, boxes=tuple(boxes), kdf=kdf)
    if target:
        data = _encoded(target, opened, result.pixels, quality)
        record = b"" if stateless else container.encode(result.header)
        if tier == "file":
            contents = sealing.of_file(original, source.suffix if source else "", carriers.picture_digest(data))
            record = sealing.seal(result.header, key, contents)
            del original, contents  # as large as the record, and no longer needed
        elif tier == "face":
            contents = sealing.of_pixels(result.header, opened.pixels, result.pixels, opened.alpha)
            record = sealing.seal(result.header, key, contents)
        if record and not beside:
            data = carriers.embed(data, record)
        for made in (data, record):
            if len(made) > MAX_FILE_BYTES:
                raise LimitError(
                    f"the result takes {len(made) >> 20} MiB, more than could be read again",
                    "keep the record apart with --sidecar, or seal less with --seal face",
                )
        _write(target, data, beside, record if beside else None, overwrite)
    return result


def chosen_tier(seal: Tier | None, target: Path | None, stateless: bool, array: bool = False) -> Tier:
    """What is to be sealed, by default the file.

    Raises:
        UsageError: the output cannot bring that back.
    """
    if stateless:
        if seal not in (None, "none"):
            raise UsageError(f"--stateless stores nothing, so --seal {seal} has no place", "leave one of them out")
        return "none"
    tier: Tier = seal or "file"
    if array and tier == "file":
        tier = "face"
    if tier == "face" and target and format_of(target) == "jpeg":
        raise UsageError(
            "JPEG changes the pixels around the faces, so --seal face cannot bring the original back from it",
            "write PNG or WebP, or use --seal file",
        )
    return tier


@dataclass(frozen=True)
class Recovered:
    """A photo led back.

    Args:
        tier: what brought it back: the sealed "file", the sealed "face" pixels, or the networks ("none").
        verified: whether the key was the right one: "yes" or "no" (of a decoy) where a seal tells, else "unknown".
        faces: what became of each face.
        file: what was written, if anything.
        original: the original file's bytes, of tier "file".
    """

    tier: Tier
    verified: Literal["yes", "unknown", "no"]
    faces: list[FaceReport]
    file: Path | None
    original: bytes | None = None
    _pixels: Pixels | None = None

    @cached_property
    def pixels(self) -> Pixels:
        """[H, W, 3] uint8 RGB, upright. Of an original file they are decoded when they are first asked for."""
        if self._pixels is not None:
            return self._pixels
        assert self.original is not None
        return read_photo(self.original, sys.maxsize).pixels


def recover(
    photo: Pixels | str | Path,
    key: Key | Callable[[Header | None], Key],
    output: str | Path | None = None,
    *,
    engine: Engine | Callable[[], Engine] = default_engine,
    header: Header | None = None,
    sidecar: str | Path | None = None,
    unsealed: bool = False,
    decoy: bool = False,
    stateless: bool = False,
    original_suffix: bool = False,
    quality: int = QUALITY,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Recovered:
    """Lead an anonymized photo back, by the best that its record offers.

    Args:
        photo: [H, W, 3] uint8 RGB, or a file.
        key: the one it was anonymized under, or what gives it once the header is known.
        output: the file to write; None writes nothing. A sealed original is written as it was, byte for byte.
        engine: an engine, or what gives one when the networks are needed.
        header: what :func:`anonymize` returned. An array without one is recovered from pixels and key alone.
        sidecar: the file that holds the record of a photo file: a sidecar, or an image.
        unsealed: let the networks lead back, whatever is sealed. Where nothing is, a wrong key leads to some other
            plausible person, and nobody can tell.
        decoy: under a wrong key, let the networks make of it what they can.
        stateless: recover a photo file from pixels and key alone, whatever record it carries.
        original_suffix: a sealed original replaces the suffix of ``output`` by its own; else the two must agree.
        quality, overwrite, max_pixels: as in :func:`anonymize`.

    Raises:
        ContainerError: the file carries no record, and no ``sidecar``, ``header`` or ``stateless`` is given.
        WrongKeyError: the photo was sealed under another key, and no ``decoy`` is asked for.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    source, target, beside = _paths(photo, output, sidecar)
    if target:
        check_target(target, source, overwrite)
    data = read_file(source) if source else b""
    record = None
    if source and header is None and not stateless:
        record = read_record(source, data, beside)
        header = container.decode(record)
    chosen = key(header) if callable(key) else key
    contents = sealing.Contents("none")
    verified: Literal["yes", "unknown", "no"] = "unknown"
    if record and header:
        try:
            contents = sealing.unseal(header, container.payload(record), chosen)
            verified = "yes" if header.seal else "unknown"
        except WrongKeyError:
            if not decoy:
                raise
            verified = "no"
    if header and contents.tier == "file" and not unsealed:
        if not beside:
            sealing.check_picture(contents, carriers.picture_digest(data))
        original = bytes(contents.data)
        if target:
            target = _original_target(target, contents.suffix, source, overwrite, original_suffix)
            _write(target, original, None, None, overwrite)
        return Recovered("file", verified, header.reports(), target, original)
    if target:
        format_of(target)
    opened = open_photo(photo, max_pixels, data)[1]
    if header and contents.tier == "face" and not unsealed:
        faces = header.reports()
        pixels = sealing.mended(header, contents, opened.pixels, opened.alpha)
    else:
        ready = engine() if callable(engine) else engine
        result = ready.recover(opened.pixels, sealing.network_key(contents, chosen), header)
        pixels, faces = result.pixels, result.faces
    if target:
        _write(target, _encoded(target, opened, pixels, quality), None, None, overwrite)
    return Recovered("none" if unsealed else contents.tier, verified, faces, target, _pixels=pixels)


def _original_target(target: Path, suffix: str, source: Path | None, overwrite: bool, replace: bool) -> Path:
    """Where a sealed original goes, which has a suffix of its own."""
    if replace:
        target = target.with_suffix(suffix)
        check_target(target, source, overwrite)
    elif _same_format(target.suffix) != _same_format(suffix):
        raise UsageError(
            f"the sealed original is a {suffix or 'file without a suffix'}, and {target} names another format",
            f"name it {target.with_suffix(suffix)}, or give a folder",
        )
    return target


def _same_format(suffix: str) -> str:
    return FORMATS.get(suffix.lower(), suffix.lower())


def read_record(source: Path, data: bytes, sidecar: Path | None = None) -> bytes:
    """The record of an anonymized photo, from its sidecar when one is named; not yet decoded.

    Args:
        source: the photo's name, for messages.
        data: its bytes.

    Raises:
        ContainerError: there is none, or the file's structure is broken.
    """
    return carriers.expect(read_file(sidecar) if sidecar else data, str(source))


def strip(source: Path, target: Path, *, overwrite: bool = False) -> None:
    """Write an anonymized photo without its record.

    Raises:
        ContainerError: it carries none, or is no PNG, JPEG or WebP file.
        OutputError: ``target`` must not or cannot be written.
    """
    check_target(target, source, overwrite)
    data = read_file(source)
    bare = carriers.strip(data)
    if bare == data:
        raise ContainerError(f"{source} carries no anonface record", "there is nothing to strip")
    _write(target, bare, None, None, overwrite)


def rekey(
    source: Path, old: Key | Callable[[Header | None], Key], new: Key, target: Path, *, overwrite: bool = False
) -> None:
    """Write an anonymized photo, or a sidecar, sealed under another key. See :func:`anonface.sealing.rekeyed`.

    Raises:
        WrongKeyError: ``old`` is not the key that it was sealed under.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    check_target(target, source, overwrite)
    data = read_file(source)
    record = read_record(source, data)
    header = container.decode(record)
    chosen = old(header) if callable(old) else old
    record = sealing.rekeyed(header, container.payload(record), chosen, new)
    _write(target, record if carriers.kind(data) == "sidecar" else carriers.embed(data, record), None, None, overwrite)


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


def open_photo(
    photo: Pixels | str | Path, max_pixels: int = MAX_PIXELS, data: bytes | None = None
) -> tuple[bytes, Photo]:
    """The bytes of a file (none of an array; ``data`` where they were read before) and what they show.

    Raises:
        ImageError: the file cannot be read or is no photo, or the array is no uint8 [H, W, 3].
        LimitError: more pixels than allowed.
    """
    if isinstance(photo, np.ndarray):
        if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3:
            raise ImageError(f"pixels must be uint8 [H, W, 3], not {photo.dtype} {list(photo.shape)}")
        return b"", Photo(photo, None, None, "png")
    data = data or read_file(photo)
    opened = read_photo(data, max_pixels, str(photo))
    for note in opened.notes:
        _log.info("%s: %s", photo, note)
    return data, opened


def _encoded(target: Path, opened: Photo, pixels: Pixels, quality: int) -> bytes:
    made = Photo(pixels, opened.alpha, opened.icc, opened.format)
    return encode_photo(made, format=format_of(target), quality=quality)


def _write(target: Path, data: bytes, sidecar: Path | None, record: bytes | None, overwrite: bool) -> None:
    """The record first: a photo without its record could never be led back."""
    for file in filter(None, (target, sidecar)):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder {file.parent} cannot be made: {error.strerror}") from error
    fresh = sidecar is not None and not sidecar.exists()
    if sidecar and record is not None:
        write_atomic(sidecar, record, overwrite=overwrite)
    try:
        write_atomic(target, data, overwrite=overwrite)
    except BaseException:
        if sidecar and fresh:
            sidecar.unlink(missing_ok=True)
        raise


# --- Which photos, and what they become ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One photo to treat: the file, what it becomes, and where its record lies when that is a file of its own.

    ``named`` says that the user chose the target's name, its suffix included.
    """

    direction: Direction
    source: Path
    target: Path
    sidecar: Path | None = None
    named: bool = False

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
        named = output is not None and alone and not _is_folder(output)
        # a sealed original may have any suffix, so that of a recovered photo is judged once the record is known
        if (format or direction == "anonymize") and format not in (None, format_of(target)):
            raise UsageError(f"--format {format} contradicts the name {target}")
        anonymized = target if direction == "anonymize" else source
        beside = _place(sidecar, alone, branch, f"{anonymized.name}.anf")
        jobs.append(Job(direction, source, target, beside, named))
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
    return Path(chosen) if alone and not _is_folder(chosen) else Path(chosen) / branch / name


def _is_folder(chosen: str) -> bool:
    return Path(chosen).is_dir() or chosen.endswith(("/", os.sep))


def _is_made(job: Job) -> bool:
    """Whether the job's result is there; a recovered photo's suffix may be its original's."""
    if job.direction == "anonymize" or job.named:
        return job.target.exists()
    bare = job.target.with_suffix("")
    return bare.exists() or any(bare.parent.glob(f"{glob.escape(bare.name)}.*"))


def _refuse_collisions(jobs: Sequence[Job]) -> None:
    inputs = {_canonical(job.source): job for job in jobs}
    stems = {os.path.splitext(place)[0]: job for place, job in inputs.items()}  # noqa: PTH122
    writers: dict[str, Job] = {}
    for job in jobs:
        for file in job.outputs:
            place = _canonical(file)
            what, other = "also the output of", writers.get(place)
            if other is None and inputs.get(place) not in (None, job):
                what, other = "the input", inputs[place]
            stem = os.path.splitext(place)[0]  # noqa: PTH122
            if other is None and job.direction == "recover" and not job.named and stems.get(stem) not in (None, job):
                what, other = "under its original's suffix perhaps the input", stems[stem]
            if other is not None:
                raise UsageError(f"{file}, the output of {job.source}, is {what} {other.source}", "rename one of them")
            writers[place] = job


def _canonical(file: Path) -> str:
    return os.path.normcase(os.path.realpath(file))


# --- One after the other ---------------------------------------------------------------------------------------------


class Treated(NamedTuple):
    """What one photo became: its faces, the file, and the tier of what is sealed in it or brought it back."""

    faces: Sequence[FaceReport]
    file: Path
    tier: Tier
    verified: str = "unknown"


@dataclass(frozen=True)
class Outcome:
    """What became of one photo; ``seconds`` from reading to writing."""

    job: Job
    state: State
    treated: Treated | None = None
    seconds: float = 0.0
    error: AnonfaceError | None = None

    @property
    def faces(self) -> Sequence[FaceReport]:
        """None of a photo that failed."""
        return self.treated.faces if self.treated else ()


def run(
    jobs: Sequence[Job],
    treat: Callable[[Job], Treated],
    *,
    overwrite: bool = False,
    skip_existing: bool = False,
) -> Iterator[Outcome]:
    """Do the jobs one after the other. A photo that fails stops no other; all outputs are checked before the first."""
    ready = []
    for job in jobs:
        if skip_existing and _is_made(job):
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
            treated = treat(job)
        except Exception as raised:
            yield Outcome(job, "failed", seconds=time.perf_counter() - started, error=explained(raised))
        else:
            yield Outcome(job, "done", treated, time.perf_counter() - started)


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
