"""Judges' readings of untouched photos, kept for later evaluations of the same folder.

**Embeddings of faces are biometric data**, so nothing is kept unless a file is named. The file has one line of JSON a
photo, found by the photo's digest. A changed photo, or another set of judges, is read anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anonface.errors import OutputError, UsageError
from anonface.evaluation.attribute_classifiers import Impression
from anonface.evaluation.journal import append_line
from anonface.evaluation.judges import CROP, Aligned, FacialState, Judges, Original
from anonface.evaluation.recognizers import Detection, Look
from anonface.faces import align
from anonface.images import read_photo

VERSION = 1


class Cache:
    """A file of readings.

    Args:
        file: made, readable by its owner alone, when it is not there.
        judges: readings of others are ignored.

    Raises:
        UsageError: the file is something else.
        OutputError: it cannot be read or written.
    """

    def __init__(self, file: Path, judges: Judges) -> None:
        self.file, self.judges = file, judges
        self._seen = self._read()

    def original(self, file: Path, identity: str) -> Original:
        """A photo's reading from the file, else a new one; see :meth:`Judges.original`."""
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest in self._seen:
            return _restored(self._seen[digest], file, identity, data)
        original = self.judges.original(file, identity)
        line = json.dumps({"photo": digest, "judges": self._who(), **_plain(original)})
        append_line(self.file, line, f"the cache {self.file}")
        return original

    def _who(self) -> list[object]:
        return [VERSION, *self.judges.names(), *(f"{e.name} {e.digest}" for e in self.judges.embedders)]

    def _read(self) -> dict[str, Mapping[str, Any]]:
        if not self.file.exists():
            return {}
        try:
            lines = self.file.read_text("utf-8").splitlines()
        except OSError as error:
            raise OutputError(f"the cache {self.file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.file} is no cache of an evaluation", "name a new file") from error
        seen, who = {}, self._who()
        for number, line in enumerate(lines):
            try:
                entry = json.loads(line)
                if entry["judges"] == who:
                    seen[str(entry["photo"])] = entry
            except (ValueError, LookupError, TypeError) as error:
                if number < len(lines) - 1 or not number:  # the last may have been cut short by a kill
                    raise UsageError(f"{self.file} is no cache of an evaluation", "name a new file") from error
        return seen


def _plain(original: Original) -> dict[str, Any]:
    """The reading as JSON, without the aligned crop, which is cut from the photo again."""
    look, aligned, state = original.look, original.aligned, original.state
    return {
        "box": _numbers(original.box),
        "look": look and [_numbers(value) for value in (look.box, look.embedding, look.points)],
        "found": {name: seen and [_numbers(seen.box), _numbers(seen.points)] for name, seen in original.found.items()},
        "aligned": aligned and [_numbers(aligned.quad), _numbers(aligned.mesh)],
        "impressions": {name: [seen.male, seen.age] for name, seen in original.impressions.items()},
        "bearing": [_numbers(state.gaze), _numbers(state.expression)],
        "embeddings": {name: _numbers(value) for name, value in original.embeddings.items()},
    }


def _restored(entry: Mapping[str, Any], file: Path, identity: str, data: bytes) -> Original:
    look, aligned = entry["look"], entry["aligned"]
    cut = None
    if aligned:
        quad, mesh = map(np.array, aligned)
        cut = Aligned(align.crop(read_photo(data, name=str(file)).pixels, quad, CROP), quad, mesh)
    return Original(
        file,
        identity,
        _array(entry["box"]),
        look and Look(*map(np.array, look)),
        {name: seen and Detection(*map(_array, seen)) for name, seen in entry["found"].items()},
        cut,
        {name: Impression(bool(male), age) for name, (male, age) in entry["impressions"].items()},
        FacialState(*map(_array, entry["bearing"])),
        {name: np.array(value) for name, value in entry["embeddings"].items()},
    )


def _numbers(values: Any) -> Any:
    return None if values is None else np.asarray(values).tolist()


def _array(values: Any) -> Any:
    return None if values is None else np.array(values)
