"""What earlier versions wrote is opened by this one; each folder of tests/fixtures holds one version's files."""

import hashlib
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from anonface import Engine, Key, recover, weights
from anonface.batch.journal import journal_path
from anonface.faces import align

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = sorted(folder.name for folder in FIXTURES.glob("version-*"))
ORIGINAL = Path(__file__).parents[1] / "examples" / "small.jpg"
JOURNALS = {"version-6": ".anonface-b950136c74686568.journal"}  # as it was called in /tmp/photos/out

pytestmark = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(scope="module")
def engine():
    return Engine("ifadit", "cpu")


@pytest.fixture(scope="module")
def likeness(engine):
    """The cosine between pictures and the original in the eyes of a recognizer, the face being where it was."""
    with Image.open(ORIGINAL) as picture:
        original = np.asarray(picture.convert("RGB"))
    network = cv2.dnn.readNetFromONNX(str(weights.pull(["arcface-mobile"])[0]))
    points = engine.detector.detect(original)[0].points.astype(float)
    matrix = np.asarray(align.similarity(points, align.ARCFACE_POINTS), float)

    def embedding(pixels):
        face = cv2.warpAffine(np.ascontiguousarray(pixels), matrix, (112, 112))
        network.setInput(cv2.dnn.blobFromImage(face, 1 / 127.5, (112, 112), (127.5,) * 3))
        vector = network.forward()[0].copy()
        return vector / np.linalg.norm(vector)

    return lambda pixels: float(embedding(original) @ embedding(pixels))


def test_an_encrypted_original_comes_back(version):
    folder = FIXTURES / version
    key = Key.from_file(folder / "test.key")
    for photo, sidecar in (("sealed.anon.png", None), ("sidecar.jpg", folder / "sidecar.jpg.anf")):
        back = recover(folder / photo, key, sidecar=sidecar)
        assert back.verified == "yes" and back.original == ORIGINAL.read_bytes()


@pytest.mark.parametrize(
    ("photo", "options"),
    [
        ("unsealed.png", {}),
        ("stateless.png", {"stateless": True}),
        ("sidecar.jpg", {"sidecar": "sidecar.jpg.anf", "unsealed": True}),
    ],
)
def test_the_networks_recover_the_person(version, photo, options, engine, likeness):
    folder = FIXTURES / version
    if "sidecar" in options:
        options = {**options, "sidecar": folder / options["sidecar"]}
    back = recover(folder / photo, Key.from_file(folder / "test.key"), engine=engine, **options)
    with Image.open(folder / photo) as picture:
        anonymized = likeness(np.asarray(picture.convert("RGB")))
    assert likeness(back.pixels) > max(0.5, anonymized + 0.2)


def test_a_wrong_key_shows_another_face(version, engine, likeness):
    """Of one photo alone: without the right key the search for the watermark takes seconds."""
    wrong = Key.from_bytes(hashlib.sha256(b"wrong").digest())
    assert likeness(recover(FIXTURES / version / "unsealed.png", wrong, engine=engine).pixels) < 0.3


def test_a_run_is_resumed(version, anonface, room):
    folder = FIXTURES / version
    command = {"command": "anonymize", "folder": "/tmp/photos", "paths": ["album"], "output": "out"}
    assert journal_path(Path("out"), command).name == JOURNALS[version]
    for name in ("album", "out"):
        Path(name).mkdir()
    for name in ("sealed.jpg", "second.png"):
        Image.open(ORIGINAL).save(f"album/{name}")
    shutil.copy(folder / "sealed.anon.png", "out")
    journal = journal_path(Path("out"), {**command, "folder": str(room)})
    journal.write_text((folder / "run.journal").read_text().replace("{folder}", str(room)))
    args = ("anonymize", "album", "-o", "out", "--backend", "ifadit", "--resume", "--json")
    code, out, err = anonface(*args, "--key-file", folder / "test.key")
    assert code == 0, err
    photos = json.loads(out)["photos"]
    assert [(photo["resumed"], photo["state"]) for photo in photos] == [(True, "done"), (False, "done")]
    assert not journal.exists()


def test_an_option_that_an_earlier_version_did_not_have(version, anonface, key, room):
    """A journal without it is resumed while the option has its default."""
    Path("album").mkdir()
    for name in ("first.png", "second.png"):
        Image.open(ORIGINAL).save(f"album/{name}")
    Path("album/third.png").write_text("not a photo")
    args = ("anonymize", "album", "-o", "out", "--key-file", key)
    assert anonface(*args)[0] == 3
    (journal,) = Path("out").glob(".*.journal")
    terms, *entries = journal.read_text().splitlines()
    settings = json.loads(terms)["terms"]["settings"]
    for name in ("keep_metadata", "backend"):
        del settings[name]
    new = json.dumps({"terms": {**json.loads(terms)["terms"], "settings": settings}})
    journal.write_text("\n".join([new, *entries, ""]))
    assert anonface(*args, "--resume", "--keep-metadata")[0] == 2
    code, out, _ = anonface(*args, "--resume", "--json")
    assert code == 3 and [photo["resumed"] for photo in json.loads(out)["photos"]] == [True, True, False]
