import json
import math

import pytest

from anonface.errors import OutputError, UsageError
from anonface.evaluation.journal import Journal
from anonface.evaluation.measurements import Measured

SETTINGS = {"keys": 2, "attacks": ("jpeg90",)}


def measured(name: str) -> Measured:
    return Measured(name, {"anonymized": [(0, 0.1 + 0.2), (1, math.nan)], "recover": [(0, 7.5)]}, 3)


def test_what_was_added_is_found_again(tmp_path):
    file = tmp_path / "a.jsonl"
    Journal(file, SETTINGS).add(measured("a.jpg"))
    found = Journal(file, SETTINGS).measured()
    assert list(found) == ["a.jpg"] and found["a.jpg"].refused == 3
    assert found["a.jpg"].samples["recover"] == [(0, 7.5)]
    (_, exact), (_, missing) = found["a.jpg"].samples["anonymized"]
    assert exact == 0.1 + 0.2 and math.isnan(missing)
    assert file.stat().st_mode & 0o77 == 0


def test_a_line_that_a_kill_cut_short_is_passed_over(tmp_path):
    file = tmp_path / "a.jsonl"
    journal = Journal(file, SETTINGS)
    journal.add(measured("a.jpg"))
    journal.add(measured("b.jpg"))
    whole = file.read_bytes()
    second = whole.index(b"\n", whole.index(b"a.jpg")) + 1
    for cut in range(second, len(whole) - 1):
        file.write_bytes(whole[:cut])
        again = Journal(file, SETTINGS)
        assert list(again.measured()) == ["a.jpg"]
        again.add(measured("c.jpg"))
        assert list(Journal(file, SETTINGS).measured()) == ["a.jpg", "c.jpg"]


def test_a_head_that_a_kill_cut_short_is_written_again(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"")
    Journal(file, SETTINGS).add(measured("a.jpg"))
    assert list(Journal(file, SETTINGS).measured()) == ["a.jpg"]


def test_two_processes_see_each_other(tmp_path):
    file = tmp_path / "a.jsonl"
    first, second = Journal(file, SETTINGS), Journal(file, SETTINGS)
    first.add(measured("a.jpg"))
    second.add(measured("b.jpg"))
    assert set(first.measured()) == set(second.measured()) == {"a.jpg", "b.jpg"}


def test_journals_are_joined_end_to_end(tmp_path):
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        Journal(file, SETTINGS).add(measured(file.stem + ".jpg"))
    both = tmp_path / "both.jsonl"
    both.write_bytes(b"".join(file.read_bytes() for file in files))
    assert set(Journal(both, SETTINGS).measured()) == {"a.jpg", "b.jpg"}
    other = tmp_path / "other.jsonl"
    Journal(other, {**SETTINGS, "keys": 3}).add(measured("c.jpg"))
    both.write_bytes(both.read_bytes() + other.read_bytes())
    with pytest.raises(UsageError, match="another keys: 3, not 2"):
        Journal(both, SETTINGS)


def test_other_settings_are_refused(tmp_path):
    file = tmp_path / "a.jsonl"
    Journal(file, SETTINGS)
    before = file.read_bytes()
    for other in ({**SETTINGS, "attacks": ()}, {"keys": 2}, {**SETTINGS, "backend": "x"}):
        with pytest.raises(UsageError, match=r"another (attacks|backend)"):
            Journal(file, other)
    assert file.read_bytes() == before


def test_other_files_are_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    for content in (b"dear diary\n", b"\xff\xfe", b'{"file": "a.jpg"}\n', b"[1]\n"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="no journal"):
            Journal(file, SETTINGS)
        assert file.read_bytes() == content
    with pytest.raises(OutputError):
        Journal(tmp_path / "absent" / "a.jsonl", SETTINGS)
    with pytest.raises(OutputError):
        Journal(tmp_path, SETTINGS)


def test_it_holds_numbers_and_names_only(tmp_path):
    file = tmp_path / "a.jsonl"
    Journal(file, SETTINGS).add(measured("a.jpg"))
    head, line = map(json.loads, file.read_text().splitlines())
    assert set(head) == {"settings"} and set(line) == {"file", "refused", "samples"}
    assert all(len(row) == 2 for rows in line["samples"].values() for row in rows)
