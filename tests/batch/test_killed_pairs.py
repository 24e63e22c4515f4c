"""A picture and its sidecar are replaced in several steps; a kill at any leaves a pair that can be recovered."""

import itertools
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from fake import FakeEngine
from PIL import Image

from anonface import Key, anonymize, recover
from anonface.api import rekey
from anonface.batch.task import Recovering
from anonface.errors import AnonfaceError, ContainerError, OutputError
from anonface.images import files

OLD, NEW = Key.from_bytes(bytes(range(32))), Key.from_bytes(bytes(range(1, 33)))
PICTURE, SIDECAR = Path("a.anon.png"), Path("records/a.anon.png.anf")
CHANGES = "replace", "hardlink_to", "unlink"


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SIDECAR.parent.mkdir()
    for name, seed in (("old", 1), ("new", 2)):
        pixels = np.random.default_rng(seed).integers(1, 255, (32, 40, 3), np.uint8)
        Image.fromarray(pixels).save(f"{name}.png")


def write(name, key, seal="file", sidecar=SIDECAR):
    anonymize(f"{name}.png", key, PICTURE, engine=FakeEngine(), seal=seal, sidecar=sidecar, overwrite=True)


def recovered(sidecar=SIDECAR):
    """Which of the two originals the pair gives, each under its own key."""
    for name, key in (("old", OLD), ("new", NEW)):
        with suppress(AnonfaceError):
            pixels = recover(PICTURE, key, engine=FakeEngine(), sidecar=sidecar).pixels
            if np.array_equal(pixels, np.asarray(Image.open(f"{name}.png"))):
                return name
    return None


def dying(monkeypatch, number, before):
    """From the n-th change to files on nothing happens any more; ``before`` or after it took place. Counts them."""
    count = itertools.count(1)
    dead = []

    def watched(change):
        def changed(self, *args, **options):
            if not dead and next(count) == number:
                dead.append(True)
                if not before:
                    change(self, *args, **options)
            if dead:
                raise Killed
            return change(self, *args, **options)

        return changed

    for name in CHANGES:
        monkeypatch.setattr(Path, name, watched(getattr(Path, name)))
    return dead


def left():
    return sorted(str(file) for file in Path().rglob("*") if file.is_file() and not file.name.endswith(".tmp"))


@pytest.mark.parametrize("seal", ["file", "face"])
@pytest.mark.parametrize("links", [True, False])
def test_a_kill_at_any_step_leaves_a_pair_that_can_be_recovered(monkeypatch, seal, links):
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("no hard links here")))
    seen = []
    for number, before in itertools.product(range(1, 30), (True, False)):
        for file in (PICTURE, *SIDECAR.parent.iterdir()):
            file.unlink(missing_ok=True)
        write("old", OLD, seal)
        with monkeypatch.context() as patched:
            dead = dying(patched, number, before)
            with suppress(Killed):
                write("new", NEW, seal)
        seen.append(recovered())
        if not dead:
            break
        write("old", OLD, seal)
        kept = ["a.anon.png", "new.png", "old.png", "records/a.anon.png.anf"]
        assert recovered() == "old" and left() == kept  # whatever the killed run left
    assert None not in seen and {"old", "new"} == set(seen) and len(seen) > 8


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("links", [True, False])
def test_an_error_at_any_renaming_leaves_the_old_pair_or_one_that_can_be_recovered(monkeypatch, failing, links):
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("no hard links here")))
    write("old", OLD)
    replace, count = Path.replace, itertools.count(1)

    def refused(self, target):
        if next(count) == failing:
            raise PermissionError(1, "Operation not permitted")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refused)
        with pytest.raises(OutputError, match="not permitted"):
            write("new", NEW)
    without = failing == 3 and not links  # the old picture is gone
    assert recovered() == ("new" if without else "old")
    assert len(left()) == 5 if without else left() == ["a.anon.png", "new.png", "old.png", "records/a.anon.png.anf"]


def test_an_interrupt_after_the_last_step_takes_nothing_back(monkeypatch):
    write("old", OLD)
    with monkeypatch.context() as patched:
        patched.setattr(files, "_remove_interims", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write("new", NEW)
    assert recovered() == "new" and left() == ["a.anon.png", "new.png", "old.png", "records/a.anon.png.anf"]


def test_what_an_interrupted_run_left_is_named_and_other_files_of_the_folder_stay(monkeypatch):
    write("old", OLD)
    others = [SIDECAR.with_name(name) for name in ("a.anon.png.0123456789abcdef.anf", "a.anon.png.interrupted-1.anf")]
    for file in others:
        file.write_bytes(b"theirs")
    for number in itertools.count(1):
        with monkeypatch.context() as patched:
            dying(patched, number, before=False)
            with suppress(Killed):
                write("new", NEW)
        if recovered() == "new":
            break
    interim = files.belonging(SIDECAR, PICTURE.read_bytes())
    (note,) = Recovering(NEW, FakeEngine()).open(PICTURE, SIDECAR).notes
    assert interim != SIDECAR and str(interim) in note
    write("old", OLD)
    assert not interim.exists() and all(file.read_bytes() == b"theirs" for file in others)


def killed_before_the_last_step(monkeypatch, sidecar=SIDECAR):
    write("old", OLD, sidecar=sidecar)
    for number in itertools.count(1):
        with monkeypatch.context() as patched:
            dying(patched, number, before=False)
            with suppress(Killed):
                write("new", NEW, sidecar=sidecar)
        if recovered(sidecar) == "new":
            return files.belonging(sidecar, PICTURE.read_bytes())


@pytest.mark.parametrize("beside", [True, False])
def test_an_old_sidecar_beside_which_a_kill_left_the_photo_s_is_not_rekeyed(monkeypatch, beside):
    sidecar, other = (Path("a.anon.png.anf") if beside else SIDECAR), Key.from_bytes(bytes(range(2, 34)))
    interim = killed_before_the_last_step(monkeypatch, sidecar)
    with pytest.raises(ContainerError, match="interrupted") as refused:
        rekey(sidecar, OLD, other)
    assert str(interim) in str(refused.value) and ("rekey" in refused.value.hint)
    made, verified = rekey(interim, NEW, other)
    Path("b.anf").write_bytes(made)
    assert verified == "yes"
    assert (
        recover(PICTURE, other, engine=FakeEngine(), sidecar="b.anf").pixels == np.asarray(Image.open("new.png"))
    ).all()
    write("old", OLD, sidecar=sidecar)
    assert rekey(sidecar, OLD, other)[1] == "yes"


def test_a_record_that_a_kill_left_of_a_photo_that_is_not_there_stops_no_rekeying(monkeypatch):
    sidecar = Path("a.anon.png.anf")
    interim = killed_before_the_last_step(monkeypatch, sidecar)
    left = interim.read_bytes()
    write("old", OLD, sidecar=sidecar)
    interim.write_bytes(left)
    assert rekey(sidecar, OLD, NEW)[1] == "yes"


def test_a_sidecar_of_the_longest_name_is_replaced_too():
    long = SIDECAR.with_name("x" * (255 - len(".anf")) + ".anf")
    for name, key in (("old", OLD), ("new", NEW)):
        write(name, key, sidecar=long)
        assert recovered(long) == name and list(Path("records").iterdir()) == [long]
