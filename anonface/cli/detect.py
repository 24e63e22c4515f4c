"""``anonface detect``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anonface.cli.console import end, error_json, escaped, print_json, say, shown
from anonface.cli.help import OUTPUT
from anonface.cli.options import (
    AsJson,
    Box,
    Detector,
    MaxPixels,
    Offline,
    Overwrite,
    Paths,
    Recursive,
    check_options,
    parse_boxes,
)
from anonface.cli.pipes import check_stdout, read_stdin, refuse_streams, takes_stdin
from anonface.cli.run import count_ignored
from anonface.errors import AnonfaceError, UsageError, count
from anonface.streams import STREAM, kept_for_photo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.faces.detect import Box as FaceBox
    from anonface.faces.detect import Detector as Finder
    from anonface.faces.locate import DetectedFace


def detect(
    ctx: typer.Context,
    paths: Paths,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Also write each photo with numbered boxes: a PNG for one photo (- is standard output), or a folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    coco: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the faces to this JSON file, in the format of COCO.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    box: Box = None,
    max_pixels: MaxPixels = 64_000_000,
    recursive: Recursive = False,
    detector: Detector = "yunet",
    offline: Offline = False,
) -> int:
    """List the faces of photos with the numbers that --faces takes. Changes nothing and needs no key.

    If PATH is -, the photo is read from standard input.
    """
    from anonface.batch.plan import STDIN, find
    from anonface.faces.annotate import coco as as_coco
    from anonface.faces.detect import build_detector

    check_options(overwrite, False, offline)
    refuse_streams({"--coco": coco})
    stdin, stdout = takes_stdin(paths), output == STREAM
    photos = [Path(STREAM)] if stdin else [source for _, source in find(paths, "anonymize", recursive)]
    boxes = parse_boxes(box, len(photos))
    if stdout:
        check_stdout(as_json)
    pictures = _pictures(output, photos)
    _check_written([STDIN] if stdin else photos, [] if stdout else pictures, coco, overwrite)
    sources: Sequence[Path | bytes] = [read_stdin()] if stdin else photos
    count_ignored(ctx)
    finder = build_detector(detector)
    listed: list[tuple[str, int, int, list[DetectedFace]]] = []
    results: list[dict[str, Any]] = []
    failures: list[AnonfaceError] = []
    with kept_for_photo() if stdout else nullcontext() as write_photo:
        for number, photo in enumerate(photos):
            drawn = pictures[number] if pictures else None
            try:
                pixels, faces, picture = _look(sources[number], finder, boxes, max_pixels, bool(drawn))
                if drawn and not write_photo:
                    _write(drawn, picture, overwrite)
            except AnonfaceError as error:
                failures.append(error)
                results.append({"input": str(photo), "faces": [], "error": error_json(error)})
                if len(photos) > 1:
                    say(f"{photo}: failed: {error.message}")
                continue
            listed.append((str(photo), pixels.shape[1], pixels.shape[0], faces))
            facts = [face_facts(face) for face in faces]
            results.append({"input": str(photo), "output": drawn and str(drawn), "faces": facts, "error": None})
            if not as_json:
                print(escaped(f"{shown(photo)}: {count(len(faces), 'face')}"))
                for face in faces:
                    print(face_line(face))
        if coco:
            _write(coco, json.dumps(as_coco(listed), indent=1).encode() + b"\n", overwrite)
        if write_photo and not failures:
            write_photo(picture)
    alone, code = end(failures, photos, ctx.obj)
    if as_json:
        print_json({"exit": code, "error": error_json(alone) if alone else None, "photos": results})
    return code


def _check_written(read: Sequence[Path], pictures: Sequence[Path], coco: Path | None, overwrite: bool) -> None:
    """Refuse outputs that must not or cannot be written."""
    from anonface.images.paths import Input, Output, check_target, refuse_conflicts

    written = [Output(file, "--output") for file in pictures] + ([Output(coco, "--coco")] if coco else [])
    refuse_conflicts(map(Input, read), written)
    for made in written:
        check_target(made.path, None, overwrite)


def _look(
    source: Path | bytes, finder: Finder, boxes: Sequence[FaceBox], max_pixels: int, drawn: bool
) -> tuple[NDArray[np.uint8], list[DetectedFace], bytes]:
    """A photo's pixels, its faces, and where asked for a PNG of it with boxes."""
    from anonface.batch.task import open_photo
    from anonface.faces.annotate import with_boxes
    from anonface.faces.locate import locate, numbered
    from anonface.images import Photo, encode_photo

    pixels = open_photo(source, max_pixels)[1].pixels
    faces = numbered(locate(pixels, finder, boxes))
    picture = encode_photo(Photo(with_boxes(pixels, faces), None, None, "png")) if drawn else b""
    return pixels, faces, picture


def _pictures(output: str | None, photos: list[Path]) -> list[Path]:
    """The pictures to write, one for each photo, or none."""
    if output is None:
        return []
    place = Path(output)
    if output == STREAM and len(photos) > 1:
        raise UsageError(f"standard output takes one picture, not {len(photos)}", "name a folder with -o")
    if output == STREAM:
        return [place]
    if len(photos) == 1 and not place.is_dir():
        if place.suffix.lower() != ".png":
            raise UsageError(f"the picture {place} must be a .png")
        return [place]
    return [place / f"{photo.name}.boxes.png" for photo in photos]


def _write(file: Path, data: bytes, overwrite: bool) -> None:
    from anonface.images import write_atomic

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, data, overwrite)


def face_facts(face: DetectedFace) -> dict[str, Any]:
    return {
        "index": face.index,
        "box": [round(value, 1) for value in face.box],
        "points": [[round(x, 1), round(y, 1)] for x, y in face.points],
        "score": round(face.score, 3),
        "replaced": face.obstacle is None,
        "reason": face.obstacle or "",
    }


def face_line(face: DetectedFace) -> str:
    x, y, w, h = (round(value) for value in face.box)
    covered = f"; would be covered by a mosaic: {face.obstacle}" if face.obstacle else ""
    return f"  {face.index:<3} {w} x {h} px at {x}, {y}{covered}"
