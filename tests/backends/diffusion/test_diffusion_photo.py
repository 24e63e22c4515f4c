"""The diffusion backend through the pipeline, on a real photo and a model that loses nothing."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_diffusion import gaussian_model

from anonface.backends import registry
from anonface.backends.diffusion.backend import Diffusion
from anonface.crypto.keys import Key
from anonface.errors import ContainerError
from anonface.faces import blend
from anonface.pipeline import Anonymized, Engine
from anonface.record.anf1 import decode, encode
from anonface.watermark import registration

KEY, OTHER = (Key(bytes([i]) * 32) for i in (1, 2))


@pytest.fixture(scope="module")
def engine() -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            registry.BACKENDS, "diffusion", lambda device, settings: Diffusion(gaussian_model(64), device, settings)
        )
        return Engine("diffusion", "cpu", settings={"steps": 5, "iterations": 3})


@pytest.fixture(scope="module")
def photo() -> NDArray[np.uint8]:
    """A public-domain portrait (Eileen Collins, NASA), at a size at which the face's square has some 256 px."""
    from skimage.data import astronaut

    return np.ascontiguousarray(cv2.resize(astronaut(), None, fx=1.5, fy=1.5, interpolation=cv2.INTER_CUBIC))


@pytest.fixture(scope="module")
def anonymized(engine: Engine, photo: NDArray[np.uint8]) -> Anonymized:
    return engine.anonymize(photo, KEY)


def face_error(a: NDArray[np.uint8], b: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Root mean square, in grey levels."""
    return float(np.sqrt(((a.astype(float) - b)[where] ** 2).mean()))


def test_the_right_key_brings_the_face_back_through_the_record(engine, photo, anonymized):
    header = decode(encode(anonymized.header))
    assert header.backend == "diffusion" and header.parameters["transform"] == "mix"
    where = (anonymized.pixels != photo).any(2)
    assert 0.01 < where.mean() < 0.3
    right, wrong = (engine.recover(anonymized.pixels, key, header).pixels for key in (KEY, OTHER))
    hidden, false = face_error(anonymized.pixels, photo, where), face_error(wrong, photo, where)
    assert min(hidden, false) > 15
    # A model that loses nothing writes fine noise, of which the photo's own grid of pixels keeps a part.
    assert face_error(right, photo, where) < 0.75 * min(hidden, false)


def test_the_record_says_the_outline_and_what_is_outside_it_stays(engine, photo, monkeypatch):
    whole = engine.anonymize(photo, KEY)
    changed = (whole.pixels != photo).any(2)
    rows = np.flatnonzero(changed.any(1))
    covered = photo.copy()
    top, bottom = rows[0] + len(rows) * 3 // 5, rows[-1] + 1  # a plain scarf over mouth and chin
    covered[top:bottom] = (40, 90, 60)
    face = engine._locate(photo, ())
    monkeypatch.setattr(engine, "_locate", lambda *_: face)
    monkeypatch.setattr(engine, "_look_again", lambda pixels, result, found, kept: (result, found, ()))
    hidden = engine.anonymize(covered, KEY)
    kept = (hidden.pixels == covered).all(2) & changed
    assert kept[top + len(rows) // 8 : bottom].sum() > 0.9 * changed[top + len(rows) // 8 : bottom].sum()
    assert not kept[rows[0] : top - len(rows) // 8].all()

    def parsed(*_: object) -> None:
        raise AssertionError("the new face was parsed")

    monkeypatch.setattr("anonface.faces.parse.face_mask", parsed)
    header = decode(encode(hidden.header))
    where = (hidden.pixels != covered).any(2)
    right, wrong = (engine.recover(hidden.pixels, key, header).pixels for key in (KEY, OTHER))
    assert face_error(right, covered, where) < 0.75 * face_error(wrong, covered, where)
    broken = replace(header, parameters={**header.parameters, "outline0": "ab"})
    with pytest.raises(ContainerError, match="outline of a face is damaged"):
        engine.recover(hidden.pixels, KEY, broken)


@pytest.mark.parametrize("finish", [{"settling": 0, "grain": 0.15}, {"settling": 0}])
def test_a_grey_photo_stays_grey_both_ways(engine, photo, monkeypatch, finish):
    monkeypatch.setattr(engine, "backend", engine.backend.under(finish))
    grey = blend.as_grey(photo)
    hidden = engine.anonymize(grey, KEY)
    assert blend.is_grey(hidden.pixels) and not np.array_equal(hidden.pixels, grey)
    assert blend.is_grey(engine.recover(hidden.pixels, KEY, hidden.header).pixels)


@pytest.mark.slow
def test_every_photo_is_under_a_nonce_of_its_own_consistent_or_not(engine, photo, anonymized, monkeypatch):
    """Its whole transform: what one known original tells of it opens no other photo."""
    first, second = (engine.anonymize(photo, KEY, consistent=True) for _ in range(2))
    where = (first.pixels != photo).any(2)
    assert first.header.parameters["nonces"] != second.header.parameters["nonces"]
    assert np.abs(first.pixels[where].astype(int) - second.pixels[where]).mean() > 5
    monkeypatch.setattr("anonface.pipeline.fresh_nonce", lambda: bytes(8))
    again = [engine.anonymize(photo, KEY, consistent=True).pixels for _ in range(2)]
    assert np.array_equal(*again)


def test_without_a_record_the_anchor_says_where_to_look(engine, photo, monkeypatch):
    hidden = engine.anonymize(photo, KEY, consistent=True)
    where = (hidden.pixels != photo).any(2)
    a_little_off = [replace(face, quad=face.quad + np.array([2.5, -1.5])) for face in engine._locate(photo, ())]
    monkeypatch.setattr(engine, "_locate", lambda *_: a_little_off)  # this model's faces are no faces
    right, wrong = (engine.recover(hidden.pixels, key).pixels for key in (KEY, OTHER))
    monkeypatch.setattr(registration, "search", lambda *_, **__: [])
    lost = engine.recover(hidden.pixels, KEY).pixels
    assert np.array_equal(right, engine.recover(hidden.pixels, KEY, hidden.header).pixels)
    assert face_error(right, photo, where) < 0.75 * min(face_error(other, photo, where) for other in (wrong, lost))


@pytest.mark.slow
def test_the_model_trained_here_leads_back_from_pixels_alone(photo):
    engine = Engine("diffusion", "cpu", settings={"steps": 20})
    assert engine.backend.parameters()["background"] == "clean"
    hidden = engine.anonymize(photo, KEY, consistent=True).pixels
    where = (hidden != photo).any(2)
    right, wrong = (engine.recover(hidden, key).pixels for key in (KEY, OTHER))
    assert face_error(right, photo, where) < 15 < 30 < min(face_error(seen, photo, where) for seen in (hidden, wrong))


def test_other_settings_at_recovery_give_way_to_the_record(engine, anonymized):
    engine.backend, kept = engine.backend.under({"steps": 2}), engine.backend
    try:
        again = engine.recover(anonymized.pixels, KEY, anonymized.header).pixels
    finally:
        engine.backend = kept
    assert np.array_equal(again, engine.recover(anonymized.pixels, KEY, anonymized.header).pixels)
