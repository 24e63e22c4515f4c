"""iFADIT on real weights: what its watermark says, keys, settings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anonface.backends.flow_identity import KeyGen
from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.ifadit.backend import IFADIT
from anonface.backends.recoverable import CLEAR
from anonface.backends.registry import build
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key
from anonface.errors import UsageError
from anonface.models.identity import KEPT
from anonface.models.identity_flow import SecureIdentityFlowParams
from anonface.training.data import draw_latents
from anonface.watermark.face_watermark import CodeWatermark
from anonface.watermark.payload import LEGIBLE


@pytest.fixture(scope="module")
def backend() -> IFADIT:
    return IFADIT()


@pytest.fixture(scope="module")
def faces() -> torch.Tensor:
    """Two generated people, as 8-bit pictures."""
    w = draw_latents(load_mapping(), 2, torch.Generator().manual_seed(21), mix=0.0)
    with torch.inference_mode():
        images = load_generator().synthesize(w, 512)
    return ((F.avg_pool2d(images, 2).clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


@pytest.fixture(scope="module")
def masks() -> torch.Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 256), torch.linspace(-1, 1, 256), indexing="ij")
    oval = torch.sigmoid(20 * (1 - ((x / 0.5) ** 2 + ((y - 0.12) / 0.6) ** 2)))
    return oval[None, None].repeat(2, 1, 1, 1)


def face_keys(count: int, seed: int = 1) -> list[FaceKey]:
    key = Key.from_bytes(bytes([seed]) * 31 + b"\xff")
    return [key.face(CONSISTENT_SALT, "ifadit", i) for i in range(count)]


def blend(faces: torch.Tensor, renders: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    return ((masks * renders + (1 - masks) * faces + 1) * 127.5).round() / 127.5 - 1


def test_results_have_the_crops_size(backend, faces, masks):
    large = F.interpolate(faces[:1], (512, 512), mode="bilinear")
    cover = F.interpolate(masks[:1], (512, 512), mode="bilinear")
    assert backend.anonymize(large, cover, face_keys(1)).shape == (1, 3, 512, 512)


def test_settings_are_checked_and_known_to_the_header(backend):
    assert backend.parameters() == {} and len(backend.digest()) == 32
    assert backend.under({"refine": 20}).parameters() == {}  # of an earlier version
    for settings in ({"steps": 3}, {"free": "age,hair"}):
        with pytest.raises(UsageError):
            backend.under(settings)


def test_what_is_freed_is_known_to_the_header_and_mirrored_by_some_keys(backend):
    assert backend.under({"free": "age,sex"}).parameters() == {"free": "sex,age"}
    # a header that says nothing of freed conditions has none, whatever this engine frees
    assert backend.under({"free": "sex"}).under({"refine": 2}).parameters() == {}
    keys = face_keys(16)
    assert torch.equal(backend.identity.keygen(keys).mirror, torch.ones(16, KEPT, dtype=torch.float64))
    mirror = backend.identity.keygen(keys, "age").mirror
    assert torch.equal(mirror[:, :2], torch.ones(16, 2, dtype=torch.float64))
    assert torch.equal(mirror[:, 2], mirror[:, 3]) and 2 < (mirror[:, 2] < 0).sum() < 14


def marked(backend: IFADIT, face: torch.Tensor, mask: torch.Tensor, key: FaceKey) -> torch.Tensor:
    """The finished face with its watermark."""
    shown = blend(face, backend.anonymize(face, mask, [key]), mask)
    for _ in range(backend.corrections):
        pattern = backend.write_watermark(shown, face, face, mask, key)
        shown = ((shown + F.interpolate(pattern, (256, 256), mode="bicubic") + 1) * 127.5).round() / 127.5 - 1
    return shown


@pytest.mark.slow
def test_a_finished_face_says_whom_it_stands_for_and_what_else_there_was(backend, faces, masks):
    key, other = face_keys(1)[0], face_keys(1, seed=2)[0]
    face, mask = faces[:1], masks[:1]
    finished = marked(backend, face, mask, key)
    assert max(said.error for said in backend.readings(finished)) < CLEAR
    assert float(backend.recovered_code(finished, key)[0] @ backend.identity.embed(face)[0]) > 0.97
    assert float(backend.recovered_code(finished, other)[0, KEPT:] @ backend.identity.embed(face)[0, KEPT:]) < 0.4
    right, wrong = (float((blend(finished, backend.recover(finished, mask, [k]), mask) - face).square().mean())
                    for k in (key, other))  # fmt: skip
    assert right < 0.2 * float((finished - face).square().mean()) and right < 0.2 * wrong


def test_faces_that_watermark_5_made_come_back(backend, faces, masks, monkeypatch):
    """Their key is the salt's own, and no nonce stands before the code."""
    quick, key = backend.under({}), face_keys(1)[0]
    monkeypatch.setattr(quick, "stores_residuals", False)
    monkeypatch.setattr(FaceKey, "payload", lambda key, nonce: key.payload_of_version_5())
    monkeypatch.setattr("anonface.watermark.nonce.encode", lambda nonce: torch.zeros(0))
    written = CodeWatermark.message
    monkeypatch.setattr(CodeWatermark, "message", lambda *given: replace(m := written(*given), channels=m.channels[:1]))
    finished = marked(quick, faces[:1], masks[:1], key)
    monkeypatch.undo()
    assert float(quick.recovered_code(finished, key)[0] @ quick.identity.embed(faces[:1])[0]) > 0.97
    quick.recover(finished, masks[:1], [key])
    assert quick.checked(finished, key).nonce is None and quick.digest() not in quick.earlier_digests()


@pytest.mark.slow
def test_where_nothing_can_be_read_the_face_itself_is(backend, faces):
    assert min(said.error for said in backend.readings(faces[:1])) > LEGIBLE
    key = face_keys(1)[0]
    with torch.inference_mode():
        seen = backend.identity.compensation(backend.identity.encoder(faces[:1])).double()
    assert torch.allclose(backend.recovered_code(faces[:1], key), backend.identity.reveal(seen, key))


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="no backend 'deepfake'"):
        build("deepfake", torch.device("cpu"))


def test_the_authors_backend_has_no_refinement():
    with pytest.raises(UsageError, match="no setting 'refine'"):
        build("ifadit-official", torch.device("cpu"), {"refine": 3})


def test_keys_are_far_apart_where_the_authors_nearly_coincide():
    """KeyGen draws from [-1, 1]; the authors' code from [0.5, 1), which the mapping's normalisation squeezes."""
    keygen = KeyGen(SecureIdentityFlowParams(), load_mapping())
    keys = [Key(bytes([i]) * 32).face(CONSISTENT_SALT, "ifadit", 0) for i in range(12)]
    ours = keygen(keys).k
    narrow = torch.from_numpy(np.stack([(key.signed_unit("flow", 512) + 3) / 4 for key in keys]))
    with torch.inference_mode():
        theirs = load_mapping()(narrow).double()

    def spread(k: torch.Tensor) -> float:
        """Mean distance of two keys, in units of a key's mean length."""
        return float(torch.pdist(k).mean() / k.norm(dim=1).mean())

    assert spread(ours) > 0.7
    assert spread(theirs) < 0.5 * spread(ours)


def test_one_bit_of_the_key_changes_everything_it_draws():
    keygen = KeyGen(SecureIdentityFlowParams(), load_mapping())
    master = bytes(range(32))
    keys = [Key.from_bytes(m).face(CONSISTENT_SALT, "ifadit", 0) for m in (master, bytes([master[0] ^ 1]) + master[1:])]
    drawn = keygen(keys)
    a, b = drawn.mix.flatten(1)
    assert abs(float(a @ b / (a.norm() * b.norm()))) < 0.1
    assert float((drawn.k[0] - drawn.k[1]).norm() / drawn.k.norm(dim=1).mean()) > 0.5
