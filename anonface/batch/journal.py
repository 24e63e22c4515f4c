"""What a run has written so far, so that a killed one can go on where it was.

A journal is a file of JSON lines. The first of a run states its terms. Then there is one a photo, each on the disk
before the photo's outputs are: what will be written, how long it will be, and what lay in its place before. Outputs are
written whole or not at all, so what a later run finds there says whether the photo was finished. A journal names files
and settings; it holds no digest, no pixels and no key, but a mark by which the key is known again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anonface.errors import OutputError, reason, remedy

Record = dict[str, Any]


@dataclass(frozen=True)
class Terms:
    """What all photos of a run have in common; it goes on under the same alone.

    Args:
        run: its name, 16 random bytes in hexadecimal, and the salt of its mark and of its passphrase.
        settings: those that make a difference to the results, as plain JSON values.
        mark: what the key makes of the salt, in hexadecimal: known again by whoever has the key, and unlike the marks
            of the same key elsewhere. Empty where the key is not at hand.
        stretched: Argon2id's memory, iterations and lanes, of a passphrase.
    """

    run: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""
    stretched: Sequence[int] | None = None


ANY_TERMS = Terms()


def journal_path(folder: Path, command: Mapping[str, object]) -> Path:
    """The journal in ``folder`` of all runs that do the same with the same photos, under whatever terms."""
    digest = hashlib.sha256(json.dumps(command, sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return folder / f".anonface-{digest.hexdigest()[:16]}.journal"


def earlier_runs(file: Path) -> list[Terms]:
    """The terms of the runs that left their lines in a journal, the latest last.

    Raises:
        OutputError: it cannot be read.
    """
    return list({terms.run: terms for terms in _read(file)[0]}.values())


class Journal:
    """One run's journal.

    Args:
        file: where it lies; made at the first note. None remembers for this run alone.
        terms: the run's.
        heeded: names of earlier runs whose notes there are heeded. The lines of others stay and are passed over.
    """

    def __init__(self, file: Path | None, terms: Terms = ANY_TERMS, heeded: Collection[str] = ()) -> None:
        self.file, self.terms = file, terms
        self._begun = False
        entries = _read(file)[1] if file and heeded else []
        self._entries = {entry["photo"]: entry for entry in entries if entry["run"] in heeded}
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
            "run": self.terms.run,
            "photo": photo,
            "outputs": [{"file": str(file.absolute()), "bytes": size, "before": _look(file)} for file, size in outputs],
            "record": record,
        }
        with self._lock:
            if self.file:
                _append(self.file, [entry] if self._begun else [{"terms": asdict(self.terms)}, entry])
                self._begun = True
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


def _read(file: Path) -> tuple[list[Terms], list[Record]]:
    """The terms of runs and their entries, the latest last; a line that a kill cut short is passed over."""
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
            elif entry["outputs"] and {"run", "photo", "record"} <= entry.keys():
                entries.append(entry)
        except (ValueError, LookupError, TypeError):
            continue
    return terms, entries


def _append(file: Path, entries: Sequence[Record]) -> None:
    """Add lines in one write, after the end of one that a kill cut short, and see them onto the disk."""
    lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINKS, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as journal:
            size = journal.seek(0, os.SEEK_END)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            journal.write(lines)
            os.fsync(descriptor)
    except OSError as error:
        raise OutputError(f"the journal {file} cannot be written: {reason(error)}", remedy(error)) from error


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
