"""Pascal VOC: one XML file a picture. Pixels are counted from 1."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from anonface.annotations.base import CannotTurn, New, Picture, Size, Turn, broken, number, reaches_beyond, renamed
from anonface.annotations.xml_spans import Element, Xml

CORNERS = ("xmin", "ymin", "xmax", "ymax")
_SHAPES = ("polygon", "robndbox", "point", "points", "mask")


class Voc:
    """A Pascal VOC file. Implements :class:`anonface.annotations.base.Document`."""

    format = "Pascal VOC"
    single = True

    def __init__(self, xml: Xml, file: Path) -> None:
        self._xml, root = xml, xml.root
        self._name, self._path, self._size = root.first("filename"), root.first("path"), root.first("size")
        name = self._name.text.strip() if self._name else ""
        if not name:
            raise broken(file, "it has no <filename>")
        size = _size(self._size, file)
        folder = root.first("folder")
        self.folder = folder.text.strip() if folder else ""
        self.pictures: tuple[Picture, ...] = (Picture(name, size),)
        self._boxes = [element for element in root.below() if element.name == "bndbox"]
        self.beyond = 0
        for i, box in enumerate(self._boxes):
            sides = [_number(box.first(corner), corner, file, f"box {i}") for corner in CORNERS]
            left, top, right, bottom = sides
            self.beyond += reaches_beyond((left, top, right, bottom), size, file, f"box {i}")
        self.links = any("url" in e.name.lower() or e.name == "flickrid" for e in root.below())

    def carried(self, new: Mapping[int, New]) -> bytes:
        turn = new[0].turn
        changes = [self._renaming(element, new[0].name) for element in (self._name, self._path) if element]
        if turn:
            changes += self._turned(turn)
        return self._xml.changed(changes)

    def _renaming(self, element: Element, new: str) -> tuple[int, int, bytes]:
        said = element.text.strip()
        return self._xml.text_change(element, element.text.replace(said, renamed(said, new)) if said else "")

    def _turned(self, turn: Turn) -> list[tuple[int, int, bytes]]:
        if any(element.name in _SHAPES for element in self._xml.root.below()):
            raise CannotTurn(0)
        assert self._size
        pairs: list[tuple[Element, Decimal]] = []
        for side, value in zip(("width", "height"), turn.upright, strict=True):
            if element := self._size.first(side):
                pairs.append((element, Decimal(value)))
        for box in self._boxes:
            corners = [element for corner in CORNERS if (element := box.first(corner))]
            left, top, right, bottom = (Decimal(element.text.strip()) for element in corners)
            pairs += zip(corners, turn.box(left, top, right, bottom, beyond=1), strict=True)
        return [self._xml.text_change(element, f"{value:f}") for element, value in pairs]


def _size(element: Element | None, file: Path) -> Size | None:
    if element is None:
        return None
    width, height = (_number(element.first(side), side, file, "the size") for side in ("width", "height"))
    return (round(width), round(height)) if min(width, height) >= 1 else None


def _number(element: Element | None, name: str, file: Path, where: str) -> float:
    if element is None:
        raise broken(file, f"{where} has no <{name}>")
    return number(element.text.strip(), file, where)
