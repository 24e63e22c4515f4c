"""What was measured so far, so that an evaluation goes on where it was killed, and several can share the work.

A journal is a file of JSON lines: one that says how is measured, and one for each photo that is finished. Lines are
added whole, so several processes may write to one file; and since a journal says for itself what it is of, two of the
same kind are joined by putting one behind the other. It holds names of files, distances, shares and seconds: no
pictures, no embeddings, no keys.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anonface.errors import OutputError, UsageError
from anonface.evaluation.trials import Measured

Settings = Mapping[str, Any]


class Journal:
    """The measurements of one evaluation.

    Args:
        file: where they lie; None keeps them in memory.
        settings: all that a measurement depends on, as JSON has it.

    Raises:
        UsageError: the file is no journal, or of an evaluation with other settings.
        OutputError: it cannot be read or written.
    """

    def __init__(self, file: Path | None, settings: Settings) -> None:
        self.file = file
        self.settings = json.loads(json.dumps(settings))
        self._measured: dict[str, Measured] = {}
        if file and not self._read():
            self._append({"settings": self.settings})
            self._read()  # another process may have begun at the same moment

    def measured(self) -> dict[str, Measured]:
        """What is finished, by the photo's name; by other processes too."""
        self._read()
        return self._measured

    def add(self, photo: Measured) -> None:
        self._measured[photo.file] = photo
        samples = {
            name: [[key, None if math.isnan(value) else value] for key, value in rows]
            for name, rows in photo.samples.items()
        }
        self._append({"file": photo.file, "refused": photo.refused, "samples": samples})

    def _read(self) -> bool:
        """Take in the file's lines, and say whether its settings are among them; one cut short by a kill is none."""
        if self.file is None or not self.file.exists():
            return False
        try:
            lines = self.file.read_bytes().splitlines()
        except OSError as error:
            raise OutputError(f"the journal {self.file} cannot be read: {error.strerror}") from error
        known = False
        for line in lines:
            try:
                entry = json.loads(line)
                if "settings" in entry:
                    self._check(entry["settings"])
                    known = True
                else:
                    self._measured[entry["file"]] = _photo(entry)
            except (ValueError, LookupError, TypeError):
                continue
        if lines and not known:
            raise UsageError(f"{self.file} is no journal of an evaluation", "name a new file")
        return known

    def _check(self, settings: Settings) -> None:
        for name in sorted({*settings, *self.settings}):
            was, now = settings.get(name), self.settings.get(name)
            if was != now:
                raise UsageError(
                    f"the journal {self.file} is of an evaluation with another {name}: {was}, not {now}",
                    "name a new file, or measure as before",
                )

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Add a line in one write, after the end of one that a kill cut short, and see it onto the disk."""
        if self.file is None:
            return
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        try:
            with os.fdopen(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    line = line if file.read(1) == b"\n" else b"\n" + line
                file.write(line)
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"the journal {self.file} cannot be written: {error.strerror}") from error


def _photo(entry: Mapping[str, Any]) -> Measured:
    samples = {
        str(name): [(int(key), math.nan if value is None else float(value)) for key, value in rows]
        for name, rows in entry["samples"].items()
    }
    return Measured(str(entry["file"]), samples, int(entry["refused"]))
