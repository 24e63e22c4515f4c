"""Measurements so far, so that a killed evaluation continues and several processes can share the work.

A journal is a file of JSON lines: one with the settings, and one for each finished photo. Lines are added whole, so
several processes may write to one file. Journals with the same settings are joined by concatenation. A journal holds
names of files, distances, shares and seconds: no pictures, no embeddings, no keys.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anonface.errors import OutputError, UsageError
from anonface.evaluation.measurements import Measured

Settings = Mapping[str, Any]


class Journal:
    """The measurements of one evaluation.

    Args:
        file: None keeps measurements in memory.
        settings: everything that a measurement depends on, as JSON values.

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
        """Finished photos by name, those of other processes included."""
        self._read()
        return self._measured

    def add(self, photo: Measured) -> None:
        self._measured[photo.file] = photo
        samples = {
            name: [[key, None if math.isnan(value) else value] for key, value in rows]
            for name, rows in photo.samples.items()
        }
        self._append({"file": photo.file, "refused": photo.refused, "samples": samples})

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Add a line in one write, on a line of its own even after one that a kill cut short, and flush it to the
        disk."""
        if self.file is None:
            return
        data = json.dumps(entry, allow_nan=False).encode() + b"\n"
        try:
            with os.fdopen(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as end:
                if size := end.seek(0, os.SEEK_END):
                    end.seek(size - 1)
                    data = data if end.read(1) == b"\n" else b"\n" + data
                end.write(data)
                os.fsync(end.fileno())
        except OSError as error:
            raise OutputError(f"the journal {self.file} cannot be written: {error.strerror}") from error

    def _read(self) -> bool:
        """Read the file; returns whether it has the settings. A line cut short by a kill is passed over."""
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


def _photo(entry: Mapping[str, Any]) -> Measured:
    samples = {
        str(name): [(int(key), math.nan if value is None else float(value)) for key, value in rows]
        for name, rows in entry["samples"].items()
    }
    return Measured(str(entry["file"]), samples, int(entry["refused"]))
