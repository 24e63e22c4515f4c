"""``anonface evaluate`` as a user types it, with colours for people."""

import json
from types import SimpleNamespace

import pytest
from colours import Colour, Perfect, Reddish, WholePictures, coloured_people

from anonface.cli import app
from anonface.cli import doctor as doctor_module
from anonface.cli import evaluate as evaluate_module
from anonface.evaluation.embedders import EMBEDDERS


class Engine(Perfect):
    device_name = "none"
    parser = "trained"
    backend = SimpleNamespace(name="perfect", parameters=lambda: {"refine": 7}, digest=lambda: b"\xab" * 32)

    def __init__(self, *_):
        super().__init__()


@pytest.fixture
def anonface(capsys, monkeypatch, tmp_path):
    """Run a command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anonface.pipeline.Engine", Engine)
    monkeypatch.setattr(doctor_module, "fetch_missing", lambda: None)
    judges = WholePictures(Colour(), [Reddish()])
    monkeypatch.setattr("anonface.evaluation.judges.Judges", lambda embedders: judges)

    def run(*args):
        capsys.readouterr()
        code = app.run([str(arg) for arg in args])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def album(tmp_path):
    (tmp_path / "album").mkdir()
    return coloured_people(tmp_path / "album")


@pytest.mark.slow
def test_a_page_and_its_numbers_are_written(anonface, album, tmp_path):
    code, out, _ = anonface("evaluate", "album", "--keys", 2, "--report", "page.html")
    assert code == 0 and "right key, after JPEG 90" in " ".join(out.split())
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count("<img ") == 8 * 4 and "abababab" in page
    data = json.loads((tmp_path / "page.json").read_text("utf-8"))
    assert data["settings"]["refine"] == 7 and data["settings"]["weights"] == "ab" * 8
    jpeg = next(rate for rate in data["rates"] if rate["title"].startswith("right key, after JPEG 90"))
    assert jpeg["at"][0]["n"] == 8  # of the first key alone
    assert anonface("evaluate", "album", "--report", "page.html")[0] == 10
    assert anonface("evaluate", "album", "--keys", 1, "--report", "page.html", "--overwrite")[0] == 0


def test_parts_and_the_whole(anonface, album, tmp_path):
    options = ("evaluate", "album", "--keys", 1, "--attacks", "none", "--journal", "run.jsonl", "--json")
    halves = [json.loads(anonface(*options, "--part", f"{k}/2")[1])["settings"]["photos judged"] for k in (1, 2)]
    whole = json.loads(anonface(*options)[1])
    assert halves == [4, 8] and whole["settings"]["of them in this run"] == 0
    assert len(whole["samples"]["anonymized"]) == 8
    code, _, err = anonface(*options, "--backend", "ifadit", "--attacks", "jpeg90")
    assert code == 2 and "another attacks" in err
    assert "recover_keys" not in (tmp_path / "run.jsonl").read_text()  # which journals of old do not know
    code, _, err = anonface(*options, "--recover-keys", 1)
    assert code == 2 and "another recover_keys" in err


def test_quick_leaves_out_what_takes_long(anonface, album, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate_module, "QUICK_PHOTOS", 6)
    code, out, _ = anonface("evaluate", "album", "--quick", "--json")
    data = json.loads(out)
    assert code == 0 and data["settings"]["photos"] == 6 and data["settings"]["keys per photo"] == 2
    counts = {name: len(rows) for name, rows in data["samples"].items()}
    assert counts["anonymized"] == 12 and counts["two keys"] == 6
    assert counts["right key, from pixels"] == counts["wrong key, random"] == counts["wrong key, one bit"] == 6
    assert not [name for name in counts if "after" in name]


def test_what_is_said_besides_quick_wins(anonface, album, monkeypatch):
    looked = []
    original = WholePictures.original
    monkeypatch.setattr(
        WholePictures, "original", lambda self, file, who: looked.append(file.name) or original(self, file, who)
    )
    options = ("--limit", 3, "--keys", 3, "--recover-keys", 2, "--attacks", "jpeg50", "--split", "odd")
    data = json.loads(anonface("evaluate", "album", "--quick", *options, "--json")[1])
    counts = {name: len(rows) for name, rows in data["samples"].items()}
    assert looked == ["10.png", "11.png", "30.png"]
    assert (counts["anonymized"], counts["wrong key, one bit"], counts["right key, after JPEG 50"]) == (9, 6, 3)
    looked.clear()
    anonface("evaluate", "album", "--keys", 1, "--limit", 3)
    assert len(looked) == 8  # thresholds and other photos come from the whole folder


def test_a_journal_that_cannot_be_is_refused_at_once(anonface, album, monkeypatch):
    monkeypatch.setattr("anonface.evaluation.judges.look_at_originals", None)
    assert anonface("evaluate", "album", "--journal", "absent/run.jsonl")[0] == 10


def test_synthetic_faces_take_the_place_of_a_folder(anonface, monkeypatch, tmp_path):
    made = []

    def draw_photos(folder, count):
        assert count == 3
        made.append(coloured_people(folder))

    monkeypatch.setattr("anonface.evaluation.synthetic.draw_photos", draw_photos)
    code, out, _ = anonface("evaluate", "--synthetic", 3, "--keys", 1, "--json")
    assert code == 0 and json.loads(out)["settings"]["folder"] == "3 synthetic faces"
    assert not made[0].exists()


def test_recognizers_are_named(anonface, album, monkeypatch):
    asked = []
    judges = WholePictures(Colour(), [Reddish()])
    monkeypatch.setattr("anonface.evaluation.judges.Judges", lambda embedders: asked.append(embedders) or judges)
    options = ("evaluate", "album", "--keys", 1, "--limit", 1, "--attacks", "none", "--json")
    for value, names in (("all", tuple(EMBEDDERS)), ("none", ()), ("facenet,sface", ("facenet", "sface"))):
        assert anonface(*options, "--recognizers", value)[0] == 0
        assert asked.pop() == names
    assert anonface(*options)[0] == 0 and asked.pop() == tuple(EMBEDDERS)
    code, _, err = anonface(*options, "--recognizers", "nobody")
    assert code == 2 and "no further recognizer 'nobody'" in err and "sface" in err
