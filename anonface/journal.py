"""What a run has written so far, so that a killed one can go on where it was.

A journal is a file of JSON lines, one a photo, each on the disk before the photo's outputs are: what will be written,
how long it will be, and what lay in its place before. Outputs are written whole or not at all, so what a later run
finds there says whether the photo was finished. A journal names files; it holds no digest, no pixels and no key.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anonface.errors import OutputError, remedy

Record = dict[str, Any]


def journal_path(folder: Path, command: Mapping[str, object]) -> Path:
    """The journal of a command, in ``folder``: the same options find it again, others do not."""
    digest = hashlib.sha256(json.dumps(command, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return folder / f".anonface-{digest.hexdigest()[:16]}.journal"


class Journal:
    """One run's journal.

    Args:
        file: where it lies; made at the first note. None remembers for this run alone.
        resume: heed what an earlier run noted there. Without, its lines stay and are passed over.
    """

    def __init__(self, file: Path | None, resume: bool = False) -> None:
        self.file = file
        self._entries = _read(file) if file and resume else {}
        self._lock = threading.Lock()

    def note(self, outputs: Sequence[tuple[Path, int]], record: Record, planned: Path | None = None) -> None:
        """Say what is about to be written.

        Args:
            outputs: (file, bytes) each, the photo itself last.
            planned: the photo's name as a later run will ask for it, where it is written under another.

        Raises:
            OutputError: the journal cannot be written.
        """
        photo = str((planned or outputs[-1][0]).absolute())
        entry = {
            "photo": photo,
            "outputs": [{"file": str(file.absolute()), "bytes": size, "before": _look(file)} for file, size in outputs],
            "record": record,
        }
        line = json.dumps(entry).encode() + b"\n"
        with self._lock:
            if self.file:
                _append(self.file, line)
            self._entries[photo] = entry

    def finished(self, outputs: Sequence[Path]) -> Record | None:
        """The record of a photo that was noted and is written, if it is; ``outputs`` as they are planned.

        What a writer was killed over is tidied up: a sidecar without its photo leads nowhere and is removed.
        """
        names = [str(file.absolute()) for file in outputs]
        entry = self._entries.get(names[-1])
        if entry is None or [output["file"] for output in entry["outputs"][:-1]] != names[:-1]:
            return None
        if _written(entry["outputs"][-1]):
            record: Record = entry["record"]
            return record
        for beside in entry["outputs"][:-1]:
            if beside["before"] is None and _written(beside):
                Path(beside["file"]).unlink()
        return None

    def remove(self) -> None:
        """Forget the run: all is done."""
        if self.file:
            self.file.unlink(missing_ok=True)


_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def _read(file: Path) -> dict[str, Any]:
    """The last entry of every photo; a line that a kill cut short is passed over."""
    entries = {}
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OutputError(f"the journal {file} cannot be read: {error.strerror}") from error
    for line in lines:
        try:
            entry = json.loads(line)
            if entry["outputs"]:
                entries[entry["photo"]] = entry
        except (ValueError, LookupError, TypeError):
            continue
    return entries


def _append(file: Path, line: bytes) -> None:
    """Add a line in one write, after the end of one that a kill cut short, and see it onto the disk."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINKS, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as journal:
            size = journal.seek(0, os.SEEK_END)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            journal.write(line)
            os.fsync(descriptor)
    except OSError as error:
        raise OutputError(f"the journal {file} cannot be written: {error.strerror}", remedy(error)) from error


def _look(file: Path) -> list[int] | None:
    """What tells one regular file from another that takes its name: size, time, inode. None where there is none."""
    try:
        found = file.lstat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino] if stat.S_ISREG(found.st_mode) else None


def _written(output: Mapping[str, Any]) -> bool:
    """Whether what was about to be written is there."""
    now = _look(Path(output["file"]))
    return now is not None and now[0] == output["bytes"] and now != output["before"]
