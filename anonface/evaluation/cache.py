"""What the judges saw of untouched photos, kept for later evaluations of the same folder.

**Embeddings of faces are biometric data**, so nothing is kept unless a file is named. It is lines of JSON, one a photo,
found again by the photo's own digest; a photo or a set of judges that has changed is looked at anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anonface.errors import OutputError, UsageError
from anonface.evaluation.attribute_classifiers import Impression
from anonface.evaluation.judges import CROP, Aligned, Bearing, Judges, Original
from anonface.evaluation.recognizers import Detection, Look
from anonface.faces import align
from anonface.imagefile import read_photo

VERSION = 1


class Cache:
    """A file of looks at originals.

    Args:
        file: made, readable by its owner alone, when it is not there.
        judges: whoever looks; what others saw does not count.

    Raises:
        UsageError: the file is something else.
        OutputError: it cannot be read or written.
    """

    def __init__(self, file: Path, judges: Judges) -> None:
        self.file, self.judges = file, judges
        self._seen = self._read()

    def original(self, file: Path, identity: str) -> Original:
        """A photo as the judges see it, or saw it before; see :meth:`Judges.original`."""
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest in self._seen:
            return _restored(self._seen[digest], file, identity, data)
        original = self.judges.original(file, identity)
        self._append({"photo": digest, "judges": self._who(), **_plain(original)})
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

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        try:
            with os.fdopen(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as file:
                if (size := file.seek(0, os.SEEK_END)) and (file.seek(size - 1), file.read(1))[1] != b"\n":
                    line = b"\n" + line
                file.write(line)
        except OSError as error:
            raise OutputError(f"the cache {self.file} cannot be written: {error.strerror}") from error


def _plain(original: Original) -> dict[str, Any]:
    """All that was seen, as JSON has it; the aligned crop is cut anew from the photo."""
    look, aligned, bearing = original.look, original.aligned, original.bearing
    return {
        "box": _numbers(original.box),
        "look": look and [_numbers(value) for value in (look.box, look.embedding, look.points)],
        "found": {name: seen and [_numbers(seen.box), _numbers(seen.points)] for name, seen in original.found.items()},
        "aligned": aligned and [_numbers(aligned.quad), _numbers(aligned.mesh)],
        "impressions": {name: [seen.male, seen.age] for name, seen in original.impressions.items()},
        "bearing": [_numbers(bearing.gaze), _numbers(bearing.expression)],
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
        Bearing(*map(_array, entry["bearing"])),
        {name: np.array(value) for name, value in entry["embeddings"].items()},
    )


def _numbers(values: Any) -> Any:
    return None if values is None else np.asarray(values).tolist()


def _array(values: Any) -> Any:
    return None if values is None else np.array(values)
