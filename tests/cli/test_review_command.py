"""``anonface review`` and ``anonymize --review``."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from fake import SIDE, FakeEngine
from PIL import Image

from anonface.cli import review as review_command
from anonface.errors import WeightsError
from anonface.faces.detect import Face

POINTS = np.array([[5, 6], [11, 6], [8, 9], [6, 12], [10, 12.0]])


class FakeDetector:
    """Sees faces where the fake engine has them, unless a picture is black there."""

    def detect(self, rgb):
        bright = rgb[: min(SIDE, len(rgb)), :SIDE]
        return [Face((0.0, 0.0, SIDE, SIDE), POINTS, 0.9)] if bright.any() else []


@pytest.fixture(autouse=True)
def fakes(room, monkeypatch):
    monkeypatch.setattr("anonface.faces.detect.build_detector", lambda name="yunet": FakeDetector())
    monkeypatch.setattr(review_command, "_recognizer", lambda: None)


def photo(name, shade=120, size=(40, 32)):
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade // 2, shade // 3)).save(file, "png")


def said_by(file):
    """The text of a page."""
    text = re.sub(r"<style>.*?</style>|<[^>]*>", " ", Path(file).read_text("utf-8"), flags=re.DOTALL)
    return " ".join(text.split()).replace(" : ", ": ")


def test_a_run_leaves_a_page_of_all_its_photos(anonface, key):
    photo("album/a.png")
    photo("album/b.png", 90)
    photo("album/black.png", 0)
    Path("album/broken.png").write_bytes(b"no photo")
    command = ["anonymize", "album", "-o", "out", "--key-file", key, "--review", "page.html", "--report", "r.json"]
    code, _, err = anonface(*command)
    assert code == 3 and "anonface: made page.html: 4 photos, 1 of them without a result, 2 faces replaced" in err
    assert "page.html shows the original faces; keep it as safe as the photos" in err
    said = said_by("page.html")
    assert "faces replaced 2" in said and "Photos in which no face was found: 1" in said
    assert "Photos without a result: 1" in said and "failed: is not an image that can be read" in said
    assert "Left out: the comparison with the originals" in said
    before = Path("page.html").read_bytes()

    code, _, err = anonface("review", "--report", "r.json", "-o", "again.html")
    assert code == 0 and said_by("again.html") == said
    code, out, _ = anonface("review", "album", "out", "-o", "third.html", "--json")
    result = json.loads(out)
    assert code == 0 and result["page"] == "third.html"
    faces = {entry["input"]: entry["faces"] for entry in result["photos"]}
    assert [face["kind"] for face in faces["album/a.png"]] == ["synth"] and faces["album/black.png"] == []
    assert "no result was found" in said_by("third.html")

    code, _, err = anonface(*command, "--resume")
    assert code == 10 and "'page.html' exists" in err and Path("page.html").read_bytes() == before
    code, _, err = anonface(*command, "--resume", "--overwrite")  # a page does not make it another run
    assert code == 3 and "written by an earlier run" in err and "2 faces replaced" in said_by("page.html")


def test_faces_left_in_the_clear_are_counted_and_shown(anonface, key, monkeypatch):
    photo("a.png")
    monkeypatch.setattr(FakeEngine, "PLACES", ((0, 0), (20, 10)))
    assert anonface("anonymize", "a.png", "--key-file", key, "--faces", "0", "--review", "page.html")[0] == 0
    said = said_by("page.html")
    assert "faces replaced 1" in said and "faces left in the clear 1" in said and "face 1: left in the clear" in said


def test_photos_passed_over_are_reviewed_with_their_results(anonface, key):
    photo("album/a.png")
    photo("album/b.png", 90)
    assert anonface("anonymize", "album/a.png", "-o", "out/", "--key-file", key)[0] == 0
    command = ["anonymize", "album", "-o", "out", "--key-file", key, "--skip-existing", "--review", "page.html"]
    assert anonface(*command)[0] == 0
    assert "photos 2 faces 2 faces replaced 2" in said_by("page.html")


def test_a_run_without_a_result_leaves_no_page(anonface, key):
    photo("black.png", 0)
    assert anonface("anonymize", "black.png", "--key-file", key, "--review", "page.html")[0] == 5
    assert not Path("page.html").exists()


@pytest.mark.parametrize("command", ["anonymize", "review"])
def test_a_page_that_cannot_be_is_refused_before_any_work(anonface, key, command, monkeypatch):
    photo("a.png")
    photo("photo.html")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    monkeypatch.setattr(review_command, "write_page", None)
    rest = ["a.png", "photo.html", "-o", "out/", "--key-file", key, "--review"]
    rest = rest if command == "anonymize" else ["a.png", "a.anon.png", "photo.html", "-o"]
    Path("there.html").write_text("mine")
    Path("file").write_text("no folder")
    Path("link.html").symlink_to("there.html")
    before = sorted(Path().rglob("*"))
    for place, code, words in [
        ("there.html", 10, "exists"),
        ("link.html", 10, "symbolic link"),
        ("photo.html", 10, "which is read here"),
        ("file/page.html", 10, "file' is not a folder"),
        ("page.png", 2, "must be a .html"),
    ]:
        got, _, err = anonface(command, *rest, place)
        assert (got, words in err) == (code, True), (place, err)
        assert "Traceback" not in err and err.count("error:") == 1
    assert anonface(command, *rest, "photo.html", "--overwrite")[0] == 10
    assert sorted(Path().rglob("*")) == before and Path("there.html").read_text() == "mine"


def test_what_does_not_go_together_is_refused(anonface, key):
    photo("a.png")
    photo("out/b.png")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    for args, code in [
        (["out", "a.anon.png"], 2),
        (["out"], 2),
        ([], 2),
        (["a.png", "--report", "r.json"], 2),
        (["--report", "r.json"], 2),
        (["nothere"], 4),
        (["a.png", "-"], 2),
        (["--report", "-"], 2),
    ]:
        got, _, err = anonface("review", *args, "-o", "page.html")
        assert got == code and "hint: " in err and not Path("page.html").exists(), (args, err)


def test_a_result_of_another_photo_is_said_and_shown(anonface, key):
    photo("album/a.png")
    photo("album/b.png", 90)
    assert anonface("anonymize", "album", "-o", "out", "--key-file", key)[0] == 0
    photo("album/b.png", 90, (64, 64))
    code, _, err = anonface("review", "album", "out", "-o", "page.html")
    assert code == 3 and "its result 'out/b.anon.png' is 40x32 px, the photo 64x64" in err
    assert "not reviewed: its result" in said_by("page.html")


def test_results_without_a_photo_are_named(anonface, key):
    photo("album/a.png")
    photo("album/b.png", 90)
    assert anonface("anonymize", "album", "-o", "out", "--key-file", key)[0] == 0
    Path("album/b.png").unlink()
    code, _, err = anonface("review", "album", "out", "-o", "page.html")
    assert code == 0 and "note: 1 result without a photo: out/b.anon.png" in err


def test_without_the_detector_s_weights_a_report_is_enough(anonface, key, monkeypatch):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "--report", "r.json")[0] == 0

    def missing(name="yunet"):
        raise WeightsError("no weights", "get them")

    monkeypatch.setattr("anonface.faces.detect.build_detector", missing)
    assert anonface("review", "--report", "r.json", "-o", "page.html")[0] == 0
    assert "Left out: both checks" in said_by("page.html")
    assert anonface("review", "a.png", "a.anon.png", "-o", "other.html")[0] == 9
    assert not Path("other.html").exists()


def test_a_recognizer_that_cannot_be_had_is_left_out(monkeypatch):
    monkeypatch.undo()

    def fails():
        raise WeightsError("missing")

    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    monkeypatch.setattr("anonface.faces.sface.SFace", fails)
    monkeypatch.setattr("anonface.weights.status", lambda names: [type("Status", (), {"state": "ready"})()])
    assert review_command._recognizer() is None
    monkeypatch.setattr("anonface.faces.sface.SFace", lambda: "sface")
    assert review_command._recognizer() == "sface"


def test_an_interrupt_leaves_no_page(anonface, key, monkeypatch):
    photo("album/a.png")
    photo("album/b.png", 90)

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("anonface.review.checks.check", interrupted)
    code, _, err = anonface("anonymize", "album", "-o", "out", "--key-file", key, "--review", "page.html")
    assert code == 130 and "Traceback" not in err
    assert not Path("page.html").exists() and not list(Path().glob(".anonface-*.tmp"))
    assert Path("out/b.anon.png").exists()
