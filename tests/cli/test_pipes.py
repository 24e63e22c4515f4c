"""Photos through pipes: "-" is standard input and output."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anonface import streams
from anonface.cli import app

pytestmark = pytest.mark.usefixtures("key")
KEY = ("--key-file", "k.bin")


@pytest.fixture
def piped(capfdbinary, monkeypatch):
    """Run a command line with bytes at standard input: (exit code, standard output, standard error)."""

    def run(data, *args):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        capfdbinary.readouterr()
        code = app.run([str(arg) for arg in args])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


def photo(kind="JPEG", shade=120):
    Image.new("RGB", (40, 32), (shade, shade // 2, shade // 3)).save(buffer := io.BytesIO(), kind)
    return buffer.getvalue()


def kind_of(data):
    return Image.open(io.BytesIO(data)).format


def names():
    return sorted(os.listdir())  # noqa: PTH208


@pytest.mark.parametrize(
    ("kind", "options", "made"),
    [
        ("JPEG", (), "JPEG"),
        ("PNG", (), "PNG"),
        ("WEBP", (), "WEBP"),
        ("TIFF", (), "PNG"),
        ("JPEG", ("--format", "webp"), "WEBP"),
        ("JPEG", ("--seal", "none"), "PNG"),
        ("JPEG", ("--seal", "face"), "PNG"),
    ],
)
def test_through_two_pipes(piped, kind, options, made):
    data = photo(kind)
    code, hidden, err = piped(data, "anonymize", "-", *KEY, *options)
    assert code == 0 and kind_of(hidden) == made and hidden != data
    assert "standard input -> standard output: 1 face replaced" in err and names() == ["k.bin"]
    code, back, err = piped(hidden, "recover", "-", *KEY)
    assert code == 0 and "standard input -> standard output: 1 face recovered" in err and names() == ["k.bin"]
    if "--seal" not in options:
        assert back == data
    else:
        assert kind_of(back) == "PNG"
        assert (np.asarray(Image.open(io.BytesIO(back))) == np.asarray(Image.open(io.BytesIO(data)))).all()


def test_regions_that_stay_to_the_bit_are_not_written_as_jpeg(piped, monkeypatch):
    """The fake engine knows no regions; the name of the output is chosen before it is asked."""
    monkeypatch.setattr("anonface.faces.detect.build_detector", lambda name: None)
    monkeypatch.setattr("anonface.faces.locate.locate", lambda *_: [])
    Path("a.jpg").write_bytes(photo())
    for options, made in (((), "a.anon.jpg"), (("--keep-regions", "eyes"), "a.anon.png")):
        code, out, err = piped(b"", "anonymize", "a.jpg", "--dry-run", "--no-face", "copy", *options)
        assert code == 0 and f"a.jpg -> {made}:" in out.decode(), err


def test_one_end_is_a_file(piped):
    data = photo()
    Path("a.jpg").write_bytes(data)
    code, hidden, _ = piped(b"", "anonymize", "a.jpg", "-o", "-", *KEY)
    assert code == 0 and kind_of(hidden) == "JPEG" and names() == ["a.jpg", "k.bin"]
    assert piped(data, "anonymize", "-", "-o", "new/b.png", *KEY)[:2] == (0, b"")
    assert Image.open("new/b.png").format == "PNG"
    assert piped(Path("new/b.png").read_bytes(), "recover", "-", "-o", "c.jpg", *KEY)[0] == 0
    assert Path("c.jpg").read_bytes() == data
    assert piped(b"", "recover", "new/b.png", "-o", "-", *KEY)[:2] == (0, data)


def test_a_record_beside_a_pipe(piped):
    code, hidden, err = piped(photo(), "anonymize", "-", "--sidecar", "a.anf", *KEY)
    assert code == 0 and b"ANONFACE" not in hidden and names() == ["a.anf", "k.bin"]
    assert piped(hidden, "recover", "-", "--sidecar", "a.anf", *KEY)[:2] == (0, photo())
    code, out, err = piped(photo(), "anonymize", "-", "--sidecar", "records/", *KEY)
    assert (code, out) == (2, b"") and "no name of its own" in err


def test_the_other_commands(piped, monkeypatch):
    class Finder:
        def detect(self, pixels):
            return []

    monkeypatch.setattr("anonface.faces.detect.build_detector", lambda name: Finder())
    hidden = piped(photo(), "anonymize", "-", *KEY)[1]
    assert b'"carrier": "jpeg"' in piped(hidden, "inspect", "-", "--json")[1]
    code, bare, err = piped(hidden, "strip", "-")
    assert code == 0 and b"ANONFACE" in hidden and b"ANONFACE" not in bare and kind_of(bare) == "JPEG" and err == ""
    assert piped(hidden, "strip", "-", "-o", "bare.jpg")[0] == 0 and Path("bare.jpg").read_bytes() == bare
    Path("a.jpg").write_bytes(hidden)
    assert piped(b"", "strip", "a.jpg", "-o", "-")[:2] == (0, bare)
    assert piped(hidden, "detect", "-")[:2] == (0, b"standard input: 0 faces\n")
    code, boxes, err = piped(hidden, "detect", "-", "-o", "-")
    assert code == 0 and kind_of(boxes) == "PNG" and err == "standard input: 0 faces\n"
    code, out, _ = piped(photo(), "anonymize", "-", "--dry-run", "--no-face", "copy")
    assert code == 0 and out == b"standard input -> standard output: 0 faces of 0 would be changed\n"


def test_rekey_through_a_pipe(piped):
    app.run(["keygen", "new.key"])
    keys = ("--old-key-file", "k.bin", "--new-key-file", "new.key")
    hidden = piped(photo(), "anonymize", "-", *KEY)[1]
    code, again, err = piped(hidden, "rekey", "-", *keys)
    assert code == 0 and kind_of(again) == "JPEG" and again != hidden and names() == ["k.bin", "new.key"]
    assert "the new key opens the copy; the old key still opens the photo" in err
    assert piped(again, "recover", "-", *KEY)[0] == 7
    assert piped(again, "recover", "-", "--key-file", "new.key")[:2] == (0, photo())
    assert piped(hidden, "rekey", "-", "-o", "b.jpg", *keys)[0] == 0
    Path("a.jpg").write_bytes(hidden)
    assert kind_of(piped(b"", "rekey", "a.jpg", "-o", "-", *keys)[1]) == "JPEG"
    assert piped(Path("b.jpg").read_bytes(), "recover", "-", "--key-file", "new.key")[:2] == (0, photo())


REFUSED = [
    (2, "reads one photo", ("anonymize", "-", "-", *KEY)),
    (2, "reads one photo", ("anonymize", "-", "a.jpg", "-o", "out/", *KEY)),
    (2, "reads one photo", ("detect", "a.jpg", "-")),
    (2, "standard output takes one photo, not 2", ("anonymize", "a.jpg", "b.jpg", "-o", "-", *KEY)),
    (2, "standard output takes one picture, not 2", ("detect", "a.jpg", "b.jpg", "-o", "-")),
    (2, "'-' and the photo would both be read", ("anonymize", "-", "--key-file", "-")),
    (2, "'-' and the photo would both be read", ("recover", "-", "--passphrase-file", "-")),
    (6, "no key is given", ("anonymize", "-")),
    (2, "--sidecar - is not possible", ("anonymize", "-", "--sidecar", "-", *KEY)),
    (2, "--sidecar - is not possible", ("recover", "a.jpg", "--sidecar", "-", *KEY)),
    (2, "--report - is not possible", ("anonymize", "a.jpg", "--report", "-", *KEY)),
    (2, "--coco - is not possible", ("detect", "-", "--coco", "-")),
    (2, "--json and the photo", ("anonymize", "-", "--json", *KEY)),
    (2, "--json and the photo", ("recover", "a.jpg", "-o", "-", "--json", *KEY)),
    (2, "--json and the photo", ("strip", "-", "--json")),
    (2, "--json and the photo", ("rekey", "-", "--old-key-file", "k.bin", "--new-key-file", "k.bin", "--json")),
    (2, "'-' and the photo would both be read", ("rekey", "-", "--new-key-file", "-", "--old-key-file", "k.bin")),
    (6, "no key is given", ("rekey", "-", "--new-key-file", "k.bin")),
    (8, "carries no anonface record", ("rekey", "-", "--old-key-file", "k.bin", "--new-key-file", "k.bin")),
    (2, "--json and the photo", ("detect", "-", "-o", "-", "--json")),
    (2, "--sheet needs photos in files", ("anonymize", "-", "--sheet", "s.png", *KEY)),
    (2, "--review needs photos in files", ("anonymize", "-", "--review", "r.html", *KEY)),
    (2, "--annotations needs photos in files", ("anonymize", "-", "--annotations", "x.json", *KEY)),
    (2, "--faces-out needs photos in files", ("anonymize", "a.jpg", "-o", "-", "--faces-out", "faces", *KEY)),
    (2, "--engine ray needs photos", ("anonymize", "a.jpg", "-o", "-", "--engine", "ray", *KEY)),
    (2, "--decoy needs photos in files", ("recover", "-", "--decoy", *KEY)),
    (2, "--name names files", ("anonymize", "-", "--name", "x{ext}", *KEY)),
    (2, "no name of its own", ("anonymize", "-", "-o", "out/", *KEY)),
    (2, "contradicts the name", ("anonymize", "-", "-o", "b.png", "--format", "jpeg", *KEY)),
    (8, "carries no anonface record", ("recover", "-", *KEY)),
    (8, "carries no anonface record", ("strip", "-")),
    (8, "carries no anonface record", ("inspect", "-")),
]


@pytest.mark.parametrize(("code", "says", "args"), REFUSED, ids=[" ".join(args) for *_, args in REFUSED])
def test_what_makes_no_sense_is_refused(piped, code, says, args):
    for name in ("a.jpg", "b.jpg"):
        Path(name).write_bytes(photo())
    got, out, err = piped(photo(), *args)
    errors = [line for line in err.splitlines() if "error:" in line]
    assert got == code and len(errors) == 1 and says in errors[0] and b"\xff" not in out and b"PNG" not in out
    assert names() == ["a.jpg", "b.jpg", "k.bin"] and "Traceback" not in err


@pytest.mark.parametrize(
    "command", [("anonymize", "-", *KEY), ("recover", "-", *KEY), ("strip", "-"), ("inspect", "-")]
)
@pytest.mark.parametrize(("data", "says"), [(b"", "is empty"), (b"no photo", "")])
def test_what_comes_in_is_no_photo(piped, command, data, says):
    code, out, err = piped(data, *command)
    assert code == 4 and out == b"" and says in err
    assert err.count("anonface: error: ") == 1 and names() == ["k.bin"]


def test_a_photo_without_a_face(piped):
    code, out, err = piped(photo(shade=0), "anonymize", "-", *KEY)
    assert code == 5 and out == b"" and "error: standard input: no face was found" in err


def test_a_wrong_key_writes_nothing(piped):
    app.run(["keygen", "other.key"])
    hidden = piped(photo(), "anonymize", "-", *KEY)[1]
    code, out, err = piped(hidden, "recover", "-", "--key-file", "other.key")
    assert code == 7 and out == b"" and err.count("error:") == 1


def test_terminals_are_refused(piped, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = piped(photo(), "anonymize", "-", *KEY)
    assert code == 2 and out == b"" and "not written to the terminal" in err


def test_standard_input_is_a_terminal(capfdbinary, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    assert app.run(["anonymize", "-", *KEY]) == 2
    out, err = capfdbinary.readouterr()
    assert out == b"" and b"standard input is a terminal" in err


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
def test_an_output_that_fails_leaves_nothing(piped, monkeypatch, number):
    def fail(descriptor, data):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(streams.os, "write", fail)
        code, out, err = piped(photo(), "anonymize", "-", "--sidecar", "a.anf", *KEY)
    assert code == 10 and out == b"" and names() == ["k.bin"]
    assert err.count("error: ") == 1 and ("was closed" if number == errno.EPIPE else "No space") in err


def test_what_libraries_print_does_not_reach_the_photo(capfdbinary):
    with streams.kept_for_photo() as write:
        os.write(1, b"from C\n")
        print("from Python")
        write(b"photo")
    print("afterwards")
    out, err = capfdbinary.readouterr()
    assert out == b"photoafterwards\n" and err == b"from C\nfrom Python\n"


def test_a_reader_that_went_is_one_line():
    """A real pipe, closed before a photo larger than what a pipe holds is written."""
    code = (
        "from anonface import streams\n"
        "with streams.kept_for_photo() as write:\n"
        "    try: write(bytes(1_000_000))\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "$0" | head -c 10', code], capture_output=True, check=True
    )
    assert done.stdout == bytes(10)
    assert done.stderr == b"OutputError standard output was closed before the whole photo was written\n"


def test_a_file_that_standard_input_is_read_from_is_not_written_over():
    Path("a.jpg").write_bytes(photo())
    command = "anonymize - -o a.jpg --overwrite --key-file k.bin < a.jpg"
    done = subprocess.run(["sh", "-c", f'"{sys.executable}" -m anonface {command}'], capture_output=True, text=True)
    assert done.returncode == 10 and "'/dev/stdin'" in done.stderr and Path("a.jpg").read_bytes() == photo()
