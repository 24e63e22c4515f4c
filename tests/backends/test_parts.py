"""Any renderer with the keyed identity and the watermark: a stub renderer through the whole pipeline."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from anonface import weights
from anonface.backends import registry
from anonface.backends.flow_identity import FlowIdentity
from anonface.backends.generator import load_mapping
from anonface.backends.recoverable import RecoverableBackend
from anonface.crypto.keys import CONSISTENT_SALT, Key
from anonface.errors import ContainerError
from anonface.models.identity import KEPT, IdentityEncoder
from anonface.pipeline import Engine
from anonface.record.anf1 import ORIGINAL, decode, encode
from anonface.watermark import channel
from anonface.watermark.face_watermark import MOST_RESIDUAL, CodeWatermark

KEY = Key(bytes(range(32)))
OTHER, ONE_BIT_OFF = Key(bytes([9]) * 32), KEY.flipped([7])


class Tint:
    """A renderer without weights: it mixes a face with coloured waves that a code decides.

    Args:
        residual_size: how many numbers it asks for beside the code.
    """

    resolutions = (256,)
    margin, matches_light = "none", True

    def __init__(self, residual_size):
        self.residual_size, self.calls = residual_size, []

    def tinted(self, face, code):
        waves = code[0, KEPT : KEPT + 48].float().view(1, 3, 4, 4)
        colours = F.interpolate(waves / waves.abs().max(), face.shape[-2:], mode="bicubic")
        return (0.6 * face + 0.4 * colours).clamp(-1, 1)

    def draw(self, face, mask, hidden, key):
        self.calls.append(("draw", hidden, None))
        return self.tinted(face, hidden)

    def residual(self, finished, face, original, code):
        return torch.linspace(-1, 1, self.residual_size) if self.residual_size else None

    def redraw(self, finished, code, residual, legible=True):
        self.calls.append(("redraw", code, residual))
        return self.tinted(F.interpolate(finished.plain, finished.face.shape[-2:], mode="bicubic"), code)

    def wrong_key_face(self, finished, code):
        self.calls.append(("wrong_key_face", code, None))
        return self.tinted(finished.face, code)


def backend(residual_size: int = 0) -> RecoverableBackend:
    encoder, renderer = IdentityEncoder(), Tint(residual_size)
    weights.load(encoder, "identity")
    identity = FlowIdentity(encoder.requires_grad_(False).eval(), load_mapping())
    watermark = CodeWatermark(identity.flow.params.code, residual_size)
    return RecoverableBackend("stub", identity, renderer, watermark, ("identity", "flow", "compensation", "mapping"))


@pytest.fixture(scope="module")
def engine():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BACKENDS, "stub", lambda device, settings: backend())
        yield Engine("stub", device="cpu")


@pytest.fixture(scope="module")
def photo():
    return np.asarray(Image.open(Path(__file__).parents[2] / "examples/small.jpg").convert("RGB"))


@pytest.fixture(scope="module", params=["record", "pixels alone"])
def made(request, engine, photo):
    """The anonymized photo, its record where there is one, and the hidden code that was drawn."""
    recorded = request.param == "record"
    engine.backend.renderer.calls.clear()
    result = engine.anonymize(photo, KEY, consistent=not recorded, sealed=recorded)
    called, hidden, _ = engine.backend.renderer.calls[0]
    assert called == "draw" and [face.kind for face in result.faces] == ["synth"]
    return result.pixels, decode(encode(result.header)) if recorded else None, hidden


def cosine(a, b):
    """Of the coordinates that a key hides."""
    return float(F.cosine_similarity(a[:, KEPT:].double(), b[:, KEPT:].double()))


def recovered(engine, pixels, key, header):
    """The photo, and what the renderer was asked to draw."""
    engine.backend.renderer.calls.clear()
    return engine.recover(pixels, key, header).pixels, engine.backend.renderer.calls[-1]


def error(photo, other, hidden):
    """Mean squared error where anonymization changed the photo."""
    where = (hidden != photo).any(2)
    return float(np.square(photo[where].astype(float) - other[where]).mean())


def tensor(pixels):
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 127.5 - 1


def original_code(engine, photo):
    return engine.backend.identity.embed(tensor(engine._crop(photo, engine._locate(photo, ())[0].quad)))


@pytest.mark.slow
def test_the_renderer_draws_the_hidden_code_and_the_right_key_recovers_the_original(engine, photo, made, monkeypatch):
    pixels, header, hidden = made
    code = original_code(engine, photo)
    assert abs(cosine(hidden, code)) < 0.3 and (pixels != photo).any(2).sum() > 2000
    back, (called, revealed, residual) = recovered(engine, pixels, KEY, header)
    assert called == "redraw" and cosine(revealed, code) > 0.97 and residual is None
    assert error(photo, back, pixels) < 0.2 * error(photo, pixels, pixels)
    monkeypatch.setattr(RecoverableBackend, "adds_residuals", False)
    drawn, _ = recovered(engine, pixels, KEY, header)
    assert error(photo, back, pixels) < 0.2 * error(photo, drawn, pixels)


# From pixels alone one wrong key is enough: each searches for an unknown square, which takes long.
@pytest.mark.parametrize(
    ("made", "wrong"),
    [("record", OTHER), ("record", ONE_BIT_OFF), ("pixels alone", ONE_BIT_OFF)],
    ids=["record-another key", "record-one bit off", "pixels alone-one bit off"],
    indirect=["made"],
)
def test_a_wrong_key_reveals_somebody_else(engine, photo, made, wrong, monkeypatch):
    pixels, header, _ = made
    for name in ("SCALES", "TURNS"):  # a square that a detector finds is searched for, which takes long
        monkeypatch.setattr(channel, name, (0.0,))
    shown, (called, revealed, _) = recovered(engine, pixels, wrong, header)
    assert called == "wrong_key_face" and abs(cosine(revealed, original_code(engine, photo))) < 0.5
    assert error(photo, shown, pixels) > 0.5 * error(photo, pixels, pixels)


def test_without_its_watermark_a_face_is_not_recovered(engine, photo, made, monkeypatch):
    pixels, header, _ = made
    monkeypatch.setattr(channel, "SURE", 1.0)  # no search for a square that nothing marks
    quad = engine._locate(photo, ())[0].quad
    left, top, right, bottom = (int(x) for x in (*quad.min(0).clip(0), *quad.max(0)))
    part = np.s_[top:bottom, left:right]
    plain = F.interpolate(
        channel.without_watermark(tensor(pixels[part])), pixels[part].shape[:2], mode="bicubic"
    ).clamp(-1, 1)
    erased = pixels.copy()
    erased[part] = ((plain[0].permute(1, 2, 0) + 1) * 127.5).round().byte().numpy()
    shown, (_, revealed, _) = recovered(engine, erased, KEY, header)
    assert cosine(revealed, original_code(engine, photo)) < 0.9
    assert error(photo, shown, pixels) > 0.5 * error(photo, pixels, pixels)


@pytest.mark.parametrize("made", ["record"], indirect=True)
def test_a_face_tells_whether_its_record_was_changed(engine, made):
    pixels, header, _ = made
    assert engine.backend.digest() == header.weights_digest not in engine.backend.earlier_digests()
    unsealed = {name: value for name, value in header.parameters.items() if name != ORIGINAL}
    with pytest.raises(ContainerError, match="record was changed"):
        engine.recover(pixels, KEY, replace(header, parameters=unsealed))


def test_a_renderer_gets_its_latent_residual_back_under_the_right_key_alone(engine, photo):
    stub = backend(residual_size=64)
    face, mask = tensor(engine._crop(photo, engine._locate(photo, ())[0].quad)), torch.ones(1, 1, 256, 256)
    right, wrong = (key.face(CONSISTENT_SALT, "stub", 0) for key in (KEY, OTHER))
    shown = stub.anonymize(face, mask, [right])
    for _ in range(stub.corrections):
        shown = shown + F.interpolate(stub.write_watermark(shown, face, face, mask, right), (256, 256), mode="bicubic")
        shown = ((shown + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1
    stub.recover(shown, mask, [right])
    called, _, residual = stub.renderer.calls[-1]
    assert called == "redraw" and torch.allclose(residual.float(), torch.linspace(-1, 1, 64), atol=0.25)
    assert stub.checked(shown, right).fits and stub.checked(shown, wrong) is None
    stub.recover(shown, mask, [wrong])
    assert stub.renderer.calls[-1][0] == "wrong_key_face" and not stub.checked(shown, wrong).fits


def test_a_latent_residual_that_no_face_can_hold_is_refused():
    assert CodeWatermark(448, MOST_RESIDUAL).residual_size == MOST_RESIDUAL
    with pytest.raises(ValueError, match="at most"):
        CodeWatermark(448, MOST_RESIDUAL + 1)
