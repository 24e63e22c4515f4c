"""What surrounds a command: streams that are closed or full, signals at its start, limits, a folder that is gone."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from anonface import signals
from anonface.batch.run import explained
from anonface.cli import app
from anonface.cli import doctor as doctor_module
from anonface.errors import DeviceError

pytestmark = pytest.mark.usefixtures("key")

COMMAND = [sys.executable, "-m", "anonface"]


def photo(name, shade=120):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 32), (shade, shade // 2, shade // 3)).save(name)


class Full(io.StringIO):
    """A device without room, or a pipe that nobody reads."""

    number = errno.ENOSPC

    def write(self, text=""):
        raise OSError(self.number, os.strerror(self.number))

    flush = write


class Gone(Full):
    number = errno.EPIPE


@pytest.mark.parametrize(("stream", "said"), [(Full, 1), (Gone, 0)])
@pytest.mark.parametrize("args", [["anonymize", "a.png", "--key-file", "k.bin", "--json"], ["--help"], ["doctor"]])
def test_standard_output_that_fails(monkeypatch, capfd, stream, said, args):
    photo("a.png")
    monkeypatch.setattr(
        doctor_module, "_checks", lambda: iter([{"name": "a", "ok": True, "needed": True, "detail": "b"}])
    )
    monkeypatch.setattr(sys, "stdout", stream())
    assert app.run(args) == 10
    err = capfd.readouterr().err
    assert err.count("anonface: error: standard output cannot be written: No space left") == said
    assert "bug" not in err and "Traceback" not in err
    assert Path("a.anon.png").exists() == ("--json" in args)
    monkeypatch.setattr(sys, "stdout", stream())
    assert app.run(["anonymize", "none.png", "--key-file", "k.bin", "--json"]) == 4  # what failed first counts


@pytest.mark.parametrize("stream", [None, Full()])
def test_standard_error_that_is_closed_or_full(monkeypatch, stream):
    photo("a.png")
    monkeypatch.setattr(sys, "stderr", stream)
    assert app.run(["anonymize", "a.png", "--key-file", "k.bin"]) == 0
    monkeypatch.setattr(sys, "stderr", stream)
    assert app.run(["recover", "a.anon.png", "--key-file", "k.bin"]) == 0
    assert Path("a.recovered.png").read_bytes() == Path("a.png").read_bytes()
    assert app.run(["recover", "none.png", "--key-file", "k.bin"]) == 4


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_no_file_takes_the_place_of_a_stream_that_is_closed(closed):
    program = " ".join(COMMAND)
    done = subprocess.run(["sh", "-c", f"{program} keygen new.key {closed}"], capture_output=True)
    assert done.returncode == 0 and Path("new.key").read_text().startswith("AFK1-")
    assert Path("new.key").read_bytes().count(b"\n") == 1
    done = subprocess.run(["sh", "-c", f"{program} keygen new.key --passphrase {closed}"], capture_output=True)
    assert done.returncode == 6 and b"Traceback" not in done.stdout + done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_real_device_without_room():
    done = subprocess.run(["sh", "-c", f"{' '.join(COMMAND)} weights list >/dev/full"], capture_output=True, text=True)
    assert done.returncode == 10
    assert done.stderr == (
        "anonface: error: standard output cannot be written: No space left on device\nhint: files are complete\n"
    )


# --- Signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "number", "said"),
    [
        ("anonface.cli.app", signal.SIGINT, b"interrupted"),
        ("typer", signal.SIGTERM, b"terminated"),
        ("anonface.crypto.keys", signal.SIGINT, b"interrupted"),
        ("anonface.crypto.passphrases", signal.SIGTERM, b"terminated"),
    ],
)
def test_a_signal_at_the_start_is_one_line(module, number, said):
    """As soon as the package has anything to say; loading the command line takes most of a tenth of a second."""
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['anonface', 'keygen', 'new.key']\n"
        "from anonface.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert (done.returncode, done.stderr) == (128 + number, b"anonface: " + said + b"\n")
    assert not Path("new.key").exists()


def test_a_signal_that_comes_twice_at_once_does_not_interrupt_tidying_up(monkeypatch):
    monkeypatch.setattr(signals, "_received", 0)
    with pytest.raises(KeyboardInterrupt):
        signals._receive(signal.SIGINT, None)
    signals._receive(signal.SIGINT, None)
    monkeypatch.setattr(signals, "_when", signals._when - 2 * signals.ONE_WISH)
    with pytest.raises(KeyboardInterrupt):  # somebody insists
        signals._receive(signal.SIGTERM, None)
    assert signals.exit_code() == 143


def test_a_signal_at_the_end_is_one_line():
    program = (
        "import atexit, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['anonface', 'keygen', 'new.key']\n"
        "from anonface.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == 130 and done.stderr.splitlines()[1:] == [b"anonface: interrupted"]
    assert Path("new.key").exists()


def test_the_command_is_entered_where_signals_are_heeded_first():
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8")
    assert 'anonface = "anonface.__main__:main"' in text


# --- Limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
    ],
)
def test_too_little_memory_is_no_bug(error):
    known = explained(error)
    assert isinstance(known, DeviceError) and known.message.startswith("out of memory") and "bug" not in known.hint


def test_a_limit_on_memory_is_found_before_anything_crashes(monkeypatch, anonface):
    import resource

    photo("a.png")
    assert anonface("anonymize", "a.png", "--key-file", "k.bin", "-o", "b.png")[0] == 0
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (900 << 20, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    code, _, err = anonface("anonymize", "a.png", "--key-file", "k.bin")
    assert code == 70 and "this process may take 900 MiB" in err and "ulimit -v" in err and "bug" not in err
    assert anonface("recover", "b.png", "--key-file", "k.bin")[0] == 0  # a seal opens without


def test_a_working_directory_that_is_gone(anonface, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, out, err = anonface("anonymize", "a.png", "--key-file", tmp_path / "room" / "k.bin", "--json")
    assert code == 2 and "the working directory is gone" in err and json.loads(out)["error"]["code"] == 2


# --- Former options, and what is left behind -----------------------------------------------------------------


def test_options_that_have_no_effect_any_more_are_accepted_and_shown_nowhere(anonface):
    photo("a.png")
    former = ("--quality", "fast", "--refine=3")
    assert anonface("anonymize", "a.png", "--key-file", "k.bin", *former)[0] == 0
    assert anonface("recover", "--refine", "0", "a.anon.png", "--key-file", "k.bin")[0] == 0
    for command in ("anonymize", "recover", "compare", "evaluate", "audit"):
        said = anonface(command, "--help")[1]
        assert "--refine" not in said and "--quality" not in said


def test_a_journal_that_stays_is_named_and_one_without_use_goes(anonface, monkeypatch):
    photo("album/a.png")
    photo("album/b.png")
    args = ("anonymize", "album", "-o", "out", "--key-file", "k.bin")
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr("anonface.batch.task.write_together", lambda *_: (_ for _ in ()).throw(full))
        assert anonface(*args)[0] == 3
    assert not any(Path("out").glob("*"))
    Path("album/c.png").write_text("no picture")
    code, _, err = anonface(*args)
    (journal,) = Path("out").glob(".*")
    assert code == 3 and f"note: {journal} records this run" in err
    Path("album/c.png").unlink()
    assert anonface(*args, "--overwrite")[0] == 0 and not journal.exists()
