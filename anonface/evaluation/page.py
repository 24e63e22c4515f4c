"""A report as one self-contained HTML file, with pictures, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anonface.errors import count
from anonface.evaluation.report import Grid
from anonface.images.pictures import document, inline, thumbnail

Pixels = NDArray[np.uint8]

COLUMNS = ("original", "anonymized", "right key", "wrong key")
PICTURED = 24  # photos at most
SIDE, QUALITY = 160, 80  # px and JPEG quality of a picture
BLACK = np.zeros((1, 1, 3), np.uint8)

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
table { border-collapse: collapse; margin: 0 0 2rem; display: block; overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
img { display: block; border-radius: 3px; }
"""


def page(title: str, grids: Iterable[Grid], pictures: Mapping[str, Mapping[str, Pixels]]) -> str:
    """Tables and pictures as HTML.

    Args:
        pictures: by the photo's name, pictures by their heading, uint8 [H, W, 3] of any size. The first ``PICTURED``
            photos are shown.
    """
    return document(title, STYLE, "\n".join([*map(_table, grids), *_gallery(pictures)]) + "\n")


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in grid.columns) if any(grid.columns) else ""
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in grid.rows)
    lines = "\n".join(f"<tr>{row}</tr>" for row in (head, *rows) if row)
    return f"<h2>{escape(grid.title)}</h2>\n<table>\n{lines}\n</table>"


def _gallery(pictures: Mapping[str, Mapping[str, Pixels]]) -> Iterator[str]:
    yield "<h2>Pictures</h2>"
    shown = list(pictures.items())[:PICTURED]
    if not shown:
        yield "<p>None: nothing was measured in this run, and no picture is kept between runs.</p>"
        return
    columns = list(dict.fromkeys(heading for _, versions in shown for heading in versions))
    yield f"<p>The first key of {count(len(shown), 'photo')} of this run; black where no face was found.</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    yield f"<table>\n<tr><th></th>{head}</tr>"
    for name, versions in shown:
        cells = []
        for column in columns:
            picture = Image.fromarray(thumbnail(versions.get(column, BLACK), SIDE))
            cells.append(f"<td>{inline(picture, QUALITY, f'{name}, {column}')}</td>")
        yield f"<tr><td>{escape(name)}</td>{''.join(cells)}</tr>"
    yield "</table>"
