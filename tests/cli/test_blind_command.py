"""``blind-score`` as a user types it."""

import json
from pathlib import Path


def test_answers_are_scored(anonface, room):
    Path("key.json").write_text(json.dumps({"1": ["photo", "a"], "2": ["altered", "b"]}))
    Path("answers.json").write_text(json.dumps({"1": ["photo", 90, 5], "2": ["altered", 60, 2]}))
    code, out, _ = anonface("blind-score", "key.json", "answers.json", "--json")
    assert code == 0 and json.loads(out)["altered"]["broken"] == 1
    code, out, _ = anonface("blind-score", "key.json", "answers.json")
    assert code == 0 and "0 of 1" in out
    code, _, err = anonface("blind-score", "nowhere.json", "answers.json")
    assert code == 2 and "nowhere.json" in err
