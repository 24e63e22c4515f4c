"""``anonface anonymize`` and ``anonface recover``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anonface.cli.compare import SHEET_CELL, check_sheet, thumbnail, write_sheet
from anonface.cli.console import say
from anonface.cli.engines import EngineSettings, anonymizing, model_files, photos_in, recovering
from anonface.cli.journals import journal_place
from anonface.cli.key_sources import KeySource
from anonface.cli.options import (
    EFFORTS,
    AsJson,
    Backend,
    BatchSize,
    Compile,
    Detector,
    Device,
    Faces,
    FacesKept,
    Format,
    Free,
    JpegQuality,
    Keep,
    KeepFaces,
    KeepMetadata,
    KeyFile,
    MaxPixels,
    Model,
    Name,
    Offline,
    Output,
    Overwrite,
    Own,
    Parser,
    PassphraseFile,
    Paths,
    Quality,
    Recorded,
    RecordsBeside,
    Recursive,
    Refine,
    Report,
    Resume,
    RunsOn,
    Seal,
    Sidecar,
    SkipExisting,
    Steps,
    StrictKeys,
    Transform,
    WeakPassphrase,
    Workers,
    check_jpeg,
    check_options,
    chosen_faces,
    own_settings,
    parse_box,
    refinement_steps,
)
from anonface.cli.run import Order, run_photos
from anonface.errors import (
    UsageError,
)

if TYPE_CHECKING:
    from anonface.batch.plan import Job
    from anonface.images.paths import Spared


def anonymize(
    ctx: typer.Context,
    paths: Paths,
    output: Output = None,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    weak_passphrase: WeakPassphrase = False,
    strict_keys: StrictKeys = False,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="One person becomes one other person in all photos under the key.")
    ] = False,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Store nothing in the photo; implies --consistent.")
    ] = False,
    sidecar: Sidecar = None,
    sheet: Annotated[
        Path | None, typer.Option(help="Also lay out originals and results side by side, in this PNG.")
    ] = None,
    seal: Seal = None,
    device: Device = "auto",
    backend: Backend = "ifadit",
    batch_size: BatchSize = 4,
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    compiled: Compile = False,
    box: Annotated[
        list[str] | None,
        typer.Option(metavar="X,Y,W,H", help="A face that the detector misses, in pixels; repeatable."),
    ] = None,
    faces: Faces = "all",
    keep_faces: KeepFaces = None,
    no_face: Annotated[
        Literal["fail", "copy", "skip"],
        typer.Option(help="What becomes of a photo without a face; a copy has no metadata."),
    ] = "fail",
    name: Name = None,
    format: Format = None,
    jpeg_quality: JpegQuality = None,
    keep_metadata: KeepMetadata = False,
    overwrite: Overwrite = False,
    skip_existing: SkipExisting = False,
    resume: Resume = False,
    recursive: Recursive = False,
    workers: Workers = None,
    runs_on: RunsOn = "local",
    report: Report = None,
    max_pixels: MaxPixels = 64_000_000,
    offline: Offline = False,
    as_json: AsJson = False,
) -> int:
    """Make everybody in the photos somebody else: photo.jpg -> photo.anon.png."""
    from anonface import api
    from anonface.batch import plan as plan_module
    from anonface.batch import task as task_module

    check_options(overwrite, skip_existing, offline)
    if stateless and sidecar:
        raise UsageError("--stateless stores no record, so there is none to write into a --sidecar")
    boxes = [parse_box(text) for text in box or ()]
    jobs = plan_module.plan(
        paths, "anonymize", output=output, name=name, format=format, sidecar=sidecar, recursive=recursive
    )
    check_jpeg(jpeg_quality, jobs)
    if boxes and len(jobs) > 1:
        raise UsageError("--box belongs to one photo", "anonymize that photo alone")
    keys = KeySource(key_file, passphrase_file, strict_keys, stateless, weak=weak_passphrase)
    own = own_settings(free, keep, model, transform, steps, compiled)
    _refuse_conflicts(ctx, jobs, keys, keep_faces, own, {"--report": report, "--sheet": sheet})
    if sheet:
        check_sheet(sheet, overwrite)
    tiers = [api.chosen_tier(seal, job.target, stateless) for job in jobs]
    options = {
        "seal": tiers[0],
        "consistent": consistent,
        "stateless": stateless,
        "boxes": boxes,
        "faces": chosen_faces(faces),
        "faceless": no_face == "copy",
        "quality": jpeg_quality or task_module.QUALITY,
        "keep_metadata": keep_metadata,
        "max_pixels": max_pixels,
    }
    engine = EngineSettings(
        backend, device, detector, parser, refinement_steps(refine, quality), batch_size, keep_faces, max_pixels, own
    )
    order = Order(overwrite, skip_existing, no_face == "skip", resume, report, runs_on, workers)
    code, outcomes = run_photos(ctx, jobs, anonymizing, keys, engine, options, order)
    if sheet and (done := [outcome.job for outcome in outcomes if outcome.state in ("done", "copied")]):
        pairs = [
            [
                thumbnail(task_module.open_photo(file, max_pixels)[1].pixels, SHEET_CELL)
                for file in (job.source, job.target)
            ]
            for job in done
        ]
        write_sheet(sheet, pairs, ("original", "anonymized"), [job.source for job in done], SHEET_CELL, overwrite)
    return code


def recover(
    ctx: typer.Context,
    paths: Paths,
    output: Output = None,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    strict_keys: StrictKeys = False,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="Use pixels and key alone: for photos anonymized so.")
    ] = False,
    sidecar: RecordsBeside = None,
    seal: Annotated[
        Literal["best", "none"], typer.Option(help="none: recover by the networks, whatever is sealed.")
    ] = "best",
    decoy: Annotated[
        bool, typer.Option("--decoy", help="Under a wrong key, write the face that it leads to; exit 7 all the same.")
    ] = False,
    device: Device = "auto",
    backend: Recorded = None,
    batch_size: BatchSize = 4,
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    compiled: Compile = False,
    faces: Faces = "all",
    keep_faces: FacesKept = None,
    name: Name = None,
    format: Format = None,
    jpeg_quality: JpegQuality = None,
    overwrite: Overwrite = False,
    skip_existing: SkipExisting = False,
    resume: Resume = False,
    recursive: Recursive = False,
    workers: Workers = None,
    runs_on: RunsOn = "local",
    report: Report = None,
    max_pixels: MaxPixels = 64_000_000,
    offline: Offline = False,
    as_json: AsJson = False,
) -> int:
    """Lead anonymized photos back by the best that they offer: photo.anon.png -> photo.recovered.jpg.

    A sealed original comes back byte for byte, under its own suffix. Where nothing is sealed, a wrong key leads to yet
    another person.
    """
    from anonface.batch import plan as plan_module
    from anonface.batch import task as task_module

    check_options(overwrite, skip_existing, offline)
    if stateless and sidecar:
        raise UsageError("--stateless uses no record, so a --sidecar has no say")
    if not stateless and (faces != "all" or keep_faces):
        raise UsageError("the record says which faces were changed", "--faces and --keep-faces go with --stateless")
    if not stateless and (transform or steps):
        raise UsageError("the record says how it was done", "--transform and --steps go with --stateless")
    jobs = plan_module.plan(
        paths, "recover", output=output, name=name, format=format, sidecar=sidecar, recursive=recursive
    )
    check_jpeg(jpeg_quality, jobs)
    keys = KeySource(key_file, passphrase_file, strict_keys, stateless)
    own = own_settings(free, keep, model, transform, steps, compiled)
    spared = _refuse_conflicts(ctx, jobs, keys, keep_faces, own, {"--report": report})
    options = {
        "unsealed": seal == "none",
        "decoy": decoy,
        "stateless": stateless,
        "original_suffix": not jobs[0].named,
        "faces": chosen_faces(faces),
        "quality": jpeg_quality or task_module.QUALITY,
        "max_pixels": max_pixels,
        "spared": spared,
    }
    effort = refinement_steps(refine, quality)
    if stateless and effort is None and backend in (None, "ifadit"):
        steps_taken = EFFORTS["balanced"]
        say(
            f"anonface: note: recovered with {steps_taken} steps, as --quality balanced is; photos made with --quality "
            "fast come back with --quality fast, in a fraction of the time"
        )
    engine = EngineSettings(backend or "", device, detector, parser, effort, batch_size, keep_faces, max_pixels, own)
    order = Order(overwrite, skip_existing, False, resume, report, runs_on, workers)
    return run_photos(ctx, jobs, recovering, keys, engine, options, order)[0]


def _refuse_conflicts(
    ctx: typer.Context,
    jobs: Sequence[Job],
    keys: KeySource,
    keep_faces: Path | None,
    own: Own,
    written: Mapping[str, Path | None],
) -> Spared:
    """Refuse a run that would write over what it reads or writes, before any work; see :mod:`anonface.images.paths`.

    Args:
        written: files beside the photos, by their options.

    Returns:
        What names that are known only later must not be.
    """
    from anonface.batch.plan import outputs_of
    from anonface.images.paths import COLLISION_HINT, Input, Output, Spared, refuse_conflicts

    read = [Input(job.source) for job in jobs]
    read += [Input(job.sidecar, "the record") for job in jobs if job.sidecar and job.direction == "recover"]
    read += [*keys.files(), *photos_in(keep_faces, "a photo of --keep-faces"), *model_files(own)]
    beside = [Output(file, option) for option, file in written.items() if file]
    if len(jobs) > 1:
        beside.append(Output(journal_place(ctx), "the journal"))
    hint = COLLISION_HINT if not beside else "choose another output"
    refuse_conflicts(read, [*outputs_of(jobs), *beside], hint)
    return Spared([*(file.path for file in read), *(file.path for file in beside)])
