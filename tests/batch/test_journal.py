"""What a journal remembers, and what it believes."""

import errno
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from anonface.batch import journal as journals
from anonface.batch.journal import Journal, Terms, earlier_runs, journal_path
from anonface.errors import OutputError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.journal"


def later(file):
    """The journal of a run that resumes those of no name."""
    return Journal(file, resumed=[""])


def noted(file, *outputs, record=None):
    Journal(file).note([(output, 3) for output in outputs], record or {"state": "done"})


def test_what_was_noted_and_written_is_finished(file, tmp_path):
    photo = tmp_path / "a.png"
    noted(file, photo)
    assert later(file).finished([photo]) is None
    photo.write_bytes(b"abc")
    assert later(file).finished([photo]) == {"state": "done"}
    assert Journal(file).finished([photo]) is None  # nobody asked to resume
    photo.write_bytes(b"abcd")
    assert later(file).finished([photo]) is None  # not what was noted


def test_what_lay_there_before_is_not_taken_for_the_result(file, tmp_path):
    photo, result = tmp_path / "a.png", tmp_path / "new"
    photo.write_bytes(b"old")
    noted(file, photo)
    assert later(file).finished([photo]) is None
    result.write_bytes(b"new")
    result.replace(photo)
    assert later(file).finished([photo])


def test_a_sidecar_without_its_photo_stays_unless_its_writer_died(file, tmp_path):
    """Its photo may have been moved away, and is worth nothing without it."""
    record, photo, other = (tmp_path / name for name in ("a.anf", "a.png", "other"))
    noted(file, record, photo)
    for orphan in (record, other):
        orphan.write_bytes(b"abc")
    assert later(file).finished([other, photo]) is None
    assert record.exists() and other.exists()  # not the files of this journal's photo
    without = file.read_bytes()
    later(file).written([record, photo])
    assert later(file).finished([record, photo]) is None and record.exists()  # the photo was moved away
    file.write_bytes(without)
    assert later(file).finished([record, photo]) is None  # its writer died before the photo was written
    assert not record.exists() and other.exists()


def test_a_photo_without_its_sidecar_is_not_finished(file, tmp_path):
    record, photo = tmp_path / "a.anf", tmp_path / "a.png"
    noted(file, record, photo)
    photo.write_bytes(b"abc")
    assert later(file).finished([record, photo]) is None
    record.write_bytes(b"abc")
    assert later(file).finished([record, photo])


def test_a_photo_whose_source_changed_is_not_finished(file, tmp_path):
    source, photo = tmp_path / "a.jpg", tmp_path / "a.png"
    source.write_bytes(b"first")
    Journal(file).note([(photo, 3)], {"state": "done"}, source=source)
    photo.write_bytes(b"abc")
    assert later(file).finished([photo], source)
    source.write_bytes(b"second")
    assert later(file).finished([photo], source) is None
    source.unlink()
    assert later(file).finished([photo], source)  # the result is all that is left


def test_the_sidecar_of_a_photo_that_was_saved_again_stays(file, tmp_path):
    record, photo = tmp_path / "a.png.anf", tmp_path / "a.png"
    noted(file, record, photo)
    record.write_bytes(b"abc")
    photo.write_bytes(b"saved again")
    assert later(file).finished([record, photo]) is None and record.exists()


def test_a_sidecar_that_was_there_before_stays(file, tmp_path):
    record, photo = tmp_path / "a.anf", tmp_path / "a.png"
    record.write_bytes(b"abc")
    noted(file, record, photo)
    assert later(file).finished([record, photo]) is None and record.exists()


@pytest.mark.parametrize("rubbish", [b'{"outputs": [{"fi', b"\xff\n", b"[]\n", b'{"outputs": []}\n', b"\n"])
def test_lines_that_a_kill_cut_short_are_passed_over(file, tmp_path, rubbish):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"abc")
        noted(file, tmp_path / f"{name}.png")
        (tmp_path / name).replace(tmp_path / f"{name}.png")
        with file.open("ab") as journal:
            journal.write(rubbish)
    again = later(file)
    assert all(again.finished([tmp_path / f"{name}.png"]) for name in ("a", "b"))


def test_a_photo_written_under_another_name_than_planned(file, tmp_path):
    planned, written = tmp_path / "a.png", tmp_path / "a.jpg"
    Journal(file).note([(written, 3)], {"state": "done"}, planned)
    planned.write_bytes(b"abc")
    assert later(file).finished([planned]) is None
    written.write_bytes(b"abc")
    assert later(file).finished([planned]) == {"state": "done"}


def test_later_notes_win(file, tmp_path):
    for number in (1, 2):
        noted(file, tmp_path / "a.png", record={"number": number})
    (tmp_path / "a.png").write_bytes(b"abc")
    assert later(file).finished([tmp_path / "a.png"]) == {"number": 2}


def test_runs_are_told_apart(file, tmp_path):
    """However their lines mix; the terms of each are found again, the latest last."""
    runs = [Terms(name, {"seal": name}, "mark", [64, 1, 1]) for name in ("one", "two")]
    for name in ("a", "b"):
        for terms in runs:
            journal = Journal(file, terms)
            journal.note([(tmp_path / f"{terms.run}-{name}.png", 3)], {"name": name})
            journal.close()
    for run, name in (("one", "a"), ("two", "b")):
        (tmp_path / f"{run}-{name}.png").write_bytes(b"abc")
    assert earlier_runs(file) == runs and earlier_runs(tmp_path / "none") == []
    assert Journal(file, runs[0]).finished([tmp_path / "one-a.png"]) is None  # nobody asked to resume
    for resumed in (["one"], ["two"], ["one", "two"]):
        journal = Journal(file, runs[0], resumed)
        found = [bool(journal.finished([tmp_path / f"{run}-{name}.png"])) for run, name in (("one", "a"), ("two", "b"))]
        assert found == ["one" in resumed, "two" in resumed]
        journal.close()


def test_terms_that_could_not_be_written_are_stated_again(file, tmp_path):
    journal = Journal(file, Terms("one"))
    file.unlink()
    file.mkdir()
    with pytest.raises(OutputError):
        journal.note([(tmp_path / "a.png", 3)], {})
    file.rmdir()
    journal.note([(tmp_path / "b.png", 3)], {})
    assert earlier_runs(file) == [Terms("one")]


def test_names_of_any_bytes(file, tmp_path):
    photo = tmp_path / "\udcff\n.png"
    noted(file, photo)
    photo.write_bytes(b"abc")
    assert later(file).finished([photo])
    terms, entry = map(json.loads, file.read_bytes().splitlines())
    assert set(terms) == {"terms"} and entry["photo"] == str(photo)


def test_one_that_lies_nowhere_remembers_its_own_run(tmp_path):
    journal = Journal(None)
    journal.note([(tmp_path / "a.png", 3)], {"state": "done"})
    (tmp_path / "a.png").write_bytes(b"abc")
    assert journal.finished([tmp_path / "a.png"])
    journal.remove()


def test_it_is_removed_at_the_end_with_the_folders_made_for_it(tmp_path):
    for result in ("", "a.png"):
        file = tmp_path / "new" / "folder" / "run.journal"
        journal = Journal(file)
        journal.note([(file.with_name("a.png"), 3)], {})
        if result:
            file.with_name(result).write_bytes(b"abc")
        journal.remove()
        assert not file.exists() and (tmp_path / "new").exists() == bool(result)


def test_a_second_run_of_the_same_command_is_refused(file, tmp_path):
    first = Journal(file)
    for resumed in ([], [""]):
        with pytest.raises(OutputError, match="another run of this command is at work"):
            Journal(file, resumed=resumed)
    first.note([(tmp_path / "a.png", 3)], {})
    first.close()
    Journal(file).remove()  # and neither a closed nor a removed one holds anything
    Journal(file).close()


def test_the_lock_of_a_killed_run_is_lifted(file):
    program = "import sys; from pathlib import Path; from anonface.batch.journal import Journal"
    program += "; held = Journal(Path(sys.argv[1])); print(flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"\n"
    with pytest.raises(OutputError, match="another run"):
        Journal(file)
    process.kill()
    process.communicate()
    Journal(file).close()


def test_a_journal_that_its_run_removed_meanwhile_is_made_anew(file, monkeypatch):
    real, runs = journals._lock, [Journal(file)]

    def slow(descriptor):
        if runs:
            runs.pop().remove()
        return real(descriptor)

    monkeypatch.setattr(journals, "_lock", slow)
    second = Journal(file)
    assert file.exists()
    with pytest.raises(OutputError, match="another run"):
        Journal(file)
    second.close()


@pytest.mark.parametrize(("said", "refused"), [(None, False), (errno.EACCES, True), (errno.ENOLCK, False)])
def test_windows_locks_a_byte_that_nobody_reads(file, monkeypatch, said, refused):
    held = []

    def locking(descriptor, mode, count):
        held.append((os.lseek(descriptor, 0, os.SEEK_CUR), mode, count))
        if said:
            raise OSError(said, "said")

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OutputError, match="another run") if refused else nullcontext():
        journal = Journal(file)
        journal.note([(file.with_name("a.png"), 3)], {})
        journal.remove()
        assert not file.exists()
    assert held == [(1 << 30, 2, 1)] and (refused or not file.exists())


def test_it_is_written_through_no_link(file, tmp_path):
    target = tmp_path / "target"
    target.touch()
    file.symlink_to(target)
    with pytest.raises(OutputError, match="cannot be written"):
        noted(file, tmp_path / "a.png")
    assert target.read_bytes() == b""


def test_a_command_has_its_journal(tmp_path):
    here = journal_path(tmp_path, {"paths": ["\udcff"], "key_file": tmp_path / "k.bin"})
    assert here == journal_path(tmp_path, {"key_file": tmp_path / "k.bin", "paths": ["\udcff"]})
    assert here != journal_path(tmp_path, {"paths": ["a"], "key_file": tmp_path / "k.bin"})
    assert here.parent == tmp_path and here.name.startswith(".")
