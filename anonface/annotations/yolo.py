"""YOLO: one text file a picture with normalised shapes; lists of pictures; names of classes, which are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from anonface.annotations.base import New, Picture, broken, number, reaches_beyond, renamed

SLACK = 1.0  # how far beyond the picture, in its sides, a coordinate may lie: more is a coordinate in pixels


class Label:
    """The labels of one picture; the text stays as it is. Implements :class:`anonface.annotations.base.Document`.

    Each line has a class and x, y, width and height of a box as shares of the picture's sides; or a class and the
    points of a polygon; keypoints may follow a box.
    """

    format = "YOLO"
    single = True
    links = False

    def __init__(self, data: bytes, file: Path) -> None:
        self._data = data
        self.pictures: tuple[Picture, ...] = (Picture(file.name),)
        self.beyond = 0
        for i, line in enumerate(_text(data, file).splitlines(), start=1):
            if line.strip():
                self.beyond += _reaches_beyond(line.split(), file, f"line {i}")

    def carried(self, new: Mapping[int, New]) -> bytes:
        return self._data


class PictureList:
    """A list of pictures, one a line, such as train.txt. Implements :class:`anonface.annotations.base.Document`."""

    format = "YOLO"
    single = False
    links = False
    beyond = 0

    def __init__(self, data: bytes, file: Path) -> None:
        self._lines = _text(data, file).splitlines(keepends=True)
        named = [line.strip() for line in self._lines]
        self._at = [i for i, name in enumerate(named) if name]
        self.pictures = tuple(Picture(named[i]) for i in self._at)

    def carried(self, new: Mapping[int, New]) -> bytes:
        lines = []
        for number_, i in enumerate(self._at):
            if number_ in new:
                name = self.pictures[number_].name
                lines.append(self._lines[i].replace(name, renamed(name, new[number_].name)))
        return "".join(lines).encode()


class Copied:
    """A file that names no picture, such as data.yaml or classes.txt. Implements
    :class:`anonface.annotations.base.Document`."""

    format = "YOLO"
    single = False
    links = False
    beyond = 0
    pictures: tuple[Picture, ...] = ()

    def __init__(self, data: bytes) -> None:
        self._data = data

    def carried(self, new: Mapping[int, New]) -> bytes:
        return self._data


def is_label(data: bytes) -> bool:
    """Whether a text looks like labels: every line begins with a class's number, and at least four numbers follow."""
    lines = [line.split() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return all(len(line) >= 5 and _is_number(line[0]) and _is_number(line[1]) for line in lines)


def is_list(data: bytes, suffixes: Sequence[str]) -> bool:
    """Whether a text is a list of pictures."""
    lines = [line.strip().lower() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return bool(lines) and all(line.endswith(tuple(suffixes)) for line in lines)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(data: bytes, file: Path) -> str:
    try:
        return data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8")
    except UnicodeDecodeError:
        raise broken(file, "not UTF-8 text", "save it as UTF-8") from None


def _reaches_beyond(words: Sequence[str], file: Path, where: str) -> bool:
    """Check a line; whether its shape reaches beyond the picture."""
    kind = number(words[0], file, where)
    if kind < 0 or kind != int(kind):
        raise broken(file, f"{where}: {words[0]!r} is not the number of a class")
    if len(words) < 5:
        raise broken(file, f"{where}: a class and at least four numbers are expected")
    values = [number(word, file, where) for word in words[1:]]
    if max(map(abs, values[:4])) > 1 + SLACK:
        raise broken(
            file, f"{where}: {max(values[:4]):g} is not a share of the picture's side", "YOLO labels are from 0 to 1"
        )
    if len(words) > 5:
        return False  # a polygon, or a box with keypoints
    x, y, width, height = values
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return reaches_beyond(tuple(round(side, 6) for side in box), (1, 1), file, where)  # type: ignore[arg-type]
