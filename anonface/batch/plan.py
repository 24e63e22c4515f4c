"""The photos of a run, and their output files."""

from __future__ import annotations

import glob
import os
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from anonface.batch.face_files import FACES, face_files
from anonface.batch.folders import Search, fixed_part, is_folder, is_pattern, is_there, matches, search, taken_literally
from anonface.batch.task import (
    EXPECTED,
    FORMATS,
    MARKS,
    RESULT,
    SUFFIXES,
    Direction,
    format_of,
    kept_format,
    result_mark,
)
from anonface.errors import UsageError, count
from anonface.images.paths import COLLISION_HINT, Input, Output, refuse_conflicts
from anonface.streams import STREAM

OTHER_PHOTOS = {".jpe", ".jfif", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif", ".avif", ".ppm"}
SEARCHED = {*FORMATS, *OTHER_PHOTOS}
"""Suffixes that a folder is searched for; unreadable kinds too, so that none is ignored silently."""
OWN_FILES = {".anf"}
"""Suffixes of this program's files that are not photos."""
MOST_SUFFIXES = 6
"""At most so many suffixes of ignored files are named."""
_FIELDS = ("stem", "suffix", "mark", "ext")
DEFAULT_NAME = "{stem}.{mark}{ext}"
STDIN = Path("/dev/stdin")
HEAD = 16  # bytes at the start of a file that say its format


@dataclass(frozen=True)
class Job:
    """One photo: its file, its output, and its sidecar, if there is one.

    ``named`` means that the user chose the target's name with its suffix; otherwise a recovered original takes its own
    suffix. ``faces`` is the name, without a suffix, of the files that tell of its faces. ``data`` is a photo from
    standard input; its source is "-". ``piped`` means that the result goes to standard output; its target only says the
    format.
    """

    direction: Direction
    source: Path
    target: Path
    sidecar: Path | None = None
    named: bool = False
    faces: Path | None = None
    data: bytes | None = field(default=None, repr=False)
    piped: bool = False

    @property
    def photo(self) -> Path | bytes:
        """The photo's file or, from standard input, its bytes."""
        return self.source if self.data is None else self.data

    @property
    def output(self) -> str:
        """The name of the result."""
        return STREAM if self.piped else str(self.target)

    @property
    def outputs(self) -> tuple[Path, ...]:
        """The files that the job writes, the photo last."""
        record = (self.sidecar,) if self.sidecar and self.direction == "anonymize" else ()
        if self.piped:
            return record
        return (*record, *(face_files(self.faces) if self.faces else ()), self.target)

    def written_as(self, file: Path) -> Job:
        """The job with the name that its photo was written under."""
        return replace(self, target=self.target.with_name(file.name))


def plan(
    paths: Sequence[str],
    direction: Direction,
    *,
    output: str | None = None,
    name: str | None = None,
    format: str | None = None,
    sidecar: str | None = None,
    faces_out: str | Path | None = None,
    recursive: bool = False,
    lossy: bool = True,
    data: bytes | None = None,
) -> list[Job]:
    """Plan a run; nothing is written.

    Args:
        paths: files, folders, and patterns with ``*``, ``?``, ``[]`` and ``**``. If a file has the name of a pattern,
            the file is meant. Results of earlier runs in folders and patterns are ignored: anonymizing takes no
            ``*.anon.*`` and ``*.recovered.*``; recovering a folder takes only ``*.anon.*``.
        output: a file for one photo (a folder when it is one or ends with a slash); else a folder, in which the tree
            below the deepest folder that all inputs share is repeated; "-" is standard output. None writes next to
            each photo.
        name: template of the results' names, with ``{stem}`` (the photo's name without its suffix and mark),
            ``{suffix}`` (the photo's), ``{mark}`` (anon or recovered) and ``{ext}`` (the result's suffix with its dot).
        format: png, webp or jpeg; None takes that of ``output``, else :func:`kept_format`, of recovered photos png.
        sidecar: as ``output``; in a folder, records are named after the anonymized photos with ``.anf`` appended.
        faces_out: a folder for what is known of the faces, with the tree of ``output``.
        recursive: search subfolders.
        lossy: a JPEG may become a JPEG again, which changes pixels outside faces a little.
        data: the photo from standard input that ``paths`` name "-"; its result goes to standard output, unless
            ``output`` names a file.

    Raises:
        UsageError: nothing found, two inputs with one output, an output that is an input, or an invalid ``name``.
    """
    template = _template(name or DEFAULT_NAME)
    found = [(Path(), Path(STREAM))] if data is not None else find(paths, direction, recursive)
    piped = output == STREAM or (data is not None and output is None)
    _check_piped(piped, data, len(found), name, (output, sidecar))
    alone = len(paths) == 1 and not is_folder(paths[0]) and not is_pattern(paths[0])
    top = Path(os.path.commonpath([_normalized(root) for root, _ in found]))
    jobs = []
    for _, source in found:
        branch = _normalized(source.parent).relative_to(top)
        ending = format or (_kept_format(source, data, lossy) if direction == "anonymize" else "png")
        called = _result_name(template, source, direction, ending)
        target = Path(called) if piped else _place(output, alone, branch, called) or source.with_name(called)
        if name and target.name != called:
            raise UsageError(f"--name names files in a folder, but {output} is a file", "give one of them")
        named = output is not None and alone and not piped and not _is_folder(output)
        # an encrypted original may have any suffix, so the name is checked once the record is known
        if (format or direction == "anonymize" or not named) and format not in (None, format_of(target)):
            raise UsageError(f"--format {format} contradicts the name {str(target)!r}")
        anonymized = target if direction == "anonymize" else source
        record = _place(sidecar, alone, branch, f"{anonymized.name}.anf")
        known = Path(faces_out) / branch / f"{target.stem}.{FACES}" if faces_out is not None else None
        jobs.append(Job(direction, source, target, record, named, known, data, piped))
    refuse_conflicts(sources_of(jobs), outputs_of(jobs, any_suffix=True), COLLISION_HINT)
    return jobs


def _check_piped(piped: bool, data: bytes | None, photos: int, name: str | None, places: Sequence[str | None]) -> None:
    """Refuse what standard input and output cannot take; see :func:`plan`."""
    if piped and photos > 1:
        raise UsageError(f"standard output takes one photo, not {photos}", "name a folder with -o")
    if piped and name:
        raise UsageError("--name names files, but the photo goes to standard output", "leave --name out")
    for place in places if data is not None else ():
        if place and _is_folder(place):
            raise UsageError(f"a photo from standard input has no name of its own for {place!r}", "name a file in it")


def _kept_format(source: Path, data: bytes | None, lossy: bool) -> str:
    """:func:`kept_format` of a file; by its name where it cannot be read, or is a pipe and can be read only once."""
    if data is not None:
        return kept_format(data[:HEAD], lossy)
    with suppress(OSError, ValueError):
        if source.is_file():
            with source.open("rb") as file:
                return kept_format(file.read(HEAD), lossy)
    kind = FORMATS.get(source.suffix.lower(), "png")
    return "png" if kind == "jpeg" and not lossy else kind


def _normalized(folder: Path) -> Path:
    """A folder's absolute path without ``..``, which would lead out of the results' folder."""
    return Path(os.path.normpath(folder.absolute()))


def journal_folder(paths: Sequence[str], output: str | None) -> Path:
    """The folder of the journal: that of the results, or the first input's."""
    if output is not None:
        return Path(output)
    first = Path(paths[0])
    if is_pattern(paths[0]):
        return fixed_part(paths[0])
    return first if is_folder(first) else first.parent


def find(paths: Sequence[str], direction: Direction, recursive: bool) -> list[tuple[Path, Path]]:
    """The photos of ``paths``, each once, with the top of its folder tree. See :func:`plan`."""
    found: dict[str, tuple[Path, Path]] = {}
    for path in paths:
        if not path:
            raise UsageError("a photo's name is empty", "give a file, a folder or a pattern")
        if is_pattern(path):
            root, files = _matching(path, direction)
        elif is_folder(path):
            root, files = Path(path), _inside(Path(path), direction, recursive)
        else:
            root, files = Path(path).parent, [Path(path)]
        if not files:
            raise _nothing_found(path, direction, recursive)
        for file in files:
            found.setdefault(os.path.realpath(file), (root, file))
    return list(found.values())


def _nothing_found(path: str, direction: Direction, recursive: bool) -> UsageError:
    """An error that says what was found instead, with a hint."""
    left = ignored_files([path], direction, recursive)
    pattern = is_pattern(path)
    hint = ""
    if pattern and (literal := taken_literally(path)):
        hint = f"brackets, * and ? are wildcards; to take them literally: {literal!r}"
    elif not pattern and not recursive and _inside(Path(path), direction, recursive=True):
        hint = "--recursive searches subfolders too"
    what = f"{path!r} {'matches' if pattern else 'holds'} no photo to {direction}"
    return UsageError(f"{what}: {describe_ignored(left)}" if left else what, hint)


def _matching(pattern: str, direction: Direction) -> tuple[Path, list[Path]]:
    taken = [file for file in matches(pattern).files if direction == "recover" or not result_mark(file)]
    return fixed_part(pattern), taken


def skipped_folders(paths: Sequence[str], recursive: bool) -> tuple[list[Path], list[Path]]:
    """The links to folders that were already searched, and the folders that cannot be read.

    Each real folder is searched once, under its own name if that is in the tree.
    """
    found = Search()
    for path in paths:
        if is_pattern(path):
            found += matches(path)
        elif is_folder(path):
            found += search(path, recursive)
    return found.again, found.unreadable


def ignored_files(
    paths: Sequence[str], direction: Direction, recursive: bool, read: Iterable[Path] = ()
) -> dict[str, int]:
    """The number of files in folders and patterns that are ignored, by suffix, most first; ``read`` are not counted.

    These are files that are no photos by their suffix, and this program's results (".anon.png"); for recovery, all
    photos but results.
    """
    left: dict[str, str] = {}
    for path in paths:
        if is_pattern(path):
            files, taken = matches(path).files, _matching(path, direction)[1]
        elif is_folder(path):
            files, taken = search(path, recursive).files, _inside(Path(path), direction, recursive)
        else:
            continue
        for file in set(files) - set(taken):
            mark = result_mark(file)
            left[os.path.realpath(file)] = f"{mark and '.'}{mark}{file.suffix.lower()}"
    for file in read:
        left.pop(os.path.realpath(file), None)
    suffixes = Counter(suffix for suffix in left.values() if suffix not in OWN_FILES)
    return dict(sorted(suffixes.items(), key=lambda item: (-item[1], item[0])))


def describe_ignored(left: Mapping[str, int]) -> str:
    """The counts of :func:`ignored_files`, as "4 files ignored; results: 1 .anon.png; not photos by name: 3 .txt"."""
    kinds: dict[str, list[str]] = {}
    for suffix, number in left.items():
        photo = Path(f"photo{suffix}").suffix in SEARCHED
        why = "not photos by name" if not photo else "results" if suffix.count(".") > 1 else "not named *.anon.*"
        kinds.setdefault(why, []).append(f"{number} {suffix or 'without a suffix'}")
    for shown in kinds.values():
        shown[MOST_SUFFIXES:] = ["and others"] * (len(shown) > MOST_SUFFIXES)
    total = sum(left.values())
    parts = [f"{count(total, 'file')} ignored"]
    return "; ".join(parts + [f"{why}: {', '.join(shown)}" for why, shown in kinds.items()])


def _inside(folder: Path, direction: Direction, recursive: bool) -> list[Path]:
    files = search(folder, recursive).files
    return [file for file in files if file.suffix.lower() in SEARCHED and result_mark(file) == EXPECTED[direction]]


def _template(text: str) -> str:
    """The template, if it has only the fields of :func:`plan`."""
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise UsageError(f"--name {text!r}: {error}", f"for example {DEFAULT_NAME!r}") from None
    for name, spec, conversion in fields:
        if name is not None and (name not in _FIELDS or spec or conversion):
            known = ", ".join(f"{{{field}}}" for field in _FIELDS)
            raise UsageError(f"--name {text!r} has an unknown field", f"known fields: {known}")
    if "/" in text or os.sep in text or "\0" in text:
        raise UsageError(f"--name {text!r} is not the name of a file", "-o names the folder")
    return text


def _result_name(template: str, source: Path, direction: Direction, format: str) -> str:
    """photo.jpg -> photo.anon.jpg, photo.anon.jpg -> photo.recovered.png."""
    name = Path(RESULT.sub(r"\2", source.name) if direction == "recover" else source.name)
    return template.format(stem=name.stem, suffix=name.suffix, mark=MARKS[direction], ext=SUFFIXES[format])


def _place(chosen: str | None, alone: bool, branch: Path, name: str) -> Path | None:
    if chosen is None:
        return None
    if _is_folder(chosen):
        return Path(chosen) / branch / name
    if alone:
        return Path(chosen)
    if Path(chosen).suffix.lower() in {*FORMATS, ".anf"}:
        raise UsageError(
            f"{chosen!r} names one file, but there may be several photos", "end it with / if it is a folder"
        )
    return Path(chosen) / branch / name


def _is_folder(chosen: str) -> bool:
    return is_folder(chosen) or chosen.endswith(("/", os.sep))


def existing(job: Job) -> Path | None:
    """The job's result, if it exists; a recovered photo may have the suffix of its original.

    A folder of that name, or an empty file, is no result.
    """
    if job.piped:
        return None
    if job.direction == "anonymize" or job.named:
        return job.target if _is_result(job.target) else None
    bare = job.target.with_suffix("")
    candidates = (bare, job.target, *sorted(bare.parent.glob(f"{glob.escape(bare.name)}.*")))
    return next((file for file in candidates if bare in (file, file.with_suffix("")) and _is_result(file)), None)


def _is_result(file: Path) -> bool:
    return is_there(file) and file.is_file() and file.stat().st_size > 0


def sources_of(jobs: Sequence[Job]) -> list[Input]:
    """The photos of the jobs; standard input may be a file too."""
    return [Input(job.source) if job.data is None else Input(STDIN) for job in jobs]


def outputs_of(jobs: Sequence[Job], any_suffix: bool = False) -> list[Output]:
    """The outputs of the jobs; ``any_suffix``: recovered originals may have suffixes of their own."""
    return [
        Output(
            file,
            f"the output of {str(job.source)!r}",
            job.source,
            any_suffix and job.direction == "recover" and not job.named,
        )
        for job in jobs
        for file in job.outputs
    ]
