"""A blind test of naturalness, on sheets of untouched and altered faces.

A judge who does not know the program says of each numbered face: photo or altered, confidence (50 to 100), and
naturalness (1 to 5). A key file, which the judge does not see, has the answers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.errors import UsageError
from anonface.evaluation.metrics import wilson

Pixels = NDArray[np.uint8]

CELL, ACROSS, DOWN = 380, 3, 2  # px of a face's square; faces on a sheet
CHANGED = 6  # grey levels; blurred differences above are visible
ROOM = 0.85  # half a face's square, in sides of the changed region
JPEG = 92  # quality of both kinds
BROKEN = 2  # highest naturalness of a broken face
INSTRUCTIONS = """You are a photo editor with a keen eye. Look at the sheets in this folder, and at nothing else.
Each shows up to six numbered portraits. Some are untouched photos. In others the face, and only the face, was replaced
by a program. You do not know how many, and it need not be half.
For each number say: "photo" or "altered", how sure you are (50-100), and how natural it looks, from 1 (plainly broken)
to 5 (a press photo). Write your answers as one JSON object: {"1": ["photo", 90, 5], "2": ["altered", 70, 3], ...}.
"""


@dataclass(frozen=True)
class Face:
    """One numbered face: name of its photo, whether it was altered, and its square, uint8 [CELL, CELL, 3]."""

    name: str
    altered: bool
    picture: Pixels


@dataclass(frozen=True)
class Score:
    """Judgements on one kind of faces.

    Attributes:
        faces: number of them.
        passed: number taken for photos.
        interval: 95 % Wilson interval of their share.
        mean: mean score of naturalness, NaN without any.
        broken: number with a score of BROKEN or less.
    """

    faces: int
    passed: int
    interval: tuple[float, float]
    mean: float
    broken: int


def face(name: str, original: Pixels, altered: Pixels, rng: np.random.Generator) -> Face | None:
    """A photo's most changed face, altered or not at random; None where the versions do not differ visibly.

    Args:
        name: of the photo, for the key file.
        original, altered: uint8 [H, W, 3] RGB of one shape.
    """
    where = _changed(original, altered)
    if where is None:
        return None
    shown = bool(rng.integers(2))
    return Face(name, shown, _square(altered if shown else original, where))


def write_sheets(faces: list[Face], folder: Path, key: Path) -> int:
    """Write numbered sheets, instructions and the key file; returns how many sheets there are.

    Args:
        faces: in the order in which they are numbered, from 1.
        folder: exists and is empty.
        key: the key file, which must lie outside the folder.
    """
    for start in range(0, len(faces), ACROSS * DOWN):
        sheet = np.zeros((DOWN * CELL, ACROSS * CELL, 3), np.uint8)
        for place, one in enumerate(faces[start : start + ACROSS * DOWN]):
            y, x = place // ACROSS * CELL, place % ACROSS * CELL
            sheet[y : y + CELL, x : x + CELL] = _numbered(one.picture, start + place + 1)
        number = start // (ACROSS * DOWN) + 1
        (folder / f"{number:02}.png").write_bytes(cv2.imencode(".png", sheet[..., ::-1])[1].tobytes())
    (folder / "instructions.txt").write_text(INSTRUCTIONS, "utf-8")
    told = {str(i): ["altered" if one.altered else "photo", one.name] for i, one in enumerate(faces, start=1)}
    key.write_text(json.dumps(told, indent=1), "utf-8")
    return math.ceil(len(faces) / (ACROSS * DOWN))


def scores(key: Path, answers: Path) -> dict[str, Score]:
    """Scores of "altered" and "photo" faces, by the key file and a judge's answers.

    Raises:
        UsageError: a file cannot be read, or an answer has another form than the instructions ask for.
    """
    truth, said = (_read(file) for file in (key, answers))
    counted: dict[str, Score] = {}
    for kind in ("altered", "photo"):
        rows = [_answer(number, said[number]) for number in truth if number in said and truth[number][0] == kind]
        passed = sum(judgement == "photo" for judgement, _ in rows)
        natural = [score for _, score in rows]
        mean = float(np.mean(natural)) if natural else math.nan
        broken = sum(score <= BROKEN for score in natural)
        counted[kind] = Score(len(rows), passed, wilson(passed, len(rows)), mean, broken)
    return counted


def _read(file: Path) -> dict[str, list]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(file)!r} cannot be read: {error}", "it is a JSON object, a list for each number"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(row, list) for row in content.values()):
        raise UsageError(f"{str(file)!r} is no JSON object of lists", 'for example {"1": ["photo", 90, 5]}')
    return content


def _answer(number: str, row: list) -> tuple[str, float]:
    match row:
        case ["photo" | "altered" as judgement, int() | float(), int() | float() as score] if 1 <= score <= 5:
            return judgement, float(score)
    raise UsageError(f"the answer to {number} is {row}", 'an answer is like ["photo", 90, 5]')


def _changed(a: Pixels, b: Pixels) -> tuple[float, float, float] | None:
    """Centre (x, y) and half side of the square about the largest region in which two photos differ, or None."""
    if a.shape != b.shape:
        return None
    difference = np.abs(a.astype(np.float32) - b).max(2)
    off = cv2.GaussianBlur(difference, (0, 0), 2) > CHANGED
    joined = cv2.dilate(off.astype(np.uint8), np.ones((9, 9), np.uint8))
    count, _, regions, _ = cv2.connectedComponentsWithStats(joined)
    if count < 2:
        return None
    x, y, width, height, _ = regions[1 + int(regions[1:, cv2.CC_STAT_AREA].argmax())]
    return x + width / 2, y + height / 2, max(width, height) * ROOM


def _square(photo: Pixels, where: tuple[float, float, float]) -> Pixels:
    x, y, half = where
    edge = math.ceil(half)
    padded = cv2.copyMakeBorder(photo, edge, edge, edge, edge, cv2.BORDER_REPLICATE)
    left, top, side = round(x - half) + edge, round(y - half) + edge, round(2 * half)
    cut = padded[top : top + side, left : left + side]
    how = cv2.INTER_AREA if side > CELL else cv2.INTER_CUBIC
    resized = cv2.resize(cut, (CELL, CELL), interpolation=how)
    stored = cv2.imencode(".jpg", resized[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG])[1]
    return np.asarray(cv2.imdecode(stored, cv2.IMREAD_COLOR), np.uint8)[..., ::-1]


def _numbered(picture: Pixels, number: int) -> Pixels:
    shown = np.ascontiguousarray(picture)
    for colour, width in (((0, 0, 0), 6), ((255, 255, 255), 2)):
        cv2.putText(shown, str(number), (8, 34), cv2.FONT_HERSHEY_SIMPLEX, 1.1, colour, width)
    return shown
