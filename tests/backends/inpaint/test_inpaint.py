"""The inpainting backend, with an untrained network: what its parts promise, not how its faces look."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.inpaint import backend as module
from anonface.backends.inpaint.backend import FILE, Inpaint
from anonface.backends.parts import Finished
from anonface.backends.registry import build
from anonface.crypto.keys import CONSISTENT_SALT, Key
from anonface.errors import UsageError, WeightsError
from anonface.models.identity import KEPT
from anonface.models.inpainter import Inpainter, InpainterParams
from anonface.training.data import draw_latents

SMALL = InpainterParams(widths=(8, 8, 8, 8, 16), mid=8)
KEY, OTHER = (Key(bytes(range(31)) + bytes([last])).face(CONSISTENT_SALT, "inpaint", 0) for last in (1, 2))


@pytest.fixture(scope="module")
def backend():
    torch.manual_seed(4)
    network = Inpainter(SMALL)
    network.start_from(load_generator())
    for layer in (network.linear, network.head):
        torch.nn.init.normal_(layer.weight, std=0.5)
    return Inpaint(network, "none")


@pytest.fixture(scope="module")
def face():
    with torch.inference_mode():
        w = draw_latents(load_mapping(), 1, torch.Generator().manual_seed(21), mix=0.0)
        drawn = F.avg_pool2d(load_generator().synthesize(w, 512), 2).clamp(-1, 1)
    return ((drawn + 1) * 127.5).round() / 127.5 - 1


@pytest.fixture(scope="module")
def mask(face):
    y, x = (torch.linspace(-1, 1, face.shape[-1]) for _ in range(2))
    return (((x[None] / 0.45) ** 2 + ((y[:, None] - 0.12) / 0.55) ** 2) < 1).float()[None, None]


def test_a_target_identity_keeps_what_no_key_changes_and_follows_the_rest(backend, face):
    code = backend.identity.embed(face)
    targets = [backend.renderer.target(backend.identity.hide(code, key), face) for key in (KEY, OTHER)]
    for target in targets:
        assert target.norm() == pytest.approx(1, abs=1e-4)
        assert torch.allclose(target[:, :KEPT].double(), code[:, :KEPT], atol=1e-6)
    assert F.cosine_similarity(*(target[:, KEPT:] for target in targets)) < 0.8
    again = backend.renderer.target(backend.identity.hide(code, KEY), face)
    assert torch.equal(again, targets[0])


def test_a_freed_condition_is_the_keys_to_change(backend, face):
    with pytest.raises(UsageError, match="cannot free"):
        backend.under({"free": "pose"})
    with pytest.raises(UsageError, match="no setting"):
        backend.under({"refine": 3})
    assert backend.parameters() == {}
    freed = backend.under({"free": "tone,sex"})
    assert freed.parameters() == {"free": "sex,tone"} and backend.parameters() == {}
    code = backend.identity.embed(face)
    keys = [Key(bytes([n]) * 32).face(CONSISTENT_SALT, "inpaint", 0) for n in range(1, 9)]
    kept = {tuple((freed.identity.hide(code, key)[0, :KEPT] * code[0, :KEPT] > 0).tolist()) for key in keys}
    assert len(kept) > 1
    assert torch.allclose(freed.identity.reveal(freed.identity.hide(code, KEY), KEY), code, atol=1e-6)


def test_redrawing_repeats_and_depends_on_the_code(backend, face, mask):
    finished = Finished(face, backend.watermark.plain(face), mask)
    code, other = backend.identity.embed(face), backend.identity.hide(backend.identity.embed(face), OTHER)
    drawn = backend.renderer.redraw(finished, code, None)
    assert torch.equal(drawn, backend.renderer.redraw(finished, code, None))
    assert not torch.equal(drawn, backend.renderer.redraw(finished, other.float(), None))


def test_a_larger_crop_shows_the_same_face_with_finer_detail(face, mask):
    backend = Inpaint.load("cpu", {})
    code = backend.identity.embed(face).float()
    large, cover = (F.interpolate(x, (512, 512), mode="bilinear") for x in (face, mask))
    small, shown = backend.renderer._drawn(face, mask, code), backend.renderer._drawn(large, cover, code)
    assert shown.shape == large.shape
    inside = mask > 0.5
    again = F.interpolate(shown, (256, 256), mode="area")
    assert float((again - small)[inside.expand_as(small)].abs().mean()) < 0.03  # of a range of 2
    smooth = F.interpolate(again, (512, 512), mode="bicubic")
    assert float((shown - smooth)[(cover > 0.5).expand_as(shown)].abs().mean()) > 0.002


def test_weights_come_from_a_named_folder(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "params_of", lambda tensors: SMALL)
    with pytest.raises(WeightsError, match="there is no"):
        build("inpaint", torch.device("cpu"), {"model": str(tmp_path)})
    state = {name: value.half() for name, value in backend.renderer.inpainter.steering().items()}
    save_file({name: state[name] for name in list(state)[1:]}, str(tmp_path / FILE))
    with pytest.raises(WeightsError, match="missing"):
        build("inpaint", torch.device("cpu"), {"model": str(tmp_path)})
    save_file(state, str(tmp_path / FILE))
    loaded = build("inpaint", torch.device("cpu"), {"model": str(tmp_path)})
    assert loaded.digest() != backend.digest()
    assert torch.allclose(loaded.renderer.inpainter.stem.weight, backend.renderer.inpainter.stem.weight, atol=1e-3)
