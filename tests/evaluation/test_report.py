import json
import math

import pytest
from rich.console import Console

from anonface.evaluation.metrics import NOTHING, Interval
from anonface.evaluation.report import Figure, Rate, Report, Threshold, as_markdown, for_terminal, grids, to_json


@pytest.fixture
def report() -> Report:
    return Report(
        settings={"folder": "album|2", "people": None},
        thresholds=(
            Threshold("dlib's own", Interval(0.6, 0.6, 0.6, 0)),
            Threshold("FAR 0.1 % here", Interval(0.588, 0.566, 0.622, 14923)),
        ),
        rates=[
            Rate("anonymized: matched", "lower", 2, (Interval(0.05, 0.01, 0.1, 40), Interval(0.025, 0.0, 0.05, 40))),
            Rate("right / wrong", "higher", 0, (Interval(math.inf, 4.0, math.inf, 40), NOTHING), unit="ratio"),
        ],
        figures=[
            Figure("face found", "higher", "share", Interval(0.98, 0.95, 1.0, 40)),
            Figure("mean distance", "higher", "distance", Interval(0.7654, 0.7, 0.8, 40)),
            Figure("never measured", "lower", "s per face", NOTHING),
        ],
        samples={"anonymized": [("a.jpg", 0, 0.7), ("a.jpg", 1, math.nan)]},
    )


def test_grids(report):
    settings, rates, figures = grids(report)
    assert ("people", "–") in settings.rows
    assert ("threshold, FAR 0.1 % here", "0.588 (0.566 to 0.622, 14923 impostor pairs)") in settings.rows
    assert rates.columns[2:4] == ("below 0.600", "below 0.588")
    assert rates.rows[0] == ("anonymized: matched", "↓", "5.0 % (1.0 to 10.0)", "2.5 % (0.0 to 5.0)", "40", "2")
    assert rates.rows[1][2:4] == ("inf (4.00 to inf)", "–")
    assert figures.rows[1] == ("mean distance", "↑", "0.765 (0.700 to 0.800)", "distance", "40")
    assert figures.rows[2][2] == "–"
    for grid in grids(report):
        assert all(len(row) == len(grid.columns) for row in grid.rows)


def test_json_is_strict_and_whole(report):
    def refuse(text):
        raise AssertionError(text)

    data = json.loads(to_json(report), parse_constant=refuse)
    assert data["samples"]["anonymized"] == [["a.jpg", 0, 0.7], ["a.jpg", 1, None]]
    assert data["rates"][1]["at"][0]["value"] == "inf" and data["rates"][1]["at"][1]["value"] is None
    assert data["thresholds"][1]["interval"]["low"] == 0.566


def test_markdown_tables_hold_together(report):
    text = "\n".join(map(as_markdown, grids(report)))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "album\\|2" in text
    rows = [line for line in lines if "anonymized" in line or "below" in line]
    assert {line.count("|") for line in rows} == {7}


def test_terminal_tables(report):
    console = Console(width=140)
    with console.capture() as capture:
        console.print(*map(for_terminal, grids(report)))
    assert "5.0 % (1.0 to 10.0)" in capture.get() and "album|2" in capture.get()


def test_lookup(report):
    assert report.rate("anonymized", threshold=1).value == 0.025
    assert report.figure("face").value == 0.98
    assert report.rate("no such row") is report.figure("no such row") is NOTHING and report.row("no such row") is None
