"""What holds for all tests, and the room that command lines are tried in."""

import io
import os

import pytest

# As the command line does it: threads wait awake for a moment, then sleep. Read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
if "PYTEST_XDIST_WORKER" in os.environ:  # a core for each
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def room(tmp_path, monkeypatch):
    """An empty folder to work in, the fake engine, cheap passphrases, nobody at the keyboard."""
    from fake import FakeEngine

    from anonface.cli import doctor as doctor_module
    from anonface.crypto.keys import Argon2

    folder = tmp_path / "room"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("anonface.pipeline.Engine", FakeEngine)
    monkeypatch.setattr(doctor_module, "fetch_missing", lambda: None)
    monkeypatch.setattr(Argon2, "fresh", classmethod(lambda cls: cls(os.urandom(16), 64, 1, 1)))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.delenv("ANONFACE_PASSPHRASE", raising=False)
    monkeypatch.delenv("ANONFACE_OFFLINE", raising=False)
    return folder


@pytest.fixture
def key(room):
    """A key file."""
    from anonface.cli import app

    app.run(["keygen", "k.bin"])
    return room / "k.bin"


@pytest.fixture
def anonface(capfd):
    """Run a command line in this process: (exit code, stdout, stderr), with what libraries say there."""
    from anonface.cli import app

    def run(*args):
        capfd.readouterr()
        code = app.run([str(arg) for arg in args])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def unsearched(monkeypatch):
    """No photo is searched for a watermark that was moved: without one that takes seconds, and has tests of its own."""
    from anonface.watermark import channel

    monkeypatch.setattr(channel, "SURE", 1.0)
