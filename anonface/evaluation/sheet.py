"""Contact sheets: original, anonymized, second key, recovered and wrong key side by side, one photo a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from anonface.crypto.keys import Key
from anonface.evaluation.trials import Engine, through_png

Pixels = NDArray[np.uint8]

COLUMNS = ("original", "anonymized", "second key", "recovered", "wrong key")
GAP = 8
BACKGROUND, INK = (250, 250, 250), (30, 30, 30)


def versions(engine: Engine, pixels: Pixels, key: Key, second: Key) -> list[Pixels]:
    """The five pictures of one row, in the order of ``COLUMNS``.

    Recovery starts from the re-read pixels alone, as in :mod:`anonface.evaluation.trials`; the wrong key is the second.

    Args:
        engine: what anonymizes and recovers.
        pixels: [H, W, 3] uint8.
        key, second: two different keys.

    Raises:
        NoFaceError: no face in the photo, or none found again in its anonymized version.
    """
    hidden = through_png(engine.anonymize(pixels, key, consistent=True).pixels)
    other = engine.anonymize(pixels, second, consistent=True).pixels
    return [
        pixels,
        hidden,
        other,
        engine.recover(hidden, key, None).pixels,
        engine.recover(hidden, second, None).pixels,
    ]


def compared(engines: Sequence[Engine], pixels: Pixels, key: Key) -> list[Pixels]:
    """The photo, then for each engine the anonymized and the recovered photo under one key.

    Raises:
        NoFaceError: no face in the photo, or none found again in an anonymized version.
    """
    row = [pixels]
    for engine in engines:
        hidden = through_png(engine.anonymize(pixels, key, consistent=True).pixels)
        row += [hidden, engine.recover(hidden, key, None).pixels]
    return row


def around(pixels: Pixels, box: ArrayLike, reach: float = 2.0) -> Pixels:
    """The square around a face (x, y, w, h), ``reach`` times its longer side, cropped at the photo's border."""
    x, y, w, h = (float(v) for v in np.asarray(box, dtype=np.float64))
    half = reach * max(w, h) / 2
    height, width = pixels.shape[:2]
    left, right = (int(np.clip(x + w / 2 + s * half, 0, width)) for s in (-1, 1))
    top, bottom = (int(np.clip(y + h / 2 + s * half, 0, height)) for s in (-1, 1))
    return pixels[top:bottom, left:right]


def contact_sheet(
    rows: Sequence[Sequence[Pixels]],
    *,
    columns: Sequence[str] = COLUMNS,
    captions: Sequence[str] = (),
    cell: int = 256,
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
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"every row needs {len(columns)} pictures")
    if captions and len(captions) != len(rows):
        raise ValueError(f"{len(captions)} captions for {len(rows)} rows")
    line = max(16, cell // 12)
    font = ImageFont.load_default(line * 0.75)
    step = cell + GAP + (line if captions else 0)
    size = (GAP + len(columns) * (cell + GAP), GAP + line + len(rows) * step)
    sheet = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column, label in enumerate(columns):
        draw.text((GAP + column * (cell + GAP) + cell / 2, GAP / 2), label, INK, font, anchor="ma")
    for number, row in enumerate(rows):
        top = GAP + line + number * step
        for column, pixels in enumerate(row):
            picture = _fitted(pixels, cell)
            left = GAP + column * (cell + GAP)
            sheet.paste(picture, (left + (cell - picture.width) // 2, top + (cell - picture.height) // 2))
        if captions:
            draw.text((GAP, top + cell), captions[number], INK, font, anchor="la")
    return np.asarray(sheet)


def _fitted(pixels: Pixels, cell: int) -> Image.Image:
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    scale = cell / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS)
