"""A report as one self-contained HTML file, with pictures and plots, without scripts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anonface.evaluation import measurements as names
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.report import Grid, Report, Threshold, grids

Pixels = NDArray[np.uint8]

COLUMNS = ("original", "anonymized", "right key", "wrong key")
PICTURED = 24  # photos at most
SIDE = 160  # px, of a picture
QUALITY = 80
PLOTTED = (
    *(names.others("original"), names.ANONYMIZED, names.others(names.ANONYMIZED), names.RANDOM, names.ONE_BIT),
    *(names.NO_IDENTITY, names.NO_CODE, names.TWO_KEYS, names.RIGHT, names.others(names.RIGHT)),
    *map(names.after, DEGRADATIONS),
)
FARTHEST, BINS = 1.4, 56  # upper end and bins of a histogram of distances
WIDTH, HEIGHT, FOOT = 560, 70, 16  # px, of a plot

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
table { border-collapse: collapse; margin: 0 0 2rem; display: block; overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 0 0 .8rem; }
figcaption { font-size: 13px; }
img { display: block; border-radius: 3px; }
rect { fill: #4477aa; }
line { stroke: #bb3322; stroke-dasharray: 3 3; }
path { stroke: #888; fill: none; }
text { font-size: 11px; fill: #555; text-anchor: middle; }
"""


def page(report: Report, pictures: Mapping[str, Sequence[Pixels]]) -> str:
    """The report as HTML.

    Args:
        pictures: by the photo's name one picture for each of ``COLUMNS``, uint8 [H, W, 3] of any size. The first
            ``PICTURED`` are shown.
    """
    title = f"Anonymization and recovery of faces: {report.settings.get('folder', '')}"
    shown = min(len(pictures), PICTURED)
    caption = f"The first key of the first {shown} photos of this run; black where no face was found."
    return document(title, [*map(table, grids(report)), *_plots(report), *gallery(COLUMNS, pictures, caption)])


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page of HTML parts under a title."""
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(grid: Grid) -> str:
    """A table as HTML, under its title."""
    head = "".join(f"<th>{escape(column)}</th>" for column in grid.columns) if any(grid.columns) else ""
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in grid.rows)
    lines = "\n".join(f"<tr>{row}</tr>" for row in (head, *rows) if row)
    return f"<h2>{escape(grid.title)}</h2>\n<table>\n{lines}\n</table>"


def _plots(report: Report) -> Iterator[str]:
    """A histogram for each kind of distance."""
    yield "<h2>Distances</h2>"
    marked = ", ".join(f"{t.interval.value:.3f} ({t.title})" for t in report.thresholds)
    yield f"<p>Below a dashed line two faces count as one person: {escape(marked)}. Faces not found are left out.</p>"
    for name in PLOTTED:
        distances = np.array([value for _, _, value in report.samples.get(name, ())], dtype=np.float64)
        distances = distances[~np.isnan(distances)]
        if distances.size:
            words = f"{name}: distance to the original"
            if name.endswith(names.others("")):
                words = f"{name} of the person: distance to them"
            if name == names.TWO_KEYS:
                words = "two keys: distance between their results"
            yield f"<figure><figcaption>{escape(words)} ({distances.size})</figcaption>"
            yield _histogram(distances, report.thresholds) + "</figure>"


def _histogram(distances: NDArray[np.float64], thresholds: Sequence[Threshold]) -> str:
    counts, edges = np.histogram(distances.clip(0, FARTHEST), BINS, (0, FARTHEST))
    scale, step = WIDTH / FARTHEST, WIDTH / BINS
    parts = [f'<svg width="{WIDTH}" height="{HEIGHT + FOOT}" role="img">']
    for edge, count in zip(edges, counts, strict=False):
        high = HEIGHT * count / counts.max()
        if count:
            box = f'x="{edge * scale:.1f}" y="{HEIGHT - high:.1f}" width="{step - 1:.1f}" height="{high:.1f}"'
            parts.append(f"<rect {box}><title>{edge:.3f}: {count}</title></rect>")
    parts.append(f'<path d="M0 {HEIGHT} H{WIDTH}"/>')
    for threshold in thresholds:
        x = f"{threshold.interval.value * scale:.1f}"
        parts.append(f'<line x1="{x}" x2="{x}" y1="0" y2="{HEIGHT}"/>')
    for tick in np.arange(0.2, FARTHEST, 0.2):
        parts.append(f'<text x="{tick * scale:.1f}" y="{HEIGHT + FOOT - 3}">{tick:.1f}</text>')
    return "".join(parts) + "</svg>"


def gallery(columns: Sequence[str], pictures: Mapping[str, Sequence[Pixels]], caption: str) -> Iterator[str]:
    """A row of pictures, one a column, for the first ``PICTURED`` photos, under a caption."""
    yield "<h2>Pictures</h2>"
    shown = list(pictures.items())[:PICTURED]
    if not shown:
        yield "<p>None: nothing was measured in this run, and no picture is kept between runs.</p>"
        return
    yield f"<p>{escape(caption)}</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    yield f"<table>\n<tr><th></th>{head}</tr>"
    for name, versions in shown:
        cells = (
            f'<td><img src="{_inline(pixels)}" alt="{escape(f"{name}, {column}")}"></td>'
            for column, pixels in zip(columns, versions, strict=True)
        )
        yield f"<tr><td>{escape(name)}</td>{''.join(cells)}</tr>"
    yield "</table>"


def _inline(pixels: Pixels) -> str:
    picture = Image.fromarray(pixels)
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
