import shutil
import subprocess

import pytest

from anonface.cli import app


def test_the_manual_page_shows_every_command(anonface):
    code, page, _ = anonface("man")
    assert code == 0 and page.startswith(".TH ANONFACE 1")
    for name in ("KEYGEN", "ANONYMIZE", "RECOVER", "DETECT", r"WEIGHTS PULL"):
        assert f".SH ANONFACE {name}\n" in page
    assert r"\-\-key\-file" in page
    assert "--" not in page  # a bare hyphen is typeset as one, and cannot be copied


@pytest.mark.skipif(not shutil.which("groff"), reason="this machine has no groff")
def test_groff_finds_nothing_wrong_with_it(anonface):
    _, page, _ = anonface("man")
    told = subprocess.run(["groff", "-man", "-Tascii", "-ww"], input=page, capture_output=True, text=True, check=True)
    assert not told.stderr and "anonface anonymize" in told.stdout.lower()


def test_a_shell_completes_commands_and_options(capfd, monkeypatch):
    monkeypatch.setenv(app.COMPLETING, "complete_bash")
    for words, cursor, expected in (("anonface ano", 1, "anonymize"), ("anonface anonymize --key", 2, "--key-file")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(cursor))
        with pytest.raises(SystemExit) as ended:  # typer's way
            app.run([])
        assert ended.value.code == 0 and capfd.readouterr().out.split() == [expected]
