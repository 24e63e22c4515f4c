"""COCO: one JSON file with lists of images and annotations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anonface.annotations.base import (
    CannotTurn,
    New,
    Picture,
    Turn,
    broken,
    number,
    reaches_beyond,
    renamed,
)

Entry = dict[str, Any]
_INDENT = re.compile(rb"\{\r?\n( +|\t)")


class Coco:
    """A COCO file; unknown fields are kept. Implements :class:`anonface.annotations.base.Document`."""

    format = "COCO"
    single = False

    def __init__(self, root: Entry, data: bytes, file: Path) -> None:
        self._root, self._file = root, file
        indent = _INDENT.search(data[:4096])
        self._indent = indent[1].decode() if indent else 1 if data.strip().count(b"\n") else None
        spaced = b'": ' in data[:4096]
        self._pieces = (", ", ": ") if spaced and self._indent is None else (",", ": " if spaced else ":")
        self._ascii = data.isascii()
        self._ends = data[len(data.rstrip()) :].decode("ascii", "ignore")
        self._images = _entries(root, "images", file)
        self._annotations = _entries(root, "annotations", file) if "annotations" in root else None
        self.pictures = tuple(_picture(entry, i, file) for i, entry in enumerate(self._images))
        self.links = any("url" in name.lower() for entry in self._images for name in entry)
        self._numbers: dict[Any, int] = {}
        for i, entry in enumerate(self._images):
            known = entry.get("id")
            if not isinstance(known, int | str) or isinstance(known, bool):
                raise broken(file, f"image {i} has no id")
            if self._numbers.setdefault(known, i) != i:
                raise broken(file, f"two images have the id {known!r}")
        self.beyond = sum(self._beyond(entry, i) for i, entry in enumerate(self._annotations or ()))

    def _beyond(self, annotation: Entry, index: int) -> bool:
        """Check an annotation's shapes; whether its box reaches beyond its picture."""
        where = f"annotation {annotation.get('id', index)!r}"
        image = self._number_of(annotation, where)
        _check_shapes(annotation, self._file, where)
        box = annotation.get("bbox")
        if box in (None, []):
            return False
        if not isinstance(box, list) or len(box) != 4:
            raise broken(self._file, f"{where}: a bbox has four numbers: x, y, width, height")
        x, y, width, height = (number(value, self._file, where) for value in box)
        size = self.pictures[image].size if image is not None else None
        return reaches_beyond((x, y, x + width, y + height), size, self._file, where)

    def _number_of(self, annotation: Entry, where: str) -> int | None:
        known = annotation.get("image_id")
        if not isinstance(known, int | str) or isinstance(known, bool):
            raise broken(self._file, f"{where} has no image_id")
        return self._numbers.get(known)

    def carried(self, new: Mapping[int, New]) -> bytes:
        root = dict(self._root)
        root["images"] = [_image(self._images[i], new[i]) for i in sorted(new)]
        if self._annotations is not None:
            kept = []
            for entry in self._annotations:
                image = self._number_of(entry, "")
                if image is not None and image in new:
                    turn = new[image].turn
                    kept.append(_turned(_named(entry, self._images[image], new[image]), turn, image))
            root["annotations"] = kept
        text = json.dumps(root, ensure_ascii=self._ascii, indent=self._indent, separators=self._pieces)
        try:
            return (text + self._ends).encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can say and UTF-8 cannot
            return (json.dumps(root, indent=self._indent, separators=self._pieces) + self._ends).encode()


def load_json(data: bytes, file: Path) -> object:
    """The value of a JSON file.

    Raises:
        AnnotationError: it is not JSON, or holds numbers that are none.
    """
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise broken(file, "its lists are nested too deeply") from None
    except json.JSONDecodeError as error:
        raise broken(file, f"not valid JSON, line {error.lineno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise broken(file, "not UTF-8 text", "save it as UTF-8") from None
    except ValueError as error:
        raise broken(file, f"not valid JSON: {error}") from None


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _entries(root: Entry, name: str, file: Path) -> list[Entry]:
    found = root.get(name)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise broken(file, f"its {name!r} is not a list of objects")
    return found


def _picture(entry: Entry, index: int, file: Path) -> Picture:
    name = entry.get("file_name")
    if not isinstance(name, str) or not name:
        raise broken(file, f"image {entry.get('id', index)!r} has no file_name")
    sides = [entry.get("width"), entry.get("height")]
    if None in sides:
        return Picture(name)
    width, height = (number(side, file, f"image {name!r}") for side in sides)
    size = (round(width), round(height))
    return Picture(name, size if min(size) > 0 else None)


def _check_shapes(annotation: Entry, file: Path, where: str) -> None:
    shapes = [annotation.get("keypoints")]
    if isinstance(polygons := annotation.get("segmentation"), list):
        shapes += polygons if all(isinstance(polygon, list) for polygon in polygons) else [polygons]
    for shape in shapes:
        for value in shape if isinstance(shape, list) else ():
            number(value, file, where)


def _image(entry: Entry, new: New) -> Entry:
    entry = {**entry, "file_name": renamed(entry["file_name"], new.name)}
    if new.turn:
        entry["width"], entry["height"] = new.turn.upright
    return entry


def _named(annotation: Entry, image: Entry, new: New) -> Entry:
    """An annotation that repeats its picture's name, under the new one."""
    if annotation.get("file_name") == image["file_name"]:
        return {**annotation, "file_name": renamed(image["file_name"], new.name)}
    return annotation


def _turned(annotation: Entry, turn: Turn | None, image: int) -> Entry:
    if turn is None:
        return annotation
    result = dict(annotation)
    if box := annotation.get("bbox"):
        x, y, width, height = box
        left, top, right, bottom = turn.box(x, y, x + width, y + height)
        result["bbox"] = [left, top, right - left, bottom - top]
    if shapes := annotation.get("segmentation"):
        if not isinstance(shapes, list):
            raise CannotTurn(image)
        nested = all(isinstance(shape, list) for shape in shapes)
        turned = [_points(shape, 2, turn) for shape in (shapes if nested else [shapes])]
        result["segmentation"] = turned if nested else turned[0]
    if keypoints := annotation.get("keypoints"):
        result["keypoints"] = _points(keypoints, 3, turn)
    return result


def _points(values: list[Any], step: int, turn: Turn) -> list[Any]:
    """Points x, y (and a visibility, 0 where there is no point), one after another."""
    result = []
    for at in range(0, len(values) - step + 1, step):
        x, y, *rest = values[at : at + step]
        result += [*((x, y) if rest and not rest[0] else turn.point(x, y)), *rest]
    return result


def is_coco(root: object) -> bool:
    """Whether a JSON value is meant as COCO."""
    return isinstance(root, dict) and "images" in root and bool({"annotations", "categories"} & set(root))
