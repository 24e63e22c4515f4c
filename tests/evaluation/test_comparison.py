"""Several engines on the same photos: people are colours, files are real."""

import json
import math
import os
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from colours import Colour, Outcome, Perfect, Reddish, WholePictures, coloured_people
from fake import FakeEngine
from test_page import Reader

from anonface import api
from anonface.cli import app
from anonface.cli import doctor as doctor_module
from anonface.errors import DeviceError, UsageError, WeightsError
from anonface.evaluation import comparison_tables
from anonface.evaluation.comparison import PLACED, TIERS, ComparedEngine, chosen, compare, to_json
from anonface.evaluation.judges import look_at_originals
from anonface.evaluation.peers import PEERS
from anonface.evaluation.published import FIGURES, PAPERS
from anonface.evaluation.trials import Plan


class Placing(Colour):
    """Finds no face where the first pixel is black; but also looks where it is told, which is the whole photo."""

    def look(self, rgb, near=None):
        return super().look(rgb, near) if rgb[0, 0].any() else None

    def at(self, rgb, box):
        return SimpleNamespace(embedding=rgb.mean((0, 1)) / 255)


class Returning:
    """A peer that returns what it was given; it has no ``recover``."""

    def anonymize(self, pixels, key, *, consistent):
        return Outcome(pixels)


class Blackening(Returning):
    """A peer that leaves nothing."""

    def anonymize(self, pixels, key, *, consistent):
        return Outcome(np.zeros_like(pixels))


class Dotting(Returning):
    """A peer that only misleads whoever looks for a face."""

    def anonymize(self, pixels, key, *, consistent):
        dotted = pixels.copy()
        dotted[0, 0] = 0
        return Outcome(dotted)


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
    judges = WholePictures(Placing(), [Reddish()])
    return {"folder": folder, "judges": judges, "originals": look_at_originals(folder, judges)}


def peer(name, make):
    return ComparedEngine(name, make, described, recovers=False)


@pytest.fixture(scope="module")
def found(ground):
    """Two peers, one engine with a key, and one that files can be made with; and every picture that was shown."""
    shown, steps = [], []
    engines = [
        ComparedEngine("hiding", Hiding, described, tiers=TIERS, needed=True),
        ComparedEngine("perfect", Perfect, described),
        peer("returning", Returning),
        peer("blackening", Blackening),
        ComparedEngine("weightless", weightless, described),
    ]
    comparison = compare(
        engines,
        **ground,
        plan=Plan(2, recover_keys=1),
        limit=4,
        files=api,
        left_out={"lost": "never found"},
        progress=lambda *step: steps.append(step),
        show=lambda original, heading, picture: shown.append((original.file.name, heading, picture)),
    )
    return SimpleNamespace(comparison=comparison, rows={r.name: r for r in comparison.rows}, shown=shown, steps=steps)


def cells(comparison, row):
    """A row of the one wide table, by column."""
    grid = next(grid for grid in comparison_tables.grids(comparison) if grid.title == comparison_tables.TITLE)
    return dict(zip(grid.columns, next(cells for cells in grid.rows if cells[0] == row), strict=True))


@pytest.mark.slow
def test_a_peer_that_returns_its_input_is_caught(found):
    report = found.rows["returning"].report
    for title in ("anonymized: matched to the original", PLACED, "anonymized: matched to other photos of the person"):
        assert report.rate(title).value == 1.0
    shown = cells(found.comparison, "returning")
    assert shown["matched to the original ↓"] == shown["matched where the face was ↓"] == "100 % (100 to 100)"
    assert shown["other photos matched ↓"] == "100 %" and shown["mean distance there ↑"] == "0.00"
    assert shown["PSNR, SSIM in the face"] == "100.0 dB, 1.00"


def test_who_only_hides_from_the_detector_is_caught(ground):
    made = compare([peer("dotting", Dotting)], **ground, plan=Plan(1), limit=4)
    report = made.rows[0].report
    assert report.rate("anonymized: matched to the original").value == 0 and report.rate(PLACED).value == 1.0
    assert cells(made, "dotting")["matched where the face was ↓"] == "100 % (100 to 100)"


def test_the_first_call_of_a_process_is_not_counted(ground):
    made = compare([peer("sluggish", Sluggish)], **ground, plan=Plan(1), limit=1)
    assert [value < 0.9 for _, _, value in made.rows[0].report.samples["anonymize"]] == [True]


def test_a_face_that_is_gone(found):
    report = found.rows["blackening"].report
    assert report.rate("anonymized: matched to the original").value == 0
    assert report.rate("anonymized: matched, or no face found").value == 1.0
    assert report.rate(PLACED).value == 0
    shown = cells(found.comparison, "blackening")
    assert shown["matched to the original ↓"] == "0 % (0 to 0), 4 of 4 not found"
    assert shown["found again by colour ↑"] == "0 %" and shown["landmarks off by, px of 256 ↓"] == "–"


def test_a_peer_is_never_asked_to_lead_back(found):
    row, shown = found.rows["returning"], cells(found.comparison, "returning")
    assert (row.gives, row.exact, row.tried) == ("nothing", 0, 0)
    assert "recover" not in row.report.samples and len(row.report.samples["anonymized"]) == 4
    assert [shown[column] for column in shown if "key" in column] == ["–", "–", "nothing"]
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
    assert shown["the right key brings back"] == "the person, 4 of 4"
    assert row.about == {"kind": "Perfect"} and row.report.settings == {"refused": 0}


def test_what_is_sealed_comes_back_as_it_was(found):
    plain = found.rows["hiding"]
    for tier, gives, words in (("file", "bytes", "every byte of the file"), ("face", "pixels", "every pixel")):
        row, shown = found.rows[f"hiding --seal {tier}"], cells(found.comparison, f"hiding --seal {tier}")
        assert (row.gives, row.exact, row.tried) == (gives, 4, 4)
        assert shown["the right key brings back"] == f"{words}, 4 of 4"
        assert shown["wrong key / one bit off, matched ↓"] == "refused"
        assert shown["PSNR, SSIM of that in the face ↑"] == "100.0 dB, 1.00"
        assert row.report.samples["anonymized"] == plain.report.samples["anonymized"]
        rendered, sealed = (dict_of(r.report.samples["anonymize"]) for r in (plain, row))
        assert rendered.keys() == sealed.keys() and all(sealed[trial] > rendered[trial] for trial in sealed)
        assert row.memory == plain.memory


def dict_of(samples):
    return {(file, key): value for file, key, value in samples}


class Forging:
    """Files that bring back something else: one byte, or one pixel, is not the original's."""

    anonymize = staticmethod(api.anonymize)

    @staticmethod
    def recover(photo, key):
        back = api.recover(photo, key)
        pixels = back.pixels.copy()
        pixels[-1, -1, -1] ^= 1
        data = back.original and bytes([back.original[0] ^ 1]) + back.original[1:]
        return SimpleNamespace(original=data, pixels=pixels, faces=back.faces)


@pytest.mark.slow
def test_what_comes_back_otherwise_is_counted(ground):
    made = compare(
        [ComparedEngine("hiding", Hiding, described, tiers=TIERS)], **ground, plan=Plan(1), limit=2, files=Forging
    )
    assert [(row.gives, row.exact, row.tried) for row in made.rows[1:]] == [("bytes", 0, 2), ("pixels", 0, 2)]
    assert made.rows[1].report.rate("right key, from pixels: matched").value == 1.0  # who does not look closely


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
    assert [row.name for row in alone.rows] == ["returning"] and "ended with exit code 1" in alone.left_out["mortal"]
    with pytest.raises(DeviceError):
        compare([ComparedEngine("mortal", Mortal, described, False, needed=True)], **ground, plan=Plan(1), limit=1)


def test_what_is_told_on_the_way(found):
    assert found.steps[0] == (1, 20, "hiding") and found.steps[-1] == (16, 20, "blackening")
    first = [(heading, picture.mean()) for name, heading, picture in found.shown if name == "00.png"]
    assert [heading for heading, _ in first] == [
        "hiding",
        "hiding, recovered",
        "hiding --seal file, recovered",
        "hiding --seal face, recovered",
        "perfect",
        "perfect, recovered",
        "returning",
        "blackening",
    ]
    means = dict(first)
    assert means["blackening"] == 0
    assert means["returning"] == means["perfect, recovered"] == means["hiding --seal file, recovered"] == 80


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


def test_every_published_figure_names_its_paper():
    assert {figure.paper for figure in FIGURES} == set(PAPERS)
    places = [(f.method, f.what, f.on, f.judge, f.paper, f.table) for f in FIGURES]
    assert len(set(places)) == len(places)
    assert all((f.hidden or f.back) and f.table.startswith("table ") for f in FIGURES)


def test_the_tables_say_the_same_in_every_shape(found):
    wide, narrow = (comparison_tables.grids(found.comparison, narrow) for narrow in (False, True))
    one = next(grid for grid in wide if grid.title == comparison_tables.TITLE)
    parts = narrow[1:5]
    assert [cell for part in parts for cell in part.columns[1:]] == list(one.columns[1:])
    for number, row in enumerate(one.rows):
        assert [cell for part in parts for cell in part.rows[number][1:]] == list(row[1:])
    assert wide[2:] == narrow[5:] and [grid.title for grid in wide[2:]] == [
        "Left out",
        "Not measured here: figures of papers, taken by their authors under other protocols",
        "How those protocols differ",
    ]
    text = comparison_tables.markdown(found.comparison)
    assert "| returning | 100 % (100 to 100)" in text and "| SignFlip | other photo of the person matched" in text
    data = json.loads(to_json(found.comparison))
    assert [row["name"] for row in data["rows"]][:3] == ["hiding", "hiding --seal file", "hiding --seal face"]
    assert data["rows"][1]["exact"] == 4 and data["left_out"]["lost"] == "never found"
    assert data["published"][0]["paper"] == "iFADIT" and "differs" in data["papers"]["DBAF"]
    assert not math.isnan(data["rows"][0]["memory"])


def test_the_page_has_a_row_of_pictures_for_each_photo(found):
    pictures = {"a<b>.png": {"original": np.zeros((9, 9, 3), np.uint8)}}
    for name, heading, picture in found.shown:
        pictures.setdefault(name, {})[heading] = picture
    text = comparison_tables.page(found.comparison, pictures)
    read = Reader(text)
    assert len(read.all("img")) == 5 * 9  # four photos and that one; eight headings and the original's
    said = "".join(read.text)
    assert "a<b>.png" in said and "100 % (100 to 100)" in said and "Not measured here" in said
    assert "://" not in text


@pytest.fixture
def anonface(capsys, monkeypatch, tmp_path):
    """Run a command line beside an album: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "album").mkdir()
    coloured_people(tmp_path / "album")
    monkeypatch.setattr("anonface.pipeline.Engine", Hiding)
    monkeypatch.setattr(doctor_module, "fetch_missing", lambda: None)
    monkeypatch.setattr("anonface.evaluation.judges.Judges", partial(WholePictures, Placing(), [Reddish()]))

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
    assert code == 0 and "Not measured here" in out and "every byte" in " ".join(out.split())
    assert "deface-blur is left out: deface is not installed: pip install '.[peers]'" in err
    data = json.loads((tmp_path / "page.json").read_text("utf-8"))
    names = [row["name"] for row in data["rows"]]
    assert names == ["inpaint", "inpaint --seal file", "inpaint --seal face", "pixelate"]
    assert data["rows"][0]["about"]["weights"] == "ab" * 8 and data["rows"][0]["about"]["device"].startswith("fake")
    matched = next(
        rate for rate in data["rows"][3]["report"]["rates"] if rate["title"].startswith("anonymized: matched")
    )
    assert matched["at"][0]["value"] == 1.0  # YuNet sees no face in a colour, so it comes out as it went in
    assert (tmp_path / "page.html").read_text("utf-8").count("<img ") == 2 * 6
    assert anonface("evaluate", "album", "--beside", "all", *options)[0] == 10


@pytest.mark.parametrize(
    "options",
    [
        ("--beside", "blur"),
        ("--beside", "all", "--journal", "a.jsonl"),
        ("--beside", "all", "--sheet", "a.png"),
        ("--beside", "all", "--attacks", "jpeg90"),
        ("--beside", "all", "--journal", "a.jsonl", "--part", "1/2"),
    ],
)
def test_what_has_no_place_beside_is_refused_at_once(anonface, monkeypatch, options):
    monkeypatch.setattr("anonface.evaluation.judges.Judges", None)
    code, _, err = anonface("evaluate", "album", *options)
    assert code == 2 and "--compare-with" in err and "Traceback" not in err
