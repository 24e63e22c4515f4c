"""What a backend meant by the faces it made last, for when it sees them finished."""

from __future__ import annotations

import hashlib
from typing import Generic, TypeVar

from torch import Tensor

from anonface.crypto.keys import FaceKey

AT_MOST = 256  # faces: a photo's are all made before the first one is seen finished

Meaning = TypeVar("Meaning")


class Memory(Generic[Meaning]):
    """The last meanings, by the picture [1, 3, R, R] and the key of the face that they are of."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, FaceKey], Meaning] = {}

    def keep(self, face: Tensor, key: FaceKey, meaning: Meaning) -> None:
        name = _name(face, key)
        self._kept.pop(name, None)
        self._kept = dict(list({name: meaning, **self._kept}.items())[:AT_MOST])

    def recall(self, face: Tensor, key: FaceKey) -> Meaning | None:
        return self._kept.get(_name(face, key))


def _name(face: Tensor, key: FaceKey) -> tuple[bytes, FaceKey]:
    return hashlib.sha256(face.detach().cpu().contiguous().numpy().tobytes()).digest(), key
