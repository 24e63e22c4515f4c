"""What a backend keeps of the faces it made last, until it sees them finished."""

from __future__ import annotations

import hashlib
from typing import Generic, TypeVar

from torch import Tensor

from anonface.crypto.keys import FaceKey

AT_MOST = 256  # faces: a photo's are all made before the first one is seen finished

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """The last values, by a face [1, 3, R, R] and its key."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, FaceKey], Value] = {}

    def keep(self, face: Tensor, key: FaceKey, value: Value) -> None:
        name = _name(face, key)
        self._kept.pop(name, None)
        self._kept = dict(list({name: value, **self._kept}.items())[:AT_MOST])

    def recall(self, face: Tensor, key: FaceKey) -> Value | None:
        return self._kept.get(_name(face, key))


def _name(face: Tensor, key: FaceKey) -> tuple[bytes, FaceKey]:
    return hashlib.sha256(face.detach().cpu().contiguous().numpy().tobytes()).digest(), key
