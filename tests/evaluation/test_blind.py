"""The blind test: what sheets show, what the key file says, and how answers are counted."""

import json

import numpy as np
import pytest

from anonface.errors import OutputError, UsageError
from anonface.evaluation import blind
from anonface.evaluation.metrics import wilson


def pair(seed: int = 0):
    """A photo, and the same with another region of 40 x 40 px."""
    original = np.random.default_rng(seed).integers(60, 120, (120, 160, 3), np.uint8)
    altered = original.copy()
    altered[30:70, 50:90] += 100
    return original, altered


def test_the_changed_region_is_shown_of_either_version_by_lot(tmp_path):
    sheets = blind.Sheets(tmp_path / "sheets")
    for i in range(40):
        sheets.add(str(i), *pair(i))
    altered = [altered for _, altered, _ in sheets._faces]
    assert 6 < sum(altered) < 34
    assert [float(picture[150:230, 150:230].mean()) > 140 for _, _, picture in sheets._faces] == altered


def test_what_does_not_differ_or_has_another_shape_is_left_out(tmp_path):
    sheets = blind.Sheets(tmp_path / "sheets")
    original, altered = pair()
    sheets.add("same", original, original.copy())
    sheets.add("cut", original, altered[:100])
    assert sheets._faces == []


def test_sheets_are_numbered_and_the_key_says_which_is_which(tmp_path):
    sheets = blind.Sheets(tmp_path / "sheets")
    for i in range(8):
        sheets.add(f"photo {i}", *pair(i))
    assert sheets.write().startswith("8 faces on 2 sheets")
    assert sorted(file.name for file in sheets.folder.iterdir()) == ["01.png", "02.png", "instructions.txt"]
    told = json.loads(sheets.key.read_text())
    assert list(told) == [str(i) for i in range(1, 9)]
    kinds = {name: "altered" if altered else "photo" for name, altered, _ in sheets._faces}
    assert {name: kind for kind, name in told.values()} == kinds
    with pytest.raises(OutputError, match="exists already"):
        blind.Sheets(tmp_path / "sheets")


def test_answers_are_counted_by_kind(tmp_path):
    key, answers = tmp_path / "key.json", tmp_path / "answers.json"
    key.write_text(json.dumps({"1": ["photo", "a"], "2": ["altered", "b"], "3": ["altered", "c"], "4": ["photo", "d"]}))
    answers.write_text(json.dumps({"1": ["photo", 90, 5], "2": ["photo", 60, 4], "3": ["altered", 95, 1]}))
    counted = blind.scores(key, answers)
    assert list(counted["altered"].values()) == [2, 1, wilson(1, 2), 2.5, 1]
    assert list(counted["photo"].values()) == [1, 1, wilson(1, 1), 5.0, 0]


@pytest.mark.parametrize("row", [["maybe", 90, 5], ["photo", 90, 6], ["photo", 90], "photo"])
def test_an_answer_of_another_form_is_named(tmp_path, row):
    key, answers = tmp_path / "key.json", tmp_path / "answers.json"
    key.write_text(json.dumps({"1": ["photo", "a"]}))
    answers.write_text(json.dumps({"1": row}))
    with pytest.raises(UsageError):
        blind.scores(key, answers)


def test_wilson_intervals():
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(2, 11) == pytest.approx((0.051, 0.477), abs=1e-3)
    assert wilson(11, 11)[1] == pytest.approx(1.0)
