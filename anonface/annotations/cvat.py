"""CVAT 1.1 for images: one XML file with an element for each picture."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from anonface.annotations.base import CannotTurn, New, Picture, Turn, broken, number, reaches_beyond, renamed
from anonface.annotations.xml_spans import Element, Xml

CORNERS = ("xtl", "ytl", "xbr", "ybr")
_TURNED = ("box", "polygon", "polyline", "points", "skeleton", "attribute", "tag")


class Cvat:
    """A CVAT file for images. Implements :class:`anonface.annotations.base.Document`.

    Raises:
        AnnotationError: it is one for video, or a shape in it is broken.
    """

    format = "CVAT"
    single = False

    def __init__(self, xml: Xml, file: Path) -> None:
        self._xml, self._file = xml, file
        if xml.root.first("track"):
            raise broken(file, "it is a CVAT file for video", "export the task as CVAT for images 1.1")
        self._images = xml.root.all("image")
        self.pictures = tuple(_picture(image, i, file) for i, image in enumerate(self._images))
        self.links = False
        self.beyond = 0
        for image, picture in zip(self._images, self.pictures, strict=True):
            where = f"image {picture.name!r}"
            for shape in image.below():
                _points(shape, file, where)
                if shape.name == "box":
                    left, top, right, bottom = _corners(shape, file, where)
                    self.beyond += reaches_beyond((left, top, right, bottom), picture.size, file, where)

    def carried(self, new: Mapping[int, New]) -> bytes:
        changes = []
        for i, image in enumerate(self._images):
            if i not in new:
                changes.append(self._xml.removal(image))
                continue
            name = renamed(self.pictures[i].name, new[i].name)
            changes.append(self._xml.attribute_change(image, "name", name))
            if turn := new[i].turn:
                changes += self._turned(i, turn)
        return self._xml.changed(changes)

    def _turned(self, number_: int, turn: Turn) -> list[tuple[int, int, bytes]]:
        image = self._images[number_]
        sides = zip(("width", "height"), map(str, turn.upright), strict=True)
        changes = [self._xml.attribute_change(image, side, value) for side, value in sides]
        for shape in image.below():
            if shape.name not in _TURNED or float(shape.attributes.get("rotation", 0)):
                raise CannotTurn(number_)
            if shape.name == "box":
                left, top, right, bottom = (Decimal(shape.attributes[corner]) for corner in CORNERS)
                corners = zip(CORNERS, turn.box(left, top, right, bottom), strict=True)
                changes += [self._xml.attribute_change(shape, corner, f"{value:f}") for corner, value in corners]
            elif points := _points(shape, self._file, ""):
                text = ";".join("{:f},{:f}".format(*turn.point(Decimal(x), Decimal(y))) for x, y in points)
                changes.append(self._xml.attribute_change(shape, "points", text))
        return changes


def _picture(image: Element, index: int, file: Path) -> Picture:
    name = image.attributes.get("name", "")
    if not name:
        raise broken(file, f"image {index} has no name")
    sides = [image.attributes.get(side) for side in ("width", "height")]
    if None in sides:
        return Picture(name)
    width, height = (number(side, file, f"image {name!r}") for side in sides)
    return Picture(name, (round(width), round(height)) if min(width, height) >= 1 else None)


def _corners(shape: Element, file: Path, where: str) -> list[float]:
    if missing := [corner for corner in CORNERS if corner not in shape.attributes]:
        raise broken(file, f"{where}: a box has no {missing[0]}")
    return [number(shape.attributes[corner], file, where) for corner in CORNERS]


def _points(shape: Element, file: Path, where: str) -> list[tuple[str, str]]:
    """The points of a shape, as they are written."""
    found = []
    for pair in filter(None, shape.attributes.get("points", "").split(";")):
        x, _, y = (part.strip() for part in pair.partition(","))
        for value in (x, y):
            number(value, file, where)
        found.append((x, y))
    return found
