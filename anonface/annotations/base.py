"""What the formats share: which pictures a file names, numbers, boxes, and the turn of a stored picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from anonface.errors import AnnotationError

Number = TypeVar("Number", int, float, Any)
Size = tuple[int, int]

HINT = "correct the file, or export the annotations again"


@dataclass(frozen=True)
class Picture:
    """A picture that an annotation file names.

    Args:
        name: as in the file; a path with / or \\, perhaps a file name alone.
        size: (width, height) in pixels, None where the file does not say it.
    """

    name: str
    size: Size | None = None


@dataclass(frozen=True)
class Turn:
    """From the coordinates of a stored picture to those of the upright one.

    Args:
        orientation: of EXIF, 1 to 8.
        size: (width, height) of the stored picture in pixels.
    """

    orientation: int
    size: Size

    @property
    def upright(self) -> Size:
        """(width, height) of the upright picture."""
        width, height = self.size
        return (height, width) if self.orientation > 4 else (width, height)

    def point(self, x: Number, y: Number, beyond: int = 0) -> tuple[Number, Number]:
        """A point in pixels, counted from the picture's corner.

        Args:
            beyond: added to a mirrored coordinate, 1 where pixels are counted from 1.
        """
        width, height = self.upright
        mirror = (self.orientation - 1) % 4
        if self.orientation > 4:
            x, y = y, x
        if mirror in (1, 2):
            x = width + beyond - x
        if mirror in (2, 3):
            y = height + beyond - y
        return x, y

    def box(self, x0: Number, y0: Number, x1: Number, y1: Number, beyond: int = 0) -> tuple[Number, ...]:
        """Two corners of a box, the least first."""
        (ax, ay), (bx, by) = self.point(x0, y0, beyond), self.point(x1, y1, beyond)
        return min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)


@dataclass(frozen=True)
class New:
    """A picture that an annotation goes on with: its file name, and how the annotated picture is turned to it."""

    name: str
    turn: Turn | None = None


class CannotTurn(Exception):
    """A picture has an annotation of a shape that is not turned: a bit mask, an ellipse, a rotated box."""

    def __init__(self, picture: int) -> None:
        super().__init__()
        self.picture = picture


class Document(Protocol):
    """An annotation file that was read and checked.

    Attributes:
        format: COCO, YOLO, Pascal VOC or CVAT.
        single: whether the file belongs to one picture, and is named after it.
        pictures: that it names, in its order.
        beyond: how many boxes reach beyond their picture.
        links: whether it holds addresses that may lead to the original photos.
    """

    format: str
    single: bool
    pictures: tuple[Picture, ...]
    beyond: int
    links: bool

    def carried(self, new: Mapping[int, New]) -> bytes:
        """The file for new pictures, by the numbers of ``pictures``. The others' annotations are left out.

        Raises:
            CannotTurn: a shape cannot be turned.
        """
        ...


def broken(file: Path, what: str, hint: str = HINT) -> AnnotationError:
    """The error for a file that cannot be used."""
    return AnnotationError(f"{str(file)!r}: {what}", hint)


def number(value: object, file: Path, where: str) -> float:
    """A finite number, or its text.

    Raises:
        AnnotationError: it is none.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        found = float(value)
        if isinstance(value, str) and "_" in value:
            raise ValueError
    except (ValueError, OverflowError):
        raise broken(file, f"{where}: {_short(value)} is not a number") from None
    if not math.isfinite(found):
        raise broken(file, f"{where}: {_short(value)} is not a finite number")
    return found


def reaches_beyond(box: tuple[float, float, float, float], size: Size | None, file: Path, where: str) -> bool:
    """Whether a box (left, top, right, bottom) reaches beyond a picture.

    Raises:
        AnnotationError: it lies outside, or its sides are negative.
    """
    left, top, right, bottom = box
    if right < left or bottom < top:
        raise broken(file, f"{where}: a box has a negative width or height")
    if size is None:
        return False
    width, height = size
    if left > width or top > height or right < 0 or bottom < 0:
        raise broken(
            file, f"{where}: a box at {left:g}, {top:g} lies outside the picture of {width:g} x {height:g} pixels"
        )
    return left < 0 or top < 0 or right > width or bottom > height


def base_name(name: str) -> str:
    """The last part of a path with / or \\."""
    return name.replace("\\", "/").rpartition("/")[2]


def renamed(name: str, new: str) -> str:
    """A path with another last part."""
    return name[: len(name) - len(base_name(name))] + new


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
