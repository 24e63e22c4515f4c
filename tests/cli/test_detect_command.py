"""``anonface detect``: the numbers that every command uses."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anonface import detect
from anonface.errors import ImageError

pytestmark = pytest.mark.usefixtures("room")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def pair() -> Path:
    """Two synthetic faces side by side; the right one is so small that it can only be covered."""
    canvas = np.full((300, 420, 3), 128, np.uint8)
    for name, side, left, top in (("large.jpg", 256, 10, 20), ("small.jpg", 56, 330, 100)):
        with Image.open(EXAMPLES / name) as picture:
            canvas[top : top + side, left : left + side] = np.asarray(picture.convert("RGB").resize((side, side)))
    Image.fromarray(canvas).save("pair.png")
    return Path("pair.png")


def test_faces_are_numbered_and_drawn_and_the_photo_stays(anonface, pair):
    before = pair.read_bytes()
    code, out, _ = anonface("detect", "pair.png", "-o", "boxes.png", "--coco", "faces.json")
    assert code == 0 and pair.read_bytes() == before
    head, first, second = out.splitlines()
    assert head == "pair.png: 2 faces" and first.split()[0] == "0" and second.split()[0] == "1"
    assert "mosaic" not in first and "would be covered by a mosaic: too small" in second
    drawn, plain = (np.asarray(Image.open(file).convert("RGB")) for file in ("boxes.png", "pair.png"))
    assert drawn.shape == plain.shape and 0 < (drawn != plain).any(2).mean() < 0.1
    found = json.loads(Path("faces.json").read_bytes())
    assert [image["file_name"] for image in found["images"]] == ["pair.png"]
    assert [len(face["keypoints"]) for face in found["annotations"]] == [15, 15]


def test_json_agrees_with_the_library(anonface, pair):
    code, out, _ = anonface("detect", "pair.png", "--json")
    said = json.loads(out)
    assert code == said["exit"] == 0
    faces = detect(pair)
    assert [face["index"] for face in said["photos"][0]["faces"]] == [face.index for face in faces] == [0, 1]
    assert [face["replaced"] for face in said["photos"][0]["faces"]] == [True, False]
    assert faces[1].obstacle and faces[0].obstacle is None


def test_a_photo_that_cannot_be_read_does_not_stop_the_others(anonface, pair):
    Path("broken.png").write_bytes(b"no picture")
    Image.new("RGB", (64, 64)).save("empty.png")
    code, out, err = anonface("detect", ".", "-o", "boxes")
    assert code == 3 and "broken.png: failed" in err
    assert "empty.png: 0 faces" in out
    assert sorted(file.name for file in Path("boxes").iterdir()) == ["empty.png.boxes.png", "pair.png.boxes.png"]
    assert anonface("detect", "broken.png")[0] == ImageError.exit_code


def test_nothing_is_written_over(anonface, pair):
    before = pair.read_bytes()
    for option in ("-o", "--coco"):
        assert anonface("detect", "pair.png", option, "pair.png", "--overwrite")[0] == 10
        Path("there.png").write_bytes(b"mine")
        assert anonface("detect", "pair.png", option, "there.png")[0] == 10
        assert pair.read_bytes() == before and Path("there.png").read_bytes() == b"mine"
    assert anonface("detect", "pair.png", "-o", "boxes.jpg")[0] == 2


def test_a_dry_run_says_what_a_run_would_do_and_writes_nothing(anonface, pair):
    Path("pair.anon.png").write_bytes(b"mine")
    Image.new("RGB", (64, 64)).save("empty.png")
    before = sorted(Path().iterdir())
    code, out, err = anonface("anonymize", "pair.png", "--dry-run")
    assert code == 10 and "pair.png: refused: 'pair.anon.png' exists" in out and "exists" in err
    code, out, _ = anonface("anonymize", "pair.png", "empty.png", "-o", "out", "--sidecar", "out", "--dry-run")
    assert code == 3 and "empty.png: would fail: no face was found" in out
    assert "pair.png -> out/pair.anon.png: 2 faces of 2 would be changed" in out
    assert "the record would be written to out/pair.anon.png.anf" in out
    code, out, _ = anonface("anonymize", "pair.png", "-o", "new.png", "--faces", "1", "--dry-run", "--json")
    (photo,) = json.loads(out)["photos"]
    assert code == 0 and photo["output"] == "new.png" and [face["changed"] for face in photo["faces"]] == [False, True]
    assert anonface("anonymize", "pair.png", "-o", "new.png", "--faces", "2", "--dry-run")[0] == 2
    assert anonface("anonymize", "empty.png", "--no-face", "skip", "--dry-run")[0] == 0
    assert sorted(Path().iterdir()) == before


def test_a_face_that_was_missed_is_named_by_a_box(anonface, pair):
    code, out, _ = anonface("detect", "pair.png", "--box", "200,30,60,80", "-o", "boxes.png", "--json")
    faces = json.loads(out)["photos"][0]["faces"]
    assert code == 0 and [200.0, 30.0, 60.0, 80.0] in [face["box"] for face in faces] and len(faces) == 3
    Image.new("RGB", (64, 64)).save("empty.png")
    assert anonface("detect", "pair.png", "empty.png", "--box", "2,3,6,8")[0] == 2
    code, _, err = anonface("detect", "pair.png", "--box", "500,30,60,80.5")
    assert code == 2 and "the box 500,30,60,80.5 does not lie in the photo of 420 x 300 px" in err


def test_all_faces_but_some(anonface, pair):
    def changed(faces):
        code, out, err = anonface("anonymize", "pair.png", "--faces", faces, "--dry-run", "--json")
        return code, [face["changed"] for face in json.loads(out)["photos"][0].get("faces", [])] if not code else err

    assert changed("all-0") == (0, [False, True]) and changed("all-1") == (0, [True, False])
    assert changed("all-0,1") == (0, [False, False])
    code, err = changed("all-2")
    assert code == 2 and "there is no face 2: the photo has 2, counted from 0" in err
    for text in ("all-", "all--1", "all-x", "1-3"):
        code, err = changed(text)
        assert code == 2 and "hint: for example 0,2, or all-1 for all but face 1" in err
