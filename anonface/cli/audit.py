"""``anonface audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import PARTLY_FAILED, progress_bar
from anonface.cli.engines import EngineSettings, LazyEngine, model_files, photos_in
from anonface.cli.evaluate import described_engine
from anonface.cli.help import MEASUREMENT
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
    Report,
    Steps,
    Transform,
    backend_options,
    check_options,
)
from anonface.errors import UsageError


def audit(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of photos; identities.csv (file,identity) in it names the people."),
    ],
    report: Report = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    attacks: Annotated[
        str,
        typer.Option(
            metavar="NAME,...|all", help="Attacks to try; a wrong name lists all.", rich_help_panel=MEASUREMENT
        ),
    ] = "all",
    photos: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Photos to attack, each anonymized four times.", rich_help_panel=MEASUREMENT
        ),
    ] = 8,
    candidates: Annotated[
        int, typer.Option(min=2, metavar="N", help="Candidate originals per photo.", rich_help_panel=MEASUREMENT)
    ] = 20,
    guesses: Annotated[
        int,
        typer.Option(min=2, metavar="N", help="Keys to guess, and bytes to flip.", rich_help_panel=MEASUREMENT),
    ] = 120,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Seed for photos, keys and everything random in the attacks.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = 1,
    free: Free = None,
    keep: Keep = None,
    backend: Backend = "inpaint",
    device: Device = "auto",
    detector: Detector = "yunet",
    parser: Parser = "trained",
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    offline: Offline = False,
) -> int:
    """Attack the anonymization of your photos without the key.

    The exit code is 3 if an attack succeeds.
    """
    import tempfile

    from anonface.batch.folders import is_folder
    from anonface.images import check_output, write_atomic
    from anonface.images.paths import Output, refuse_conflicts

    check_options(False, False, offline)
    own = backend_options(free, keep, model, transform, steps)
    if report:
        refuse_conflicts([*photos_in(folder, "a photo of the folder"), *model_files(own)], [Output(report, "--report")])
        check_output(report, overwrite=overwrite)
    if not is_folder(folder):
        raise UsageError(f"{str(folder)!r} is not a folder of photos")
    from rich.console import Console

    from anonface import api
    from anonface.evaluation.audit.model import of as model_of
    from anonface.evaluation.audit.run import ATTACKS, table, to_json
    from anonface.evaluation.audit.run import audit as run_attacks
    from anonface.evaluation.audit.subject import Sizes, Subject, choose
    from anonface.evaluation.choices import chosen
    from anonface.evaluation.judges import Judges

    wanted = [ATTACKS[name] for name in chosen(attacks, ATTACKS, "attack")]
    if not wanted:
        raise UsageError("--attacks names none", "leave it out to try all")
    sizes = Sizes(photos, candidates=candidates, guesses=guesses)
    judges = Judges()
    with progress_bar("originals", 0) as advance:
        gallery = choose(folder, judges, sizes, seed, lambda done, total: advance(done, "", total))
    engine = LazyEngine(EngineSettings(backend, device, detector, parser, own=own))()
    with tempfile.TemporaryDirectory(prefix="anonface-") as work, progress_bar("attacks", len(wanted)) as advance:
        names = {attack.name: number for number, attack in enumerate(wanted)}
        subject = Subject(engine, model_of(engine), judges, gallery, sizes=sizes, seed=seed, files=api, work=Path(work))
        result = run_attacks(
            subject, wanted, described_engine(engine, detector), lambda name: advance(names[name], name, len(wanted))
        )
    text = to_json(result)
    if report:
        write_atomic(report, text.encode("utf-8", "replace"), overwrite)
    if as_json:
        print(text)
    Console(stderr=True).print(table(result))
    return PARTLY_FAILED if result.broken else 0
