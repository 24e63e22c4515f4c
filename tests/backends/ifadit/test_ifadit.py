"""The default backend on real weights: contract, keys, settings."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.ifadit.backend import IFADIT, IFADITSettings
from anonface.backends.ifadit.identity import KeyGen
from anonface.backends.ifadit.refinement import ANONYMIZE
from anonface.backends.ifadit.renderer import FEWEST_STEPS
from anonface.backends.recoverable import CLEAR
from anonface.backends.registry import build
from anonface.cli.options import EFFORTS
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key
from anonface.errors import UsageError
from anonface.faces.analysis import FaceAnalysis
from anonface.faces.shape_warp import WAYS
from anonface.models.identity import KEPT
from anonface.models.identity_flow import SecureIdentityFlowParams
from anonface.training.data import draw_latents
from anonface.watermark import channel
from anonface.watermark.face_watermark import CodeWatermark
from anonface.watermark.payload import LEGIBLE


@pytest.fixture(scope="module")
def backend() -> IFADIT:
    return IFADIT(settings={"refine": 8})


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


@pytest.mark.slow
def test_other_keys_other_people(backend, faces, masks):
    steps = backend.under({"refine": 20})
    first, second = (steps.anonymize(faces[:1], masks[:1], face_keys(1, seed)) for seed in (3, 4))
    a, b = (backend.identity.embed(blend(faces[:1], image, masks[:1])) for image in (first, second))
    assert float((a * b).sum()) < 0.7


def test_results_have_the_crops_size(backend, faces, masks):
    large = F.interpolate(faces[:1], (512, 512), mode="bilinear")
    cover = F.interpolate(masks[:1], (512, 512), mode="bilinear")
    assert backend.under({"refine": 0}).anonymize(large, cover, face_keys(1)).shape == (1, 3, 512, 512)


def test_the_key_shapes_a_new_face_and_no_strangers(backend, faces, masks, monkeypatch):
    fast, (key, other), said = backend.under({"refine": 0}), face_keys(2), []
    still = lambda key, code: said.append(key) or [0.0] * len(WAYS)  # noqa: E731
    monkeypatch.setattr("anonface.faces.occlusion.keyed_amounts", still)
    plain = fast.anonymize(faces[:1], masks[:1], [key])
    assert said == [key]
    shown = marked(fast, faces[:1], masks[:1], key)
    fast.recover(shown, masks[:1], [other])
    assert other not in said
    monkeypatch.undo()
    bent = fast.anonymize(faces[:1], masks[:1], [key])
    assert 0.005 < float(((bent - plain) * masks[:1]).abs().mean() / masks[:1].mean()) < 0.2


def test_settings_are_checked_and_known_to_the_header(backend):
    assert backend.parameters() == {"refine": 8}
    assert backend.under({"refine": 3}).parameters() == {"refine": 3}
    assert backend.parameters() == {"refine": 8}
    assert len(backend.digest()) == 32
    for settings in ({"refine": -1}, {"refine": "many"}, {"steps": 3}, {"free": "age,hair"}):
        with pytest.raises(UsageError):
            backend.under(settings)


def test_what_is_freed_is_known_to_the_header_and_mirrored_by_some_keys(backend):
    assert backend.under({"free": "age,sex"}).parameters() == {"refine": 8, "free": "sex,age"}
    # a header that says nothing of freed conditions has none, whatever this engine frees
    assert backend.under({"free": "sex"}).under({"refine": 2}).parameters() == {"refine": 2}
    for weights in ("anonymization", "choice"):  # nor does anything hold what is freed
        young, plain = (getattr(backend.under(settings).renderer, weights) for settings in ({"free": "age"}, {}))
        assert young.age == 0 < plain.age and young.sex == plain.sex > 0
    assert backend.under({"free": "tone"}).renderer.choice.ethnicity == 0 < young.ethnicity == plain.ethnicity
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


def test_another_person_has_a_turn_where_there_is_time_for_it(backend):
    tries = [backend.under({"refine": steps}).renderer.anonymization.tries for steps in (19, 20, 40)]
    assert tries == [1, ANONYMIZE.tries, ANONYMIZE.tries] and ANONYMIZE.tries > 1
    assert backend.under({"refine": 4}).under({"refine": 20}).renderer.anonymization.tries == ANONYMIZE.tries


def test_what_a_recovery_needs_is_found_in_enough_steps_where_any_are_taken(backend):
    steps = [backend.under({"refine": steps}).renderer.residual_params.steps for steps in (0, 1, 9, 20, 40)]
    assert steps == [0, FEWEST_STEPS, FEWEST_STEPS, 13, 26]


def test_faces_that_watermark_5_made_come_back(backend, faces, masks, monkeypatch):
    """Their key is the salt's own, and no nonce stands before the code."""
    quick, key = backend.under({"refine": 0}), face_keys(1)[0]
    monkeypatch.setattr(FaceKey, "payload", lambda key, nonce: key.payload_of_version_5())
    monkeypatch.setattr("anonface.watermark.nonce.encode", lambda nonce: torch.zeros(0))
    written = CodeWatermark.message
    monkeypatch.setattr(CodeWatermark, "message", lambda *given: replace(m := written(*given), channels=m.channels[:1]))
    finished = marked(quick, faces[:1], masks[:1], key)
    monkeypatch.undo()
    assert float(quick.recovered_code(finished, key)[0] @ quick.identity.embed(faces[:1])[0]) > 0.97
    quick.recover(finished, masks[:1], [key])
    assert quick.checked(finished, key).nonce is None and quick.digest() not in quick.earlier_digests()


def test_without_refinement_it_says_the_code_and_checks_alone(backend, faces, masks):
    quick, key = backend.under({"refine": 0}), face_keys(1)[0]
    finished = marked(quick, faces[:1], masks[:1], key)
    code, checks, *rest = quick.readings(finished)
    assert max(code.error, checks.error) < CLEAR < LEGIBLE < min(said.error for said in rest)
    recorded = key.of_face(None, b"another record")
    for asked, record in ((key, True), (recorded, False)):
        quick.recover(finished, masks[:1], [asked])
        said = quick.checked(finished, asked)
        assert said.fits and said.record is record and len(said.nonce) == 8
    assert float(quick.recovered_code(finished, key)[0] @ quick.identity.embed(faces[:1])[0]) > 0.97


@pytest.mark.slow
def test_where_nothing_can_be_read_the_face_itself_is(backend, faces):
    assert min(said.error for said in backend.readings(faces[:1])) > LEGIBLE
    key = face_keys(1)[0]
    with torch.inference_mode():
        seen = backend.identity.compensation(backend.renderer.networks.encoder(faces[:1])).double()
    assert torch.allclose(backend.recovered_code(faces[:1], key), backend.identity.reveal(seen, key))


def wrong_key_latents(backend, hidden, face, mask, analysis=None):
    """Latents of whom a wrong key shows."""
    analysis = analysis or FaceAnalysis(face, backend.renderer.networks)
    return backend.renderer.wrong_key_latents(hidden, channel.without_watermark(face), mask, analysis)


@pytest.mark.slow
def test_a_wrong_keys_stranger_wears_no_glasses_that_nobody_wore(backend, faces, masks, monkeypatch):
    hidden = F.normalize(torch.randn(1, 448, generator=torch.Generator().manual_seed(8)), dim=1)

    def shown(bare: int) -> torch.Tensor:
        """Who is shown where all strangers but one are said to wear glasses."""
        looks = itertools.count()
        said = lambda logits, photo: torch.full_like(logits[:, 0], 9.0 * (next(looks) != bare))  # noqa: E731
        monkeypatch.setattr("anonface.backends.ifadit.renderer.new_glasses", said)
        return wrong_key_latents(backend, hidden, faces[:1], masks[:1])

    assert not torch.equal(shown(0), shown(1)) and torch.equal(shown(1), shown(1))


@pytest.mark.slow
def test_a_wrong_keys_stranger_is_of_the_seen_faces_sex_and_age(backend, faces, masks, monkeypatch):
    hidden = F.normalize(torch.randn(1, 448, generator=torch.Generator().manual_seed(8)), dim=1)

    def shown(alike: int) -> torch.Tensor:
        """Who is shown where all strangers but one are said to look otherwise than the face that is seen."""
        looks, own = itertools.count(), FaceAnalysis(faces[:1], backend.renderer.networks).seems

        def said(seems, photo, params):
            assert params.sex and params.age and torch.equal(photo, own) and not torch.equal(seems, own)
            return torch.tensor(1e5 * (next(looks) != alike))

        monkeypatch.setattr("anonface.backends.ifadit.renderer.sex_age_error", said)
        return wrong_key_latents(backend, hidden, faces[:1], masks[:1])

    assert not torch.equal(shown(0), shown(1)) and torch.equal(shown(1), shown(1))


@pytest.mark.slow
def test_behind_dark_glasses_a_wrong_keys_stranger_is_unlike_the_others(backend, faces, masks, monkeypatch):
    hidden = F.normalize(torch.randn(1, 448, generator=torch.Generator().manual_seed(8)), dim=1)
    analysis, drawn, seen = FaceAnalysis(faces[:1], backend.renderer.networks), [], []
    assert float(analysis.eyes_hidden(masks[:1])) < 0.1
    latents, encoder = backend.renderer.latents, backend.renderer.networks.encoder
    monkeypatch.setattr(backend.renderer, "latents", lambda *said: drawn.append(latents(*said)) or drawn[-1])
    monkeypatch.setattr(FaceAnalysis, "eyes_hidden", lambda self, mask: torch.tensor(1e4))
    own = analysis.code  # looked at before those that count
    hook = encoder.register_forward_hook(lambda module, given, code: seen.append(code))
    shown = wrong_key_latents(backend, hidden, faces[:1], masks[:1], analysis)
    hook.remove()
    codes = torch.cat(seen[-len(drawn) :])
    alike = F.cosine_similarity(codes, codes.mean(0, keepdim=True)) - F.cosine_similarity(codes, own)
    assert len(drawn) > 2 and int(alike.argmin()) == next(i for i, w in enumerate(drawn) if w is shown)


@pytest.mark.slow
def test_a_wrong_keys_stranger_does_not_seem_east_asian(backend, faces, masks, monkeypatch):
    hidden = F.normalize(torch.randn(1, 448, generator=torch.Generator().manual_seed(8)), dim=1)

    def shown(other: int, reading: float) -> torch.Tensor:
        """Who is shown where all strangers but one are read so."""
        looks = itertools.count()
        read = lambda codes: torch.full((1,), reading * (next(looks) != other))  # noqa: E731
        monkeypatch.setattr(backend.renderer, "networks", replace(backend.renderer.networks, ethnicity=read))
        return wrong_key_latents(backend, hidden, faces[:1], masks[:1])

    assert not torch.equal(shown(0, 99), shown(1, 99)) and torch.equal(shown(1, 99), shown(1, 99))
    assert torch.equal(shown(0, 0.4), shown(1, 0.4))  # less than tells


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


def test_the_default_is_what_the_command_calls_balanced():
    assert EFFORTS["balanced"] == IFADITSettings().refine
