"""Pictures for people: thumbnails, squares around faces, contact sheets, and HTML pages that hold their pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

Pixels = NDArray[np.uint8]

GAP = 8  # px between the pictures of a sheet
LANCZOS = Image.Resampling.LANCZOS
BACKGROUND, INK = (250, 250, 250), (30, 30, 30)
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def thumbnail(pixels: Pixels, side: int) -> Pixels:
    """A small copy of a picture, of which many fit into memory; one that is smaller keeps its size."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((side, side), LANCZOS)
    return np.asarray(picture)


def around(pixels: Pixels, box: ArrayLike, reach: float = 2.0) -> Pixels:
    """The square around a face (x, y, w, h), ``reach`` times its longer side, cropped at the photo's border; at least
    one pixel."""
    x, y, w, h = (float(v) for v in np.asarray(box, dtype=np.float64))
    half = reach * max(w, h) / 2
    height, width = pixels.shape[:2]
    left, top = (int(np.clip(v, 0, end - 1)) for v, end in ((x + w / 2 - half, width), (y + h / 2 - half, height)))
    right, bottom = int(x + w / 2 + half), int(y + h / 2 + half)
    return pixels[top : max(bottom, top + 1), left : max(right, left + 1)]


def contact_sheet(
    rows: Sequence[Sequence[Pixels]], columns: Sequence[str], captions: Sequence[str] = (), cell: int = 256
) -> Pixels:
    """Lay pictures out as a labelled grid.

    Args:
        rows: for each photo its pictures, [H, W, 3] uint8 of any size, as many as columns.
        columns: the labels above.
        captions: one text under each row, or none at all.
        cell: side in pixels of the square that each picture is fitted into, keeping its proportions.

    Returns:
        [height, width, 3] uint8.

    Raises:
        ValueError: a row or the captions of another length.
    """
    line = max(16, cell // 12)
    font = ImageFont.load_default(line * 0.75)
    step = cell + GAP + (line if captions else 0)
    sheet = Image.new("RGB", (GAP + len(columns) * (cell + GAP), GAP + line + len(rows) * step), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column, label in enumerate(columns):
        draw.text((GAP + column * (cell + GAP) + cell / 2, GAP / 2), label, INK, font, anchor="ma")
    for number, (row, caption) in enumerate(zip(rows, captions or [""] * len(rows), strict=True)):
        top = GAP + line + number * step
        for column, (pixels, _) in enumerate(zip(row, columns, strict=True)):
            picture = ImageOps.contain(Image.fromarray(np.ascontiguousarray(pixels)), (cell, cell), LANCZOS)
            left = GAP + column * (cell + GAP)
            sheet.paste(picture, (left + (cell - picture.width) // 2, top + (cell - picture.height) // 2))
        draw.text((GAP, top + cell), caption, INK, font, anchor="la")
    return np.asarray(sheet)


def inline(picture: Image.Image, quality: int, alt: str) -> str:
    """A picture as HTML that holds it, as a JPEG."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    size = f'width="{picture.width}" height="{picture.height}"'
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(alt)}" {size} loading="lazy">'


def document(title: str, style: str, body: str) -> str:
    """A whole page, under a title, that loads nothing."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
