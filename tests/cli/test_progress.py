"""How far a command has come, on terminals of every kind."""

import io
import re
import time

import pytest

from anonface.cli import console


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """Draw one state of a progress bar on a terminal of a width; what it wrote, and the last line drawn."""

    def draw(width, text="212 faces, 0.05/s; rendering face 2 of 3", **environment):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        with console.progress_bar("photos", 500) as advance:
            advance(123, text)
            time.sleep(0.3)
        drawn = terminal.getvalue()
        lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn))
        return drawn, [line for line in lines if "123" in line][-1] if "123" in drawn else ""

    return draw


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_line_fits_its_terminal_and_says_the_number_first(shown, width):
    drawn, line = shown(width)
    assert len(line) <= width and "123/500 photos" in line
    assert ("━" in drawn) == (width >= console.WIDE)
    assert (line.rstrip().endswith("rendering face 2 of 3")) == (width >= 60)
    assert bool(re.search(r"\x1b\[[0-9;]*m", drawn)) == (width >= console.WIDE)  # colours


def test_without_colours_the_bar_has_none(shown):
    drawn, line = shown(80, NO_COLOR="1")
    assert "123/500 photos" in line and not re.search(r"\x1b\[[0-9;]*m", drawn)


def test_a_terminal_that_draws_nothing_anew_gets_lines(shown, monkeypatch):
    monkeypatch.setattr(console, "QUIET", 0.05)
    drawn, line = shown(40, TERM="dumb")
    assert "\x1b" not in drawn and line.startswith("anonface: 123 of 500 photos; ")


def test_odd_names_in_the_text_stay_on_the_line(shown):
    assert "a\\nb" in shown(80, "a\nb")[1]


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])

    def go(seconds):
        now[0] += seconds

    return go


def test_the_time_left_follows_from_the_work_done(clock):
    pace = console.Pace("photos", 10)
    pace.advance(4, "", 10, 4)  # written by an earlier run
    assert pace.left() == ""
    pace.advance(4, console.LOADING, 10, 4)
    clock(60)
    pace.advance(4, "", 10, 4)
    clock(30)
    assert pace.left() == ""
    pace.advance(5, "", 10, 4)
    assert pace.left() == "2 min left"  # 30 s each; neither the loading nor the earlier photos count
    clock(20)
    pace.advance(5, "rendering face 1 of 1", 10, 4)
    assert pace.left() == "2 min left"
    clock(60)
    assert pace.left() == "70 s left"
    clock(3600)
    assert pace.left() == ""  # nobody knows
    pace.advance(10, "", 10, 4)
    assert pace.left() == ""


def test_durations():
    said = [console.duration(seconds) for seconds in (0.2, 40, 89, 90, 3000, 11100)]
    assert said == ["1 s", "40 s", "89 s", "2 min", "50 min", "3 h 05 min"]


def test_a_download_within_a_run_is_drawn_below_its_bar(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with console.progress_bar("photos", 5) as advance:
        advance(0, console.LOADING)
        with console.download_progress() as progress:
            progress("yunet", 10, 232589)
            time.sleep(0.3)
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert re.search(r"0/5 photos; loading the networks *\nyunet", drawn)
    assert all(len(line) <= 40 for line in re.split(r"[\r\n]", drawn))
