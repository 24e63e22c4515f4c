"""--faces-out, --check and --keep-regions, with an engine that costs nothing (fake.py)."""

import json
from pathlib import Path

import numpy as np
import pytest
from fake import SIDE
from PIL import Image

from anonface.cli.options import REGIONS
from anonface.faces import regions

pytestmark = pytest.mark.usefixtures("room")


def photo(name, shade=120):
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 32), (shade, shade // 2, shade // 3)).save(file)


def report(out):
    return json.loads(out)["photos"]


def test_masks_and_landmarks_of_each_photo(anonface, key):
    photo("data/train/a.png")
    photo("data/val/b.png")
    args = ("anonymize", "data", "-r", "-o", "out", "--key-file", key, "--faces-out", "faces")
    code, out, err = anonface(*args, "--json")
    assert code == 0, err
    assert report(out)[0]["face_files"] == ["faces/train/a.anon.faces.png", "faces/train/a.anon.faces.json"]
    with Image.open("faces/train/a.anon.faces.png") as image:
        mask = np.asarray(image)
    changed = (np.asarray(Image.open("out/train/a.anon.png")) != np.asarray(Image.open("data/train/a.png"))).any(2)
    assert mask.dtype == np.uint8 and set(np.unique(mask)) == {0, 1} and (mask == 1).sum() == SIDE * SIDE
    assert not changed[mask == 0].any()
    told = json.loads(Path("faces/val/b.anon.faces.json").read_text())
    assert (told["photo"], told["picture"], told["width"], told["height"]) == ("b.png", "b.anon.png", 40, 32)
    assert told["mask"] == "b.anon.faces.png" and len(told["faces"]) == 1
    assert told["faces"][0]["mask_value"] == 1 and len(told["faces"][0]["landmarks"]) == 468

    code, _, err = anonface(*args, "--overwrite")
    assert code == 0
    Path("out/train/a.anon.png").unlink()
    Path("out/val/b.anon.png").unlink()
    code, _, err = anonface(*args)
    assert code == 3 and "exists" in err and not Path("out/train/a.anon.png").exists()


def test_files_of_faces_are_no_photos(anonface, key):
    photo("data/a.png")
    for _ in range(2):
        assert anonface("anonymize", "data", "--key-file", key, "--faces-out", "data", "--overwrite")[0] == 0
    assert sorted(file.name for file in Path("data").iterdir()) == [
        "a.anon.faces.json",
        "a.anon.faces.png",
        "a.anon.png",
        "a.png",
    ]
    assert anonface("recover", "data", "--key-file", key)[0] == 0
    assert Path("data/a.recovered.png").read_bytes() == Path("data/a.png").read_bytes()


def test_a_run_with_files_of_faces_is_resumed(anonface, key):
    photo("data/a.png")
    photo("data/b.png", shade=0)
    args = ("anonymize", "data", "-o", "out", "--key-file", key, "--faces-out", "faces", "--sidecar", "records")
    assert anonface(*args)[0] == 3
    photo("data/b.png")
    code, out, err = anonface(*args, "--resume", "--json", "--check")
    assert code == 2 and "--check" in err  # not the same run
    code, out, err = anonface(*args, "--resume", "--json")
    assert code == 0, err
    assert [entry["resumed"] for entry in report(out)] == [True, False]
    assert report(out)[0]["faces"][0]["found_before"] is True
    assert Path("faces/b.anon.faces.png").exists()


def test_checks_are_in_the_report(anonface, key):
    photo("a.png")
    code, out, _ = anonface("anonymize", "a.png", "--key-file", key, "--report", "r.json", "--box", "1,2,8,8", "--json")
    assert code == 0
    face, covered = report(out)[0]["faces"]
    assert face == {
        **{"index": 0, "kind": "synth", "reason": "", "box": [0, 0, 16, 16], "found_before": True},
        **{"found_after": None, "matched": None, "similarity": None, "covered": False, "left": False},
    }
    assert covered["covered"] and not covered["left"]
    assert json.loads(Path("r.json").read_text())["photos"] == report(out)
    code, out, _ = anonface("anonymize", "a.png", "--key-file", key, "-o", "b.png", "--check", "--json")
    assert code == 0 and report(out)[0]["faces"][0]["found_after"] is True
    assert report(out)[0]["faces"][0]["matched"] is False and report(out)[0]["faces"][0]["similarity"] == 0.25
    code, out, _ = anonface("recover", "b.png", "-o", "c.png", "--key-file", key, "--json")
    assert code == 0 and "found_before" not in report(out)[0]["faces"][0]


def test_the_record_says_which_regions_stay(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "--keep-regions", "mouth, eyes")[0] == 0
    assert json.loads(anonface("inspect", "a.anon.png", "--json")[1])["parameters"]["regions"] == "eyes,mouth"


@pytest.mark.parametrize("text", ["ears", "", "eyes,ears", ","])
def test_other_regions_are_refused(anonface, key, text):
    photo("a.png")
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--keep-regions", text)
    assert code == 2 and "eyes, brows, nose, mouth" in err and not Path("a.anon.png").exists()


def test_regions_need_a_record(anonface, key):
    photo("a.png")
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--keep-regions", "eyes", "--stateless")
    assert code == 2 and "--stateless stores none" in err and not Path("a.anon.png").exists()
    assert tuple(regions.PARTS) == REGIONS
