"""What a run has written so far, so that a killed run can be resumed.

A journal is a file of JSON lines. The first line of a run states its terms. One line per photo follows. It is written
before the photo's outputs: the files, their sizes, and what was at their place before. Outputs are written whole or not
at all, so a later run can see whether the photo was finished. A second line follows them: what is missing afterwards
was taken away by somebody else. A journal names files and settings. It holds no digest, no pixels and no key, only a
mark that identifies the key.

A run holds a lock on its journal, so that a second run of the same command refuses to start. The system lifts the lock
when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from anonface.errors import OutputError, reason, remedy

Record = dict[str, Any]


@dataclass(frozen=True)
class Terms:
    """What all photos of a run have in common; a run is resumed only under the same terms.

    Args:
        run: its name, 16 random bytes in hexadecimal, and the salt of its mark and of its passphrase.
        settings: those that affect the results, as plain JSON values.
        mark: a value derived from the key and the salt, in hexadecimal. It identifies the key of this run and differs
            from the marks of the same key elsewhere. Empty where the key is not available.
        stretched: Argon2id's memory, iterations and lanes, of a passphrase.
    """

    run: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""
    stretched: Sequence[int] | None = None


ANY_TERMS = Terms()


def journal_path(folder: Path, command: Mapping[str, object]) -> Path:
    """The journal in ``folder`` of all runs of the same command, under any terms."""
    digest = hashlib.sha256(json.dumps(command, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return folder / f".anonface-{digest.hexdigest()[:16]}.journal"


def earlier_runs(file: Path) -> list[Terms]:
    """The terms of the runs in a journal, the latest last.

    Raises:
        OutputError: it cannot be read.
    """
    return list({terms.run: terms for terms in _read(file)[0]}.values())


class Journal:
    """One run's journal, locked until it is closed or removed.

    Args:
        file: None keeps the entries in memory.
        terms: the run's.
        resumed: names of earlier runs whose entries count. The lines of other runs stay and are ignored.

    Raises:
        OutputError: another run holds it, or it cannot be read or written.
    """

    def __init__(self, file: Path | None, terms: Terms = ANY_TERMS, resumed: Collection[str] = ()) -> None:
        self.file, self.terms = file, terms
        self._begun = False
        self._made: list[Path] = []  # folders, the innermost first
        self._held = self._locked(file) if file else None
        entries = _read(file)[1] if file and resumed else []
        self._entries: dict[str, Record] = {}
        for entry in entries:
            if entry["run"] in resumed and "outputs" in entry:
                self._entries[entry["photo"]] = entry
            elif entry["run"] in resumed and entry["photo"] in self._entries:
                self._entries[entry["photo"]]["written"] = True
        self._lock = threading.Lock()

    def note(
        self,
        outputs: Sequence[tuple[Path, int]],
        record: Record,
        planned: Path | None = None,
        source: Path | None = None,
    ) -> None:
        """Record what is about to be written.

        Args:
            outputs: (file, bytes) each, the photo itself last.
            planned: the planned name of the photo, if it is written under another.
            source: of which it was made.

        Raises:
            OutputError: the journal cannot be written.
        """
        photo = str((planned or outputs[-1][0]).absolute())
        entry = {
            "run": self.terms.run,
            "photo": photo,
            "outputs": [{"file": str(file.absolute()), "bytes": size, "before": _look(file)} for file, size in outputs],
            "record": record,
            "source": _look(source) if source else None,
        }
        with self._lock:
            if self.file:
                _append(self.file, [entry] if self._begun else [{"terms": asdict(self.terms)}, entry])
                self._begun = True
            self._entries[photo] = entry

    def written(self, outputs: Sequence[Path]) -> None:
        """Record that a noted photo was written; ``outputs`` as they were planned.

        Raises:
            OutputError: the journal cannot be written.
        """
        if entry := self._entry(outputs):
            entry["written"] = True
            if self.file:
                with self._lock:
                    _append(self.file, [{"run": self.terms.run, "photo": entry["photo"], "written": True}])

    def finished(self, outputs: Sequence[Path], source: Path | None = None) -> Record | None:
        """The record of a photo that was noted and written, else None.

        The sidecar of a photo whose writer died just before it wrote the photo is removed.

        Args:
            outputs: as they are planned. All must still be there.
            source: of which it would be made; one that changed meanwhile does not count.
        """
        entry = self._entry(outputs)
        if entry is None:
            return None
        if not all(map(_written, entry["outputs"])):
            if not entry.get("written"):
                self._clean_up(entry)
            return None
        made_of = entry.get("source")  # journals of earlier versions name none
        if source and made_of and _look(source) not in (None, made_of):
            return None
        record: Record = entry["record"]
        return record

    @staticmethod
    def _clean_up(entry: Record) -> None:
        """Remove the sidecar of a photo that is not there."""
        if os.path.lexists(entry["outputs"][-1]["file"]):
            return
        for sidecar in entry["outputs"][:-1]:
            if sidecar["before"] is None and _written(sidecar):
                Path(sidecar["file"]).unlink()

    def _entry(self, outputs: Sequence[Path]) -> Record | None:
        names = [str(file.absolute()) for file in outputs]
        entry = self._entries.get(names[-1])
        same = entry is not None and [output["file"] for output in entry["outputs"][:-1]] == names[:-1]
        return entry if same else None

    def close(self) -> None:
        """Let other runs have the journal."""
        if self._held:
            self._held.close()

    def remove(self) -> None:
        """Delete the journal of a complete run, and folders that were made for it alone."""
        if not self.file:
            return
        if sys.platform == "win32":  # where an open file cannot be deleted
            self.close()
        self.file.unlink(missing_ok=True)
        self.close()
        with suppress(OSError):  # results are in it
            for folder in self._made:
                folder.rmdir()

    def _locked(self, file: Path) -> IO[bytes]:
        """The open journal, locked."""
        self._made = [folder for folder in file.absolute().parents if not folder.is_dir()]
        while True:
            held = _opened(file)
            if not _lock(held.fileno()):
                held.close()
                raise OutputError(
                    f"another run of this command is at work; it holds the journal {file}",
                    "wait until it ends, or choose another output",
                )
            with suppress(OSError):
                if os.path.samestat(os.fstat(held.fileno()), file.stat()):
                    return held
            held.close()  # the other run ended and deleted it meanwhile


_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
LOCKED_BYTE = 1 << 30  # on Windows one byte is locked, far behind the end, since nobody else can read it
HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)  # what systems say of a lock of another process


def _read(file: Path) -> tuple[list[Terms], list[Record]]:
    """The terms of runs and their entries, the latest last; an incomplete line is ignored."""
    terms, entries = [], []
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise OutputError(f"the journal {file} cannot be read: {error.strerror}") from error
    for line in lines:
        try:
            entry = json.loads(line)
            if "terms" in entry:
                terms.append(Terms(**entry["terms"]))
            elif "written" in entry:
                entries.append({name: entry[name] for name in ("run", "photo", "written")})
            elif entry["outputs"] and {"run", "photo", "record"} <= entry.keys():
                entries.append(entry)
        except (ValueError, LookupError, TypeError):
            continue
    return terms, entries


def _opened(file: Path) -> IO[bytes]:
    """The journal, open to read and append; it is made if it is not there.

    Raises:
        OutputError: it cannot be.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINKS, 0o600)
        return os.fdopen(descriptor, "r+b", buffering=0)
    except OSError as error:
        raise _unwritable(file, error) from error


def _lock(descriptor: int) -> bool:
    """Lock a file unless another process has; where the file system has no locks, it counts as locked."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in HELD
    return True


def _append(file: Path, entries: Sequence[Record]) -> None:
    """Append lines in one write, after ending an incomplete line, and sync them to disk."""
    lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
    with _opened(file) as journal:
        try:
            if size := journal.seek(0, os.SEEK_END):
                journal.seek(size - 1)
                lines = lines if journal.read(1) == b"\n" else b"\n" + lines
            journal.write(lines)
            os.fsync(journal.fileno())
        except OSError as error:
            raise _unwritable(file, error) from error


def _unwritable(file: Path, error: OSError) -> OutputError:
    return OutputError(f"the journal {file} cannot be written: {reason(error)}", remedy(error))


def _look(file: Path) -> list[int] | None:
    """Size, time and inode of a regular file, which identify it; None if there is none."""
    try:
        found = file.lstat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino] if stat.S_ISREG(found.st_mode) else None


def _written(output: Mapping[str, Any]) -> bool:
    """Whether an output was written."""
    now = _look(Path(output["file"]))
    return now is not None and now[0] == output["bytes"] and now != output["before"]
