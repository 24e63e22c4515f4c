"""What was meant by the last faces."""

import torch

from anonface.backends import memory
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key


def face_key(seed: int) -> FaceKey:
    return Key.from_bytes(bytes([seed]) * 31 + b"\xff").face(CONSISTENT_SALT, "ifadit", 0)


def test_a_meaning_is_of_one_face_and_key(monkeypatch):
    monkeypatch.setattr(memory, "AT_MOST", 2)
    kept: memory.Memory[str] = memory.Memory()
    key, other = face_key(1), face_key(2)
    faces = torch.rand(3, 1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    kept.keep(faces[0], key, "first")
    kept.keep(faces[1], key, "second")
    assert kept.recall(faces[0].clone(), key) == "first" and kept.recall(faces[1], key) == "second"
    assert kept.recall(faces[0], other) is None and kept.recall(faces[2], key) is None
    kept.keep(faces[2], key, "third")  # the oldest is forgotten
    assert kept.recall(faces[0], key) is None and kept.recall(faces[2], key) == "third"
    kept.keep(faces[2], key, "again")
    assert kept.recall(faces[2], key) == "again" and kept.recall(faces[1], key) == "second"
