"""``evaluate --blind`` and ``blind-score`` as a user types them."""

import json
from pathlib import Path

import numpy as np
import pytest

from anonface.cli.blind import BlindSheets
from anonface.errors import OutputError


def test_sheets_and_key_are_written_apart(tmp_path, capsys):
    sheets = BlindSheets(tmp_path / "sheets")
    original = np.full((120, 160, 3), 90, np.uint8)
    altered = original.copy()
    altered[30:70, 50:90] = 200
    for name in ("a", "b", "same"):
        sheets.add(name, original, original if name == "same" else altered)
    sheets.write()
    assert "2 faces on 1 sheets" in capsys.readouterr().err
    assert sorted(json.loads((tmp_path / "sheets.key.json").read_text())) == ["1", "2"]
    with pytest.raises(OutputError, match="exists already"):
        BlindSheets(tmp_path / "sheets")


def test_answers_are_scored(anonface, room):
    Path("key.json").write_text(json.dumps({"1": ["photo", "a"], "2": ["altered", "b"]}))
    Path("answers.json").write_text(json.dumps({"1": ["photo", 90, 5], "2": ["altered", 60, 2]}))
    code, out, _ = anonface("blind-score", "key.json", "answers.json", "--json")
    assert code == 0 and json.loads(out)["altered"]["broken"] == 1
    code, out, _ = anonface("blind-score", "key.json", "answers.json")
    assert code == 0 and "0 of 1" in out
    code, _, err = anonface("blind-score", "nowhere.json", "answers.json")
    assert code == 2 and "nowhere.json" in err
