"""``anonface anonymize`` and ``anonface recover``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anonface.cli.annotations import read_annotations
from anonface.cli.compare import SHEET_CELL, check_sheet, write_sheet
from anonface.cli.console import ENDED_BY, say
from anonface.cli.dry_run import dry_run as run_dry
from anonface.cli.engines import EngineSettings, anonymizing, model_files, photos_in, recovering
from anonface.cli.journals import journal_place
from anonface.cli.key_sources import KeySource
from anonface.cli.options import (
    AnnotationPaths,
    AsJson,
    Backend,
    BackendOptions,
    BatchSize,
    Box,
    ChangedFaces,
    Check,
    Compile,
    Consistent,
    Decoy,
    Detector,
    Device,
    DryRun,
    Faces,
    FacesKept,
    FacesOut,
    Format,
    Free,
    JpegQuality,
    Keep,
    KeepFaces,
    KeepMetadata,
    KeepRegions,
    KeyFile,
    MaxPixels,
    Model,
    Name,
    NoFace,
    Offline,
    Output,
    Overwrite,
    Parser,
    PassphraseFile,
    Paths,
    RecordedBackend,
    RecordSidecar,
    RecoverStateless,
    Recursive,
    Report,
    Resume,
    Review,
    RunsOn,
    Seal,
    SealUsed,
    Sheet,
    Sidecar,
    SkipExisting,
    Stateless,
    Steps,
    StrictKeys,
    Transform,
    WeakPassphrase,
    Workers,
    backend_options,
    check_jpeg,
    check_options,
    chosen_faces,
    chosen_regions,
    parse_boxes,
)
from anonface.cli.pipes import check_stdout, read_stdin, refuse_streams, takes_stdin, writer
from anonface.cli.review import check_page_target, page_of_run
from anonface.cli.run import RunOptions, run_photos
from anonface.errors import UsageError, count
from anonface.streams import STREAM

if TYPE_CHECKING:
    from anonface.annotations.carry import Annotations
    from anonface.batch.plan import Job
    from anonface.images.paths import Protected


def anonymize(
    ctx: typer.Context,
    paths: Paths,
    output: Output = None,
    seal: Seal = None,
    stateless: Stateless = False,
    sidecar: Sidecar = None,
    format: Format = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    report: Report = None,
    as_json: AsJson = False,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    weak_passphrase: WeakPassphrase = False,
    strict_keys: StrictKeys = False,
    faces: Faces = "all",
    keep_faces: KeepFaces = None,
    box: Box = None,
    keep_regions: KeepRegions = None,
    check: Check = False,
    no_face: NoFace = "fail",
    consistent: Consistent = False,
    free: Free = None,
    keep: Keep = None,
    backend: Backend = "inpaint",
    device: Device = "auto",
    batch_size: BatchSize = 4,
    name: Name = None,
    jpeg_quality: JpegQuality = None,
    keep_metadata: KeepMetadata = False,
    sheet: Sheet = None,
    review: Review = None,
    faces_out: FacesOut = None,
    annotations: AnnotationPaths = None,
    max_pixels: MaxPixels = 64_000_000,
    recursive: Recursive = False,
    skip_existing: SkipExisting = False,
    resume: Resume = False,
    workers: Workers = None,
    runs_on: RunsOn = "local",
    detector: Detector = "yunet",
    parser: Parser = "trained",
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    compiled: Compile = False,
    offline: Offline = False,
) -> int:
    """Replace every face in the photos by a synthetic face chosen by the key.

    photo.jpg becomes photo.anon.jpg, unless --output names another file. If PATH is -, the photo is read from standard
    input, and the result is written to standard output.
    """
    from anonface.api import chosen_tier
    from anonface.batch.plan import plan
    from anonface.batch.task import open_photo
    from anonface.images.pictures import thumbnail

    check_options(overwrite, skip_existing, offline)
    if stateless and sidecar:
        raise UsageError("--stateless stores no record, so there is none to write into a --sidecar")
    stay = chosen_regions(keep_regions, stateless)
    data = _piped(ctx, written=not dry_run)
    jobs = plan(
        paths,
        "anonymize",
        output=output,
        name=name,
        format=format,
        sidecar=sidecar,
        faces_out=faces_out,
        recursive=recursive,
        lossy=chosen_tier(seal, None, stateless) == "file" and not stay,  # regions stay to the bit
        data=data,
    )
    check_jpeg(jpeg_quality, jobs)
    boxes = parse_boxes(box, len(jobs))
    keys = KeySource(key_file, passphrase_file, strict_keys, stateless, weak=weak_passphrase)
    own = backend_options(free, keep, model, transform, steps, compiled)
    carried = read_annotations(annotations, jobs, output)
    written = {"--report": report, "--sheet": sheet, "--review": review}
    _refuse_conflicts(ctx, jobs, keys, keep_faces, own, written, carried)
    if sheet:
        check_sheet(sheet, overwrite)
    if review:
        check_page_target(review, overwrite)
    tiers = [chosen_tier(seal, job.target, stateless) for job in jobs]
    if dry_run:
        from anonface.batch.run import Rules

        rules = Rules(overwrite, skip_existing, no_face == "skip")
        if carried:
            carried.check(overwrite, skip_existing)
            say(f"anonface: annotations: {count(len(carried.outputs), 'file')} would be written below {output}")
        if keep_faces:
            say("anonface: note: a dry run does not look for the people of --keep-faces, who would stay")
        chosen = chosen_faces(faces)
        return run_dry(ctx.obj, jobs, rules, detector, boxes, chosen, no_face == "copy", max_pixels)
    options = {
        "seal": tiers[0],
        "consistent": consistent,
        "stateless": stateless,
        "boxes": boxes,
        "faces": chosen_faces(faces),
        "faceless": no_face == "copy",
        "quality": jpeg_quality,
        "keep_metadata": keep_metadata,
        "max_pixels": max_pixels,
        "keep_regions": stay,
        "check": check,
        "detailed": faces_out is not None,
    }
    engine = EngineSettings(backend, device, detector, parser, batch_size, keep_faces, max_pixels, own)
    with writer(jobs) as write:
        run = RunOptions(overwrite, skip_existing, no_face == "skip", resume, report, runs_on, workers, write, carried)
        code, outcomes = run_photos(ctx, jobs, anonymizing, keys, engine, options, run)
    if sheet and (done := [outcome.job for outcome in outcomes if outcome.state in ("done", "copied")]):
        pairs = [
            [thumbnail(open_photo(file, max_pixels)[1].pixels, SHEET_CELL) for file in (job.source, job.target)]
            for job in done
        ]
        write_sheet(sheet, pairs, ("original", "anonymized"), [job.source for job in done], SHEET_CELL, overwrite)
    if review and code not in ENDED_BY:
        page_of_run(review, outcomes, detector, max_pixels, overwrite)
    return code


def recover(
    ctx: typer.Context,
    paths: Paths,
    output: Output = None,
    seal: SealUsed = "best",
    stateless: RecoverStateless = False,
    sidecar: RecordSidecar = None,
    decoy: Decoy = False,
    format: Format = None,
    overwrite: Overwrite = False,
    report: Report = None,
    as_json: AsJson = False,
    key_file: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    strict_keys: StrictKeys = False,
    faces: ChangedFaces = "all",
    keep_faces: FacesKept = None,
    free: Free = None,
    keep: Keep = None,
    backend: RecordedBackend = None,
    device: Device = "auto",
    batch_size: BatchSize = 4,
    name: Name = None,
    jpeg_quality: JpegQuality = None,
    annotations: AnnotationPaths = None,
    max_pixels: MaxPixels = 64_000_000,
    recursive: Recursive = False,
    skip_existing: SkipExisting = False,
    resume: Resume = False,
    workers: Workers = None,
    runs_on: RunsOn = "local",
    detector: Detector = "yunet",
    parser: Parser = "trained",
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    compiled: Compile = False,
    offline: Offline = False,
) -> int:
    """Recover the originals of anonymized photos, by the best means that each photo offers.

    photo.anon.jpg becomes photo.recovered.jpg. An encrypted original comes back byte for byte, under its own suffix.
    If no original is stored, a wrong key produces a different face without any warning. If PATH is -, the photo is
    read from standard input, and the result is written to standard output.
    """
    from anonface.batch.plan import plan
    from anonface.batch.task import QUALITY

    check_options(overwrite, skip_existing, offline)
    if stateless and sidecar:
        raise UsageError("--stateless uses no record, so it excludes --sidecar")
    if not stateless and (faces != "all" or keep_faces):
        raise UsageError("the record says which faces were changed", "--faces and --keep-faces go with --stateless")
    if not stateless and (transform or steps):
        raise UsageError("the record says how it was done", "--transform and --steps go with --stateless")
    data = _piped(ctx)
    jobs = plan(
        paths, "recover", output=output, name=name, format=format, sidecar=sidecar, recursive=recursive, data=data
    )
    check_jpeg(jpeg_quality, jobs)
    keys = KeySource(key_file, passphrase_file, strict_keys, stateless)
    own = backend_options(free, keep, model, transform, steps, compiled)
    carried = read_annotations(annotations, jobs, output)
    protected = _refuse_conflicts(ctx, jobs, keys, keep_faces, own, {"--report": report}, carried)
    options = {
        "unsealed": seal == "none",
        "decoy": decoy,
        "stateless": stateless,
        "original_suffix": not jobs[0].named,
        "faces": chosen_faces(faces),
        "quality": jpeg_quality or QUALITY,
        "max_pixels": max_pixels,
        "protected": protected,
        "piped": jobs[0].piped,
    }
    engine = EngineSettings(backend or "", device, detector, parser, batch_size, keep_faces, max_pixels, own)
    with writer(jobs) as write:
        run = RunOptions(overwrite, skip_existing, False, resume, report, runs_on, workers, write, carried)
        return run_photos(ctx, jobs, recovering, keys, engine, options, run)[0]


_BY_NAME = ("sheet", "review", "annotations", "faces_out")  # options that need the names of photos and results


def _piped(ctx: typer.Context, written: bool = True) -> bytes | None:
    """The photo from standard input, if it comes from there.

    Args:
        written: the photo is written.

    Raises:
        UsageError: the streams cannot do what the options ask for.
    """
    given = ctx.params
    refuse_streams({f"--{name}": given.get(name) for name in ("sidecar", "report", "sheet")})
    stdin = takes_stdin(given["paths"])
    stdout = given["output"] == STREAM or (stdin and given["output"] is None)
    by_file = {f"--{name.replace('_', '-')}": given.get(name) for name in _BY_NAME}
    by_file |= {"--engine ray": given["runs_on"] == "ray", "--decoy": stdout and given.get("decoy")}
    for option in (option for option, there in by_file.items() if there and (stdin or stdout)):
        raise UsageError(
            f"{option} needs photos in files, not from or to a standard stream",
            "name the photo's file instead of -, or leave the option out",
        )
    if stdout and written:
        check_stdout(given["as_json"])
    return read_stdin((given["key_file"], given["passphrase_file"])) if stdin else None


def _refuse_conflicts(
    ctx: typer.Context,
    jobs: Sequence[Job],
    keys: KeySource,
    keep_faces: Path | None,
    own: BackendOptions,
    written: Mapping[str, Path | None],
    annotations: Annotations | None = None,
) -> Protected:
    """Refuse a run that would write over what it reads or writes, before any work; see :mod:`anonface.images.paths`.

    Args:
        written: other outputs than photos, by their options.

    Returns:
        The files that names which are known only later must not replace.
    """
    from anonface.batch.plan import outputs_of, sources_of
    from anonface.images.paths import COLLISION_HINT, Input, Output, Protected, refuse_conflicts

    read = sources_of(jobs)
    read += [Input(job.sidecar, "the record") for job in jobs if job.sidecar and job.direction == "recover"]
    read += [*keys.files(), *photos_in(keep_faces, "a photo of --keep-faces"), *model_files(own)]
    others = [Output(file, option) for option, file in written.items() if file]
    if annotations:
        read += [Input(file, "the annotations") for file in annotations.files]
        others += [Output(file, "a file of --annotations") for file in annotations.outputs]
    if len(jobs) > 1:
        others.append(Output(journal_place(ctx), "the journal"))
    hint = COLLISION_HINT if not others else "choose another output"
    refuse_conflicts(read, [*outputs_of(jobs), *others], hint)
    return Protected([*(file.path for file in read), *(file.path for file in others)])
