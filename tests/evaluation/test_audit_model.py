"""What attackers do with the program's own networks."""

import numpy as np
import pytest
import torch
from skimage import data

from anonface.crypto.keys import CONSISTENT_SALT, Key
from anonface.evaluation.audit import model as models
from anonface.evaluation.audit.model import Model
from anonface.faces import align
from anonface.models.identity import KEPT
from anonface.pipeline import Engine
from anonface.watermark import channel, pixel_residual

pytestmark = pytest.mark.usefixtures("unsearched")


@pytest.fixture(scope="module")
def engine():
    return Engine(device="cpu")


@pytest.fixture(scope="module")
def photo():
    return data.astronaut()[:256, 100:356]


@pytest.fixture(scope="module")
def means(engine) -> Model:
    return models.of(engine)


def crop_of(engine, photo):
    return align.crop(photo, engine._locate(photo, ())[0].quad, 256)


def test_a_code_says_nothing_of_what_is_kept_on_purpose(engine, means, photo):
    crop = crop_of(engine, photo)
    code = means.encode(crop)
    face = torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 127.5 - 1
    whole = engine.backend.identity.embed(face)[0].numpy()
    assert code.shape == (len(whole) - KEPT,) and np.linalg.norm(code) == pytest.approx(1)
    assert code @ whole[KEPT:] / np.linalg.norm(whole[KEPT:]) == pytest.approx(1)
    assert len(code) % means.block == 0


def test_a_key_leads_a_code_there_and_back_as_the_backend_does(engine, means, photo, monkeypatch):
    crop, key = crop_of(engine, photo), Key(bytes(32))
    rendered, redraw = [], engine.backend.renderer.redraw
    monkeypatch.setattr(
        engine.backend.renderer, "redraw", lambda at, code, *rest: [rendered.append(code), redraw(at, code, *rest)][1]
    )
    face = torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 127.5 - 1
    engine.backend.recover(face, torch.ones(1, 1, 256, 256), [key.face(CONSISTENT_SALT, "inpaint", 0)])
    meant = rendered[0][0, KEPT:].double().numpy()
    assert means.lead(crop, key) @ meant / np.linalg.norm(meant) == pytest.approx(1, abs=1e-6)
    keys = (key, key.flipped([7]))
    identity = engine.backend.identity
    code = identity.embed(face)
    hidden = [identity.hide(code, each.face(CONSISTENT_SALT, "inpaint", 0))[0, KEPT:].numpy() for each in keys]
    for expected, found in zip(hidden, means.meant(crop, keys), strict=True):
        assert found @ expected / np.linalg.norm(expected) == pytest.approx(1, abs=1e-6)
    near = means.lead(crop, key.flipped([7]))
    assert abs(near @ means.lead(crop, key)) < 0.5


def test_strangers_differ_in_the_face_alone(engine, means, photo, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.fresh_nonce", lambda: bytes(8))
    flow = engine.backend.identity.flow
    first, second, again = (means.stranger(photo, number) for number in (0, 1, 0))
    assert (first == again).all() and (first != second).any() and (first != photo).any()
    assert engine.backend.identity.flow is flow
    edge = np.s_[:20, :20]
    assert (first[edge] == photo[edge]).all()
    codes = [means.encode(crop_of(engine, version)) for version in (photo, first, second)]
    assert np.linalg.norm(codes[0] - codes[1]) > 0.7 and np.linalg.norm(codes[1] - codes[2]) > 0.7


def test_the_nonce_and_the_payload_are_read_without_a_key(engine, means, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.fresh_nonce", lambda: bytes(range(8)))
    portrait = np.ascontiguousarray(data.astronaut())
    made = engine.anonymize(portrait, Key(bytes(32)), consistent=True)
    square = crop_of(engine, made.pixels)  # the watermark lies where a detector finds the finished face
    assert means.nonce(square) == bytes(range(8))
    said, payload, other = means.said(square), *(means.payload(square, Key(bytes([n]) * 32)) for n in (0, 1))
    assert len(said) in pixel_residual.lengths()[0] and abs(said).max() <= 1
    assert len(payload) == len(said) and abs(np.corrcoef(payload, other)[0, 1]) < 0.2
    key = Key(bytes(32)).face(CONSISTENT_SALT, "inpaint", 0).payload(bytes(range(8)))
    assert pixel_residual.SLOW.kind.decode(channel.Reading(torch.from_numpy(said), 0.0), key) is not None


def test_other_backends_leave_attackers_the_encoder(engine, photo, monkeypatch, means):
    crop = crop_of(engine, photo)
    monkeypatch.setattr(engine, "backend", object())
    found = models.of(engine)
    assert found.lead is found.meant is found.stranger is found.mute is found.block is found.nonce is None
    assert found.encode(crop) == pytest.approx(means.encode(crop))
