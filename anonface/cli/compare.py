"""``anonface compare``; contact sheets and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anonface.cli.console import end, escaped, progress_bar, say
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
from anonface.errors import AnonfaceError, ImageError, LimitError, NoFaceError, UsageError, count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.crypto.keys import Key
    from anonface.evaluation.trials import Engine


SHEET_CELL = 384  # px
COLUMNS = ("original", "anonymized", "second key", "recovered", "wrong key")


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
    from anonface.crypto.keys import Key
    from anonface.images.paths import Input, Output, refuse_conflicts
    from anonface.images.pictures import thumbnail

    photos = [source for _, source in find(paths, "anonymize", recursive)]
    keys = KeySource(key_file, passphrase_file, strict_keys)
    own = backend_options(free, keep, model, transform, steps)
    read = [*map(Input, photos), *keys.files(), *model_files(own), *other_model_files(compare_with)]
    refuse_conflicts(read, [Output(output, "the sheet")])
    check_sheet(output, overwrite)
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
                    pictures = _versions(engine(), opened.pixels, key, second)
                else:
                    pictures = _by_engines([engine(), *(other() for other in others.values())], opened.pixels, key)
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


def _by_engines(engines: Sequence[Engine], pixels: NDArray[np.uint8], key: Key) -> list[NDArray[np.uint8]]:
    """The photo, then for each engine the anonymized photo and what is recovered from its re-read pixels alone.

    Raises:
        NoFaceError: no face in the photo, or none found again in an anonymized version.
    """
    from anonface.evaluation.trials import through_png

    row = [pixels]
    for engine in engines:
        hidden = through_png(engine.anonymize(pixels, key, consistent=True).pixels)
        row += [hidden, engine.recover(hidden, key, None).pixels]
    return row


def _versions(engine: Engine, pixels: NDArray[np.uint8], key: Key, second: Key) -> list[NDArray[np.uint8]]:
    """The five pictures of ``COLUMNS``; the wrong key is the second. Raises as :func:`_by_engines`."""
    _, hidden, recovered = _by_engines([engine], pixels, key)
    other = engine.anonymize(pixels, second, consistent=True).pixels
    return [pixels, hidden, other, recovered, engine.recover(hidden, second, None).pixels]


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


def write_sheet(
    file: Path,
    rows: Sequence[Sequence[NDArray[np.uint8]]],
    columns: Sequence[str],
    photos: Sequence[Path],
    cell: int,
    overwrite: bool,
) -> None:
    from anonface.images import Photo, encode_photo, write_atomic
    from anonface.images.pictures import contact_sheet

    sheet = contact_sheet(rows, columns, captions=[escaped(photo.name) for photo in photos], cell=cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, encode_photo(Photo(sheet, None, None, "png")), overwrite=overwrite)
    say(f"anonface: made {file} of {count(len(rows), 'photo')}")
