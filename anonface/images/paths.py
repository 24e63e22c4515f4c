"""The files that a command reads and writes: no output is an input, another output, or a folder of one.

Files are identified by device and inode, so links and other spellings of a name do not matter. Every command asks
:func:`refuse_conflicts` about all its paths before any work is done.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from anonface.errors import OutputError, UsageError, reason, remedy
from anonface.images import check_folder, check_output

Identity = tuple[int | str, ...]

COLLISION_HINT = "rename one of them, or distinguish them with --name '{stem}{suffix}.{mark}{ext}'"


class Input(NamedTuple):
    """A file that is read, and what it is, such as "the key file"."""

    path: Path
    role: str = "the input"


class Output(NamedTuple):
    """A file that will be written.

    Args:
        path: its name.
        role: what it is, such as "--sheet" or "the output of 'a.jpg'".
        source: the photo that it is made of. :func:`anonface.batch.run.Rules.sort_out` tells the two apart, photo by
            photo, so that the other photos of a run are done all the same.
        any_suffix: it may be written under another suffix, that of an encrypted original.
    """

    path: Path
    role: str
    source: Path | None = None
    any_suffix: bool = False


def identity(path: str | Path) -> Identity:
    """The identity of a path: device, inode, and for a missing file the names below its existing folder."""
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents):
        try:
            found = place.stat()
        except (OSError, ValueError):
            continue
        return (found.st_dev, found.st_ino, *(os.path.normcase(part) for part in real.parts[len(place.parts) :]))
    return tuple(os.path.normcase(part) for part in real.parts)


def refuse_conflicts(inputs: Iterable[Input], outputs: Collection[Output], hint: str = "choose another output") -> None:
    """Refuse outputs that would destroy what the same command reads or writes, even with --overwrite.

    Args:
        hint: what to do about two outputs with one name.

    Raises:
        OutputError: an output is an input.
        UsageError: two outputs are one file, or one is a folder of the other.
    """
    read: dict[Identity, Input] = {}
    bare: dict[Identity, list[Input]] = {}
    suffixes = any(output.any_suffix for output in outputs)
    for known in inputs:
        read.setdefault(identity(known.path), known)
        if suffixes:
            bare.setdefault(_without_suffix(known.path), []).append(known)
    written: dict[Identity, Output] = {}
    for output in outputs:
        place = identity(output.path)
        what, found = "", read.get(place)
        if not found and output.any_suffix:
            others = (known for known in bare.get(_without_suffix(output.path), ()) if known.path != output.source)
            what, found = "under its original's suffix perhaps ", next(others, None)
        if found and found.path != output.source:
            raise OutputError(
                f"{_named(output)}, is {what}{found.role} {str(found.path)!r}, which is read here",
                "choose another output",
            )
        if other := written.get(place):
            raise UsageError(f"{_named(output)}, is also {other.role}", hint)
        written[place] = output
    for place, output in written.items():
        for length in range(3, len(place)):
            if folder := written.get(place[:length]):
                raise UsageError(f"{_named(folder)}, is also the folder of {str(output.path)!r}", hint)


class Protected:
    """Existing and future files that must not be written.

    Args:
        paths: their names; looked up at the first question.
    """

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._paths = tuple(paths)
        self._known: set[Identity] | None = None

    def __contains__(self, path: Path) -> bool:
        if self._known is None:
            self._known = {found for known in self._paths for found in (identity(known), _place(known))}
        return identity(path) in self._known or _place(path) in self._known


def check_target(target: Path, source: Path | None, overwrite: bool) -> None:
    """:func:`anonface.images.check_output` for an output whose folders need not be there yet; tries them out.

    Raises:
        OutputError: it must not or cannot be written.
    """
    folder = target.absolute().parent
    try:
        if folder.is_dir():
            check_folder(folder)
            check_output(target, [source] if source else [], overwrite)
            return
        there = next(place for place in folder.parents if os.path.lexists(place))
        if not there.is_dir() or os.path.lexists(folder):
            what = f"{str(folder if os.path.lexists(folder) else there)!r} is not a folder"
            raise OutputError(f"{str(target)!r} cannot be written: {what}", "choose another output")
        longest = os.pathconf(there, "PC_NAME_MAX") if hasattr(os, "pathconf") else 0
        if longest and any(len(os.fsencode(part)) > longest for part in target.absolute().relative_to(there).parts):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        check_folder(there)
        if not os.access(there, os.W_OK | os.X_OK):
            what = f"{str(there)!r} is not writable"
            raise OutputError(f"{str(target)!r} cannot be written: {what}", "choose another output")
    except OSError as error:  # such as a name that is too long for the file system
        raise OutputError(f"{str(target)!r} cannot be written: {reason(error)}", remedy(error)) from None


def _named(output: Output) -> str:
    return f"{str(output.path)!r}, {output.role}"


def _place(path: Path) -> Identity:
    """The identity of the folder, and the name: the same before the file is made and afterwards."""
    real = Path(os.path.realpath(path))
    return (*identity(real.parent), os.path.normcase(real.name))


def _without_suffix(path: Path) -> Identity:
    """The identity of the folder, and the name without its suffix."""
    return (*identity(path.parent), os.path.normcase(path.stem))
