"""``anonface detect``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anonface.cli.console import count, end, error_json, escaped, print_json, say
from anonface.cli.help import OUTPUT
from anonface.cli.options import AsJson, Detector, MaxPixels, Offline, Overwrite, Paths, Recursive, check_options
from anonface.cli.run import count_ignored
from anonface.errors import AnonfaceError, UsageError

if TYPE_CHECKING:
    from anonface.faces.locate import DetectedFace


def detect(
    ctx: typer.Context,
    paths: Paths,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Also write each photo with numbered boxes: a PNG for one photo, a folder for several.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    coco: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write the faces to this JSON file, as COCO does.", rich_help_panel=OUTPUT
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    max_pixels: MaxPixels = 64_000_000,
    recursive: Recursive = False,
    detector: Detector = "yunet",
    offline: Offline = False,
) -> int:
    """List the faces of photos with the numbers that --faces takes. Changes nothing and needs no key."""
    from anonface.batch.plan import find
    from anonface.batch.task import open_photo
    from anonface.faces.annotate import coco as as_coco
    from anonface.faces.annotate import with_boxes
    from anonface.faces.detect import build_detector
    from anonface.faces.locate import locate, numbered
    from anonface.images import Photo, encode_photo
    from anonface.images.paths import Input, check_target, refuse_conflicts
    from anonface.images.paths import Output as Written

    check_options(overwrite, False, offline)
    photos = [source for _, source in find(paths, "anonymize", recursive)]
    pictures = _pictures(output, photos)
    written = [Written(file, "--output") for file in pictures] + ([Written(coco, "--coco")] if coco else [])
    refuse_conflicts(map(Input, photos), written)
    for made in written:
        check_target(made.path, None, overwrite)
    count_ignored(ctx)
    finder = build_detector(detector)
    listed: list[tuple[str, int, int, list[DetectedFace]]] = []
    results: list[dict[str, Any]] = []
    failures: list[AnonfaceError] = []
    for number, photo in enumerate(photos):
        try:
            pixels = open_photo(photo, max_pixels)[1].pixels
            faces = numbered(locate(pixels, finder))
            if pictures:
                picture = encode_photo(Photo(with_boxes(pixels, faces), None, None, "png"))
                _write(pictures[number], picture, overwrite)
        except AnonfaceError as error:
            failures.append(error)
            results.append({"input": str(photo), "faces": [], "error": error_json(error)})
            if len(photos) > 1:
                say(f"{photo}: failed: {error.message}")
            continue
        listed.append((str(photo), pixels.shape[1], pixels.shape[0], faces))
        drawn = str(pictures[number]) if pictures else None
        results.append(
            {"input": str(photo), "output": drawn, "faces": [face_facts(face) for face in faces], "error": None}
        )
        if not as_json:
            print(escaped(f"{photo}: {count(len(faces), 'face')}"))
            for face in faces:
                print(face_line(face))
    if coco:
        _write(coco, json.dumps(as_coco(listed), indent=1).encode() + b"\n", overwrite)
    alone, code = end(failures, photos, ctx.obj)
    if as_json:
        print_json({"exit": code, "error": error_json(alone) if alone else None, "photos": results})
    return code


def _pictures(output: Path | None, photos: list[Path]) -> list[Path]:
    """The pictures to write, one for each photo, or none."""
    if output is None:
        return []
    if len(photos) == 1 and not output.is_dir():
        if output.suffix.lower() != ".png":
            raise UsageError(f"the picture {output} must be a .png")
        return [output]
    return [output / f"{photo.name}.boxes.png" for photo in photos]


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
