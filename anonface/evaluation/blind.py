"""A blind test of naturalness, on sheets of untouched and altered faces.

A judge who does not know the program says of each numbered face: photo or altered, confidence (50 to 100), and
naturalness (1 to 5). A key file, which the judge does not see, has the answers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.errors import OutputError, UsageError, count
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


class Sheets:
    """Faces of an evaluation, collected for a blind test.

    Args:
        folder: of the sheets; the key file is written next to it.

    Raises:
        OutputError: the folder is not empty, or the key file exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, folder.with_name(f"{folder.name}.key.json")
        if self.key.exists() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise OutputError(f"{str(folder)!r} or its key file exists already", "name a new folder for the sheets")
        self._rng = np.random.default_rng()
        self._faces: list[tuple[str, bool, Pixels]] = []  # name, altered, square of CELL px

    def add(self, name: str, original: Pixels, altered: Pixels) -> None:
        """Add a photo's most changed face, altered or not at random; one that did not visibly change is left out.

        Args:
            name: of the photo, for the key file.
            original, altered: uint8 [H, W, 3] RGB of one shape.
        """
        if where := _changed(original, altered):
            shown = bool(self._rng.integers(2))
            self._faces.append((name, shown, _square(altered if shown else original, where)))

    def write(self) -> str:
        """Write numbered sheets in random order, instructions and the key file; returns what was written, in words."""
        faces = [self._faces[i] for i in self._rng.permutation(len(self._faces))]
        self.folder.mkdir(parents=True, exist_ok=True)
        starts = range(0, len(faces), ACROSS * DOWN)
        for number, start in enumerate(starts, start=1):
            sheet = np.zeros((DOWN * CELL, ACROSS * CELL, 3), np.uint8)
            for place, (_, _, picture) in enumerate(faces[start : start + ACROSS * DOWN]):
                y, x = place // ACROSS * CELL, place % ACROSS * CELL
                sheet[y : y + CELL, x : x + CELL] = _numbered(picture, start + place + 1)
            (self.folder / f"{number:02}.png").write_bytes(cv2.imencode(".png", sheet[..., ::-1])[1].tobytes())
        (self.folder / "instructions.txt").write_text(INSTRUCTIONS, "utf-8")
        told = {str(i): ["altered" if altered else "photo", name] for i, (name, altered, _) in enumerate(faces, 1)}
        self.key.write_text(json.dumps(told, indent=1), "utf-8")
        made = f"{count(len(faces), 'face')} on {count(len(starts), 'sheet')}"
        return f"{made} in {self.folder}; the judge must not see {self.key}"


def scores(key: Path, answers: Path) -> dict[str, dict[str, Any]]:
    """Scores of "altered" and "photo" faces, by the key file and a judge's answers.

    Returns:
        For each kind the number of ``faces``; of those that ``passed`` as photos; the 95 % Wilson ``interval`` of
        their share; the ``mean`` score of naturalness, NaN without any; the number of ``broken`` ones, with a score of
        BROKEN or less.

    Raises:
        UsageError: a file cannot be read, or an answer has another form than the instructions ask for.
    """
    truth, said = (_read(file) for file in (key, answers))
    counted = {}
    for kind in ("altered", "photo"):
        rows = [_answer(number, said[number]) for number in truth if number in said and truth[number][0] == kind]
        passed = sum(judgement == "photo" for judgement, _ in rows)
        natural = [score for _, score in rows]
        counted[kind] = {
            "faces": len(rows),
            "passed": passed,
            "interval": wilson(passed, len(rows)),
            "mean": float(np.mean(natural)) if natural else math.nan,
            "broken": sum(score <= BROKEN for score in natural),
        }
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
