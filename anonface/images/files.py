"""Files: read once, and written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path

from anonface.errors import ImageError, LimitError, OutputError, reason, remedy

MAX_FILE_BYTES = 256 * 1024 * 1024
INTERIM, INTERIM_DIGITS = ".interrupted-", 16  # a bound file's interim name: before its suffix, and digits of a digest
LONGEST_NAME = 255  # bytes

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Content = bytes | Sequence[bytes | memoryview]
"""The content of a file, whole or in pieces."""


def read_file(path: PathLike, most: int | None = None) -> bytes:
    """A file's bytes, read once.

    Args:
        most: bytes that it may have; MAX_FILE_BYTES where none is given.

    Raises:
        ImageError: it cannot be read, or changed meanwhile.
        LimitError: it has more.
    """
    name, most = os.fsdecode(path), MAX_FILE_BYTES if most is None else most
    try:
        with Path(name).open("rb") as file:
            before = os.fstat(file.fileno())
            size = before.st_size if stat.S_ISREG(before.st_mode) else most
            data = file.read(min(size, most) + 1)  # at most this much memory is taken
            after = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        raise ImageError(f"{name!r} cannot be read: {_reason(error)}") from None
    check_size(data, repr(name), most)
    still = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and len(data) == after.st_size
    if stat.S_ISREG(after.st_mode) and not still:
        raise ImageError(f"{name!r} changed while it was read", "wait until it is complete")
    return data


def check_size(data: bytes, label: str, most: int | None = None) -> None:
    """Refuse a file of more bytes than ``most``, or MAX_FILE_BYTES.

    Args:
        label: the file's name, for messages.

    Raises:
        LimitError: it has more.
    """
    most = MAX_FILE_BYTES if most is None else most
    if len(data) > most:
        raise LimitError(f"{label} has more than {most >> 20} MiB", "scale it down first")


def check_output(path: PathLike, inputs: Iterable[PathLike] = (), overwrite: bool = False) -> None:
    """Refuse an output that could not or must not be written, before any work is done.

    Args:
        inputs: files that the output must not be, under whatever name; missing ones do not matter.
        overwrite: an existing regular file may be replaced.

    Raises:
        OutputError: it is an input, exists, or is a symbolic link or no regular file; its folder is missing or not
            writable.
    """
    name = os.fsdecode(path)
    target = Path(name)
    try:
        found = target.lstat()
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise OutputError(f"{name!r} cannot be written: {reason(error)}", remedy(error)) from None
    if found:
        if stat.S_ISLNK(found.st_mode):
            raise OutputError(f"{name!r} is a symbolic link, which is never written through", "name its target")
        if any(_is_same(found, other) for other in inputs):
            raise OutputError(f"{name!r} is the input itself", "choose another output")
        if not stat.S_ISREG(found.st_mode):
            raise OutputError(f"{name!r} exists and is not a file", "choose another output")
        if not overwrite:
            raise OutputError(f"{name!r} exists", "choose another output, or --overwrite")
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(f"there is no folder {str(folder)!r} for {target.name!r}", "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"the folder {str(folder)!r} is not writable", "choose another output")


def size_of(content: Content) -> int:
    """In bytes."""
    return len(content) if isinstance(content, bytes) else sum(map(len, content))


@lru_cache(maxsize=256)
def check_folder(folder: Path) -> None:
    """Refuse a folder in which no file can be made. Permissions do not show that, so one is made and removed.

    A folder that was found good is not tried again.

    Raises:
        OutputError: none can.
    """
    probe = _temporary(folder)
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        raise OutputError(f"the folder {str(folder)!r} is not writable: {reason(error)}", remedy(error)) from None


def write_atomic(path: PathLike, data: bytes, overwrite: bool = False) -> None:
    """Write a whole file or none: :func:`write_together` for one."""
    write_together([(path, data)], overwrite)


def write_together(files: Iterable[tuple[PathLike, Content]], overwrite: bool = False, bound: bool = False) -> None:
    """Write whole files or none: a crash at any moment leaves each the old file or the complete new one.

    The data goes to temporary files next to the targets, which are renamed, in the order given, when all are
    complete. Without ``overwrite`` a name that was taken meanwhile is refused; of several writers exactly one
    wins.

    Args:
        bound: the first file belongs to the last one, as a record to its photo. Two files cannot be replaced in one
            step, so the first has an interim name until the last is in place. After a crash in between,
            :func:`belonging` finds it there.

    Raises:
        OutputError: as in :func:`check_output`, or the disk is full. No temporary file remains, and no new file.
    """
    parts = []
    for path, data in files:
        check_output(path, (), overwrite)
        target = Path(os.fsdecode(path))
        parts.append((target, _temporary(target.parent), data))
    steps = [(temporary, target) for target, temporary, _ in parts]
    bound = bound and overwrite and len(parts) > 1
    if bound:
        first, interim = parts[0][0], _interim(parts[0][0], parts[-1][2])
        steps = [(steps[0][0], interim), *steps[1:], (interim, first)]
    fresh = [target for _, target in steps if not os.path.lexists(target)]
    former: dict[Path, Path | None] = {}  # second names of what is replaced
    named: list[Path] = []
    try:
        for target, temporary, data in parts:
            _write_new(temporary, data, _mode(target))
        with _alone_in(first.parent) if bound else nullcontext():
            for temporary, target in steps:
                former[target] = _kept(target) if overwrite and len(parts) > 1 else None
                if overwrite:
                    temporary.replace(target)
                else:
                    _take_name(temporary, target)
                named.append(target)
                if bound:  # the next step must not reach the disk before this one
                    _sync_folder(target.parent)
            if bound:
                _remove_interims(first)
    except BaseException as error:
        complete = len(named) >= len(parts) and not os.path.lexists(steps[-1][0])
        if isinstance(error, OSError) or not complete:
            _take_back(named, former, fresh)
        if isinstance(error, FileExistsError):
            raise OutputError(
                f"{str(target)!r} was written by another program meanwhile", "choose another output"
            ) from None
        if isinstance(error, OSError):
            raise OutputError(f"{str(target)!r} cannot be written: {reason(error)}", remedy(error)) from None
        raise
    finally:
        for left in (*(temporary for _, temporary, _ in parts), *filter(None, former.values())):
            left.unlink(missing_ok=True)
    for folder in {target.parent for target in named}:
        _sync_folder(folder)


def belonging(file: PathLike, last: bytes) -> Path:
    """The file that was written bound to one of these bytes: ``file``, or where a crash left it."""
    target = Path(os.fsdecode(file))
    interim = _interim(target, last)
    return interim if interim.is_file() else target


def interims(file: PathLike) -> list[Path]:
    """What crashed runs left of a file that is bound to another: its contents under interim names."""
    target, digits = Path(os.fsdecode(file)), "0" * INTERIM_DIGITS
    start = _shortened(target.stem, f"{INTERIM}{digits}{target.suffix}") + INTERIM
    pattern = re.compile(rf"{re.escape(start)}[0-9a-f]{{{INTERIM_DIGITS}}}{re.escape(target.suffix)}")
    with suppress(OSError):  # a folder that cannot be listed
        return sorted(other for other in target.parent.iterdir() if pattern.fullmatch(other.name))
    return []


# --- Parts -----------------------------------------------------------------------------------------------------------


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _is_same(found: os.stat_result, other: PathLike) -> bool:
    try:
        return os.path.samestat(found, Path(os.fsdecode(other)).stat())
    except (OSError, ValueError):
        return False


def _kept(target: Path) -> Path | None:
    """Another name of a file that is about to be replaced; None where there is none, or no second name can be had."""
    name = _temporary(target.parent)
    try:
        name.hardlink_to(target)
    except OSError:
        return None
    return name


def _take_back(named: Sequence[Path], former: Mapping[Path, Path | None], fresh: Collection[Path]) -> None:
    """Undo renamings, the last first; up to a file that was replaced and has no second name."""
    for made in reversed(named):
        if before := former[made]:
            before.replace(made)
        elif made in fresh:
            made.unlink(missing_ok=True)
        else:
            return


def _interim(file: Path, last: Content) -> Path:
    """The name of a file until the one that it is bound to is in place; it says what that one holds."""
    digest = hashlib.sha256()
    for piece in [last] if isinstance(last, bytes) else last:
        digest.update(piece)
    ending = f"{INTERIM}{digest.hexdigest()[:INTERIM_DIGITS]}{file.suffix}"
    return file.with_name(_shortened(file.stem, ending) + ending)


def _shortened(stem: str, ending: str) -> str:
    """As much of a name as leaves room for its ending."""
    return os.fsdecode(os.fsencode(stem)[: LONGEST_NAME - len(os.fsencode(ending))])


def _remove_interims(file: Path) -> None:
    """Remove what crashed runs left of a file that is now in place."""
    with suppress(OSError):
        for left in interims(file):
            left.unlink(missing_ok=True)


def _temporary(folder: Path) -> Path:
    return folder / f".anonface-{secrets.token_hex(8)}.tmp"


def _mode(target: Path) -> int | None:
    """The permissions of the file that is to be replaced, if there is one."""
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else None


def _write_new(path: Path, data: Content, mode: int | None) -> None:
    """Write a new file and sync it to disk; ``mode`` None leaves its permissions to the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(file.fileno())
    if mode is not None:
        path.chmod(mode)  # undo the umask


def _take_name(temporary: Path, target: Path) -> None:
    """Rename a finished file unless the name is taken.

    Raises:
        FileExistsError: it is taken.
    """
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with _alone_in(target.parent):
            if os.path.lexists(target):
                raise FileExistsError from None
            temporary.replace(target)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other writers of this program out of a folder, where folders can be locked; a crash lifts the lock."""
    if os.name != "posix":
        yield
        return
    import fcntl

    descriptor = -1
    with suppress(OSError):  # a folder that cannot be read, or a file system without locks
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Sync a new name to disk, where folders can be synced."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # the folder is writable but not readable
    try:
        os.fsync(descriptor)
    except OSError:
        return  # not supported by some network file systems; the file itself is synced
    finally:
        os.close(descriptor)
