"""Command lines, with an engine that costs nothing (fake.py)."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fake import SIDE, FakeEngine
from PIL import Image

from anonface.cli import app, console, options
from anonface.cli import doctor as doctor_module
from anonface.crypto.keys import Key
from anonface.errors import DeviceError, WeightsError
from anonface.images import write_atomic

SUFFIX_OF = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}
JOURNAL = re.compile(r"\.anonface-[0-9a-f]{16}\.journal$")

pytestmark = pytest.mark.usefixtures("room")


def photo(name, shade=120, size=(40, 32), **options):
    """A photo of one colour, or a black one, in which the fake engine finds no face."""
    file = Path(os.fsdecode(name))
    file.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.new("RGB", size, (shade, shade // 2, shade // 3))
    with file.open("wb") as stream:
        picture.save(stream, **{"format": "png", **options})


def pixels(name):
    with Image.open(name) as image:
        return np.asarray(image.convert("RGB"))


def names(folder):
    return sorted(file.name for file in Path(folder).iterdir())


def contents(folder):
    """What is in a folder, and when it was written."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in Path(folder).iterdir()}


def files():
    return sorted(file for file in Path().rglob("*") if file.is_file())


# --- There and back --------------------------------------------------------------------------------------------------


def test_a_box_that_is_not_in_the_photo_is_found_before_any_network_is_loaded(anonface, key, monkeypatch):
    photo("a.png")
    before = files()
    monkeypatch.setattr("anonface.pipeline.Engine", None)
    for box in ("100,4,8,8", "4,-100,8,8", "38,28,8,8"):
        code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--box", "4,4,8,8", "--box", box)
        assert code == 2 and f"the box {box} does not lie in the photo of 40 x 32 px" in err and files() == before


def test_there_and_back(anonface, room):
    photo("a.png")
    assert anonface("keygen", "mine.key")[0] == 0
    assert anonface("keygen", "other.key")[0] == 0

    code, out, err = anonface("anonymize", "a.png", "--key-file", "mine.key")
    assert code == 0 and out == ""
    assert err.splitlines()[0] == "anonface: device fake cpu"
    assert err.splitlines()[1].startswith("a.png -> a.anon.png: 1 face replaced, ")
    assert (pixels("a.anon.png") != pixels("a.png")).any()

    code, out, _ = anonface("inspect", "a.anon.png", "--json")
    assert code == 0
    assert json.loads(out)["backend"] == "inpaint" and json.loads(out)["canvas"] == [40, 32]
    assert anonface("inspect", "a.anon.png")[1].startswith("format")

    assert anonface("recover", "a.anon.png", "--key-file", "mine.key")[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()

    assert Path("a.recovered.png").read_bytes() == Path("a.png").read_bytes()


def test_a_wrong_key_opens_no_seal(anonface, key):
    photo("a.png")
    anonface("keygen", "other.key")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    before = files()
    code, out, err = anonface("recover", "a.anon.png", "--key-file", "other.key", "--json")
    assert code == 7 and json.loads(out)["error"]["code"] == 7 and "--decoy" in err and files() == before
    code, out, err = anonface("recover", "a.anon.png", "--key-file", "other.key", "--decoy")
    assert code == 7 and "'a.decoy.png' is a decoy" in err
    assert (pixels("a.decoy.png") != pixels("a.png")).any() and not Path("a.recovered.png").exists()
    assert anonface("recover", "a.anon.png", "--key-file", key)[0] == 0  # no decoy stands in its way
    assert Path("a.recovered.png").read_bytes() == Path("a.png").read_bytes()


def test_without_a_seal_a_wrong_key_leads_to_somebody_else_and_nobody_can_tell(anonface, key):
    photo("a.png")
    anonface("keygen", "other.key")
    assert anonface("anonymize", "a.png", "--key-file", key, "--seal", "none")[0] == 0
    code, out, _ = anonface("recover", "a.anon.png", "--key-file", "other.key", "-o", "wrong.png", "--json")
    assert code == 0 and json.loads(out)["photos"][0]["verified"] == "unknown"
    assert (pixels("wrong.png") != pixels("a.png")).any()


@pytest.mark.parametrize("name", ["b.webp", "b.jpg", "b.PNG"])
def test_every_output_format_carries_the_record(anonface, key, name):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "-o", name)[0] == 0
    with Image.open(name) as image:
        assert image.format.lower() == {"b.webp": "webp", "b.jpg": "jpeg", "b.PNG": "png"}[name]
    assert anonface("inspect", name)[0] == 0


def test_format_names_the_output(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "--format", "webp")[0] == 0
    assert anonface("recover", "a.anon.webp", "--key-file", key)[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()


def test_a_second_key_gives_somebody_else_and_a_second_run_too(anonface, key):
    photo("a.png")
    anonface("keygen", "second.key")
    for name, file in (("1.png", key), ("2.png", "second.key"), ("3.png", key)):
        assert anonface("anonymize", "a.png", "--key-file", file, "-o", name)[0] == 0
    assert (pixels("1.png") != pixels("2.png")).any() and (pixels("1.png") != pixels("3.png")).any()


def test_consistent_gives_the_same_somebody_again(anonface, key):
    photo("a.png")
    for name in ("1.png", "2.png"):
        assert anonface("anonymize", "a.png", "--key-file", key, "--consistent", "-o", name)[0] == 0
    assert (pixels("1.png") == pixels("2.png")).all()


def test_stateless_stores_nothing(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "--stateless")[0] == 0
    code, _, err = anonface("inspect", "a.anon.png")
    assert code == 8 and "no anonface record" in err
    code, _, err = anonface("recover", "a.anon.png", "--key-file", key)
    assert code == 8 and "--stateless" in err and "--sidecar" in err
    assert not Path("a.recovered.png").exists()
    assert anonface("recover", "a.anon.png", "--key-file", key, "--stateless")[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()


def test_a_photo_whose_record_is_needed_is_not_recovered_without_it(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    code, _, err = anonface("recover", "a.anon.png", "--key-file", key, "--stateless")
    assert code == 2 and "leave --stateless out" in err and not Path("a.recovered.png").exists()
    assert anonface("anonymize", "a.png", "--key-file", key, "--consistent", "--overwrite")[0] == 0
    assert anonface("recover", "a.anon.png", "--key-file", key, "--stateless")[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()


def test_the_record_names_the_backend(anonface, key):
    for name, backend in (("in/a.png", "diffusion"), ("in/b.png", "ifadit")):
        photo(name)
        assert anonface("anonymize", name, "--key-file", key, "--backend", backend, "--seal", "none")[0] == 0
    code, _, err = anonface("recover", "in/a.anon.png", "in/b.anon.png", "--key-file", key)
    assert code == 0 and err.count("device") == 1
    assert all((pixels(f"in/{name}.recovered.png") == pixels("in/a.png")).all() for name in "ab")
    code, _, err = anonface("recover", "in/a.anon.png", "--key-file", key, "--backend", "ifadit", "-o", "c.png")
    assert code == 8 and "--backend diffusion" in err
    for option in (("--steps", "20"), ("--transform", "sign")):
        code, _, err = anonface("recover", "in/a.anon.png", "--key-file", key, *option, "-o", "c.png")
        assert code == 2 and "the record says" in err


def test_the_record_in_a_sidecar(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "--sidecar", "a.anf")[0] == 0
    assert anonface("inspect", "a.anon.png")[0] == 8
    assert anonface("inspect", "a.anf")[0] == 0
    assert anonface("recover", "a.anon.png", "--key-file", key, "--sidecar", "a.anf")[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()


def test_sidecars_of_an_album(anonface, key):
    photo("album/a.png")
    photo("album/deep/b.png")
    assert anonface("anonymize", "album", "-r", "-o", "out", "--key-file", key, "--sidecar", "records")[0] == 0
    assert Path("records/a.anon.png.anf").exists() and Path("records/deep/b.anon.png.anf").exists()
    assert anonface("recover", "out", "-r", "-o", "back", "--key-file", key, "--sidecar", "records")[0] == 0
    assert (pixels("back/deep/b.recovered.png") == pixels("album/deep/b.png")).all()


def test_a_record_lost_on_the_way(anonface, key):
    photo("a.png")
    anonface("anonymize", "a.png", "--key-file", key)
    Image.open("a.anon.png").save("saved.png")
    code, _, err = anonface("recover", "saved.png", "--key-file", key)
    assert code == 8 and "saved.png' carries no anonface record" in err and "--sidecar" in err


def test_a_damaged_record(anonface, key):
    photo("a.png")
    anonface("anonymize", "a.png", "--key-file", key, "--sidecar", "a.anf")
    data = bytearray(Path("a.anf").read_bytes())
    data[40] ^= 1
    Path("a.anf").write_bytes(data)
    code, _, err = anonface("recover", "a.anon.png", "--key-file", key, "--sidecar", "a.anf")
    assert code == 8 and "damaged" in err and not Path("a.recovered.png").exists()


def test_a_face_that_no_detector_sees_is_named(anonface, key):
    photo("a.png")
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--box", "20,20,8,8", "--box", "1,1,4,4.5")
    assert code == 0 and "3 faces: 1 replaced, 2 covered by a mosaic (too small)" in err


# --- Keys and passphrases --------------------------------------------------------------------------------------------


def test_keygen_makes_a_file_for_its_owner_alone_and_never_replaces_one(anonface, key):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    code, _, err = anonface("keygen", key)
    assert code == 10 and "exists" in err and key.read_bytes() == before


def test_a_key_that_others_can_read(anonface, key):
    photo("a.png")
    key.chmod(0o644)
    code, _, err = anonface("anonymize", "a.png", "--key-file", key)
    assert code == 0 and "can be read by others" in err
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--overwrite", "--strict-keys")
    assert code == 6 and "chmod 600" in err


@pytest.mark.parametrize("content", [b"", b"AFK1-SHORT", b"x" * 31, None])
def test_an_unusable_key(anonface, content):
    photo("a.png")
    if content is not None:
        Path("bad.key").write_bytes(content)
        Path("bad.key").chmod(0o600)
    code, _, err = anonface("anonymize", "a.png", "--key-file", "bad.key")
    assert code == 6 and err.startswith("anonface: error: key file 'bad.key'")
    assert "a.anon.png" not in names(".")


def test_keygen_makes_the_folder_as_an_output_does(anonface):
    assert anonface("keygen", "new/deep/k.bin")[0] == 0 and names("new/deep") == ["k.bin"]
    code, _, err = anonface("keygen", "new/deep/k.bin/k.bin")
    assert code == 10 and "'new/deep/k.bin' is no folder" in err


def test_no_key_at_all(anonface):
    photo("a.png")
    code, _, err = anonface("anonymize", "a.png")
    assert code == 6 and "no key" in err and "--key-file" in err and "ANONFACE_PASSPHRASE" in err


def test_a_passphrase_alone(anonface, key, monkeypatch):
    photo("a.png")
    photo("b.png", 90)
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    assert anonface("anonymize", "a.png", "b.png", "-o", "out")[0] == 0
    assert json.loads(anonface("inspect", "out/a.anon.png", "--json")[1])["passphrase"]["lanes"] == 1
    assert anonface("recover", "out", "-o", "back")[0] == 0
    assert (pixels("back/b.recovered.png") == pixels("b.png")).all()

    monkeypatch.setenv("ANONFACE_PASSPHRASE", "wrong horse")
    code, _, err = anonface("recover", "out", "-o", "wrong")
    assert code == 3 and "   7  out/a.anon.png" in err and not Path("wrong").exists()

    Path("pass").write_text("correct horse\n")
    assert anonface("recover", "out/a.anon.png", "--passphrase-file", "pass")[0] == 0
    assert (pixels("out/a.recovered.png") == pixels("a.png")).all()

    code, _, err = anonface("recover", "out/b.anon.png", "--key-file", key)
    assert code == 6 and "passphrase" in err


def test_a_passphrase_cannot_open_what_a_key_file_made(anonface, key, monkeypatch):
    photo("a.png")
    anonface("anonymize", "a.png", "--key-file", key)
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    code, _, err = anonface("recover", "a.anon.png")
    assert code == 6 and "--key-file" in err


def test_a_key_wrapped_in_a_passphrase(anonface, monkeypatch):
    photo("a.png")
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    assert anonface("keygen", "w.key", "--passphrase")[0] == 0
    assert Path("w.key").read_text().startswith("AFKP1-")
    assert anonface("anonymize", "a.png", "--key-file", "w.key", "--stateless")[0] == 0
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "wrong horse")
    code, _, err = anonface("recover", "a.anon.png", "--key-file", "w.key", "--stateless")
    assert code == 6 and "does not open it" in err
    monkeypatch.delenv("ANONFACE_PASSPHRASE")
    code, _, err = anonface("recover", "a.anon.png", "--key-file", "w.key", "--stateless")
    assert code == 6 and "'w.key': a passphrase is needed" in err
    assert anonface("keygen", "v.key", "--passphrase")[0] == 6 and not Path("v.key").exists()


def test_a_passphrase_asked_for(anonface, monkeypatch):
    photo("a.png")
    asked = []

    def answer(text, *, default, show_default, hide_input, err):
        assert hide_input and err and not show_default
        asked.append(text.split()[0])
        return "correct horse"

    monkeypatch.setattr("typer.prompt", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert anonface("keygen", "w.key", "--passphrase")[0] == 0
    assert anonface("anonymize", "a.png", "--key-file", "w.key")[0] == 0
    assert anonface("recover", "a.anon.png", "--key-file", "w.key")[0] == 0
    assert asked == ["Passphrase", "Repeat", "Passphrase", "Passphrase"]


def test_a_passphrase_is_generated_where_none_is_entered(anonface, monkeypatch, room):
    answers = iter(["words that differ", "words that do not", "", ""])
    monkeypatch.setattr("typer.prompt", lambda text, **options: next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, out, err = anonface("keygen", "w.key", "--passphrase")
    assert code == 0 and out == "" and "the two passphrases differ" in err
    (text,) = re.findall(r"passphrase is: (\S+)", err)
    assert err.count(text) == 1 and files() == [Path("w.key")]
    assert Key.from_file("w.key", text)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)  # a log would keep it
    code, out, err = anonface("keygen", "v.key", "--passphrase")
    assert code == 6 and "is redirected" in err and "passphrase is:" not in out + err and not Path("v.key").exists()


def test_weak_passphrases_are_taken_for_what_is_there_alone(anonface, monkeypatch):
    photo("a.png")
    for weak, says in (("a", "1 character, at least 12"), ("Password1234", "a common one")):
        monkeypatch.setenv("ANONFACE_PASSPHRASE", weak)
        for args in (("keygen", "w.key", "--passphrase"), ("anonymize", "a.png")):
            code, _, err = anonface(*args)
            assert code == 6 and says in err and "--weak-passphrase" in err and not Path("a.anon.png").exists()
            assert anonface(*args, "--weak-passphrase")[0] == 0
        assert anonface("recover", "a.anon.png")[0] == 0  # an old photo is not held back
        assert anonface("anonymize", "a.png", "--key-file", "w.key", "-o", "b.png")[0] == 0  # nor is an old key file
        assert anonface("recover", "b.png", "--key-file", "w.key", "-o", "c.png")[0] == 0
        assert Path("c.png").read_bytes() == Path("a.recovered.png").read_bytes() == Path("a.png").read_bytes()
        for file in ("a.anon.png", "a.recovered.png", "b.png", "c.png", "w.key"):
            Path(file).unlink()


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_secret(anonface, key, codec):
    photo("a.png")
    Path("plain").write_text("words that nobody knows\n")
    Path("marked").write_bytes("words that nobody knows\r\n".encode(codec))
    Path("marked.key").write_bytes(key.read_text().encode(codec))
    Path("marked.key").chmod(0o600)
    assert anonface("anonymize", "a.png", "--passphrase-file", "marked", "-o", "1.png")[0] == 0
    assert anonface("recover", "1.png", "--passphrase-file", "plain", "-o", "1.back.png")[0] == 0
    assert anonface("anonymize", "a.png", "--key-file", "marked.key", "-o", "2.png")[0] == 0
    assert anonface("recover", "2.png", "--key-file", key, "-o", "2.back.png")[0] == 0
    assert anonface("keygen", "w.key", "--passphrase-file", "marked")[0] == 0
    Path("v.key").write_bytes(Path("w.key").read_text().encode(codec))
    Path("v.key").chmod(0o600)
    assert anonface("anonymize", "a.png", "--key-file", "v.key", "--passphrase-file", "plain", "-o", "3.png")[0] == 0


def test_a_passphrase_file_that_is_no_text(anonface):
    photo("a.png")
    for data, says in (("words nobody knows".encode("utf-16-le"), "zero bytes"), (bytes(70_000), "64 KiB")):
        Path("pass").write_bytes(data)
        code, _, err = anonface("anonymize", "a.png", "--passphrase-file", "pass")
        assert code == 6 and says in err and "'pass'" in err
    Path("typed.key").write_text("a passphrase of 32 characters ok")
    code, _, err = anonface("anonymize", "a.png", "--key-file", "typed.key")
    assert code == 6 and "holds text" in err and "--passphrase-file" in err


def test_stateless_takes_no_bare_passphrase(anonface, monkeypatch):
    photo("a.png")
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    code, _, err = anonface("anonymize", "a.png", "--stateless")
    assert code == 2 and "keygen FILE --passphrase" in err


def test_a_key_from_a_pipe(anonface, key):
    photo("a.png")
    reader, writer = os.pipe()
    os.write(writer, key.read_bytes())
    os.close(writer)
    assert anonface("anonymize", "a.png", "--key-file", f"/dev/fd/{reader}")[0] == 0
    os.close(reader)
    assert anonface("recover", "a.anon.png", "--key-file", key)[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()


# --- One photo that cannot be done -----------------------------------------------------------------------------------


def broken():
    photo("black.png", 0)
    photo("cut.jpg", format="jpeg")
    data = Path("cut.jpg").read_bytes()
    Path("cut.jpg").write_bytes(data[: len(data) // 2])
    Path("text.jpg").write_text("no picture")
    Path("empty.png").touch()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "code", "says"),
    [
        ("black.png", [], 5, "black.png: no face was found"),
        ("cut.jpg", [], 4, "cut.jpg"),
        ("text.jpg", [], 4, "is not an image"),
        ("empty.png", [], 4, "is empty"),
        ("missing.png", [], 4, "missing.png"),
        ("a.png", ["--max-pixels", "1000"], 11, "--max-pixels"),
        ("a.png", ["--device", "cuda:99"], 70, "--device cpu"),
        ("a.png", ["--device", "gpu"], 2, "auto, cpu, cuda"),
        ("a.png", ["--seal", "all"], 2, "--seal"),
        ("a.png", ["--seal", "face", "--format", "jpeg"], 2, "--seal file"),
        ("a.png", ["--seal", "file", "--stateless"], 2, "--stateless"),
        ("a.png", ["--box", "1,2,3"], 2, "X,Y,W,H"),
        ("a.png", ["--box", "1,2,0,4"], 2, "X,Y,W,H"),
        ("a.png", ["--box", "1,inf,4,4"], 2, "X,Y,W,H"),
        ("a.png", ["--jpeg-quality", "80"], 2, "JPEG"),
        ("a.png", ["-o", "a.gif"], 2, ".png"),
        ("a.png", ["-o", "b.png", "--format", "webp"], 2, "contradicts"),
        ("a.png", ["--overwrite", "--skip-existing"], 2, "exclude"),
        ("a.png", ["--stateless", "--sidecar", "a.anf"], 2, "--sidecar"),
        ("a.png", ["--batch-size", "0"], 2, "batch-size"),
        ("a.png", ["--no-such-option"], 2, "no-such-option"),
        ("*.tiff", [], 2, "matches no photo"),
    ],
)
def test_one_line_a_code_and_no_file(anonface, key, name, options, code, says):
    photo("a.png")
    broken()
    before = files()
    got, out, err = anonface("anonymize", name, "--key-file", key, *options)
    assert got == code and out == "" and says in err
    lines = [line for line in err.splitlines() if not line.startswith("anonface: device")]
    assert [line.split(":")[0] for line in lines] in (["anonface"], ["anonface", "hint"])
    assert lines[0].startswith("anonface: error: ") and files() == before

    got, out, _ = anonface("anonymize", name, "--key-file", key, "--json", *options)
    assert got == code and json.loads(out)["exit"] == code and json.loads(out)["error"]["code"] == code
    assert files() == before


def test_outputs_that_must_not_be_written(anonface, key, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.Engine", None)  # all of it is found before an engine is made
    photo("a.png")
    photo("there.png")
    Path("link.png").symlink_to("there.png")
    Path("hard.png").hardlink_to("a.png")
    Path("folder.png").mkdir()
    for output, says in (
        ("there.png", "exists"),
        ("link.png", "link"),
        ("a.png", "input itself"),
        ("hard.png", "input itself"),
        ("a.png/b.png", "not a folder"),
    ):
        options = [] if output == "there.png" else ["--overwrite"]
        code, _, err = anonface("anonymize", "a.png", "--key-file", key, "-o", output, *options)
        assert code == 10 and says in err, output
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 10
    assert anonface("anonymize", "a.png", "--key-file", key, "-o", "new/folder/")[0] == 10


def test_overwrite_and_skip_existing(anonface, key):
    photo("a.png")
    photo("a.anon.png", 1)
    before = Path("a.anon.png").read_bytes()
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 10
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--skip-existing")
    assert code == 0 and "skipped" in err and Path("a.anon.png").read_bytes() == before
    assert anonface("anonymize", "a.png", "--key-file", key, "--overwrite")[0] == 0
    assert Path("a.anon.png").read_bytes() != before


def raising(error):
    class Failing(FakeEngine):
        def anonymize(self, pixels, key, **options):
            raise error

    return Failing


def test_out_of_memory_says_what_lowers_it(anonface, key, monkeypatch):
    photo("a.png")
    monkeypatch.setattr("anonface.pipeline.Engine", raising(MemoryError()))
    code, _, err = anonface("anonymize", "a.png", "--key-file", key)
    assert code == 70 and "out of memory" in err and "--batch-size" in err and "--max-pixels" in err


def test_a_bug_is_one_line_and_debug_shows_where(anonface, key, monkeypatch):
    photo("a.png")
    monkeypatch.setattr("anonface.pipeline.Engine", raising(ZeroDivisionError("by\nzero")))
    code, _, err = anonface("anonymize", "a.png", "--key-file", key)
    assert code == 70 and "a.png: unexpected ZeroDivisionError: by zero" in err and "Traceback" not in err
    code, _, err = anonface("--debug", "anonymize", "a.png", "--key-file", key)
    assert code == 70 and "in anonymize" in err and "Traceback" in err


# --- Many photos -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("photos", [1, 3])
def test_a_terminal_shows_which_face_is_in_work(anonface, key, monkeypatch, photos):
    for n in range(photos):
        photo(f"album/{n}.png")
    monkeypatch.setattr(FakeEngine, "PLACES", ((0, 0), (20, 10)))
    monkeypatch.setenv("COLUMNS", "200")
    command = ["anonymize", "album", "-o", "out", "--key-file", key]
    assert "face 1 of 2" not in anonface(*command)[2]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = []
    monkeypatch.setattr("rich.progress.Progress.update", lambda _, task, **seen: shown.append(seen))
    assert anonface(*command, "--overwrite")[0] == 0
    assert [(seen["completed"], seen["text"]) for seen in shown[:4]] == [
        (0, "loading the networks"),
        (0, ""),
        (0, "rendering face 1 of 2"),
        (0, "rendering face 2 of 2"),
    ]
    assert len(shown) == 2 + 3 * photos and shown[-1]["completed"] == photos
    paced = [seen["text"] for seen in shown if re.match(r"\d faces, .*/s; rendering face 2 of 2", seen["text"])]
    assert bool(paced) == (photos > 1)  # the first photo is told before the third is begun


def test_one_bad_photo_stops_no_other(anonface, key):
    photo("album/a.png")
    photo("album/2024/b.png", 80)
    photo("album/2024/black.png", 0)
    Path("album/note.txt").write_text("not a photo, not looked at")
    code, out, err = anonface("anonymize", "album", "--recursive", "-o", "out", "--key-file", key, "--json")
    result = json.loads(out)
    assert code == result["exit"] == 3 and out.count("\n") == 1
    assert sorted(p["output"] for p in result["photos"] if p["output"]) == ["out/2024/b.anon.png", "out/a.anon.png"]
    assert [p["error"]["code"] for p in result["photos"] if p["error"]] == [5]
    assert "3 photos: 2 done, 1 failed; 2 faces replaced in " in err
    assert err.splitlines()[-1].split()[:2] == ["5", "album/2024/black.png"]

    code, _, err = anonface("anonymize", "album/**/*.png", "-o", "out", "--key-file", key, "--skip-existing")
    assert code == 3 and "3 photos: 2 skipped, 1 failed" in err


def test_without_recursive_only_the_folder_itself(anonface, key):
    photo("album/a.png")
    photo("album/2024/b.png")
    assert anonface("anonymize", "album", "--key-file", key)[0] == 0
    assert Path("album/a.anon.png").exists() and not Path("album/2024/b.anon.png").exists()


def test_a_second_run_over_a_folder_takes_no_results(anonface, key):
    photo("album/a.png")
    for _ in range(2):
        assert anonface("anonymize", "album", "--key-file", key, "--overwrite")[0] == 0
    assert anonface("recover", "album", "--key-file", key)[0] == 0
    assert names("album") == ["a.anon.png", "a.png", "a.recovered.png"]
    assert (pixels("album/a.recovered.png") == pixels("album/a.png")).all()


def test_two_inputs_with_one_output_are_refused_before_the_first_write(anonface, key):
    photo("a.png")
    photo("a.tif", format="tiff")
    before = files()
    code, _, err = anonface("anonymize", "a.png", "a.tif", "--key-file", key)
    assert code == 2 and "a.anon.png" in err and files() == before


def test_an_engine_that_cannot_be_had_stops_the_run(anonface, key, monkeypatch):
    photo("a.png")
    photo("b.png")

    def missing(*_, **__):
        raise WeightsError("weights 'generator' could not be had", "unset ANONFACE_OFFLINE")

    monkeypatch.setattr("anonface.pipeline.Engine", missing)
    code, _, err = anonface("anonymize", "a.png", "--key-file", key)
    assert code == 9 and err.startswith("anonface: error: weights 'generator'")  # it is not the photo's fault
    code, out, err = anonface("anonymize", "a.png", "b.png", "--key-file", key, "--json")
    assert code == json.loads(out)["exit"] == 9 and err.count("generator") == 1


@pytest.mark.parametrize(("error", "treated"), [(DeviceError("the device was lost"), 1), (MemoryError(), 2)])
def test_a_lost_device_stops_the_run_and_a_photo_too_large_does_not(anonface, key, monkeypatch, error, treated):
    photo("a.png")
    photo("b.png")
    monkeypatch.setattr("anonface.pipeline.Engine", raising(error))
    _, out, _ = anonface("anonymize", "a.png", "b.png", "--key-file", key, "--json")
    states = [entry["state"] for entry in json.loads(out)["photos"]]
    assert states == ["failed", "failed" if treated == 2 else "not reached"]


def test_interrupted(anonface, key, monkeypatch):
    for name in ("a.png", "b.png", "c.png"):
        photo(name)

    class Interrupted(FakeEngine):
        photos = 0

        def anonymize(self, pixels, key, **options):
            Interrupted.photos += 1
            if Interrupted.photos == 2:
                raise KeyboardInterrupt
            return super().anonymize(pixels, key, **options)

    monkeypatch.setattr("anonface.pipeline.Engine", Interrupted)
    code, out, err = anonface("anonymize", "a.png", "b.png", "c.png", "--key-file", key, "--json")
    result = json.loads(out)
    assert code == result["exit"] == result["error"]["code"] == 130 and result["error"]["message"] == "interrupted"
    assert [(entry["input"], entry["state"], entry["output"]) for entry in result["photos"]] == [
        ("a.png", "done", "a.anon.png"),
        ("b.png", "not reached", None),
        ("c.png", "not reached", None),
    ]
    assert "3 photos: 1 done, 2 not reached" in err and "--resume" in err
    assert [name for name in names(".") if not JOURNAL.match(name)] == [
        "a.anon.png",
        "a.png",
        "b.png",
        "c.png",
        "k.bin",
    ]


def test_strange_names(anonface, key):
    for name in ("-x.png", "new\nline.png", b"\xff.png", "[a].png"):
        photo(name)
    code, out, err = anonface("anonymize", "--key-file", key, "-o", "out", "--json", "--", ".")
    assert code == 0 and "new\\nline.png" in err
    assert names("out") == ["-x.anon.png", "[a].anon.png", "new\nline.anon.png", os.fsdecode(b"\xff.anon.png")]
    assert len(json.loads(out)["photos"]) == 4
    assert anonface("anonymize", "--key-file", key, "--", "-x.png")[0] == 0
    assert anonface("anonymize", "[a].png", "--key-file", key)[0] == 0


def test_what_a_photo_leaves_behind_is_noted(anonface, key):
    photo("a.jpg", format="jpeg")
    Path("a.jpg").write_bytes(Path("a.jpg").read_bytes() + b"a video behind the picture")
    code, _, err = anonface("anonymize", "a.jpg", "--key-file", key)
    assert code == 0 and "26 bytes behind the picture left out" in err


def test_results_are_named_as_asked(anonface, key):
    photo("album/a.png")
    photo("album/a.jpg", format="jpeg")
    assert anonface("anonymize", "album", "-o", "out", "--key-file", key, "--format", "png")[0] == 2
    code, _, _ = anonface("anonymize", "album", "-o", "out", "--key-file", key, "--name", "{stem}{suffix}.anon{ext}")
    assert code == 0 and names("out") == ["a.jpg.anon.jpg", "a.png.anon.png"]
    assert anonface("anonymize", "album", "-o", "out", "--key-file", key, "--name", "{shoe}{ext}")[0] == 2
    code, _, _ = anonface("recover", "out", "-o", "back", "--key-file", key, "--name", "{stem}{ext}")
    assert code == 0 and names("back") == ["a.jpg.jpg", "a.png.png"]


def test_a_report_says_the_same_as_the_summary(anonface, key):
    for name, shade in (("a.png", 120), ("black.png", 0)):
        photo(f"album/{name}", shade)
    Path("album/text.jpg").write_text("no picture")
    code, out, _ = anonface(
        *("anonymize", "album", "-o", "out", "--no-face", "copy", "--key-file", key),
        *("--report", "new/report.json", "--json"),
    )
    report = json.loads(Path("new/report.json").read_text())
    assert code == 3 and report == json.loads(out)
    done, copied, failed = (report["photos"][i] for i in range(3))
    assert done["state"] == "done" and done["tier"] == "file" and done["seconds"] > 0 and done["warnings"] == []
    assert [face["kind"] for face in done["faces"]] == ["synth"]
    assert copied["state"] == "copied" and copied["faces"] == [] and copied["warnings"]
    assert failed["state"] == "failed" and failed["output"] is None and failed["error"]["code"] == 4


def test_what_a_folder_holds_besides_photos_is_counted(anonface, key):
    photo("album/a.png")
    photo("album/deep/b.png")
    Path("album/.hidden.mp4").touch()
    for name in ("v.mp4", "deep/W.MP4", "deep/raw.cr2", "note", "a.png.anf"):
        Path("album", name).touch()
    args = ["--key-file", key, "-o", "out", "--json", "--report", "r.json", "--overwrite"]
    for more, expected, line in (
        ([], {".mp4": 1, "": 1}, "2 files ignored; not photos by name: 1 without a suffix, 1 .mp4"),
        (["-r"], {".mp4": 2, ".cr2": 1, "": 1}, "4 files ignored; not photos by name: 2 .mp4, "),
        (["-r", "./album/deep"], {".mp4": 2, ".cr2": 1, "": 1}, "4 files ignored; not photos by name: 2 .mp4, "),
    ):
        code, out, err = anonface("anonymize", "album", *args, *more)
        assert code == 0 and json.loads(out)["ignored_files"] == expected
        report = json.loads(Path("r.json").read_text())
        assert report["ignored_files"] == report["passed_over"] == expected  # the former name too
        assert line in err and err.count("files ignored") == 1
    code, out, err = anonface("anonymize", "album/a.png", *args)
    assert code == 0 and json.loads(out)["ignored_files"] == {} and "ignored" not in err
    Path("out/stray.txt").touch()
    code, out, err = anonface("recover", "out", "-o", "back", "--key-file", key, "--json")
    assert code == 0 and json.loads(out)["ignored_files"] == {".txt": 1}


def test_results_and_originals_that_are_passed_over_are_counted(anonface, key):
    for name in ("a.png", "b.jpg", "a.anon.png", "c.anon.png", "a.recovered.jpg", "b.decoy.png"):
        photo(f"album/{name}", format="png")
    Path("album/note.txt").touch()
    results = {".anon.png": 2, ".decoy.png": 1, ".recovered.jpg": 1}
    line = "results: 2 .anon.png, 1 .decoy.png, 1 .recovered.jpg"
    code, out, err = anonface("anonymize", "album", "-o", "out", "--key-file", key, "--json")
    assert code == 0 and json.loads(out)["ignored_files"] == {**results, ".txt": 1}
    assert f"5 files ignored; {line}; not photos by name: 1 .txt\n" in err
    code, out, err = anonface("anonymize", "album/*.*", "-o", "new", "--key-file", key, "--json")
    assert json.loads(out)["ignored_files"] == results and f"4 files ignored; {line}\n" in err
    code, out, err = anonface("recover", "album", "-o", "back", "--key-file", key, "--json")
    left = {".decoy.png": 1, ".jpg": 1, ".png": 1, ".recovered.jpg": 1, ".txt": 1}
    assert code == 3 and json.loads(out)["ignored_files"] == left
    assert "results: 1 .decoy.png, 1 .recovered.jpg; not named *.anon.*: 1 .jpg, 1 .png; not photos by name: 1" in err


def test_a_report_that_must_not_be_written(anonface, key):
    photo("a.png")
    Path("there.json").touch()
    for name, expected in (("there.json", 10), ("a.png", 10), ("a.anon.png", 2)):
        code, _, _ = anonface("anonymize", "a.png", "--key-file", key, "--report", name)
        assert code == expected and names(".") == ["a.png", "k.bin", "there.json"]
    assert anonface("anonymize", "a.png", "--key-file", key, "--report", "a.png", "--overwrite")[0] == 10


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("policy", "state"), [("fail", "failed"), ("copy", "copied"), ("skip", "skipped")])
def test_what_becomes_of_a_photo_without_a_face(anonface, key, policy, state, alone):
    exif = Image.Exif()
    exif[0x010E] = "a secret description"
    photo("album/black.png", 0, exif=exif)
    if not alone:
        photo("album/a.png")
    code, out, _ = anonface(
        "anonymize", "album", "-o", "out", "--no-face", policy, "--key-file", key, "--json", "--max-pixels", 10_000
    )
    entry = json.loads(out)["photos"][-1]
    assert code == (0 if policy != "fail" else 5 if alone else 3) and entry["state"] == state
    assert Path("out/black.anon.png").exists() is (policy == "copy")
    if policy == "copy":
        assert (pixels("out/black.anon.png") == pixels("album/black.png")).all()
        assert b"secret" in Path("album/black.png").read_bytes()
        assert b"secret" not in Path("out/black.anon.png").read_bytes()
        assert anonface("recover", "out/black.anon.png", "-o", "back.png", "--key-file", key)[0] == 0
        assert (pixels("back.png") == pixels("album/black.png")).all()


class Crowd(FakeEngine):
    PLACES = tuple((SIDE * (n % 10), SIDE * (n // 10)) for n in range(50))


class Couple(FakeEngine):
    PLACES = ((0, 0), (SIDE // 2, SIDE // 4))


def test_fifty_faces_have_fifty_keys(anonface, key, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.Engine", Crowd)
    photo("a.png", size=(10 * SIDE, 5 * SIDE))
    code, out, _ = anonface("anonymize", "a.png", "--key-file", key, "--json")
    assert code == 0 and [face["index"] for face in json.loads(out)["photos"][0]["faces"]] == list(range(50))
    tiles = pixels("a.anon.png").reshape(5, SIDE, 10, SIDE, 3).swapaxes(1, 2).reshape(50, -1)
    assert len(np.unique(tiles, axis=0)) == 50
    assert anonface("recover", "a.anon.png", "--key-file", key)[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()


def test_overlapping_faces_come_back(anonface, key, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.Engine", Couple)
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    assert anonface("recover", "a.anon.png", "--key-file", key)[0] == 0
    assert (pixels("a.anon.png") != pixels("a.png")).any() and (pixels("a.recovered.png") == pixels("a.png")).all()


def two_people():
    """A photo of two faces of different colour, for :class:`Neighbours`."""
    picture = Image.new("RGB", (2 * SIDE, SIDE), (200, 10, 10))
    picture.paste((10, 200, 10), (SIDE, 0, 2 * SIDE, SIDE))
    picture.save("a.png")


class Neighbours(FakeEngine):
    PLACES = ((0, 0), (SIDE, 0))


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ([], [True, True]),
        (["--faces", "0"], [True, False]),
        (["--faces", "1"], [False, True]),
        (["--faces", "1,0"], [True, True]),
        (["--keep-faces", "friends"], [True, False]),
        (["--faces", "1", "--keep-faces", "friends"], [False, False]),
    ],
)
@pytest.mark.parametrize("stateless", [True, False])
def test_who_is_changed(anonface, key, monkeypatch, options, changed, stateless):
    monkeypatch.setattr("anonface.pipeline.Engine", Neighbours)
    two_people()
    Path("friends").mkdir()
    Image.new("RGB", (SIDE, SIDE), (10, 200, 10)).save("friends/green.png")
    mode = ["--stateless"] if stateless else []
    code, out, err = anonface("anonymize", "a.png", "--key-file", key, "--json", *options, *mode)
    assert code == 0
    difference = (pixels("a.anon.png") != pixels("a.png")).reshape(SIDE, 2, SIDE, 3).any((0, 2, 3))
    assert list(difference) == changed
    kinds = [face["kind"] for face in json.loads(out)["photos"][0]["faces"]]
    assert kinds == ["synth" if change else "kept" for change in changed]
    assert ("left unchanged" in err) is (False in changed)
    if stateless:
        assert anonface("recover", "a.anon.png", "--key-file", key, *mode, *options)[0] == 0
    else:
        assert anonface("recover", "a.anon.png", "--key-file", key, *options)[0] == (2 if options else 0)
        assert anonface("recover", "a.anon.png", "--key-file", key, "--overwrite")[0] == 0
    assert (pixels("a.recovered.png") == pixels("a.png")).all()


def test_counts_say_what_became_of_each_face(anonface, key, monkeypatch):
    """Replaced, covered, left; and at recovery recovered or not: of those that were left it knows nothing."""
    monkeypatch.setattr("anonface.pipeline.Engine", Neighbours)
    two_people()
    for tier, back in (
        ("file", "2 faces recovered, the original file"),
        ("face", "2 faces recovered, the original pix"),
    ):
        args = ["a.png", "--key-file", key, "--seal", tier, "--faces", "0", "--box", "1,1,4,4", "--overwrite"]
        code, _, err = anonface("anonymize", *args)
        assert code == 0 and ": 3 faces: 1 replaced, 1 left unchanged, 1 covered by a mosaic (too small), " in err
        code, _, err = anonface("recover", "a.anon.png", "--key-file", key, "--overwrite")
        assert code == 0 and f": {back}" in err
    _, _, err = anonface("recover", "a.anon.png", "--key-file", key, "--overwrite", "--seal", "none")
    assert ": 1 face recovered, approximately, by the networks, " in err
    assert anonface("anonymize", "a.png", "--key-file", key, "--stateless", "--faces", "1", "--overwrite")[0] == 0
    _, _, err = anonface("recover", "a.anon.png", "--key-file", key, "--stateless", "--faces", "1", "-o", "b.png")
    assert ": 2 faces: 1 left unchanged, 1 recovered, approximately, by the networks, " in err


@pytest.mark.parametrize("faces", ["2", "0,7"])
def test_a_face_that_is_not_there(anonface, key, monkeypatch, faces):
    monkeypatch.setattr("anonface.pipeline.Engine", Neighbours)
    two_people()
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--faces", faces)
    assert code == 2 and "there is no face" in err and names(".") == ["a.png", "k.bin"]


@pytest.mark.parametrize("options", [["--faces", "some"], ["--faces", "-1"], ["--keep-faces", "nobody"]])
def test_choices_that_make_no_sense(anonface, key, options):
    photo("a.png")
    Path("nobody").mkdir()
    assert anonface("anonymize", "a.png", "--key-file", key, *options)[0] == 2
    assert not Path("a.anon.png").exists()


# --- Runs that were cut short ----------------------------------------------------------------------------------------


def wait():
    """For ever, once it is said so by a file."""
    Path("here").touch()
    time.sleep(60)


class Hesitant(FakeEngine):
    """Waits at the third photo."""

    photos = 0

    def anonymize(self, *args, **options):
        Hesitant.photos += 1
        if Hesitant.photos == 3:
            wait()
        return super().anonymize(*args, **options)


class Loading(FakeEngine):
    """Is interrupted while it loads, and makes an error of its own of it."""

    def __init__(self, *args, **options):
        try:
            wait()
        except BaseException:
            raise ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'") from None


class Rendering(FakeEngine):
    """The same at its first photo."""

    def anonymize(self, *args, **options):
        try:
            wait()
        except BaseException:
            raise MemoryError from None


class Deaf(FakeEngine):
    """Takes no notice."""

    def anonymize(self, *args, **options):
        try:
            wait()
        except BaseException:
            return super().anonymize(*args, **options)


ENGINES = {engine.__name__: engine for engine in (FakeEngine, Hesitant, Loading, Rendering, Deaf)}


def dying(moment, number):
    """A writer that kills its process before or after so many files are written."""
    writes = 0

    def write(files, overwrite=False, bound=False):
        nonlocal writes
        for path, data in files:
            writes += 1
            if (moment, number) == ("before", writes):
                os.kill(os.getpid(), signal.SIGKILL)
            write_atomic(path, data, overwrite)
            if (moment, number) == ("after", writes):
                os.kill(os.getpid(), signal.SIGKILL)

    return write


def begun(args, engine="FakeEngine", death=None):
    """A new process at work on a command line, with one of the engines here; its output goes to out.txt and err.txt.

    A new one and no fork: this one has threads, whose locks a fork would inherit.
    """
    order = json.dumps({"args": [str(arg) for arg in args], "engine": engine, "death": death})
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {folders!r}; import test_cli; test_cli.at_work()"
    with Path("out.txt").open("w") as out, Path("err.txt").open("w") as err:
        return subprocess.Popen(
            [sys.executable, "-c", program, order], stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )


def at_work():
    """What :func:`begun` begins."""
    order = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests run in the background
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anonface.pipeline.Engine", ENGINES[order["engine"]])
        patch.setattr(doctor_module, "fetch_missing", lambda: None)
        if order["death"]:
            patch.setattr("anonface.batch.task.write_together", dying(*order["death"]))
        sys.argv = ["anonface", *order["args"]]
        app.main()


def album(count=5):
    for n in range(count):
        photo(f"album/{n}.png", 50 + n)


@pytest.fixture
def counted(monkeypatch):
    """The photos that are treated in this process, by the shade of their first pixel."""
    seen = []

    class Counting(FakeEngine):
        def anonymize(self, pixels, key, **options):
            seen.append(int(pixels[0, 0, 0]))
            return super().anonymize(pixels, key, **options)

    monkeypatch.setattr("anonface.pipeline.Engine", Counting)
    return seen


def signalled(process, signum, code):
    """What a process says that gets a signal where it waits, and ends with that code."""
    patience = time.monotonic() + 60
    while not Path("here").exists() and time.monotonic() < patience:
        time.sleep(0.01)
    process.send_signal(signum)
    assert process.wait(60) == code
    return Path("out.txt").read_text(), Path("err.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loading, Rendering, Deaf])
@pytest.mark.parametrize(("signum", "code", "word"), [(signal.SIGINT, 130, "inter"), (signal.SIGTERM, 143, "termina")])
def test_what_a_library_makes_of_an_interrupt_is_one(key, engine, signum, code, word):
    album(2)
    process = begun(["anonymize", "album", "-o", "out", "--key-file", key, "--json"], engine=engine.__name__)
    out, err = signalled(process, signum, code)
    result = json.loads(out)
    first = "done" if engine is Deaf else "not reached"
    assert [p["state"] for p in result["photos"]] == [first, "not reached"]
    assert "unexpected" not in out + err and "error:" not in err and result["error"]["code"] == code
    assert err.splitlines()[-1].startswith(f"anonface: {word}")


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_and_resumed(anonface, key, counted, signum, code):
    album()
    args = ["anonymize", "album", "-o", "out", "--key-file", key, "--json"]
    process = begun([*args, "--report", "report.json"], engine="Hesitant")
    out, err = signalled(process, signum, code)
    result = json.loads(out)
    assert result["exit"] == result["error"]["code"] == code and out.count("\n") == 1
    states = ["done"] * 2 + ["not reached"] * 3
    assert [(Path(p["input"]).name, p["state"]) for p in result["photos"]] == [
        (f"{n}.png", state) for n, state in enumerate(states)
    ]
    assert "5 photos: 2 done, 3 not reached" in err and json.loads(Path("report.json").read_text()) == result
    assert [name for name in names("out") if not JOURNAL.match(name)] == ["0.anon.png", "1.anon.png"]

    code, out, _ = anonface(*args, "--resume")
    assert code == 0 and counted == [52, 53, 54]
    assert [(p["state"], p["resumed"]) for p in json.loads(out)["photos"]] == [("done", n < 2) for n in range(5)]
    assert [face["kind"] for face in json.loads(out)["photos"][0]["faces"]] == ["synth"]
    assert names("out") == [f"{n}.anon.png" for n in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("sidecar", [[], ["--sidecar", "records"]])
@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [2, 5])
def test_a_run_that_is_killed_and_resumed(anonface, key, counted, moment, number, sidecar, overwrite):
    album(3)
    args = ["anonymize", "album", "-o", "out", "--key-file", key, *sidecar, *overwrite]
    if overwrite:
        assert anonface(*args)[0] == 0
        counted.clear()
    before = {file.name: file.read_bytes() for file in Path("out").glob("*.png")}
    number = number if sidecar else (number + 1) // 2
    assert begun(args, death=(moment, number)).wait(60) == -signal.SIGKILL
    whole = (number if moment == "after" else number - 1) // (2 if sidecar else 1)
    changed = [file.name for file in sorted(Path("out").glob("*.png")) if before.get(file.name) != file.read_bytes()]
    assert changed == [f"{n}.anon.png" for n in range(whole)]

    code, _, err = anonface(*args, "--resume")
    assert code == 0, err
    assert counted == [50, 51, 52][whole:]
    assert names("out") == [f"{n}.anon.png" for n in range(3)]
    assert names("records") == [f"{n}.anon.png.anf" for n in range(3)] if sidecar else True
    assert anonface("recover", "out", "-o", "back", "--key-file", key, *sidecar)[0] == 0
    assert all((pixels(f"back/{n}.recovered.png") == pixels(f"album/{n}.png")).all() for n in range(3))


def noted_as_written():
    """How many photos the journal in out/ says are written."""
    return sum(file.read_text().count('"written": true') for file in Path().glob("out/.anonface-*.journal"))


@pytest.mark.slow
def test_a_second_run_of_a_command_at_work_is_refused(anonface, key, counted):
    album(3)
    args = ["anonymize", "album", "-o", "out", "--key-file", key]
    process = begun(args, engine="Hesitant")
    patience = time.monotonic() + 180
    while noted_as_written() < 2 and time.monotonic() < patience:  # from then on the process writes nothing
        time.sleep(0.01)
    before = contents("out")
    assert len(before) == 3  # two results and the journal
    for resume in ([], ["--resume"], ["--overwrite"]):
        code, _, err = anonface(*args, *resume)
        assert code == 10 and err.count("error:") == 1 and "another run of this command is at work" in err
        assert contents("out") == before
    assert counted == []
    process.kill()
    process.wait(60)
    assert anonface(*args, "--resume")[0] == 0 and names("out") == [f"{n}.anon.png" for n in range(3)]


def test_a_resumed_run_replaces_its_report_and_nothing_else(anonface, key, counted):
    album(2)
    args = ("anonymize", "album", "-o", "out", "--key-file", key, "--report", "r.json", "--resume")
    for content in (b"not a report", b"[]", b'{"photos": 1}'):
        Path("r.json").write_bytes(content)
        code, _, err = anonface(*args)
        assert code == 10 and "exists" in err and Path("r.json").read_bytes() == content
    Path("r.json").unlink()
    assert anonface(*args)[0] == 0
    Path("album/3.png").write_text("no picture")
    assert anonface(*args)[0] == 3  # its own report is replaced
    assert json.loads(Path("r.json").read_text())["exit"] == 3


def test_a_report_is_replaced_where_existing_results_are_passed_over(anonface, key):
    album(2)
    args = ("anonymize", "album", "-o", "out", "--key-file", key, "--report", "r.json")
    assert anonface(*args)[0] == 0
    photo("album/2.png")
    before = files()
    assert anonface(*args)[0] == 10 and files() == before
    assert anonface(*args, "--skip-existing")[0] == 0
    photos = json.loads(Path("r.json").read_text())["photos"]
    assert [photo["state"] for photo in photos] == ["done"] * 3 and len(photos[0]["faces"]) == 1  # as it was written
    assert anonface(*args[:1], "album/2.png", *args[2:], "--skip-existing")[0] == 0
    assert len(json.loads(Path("r.json").read_text())["photos"]) == 3
    Path("r.json").write_text("something else")
    assert anonface(*args, "--skip-existing")[0] == 10 and Path("r.json").read_text() == "something else"


def test_a_run_resumed_with_what_failed(anonface, key, counted):
    album(3)
    Path("album/1.png").write_text("no picture")
    args = ["anonymize", "album", "-o", "out", "--key-file", key]
    code, _, err = anonface(*args)
    assert code == 3 and "--resume" not in err and err.splitlines()[-1].split()[:2] == ["4", "album/1.png"]
    photo("album/1.png", 51)
    counted.clear()
    assert anonface(*args)[0] == 3  # without --resume what exists is refused, as ever
    (Path("out") / "1.anon.png").unlink()
    counted.clear()
    assert anonface(*args, "--resume")[0] == 0 and counted == [51]
    assert names("out") == [f"{n}.anon.png" for n in range(3)]


RESUMED = ("anonymize", "album", "-o", "out")


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        ((), ("--consistent",), "had --consistent off, not on"),
        (("--seal", "none"), ("--seal", "face"), "had --seal none, not face"),
        (("--seal", "none"), (), "had --seal none, not unset"),
        ((), ("--stateless", "--batch-size", "3"), "had --stateless off, not on"),
        ((), ("--backend", "diffusion"), "had --backend inpaint, not diffusion"),
        (("--free", "sex"), ("--free", "sex,age"), "had --free sex, not sex,age"),
        ((), ("-r", "--faces", "largest"), "had --faces all, not largest; --recursive off, not on"),
        ((), ("--key-file", "other.key"), "had another key"),
        ((), ("--key-file", "other.key", "--seal", "none"), "had another key; --seal unset, not none"),
    ],
)
def test_a_run_is_resumed_under_its_own_terms_alone(anonface, key, counted, first, then, says):
    album(3)
    Path("album/1.png").write_text("no picture")
    anonface("keygen", "other.key")
    assert anonface(*RESUMED, "--key-file", key, *first)[0] == 3
    before = files(), Path("out/0.anon.png").read_bytes()
    counted.clear()
    code, out, err = anonface(*RESUMED, "--key-file", key, *then, "--resume", "--json")
    assert code == 2 and f"the run to be resumed {says}\n" in err and json.loads(out)["error"]["code"] == 2
    assert (files(), Path("out/0.anon.png").read_bytes()) == before and counted == []
    photo("album/1.png", 51)
    assert anonface(*RESUMED, "--key-file", key, *first, "--resume")[0] == 0 and counted == [51]


def test_what_changes_nothing_of_the_photos_that_are_there_may_differ(anonface, key, counted):
    """The same key under another name, too."""
    album(3)
    photo("album/1.png", 0)
    assert anonface(*RESUMED, "--key-file", key)[0] == 3
    Path("elsewhere.key").write_bytes(key.read_bytes())
    counted.clear()
    more = ("--no-face", "copy", "--max-pixels", "5000", "--device", "cpu", "--workers", "2", "--batch-size", "1")
    assert anonface(*RESUMED, "--key-file", "elsewhere.key", "--resume", *more)[0] == 0 and counted == [0]


def test_a_passphrase_is_known_again(anonface, key, counted, monkeypatch):
    album(3)
    Path("album/1.png").write_text("no picture")
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    assert anonface(*RESUMED)[0] == 3
    photo("album/1.png", 51)
    for secret, args in (("another horse", ()), ("correct horse", ("--key-file", key))):
        monkeypatch.setenv("ANONFACE_PASSPHRASE", secret)
        code, _, err = anonface(*RESUMED, *args, "--resume")
        assert code == 2 and "had another key" in err
    counted.clear()
    assert anonface(*RESUMED, "--resume")[0] == 0 and counted == [51]
    assert anonface("recover", "out", "-o", "back")[0] == 0
    for n in range(3):
        assert Path(f"back/{n}.recovered.png").read_bytes() == Path(f"album/{n}.png").read_bytes()


def test_a_run_is_found_behind_another_that_was_begun_by_mistake(anonface, key, counted):
    album(3)
    anonface("keygen", "other.key")
    Path("album/1.png").write_text("no picture")
    assert anonface(*RESUMED, "--key-file", key)[0] == 3
    assert anonface(*RESUMED, "--key-file", key)[0] == 3
    assert anonface(*RESUMED, "--key-file", "other.key")[0] == 3
    photo("album/1.png", 51)
    counted.clear()
    code, out, _ = anonface(*RESUMED, "--key-file", key, "--resume", "--json")
    assert code == 0 and counted == [51] and sum(p["resumed"] for p in json.loads(out)["photos"]) == 2


def test_resuming_a_run_that_was_complete(anonface, key, counted):
    album(3)
    for paths in (("album",), ("album/0.png",)):
        args = ("anonymize", *paths, "-o", f"out{len(paths[0])}/", "--key-file", key)
        assert anonface(*args)[0] == 0
        counted.clear()
        code, out, err = anonface(*args, "--resume", "--json")
        result = json.loads(out)
        assert code == result["exit"] == 0 and counted == []
        assert err.count("nothing is left to do") == 1 and "starts from" not in err
        assert {p["state"] for p in result["photos"]} == {"skipped"}
    Path("out5/1.anon.png").unlink()
    code, _, err = anonface("anonymize", "album", "-o", "out5", "--key-file", key, "--resume")
    assert code == 3 and "nothing to resume" in err and counted == [51]  # what is there is refused, as ever


def test_resuming_is_proposed_where_it_helps(anonface, key, monkeypatch):
    album(2)
    hint = "the same command with --resume continues with the rest"
    args = ("anonymize", "album", "-o", "out", "--key-file", key)
    photo("album/black.png", 0)
    Path("album/bad.png").write_text("no picture")
    code, _, err = anonface(*args)
    assert code == 3 and "2 done, 2 failed" in err and hint not in err  # what is wrong with those stays wrong
    Path("album/bad.png").unlink()
    Path("album/black.png").unlink()

    class Narrow(FakeEngine):
        def anonymize(self, pixels, key, **options):
            if pixels[0, 0, 0] == 51:
                raise MemoryError
            return super().anonymize(pixels, key, **options)

    with monkeypatch.context() as short:
        short.setattr("anonface.pipeline.Engine", Narrow)
        for file in ("out/0.anon.png", "out/1.anon.png"):
            Path(file).unlink()
        assert hint in anonface(*args)[2]
        assert hint not in anonface(*args)[2]  # nothing was written
    code, _, err = anonface(*args)
    assert code == 3 and hint not in err  # what is left is there already
    assert hint not in anonface("anonymize", "album/none.png", "-o", "new/", "--key-file", key)[2]
    anonface("keygen", "other.key")
    for name, file in (("a.png", key), ("b.png", "other.key")):
        assert anonface("anonymize", "album/0.png", "-o", f"mixed/{name}", "--key-file", file)[0] == 0
    code, _, err = anonface("recover", "mixed/*.png", "-o", "back", "--key-file", key, "--decoy")
    assert code == 3 and hint not in err  # a decoy stays one


def test_a_journal_names_files_and_settings_and_nothing_else_of_them(anonface, key):
    album(2)
    photo("album/black.png", 0)
    marks = []
    for folder in ("out", "new"):
        assert anonface("anonymize", "album", "-o", folder, "--key-file", key)[0] == 3
        (journal,) = [Path(folder, name) for name in names(folder) if JOURNAL.match(name)]
        terms, *lines = [json.loads(line) for line in journal.read_text().splitlines()]
        kinds = sorted(sorted(line) for line in lines)
        assert kinds == [["outputs", "photo", "record", "run", "source"]] * 2 + [["photo", "run", "written"]] * 2
        lines = [line for line in lines if "outputs" in line]
        assert all(set(line["outputs"][0]) == {"file", "bytes", "before"} for line in lines)
        stated = terms["terms"]
        assert set(terms) == {"terms"} and set(stated) == {"run", "settings", "mark", "stretched"}
        assert not [name for name in stated["settings"] if "key" in name or "passphrase" in name]
        marks += [stated["run"], stated["mark"]]
        text = re.sub(f"{stated['run']}|{stated['mark']}|" + r'"file": "[^"]*"', "", journal.read_text())
        assert not re.search(r"[0-9a-f]{32}|[A-Za-z0-9+/]{43}", text)
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    assert len(set(marks)) == 4  # nothing links two journals of one key


def test_where_no_journal_can_be_kept_the_run_goes_on(anonface, key, monkeypatch):
    album(2)
    photo("top.png")
    monkeypatch.setattr("anonface.batch.plan.journal_folder", lambda *_: Path("k.bin"))
    code, _, err = anonface("anonymize", "album", "top.png", "--key-file", key)
    assert code == 0 and "without a journal" in err


@pytest.mark.parametrize("option", ["--sidecar", "--report", "-o"])
def test_a_key_is_never_written_over(anonface, key, option):
    photo("a.png")
    line = Path("k.png")
    line.write_bytes(key.read_bytes())
    line.chmod(0o600)
    code, _, err = anonface("anonymize", "a.png", "--key-file", "k.png", option, "k.png", "--overwrite")
    assert code == 10 and "choose another output" in err
    assert line.read_bytes() == key.read_bytes() and names(".") == ["a.png", "k.bin", "k.png"]


def test_a_record_that_is_read_is_never_written_over(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "--sidecar", "a.anf")[0] == 0
    record = Path("a.anf").read_bytes()
    args = ["recover", "a.anon.png", "--key-file", key, "--sidecar", "a.anf", "--overwrite"]
    assert anonface(*args, "--report", "a.anf")[0] == 10 and Path("a.anf").read_bytes() == record
    assert anonface(*args)[0] == 0


# --- Seals -----------------------------------------------------------------------------------------------------------


def test_a_seal_is_not_opened_on_a_device_that_is_not_there(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    for device, code in (("cuda:99", 70), ("gpu", 2)):
        got, _, err = anonface("recover", "a.anon.png", "--key-file", key, "--device", device)
        assert got == code and device in err
        assert not Path("a.recovered.png").exists()
    assert anonface("recover", "a.anon.png", "--key-file", key, "--device", "cpu")[0] == 0


def test_an_original_comes_back_under_its_own_name_and_suffix(anonface, key):
    photo("album/a.jpg", format="jpeg", comment=b"what the camera wrote")
    photo("album/deep/b.tif", 90, format="tiff")
    assert anonface("anonymize", "album", "-r", "-o", "out", "--key-file", key)[0] == 0
    code, out, err = anonface("recover", "out", "-r", "-o", "back", "--key-file", key, "--json")
    assert code == 0 and json.loads(out)["device"] is None  # no network was needed
    assert "out/a.anon.jpg -> back/a.recovered.jpg: 1 face recovered, the original file" in err
    assert [(p["output"], p["tier"], p["verified"]) for p in json.loads(out)["photos"]] == [
        ("back/a.recovered.jpg", "file", "yes"),
        ("back/deep/b.recovered.tif", "file", "yes"),
    ]
    for name in ("a{}.jpg", "deep/b{}.tif"):
        assert Path("back", name.format(".recovered")).read_bytes() == Path("album", name.format("")).read_bytes()
    code, _, err = anonface("recover", "out", "-r", "-o", "back", "--key-file", key, "--skip-existing")
    assert code == 0 and "2 photos: 2 skipped" in err
    assert anonface("recover", "out", "-r", "-o", "back", "--key-file", key)[0] == 3


def test_an_output_named_for_another_format(anonface, key):
    photo("a.png")
    anonface("anonymize", "a.png", "--key-file", key)
    code, _, err = anonface("recover", "a.anon.png", "--key-file", key, "-o", "b.jpg")
    assert code == 2 and "b.png" in err and not Path("b.jpg").exists()
    assert anonface("recover", "a.anon.png", "--key-file", key, "-o", "b.jpg", "--seal", "none")[0] == 0
    assert anonface("recover", "a.anon.png", "--key-file", key, "-o", "b.tiff", "--seal", "none")[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_recovery_that_is_killed_and_resumed(anonface, key, moment):
    for n in range(3):
        photo(f"album/{n}.jpg", 50 + n, format="jpeg")
    assert anonface("anonymize", "album", "-o", "out", "--key-file", key)[0] == 0
    args = ["recover", "out", "-o", "back", "--key-file", key]
    assert begun(args, death=(moment, 2)).wait(60) == -signal.SIGKILL
    code, out, _ = anonface(*args, "--resume", "--json")
    photos = json.loads(out)["photos"]
    assert code == 0 and [entry["resumed"] for entry in photos] == [True, moment == "after", False]
    assert [(entry["output"], entry["tier"], entry["verified"]) for entry in photos] == [
        (f"back/{n}.recovered.jpg", "file", "yes") for n in range(3)
    ]
    assert names("back") == [f"{n}.recovered.jpg" for n in range(3)]
    assert all(Path(f"back/{n}.recovered.jpg").read_bytes() == Path(f"album/{n}.jpg").read_bytes() for n in range(3))


def test_decoys_among_several(anonface, key):
    album(2)
    anonface("keygen", "other.key")
    assert anonface("anonymize", "album/0.png", "-o", "out/", "--key-file", key)[0] == 0
    assert anonface("anonymize", "album/1.png", "-o", "out/", "--key-file", "other.key")[0] == 0
    args = ["recover", "out", "-o", "back", "--key-file", key, "--decoy", "--json"]
    for more in ([], ["--resume"]):
        code, out, err = anonface(*args, *more)
        good, bad = json.loads(out)["photos"]
        assert code == 3 and "1 done, 1 decoy" in err and (good["state"], good["verified"]) == ("done", "yes")
        assert (bad["state"], bad["verified"], bad["tier"], bad["error"]["code"]) == ("decoy", "no", "none", 7)
    assert names("back")[1:] == ["0.recovered.png", "1.decoy.png"]
    assert (pixels("back/1.decoy.png") != pixels("album/1.png")).any()
    code, _, err = anonface("recover", "out", "-o", "named", "--key-file", key, "--decoy", "--name", "{stem}{ext}")
    assert code == 3 and names("named")[1:] == ["0.png", "1.decoy.png"]
    code, _, err = anonface("recover", "out/1.anon.png", "-o", "b.png", "--key-file", key, "--decoy")
    assert code == 7 and "'b.png' is a decoy" in err and Path("b.png").exists()  # the user's name stays
    code, out, _ = anonface("anonymize", "back", "-o", "again", "--key-file", key, "--json")
    assert code == 2 and "holds no photo" in json.loads(out)["error"]["message"]  # neither is taken for a photo


def test_a_decoy_never_replaces_what_is_read(anonface, key):
    photo("a.png")
    anonface("keygen", "other.key")
    anonface("anonymize", "a.png", "--key-file", key, "-o", "b.decoy.png")
    before = Path("b.decoy.png").read_bytes()
    code, _, err = anonface("recover", "b.decoy.png", "--key-file", "other.key", "--decoy", "--overwrite")
    assert code == 10 and "is the input itself" in err and Path("b.decoy.png").read_bytes() == before


def test_sixteen_bits_come_back_in_the_file_alone(anonface, key):
    Image.fromarray(np.arange(0, 40 * 32 * 40, 40, np.uint16).reshape(32, 40)).save("a.png")
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--seal", "face")
    assert code == 2 and "--seal file" in err and not Path("a.anon.png").exists()
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    assert anonface("recover", "a.anon.png", "--key-file", key)[0] == 0
    assert Path("a.recovered.png").read_bytes() == Path("a.png").read_bytes()


def test_face_pixels(anonface, key):
    photo("a.jpg", format="jpeg")
    code, _, err = anonface("anonymize", "a.jpg", "--key-file", key, "--seal", "face", "--format", "webp")
    assert code == 0 and "face pixels encrypted" in err
    code, _, err = anonface("recover", "a.anon.webp", "--key-file", key)
    assert code == 0 and "the original pixels" in err
    assert (pixels("a.recovered.png") == pixels("a.jpg")).all()


@pytest.mark.parametrize(
    ("tier", "output", "exact"),
    [
        ("file", "b.png", True),
        ("face", "b.png", True),
        ("face", "b.webp", True),
        ("face", "b.jpg", False),
        ("none", "b.png", False),
    ],
)
def test_exact_is_said_of_what_is_exact_alone(anonface, key, tier, output, exact):
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 40, 3), np.uint8)).save("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key, "--seal", tier)[0] == 0
    args = ["recover", "a.anon.png", "--key-file", key, "-o", output, "--report", "r.json", "--json"]
    code, out, err = anonface(*args)
    (entry,) = json.loads(out)["photos"]
    assert code == 0 and json.loads(Path("r.json").read_text())["photos"] == [entry]
    assert (entry["verified"], entry["exact"]) == ("unknown" if tier == "none" else "yes", exact)
    assert ("not exact" in err) is (output == "b.jpg")
    assert (pixels(output) == pixels("a.png")).all() == (exact or tier == "none")  # the fake engine's way back is exact


def test_inspect_says_what_is_public_and_what_recovery_needs(anonface, key, monkeypatch):
    photo("a.png")
    for tier, need in (("file", "the key file"), ("face", "every pixel"), ("none", "networks of backend inpaint")):
        assert anonface("anonymize", "a.png", "--key-file", key, "--seal", tier, "--overwrite")[0] == 0
        code, out, _ = anonface("inspect", "a.anon.png", "--json")
        facts = json.loads(out)
        assert code == 0 and facts["tier"] == tier and facts["carrier"] == "png" and len(facts["faces"]) == 1
        assert facts["file_bytes"] == Path("a.anon.png").stat().st_size > facts["record_bytes"] > facts["payload_bytes"]
        assert any(need in text for text in facts["needs"]) and (facts["payload_bytes"] > 0) is (tier != "none")
        shown = anonface("inspect", "a.anon.png")[1]
        assert need in shown and f"tier            {tier}" in shown and "faces           1" in shown
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    anonface("anonymize", "a.png", "--sidecar", "a.anf", "--overwrite")
    facts = json.loads(anonface("inspect", "a.anf", "--json")[1])
    assert facts["needs"][0] == "the passphrase" and facts["carrier"] == "sidecar"


def test_strip(anonface, key):
    photo("a.png")
    anonface("anonymize", "a.png", "--key-file", key)
    assert anonface("strip", "a.anon.png")[0] == 0
    assert (pixels("a.anon.stripped.png") == pixels("a.anon.png")).all()
    assert anonface("inspect", "a.anon.stripped.png")[0] == 8
    assert anonface("strip", "a.anon.png")[0] == 10
    assert anonface("strip", "a.anon.png", "-o", "a.anon.png", "--overwrite")[0] == 10
    assert anonface("strip", "a.anon.stripped.png", "-o", "b.png")[0] == 8
    assert anonface("strip", "a.anon.png", "--overwrite")[0] == 0
    assert anonface("strip", "k.bin", "-o", "b.png")[0] == 4 and not Path("b.png").exists()
    anonface("anonymize", "a.png", "--key-file", key, "-o", "c.png", "--sidecar", "c.anf")
    code, _, err = anonface("strip", "c.anf")
    assert code == 8 and "'c.anf' is a record and no photo" in err and "nothing to strip" in err


def test_rekey(anonface, key, monkeypatch):
    photo("a.png")
    for name in ("new.key", "other.key"):
        anonface("keygen", name)
    anonface("anonymize", "a.png", "--key-file", key)
    rekey = ("rekey", "a.anon.png", "--new-key-file", "new.key")
    code, _, err = anonface(*rekey, "--old-key-file", "other.key")
    assert code == 7 and "'a.anon.png' was sealed under another key" in err and "--decoy" not in err
    code, _, err = anonface(*rekey, "--old-key-file", "new.key")
    assert code == 2 and "are the same" in err
    assert not Path("a.anon.rekeyed.png").exists()
    code, _, err = anonface(*rekey, "--old-key-file", key)
    assert code == 0 and "the old key still opens 'a.anon.png'" in err
    assert (pixels("a.anon.rekeyed.png") == pixels("a.anon.png")).all()
    assert anonface("recover", "a.anon.rekeyed.png", "--key-file", key)[0] == 7
    assert anonface("recover", "a.anon.rekeyed.png", "--key-file", "new.key", "-o", "b.png")[0] == 0
    assert Path("b.png").read_bytes() == Path("a.png").read_bytes()
    assert anonface(*rekey, "--old-key-file", key)[0] == 10

    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    anonface("anonymize", "a.png", "-o", "p.png")
    assert anonface("rekey", "p.png", "--new-key-file", "new.key", "-o", "q.png")[0] == 0
    assert json.loads(anonface("inspect", "q.png", "--json")[1])["passphrase"] is None
    assert anonface("recover", "q.png", "--key-file", "new.key", "-o", "c.png")[0] == 0
    assert Path("c.png").read_bytes() == Path("a.png").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["strip", "rekey"])
@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("a.png", "b.jpg", 2),
        ("a.png", "b.webp", 2),
        ("a.png", "b", 2),
        ("a.png", "b.anf", 2),
        ("a.png", "b.PNG", 0),
        ("a.jpg", "b.png", 2),
        ("a.jpg", "b.jpeg", 0),
        ("a.webp", "b.jpg", 2),
        ("a.webp", "b.webp", 0),
    ],
)
def test_a_file_that_keeps_its_pixels_keeps_its_format(anonface, key, command, source, target, code):
    photo("photo.png")
    anonface("keygen", "new.key")
    anonface("anonymize", "photo.png", "--key-file", key, "-o", source)
    keys = ["--old-key-file", key, "--new-key-file", "new.key"] if command == "rekey" else []
    got, _, err = anonface(command, source, "-o", target, *keys)
    assert got == code and Path(target).exists() is (code == 0)
    if code:
        assert "stays one" in err and f"hint: name it b{Path(source).suffix}" in err
        return
    with Image.open(target) as image:
        assert SUFFIX_OF[image.format] == Path(source).suffix
    assert (pixels(target) == pixels(source)).all()


def test_a_sidecar_stays_one(anonface, key):
    photo("a.png")
    anonface("keygen", "new.key")
    anonface("anonymize", "a.png", "--key-file", key, "--sidecar", "a.anf")
    rekey = ("rekey", "a.anf", "--old-key-file", key, "--new-key-file", "new.key")
    code, _, err = anonface(*rekey, "-o", "b.png")
    assert code == 2 and "hint: name it b.anf" in err and not Path("b.png").exists()
    assert anonface(*rekey, "-o", "b.anf")[0] == 0


def test_rekeying_what_has_no_record(anonface, key):
    photo("a.png")
    anonface("keygen", "new.key")
    anonface("anonymize", "a.png", "--key-file", key, "--stateless")
    code, _, err = anonface("rekey", "a.anon.png", "--old-key-file", key, "--new-key-file", "new.key")
    assert code == 8 and "hint: name its sidecar, if it has one; a photo made with --stateless keeps its key" in err
    assert "`recover`" not in err and not Path("a.anon.rekeyed.png").exists()


def test_rekeying_names_its_own_options(anonface, key, monkeypatch):
    photo("a.png")
    anonface("anonymize", "a.png", "--key-file", key)
    rekey = ("rekey", "a.anon.png", "--new-key-file", "new.key")
    anonface("keygen", "new.key")
    code, _, err = anonface(*rekey)
    assert code == 6 and "hint: --old-key-file FILE" in err and "hint: --key-file" not in err
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    code, _, err = anonface(*rekey)
    assert code == 6 and "hint: name it with --old-key-file" in err
    anonface("anonymize", "a.png", "-o", "p.png")
    code, _, err = anonface("rekey", "p.png", "--old-key-file", key, "--new-key-file", "new.key")
    assert code == 6 and "hint: leave --old-key-file out" in err
    anonface("keygen", "wrapped.key", "--passphrase")
    monkeypatch.delenv("ANONFACE_PASSPHRASE")
    code, _, err = anonface("rekey", "a.anon.png", "--old-key-file", key, "--new-key-file", "wrapped.key")
    assert code == 6 and "use --new-passphrase-file" in err


def test_strip_and_rekey_as_json(anonface, key):
    photo("a.png")
    anonface("keygen", "new.key")
    keys = ("--old-key-file", key, "--new-key-file", "new.key")
    for tier, verified in (("file", "yes"), ("none", "unknown")):
        anonface("anonymize", "a.png", "--key-file", key, "--seal", tier, "-o", f"{tier}.png")
        code, out, _ = anonface("rekey", f"{tier}.png", *keys, "--json")
        said = {"exit": 0, "input": f"{tier}.png", "output": f"{tier}.rekeyed.png", "verified": verified}
        assert code == 0 and json.loads(out) == said and out.count("\n") == 1
    code, out, _ = anonface("strip", "file.png", "--json")
    assert code == 0 and json.loads(out) == {"exit": 0, "input": "file.png", "output": "file.stripped.png"}
    for command in (("strip", "file.png"), ("rekey", "file.png", *keys)):
        code, out, _ = anonface(*command, "--json")
        assert code == json.loads(out)["exit"] == json.loads(out)["error"]["code"] == 10 and out.count("\n") == 1


@pytest.mark.parametrize("mode", [["--seal", "none"], ["--stateless"], []])
def test_that_nothing_can_be_verified_is_said_once(anonface, key, mode):
    album(3)
    assert anonface("anonymize", "album", "-o", "out", "--key-file", key, *mode)[0] == 0
    way = mode[:1] if mode == ["--stateless"] else []
    for paths, count in ((["out"], "3 photos"), (["out/0.anon.png"], "1 photo")):
        code, _, err = anonface("recover", *paths, "-o", f"{count[0]}/", "--key-file", key, *way)
        assert code == 0 and err.count("it is unknown whether the key was right") == bool(mode)
        assert (f"note: no original is stored in {count}, so" in err) is bool(mode)


def test_a_box_and_a_crop_are_told_apart(anonface, key):
    """Where a face was seen, and what the record knows of it."""
    photo("a.png")
    for mode, name in (([], "crop"), (["--stateless"], "box")):
        args = ("--key-file", key, "--json", "--overwrite")
        (seen,) = json.loads(anonface("anonymize", "a.png", *args, *mode)[1])["photos"][0]["faces"]
        assert seen["box"] == [0, 0, SIDE, SIDE] and "crop" not in seen
        for more in [mode] if mode else (["--seal", "none"], []):
            (back,) = json.loads(anonface("recover", "a.anon.png", *args, *more)[1])["photos"][0]["faces"]
            assert len(back[name]) == 4 and ("crop" in back) is (name == "crop") and ("box" in back) is (name == "box")


@pytest.mark.parametrize("right", [True, False])
def test_rekeying_what_is_not_sealed_promises_nothing(anonface, key, right):
    photo("a.png")
    anonface("keygen", "new.key")
    anonface("keygen", "other.key")
    anonface("anonymize", "a.png", "--key-file", key, "--seal", "none")
    rekey = ("rekey", "a.anon.png", "--old-key-file", key if right else "other.key", "--new-key-file", "new.key")
    code, _, err = anonface(*rekey)
    assert code == 0 and "could not be checked" in err and "delete" not in err
    code, _, err = anonface("recover", "a.anon.rekeyed.png", "--key-file", "new.key", "-o", "b.png")
    assert code == 0 and "it is unknown whether the old key was right" in err
    assert (pixels("b.png") == pixels("a.png")).all() == right
    assert anonface("rekey", "a.anon.png", "--old-key-file", key, "--new-key-file", key, "-o", "c.png")[0] == 2


def test_no_secret_is_ever_said(anonface, key, monkeypatch):
    """In no message, report, or trace of a failure."""
    photo("a.png")
    anonface("keygen", "new.key")
    secrets = [line for file in (key, "new.key") for line in (Path(file).read_text().strip(),)]
    secrets += [Key.from_bytes(text.encode())._secret.hex() for text in secrets]
    secrets += [repr(bytes.fromhex(text))[2:-1] for text in secrets[2:]]
    said = []
    for command in (
        ("anonymize", "a.png", "--key-file", key, "--json"),
        ("recover", "a.anon.png", "--key-file", "new.key", "--json"),
        ("recover", "a.anon.png", "--key-file", "new.key", "--decoy", "--json"),
        ("rekey", "a.anon.png", "--old-key-file", key, "--new-key-file", "new.key"),
        ("rekey", "a.anon.png", "--old-key-file", "new.key", "--new-key-file", key, "-o", "b.png"),
        ("inspect", "a.anon.rekeyed.png", "--json"),
        ("recover", "a.anon.rekeyed.png", "--key-file", "new.key", "-o", "c.png", "--json"),
    ):
        said += anonface("--debug", *command)[1:]
    monkeypatch.setattr("anonface.record.sealing.bound", lambda header: 1 / 0)
    said += anonface("--debug", "recover", "a.anon.png", "--key-file", key, "--overwrite")[1:]
    assert "ZeroDivisionError" in said[-1] and len("".join(said)) > 1000
    assert not [secret for secret in secrets if secret in "".join(said)]


def test_no_core_dump_can_hold_a_key(room):
    code = (
        "import resource, sys; from anonface.cli import app\n"
        "hard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "assert app.run(['keygen', 'k']) == 0\n"
        "print(hard, resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    hard, soft = done.stdout.split()
    if hard == "0":
        pytest.skip("core dumps are off for good on this machine")
    assert soft == "0"


# --- The other commands ----------------------------------------------------------------------------------------------


def test_inspect_what_has_no_record(anonface):
    photo("a.png")
    code, _, err = anonface("inspect", "a.png")
    assert code == 8 and "hint: name its sidecar, if it has one; a photo made with --stateless has no record" in err
    Path("text.jpg").write_text("no picture")
    assert anonface("inspect", "text.jpg")[0] == 4


def test_a_folder_to_evaluate_is_looked_for_first(anonface):
    code, _, err = anonface("evaluate", "nowhere")
    assert code == 2 and "'nowhere' does not exist" in err


def test_several_photos_need_a_folder(anonface, key):
    album(2)
    code, _, err = anonface("anonymize", "album", "-o", "z.png", "--key-file", key)
    assert code == 2 and "end it with /" in err and not Path("z.png").exists()
    assert anonface("anonymize", "album", "-o", "z.png/", "--key-file", key)[0] == 0


def test_a_passphrase_for_a_key_without_one(anonface, key):
    photo("a.png")
    Path("pass").write_text("correct horse\n")
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--passphrase-file", "pass")
    assert code == 2 and "not wrapped" in err and not Path("a.anon.png").exists()


def test_bad_keys_are_refused_before_their_permissions_are_spoken_of(anonface):
    photo("a.png")
    Path("folder").mkdir()
    Path("bad.key").write_text("nonsense")
    Path("bad.key").chmod(0o644)
    for name in ("folder", "bad.key"):
        code, _, err = anonface("anonymize", "a.png", "--key-file", name)
        assert code == 6 and "can be read by others" not in err


def test_names_stand_once_in_the_table_of_failures(anonface, key):
    album(1)
    Path("album/text.jpg").write_text("no picture")
    code, _, err = anonface("anonymize", "album", "-o", "out", "--key-file", key)
    assert code == 3 and err.splitlines()[-1] == "   4  album/text.jpg  is not an image that can be read"


def test_a_pattern_is_no_folder_to_look_deeper_into(anonface, key):
    code, _, err = anonface("anonymize", "album/*.png", "--key-file", key)
    assert code == 2 and "--recursive" not in err


def test_a_photo_that_was_anonymized_before_is_noted(anonface, key):
    photo("a.anon.png")
    code, _, err = anonface("anonymize", "a.anon.png", "--key-file", key)
    assert code == 0 and "anonymized before" in err


def test_compare(anonface, key):
    photo("a.png")
    photo("b.png", 60)
    code, _, err = anonface("compare", "a.png", "b.png", "-o", "sheet.png", "--key-file", key, "--cell", "64")
    assert code == 0 and "sheet.png of 2 photos" in err
    assert pixels("sheet.png").shape[1] > 5 * 64
    assert anonface("compare", "a.png", "-o", "sheet.png", "--key-file", key)[0] == 10
    photo("black.png", 0)
    assert anonface("compare", "black.png", "-o", "no.png", "--key-file", key)[0] == 5
    assert not Path("no.png").exists()


def test_compare_backends_beside_each_other(anonface, key):
    photo("a.png")
    code, _, err = anonface(
        "compare", "a.png", "-o", "s.png", "--key-file", key, "--cell", "64", "--beside", "hford,dbaf,inpaint"
    )
    assert code == 0 and "s.png of 1 photo" in err and err.count("anonface: device") == 1
    assert 7 * 64 < pixels("s.png").shape[1] < 9 * 64  # the photo and two pictures of each of three
    for wrong, said in (
        ("pixelate", "cannot recover a photo"),
        ("nobody", "does not know 'nobody'"),
        ("", "names nothing"),
    ):
        code, _, err = anonface("compare", "a.png", "-o", "t.png", "--key-file", key, "--beside", wrong)
        assert code == 2 and said in err and not Path("t.png").exists()


def test_a_sheet_of_a_run(anonface, key):
    photo("album/a.png")
    photo("album/b.png", 60)
    photo("album/black.png", 0)
    code, _, err = anonface("anonymize", "album", "-o", "out", "--sheet", "out/sheet.png", "--key-file", key)
    assert code == 3 and err.endswith("out/sheet.png of 2 photos\n") and Path("out/sheet.png").exists()
    assert anonface("anonymize", "album", "-o", "new", "--sheet", "out/sheet.png", "--key-file", key)[0] == 10
    assert anonface("anonymize", "album", "-o", "new", "--sheet", "sheet.jpg", "--key-file", key)[0] == 2
    assert not Path("new").exists()


def test_no_command_shows_help_and_a_wrong_one_is_named(anonface):
    code, out, _ = anonface()
    assert code == 0 and all(name in out for name in ("anonymize", "recover", "compare", "doctor"))
    code, _, err = anonface("anonimize")
    assert code == 2 and "anonimize" in err and "anonymize" in err
    assert anonface("--version")[1].startswith("anonface 0.")


def test_weights(anonface, monkeypatch, tmp_path):
    code, out, _ = anonface("weights", "list", "--json")
    assert code == 0 and {"generator", "yunet"} <= {file["name"] for file in json.loads(out)["files"]}
    assert "StyleGAN2-FFHQ" in anonface("weights", "licenses", "generator")[1]
    assert "non-commercial" in anonface("weights", "licenses")[1]

    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    code, _, err = anonface("weights", "pull", "yunet")
    assert code == 9 and "yunet" in err and "ANONFACE_OFFLINE" in err
    code, out, _ = anonface("weights", "verify")
    assert code == 9 and "missing" in out
    code, _, err = anonface("weights", "pull", "yunett")
    assert code == 9 and "yunet" in err


def test_doctor(anonface, monkeypatch, tmp_path):
    code, out, _ = anonface("doctor", "--json")
    assert json.loads(out)["ready"] is (code == 0)
    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path / "empty"))
    code, out, _ = anonface("doctor")
    assert code == 9 and "anonface weights pull" in out and not (tmp_path / "empty" / "files").exists()


@pytest.mark.slow
def test_evaluate_and_train_refuse_what_makes_no_sense(anonface):
    Path("empty").mkdir()
    code, _, err = anonface("evaluate", "empty")
    assert code == 2 and "no photos" in err
    code, _, err = anonface("evaluate")
    assert code == 2 and "--synthetic" in err
    code, _, err = anonface("evaluate", "empty", "--synthetic", "2")
    assert code == 2 and "not both" in err
    code, _, err = anonface("evaluate", "empty", "--attacks", "jpeg9")
    assert code == 2 and "'jpeg9'" in err
    code, _, err = anonface("evaluate", "empty", "--report", "page.txt")
    assert code == 2 and ".html" in err
    Path("page.json").touch()
    code, _, err = anonface("evaluate", "empty", "--report", "page.html")
    assert code == 10 and "page.json" in err
    for part, said in (("1/2", "--journal"), ("half", "K/N"), ("1/2/3", "K/N")):
        code, _, err = anonface("evaluate", "empty", "--part", part)
        assert code == 2 and said in err
    code, _, err = anonface("train", "nothing", "run")
    assert code == 2 and "nothing" in err


# --- The process -----------------------------------------------------------------------------------------------------


def test_a_terminated_process_says_so(key):
    photo("a.png")
    waiting = (
        "import sys, time, anonface.cli.app as cli, anonface.batch.task as batch\n"
        "def wait(*_, **__): print('here', flush=True); time.sleep(60)\n"
        "batch.Anonymizing.ready = wait\n"
        f"sys.argv = ['anonface', 'anonymize', 'a.png', '--key-file', {str(key)!r}]\n"
        "cli.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert not Path("a.anon.png").exists()


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "anonface", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("anonface 0.")
    done = subprocess.run([sys.executable, "-m", "anonface", "anonimize"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("anonface: error: ")


def test_what_is_kept_is_the_other_way_to_say_what_is_let_go(anonface, key, monkeypatch):
    from anonface.models.identity import CONDITIONS

    assert tuple(CONDITIONS) == options.ATTRIBUTES
    said = []
    freed = options._changeable

    def spy(free, keep):
        said.append(freed(free, keep))
        return said[-1]

    monkeypatch.setattr(options, "_changeable", spy)
    photo("a.png")
    for kept in ("sex,age", "tone", "", "sex,age,tone", "age,sex"):
        anonface("anonymize", "a.png", "--key-file", key, "--keep", kept, "--overwrite")
    assert said == ["tone", "sex,age", "sex,age,tone", None, "tone"]
    for command in (("recover", "a.anon.png"), ("compare", "a.png", "-o", "sheet.png")):
        anonface(*command, "--key-file", key, "--keep", "sex", "--overwrite")
        assert said.pop() == "age,tone"
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--keep", "sex", "--free", "age", "--overwrite")
    assert code == 2 and "--keep and --free set the same thing" in err
    code, _, err = anonface("anonymize", "a.png", "--key-file", key, "--keep", "hair,sex", "--overwrite")
    assert code == 2 and "cannot keep hair" in err and "sex, age, tone" in err and len(said) == 5


def test_keygen_and_inspect_load_no_network_library(key):
    code = (
        "import sys; from anonface.cli import app\n"
        "app.run(sys.argv[1:]); assert not {'torch', 'cv2'} & set(sys.modules)"
    )
    for args in (["keygen", "n.key"], ["inspect", str(key)]):
        assert subprocess.run([sys.executable, "-c", code, *args], capture_output=True).returncode == 0


def test_no_secret_in_the_arguments(anonface):
    """There is no option that takes a key or passphrase itself."""
    key = Key.generate().to_text()
    photo("a.png")
    code, _, err = anonface("anonymize", "a.png", "--key", key)
    assert code == 2 and key not in err


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(console, "QUIET", 0.05)
    with console.progress_bar("photos", 3) as advance:
        advance(1, "rendering face 1 of 2")
        time.sleep(0.4)
    said = capsys.readouterr().err.splitlines()
    assert said and all(
        re.fullmatch(r"anonface: 1 of 3 photos; rendering face 1 of 2; \d+ s so far", line) for line in said
    )
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_photo_that_is_not_there_is_said_before_a_key_is_asked_for(anonface):
    for command in ("anonymize", "recover"):
        code, _, err = anonface(command, "nothere.png")
        assert code == 4 and "'nothere.png' cannot be read: No such file or directory" in err


def test_a_decoy_never_replaces_a_recovered_photo(anonface, key):
    photo("a.png")
    anonface("keygen", "other.key")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    assert anonface("recover", "a.anon.png", "--key-file", key, "-o", "back.png")[0] == 0
    right = Path("back.png").read_bytes()
    args = ["recover", "a.anon.png", "--key-file", "other.key", "-o", "back.png", "--decoy", "--overwrite"]
    assert anonface(*args)[0] == 7
    assert Path("back.png").read_bytes() == right and Path("back.decoy.png").exists()


def test_a_journal_that_was_edited_decides_neither_key_nor_costs(anonface, key):
    album(2)
    photo("album/black.png", 0)
    assert anonface("anonymize", "album", "-o", "out", "--key-file", key)[0] == 3
    (journal,) = [Path("out", name) for name in names("out") if JOURNAL.match(name)]
    terms, *lines = journal.read_text().splitlines()
    edited = json.loads(terms)
    edited["terms"] |= {"mark": "", "stretched": [8, 1, 1]}
    journal.write_text("\n".join([json.dumps(edited), *lines]) + "\n")
    code, _, err = anonface("anonymize", "album", "-o", "out", "--key-file", key, "--resume")
    assert code == 2 and "another key" in err


@pytest.mark.parametrize(("data", "says"), [(b"", "is empty"), (b"text", "is not an image")])
@pytest.mark.parametrize("command", ["recover", "rekey", "strip", "inspect"])
def test_what_is_no_photo_is_not_said_to_lack_a_record(anonface, key, command, data, says):
    Path("a.anon.jpg").write_bytes(data)
    keys = {"recover": ["--key-file", key], "rekey": ["--old-key-file", key, "--new-key-file", "new.key"]}
    anonface("keygen", "new.key")
    before = files()
    code, _, err = anonface(command, "a.anon.jpg", *keys.get(command, []))
    assert code == 4 and err.count("error:") == 1 and "'a.anon.jpg'" in err and files() == before
    assert says in err or command == "inspect"


def test_a_broken_file_and_a_sidecar_that_is_none_are_named(anonface, key):
    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", key)[0] == 0
    Path("cut.png").write_bytes(Path("a.anon.png").read_bytes()[:-40])
    for command in ("inspect", "recover"):
        keys = ["--key-file", key] * (command == "recover")
        code, _, err = anonface(command, "cut.png", *keys)
        assert code == 8 and err.count("cut.png") == 1 and "structure is broken" in err
    code, _, err = anonface("recover", "a.anon.png", "--key-file", key, "--sidecar", "a.png")
    assert code == 8 and "'a.png' carries no anonface record" in err
