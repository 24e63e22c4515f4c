"""``anonface audit`` as a user types it, with patterns for people and the real file format."""

import json
from types import SimpleNamespace

import patterns
import pytest
from colours import WholePictures
from fake import FakeEngine

from anonface.cli import app
from anonface.cli import doctor as doctor_module
from anonface.evaluation.audit.model import Model

SMALL = ("--photos", 4, "--candidates", 3, "--guesses", 20)
BACKEND = SimpleNamespace(name="fake", parameters=lambda: {"refine": 7}, digest=lambda: b"\xab" * 32)


class Painter(FakeEngine):
    backend, parser = BACKEND, "trained"


class Mirror(patterns.ReturnsItsInput):
    backend, parser, device_name = BACKEND, "trained", "none"

    def __init__(self, *_):
        super().__init__()


@pytest.fixture
def audit(capsys, monkeypatch, tmp_path):
    """Audit an engine in a folder with an album: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "album").mkdir()
    patterns.album(tmp_path / "album", people=10, photos=2)
    monkeypatch.setattr(doctor_module, "fetch_missing", lambda: None)
    monkeypatch.setattr("anonface.evaluation.judges.Judges", lambda: WholePictures(patterns.Patterns(), []))
    monkeypatch.setattr("anonface.evaluation.audit.model.of", lambda engine: Model(patterns.embedded))

    def run(engine, *args):
        monkeypatch.setattr("anonface.pipeline.Engine", engine)
        capsys.readouterr()
        code = app.run(["audit", "album", *map(str, SMALL), *map(str, args)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_real_format_withstands(audit, tmp_path):
    code, out, err = audit(Painter, "--attacks", "tampering,metadata,key-guessing", "--json", "--report", "a.json")
    found = json.loads(out)
    measures = {m["measure"]: m["passed"] for attack in found["attacks"] for m in attack["findings"]}
    assert len(measures) == 7
    files = {m: passed for m, passed in measures.items() if "photo" in m or "record" in m or "marks" in m}
    assert len(files) == 5 and all(files.values()), files
    assert "key-guessing" in err and found["settings"]["weights"] == "ab" * 8
    assert code == (3 if found["broken"] else 0)
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "album"]


def test_an_attack_that_succeeds_is_an_exit_code(audit):
    code, out, err = audit(Mirror, "--attacks", "viewer,parrot")
    assert code == 3 and out == "" and "BROKEN" in err and "viewer" in err


def test_an_attack_that_cannot_be_tried_is_said(audit):
    code, out, _ = audit(Painter, "--attacks", "candidates,attributes", "--json")
    found = json.loads(out)
    assert code == 0 and [attack["findings"][0]["passed"] for attack in found["attacks"]] == [None, None]
    assert all(attack["findings"][0]["detail"] for attack in found["attacks"])


def test_the_seed_decides(audit):
    def attacked(*args):
        return json.loads(audit(Mirror, "--attacks", "viewer", "--json", *args)[1])["settings"]["set of photos"]

    assert attacked() == attacked("--seed", 1) != attacked("--seed", 2)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--attacks", "voodoo"), 2, "there is no attack 'voodoo'"),
        (("--attacks", "none"), 2, "names none"),
        (("--report", "absent/a.json"), 10, "absent"),
        (("--photos", "0"), 2, "--photos"),
    ],
)
def test_refused_before_anything_is_done(audit, args, code, message):
    def never(*_):
        raise AssertionError

    refused, out, err = audit(never, *args)
    assert (refused, out) == (code, "") and message in err and "Traceback" not in err


def test_no_folder(audit, tmp_path):
    (tmp_path / "album" / "identities.csv").unlink()
    for file in (tmp_path / "album").iterdir():
        file.unlink()
    assert audit(Mirror)[0] == 2
    (tmp_path / "album").rmdir()
    code, _, err = audit(Mirror)
    assert code == 2 and "not a folder" in err
