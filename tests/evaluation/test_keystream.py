"""The attack on one keystream behind many payloads: it opens payloads of version 5, and those of today not at all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key, fresh_nonce
from anonface.evaluation.audit import keystream
from anonface.evaluation.audit.finding import CHANCE
from anonface.watermark import cipher
from anonface.watermark.payload import PayloadFormat

PHOTOS, NUMBERS = 23, 190
KIND = PayloadFormat("compensation", 0.5, 0.25)


def face_key(seed: int) -> FaceKey:
    return Key(bytes([seed]) * 32).face(CONSISTENT_SALT, "ifadit", 0)


def payloads(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Those of photos, and those that the program makes of the same originals under another key: at 0.9."""
    rng = np.random.default_rng(seed)
    usual, ways = 0.4 * rng.normal(size=NUMBERS), rng.normal(size=(16, NUMBERS)) * np.linspace(0.4, 0.05, 16)[:, None]

    def of(who: np.ndarray) -> np.ndarray:
        shapes = usual + who[:, :16] @ ways + 0.6 * who[:, 16:]
        return shapes / np.sqrt((shapes**2).mean(1, keepdims=True))

    who, other = rng.normal(size=(2, PHOTOS, 16 + NUMBERS))
    return of(who), of(0.9 * who + np.sqrt(1 - 0.81) * other)


def said_as_in_version_5(shapes: np.ndarray, key: FaceKey) -> np.ndarray:
    """The planted weakness: one Q and pad for all photos, and ones before the numbers."""
    plain = np.concatenate([np.ones((PHOTOS, keystream.ONES)), np.zeros((PHOTOS, 1)), shapes], 1)
    return np.stack(
        [cipher.encrypt(torch.from_numpy(one), key.payload_of_version_5(), KIND.name).numpy() for one in plain]
    )


def said_today(shapes: np.ndarray, key: FaceKey) -> np.ndarray:
    return np.stack([KIND.encode(torch.from_numpy(one), key.payload(fresh_nonce())).numpy() for one in shapes])


def own(shapes: np.ndarray) -> np.ndarray:
    """As an attacker reads them, who made them under a key of his own."""
    key = face_key(9)
    said = [KIND.encode(torch.from_numpy(one), key.payload(bytes(8))) for one in shapes]
    return np.stack([cipher.decrypt(one, key.payload(bytes(8)), KIND.name).numpy() for one in said])


def right(said: np.ndarray, originals: np.ndarray, known: int) -> int:
    fits = keystream.assigned(said, own(originals), {number: number for number in range(known)})
    return int((fits.argmax(1) == np.arange(PHOTOS))[known:].sum())


@pytest.mark.parametrize("known", [0, 2, 3, 5])
def test_it_opens_payloads_of_version_5_and_nothing_of_todays(known):
    shapes, originals = payloads()
    assert right(said_as_in_version_5(shapes, face_key(1)), originals, known) == PHOTOS - known
    counts = [right(said_today(*payloads(seed)[:1], face_key(1)), payloads(seed)[1], known) for seed in range(4)]
    assert np.mean(counts) < 2.8  # one of 23 by chance, give or take one a try


def subject(said: np.ndarray, originals: np.ndarray) -> SimpleNamespace:
    crops = [np.full(1, number) for number in range(PHOTOS)]
    seen = [SimpleNamespace(crop=crop) for crop in crops]
    model = SimpleNamespace(
        nonce=None,
        said=lambda crop: said[int(crop[0])],
        payload=lambda crop, key: own(originals[int(crop[0])][None])[0],
    )
    people = [f"person {number}" for number in range(PHOTOS)]
    return SimpleNamespace(
        model=model, hidden=seen, hidden_otherwise=seen, people=people, drawn_key=lambda purpose: Key(bytes(32))
    )


def test_the_audit_says_which_of_them_is_broken():
    shapes, originals = payloads()
    for made, held in ((said_as_in_version_5, False), (said_today, True)):
        _, *findings = keystream.ATTACK.run(subject(made(shapes, face_key(1)), originals))
        assert [finding.passed for finding in findings] == [held] * 4
        assert all(finding.value.value > 0.95 for finding in findings) is not held
        assert all(abs(finding.value.value - CHANCE) < 0.25 for finding in findings) is held


def test_payloads_of_another_length_are_left_out():
    shapes, originals = payloads()
    attacked = subject(said_as_in_version_5(shapes, face_key(1)), originals)
    whole = attacked.model.said
    attacked.model.said = lambda crop: whole(crop)[: -10 if int(crop[0]) % 5 == 0 else None]
    _, *findings = keystream.ATTACK.run(attacked)
    assert [finding.value.n for finding in findings] == [18, 16, 15, 13] and not any(f.passed for f in findings)


def test_where_nothing_is_said_nothing_is_told():
    nothing = SimpleNamespace(model=SimpleNamespace(nonce=None, said=None, payload=None), people=[])
    assert [finding.passed for finding in keystream.ATTACK.run(nothing)] == [None, None]
