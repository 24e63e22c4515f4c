"""The blind test: what sheets show, what the key file says, and how answers are counted."""

import json

import numpy as np
import pytest

from anonface.errors import UsageError
from anonface.evaluation import blind
from anonface.evaluation.metrics import wilson


def pair(seed: int = 0):
    """A photo, and the same with another region of 40 x 40 px."""
    original = np.random.default_rng(seed).integers(60, 120, (120, 160, 3), np.uint8)
    altered = original.copy()
    altered[30:70, 50:90] += 100
    return original, altered


def test_the_changed_region_is_shown_of_either_version_by_lot():
    rng = np.random.default_rng(1)
    faces = [blind.face(str(i), *pair(i), rng) for i in range(40)]
    altered = [one for one in faces if one.altered]
    assert 8 < len(altered) < 32
    middle = [float(one.picture[150:230, 150:230].mean()) for one in faces]
    assert all((level > 140) == one.altered for one, level in zip(faces, middle, strict=True))


def test_what_does_not_differ_or_has_another_shape_is_left_out():
    original, altered = pair()
    rng = np.random.default_rng(1)
    assert blind.face("same", original, original.copy(), rng) is None
    assert blind.face("cut", original, altered[:100], rng) is None


def test_sheets_are_numbered_and_the_key_says_which_is_which(tmp_path):
    rng = np.random.default_rng(2)
    faces = [blind.face(f"photo {i}", *pair(i), rng) for i in range(8)]
    folder, key = tmp_path / "sheets", tmp_path / "key.json"
    folder.mkdir()
    assert blind.write_sheets(faces, folder, key) == 2
    assert sorted(file.name for file in folder.iterdir()) == ["01.png", "02.png", "instructions.txt"]
    told = json.loads(key.read_text())
    assert list(told) == [str(i) for i in range(1, 9)]
    assert told["3"] == ["altered" if faces[2].altered else "photo", "photo 2"]


def test_answers_are_counted_by_kind(tmp_path):
    key, answers = tmp_path / "key.json", tmp_path / "answers.json"
    key.write_text(json.dumps({"1": ["photo", "a"], "2": ["altered", "b"], "3": ["altered", "c"], "4": ["photo", "d"]}))
    answers.write_text(json.dumps({"1": ["photo", 90, 5], "2": ["photo", 60, 4], "3": ["altered", 95, 1]}))
    counted = blind.scores(key, answers)
    assert counted["altered"] == blind.Score(2, 1, wilson(1, 2), 2.5, 1)
    assert counted["photo"] == blind.Score(1, 1, wilson(1, 1), 5.0, 0)


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
