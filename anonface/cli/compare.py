"""``anonface compare``; contact sheets and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anonface.cli.console import count, end, escaped, progress_bar, say
from anonface.cli.engines import EngineSettings, LazyEngine, model_files, other_model_files
from anonface.cli.help import OUTPUT
from anonface.cli.key_sources import KeySource
from anonface.cli.options import (
    Backend,
    BackendOptions,
    Detector,
    Device,
    Free,
    Keep,
    KeyFile,
    MaxPixels,
    Model,
    Offline,
    Overwrite,
    Parser,
    PassphraseFile,
    Paths,
    Recursive,
    Steps,
    StrictKeys,
    Transform,
    backend_options,
    check_options,
)
from anonface.cli.run import count_ignored
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
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Contact sheet to write, a PNG.", rich_help_panel=OUTPUT),
    ],
    cell: Annotated[
        int,
        typer.Option(
            min=64, max=1024, metavar="N", help="Side of each picture on the sheet, in pixels.", rich_help_panel=OUTPUT
        ),
    ] = 256,
    compare_with: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Show these backends next to --backend; NAME=DIR gives one its own weights.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    overwrite: Overwrite = False,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    strict_keys: StrictKeys = False,
    free: Free = None,
    keep: Keep = None,
    backend: Backend = "inpaint",
    device: Device = "auto",
    max_pixels: MaxPixels = 64_000_000,
    recursive: Recursive = False,
    detector: Detector = "yunet",
    parser: Parser = "trained",
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    offline: Offline = False,
) -> int:
    """Write a contact sheet: original, anonymized, second key, recovered and wrong key.

    The photos are recovered from their pixels alone.
    """
    from anonface.batch.plan import find
    from anonface.batch.task import open_photo

    check_options(overwrite, False, offline)
    if output.suffix.lower() != ".png":
        raise UsageError(f"the sheet {output} must be a .png")
    from anonface.crypto.keys import Key
    from anonface.evaluation.sheet import COLUMNS, compared, versions
    from anonface.images.paths import Input, Output, check_target, refuse_conflicts

    photos = [source for _, source in find(paths, "anonymize", recursive)]
    keys = KeySource(key_file, passphrase_file, strict_keys)
    own = backend_options(free, keep, model, transform, steps)
    read = [*map(Input, photos), *keys.files(), *model_files(own), *other_model_files(compare_with)]
    refuse_conflicts(read, [Output(output, "the sheet")])
    check_target(output, None, overwrite)
    count_ignored(ctx)
    key = keys.secret().under(keys.fresh())
    second = Key.generate()
    settings = EngineSettings(backend, device, detector, parser, own=own)
    engine, others = LazyEngine(settings), _other_engines(settings, compare_with)
    columns: Sequence[str] = COLUMNS
    if compare_with is not None:
        columns = ("original", *(text for name in (backend, *others) for text in (name, f"{name}, recovered")))
    rows: list[Sequence[NDArray[np.uint8]]] = []
    shown: list[Path] = []
    failures: list[AnonfaceError] = []
    with progress_bar("photos", len(photos)) as advance:
        for done, photo in enumerate(photos, start=1):
            try:
                _, opened = open_photo(photo, max_pixels)
                if compare_with is None:
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
    return end(failures, photos, ctx.obj)[1]


def _other_engines(settings: EngineSettings, compare_with: str | None) -> dict[str, LazyEngine]:
    """The engines of the backends that --compare-with names."""
    if compare_with is None:
        return {}
    from anonface.backends.registry import BACKENDS
    from anonface.evaluation.comparison import chosen

    others: dict[str, LazyEngine] = {}
    for name, folder in chosen(compare_with, list(BACKENDS)).items():
        if name not in BACKENDS:
            raise UsageError(f"{name} cannot recover a photo", "`anonface evaluate --compare-with` accepts it")
        if name != settings.backend:
            own: BackendOptions = {"model": folder} if folder else {}
            others[name] = LazyEngine(replace(settings, backend=name, own=own), quiet=True)
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
    """A small copy of a picture, of which many fit into memory."""
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
