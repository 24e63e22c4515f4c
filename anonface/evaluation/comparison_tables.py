"""A comparison of engines as tables for a terminal, as Markdown, and as a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.comparison import PLACED, Comparison, Row
from anonface.evaluation.measurements import ANONYMIZED, ONE_BIT, RANDOM, RIGHT, in_the_face
from anonface.evaluation.metrics import NOTHING, Interval
from anonface.evaluation.page import document, gallery, table
from anonface.evaluation.published import COMMON, FIGURES, PAPERS
from anonface.evaluation.report import Grid, as_markdown

Pixels = NDArray[np.uint8]
Column = tuple[str, Callable[[Row], str]]

ABSENT = "–"
TITLE = "Engines beside each other, on the same photos"
GIVES = {"bytes": "every byte of the file", "pixels": "every pixel", "person": "the person", "nothing": "nothing"}


def grids(comparison: Comparison, narrow: bool = False) -> tuple[Grid, ...]:
    """Settings, one row an engine, engines left out, and figures that papers report.

    Args:
        narrow: split the columns over four tables, for a terminal.
    """
    settings = tuple((name, ABSENT if value is None else str(value)) for name, value in comparison.settings.items())
    used = comparison.thresholds[0]
    limit = (f"a match is a distance below, {used.title}", f"{used.interval.value:.3f}")
    parts = _parts(comparison.rows)
    if not narrow:
        parts = {TITLE: [column for columns in parts.values() for column in columns]}
    made = [Grid("Comparison", ("", ""), (*settings, limit))]
    made += [_grid(title, columns, comparison.rows) for title, columns in parts.items()]
    if comparison.left_out:
        made.append(Grid("Left out", ("engine", "why"), tuple(comparison.left_out.items())))
    return (*made, *published())


def published() -> tuple[Grid, Grid]:
    """Figures that papers report, and their protocols."""
    heading = "Not measured here: figures of papers, taken by their authors under other protocols"
    columns = ("method", "figure", "anonymized", "recovered", "photos; judge", "from")
    rows = tuple(
        (f.method, f.what, f.hidden or ABSENT, f.back or ABSENT, f"{f.on}; {f.judge}", f"{f.paper}, {f.table}")
        for f in FIGURES
    )
    papers = tuple((name, f"{paper.title}. {paper.differs}") for name, paper in PAPERS.items())
    return Grid(heading, columns, rows), Grid("How those protocols differ", ("", ""), (("all", COMMON), *papers))


def markdown(comparison: Comparison) -> str:
    """The tables as Markdown."""
    return "\n".join(map(as_markdown, grids(comparison)))


def page(comparison: Comparison, pictures: Mapping[str, Mapping[str, Pixels]]) -> str:
    """The tables as HTML, with a row of pictures for each photo.

    Args:
        pictures: by the photo's name, the pictures by their headings, uint8 [H, W, 3] of any size.
    """
    columns = list(dict.fromkeys(heading for versions in pictures.values() for heading in versions))
    black = np.zeros((1, 1, 3), np.uint8)
    rows = {name: [versions.get(column, black) for column in columns] for name, versions in pictures.items()}
    caption = f"The first key of the first {len(rows)} photos; black where an engine found no face, or opened nothing."
    title = f"{TITLE}: {comparison.settings.get('folder', '')}"
    return document(title, [*map(table, grids(comparison)), *gallery(columns, rows, caption)])


def _grid(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Grid:
    heads = ("engine", *(head for head, _ in columns))
    return Grid(title, heads, tuple((row.name, *(cell(row) for _, cell in columns)) for row in rows))


def _parts(rows: Sequence[Row]) -> dict[str, list[Column]]:
    """The columns in four parts, by title; detectors and classifiers are taken from the rows."""
    titles = [figure.title for figure in rows[0].report.figures] if rows else []
    found, sex, age = (
        [title for title in titles if title.startswith(start)]
        for start in ("face found again by ", "apparent sex kept, by ", "apparent age ")
    )
    return {
        "Who is still recognised": [
            ("matched to the original ↓", lambda row: _with_bounds(row, f"{ANONYMIZED}: matched to the original")),
            ("matched where the face was ↓", lambda row: _with_bounds(row, f"{PLACED}: matched to the original")),
            ("mean distance there ↑", lambda row: _mean(row, f"{PLACED}: mean distance", 2)),
            ("other photos matched ↓", lambda row: _percent([_rate(row, f"{ANONYMIZED}: matched to other photos")])),
        ],
        "What is left of use": [
            (f"found again by {_names(found)} ↑", lambda row: _shares(row, found)),
            ("landmarks off by, px of 256 ↓", lambda row: _mean(row, "landmark shift, 68 points", 1)),
            (f"sex kept, by {_names(sex)} ↑", lambda row: _shares(row, sex)),
            (f"age kept, by {_names(age)} ↑", lambda row: _shares(row, age)),
            ("PSNR, SSIM in the face", lambda row: _nearness(row, ANONYMIZED)),
        ],
        "What recovery gives": [
            ("right key, matched ↑", lambda row: _with_bounds(row, f"{RIGHT}: matched to the original")),
            ("wrong key / one bit off, matched ↓", _wrong),
            ("the right key brings back", _brings_back),
            ("PSNR, SSIM of that in the face ↑", lambda row: _nearness(row, RIGHT)),
        ],
        "What it takes": [
            ("s a face to anonymize ↓", lambda row: _mean(row, "anonymize", 2)),
            ("s a face to recover ↓", lambda row: _mean(row, "recover", 2)),
            ("peak memory, MB ↓", lambda row: ABSENT if math.isnan(row.memory) else f"{row.memory / 1e6:.0f}"),
        ],
    }


def _brings_back(row: Row) -> str:
    return GIVES[row.gives] + ("" if row.gives == "nothing" else f", {row.exact} of {row.tried}")


def _wrong(row: Row) -> str:
    """Matches under wrong keys; "refused" for a seal that opened under none of them."""
    tried = [value for name in (RANDOM, ONE_BIT) for _, _, value in row.report.samples.get(name, ())]
    if row.gives in ("bytes", "pixels") and tried and all(map(math.isnan, tried)):
        return "refused"
    return _percent([_rate(row, f"{name}: matched to the original") for name in (RANDOM, ONE_BIT)])


def _names(titles: Sequence[str]) -> str:
    """The names behind "by" in titles of figures, without brackets."""
    return " / ".join(title.partition(" by ")[2].partition(" (")[0] for title in titles)


def _rate(row: Row, title: str) -> Interval:
    """At the first threshold, the row whose title starts so; NOTHING if it was not measured."""
    return next((rate.at[0] for rate in row.report.rates if rate.title.startswith(title)), NOTHING)


def _figure(row: Row, title: str) -> Interval:
    """The figure of that title; NOTHING if it was not measured."""
    return next((figure.interval for figure in row.report.figures if figure.title == title), NOTHING)


def _with_bounds(row: Row, title: str) -> str:
    """A rate with its interval, and the number of faces not found."""
    rate = _rate(row, title)
    if not rate.n:
        return ABSENT
    missing = next(r.undetected for r in row.report.rates if r.title.startswith(title))
    words = f"{100 * rate.value:.3g} % ({100 * rate.low:.0f} to {100 * rate.high:.0f})"
    return words + (f", {missing} of {rate.n} not found" if missing else "")


def _percent(shares: Sequence[Interval]) -> str:
    """Shares as percentages; a dash where none was measured."""
    words = (f"{100 * share.value:.3g}" if share.n else ABSENT for share in shares)
    return " / ".join(words) + " %" if any(share.n for share in shares) else ABSENT


def _shares(row: Row, titles: Sequence[str]) -> str:
    return _percent([_figure(row, title) for title in titles])


def _mean(row: Row, title: str, digits: int) -> str:
    """A mean, and its number of measurements where some had no face."""
    mean = _figure(row, title)
    if not mean.n:
        return ABSENT
    tried = len(row.report.samples.get(title, ()))
    return f"{mean.value:.{digits}f}" + (f" (of {mean.n})" if mean.n < tried else "")


def _nearness(row: Row, name: str) -> str:
    near = [_figure(row, in_the_face(measure, name)) for measure in ("psnr", "ssim")]
    if not near[0].n:
        return ABSENT
    return f"{near[0].value:.1f} dB, {near[1].value:.2f}"
