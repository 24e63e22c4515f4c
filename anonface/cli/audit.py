"""``anonface audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import PARTLY_FAILED, progress_bar
from anonface.cli.engines import EngineSettings, LazyEngine, model_files, photos_in
from anonface.cli.evaluate import described_engine
from anonface.cli.key_sources import KeySource, key_of_file
from anonface.cli.options import (
    AsJson,
    Backend,
    Detector,
    Device,
    Free,
    Keep,
    Model,
    Offline,
    Overwrite,
    Parser,
    Quality,
    Refine,
    Report,
    Steps,
    Transform,
    check_options,
    own_settings,
    refinement_steps,
)
from anonface.errors import (
    UsageError,
)


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Photos; identities.csv (file,identity) may name people.")
    ],
    attacks: Annotated[
        str, typer.Option(metavar="NAME,...|all", help="What is tried; a wrong name lists all.")
    ] = "all",
    photos: Annotated[int, typer.Option(min=1, help="Photos attacked, each anonymized four times.")] = 8,
    pairs: Annotated[int, typer.Option(min=0, help="Examples that learning attackers make, without refinement.")] = 64,
    candidates: Annotated[int, typer.Option(min=2, help="Possible originals of each photo.")] = 20,
    guesses: Annotated[int, typer.Option(min=2, help="Keys that a guesser tries, and bytes that are flipped.")] = 120,
    crowd: Annotated[int, typer.Option(min=0, help="Photos of others that originals are sought among.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Of photos, keys and all that attackers draw.")] = 1,
    key_file: Annotated[
        Path | None, typer.Option(readable=False, help="The key under attack. Default: one made of the seed.")
    ] = None,
    device: Device = "auto",
    backend: Backend = "ifadit",
    detector: Detector = "yunet",
    parser: Parser = "trained",
    refine: Refine = None,
    quality: Quality = None,
    free: Free = None,
    keep: Keep = None,
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    offline: Offline = False,
    report: Report = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> int:
    """Attack what anonymize makes of your own photos, without the key: exit code 3 when an attack succeeds."""
    import tempfile

    from anonface.batch.folders import is_folder
    from anonface.images import check_output, write_atomic
    from anonface.images.paths import Output, refuse_conflicts

    check_options(False, False, offline)
    effort = refinement_steps(refine, quality)
    own = own_settings(free, keep, model, transform, steps)
    if report:
        read = [*photos_in(folder, "a photo of the folder"), *KeySource(key_file, None, False).files()]
        refuse_conflicts([*read, *model_files(own)], [Output(report, "--report")])
        check_output(report, overwrite=overwrite)
    if not is_folder(folder):
        raise UsageError(f"{str(folder)!r} is not a folder of photos")
    key = key_of_file(key_file, None, strict=False) if key_file else None
    from rich.console import Console

    from anonface import api
    from anonface.evaluation.audit import model as models
    from anonface.evaluation.audit import run as audits
    from anonface.evaluation.audit.subject import Sizes, Subject, choose
    from anonface.evaluation.judges import Judges

    wanted = audits.chosen(attacks)
    sizes = Sizes(photos, pairs, candidates, guesses, crowd)
    judges = Judges()
    with progress_bar("originals", 0) as advance:
        gallery = choose(folder, judges, sizes, seed, lambda done, total: advance(done, "", total))
    engine = LazyEngine(EngineSettings(backend, device, detector, parser, effort, own=own))()
    with tempfile.TemporaryDirectory(prefix="anonface-") as work, progress_bar("attacks", len(wanted)) as advance:
        names = {attack.name: number for number, attack in enumerate(wanted)}
        subject = Subject(
            engine, models.of(engine), judges, gallery, sizes=sizes, key=key, seed=seed, files=api, work=Path(work)
        )
        result = audits.audit(
            subject, wanted, described_engine(engine, detector), lambda name: advance(names[name], name, len(wanted))
        )
    text = audits.to_json(result)
    if report:
        write_atomic(report, text.encode("utf-8", "replace"), overwrite)
    if as_json:
        print(text)
    Console(stderr=True).print(audits.table(result))
    return PARTLY_FAILED if result.broken else 0
