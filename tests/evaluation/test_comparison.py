"""Several engines on the same photos: people are colours, files are real."""

import json
import math
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from colours import Colour, Outcome, Perfect, Reddish, WholePictures, coloured_people
from fake import FakeEngine

from anonface.cli import app
from anonface.cli import doctor as doctor_module
from anonface.errors import DeviceError, UsageError, WeightsError
from anonface.evaluation import comparison
from anonface.evaluation.comparison import ComparedEngine, chosen, compare
from anonface.evaluation.judges import look_at_originals
from anonface.evaluation.peers import PEERS
from anonface.evaluation.report import to_json
from anonface.evaluation.trials import Plan


class Returning:
    """A peer that returns what it was given; it has no ``recover``."""

    def anonymize(self, pixels, key, *, consistent):
        return Outcome(pixels)


class Blackening(Returning):
    """A peer that leaves nothing."""

    def anonymize(self, pixels, key, *, consistent):
        return Outcome(np.zeros_like(pixels))


class Sluggish(Returning):
    """Is slow the first time."""

    def __init__(self):
        self.seconds = 1.0

    def anonymize(self, pixels, key, *, consistent):
        time.sleep(self.seconds)
        self.seconds = 0
        return Outcome(pixels)


class Mortal(Returning):
    def anonymize(self, pixels, key, *, consistent):
        os._exit(1)


class Hiding(FakeEngine):
    """As the real engine describes itself to the command line."""

    parser, backend = "trained", SimpleNamespace(name="fake", parameters=lambda: {}, digest=lambda: b"\xab" * 32)


def weightless():
    raise WeightsError("no weights", "bring some")


def hinted():
    raise WeightsError("no weights", "name a folder with --model")


def described(engine):
    return {"kind": type(engine).__name__}


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    folder = coloured_people(tmp_path_factory.mktemp("album"))
    judges = WholePictures(Colour(), [Reddish()])
    return {"folder": folder, "judges": judges, "originals": look_at_originals(folder, judges)}


def peer(name, make):
    return ComparedEngine(name, make, described, recovers=False)


@pytest.fixture(scope="module")
def found(ground):
    """Two peers and two engines with a key; and every picture that was shown."""
    shown, steps = [], []
    engines = [
        ComparedEngine("hiding", Hiding, described, needed=True),
        ComparedEngine("perfect", Perfect, described),
        peer("returning", Returning),
        peer("blackening", Blackening),
        ComparedEngine("weightless", weightless, described),
    ]
    made = compare(
        engines,
        **ground,
        plan=Plan(2, recover_keys=1),
        limit=4,
        left_out={"lost": "never found"},
        progress=lambda *step: steps.append(step),
        show=lambda original, heading, picture: shown.append((original.file.name, heading, picture)),
    )
    return SimpleNamespace(comparison=made, rows={r.name: r for r in made.rows}, shown=shown, steps=steps)


def cells(made, row):
    """A row of all tables, by column."""
    found = {}
    for grid in comparison.grids(made)[1:5]:
        found |= dict(zip(grid.columns, next(cells for cells in grid.rows if cells[0] == row), strict=True))
    return found


@pytest.mark.slow
def test_a_peer_that_returns_its_input_is_caught(found):
    report = found.rows["returning"].report
    for title in (
        "anonymized: matched to the original",
        comparison.PLACED,
        "anonymized: matched to other photos of the person",
    ):
        assert report.rate(title).value == 1.0
    shown = cells(found.comparison, "returning")
    assert shown["matched to the original ↓"] == shown["matched where the face was ↓"] == "100 % (100 to 100)"
    assert shown["other photos matched ↓"] == "100 %" and shown["mean distance there ↑"] == "0.00"
    assert shown["PSNR, SSIM in the face"] == "100.0 dB, 1.00"


def test_the_first_call_of_a_process_is_not_counted(ground):
    made = compare([peer("sluggish", Sluggish)], **ground, plan=Plan(1), limit=1)
    assert [value < 0.9 for _, _, value in made.rows[0].report.samples["anonymize"]] == [True]


def test_a_face_that_is_gone(found):
    report = found.rows["blackening"].report
    assert report.rate("anonymized: matched to the original").value == 0
    assert report.rate("anonymized: matched, or no face found").value == 1.0
    assert report.rate(comparison.PLACED).value == 0
    shown = cells(found.comparison, "blackening")
    assert shown["matched to the original ↓"] == "0 % (0 to 0), 4 of 4 not found"
    assert shown["found again by colour ↑"] == "0 %" and shown["landmarks off by, px of 256 ↓"] == "–"


def test_a_peer_is_never_asked_to_lead_back(found):
    row, shown = found.rows["returning"], cells(found.comparison, "returning")
    assert (row.gives, row.exact, row.tried) == ("nothing", 0, 0)
    assert "recover" not in row.report.samples and len(row.report.samples["anonymized"]) == 4
    assert [shown[column] for column in shown if "key" in column] == ["–", "–"]
    assert shown["s a face to recover ↓"] == "–" and float(shown["peak memory, MB ↓"]) > 10


def test_every_call_has_its_seconds(found):
    for name, calls in (("perfect", 12), ("hiding", 12), ("returning", 0)):
        samples = found.rows[name].report.samples
        assert len(samples.get("recover", ())) == calls
        assert all(value > 0 for what in ("anonymize", "recover") for _, _, value in samples.get(what, ()))


def test_an_engine_with_a_key_is_tried_as_ever(found):
    row, shown = found.rows["perfect"], cells(found.comparison, "perfect")
    assert len(row.report.samples["anonymized"]) == 8 and len(row.report.samples["right key, from pixels"]) == 4
    assert row.report.rate("right key, from pixels: matched to the original").value == 1.0
    assert (row.gives, row.exact, row.tried) == ("person", 4, 4)
    assert shown["right key, matched ↑"] == "100 % (100 to 100)"
    assert row.about == {"kind": "Perfect"} and row.report.settings["refused by the engine"] == 0


@pytest.mark.slow
def test_what_is_missing_is_left_out_and_named(found, ground):
    assert found.comparison.left_out == {"lost": "never found", "weightless": "no weights: bring some"}
    told = compare(
        [ComparedEngine("hinted", hinted, described), peer("returning", Returning)], **ground, plan=Plan(1), limit=1
    )
    assert told.left_out == {"hinted": "no weights: name its weights with --compare-with hinted=FOLDER"}
    with pytest.raises(WeightsError, match="no weights"):
        compare([ComparedEngine("weightless", weightless, described, needed=True)], **ground, plan=Plan(1))
    alone = compare([peer("mortal", Mortal), peer("returning", Returning)], **ground, plan=Plan(1), limit=1)
    assert [row.name for row in alone.rows] == ["returning"] and "process of mortal ended" in alone.left_out["mortal"]
    with pytest.raises(DeviceError):
        compare([ComparedEngine("mortal", Mortal, described, False, needed=True)], **ground, plan=Plan(1), limit=1)


def test_what_is_told_on_the_way(found):
    assert found.steps[0] == (1, 20, "hiding") and found.steps[-1] == (16, 20, "blackening")
    first = [(heading, picture.mean()) for name, heading, picture in found.shown if name == "00.png"]
    assert [heading for heading, _ in first] == [
        "hiding",
        "hiding, recovered",
        "perfect",
        "perfect, recovered",
        "returning",
        "blackening",
    ]
    means = dict(first)
    assert means["blackening"] == 0
    assert means["returning"] == means["perfect, recovered"] == 80


def test_photos_that_cannot_be_compared(ground, tmp_path):
    engines = [peer("returning", Returning)]
    (tmp_path / "a.png").write_bytes((ground["folder"] / "00.png").read_bytes())
    with pytest.raises(UsageError, match="identities"):
        compare(engines, **ground | {"folder": tmp_path}, plan=Plan(1), split="odd")
    with pytest.raises(UsageError, match="finds no face"):
        compare(engines, **ground | {"originals": []}, plan=Plan(1))


def test_names_as_typed():
    assert chosen("all", ["dbaf"]) == dict.fromkeys(PEERS)
    assert chosen("pixelate, dbaf=weights/dbaf,hford,", ["dbaf", "hford"]) == {
        "pixelate": None,
        "dbaf": "weights/dbaf",
        "hford": None,
    }
    for wrong in ("blur", "pixelate=x", "all=x", " , ", ""):
        with pytest.raises(UsageError, match="--compare-with"):
            chosen(wrong, ["dbaf"])


def test_the_tables_and_the_numbers(found):
    grids = comparison.grids(found.comparison)
    titles = [grid.title for grid in grids]
    assert titles[0] == "Comparison" and titles[-1] == "Left out" and len(titles) == 6
    assert all(len(row) == len(grid.columns) for grid in grids for row in grid.rows)
    assert {row[0] for row in grids[1].rows} == set(found.rows)
    data = json.loads(to_json(found.comparison))
    assert [row["name"] for row in data["rows"]] == list(found.rows)
    assert data["rows"][0]["tried"] == 4 and data["left_out"]["lost"] == "never found"
    assert not math.isnan(data["rows"][0]["memory"])


@pytest.fixture
def anonface(capsys, monkeypatch, tmp_path):
    """Run a command line beside an album: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "album").mkdir()
    coloured_people(tmp_path / "album")
    monkeypatch.setattr("anonface.pipeline.Engine", Hiding)
    monkeypatch.setattr(doctor_module, "fetch_missing", lambda: None)
    monkeypatch.setattr("anonface.evaluation.judges.Judges", lambda embedders: WholePictures(Colour(), [Reddish()]))

    def run(*args):
        capsys.readouterr()
        code = app.run([str(arg) for arg in args])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.slow
def test_from_the_command_line(anonface, monkeypatch, tmp_path):
    monkeypatch.setattr("anonface.evaluation.peers.find_spec", lambda package: None)
    options = ("--keys", 1, "--limit", 2, "--report", "page.html")
    code, out, err = anonface("evaluate", "album", "--beside", "all", *options)
    assert code == 0 and "What recovery gives" in out
    assert "deface-blur is left out: deface is not installed: pip install '.[peers]'" in err
    data = json.loads((tmp_path / "page.json").read_text("utf-8"))
    names = [row["name"] for row in data["rows"]]
    assert names == ["inpaint", "pixelate"]
    assert data["rows"][0]["about"]["weights"] == "ab" * 8 and data["rows"][0]["about"]["device"].startswith("fake")
    matched = next(
        rate for rate in data["rows"][1]["report"]["rates"] if rate["title"].startswith("anonymized: matched")
    )
    assert matched["at"][0]["value"] == 1.0  # YuNet sees no face in a colour, so it comes out as it went in
    assert (tmp_path / "page.html").read_text("utf-8").count("<img ") == 2 * 4
    assert anonface("evaluate", "album", "--beside", "all", *options)[0] == 10


@pytest.mark.parametrize(
    "options",
    [
        ("--beside", "blur"),
        ("--beside", "all", "--journal", "a.jsonl"),
        ("--beside", "all", "--attacks", "jpeg90"),
        ("--beside", "all", "--journal", "a.jsonl", "--part", "1/2"),
    ],
)
def test_what_has_no_place_beside_is_refused_at_once(anonface, monkeypatch, options):
    monkeypatch.setattr("anonface.evaluation.judges.Judges", None)
    code, _, err = anonface("evaluate", "album", *options)
    assert code == 2 and "--compare-with" in err and "Traceback" not in err
