"""No stream encrypts two payloads, and none comes of the constant salt alone: whatever is written, in every mode."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from tiny_diffusion import gaussian_faces, gaussian_model
from tiny_editing import cell_faces, lossless

from anonface.backends.base import Backend
from anonface.backends.diffusion.backend import Diffusion
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key, PayloadKey, fresh_nonce, fresh_salt
from anonface.pipeline import _keyed
from anonface.watermark import cipher, registration

MASTER = Key(bytes(range(32)))
# Of the constant salt: who a face becomes, and the search for the mark, whose bits their own pixels encrypt.
FOR_ALL_PHOTOS = {"coarse key", "medium key", "fine key", "anchor turns", "anchor check"}


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FaceKey, str]]:
    """Every derivation, in order."""
    made: list[tuple[FaceKey, str]] = []
    derive = FaceKey.derive
    monkeypatch.setattr(FaceKey, "derive", lambda key, purpose: made.append((key, purpose)) or derive(key, purpose))
    return made


def written(backend: Backend, face: torch.Tensor, salt: bytes, nonce: bytes | None) -> None:
    """A face anonymized and finished as the pipeline does it, its corrections included."""
    mask = torch.zeros(1, 1, *face.shape[2:])
    mask[:, :, 60:220, 60:200] = 1
    mark = MASTER.face(salt, backend.name, 0)
    (key,) = _keyed(backend, [mark], [nonce], b"")
    shown = face + mask * (backend.anonymize(face, mask, [key]) - face)
    for _ in range(2):
        backend.write_watermark(shown, face, face, mask, key)
    pixels = ((shown[0].clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
    quad = np.array([[0.0, 0.0], [0.0, 256.0], [256.0, 256.0], [256.0, 0.0]])
    registration.write(pixels, quad, np.ones(pixels.shape[:2], bool), mark, nonce or b"")


@pytest.mark.slow
@pytest.mark.parametrize("salt", [CONSISTENT_SALT, None], ids=["one for all photos", "one a photo"])
@pytest.mark.parametrize("named", [True, False], ids=["nonce named", "nonce drawn"])
def test_no_payload_key_says_two_messages(derived, salt, named, monkeypatch):
    backend, said, encrypt = lossless("hford"), [], cipher.encrypt
    spy = lambda values, key, purpose: said.append((key.derive("x"), purpose)) or encrypt(values, key, purpose)  # noqa: E731
    monkeypatch.setattr(cipher, "encrypt", spy)
    for face in cell_faces(3).split(1):
        for photo in (face, face):  # the very same face in two photos, too
            written(backend, photo, salt or fresh_salt(), fresh_nonce() if named else None)
    assert len(said) == len(set(said)) and len({key for key, _ in said}) == 6
    assert Counter(purpose for _, purpose in said).keys() >= {"compensation", "finer compensation", "detail"}
    assert {purpose for key, purpose in derived if not isinstance(key, PayloadKey)} == FOR_ALL_PHOTOS


def test_a_diffusion_models_whole_transform_is_of_the_nonce(derived):
    backend = Diffusion(gaussian_model(), settings={"transform": "mix", "steps": 2, "iterations": 1})
    for face in gaussian_faces(2).split(1):
        written(backend, face, CONSISTENT_SALT, fresh_nonce())
    constant = {purpose for key, purpose in derived if not isinstance(key, PayloadKey)}
    assert constant == {"anchor turns", "anchor check"}
    mixes = [key.derive("x") for key, purpose in list(derived) if purpose == "mix"]
    assert len(mixes) == len(set(mixes)) == 2


def test_a_payload_key_comes_of_its_nonce_salt_backend_and_face():
    face = MASTER.face(CONSISTENT_SALT, "ifadit", 0)
    others = [
        face.payload(b"12345678"),
        MASTER.face(fresh_salt(), "ifadit", 0).payload(bytes(8)),
        MASTER.face(CONSISTENT_SALT, "hford", 0).payload(bytes(8)),
        MASTER.face(CONSISTENT_SALT, "ifadit", 1).payload(bytes(8)),
        face,
        face.payload_of_version_5(),
    ]
    own = face.payload(bytes(8)).derive("code")
    assert own == face.of_face(b"12345678", b"record").payload(bytes(8)).derive("code")
    assert own not in {other.derive("code") for other in others}
    for short in (b"", bytes(7), bytes(9)):
        with pytest.raises(ValueError, match="8 bytes"):
            face.payload(short)
