"""Which files are annotations: told by their content, not by their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anonface.annotations.base import Document, broken
from anonface.annotations.coco import Coco, is_coco, load_json
from anonface.annotations.cvat import Cvat
from anonface.annotations.voc import Voc
from anonface.annotations.xml_spans import Xml
from anonface.annotations.yolo import Copied, Label, PictureList, is_label, is_list
from anonface.errors import AnnotationError, LimitError
from anonface.images import read_file

SUFFIXES = (".json", ".xml", ".txt", ".yaml", ".yml", ".names")
CLASSES = ("classes.txt", "obj.names", "predefined_classes.txt")
FORMATS = "COCO, YOLO, Pascal VOC or CVAT 1.1 for images"
MOST_BYTES = 1 << 30  # of a file; parsed, it takes several times as much memory


@dataclass(frozen=True)
class Source:
    """An annotation file.

    Args:
        file: its path, without links being resolved.
        root: the folder that was named, or that of the file that was named.
        named: whether the file itself was named.
    """

    file: Path
    root: Path
    named: bool
    document: Document


def gather(
    paths: Sequence[Path],
    photo_suffixes: Iterable[str],
    is_photo: Callable[[Path, Path], bool],
    passed_over: list[Path],
) -> list[Source]:
    """Read all annotation files, each once, in a stable order.

    Args:
        paths: annotation files, and folders of them. A .yaml file stands for its folder.
        photo_suffixes: what names in lists of pictures end with.
        is_photo: whether a text file beside or parallel to a photo has its name; called with the file and its root.
        passed_over: files of folders that are no annotations are added here.

    Raises:
        AnnotationError: a file cannot be read, is broken, or is in no known format.
    """
    suffixes = sorted(photo_suffixes)
    found: dict[Path, Source] = {}
    for path in paths:
        path = _absolute(path)
        if path.suffix.lower() in (".yaml", ".yml") and path.is_file():
            path = path.parent
        if not path.is_dir():
            document = _read(path, path.parent, suffixes, is_photo)
            if document is None:
                raise broken(path, "no annotations in a known format", f"the formats are {FORMATS}")
            found.setdefault(path, Source(path, path.parent, True, document))
            continue
        before = len(found)
        for file in _files(path):
            if file in found:
                continue
            if document := _read(file, path, suffixes, is_photo):
                found[file] = Source(file, path, False, document)
            else:
                passed_over.append(file)
        if len(found) == before:
            raise AnnotationError(f"{str(path)!r} holds no annotations", f"the formats are {FORMATS}")
    return list(found.values())


def read_source(file: Path, like: Document) -> Document | None:
    """The annotations in a file that should be of the kind of another; None for others.

    Raises:
        AnonfaceError: it cannot be read or is broken.
    """
    document = _read(file, file.parent, (".png", ".webp", ".jpg"), lambda *_: isinstance(like, Label))
    return document if type(document) is type(like) else None


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _files(folder: Path) -> list[Path]:
    """The files of a folder and the folders in it that may be annotations; links to folders are not followed."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in sorted(names) if not name.startswith(".")]
    return [file for file in found if file.suffix.lower() in SUFFIXES and file.is_file()]


def _read(file: Path, root: Path, suffixes: Sequence[str], is_photo: Callable[[Path, Path], bool]) -> Document | None:
    """The annotations in a file, None where it holds others or none."""
    try:
        data = read_file(file, MOST_BYTES)
    except LimitError as error:
        raise LimitError(error.message, "split it, and anonymize the photos of each part with their own file") from None
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    suffix = file.suffix.lower()
    if start in (b"{", b"[") or suffix == ".json":
        value = load_json(data, file)
        return Coco(value, data, file) if is_coco(value) else None  # type: ignore[arg-type]
    if start == b"<" or suffix == ".xml":
        xml = Xml(data, file)
        if xml.root.name == "annotation":
            return Voc(xml, file)
        return Cvat(xml, file) if xml.root.name == "annotations" else None
    if suffix in (".yaml", ".yml"):
        return Copied(data) if any(line.startswith(b"names") for line in data.splitlines()) else None
    if file.name.lower() in CLASSES or suffix == ".names":
        return Copied(data)
    if is_list(data, suffixes):
        return PictureList(data, file)
    if is_photo(file, root) or (data.strip() and is_label(data)):
        return Label(data, file)
    return None
