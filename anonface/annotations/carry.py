"""Annotation files for the pictures that a run writes: which picture each names, and the files for the new ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anonface.annotations.base import CannotTurn, New, Picture, Turn
from anonface.annotations.sources import Source, gather, read_source
from anonface.annotations.voc import Voc
from anonface.annotations.yolo import Copied, Label
from anonface.errors import AnonfaceError, OutputError, UsageError, count, reason, remedy
from anonface.images import frame, write_together
from anonface.images.paths import check_target

# Folders that divide pictures from annotations, in any case: data/images/train/a.jpg and data/labels/train/a.txt.
DIVIDING = ("images", "jpegimages", "imgs", "labels", "annotations", "xmls")
_NO_PHOTO = -1


@dataclass(frozen=True)
class Photo:
    """A photo of a run: its file, and the file that becomes of it. A recovered one may get another suffix."""

    source: Path
    target: Path


@dataclass(frozen=True)
class Written:
    """What became of annotations.

    Args:
        files: that were written.
        pictures: how many pictures the annotations name, and how many of them are ``carried``, are photos that were
            not written (``without_result``), or are no photos of the run (``elsewhere``).
        notes: for the user, one line each.
    """

    files: tuple[Path, ...]
    pictures: int
    carried: int
    without_result: int
    elsewhere: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Planned:
    """An annotation file, the photo that each of its pictures is, and the file to write."""

    source: Source
    photos: tuple[int, ...]
    target: Path | None


class Annotations:
    """The annotations of a run's photos, read and checked before the run.

    Args:
        paths: files and folders, as in :func:`anonface.annotations.sources.gather`.
        photos: of the run, at least one.
        output: the folder of its results.
        suffixes: of photos, with their dots.
        recovering: whether the photos are anonymized ones.

    Raises:
        AnnotationError: a file cannot be read or is broken.
        UsageError: no photo of the run is named, one name may be several photos, or results would lie in a folder that
            is read.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        photos: Sequence[Photo],
        output: Path,
        suffixes: Sequence[str],
        recovering: bool = False,
    ) -> None:
        self._photos = [Photo(_absolute(photo.source), _absolute(photo.target)) for photo in photos]
        self._output, self._recovering = _absolute(output), recovering
        self._top = _top(self._photos[0], self._output)
        self._by_name: dict[str, list[int]] = {}
        self._by_stem: dict[str, list[int]] = {}
        for i, photo in enumerate(self._photos):
            self._by_name.setdefault(photo.source.name, []).append(i)
            self._by_stem.setdefault(photo.source.stem, []).append(i)
        for path in paths:
            if path.is_dir() and Path(os.path.realpath(output)).is_relative_to(os.path.realpath(path)):
                raise OutputError(
                    f"the results in {str(output)!r} would lie in the folder of annotations {str(path)!r}",
                    "name a folder outside of it with -o",
                )
        self.passed_over: list[Path] = []
        sources = gather(paths, suffixes, lambda file, root: bool(self._parallel(file, root)), self.passed_over)
        self._planned = [self._plan(source) for source in sources]
        if all(photo == _NO_PHOTO for planned in self._planned for photo in planned.photos):
            named = next((picture.name for source in sources for picture in source.document.pictures), None)
            raise UsageError(
                "the annotations name none of the photos of this run",
                f"they name {named!r}, among others" if named else "give the files that name the pictures",
            )

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        return [planned.source.file for planned in self._planned]

    @property
    def outputs(self) -> list[Path]:
        """The files that may be written."""
        return [planned.target for planned in self._planned if planned.target]

    def check(self, overwrite: bool, again: bool) -> None:
        """Check that the files can be written.

        Args:
            again: whether files that an earlier run of the same command has written may be replaced.

        Raises:
            OutputError: one cannot.
        """
        for planned in self._planned:
            if planned.target:
                ours = again and planned.target.is_file() and self._ours(planned)
                check_target(planned.target, planned.source.file, overwrite or ours)

    def write(self, results: Mapping[Path, Path], overwrite: bool) -> Written:
        """Write the files for the pictures that were written: all of them or none.

        Args:
            results: the written picture of each photo.

        Raises:
            OutputError: one cannot be written.
        """
        written = {_absolute(source): result for source, result in results.items()}
        said = _Said()
        files: list[tuple[Path, bytes]] = []
        for planned in self._planned:
            new: dict[int, New] = {}
            for i, photo in enumerate(planned.photos):
                said.counts["pictures"] += 1
                result = written.get(self._photos[photo].source) if photo != _NO_PHOTO else None
                if result is not None:
                    new[i] = New(result.name, self._turn(photo, result, planned.source.document.pictures[i], said))
                else:
                    said.counts["elsewhere" if photo == _NO_PHOTO else "without result"] += 1
            content = _carried(planned.source, new, said)
            if content is not None and planned.target:
                said.of(planned.source, len(new))
                files.append((planned.target, content))
                if self._astray(planned):
                    said.astray.append(planned.target)
        if not said.counts["carried"]:
            files = []
        for folder in {file.parent for file, _ in files}:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(f"the folder {folder} cannot be made: {reason(error)}", remedy(error)) from None
        write_together(files, overwrite)
        counts = said.counts
        return Written(
            tuple(file for file, _ in files),
            counts["pictures"],
            counts["carried"],
            counts["without result"],
            counts["elsewhere"],
            said.notes(self.passed_over),
        )

    def _plan(self, source: Source) -> _Planned:
        photos = tuple(self._photo(source, picture) for picture in source.document.pictures)
        if not source.document.single:
            return _Planned(source, photos, self._place(source, source.file.name))
        if photos[0] == _NO_PHOTO:
            return _Planned(source, photos, None)
        photo = self._photos[photos[0]]
        stem = photo.target.stem if source.file.stem == photo.source.stem else source.file.stem
        return _Planned(source, photos, self._place(source, stem + source.file.suffix))

    def _place(self, source: Source, name: str) -> Path:
        """The file to write: in the results' folder as the annotations lie in the photos', else under the name of
        their own folder."""
        folder = source.file.parent
        if folder.is_relative_to(self._top):
            return self._output / folder.relative_to(self._top) / name
        return (
            self._output / name
            if source.named
            else self._output / source.root.name / folder.relative_to(source.root) / name
        )

    def _astray(self, planned: _Planned) -> bool:
        """Whether YOLO's tools found a label file beside the photo, and do not find the new one beside the result."""
        if not isinstance(planned.source.document, Label) or not planned.target:
            return False
        photo = self._photos[planned.photos[0]]
        before = planned.source.file.parent in _labels_of(photo.source)
        return before and planned.target.parent not in _labels_of(photo.target)

    def _photo(self, source: Source, picture: Picture) -> int:
        """The number of the photo that a picture is, or _NO_PHOTO.

        Raises:
            UsageError: it may be several.
        """
        found: Sequence[int] = ()
        if source.document.single:
            found = self._parallel(source.file, source.root)
        if not found and not isinstance(source.document, Label):
            folder = source.document.folder if isinstance(source.document, Voc) else None
            if folder != "":  # a bare file name in a file of its own says too little
                found = self._named(source, f"{folder}/{picture.name}" if folder else picture.name)
        if len(found) > 1:
            one, other = (str(self._photos[i].source) for i in found[:2])
            raise UsageError(
                f"{picture.name!r} in {str(source.file)!r} may be {one!r} or {other!r}",
                "anonymize each folder with its own annotations",
            )
        return found[0] if found else _NO_PHOTO

    def _parallel(self, file: Path, root: Path) -> list[int]:
        """The photos that a file of one picture's annotations belongs to by its place: in the same folder, or in one
        that is parallel, such as images/train and labels/train."""
        photos = self._by_stem.get(file.stem, [])
        same = [i for i in photos if self._photos[i].source.parent == file.parent]
        if same:
            return same
        beside = [i for i in photos if _undivided(self._photos[i].source.parent) == _undivided(file.parent)]
        inside = _undivided(file.parent.relative_to(root))
        return beside or [i for i in photos if self._inside(self._photos[i]) == inside]

    def _inside(self, photo: Photo) -> tuple[str, ...]:
        return _undivided(photo.source.parent.relative_to(self._top))

    def _named(self, source: Source, name: str) -> list[int]:
        """The photos whose paths end with a name; those that it leads to from its file alone, if there are any."""
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        photos = self._by_name.get(parts[-1], []) if parts else []
        photos = [i for i in photos if list(self._photos[i].source.parts[-len(parts) :]) == parts]
        beside = _absolute(source.file.parent.joinpath(*parts))
        if beside.is_file():
            return [i for i in photos if self._photos[i].source == beside]
        return photos

    def _turn(self, photo: int, result: Path, picture: Picture, said: _Said) -> Turn | None:
        """How the annotated picture is turned to the new one."""
        known = self._photos[photo]
        try:
            upright = frame(known.source if self._recovering else result).size
            orientation = 1 if self._recovering else frame(known.source).orientation
        except AnonfaceError:
            return None  # it was moved meanwhile
        stored = upright[::-1] if orientation > 4 else upright
        if picture.size not in (None, upright, stored):
            assert picture.size
            said.sizes.append("{!r} is {}x{}, not {}x{}".format(picture.name, *upright, *picture.size))
            return None
        if orientation > 4 and picture.size == stored != upright:
            said.counts["turned"] += 1
            return Turn(orientation, stored)
        said.counts["taken as upright"] += orientation > 1 and (picture.size is None or stored == upright)
        return None

    def _ours(self, planned: _Planned) -> bool:
        """Whether an existing file names nothing but results of this run, or is what would be written."""
        assert planned.target
        try:
            there = read_source(planned.target, planned.source.document)
        except AnonfaceError:
            return False
        if isinstance(there, Label | Copied):
            return there.carried({}) == planned.source.document.carried({})
        if there is None:
            return False
        stems = {photo.target.stem for photo in self._photos}
        return bool(there.pictures) and all(
            Path(picture.name.replace("\\", "/")).stem in stems for picture in there.pictures
        )


class _Said:
    """What is counted and noted while annotations are written."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sizes: list[str] = []
        self.astray: list[Path] = []
        self._links: list[Path] = []

    def of(self, source: Source, carried: int) -> None:
        self.counts["carried"] += carried
        self.counts["beyond"] += source.document.beyond
        if source.document.links:
            self._links.append(source.file)

    def notes(self, passed_over: Sequence[Path]) -> tuple[str, ...]:
        n, sizes = self.counts, len(self.sizes)
        turned, upright = count(n["turned"], "picture"), count(n["taken as upright"], "photo")
        notes = {
            f"annotations of {turned} as stored were turned with the photos": n["turned"],
            f"EXIF turns {upright}; their annotations are taken as made on the upright picture": n["taken as upright"],
            f"annotations of {count(n['not turned'], 'picture')} left out: masks, ellipses and rotated boxes are not "
            "turned": n["not turned"],
            f"{count(n['beyond'], 'box', 'boxes')} beyond the edge of a picture, carried without change": n["beyond"],
            f"{count(sizes, 'picture')} of another size than the annotations say, carried without change: "
            f"{next(iter(self.sizes), '')}": sizes,
            f"{next(map(str, self._links), '')!r} holds addresses that may lead to the original photos": self._links,
            f"{count(len(self.astray), 'label file')} where YOLO does not look, such as "
            f"{next(map(str, self.astray), '')!r}; give anonymize the folder that holds images and labels": self.astray,
            f"{count(len(passed_over), 'file')} in no known format left behind: {next(map(str, passed_over), '')!r}": (
                passed_over
            ),
        }
        return tuple(note for note, holds in notes.items() if holds)


def _carried(source: Source, new: dict[int, New], said: _Said) -> bytes | None:
    """The content for new pictures; those that cannot be turned are removed from ``new``."""
    while new or not source.document.pictures:
        try:
            return source.document.carried(new)
        except CannotTurn as error:
            del new[error.picture]
            said.counts["not turned"] += 1
            said.counts["turned"] -= 1
    return None


def _top(photo: Photo, output: Path) -> Path:
    """The folder of the photos whose tree is repeated in the results' folder."""
    depth = len(photo.target.parent.relative_to(output).parts)
    return photo.source.parents[depth]


def _undivided(folder: Path) -> tuple[str, ...]:
    """The parts of a path without those that divide pictures from annotations."""
    return tuple(part for part in folder.parts if part.lower() not in DIVIDING)


def _labels_of(photo: Path) -> list[Path]:
    """The folders in which YOLO's tools look for a photo's labels: its own, or for the last "images" in it "labels"."""
    parts = photo.parent.parts
    last = max((i for i, part in enumerate(parts) if part.lower() == "images"), default=None)
    return [photo.parent] if last is None else [photo.parent, Path(*parts[:last], "labels", *parts[last + 1 :])]


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))
