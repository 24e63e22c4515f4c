"""Further recognizers in an evaluation, with colours for people: another judge of the same photos."""

import json
import math

import numpy as np
import pytest
from colours import Colour, Outcome, Perfect, Reddish, Untouched, WholePictures, coloured_people
from PIL import Image

from anonface.errors import UsageError
from anonface.evaluation.embedders import Embedder
from anonface.evaluation.judges import look_at_originals
from anonface.evaluation.page import page
from anonface.evaluation.report import as_markdown, grids, to_json
from anonface.evaluation.run import evaluate
from anonface.evaluation.trials import Plan


def hue(name, limits=(("its own", 0.4),), authors=(), digest="d1"):
    """Embeds the mean colour; of unit length, so that brightness does not count."""
    return Embedder(name, lambda crop, mesh: crop[::32, ::32], lambda p: p.mean((0, 1)) + 1.0, limits, authors, digest)


def judging(*embedders):
    judges = WholePictures(Colour(), [Reddish()])
    judges.embedders = list(embedders)
    return judges


@pytest.fixture
def folder(tmp_path):
    return coloured_people(tmp_path)


def table(report, name):
    return next(table for table in report.recognitions if table.recognizer == name)


def row(report, title, name="hue"):
    return next(row for row in table(report, name).rows if row.title.startswith(title))


ROWS = ("anonymized", "wrong key, random", "wrong key, one bit", "two keys", "right key, from pixels")


def test_an_engine_that_changes_nothing_fails_every_row(folder):
    report = evaluate(Untouched(), folder, Plan(2), judges=judging(hue("hue")))
    for title in ROWS:
        assert row(report, title).at[0].value == 1.0 and row(report, title).distance.value == 0
        assert row(report, title).cosine.value == 1.0
    assert row(report, "two keys").n == 8 and row(report, "anonymized").n == 16
    for title in ("original", "anonymized", "right key, from pixels"):
        others = row(report, f"{title}: matched to other photos")
        assert others.at[0].value == 1.0 and others.n == (8 if title == "original" else 16)
    assert report.settings["further recognizers"] == "hue"


def test_cosines_are_those_of_the_same_pairs(folder):
    judges = judging(hue("hue"))
    report = evaluate(Untouched(), folder, Plan(1), judges=judges)
    originals = look_at_originals(folder, judges)
    pairs = [(a, b) for a in originals for b in originals if a.identity == b.identity and a.file != b.file]
    cosines = [float(a.embeddings["hue"] @ b.embeddings["hue"]) for a, b in pairs]
    assert row(report, "original: matched to other photos").cosine.value == pytest.approx(np.mean(cosines))


def test_an_engine_that_does_everything_passes(folder):
    report = evaluate(Perfect(), folder, Plan(2), judges=judging(hue("hue")))
    assert row(report, "right key, from pixels: matched to the original").at[0].value == 1.0
    for title in ROWS[:3]:
        assert row(report, title).at[0].value < 0.5


def test_a_face_that_vanishes_counts_as_dlib_s_rows_count_it(folder):
    class Black(Untouched):
        def anonymize(self, pixels, key, *, consistent):
            return Outcome(np.zeros_like(pixels))

    report = evaluate(Black(), folder, Plan(1), judges=judging(hue("hue")))
    hidden = row(report, "anonymized: matched to the original")
    assert (hidden.at[0].value, hidden.undetected, hidden.n) == (0, 8, 8) and math.isnan(hidden.distance.value)
    assert row(report, "anonymized: matched, or no face found").at[0].value == 1.0
    assert row(report, "right key").at[0].value == 0
    assert row(report, "anonymized: matched to other photos").undetected == 8


def test_other_rows_stay_as_they_are(folder):
    alone = evaluate(Perfect(), folder, Plan(2), judges=judging())
    beside = evaluate(Perfect(), folder, Plan(2), judges=judging(hue("hue"), hue("other")))
    assert repr(beside.rates) == repr(alone.rates) and alone.recognitions == []
    further = {name for name in beside.samples if ", by hue" in name or ", by other" in name}
    assert set(beside.samples) - further == set(alone.samples)
    assert alone.settings["further recognizers"] == "none"


def test_what_a_loss_saw_is_printed_apart(folder):
    embedders = hue("arcface", authors=("theirs",)), hue("hue")
    report = evaluate(Untouched(), folder, Plan(1), judges=judging(*embedders))
    assert [table.recognizer for table in report.recognitions] == ["arcface", "hue"]
    theirs = evaluate(Untouched(), folder, Plan(1), judges=judging(*embedders), about={"backend": "theirs"})
    assert ("threshold of arcface, its own", "0.400") in grids(theirs)[0].rows
    titles = [grid.title for grid in grids(theirs)[3:]]
    seen = "By arcface, SEEN BY A TRAINING LOSS, so no independent judge"
    assert titles == ["By hue, seen by no training loss", seen]
    for text in ("\n".join(map(as_markdown, grids(theirs))), page("", grids(theirs), {})):
        assert all(title in text for title in titles)
    data = json.loads(to_json(theirs))
    assert [table["seen_by_loss"] for table in data["recognitions"]] == [False, True]
    assert data["samples"]["anonymized, by arcface"][0][2] == 0


def test_thresholds_come_from_the_folder_where_it_holds_enough_pairs(folder, tmp_path_factory):
    report = evaluate(Untouched(), folder, Plan(1), judges=judging(hue("hue")))
    assert [t.title for t in table(report, "hue").thresholds] == ["its own"]  # 24 pairs of different people
    crowd, rng, lines = tmp_path_factory.mktemp("crowd"), np.random.default_rng(3), ["file,identity"]
    for number in range(48):
        Image.new("RGB", (8, 8), tuple(rng.integers(1, 255, 3).tolist())).save(crowd / f"{number}.png")
        lines.append(f"{number}.png,{number}")
    (crowd / "identities.csv").write_text("\n".join(lines))
    judges = judging(hue("hue"), hue("bare", limits=()))
    report = evaluate(Untouched(), crowd, Plan(1), limit=1, judges=judges)
    seen = [original.embeddings["hue"] for original in look_at_originals(crowd, judges)]
    distances = sorted(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i])
    strict, loose, own = table(report, "hue").thresholds
    assert (strict.title, loose.title, own.interval.value) == ("FAR 0.1 % here", "FAR 1 % here", 0.4)
    assert (strict.interval.value, strict.interval.n) == (pytest.approx(distances[1]), 1128)
    assert loose.interval.value == pytest.approx(distances[11])
    assert len(table(report, "bare").thresholds) == 2
    (crowd / "identities.csv").unlink()
    bare = evaluate(Untouched(), crowd, Plan(1), limit=1, judges=judges)
    assert table(bare, "bare").thresholds == () and row(bare, "anonymized", "bare").distance.value == 0
    assert all(len(line) == len(grid.columns) for grid in grids(bare) for line in grid.rows)


def test_an_original_without_clear_landmarks_is_left_to_dlib(folder):
    class Unclear(WholePictures):
        def aligned(self, rgb, box):
            return None if rgb[0, 0, 1] > 190 else super().aligned(rgb, box)  # two of the four people

    judges = Unclear(Colour(), [Reddish()])
    judges.embedders = [hue("hue")]
    report = evaluate(Untouched(), folder, Plan(1), judges=judges)
    assert report.rate("anonymized: matched to the original").n == 8
    assert row(report, "anonymized: matched to the original").n == 4
    assert row(report, "original: matched to other photos").n == 4


def test_a_journal_keeps_distances_and_refuses_other_recognizers(folder, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journals") / "a.jsonl"
    whole = evaluate(Untouched(), folder, Plan(1), judges=judging(hue("hue")), journal=journal)
    again = evaluate(Untouched(), folder, Plan(1), judges=judging(hue("hue")), journal=journal)
    assert again.settings["of them in this run"] == 0
    assert repr(again.recognitions) == repr(whole.recognitions)
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert "anonymized, by hue" in entries[1]["samples"]
    assert all(
        isinstance(value, float) for entry in entries[1:] for rows in entry["samples"].values() for _, value in rows
    )
    for embedders in ((), (hue("hue"), hue("other")), (hue("hue", digest="d2"),)):
        with pytest.raises(UsageError, match="another recognizers"):
            evaluate(Untouched(), folder, Plan(1), judges=judging(*embedders), journal=journal)
