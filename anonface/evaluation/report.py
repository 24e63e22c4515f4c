"""An evaluation's results as data, and their renderings: JSON, Markdown, and tables for a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from anonface.evaluation.metrics import NOTHING, Interval

if TYPE_CHECKING:
    from rich.table import Table

ARROWS = {"lower": "↓", "higher": "↑", "": ""}
PERCENT = {"rate", "share"}
FINE = {"distance", ""}  # units that want three digits

Samples = Mapping[str, Sequence[tuple[str, int, float]]]


@dataclass(frozen=True)
class Threshold:
    """A distance below which two faces count as one person.

    Attributes:
        title: where it comes from.
        interval: the threshold; where it was measured, its bounds and the number of impostor pairs behind it.
    """

    title: str
    interval: Interval


@dataclass(frozen=True)
class Rate:
    """One measure at every threshold.

    Attributes:
        title: what is counted.
        better: "lower", "higher" or "" where the row only sets a scale.
        undetected: how many of the measurements had no face to compare; the title says how they count.
        at: one interval a threshold; shares in 0..1.
    """

    title: str
    better: str
    undetected: int
    at: tuple[Interval, ...]
    unit: str = "rate"


@dataclass(frozen=True)
class Figure:
    """One measure that no threshold changes; ``unit`` "share" means 0..1."""

    title: str
    better: str
    unit: str
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class RecognitionRow(Rate):
    """One measure by a further recognizer, at the thresholds of its table.

    Attributes:
        n: number of measurements.
        distance: their mean, where there was a face.
        cosine: the mean cosine of the same pairs, as papers have it.
    """

    n: int
    distance: Interval
    cosine: Interval


@dataclass(frozen=True)
class Recognition:
    """The table of one further recognizer.

    Attributes:
        recognizer: its name.
        seen_by_loss: whether a loss that trained the judged networks used it; then it is no independent judge.
        thresholds: those measured in the folder, then published ones; there may be none.
        rows: one a measure.
    """

    recognizer: str
    seen_by_loss: bool
    thresholds: tuple[Threshold, ...]
    rows: tuple[RecognitionRow, ...]


@dataclass(frozen=True)
class Grid:
    """A table as text: one title, the columns, and rows of equal length."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Report:
    """Results of an evaluation.

    Attributes:
        settings: what was run, printable values by name.
        thresholds: the distances that decide a match.
        rates: rows that depend on them.
        figures: rows that do not.
        samples: every single measurement by name, as (file, key number, value); NaN where no face was found.
        recognitions: tables of further recognizers.
    """

    settings: Mapping[str, str | int | float | None]
    thresholds: Sequence[Threshold]
    rates: Sequence[Rate]
    figures: Sequence[Figure]
    samples: Samples
    recognitions: Sequence[Recognition] = ()

    def row(self, title: str) -> Rate | None:
        """The first rate whose title starts so; None if it was not measured."""
        return next((rate for rate in self.rates if rate.title.startswith(title)), None)

    def rate(self, title: str, threshold: int = 0) -> Interval:
        """The interval of that row at the threshold of that index; NOTHING if it was not measured."""
        row = self.row(title)
        return row.at[threshold] if row else NOTHING

    def figure(self, title: str) -> Interval:
        """The interval of the figure with the shortest title that starts so; NOTHING if it was not measured."""
        found = (figure for figure in self.figures if figure.title.startswith(title))
        shortest = min(found, key=lambda figure: len(figure.title), default=None)
        return shortest.interval if shortest else NOTHING


def grids(report: Report) -> tuple[Grid, ...]:
    """Text tables: settings, rates by threshold, other figures, and one table for each further recognizer."""
    limits = tuple((f"threshold, {t.title}", _threshold_text(t.interval)) for t in report.thresholds)
    limits += tuple(
        (f"threshold of {table.recognizer}, {t.title}", _threshold_text(t.interval))
        for table in report.recognitions
        for t in table.thresholds
    )
    columns = ("", "", *(f"below {t.interval.value:.3f}" for t in report.thresholds), "of", "not found")
    rates = tuple(
        (r.title, ARROWS[r.better], *(_text(i, r.unit) for i in r.at), str(r.at[0].n), str(r.undetected))
        for r in report.rates
    )
    figures = tuple(
        (f.title, ARROWS[f.better], _text(f.interval, f.unit), "" if f.unit == "share" else f.unit, str(f.interval.n))
        for f in report.figures
    )
    return (
        Grid("Evaluation", ("", ""), settings_rows(report.settings) + limits),
        Grid("Rates, with 95 % intervals over people", columns, rates),
        Grid("Other figures", ("", "", "mean", "unit", "of"), figures),
        *map(_recognition_grid, report.recognitions),
    )


def settings_rows(settings: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, "–" if value is None else str(value)) for name, value in settings.items())


def _recognition_grid(table: Recognition) -> Grid:
    seen = "SEEN BY A TRAINING LOSS, so no independent judge" if table.seen_by_loss else "seen by no training loss"
    limits = (f"below {t.interval.value:.3f}" for t in table.thresholds)
    rows = tuple(
        (
            row.title,
            ARROWS[row.better],
            _text(row.distance, "distance"),
            _text(row.cosine, ""),
            *(_text(i, "rate") for i in row.at),
            str(row.n),
            str(row.undetected),
        )
        for row in table.rows
    )
    return Grid(
        f"By {table.recognizer}, {seen}", ("", "", "mean distance", "mean cosine", *limits, "of", "not found"), rows
    )


def for_terminal(grid: Grid) -> Table:
    """One table for a terminal."""
    from rich.table import Table

    table = Table(title=grid.title, title_justify="left", show_header=any(grid.columns))
    for number, column in enumerate(grid.columns):
        table.add_column(column, overflow="fold", justify="left" if number == 0 else "right")
    for row in grid.rows:
        table.add_row(*row)
    return table


def as_markdown(grid: Grid) -> str:
    """One table as Markdown, under its title."""
    lines = [grid.columns, tuple("---" for _ in grid.columns), *grid.rows]
    cells = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"### {grid.title}\n\n" + "\n".join(cells) + "\n"


def to_json(result: Any) -> str:
    """A dataclass or mapping, samples included, as strict JSON: NaN becomes null, infinity the text "inf"."""
    whole = asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
    return json.dumps(_plain(whole), allow_nan=False, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None if math.isnan(value) else str(value)
    return value


def _threshold_text(interval: Interval) -> str:
    if interval.n == 0:
        return f"{interval.value:.3f}"
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f}, {interval.n} impostor pairs)"


def _text(interval: Interval, unit: str) -> str:
    if math.isnan(interval.value):
        return "–"
    scale, digits, sign = (100, 1, " %") if unit in PERCENT else (1, 3, "") if unit in FINE else (1, 2, "")
    value, low, high = (f"{scale * v:.{digits}f}" for v in (interval.value, interval.low, interval.high))
    return f"{value}{sign}" if math.isnan(interval.low) else f"{value}{sign} ({low} to {high})"
