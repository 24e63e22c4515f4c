"""The photos of a review, each with its result: from a run's report, or from folders by the results' names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anonface.batch.folders import fixed_part, is_folder, is_pattern, is_there, matches, search
from anonface.batch.plan import SEARCHED
from anonface.batch.run import WRITTEN
from anonface.batch.task import RESULT, result_mark
from anonface.errors import ImageError, UsageError
from anonface.faces.locate import no_face
from anonface.record.anf1 import FaceReport

FACE_KINDS = ("synth", "mosaic", "kept")
HINT = "name the photos and what `anonymize` made of them, or give the run's report with --report"


@dataclass(frozen=True)
class Pair:
    """A photo and its result.

    Args:
        result: None where there is none.
        faces: what the run says of them; None where it has left no report.
        note: why there is no result.
        faceless: no face was found in it.
    """

    source: Path
    result: Path | None
    faces: tuple[FaceReport, ...] | None = None
    note: str = ""
    faceless: bool = False


def pairs_by_name(paths: Sequence[str], recursive: bool) -> tuple[list[Pair], list[Path]]:
    """The photos of files, folders and patterns with their results, and the results that go with none of them.

    Results have ``.anon.`` in their names. One goes with the photo of its name next to it, or at its place in another
    folder tree, as ``anonymize -o`` writes it.

    Raises:
        UsageError: no photo, no result, or no result goes with a photo.
    """
    found = [(root, file) for path in paths for root, file in _files(path, recursive)]
    sources = {os.path.realpath(file): (root, file) for root, file in reversed(found) if not result_mark(file)}
    results = {os.path.realpath(file): file for _, file in found if result_mark(file) == "anon"}
    if not sources:
        raise UsageError(
            "there is no photo to review, only results" if results else "there is no photo to review", HINT
        )
    if not results:
        raise UsageError("there is no result to review: none is named *.anon.*", HINT)
    top = Path(os.path.commonpath([_absolute(root) for root, _ in sources.values()]))
    beside: dict[tuple[Path, str], Path] = {}
    mirrored: dict[tuple[Path, str], Path] = {}
    for root, file in found:
        if result_mark(file) == "anon":
            named = RESULT.sub(r"\2", file.name)  # of the photo's format or of another one
            for name in (named, Path(named).stem):
                beside.setdefault((_absolute(file.parent), name), file)
                mirrored.setdefault((_absolute(file.parent).relative_to(_absolute(root)), name), file)
    pairs = []
    for _, source in reversed(sources.values()):
        folder = _absolute(source.parent)
        places = [(beside, folder), (mirrored, folder.relative_to(top))]
        known = (table.get((place, name)) for table, place in places for name in (source.name, source.stem))
        result = next(filter(None, known), None)
        pairs.append(Pair(source, result, note="" if result else "no result was found"))
    used = {os.path.realpath(pair.result) for pair in pairs if pair.result}
    if not used:
        raise UsageError("no result goes with one of the photos", HINT)
    return pairs, [file for place, file in results.items() if place not in used]


def pairs_by_report(file: Path) -> list[Pair]:
    """The photos of a report of ``anonymize``, with their results and faces.

    Raises:
        UsageError: the file cannot be read, or is no such report.
    """
    hint = "name the file that `anonymize --report` wrote"
    try:
        said = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"the report {str(file)!r} cannot be read: {error.strerror}", hint) from None
    except ValueError:
        said = None
    photos = said.get("photos") if isinstance(said, dict) else None
    if not isinstance(photos, list) or not photos:
        raise UsageError(f"{str(file)!r} is no report of a run", hint)
    if any(isinstance(photo, dict) and "verified" in photo for photo in photos):
        raise UsageError(f"{str(file)!r} is a report of `recover`", hint)
    try:
        pairs = [_reported(photo) for photo in photos]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{str(file)!r} is no report of a run", hint) from None
    if not any(pair.result for pair in pairs):
        raise UsageError(f"{str(file)!r} names no result", "no photo of that run was written")
    gone = [pair.source for pair in pairs if not pair.source.exists()]
    if len(gone) == len(pairs):
        raise UsageError(
            f"{str(gone[0])!r} is not there, nor is any photo that {str(file)!r} names",
            "names in a report are relative to the folder in which `anonymize` ran: go there",
        )
    return pairs


def _reported(photo: Mapping[str, Any]) -> Pair:
    state, source = str(photo["state"]), Path(str(photo["input"]))
    faces = tuple(
        FaceReport(int(face["index"]), _kind(face["kind"]), _box(face.get("box") or face["crop"]), str(face["reason"]))
        for face in photo["faces"]
    )
    if state in WRITTEN:
        return Pair(source, Path(str(photo["output"])), faces)
    error = photo.get("error") or {}
    said = str(error.get("message") or "; ".join(photo.get("warnings", ()))).removeprefix(f"{str(source)!r} ")
    return Pair(source, None, (), f"{state}{said and ': '}{said}", no_face().message in said)


def _kind(text: str) -> str:
    if text not in FACE_KINDS:
        raise ValueError(f"unknown kind of face {text!r}")
    return text


def _box(values: Sequence[Any]) -> tuple[float, float, float, float]:
    x, y, w, h = map(float, values)
    return x, y, w, h


def _files(path: str, recursive: bool) -> list[tuple[Path, Path]]:
    """The photos and results of a path, each with the top of its folder tree."""
    if is_pattern(path):
        root, files = fixed_part(path), matches(path).files
    elif is_folder(path):
        root, files = Path(path), search(path, recursive).files
    elif not is_there(Path(path)):
        raise ImageError(f"{path!r} cannot be read: there is no such file or folder", HINT)
    else:
        return [(Path(path).parent, Path(path))]
    return [(root, file) for file in files if file.suffix.lower() in SEARCHED]


def _absolute(folder: Path) -> Path:
    """A folder's absolute path without ``..``."""
    return Path(os.path.normpath(folder.absolute()))
