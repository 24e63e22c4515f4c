"""Files in folders and of patterns. Links to folders may be circular, so each real folder is searched once."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = re.compile(r"[*?[]")


@dataclass
class Search:
    """What was found, and the folders that were not entered.

    Args:
        files: all but the hidden ones, a folder's own before those of the folders in it, those behind links last.
        folders: that were entered.
        again: links to folders that lie in the tree, or above it, already.
        unreadable: folders that could not be read.
    """

    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    again: list[Path] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)

    def __add__(self, other: Search) -> Search:
        return Search(
            self.files + other.files,
            self.folders + other.folders,
            self.again + other.again,
            self.unreadable + other.unreadable,
        )


def search(folder: str | Path, recursive: bool) -> Search:
    """The files of a folder, and of those in it where that is asked for; links to folders are followed last."""
    found = Search()
    seen = set(map(_identity, Path(os.path.realpath(folder)).parents))
    waiting = deque([str(folder)])
    while waiting:
        top = waiting.popleft()
        for parent, names, files in os.walk(top, onerror=lambda error: _note(found, error)):
            inner = sorted(name for name in names if recursive and not name.startswith("."))
            names[:] = []
            place = _identity(parent)
            if place in seen:
                found.again.append(Path(parent))
                continue
            seen.add(place)
            links = {name for name in inner if Path(parent, name).is_symlink()}
            waiting += [str(Path(parent, name)) for name in inner if name in links]
            names[:] = [name for name in inner if name not in links]
            found.folders.append(Path(parent))
            visible = (Path(parent, name) for name in sorted(files) if not name.startswith("."))
            found.files += [file for file in visible if file.is_file() or not is_there(file)]  # no pipes, no devices
    return found


def _identity(folder: str | Path) -> tuple[int, int] | str:
    try:
        there = Path(folder).stat()
    except OSError:  # gone meanwhile, or out of reach
        return str(folder)
    return there.st_dev, there.st_ino


def _note(found: Search, error: OSError) -> None:
    found.unreadable.append(Path(error.filename))


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder of that name, where :meth:`Path.is_dir` raises for names that are too long."""
    return os.path.isdir(path)  # noqa: PTH112


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, too long ones included."""
    return os.path.exists(path)  # noqa: PTH110


def is_pattern(path: str) -> bool:
    """Whether a path is a pattern, and not the name of a file."""
    return bool(_MAGIC.search(path)) and not os.path.lexists(path)


def matches(pattern: str) -> Search:
    """The files that a pattern with ``*``, ``?``, ``[]`` and ``**`` matches, sorted by name; see :mod:`glob`."""
    parts = Path(pattern).parts
    if "**" not in parts:
        named = map(Path, sorted(glob.glob(pattern)))  # noqa: PTH207
        return Search([file for file in named if file.is_file() or not is_there(file)])  # a dangling link fails by name
    at = parts.index("**")
    rest = list(itertools.dropwhile(lambda part: part == "**", parts[at:]))
    found = Search()
    for top in _folders(Path(*parts[:at])):
        below = search(top, recursive=True)
        if rest:
            inner = [matches(str(Path(glob.escape(str(folder)), *rest))) for folder in below.folders]
            below.files = [file for one in inner for file in one.files]
        found += below
    found.files = sorted(dict.fromkeys(found.files), key=str)
    return found


def _folders(pattern: Path) -> Iterator[str]:
    return filter(os.path.isdir, sorted(glob.glob(str(pattern))))  # noqa: PTH207


def fixed_part(pattern: str) -> Path:
    """The folder that a pattern's tree is counted from."""
    parts = Path(pattern).parts
    return Path(*parts[: next(number for number, part in enumerate(parts) if _MAGIC.search(part))])


def taken_literally(pattern: str) -> str:
    """The pattern with the signs escaped that stand in the name of a folder that is there; empty where none do."""
    parts = Path(pattern).parts
    for length in range(len(parts) - 1, 0, -1):
        folder = str(Path(*parts[:length]))
        if _MAGIC.search(folder) and os.path.lexists(folder):
            return str(Path(glob.escape(folder), *parts[length:]))
    return ""
