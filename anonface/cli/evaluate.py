"""``anonface evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anonface.cli import doctor
from anonface.cli.console import progress_bar, say
from anonface.cli.engines import EngineSettings, LazyEngine, model_files, other_model_files, photos_in
from anonface.cli.help import BATCH, MEASUREMENT, OUTPUT, PHOTOS
from anonface.cli.options import (
    AsJson,
    Backend,
    BackendOptions,
    Detector,
    Device,
    Free,
    Keep,
    Model,
    Offline,
    Overwrite,
    Parser,
    Steps,
    Transform,
    backend_options,
    check_options,
)
from anonface.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.evaluation.blind import Sheets
    from anonface.evaluation.judges import Original
    from anonface.evaluation.report import Grid
    from anonface.evaluation.trials import Plan
    from anonface.pipeline import Engine


QUICK_PHOTOS, QUICK_KEYS, QUICK_RECOVER_KEYS = 40, 2, 1  # of an evaluation in half an hour


def evaluate(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder of photos; identities.csv (file,identity) in it names the people."),
    ] = None,
    synthetic: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Use this many synthetic faces instead of DIR, always the same ones.",
            rich_help_panel=PHOTOS,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Use only the first photos, up to this number.", rich_help_panel=PHOTOS),
    ] = None,
    split: Annotated[
        Literal["all", "even", "odd"],
        typer.Option(help="Use all people, or those of even or odd rank in identities.csv.", rich_help_panel=PHOTOS),
    ] = "all",
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Also write a page with plots and pictures, and its numbers as JSON.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    blind: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write sheets for a blind test to a new folder, and their key to DIR.key.json.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown.", rich_help_panel=OUTPUT)
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"Measure {QUICK_PHOTOS} photos under {QUICK_KEYS} keys without degradations, in half an hour.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = False,
    keys: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default="4", help="Keys tried on each photo.", rich_help_panel=MEASUREMENT
        ),
    ] = None,
    recover_keys: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            show_default="all",
            help="Keys of each photo under which recovery is tried.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = None,
    degradations: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...|all|none",
            show_default="jpeg90",
            help="Degradations of the anonymized photos before recovery.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = None,
    degradation_keys: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            show_default="1",
            help="Keys of each photo tried with degradations and in the identity ablation.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = None,
    recognizers: Annotated[
        str,
        typer.Option(
            metavar="NAME,...|all|none",
            help="Recognizers that judge in addition to dlib's; a wrong name lists all.",
            rich_help_panel=MEASUREMENT,
        ),
    ] = "all",
    compare_with: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...|all",
            help="Compare with deface-blur, deface-mosaic, deface-solid, pixelate or a backend (NAME=DIR).",
            rich_help_panel=MEASUREMENT,
        ),
    ] = None,
    free: Free = None,
    keep: Keep = None,
    backend: Backend = "inpaint",
    device: Device = "auto",
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Store measurements here, and continue from earlier ones.", rich_help_panel=BATCH
        ),
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            metavar="K/N", help="Measure the Kth of N parts; the parts share one journal.", rich_help_panel=BATCH
        ),
    ] = "1/1",
    detector: Detector = "yunet",
    parser: Parser = "trained",
    model: Model = None,
    transform: Transform = None,
    steps: Steps = None,
    offline: Offline = False,
) -> None:
    """Measure privacy and recovery on your photos: who is still recognized, who is recovered, and by which key.

    Everything is measured from pixels, without records.
    """
    from anonface.batch.folders import is_folder, is_there
    from anonface.evaluation.blind import Sheets

    check_options(False, False, offline)
    degraded = degradations not in (None, "none") or degradation_keys
    if compare_with is not None and (journal or blind or part != "1/1" or degraded):
        raise UsageError(
            "--compare-with measures everything in one run, without degradations; its pictures are in the --report",
            "leave out --journal, --part, --blind, --degradations and --degradation-keys",
        )
    own = backend_options(free, keep, model, transform, steps)
    sheets = Sheets(blind) if blind else None
    _check_files(folder, own, compare_with, report, journal, sheets, overwrite)
    if (folder is None) == (synthetic is None):
        raise UsageError(
            "name a folder of photos, or --synthetic N" + (", not both" if folder else ""),
            "for example: evaluate album",
        )
    if folder and not is_folder(folder):
        what = "is a file" if is_there(folder) else "does not exist"
        raise UsageError(f"{str(folder)!r} {what}; name a folder of photos", "for example: evaluate album")
    from anonface.evaluation.choices import chosen
    from anonface.evaluation.degradations import DEGRADATIONS
    from anonface.evaluation.embedders import EMBEDDERS
    from anonface.evaluation.judges import Judges, look_at_originals, of_split, photos_of
    from anonface.evaluation.page import page
    from anonface.evaluation.report import as_markdown
    from anonface.evaluation.trials import Plan
    from anonface.images import write_together

    if quick:
        limit, keys, recover_keys = limit or QUICK_PHOTOS, keys or QUICK_KEYS, recover_keys or QUICK_RECOVER_KEYS
    if degradation_keys is None:
        degradation_keys = 0 if quick and degradations is None else 1
    plan = Plan(
        keys or 4,
        attacks=chosen(degradations or "jpeg90", DEGRADATIONS, "degradation"),
        attack_keys=degradation_keys,
        recover_keys=recover_keys,
    )
    others = _others(compare_with) if compare_with is not None else None
    judged_by = chosen(recognizers, EMBEDDERS, "further recognizer")
    share = _part(part)
    if share[1] > 1 and not journal:
        raise UsageError(f"--part {part} needs a --journal, which the parts share")
    settings = EngineSettings(backend, device, detector, parser, own=own)
    with _photos_to_judge(folder, synthetic) as photos:
        judges = Judges(embedders=judged_by)
        only = of_split(photos_of(photos), split)[:limit] if quick else None
        with progress_bar("originals", 0) as advance:
            originals = look_at_originals(
                photos, judges, only=only, progress=lambda done, total: advance(done, "", total)
            )
        ground: dict[str, Any] = {"judges": judges, "originals": originals, "limit": limit, "split": split}
        named = {} if folder else {"folder": f"{synthetic} synthetic faces"}
        if others is None:
            ground |= {"journal": journal, "part": share}
            shown = _evaluated(settings, photos, plan, named, sheets, ground)
        else:
            shown = _compared(others, settings, photos, plan, named, ground)
    if sheets:
        say(sheets.write())
    if report:
        html = page(shown.title, shown.grids, shown.pictures)
        texts = {report: html, report.with_suffix(".json"): shown.numbers}
        write_together(((file, text.encode("utf-8", "replace")) for file, text in texts.items()), overwrite)
        say(f"anonface: made {report} and {report.with_suffix('.json')}")
    if as_json:
        print(shown.numbers)
    elif markdown:
        print("\n".join(map(as_markdown, shown.grids)))
    else:
        _print_tables(shown.grids)


@dataclass(frozen=True)
class _Result:
    """What is printed and written: tables, all numbers as JSON, and pictures by photo and heading."""

    title: str
    grids: Sequence[Grid]
    numbers: str
    pictures: Mapping[str, Mapping[str, NDArray[np.uint8]]]


def _check_files(
    folder: Path | None,
    own: BackendOptions,
    compare_with: str | None,
    report: Path | None,
    journal: Path | None,
    sheets: Sheets | None,
    overwrite: bool,
) -> None:
    """Refuse files that cannot be written, before any work."""
    from anonface.images import check_output
    from anonface.images.paths import Output, refuse_conflicts

    numbers = report and report.with_suffix(".json")
    named = {
        "--blind": sheets and sheets.folder,
        "the key of --blind": sheets and sheets.key,
        "--report": report,
        "the numbers of --report": numbers,
        "--journal": journal,
    }
    read = [*photos_in(folder, "a photo of the folder"), *model_files(own), *other_model_files(compare_with)]
    refuse_conflicts(read, [Output(file, what) for what, file in named.items() if file])
    if report and numbers:
        if report.suffix.lower() != ".html":
            raise UsageError(f"the report {report} must be a .html")
        for made in (report, numbers):
            check_output(made, overwrite=overwrite)
    if journal:
        check_output(journal, overwrite=True)


def _evaluated(
    settings: EngineSettings,
    photos: Path,
    plan: Plan,
    named: Mapping[str, str],
    sheets: Sheets | None,
    ground: Mapping[str, Any],
) -> _Result:
    """Evaluate the chosen backend."""
    from anonface.evaluation.identity_ablation import ablations
    from anonface.evaluation.page import COLUMNS
    from anonface.evaluation.report import grids, to_json
    from anonface.evaluation.run import evaluate as measure

    pictures = _Pictures()

    def show(original: Original, versions: list[NDArray[np.uint8]]) -> None:
        if sheets:
            sheets.add(original.file.name, versions[0], versions[1])
        for heading, picture in zip(COLUMNS, versions, strict=False):
            pictures.keep(original, heading, picture)

    engine = LazyEngine(settings)()
    with progress_bar("photos", 0) as advance:
        found = measure(
            engine,
            photos,
            plan,
            ablations=ablations(engine),
            progress=lambda done, total: advance(done, "", total),
            show=show,
            about={**described_engine(engine, settings.detector), **named},
            **ground,
        )
    title = f"Anonymization and recovery of faces: {found.settings['folder']}"
    return _Result(title, grids(found), to_json(found), pictures.by_photo)


def _others(compare_with: str) -> dict[str, str | None]:
    from anonface.backends.registry import BACKENDS
    from anonface.evaluation.comparison import chosen

    return chosen(compare_with, list(BACKENDS))


def _compared(
    others: Mapping[str, str | None],
    settings: EngineSettings,
    photos: Path,
    plan: Plan,
    named: Mapping[str, str],
    ground: Mapping[str, Any],
) -> _Result:
    """Compare the chosen backend with others."""
    from anonface.evaluation import peers
    from anonface.evaluation.comparison import ComparedEngine, compare, grids
    from anonface.evaluation.report import to_json

    pictures = _Pictures()
    described = partial(_described_in_process, detector=settings.detector)
    engines = [ComparedEngine(settings.backend, _engine_maker(settings), described, needed=True)]
    left_out: dict[str, str] = {}
    for name, folder in others.items():
        if name in peers.PEERS:
            if reason := peers.absence(name):
                left_out[name] = reason
            else:
                engines.append(ComparedEngine(name, peers.PEERS[name], peers.describe, recovers=False))
        elif name != settings.backend:
            own: BackendOptions = {"model": folder} if folder else {}
            other = replace(settings, backend=name, own=own)
            engines.append(ComparedEngine(name, _engine_maker(other), described))
    if settings.backend == "inpaint":
        doctor.fetch_missing()
    with progress_bar("photos", 0) as advance:
        found = compare(
            engines,
            photos,
            plan,
            left_out=left_out,
            progress=lambda done, total, name: advance(done, name, total),
            show=pictures.keep,
            **ground,
        )
    found = replace(found, settings={**found.settings, **named})
    for name, why in found.left_out.items():
        say(f"anonface: {name} is left out: {why}")
    return _Result(
        f"Engines on the same photos: {found.settings['folder']}", grids(found), to_json(found), pictures.by_photo
    )


class _Pictures:
    """Small pictures of the first photos, around the face, by photo and heading."""

    def __init__(self) -> None:
        self.by_photo: dict[str, dict[str, NDArray[np.uint8]]] = {}

    def keep(self, original: Original, heading: str, picture: NDArray[np.uint8]) -> None:
        from anonface.evaluation.page import PICTURED, SIDE
        from anonface.images.pictures import around, thumbnail

        name = original.file.name
        if original.box is None or (len(self.by_photo) == PICTURED and name not in self.by_photo):
            return
        if name not in self.by_photo:
            self.by_photo[name] = {"original": thumbnail(around(original.pixels(), original.box), SIDE)}
        self.by_photo[name][heading] = thumbnail(around(picture, original.box), SIDE)


def _print_tables(grids: Iterable[Grid]) -> None:
    from rich.console import Console

    from anonface.evaluation.report import for_terminal

    console = Console()
    for grid in grids:
        console.print(for_terminal(grid))


def _described_in_process(engine: Engine, detector: str) -> dict[str, str | int | float]:
    """A report's description of an engine in another process."""
    return {**described_engine(engine, detector), "device": engine.device_name}


def _engine_maker(settings: EngineSettings) -> Callable[[], Engine]:
    """A function that makes the engine, in any process."""
    from anonface.pipeline import Engine

    s = settings
    return partial(Engine, s.backend, s.device, s.detector, s.parser, s.batch_size, s.own)


def _part(text: str) -> tuple[int, int]:
    try:
        number, of = (int(word) for word in text.split("/"))
    except ValueError:
        raise UsageError(f"--part {text!r} is not K/N", "for example 1/2") from None
    return number, of


def described_engine(engine: Engine, detector: str) -> dict[str, str | int | float]:
    """A report's description of the engine."""
    from anonface import __version__

    return {
        "anonface": __version__,
        "backend": engine.backend.name,
        **engine.backend.parameters(),
        "detector": detector,
        "parser": engine.parser,
        "weights": engine.backend.digest().hex()[:16],
    }


@contextmanager
def _photos_to_judge(folder: Path | None, synthetic: int | None) -> Iterator[Path]:
    """The user's folder, or a temporary one of synthetic faces."""
    import tempfile

    if folder:
        yield folder
        return
    from anonface.evaluation.synthetic import draw_photos

    assert synthetic
    with tempfile.TemporaryDirectory(prefix="anonface-") as made:
        draw_photos(Path(made), synthetic)
        yield Path(made)
