"""``anonface compare``, and sheets and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anonface.cli.console import PARTLY_FAILED, complain, count, escaped, progress_bar, say
from anonface.cli.engines import EngineSettings, LazyEngine, model_files, rival_files
from anonface.cli.key_sources import KeySource
from anonface.cli.options import (
    Backend,
    Detector,
    Device,
    Free,
    Keep,
    KeyFile,
    MaxPixels,
    Model,
    Offline,
    Overwrite,
    Own,
    Parser,
    PassphraseFile,
    Paths,
    Quality,
    Recursive,
    Refine,
    Steps,
    StrictKeys,
    Transform,
    check_options,
    own_settings,
    refinement_steps,
)
from anonface.cli.run import count_passed_over
from anonface.errors import (
    AnonfaceError,
    ImageError,
    LimitError,
    NoFaceError,
    UsageError,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SHEET_CELL = 384  # px


def compare(
    ctx: typer.Context,
    paths: Paths,
    output: Annotated[Path, typer.Option("-o", "--output", help="The sheet, a PNG.")],
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    strict_keys: StrictKeys = False,
    device: Device = "auto",
    backend: Backend = "ifadit",
    rivals: Annotated[
        str | None,
        typer.Option(
            "--beside",
            metavar="NAME,...",
            help="Another sheet: of --backend and of each of these, anonymized and recovered; NAME=DIR for one with "
            "weights of its own.",
        ),
    ] = None,
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    cell: Annotated[int, typer.Option(min=64, max=1024, help="Side of a picture on the sheet, in pixels.")] = 256,
    overwrite: Overwrite = False,
    recursive: Recursive = False,
    max_pixels: MaxPixels = 64_000_000,
    offline: Offline = False,
) -> int:
    """Lay out original, anonymized, second key, recovered and wrong key side by side, recovered from pixels alone."""
    from anonface.batch import plan as plan_module
    from anonface.batch import task as task_module

    check_options(overwrite, False, offline)
    effort = refinement_steps(refine, quality)
    if output.suffix.lower() != ".png":
        raise UsageError(f"the sheet {output} must be a .png")
    from anonface.crypto.keys import Key
    from anonface.evaluation.sheet import COLUMNS, compared, versions
    from anonface.images.paths import Input, Output, check_target, refuse_conflicts

    photos = [source for _, source in plan_module.find(paths, "anonymize", recursive)]
    keys = KeySource(key_file, passphrase_file, strict_keys)
    own = own_settings(free, keep, model, transform, steps)
    read = [*map(Input, photos), *keys.files(), *model_files(own), *rival_files(rivals)]
    refuse_conflicts(read, [Output(output, "the sheet")])
    check_target(output, None, overwrite)
    count_passed_over(ctx)
    key = keys.secret().under(keys.fresh())
    second = Key.generate()
    settings = EngineSettings(backend, device, detector, parser, effort, own=own)
    engine, others = LazyEngine(settings), _backends_beside(settings, rivals)
    columns: Sequence[str] = COLUMNS
    if rivals is not None:
        columns = ("original", *(text for name in (backend, *others) for text in (name, f"{name}, recovered")))
    rows: list[Sequence[NDArray[np.uint8]]] = []
    shown: list[Path] = []
    failures: list[AnonfaceError] = []
    with progress_bar("photos", len(photos)) as advance:
        for done, photo in enumerate(photos, start=1):
            try:
                _, opened = task_module.open_photo(photo, max_pixels)
                if rivals is None:
                    pictures = versions(engine(), opened.pixels, key, second)
                else:
                    pictures = compared([engine(), *(other() for other in others.values())], opened.pixels, key)
                rows.append([thumbnail(made, cell) for made in pictures])
                shown.append(photo)
            except (ImageError, NoFaceError, LimitError) as error:
                failures.append(error)
                if len(photos) > 1:
                    say(f"{photo}: failed: {error.message}")
            advance(done, "")
    if rows:
        write_sheet(output, rows, columns, shown, cell, overwrite)
    if len(photos) == 1 and failures:
        complain(failures[0], ctx.obj, photos[0])
        return failures[0].exit_code
    return PARTLY_FAILED if failures else 0


def _backends_beside(settings: EngineSettings, rivals: str | None) -> dict[str, LazyEngine]:
    """The engines of other backends, named as for :func:`evaluate`."""
    if rivals is None:
        return {}
    from anonface.backends.registry import BACKENDS
    from anonface.evaluation.comparison import chosen

    others: dict[str, LazyEngine] = {}
    for name, folder in chosen(rivals, list(BACKENDS)).items():
        if name not in BACKENDS:
            raise UsageError(f"{name} recovers nobody", "`anonface evaluate --beside` takes it")
        if name != settings.backend:
            own: Own = {"model": folder} if folder else {}
            others[name] = LazyEngine(replace(settings, backend=name, refine=None, own=own), told=True)
    return others


def check_sheet(file: Path, overwrite: bool) -> None:
    from anonface.images.paths import check_target

    if file.suffix.lower() != ".png":
        raise UsageError(f"the sheet {file} must be a .png")
    check_target(file, None, overwrite)


def check_page(file: Path, overwrite: bool) -> None:
    from anonface.images import check_output

    if file.suffix.lower() != ".html":
        raise UsageError(f"the report {file} must be a .html")
    for made in (file, file.with_suffix(".json")):
        check_output(made, overwrite=overwrite)


def thumbnail(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Many photos fit into memory like this."""
    import numpy as np
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(picture)


def write_sheet(
    file: Path,
    rows: Sequence[Sequence[NDArray[np.uint8]]],
    columns: Sequence[str],
    photos: Sequence[Path],
    cell: int,
    overwrite: bool,
) -> None:
    from anonface.evaluation.sheet import contact_sheet
    from anonface.images import Photo, encode_photo, write_atomic

    sheet = contact_sheet(rows, columns=columns, captions=[escaped(photo.name) for photo in photos], cell=cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, encode_photo(Photo(sheet, None, None, "png")), overwrite=overwrite)
    say(f"anonface: made {file} of {count(len(rows), 'photo')}")
