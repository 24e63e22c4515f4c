"""DBAF and HFORD as backends: where weights come from, what a key means, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_editing import cell_faces, lossless

from anonface import weights
from anonface.backends import registry
from anonface.backends.generator import load_mapping
from anonface.backends.latent_editing.backend import EDITORS, ENCODER, key_vectors
from anonface.backends.registry import build
from anonface.crypto.keys import FaceKey, Key
from anonface.errors import UsageError, WeightsError
from anonface.faces import align
from anonface.faces.colour_transfer import match_tones
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_editing import LEVELS
from anonface.pipeline import Engine
from anonface.record.anf1 import decode, encode

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[3] / "examples"

pytestmark = pytest.mark.usefixtures("unsearched")


def face_key(name: str, master: int = 1) -> FaceKey:
    return Key(bytes([master]) * 32).face(bytes(16), name, 0)


@pytest.mark.parametrize("name", EDITORS)
def test_without_weights_the_remedy_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "entries", list)  # as in a version that has none
    with pytest.raises(WeightsError, match=f"no weights of its own for the {name}") as caught:
        build(name, CPU)
    assert "--model" in caught.value.hint and f"for reader, inversion and {name}" in caught.value.hint
    with pytest.raises(WeightsError, match=r"there is no folder"):
        build(name, CPU, {"model": str(tmp_path / "nowhere")})
    with pytest.raises(WeightsError, match=r"has no inversion/inversion.safetensors"):
        build(name, CPU, {"model": str(tmp_path)})
    with pytest.raises(UsageError, match="no setting 'refine'"):
        build(name, CPU, {"model": str(tmp_path), "refine": 3})


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITORS)
def test_a_training_run_can_be_named(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    editor = EDITORS[name]()
    torch.nn.init.constant_(editor.lent, 3.0)  # noise has no features: what a key shows is to be plain
    for part, network in ((ENCODER, InversionEncoder()), (name, editor)):
        (tmp_path / part).mkdir()
        state = {key: value for key, value in network.state_dict().items() if "num_batches" not in key}
        half = {key: value.half().contiguous() for key, value in state.items()}
        save_file(half, tmp_path / part / f"{part}.safetensors")
    backend = build(name, CPU, {"model": str(tmp_path)})
    assert backend.parameters() == {} and backend.under({}).digest() == backend.digest()
    faces, masks = torch.rand(1, 3, 256, 256) * 2 - 1, torch.ones(1, 1, 256, 256)
    first, other = (backend.anonymize(faces, masks, [face_key(name, master)]) for master in (1, 2))
    assert first.shape == faces.shape and first.abs().max() <= 1 and not torch.allclose(first, other, atol=0.01)
    back, false = (backend.recover(faces, masks, [face_key(name, master)]) for master in (1, 2))
    assert back.shape == faces.shape and not torch.allclose(back, false, atol=0.005)
    assert torch.equal(backend.recover(faces, masks, [face_key(name)]), back)
    (tmp_path / name / f"{name}.safetensors").write_bytes((tmp_path / ENCODER / f"{ENCODER}.safetensors").read_bytes())
    with pytest.raises(WeightsError, match="does not fit"):
        build(name, CPU, {"model": str(tmp_path)})


def test_every_level_and_backend_has_its_own_vector_by_the_labelled_derivation() -> None:
    mapping = load_mapping()
    key = face_key("dbaf")
    with torch.inference_mode():
        vectors = key_vectors(key, mapping)
        for vector, level in zip(vectors, LEVELS, strict=True):
            stream = np.frombuffer(key.stream(f"{level} key", 512), np.uint8)
            unit = torch.from_numpy(stream / 127.5 - 1)[None].float()
            torch.testing.assert_close(vector, mapping(unit)[0], atol=1e-5, rtol=1e-4)
        others = [key_vectors(face_key(*other), mapping) for other in (("hford",), ("dbaf", 2))]
    batched = torch.cat([vectors, *others])
    apart = torch.cdist(batched, batched) + 1e3 * torch.eye(9)
    assert apart.min() > 0.2 * batched.norm(dim=1).mean()


def test_a_photo_goes_through_the_pipeline_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from skimage.data import astronaut  # a public-domain portrait (Eileen Collins, NASA)

    monkeypatch.setitem(registry.BACKENDS, "hford", lambda device, settings: lossless("hford"))
    engine, photo = Engine("hford", "cpu"), np.ascontiguousarray(astronaut())
    made = engine.anonymize(photo, Key(bytes(32)), consistent=True)  # no fresh salt: the same picture every time
    header = decode(encode(made.header))
    assert header.backend == "hford"
    right, wrong = (engine.recover(made.pixels, Key(bytes([i]) * 32), header).pixels for i in (0, 1))
    changed = (made.pixels != photo).any(2)
    assert 0.01 < changed.mean() < 0.3
    hidden, back, false = (np.abs(other - photo.astype(float))[changed].mean() for other in (made.pixels, right, wrong))
    # a cell knows no detail, and on the mask's border it is half of either face
    assert back < 0.75 * min(hidden, false)


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITORS)
def test_the_shipped_networks_make_somebody_else_and_lead_back(name: str) -> None:
    """What has to be added is said by the photo; the wrong key hears nothing of it. Each key shows its own person."""
    photo = np.asarray(Image.open(EXAMPLES / "evening.jpg").convert("RGB"))
    engine = Engine(name, "cpu")
    made = engine.anonymize(photo, Key(bytes([2]) * 32), consistent=True)
    right, wrong = (engine.recover(made.pixels, Key(bytes([i]) * 32), made.header).pixels for i in (2, 1))
    where = (made.pixels != photo).any(2)
    hidden, back, false = (np.abs(other - photo.astype(float))[where].mean() for other in (made.pixels, right, wrong))
    assert 0.005 < where.mean() < 0.6 and back < 0.5 * min(hidden, false)
    box = made.header.faces[0].quad
    own, new, again = (_identity(engine, pixels, box) for pixels in (photo, made.pixels, right))
    assert float(own @ again) > 0.75 > 0.55 > float(own @ new)
    second = _identity(engine, engine.anonymize(photo, Key(bytes([1]) * 32), consistent=True).pixels, box)
    assert float(new @ second) < 0.65


def test_what_lies_beyond_the_mask_is_not_drawn_and_what_is_seen_is_the_same() -> None:
    backend = build("hford", CPU)
    z = torch.randn(1, 512, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        face = backend.networks.generator.synthesize(backend.mapping(z)[:, None], 256).clamp(-1, 1).clone()
        codes, features = backend.networks.encoder(face)
        mask = torch.zeros(1, 1, 256, 256)
        mask[:, :, 90:210, 70:186] = 1
        whole = match_tones(backend._render(codes, features, mask), face, mask).clamp(-1, 1)
    part = backend._drawn(codes, features, face, mask)
    assert ((whole - part) * mask).abs().max() < 1e-4 < (whole - part)[..., :40, :].abs().mean()


def _identity(engine: Engine, pixels: np.ndarray, quad: object) -> torch.Tensor:
    crop = align.crop(pixels, np.asarray(quad, np.float32), 256)
    with torch.inference_mode():
        return engine.backend.encoder(torch.from_numpy(crop).permute(2, 0, 1)[None] / 127.5 - 1)[0]


def test_there_is_nothing_to_set() -> None:
    backend = lossless("dbaf")
    with pytest.raises(UsageError, match="no setting 'refine'"):
        backend.under({"refine": 3})
    assert cell_faces(1).shape[-1] in backend.resolutions
