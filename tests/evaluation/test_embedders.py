import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance_recipe import Layout
from PIL import Image
from skimage import data

from anonface import weights
from anonface.errors import UsageError, WeightsError
from anonface.evaluation import embedders
from anonface.evaluation.choices import chosen
from anonface.evaluation.embedders import EMBEDDERS, available, load
from anonface.evaluation.judges import Judges
from anonface.faces import align, sface
from anonface.models.adaface import IR_50, IR_101, AdaFaceParams
from anonface.models.facenet import FaceNet

EXAMPLES = Path(__file__).parents[2] / "examples"
FETCHED = ("sface", "edgeface")


@pytest.fixture(scope="module")
def judges():
    return Judges(embedders=FETCHED)


@pytest.fixture(scope="module")
def faces(judges):
    """One woman, the same photo darker and smaller, and three faces of nobody."""
    photo = Image.fromarray(data.astronaut()[:240, 90:330])
    worse = Image.fromarray((np.asarray(photo.resize((180, 180))) * 0.7).astype(np.uint8))
    others = (Image.open(EXAMPLES / name).convert("RGB") for name in ("call.jpg", "evening.jpg", "small.jpg"))
    found = []
    for picture in (photo, worse, *others):
        rgb = np.asarray(picture)
        face = max(judges._yunet.detect(rgb), key=lambda face: face.box[2])
        found.append(judges.aligned(rgb, np.array(face.box)))
    return found


@pytest.mark.slow
def test_those_of_the_registry_recognise(judges, faces):
    assert [embedder.name for embedder in judges.embedders] == list(FETCHED)
    assert not set(FETCHED) & set(judges.absent)
    widths = {}
    for name, seen in zip(
        FETCHED, zip(*(judges.embeddings(face).values() for face in faces), strict=True), strict=True
    ):
        assert all(np.linalg.norm(e) == pytest.approx(1) for e in seen)
        widths[name] = seen[0].shape
        same, *others = (np.linalg.norm(seen[0] - e) for e in seen[1:])
        assert same < 0.75 * min(others), name
    assert [width for (width,) in widths.values()] == [128, 512]


def test_the_published_limit_of_sface_tells_these_apart(judges, faces):
    embedder = judges.embedders[0]
    ((_, limit),) = embedder.limits
    first, *rest = (embedder.embed(face.crop, face.mesh) for face in faces)
    assert [bool(np.linalg.norm(first - e) < limit) for e in rest] == [True, False, False, False]


def test_no_recognizer_was_in_a_loss():
    package = Path(embedders.__file__).parents[1]
    # backends of the authors' networks look through recognizers too, and have no loss
    files = [file.read_text("utf-8") for file in (*package.glob("training/*.py"), package / "faces" / "analysis.py")]
    assert not {name for name in EMBEDDERS if any(f'"{name}"' in text for text in files)}


def test_the_five_points_land_where_they_belong(faces):
    crop = np.zeros((256, 256, 3), np.uint8)
    mesh = faces[0].mesh
    points = align.five_points(mesh)
    matrix = align.similarity(points, align.ARCFACE_POINTS)
    assert np.abs(align.transform(matrix, points) - align.ARCFACE_POINTS).max() < 7  # she laughs
    assert matrix[0, 0] == matrix[1, 1] and matrix[0, 1] == -matrix[1, 0]
    shifted = align.similarity(points, points * 2 + 5)
    np.testing.assert_allclose(shifted, [[2, 0, 5], [0, 2, 5]], atol=1e-9)
    x, y = (int(v) for v in points[2])
    crop[y - 6 : y + 7, x - 6 : x + 7] = 255
    small = sface.five_point_face(crop, mesh)
    rows, columns, _ = np.nonzero(small > 128)
    expected = align.transform(matrix, np.array([[x + 0.5, y + 0.5]]))[0]
    assert small.shape == (112, 112, 3) and (columns.mean() + 0.5, rows.mean() + 0.5) == pytest.approx(
        expected, abs=0.7
    )


def test_other_cuts(faces):
    crop, mesh = faces[0].crop, faces[0].mesh
    assert embedders.mtcnn_face(crop, mesh).shape == (160, 160, 3)
    beyond = mesh + 90  # a face that its crop cuts off
    assert embedders.mtcnn_face(crop, beyond).shape == (160, 160, 3)


def of_layout(name):
    return lambda: Layout(name).values()


def with_head(name):
    return lambda: (
        {f"model.{key}": value for key, value in Layout(name).values().items()}
        | {"head.kernel": torch.zeros(512, 9), "head.t": torch.zeros(1)}
    )


def with_logits():
    return Layout("facenet").values() | {"logits.weight": torch.zeros(9, 512), "logits.bias": torch.zeros(9)}


PUBLISHED = {
    "ir-se50": of_layout("facexlib_arcface"),
    "facexlib-arcface": of_layout("facexlib_arcface"),
    "adaface-ir50": with_head("adaface_ir50"),
    "facenet": with_logits,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_load_strictly(name, faces, monkeypatch):
    state = PUBLISHED[name]()
    for home in ("anonface.weights", "anonface.weights.loading"):
        monkeypatch.setattr(f"{home}.tensors", lambda asked: state if asked == name else {})
    monkeypatch.setattr(weights, "digest", lambda _: "0123456789abcdef" * 4)
    embedder = load(name)
    assert embedder.name == name and embedder.digest == "0123456789abcdef"
    first, second = (embedder.embed(face.crop, face.mesh) for face in faces[1:3])
    assert first.shape == (512,) and np.linalg.norm(first) == pytest.approx(1)
    assert np.linalg.norm(first - second) > 1e-3
    state["stranger"] = torch.zeros(1)
    with pytest.raises(WeightsError, match="unexpected: stranger"):
        load(name)
    del state["stranger"]
    del state[next(key for key in state if key.endswith("running_mean"))]
    with pytest.raises(WeightsError, match="1 missing"):
        load(name)


def test_the_deeper_adaface_has_its_own_row(monkeypatch):
    asked = []
    monkeypatch.setattr(embedders, "AdaFaceParams", lambda stages: asked.append(stages) or AdaFaceParams(stages))
    for name in ("adaface", "adaface-ir50"):
        with pytest.raises(WeightsError):
            load(name)
    assert asked == [IR_101, IR_50]


def test_what_authors_trained_against_is_seen_by_their_backends(monkeypatch):
    monkeypatch.setattr(weights, "load", lambda *_: None)
    monkeypatch.setattr(weights, "digest", lambda _: "")
    arcface = load("ir-se50")
    assert not arcface.seen("ifadit") and not arcface.seen(None) and arcface.seen("ifadit-official")


def test_what_cannot_be_had_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    (tmp_path / weights.entry("ir-se50").file).write_bytes(b"junk")
    found, absent = available(tuple(EMBEDDERS))
    assert found == []
    assert [name.split()[0] for name in absent] == list(EMBEDDERS)
    assert [name for name in absent if " " in name] == [
        "ir-se50 (weights 'ir-se50' (model_ir_se50.pth) are refused: no sha256 is known for them)"
    ]


def test_without_facexlib_its_network_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "facexlib.recognition.arcface_arch", None)
    assert available(("facexlib-arcface",)) == ([], ["facexlib-arcface"])


def test_names():
    assert chosen("all", EMBEDDERS, "recognizer") == tuple(EMBEDDERS)
    assert chosen("none", EMBEDDERS, "recognizer") == chosen("", EMBEDDERS, "recognizer") == ()
    assert chosen(" sface,facenet, sface ", EMBEDDERS, "recognizer") == ("sface", "facenet")
    for wrong in ("dlib", "sface,none"):
        with pytest.raises(UsageError, match="no recognizer") as caught:
            chosen(wrong, EMBEDDERS, "recognizer")
        assert "facenet" in caught.value.hint


def test_pixels_enter_facenet_as_its_package_has_them():
    seen = []

    class Spy(FaceNet):
        def forward(self, faces):
            seen.append(faces)
            return torch.ones(1, 2)

    embedders._in_torch(Spy(), scale=128)(np.full((4, 4, 3), 255, np.uint8))
    assert seen[0].shape == (1, 3, 4, 4) and float(seen[0].max()) == pytest.approx(127.5 / 128)
