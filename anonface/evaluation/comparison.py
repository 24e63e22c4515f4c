"""Several engines on the same photos, judged alike: this project's backends and tools in common use.

Every engine runs in a fresh process of its own, one after the other, so seconds and memory are its own. The judges run
in this process, by :func:`anonface.evaluation.run.evaluate`.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anonface.errors import DeviceError, NoFaceError, UsageError, WeightsError
from anonface.evaluation.judges import Judges, Original, Selection, Split, select
from anonface.evaluation.measurements import ANONYMIZED, LANDMARKS, ONE_BIT, PLACED, RANDOM, RIGHT, in_the_face
from anonface.evaluation.metrics import NOTHING, Interval
from anonface.evaluation.peers import PEERS
from anonface.evaluation.remote import Facts, Remote
from anonface.evaluation.report import Grid, Report, Threshold, settings_rows
from anonface.evaluation.run import evaluate
from anonface.evaluation.trials import Plan, evaluation_key

Pixels = NDArray[np.uint8]

ABSENT = "–"
RECOVERED = "recovered"


@dataclass(frozen=True)
class ComparedEngine:
    """An engine of the comparison.

    Attributes:
        name: of its row.
        make: makes it, in a process of its own; picklable.
        describe: facts about it, there; picklable.
        recovers: whether a key recovers; else recovery is never tried, and one key stands for all.
        needed: whether the comparison fails when it cannot be made; else it is left out and named.
    """

    name: str
    make: Callable[[], Any]
    describe: Callable[[Any], Facts]
    recovers: bool = True
    needed: bool = False


@dataclass(frozen=True)
class Row:
    """What was measured of one engine.

    Attributes:
        name: the engine's.
        about: facts about the engine.
        gives: what the right key recovers from pixels: the "person", or "nothing".
        exact: trials with the right key that were matched to the original.
        tried: trials with the right key.
        memory: peak memory of the engine's process in bytes.
        report: all rates, figures and single measurements.
    """

    name: str
    about: Facts
    gives: Literal["person", "nothing"]
    exact: int
    tried: int
    memory: float
    report: Report


@dataclass(frozen=True)
class Comparison:
    """Results of a comparison.

    Attributes:
        settings: what was run, printable values by name.
        thresholds: the distances that decide a match; tables use the first.
        rows: one an engine, in the order asked for.
        left_out: engines that are not available, and why.
    """

    settings: Mapping[str, str | int | float | None]
    thresholds: Sequence[Threshold]
    rows: Sequence[Row]
    left_out: Mapping[str, str]


def chosen(text: str, backends: Sequence[str]) -> dict[str, str | None]:
    """Engines by name, each with its folder of weights or None; "all" means every peer.

    Args:
        text: "NAME[=FOLDER],...".
        backends: names of this project's backends, which are allowed too.

    Raises:
        UsageError: an unknown name, or a peer with a folder.
    """
    picked: dict[str, str | None] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, folder = word.partition("=")
        if name == "all" and not folder:
            picked |= dict.fromkeys(PEERS)
        elif name in backends or (name in PEERS and not folder):
            picked[name] = folder or None
        else:
            names = ", ".join([*PEERS, *backends])
            hint = f"choose from {names}, or all; a backend may be given as NAME=FOLDER"
            raise UsageError(f"--compare-with does not know {word!r}", hint)
    if not picked:
        raise UsageError("--compare-with names nothing", "for example all")
    return picked


def compare(
    engines: Sequence[ComparedEngine],
    folder: Path,
    plan: Plan,
    *,
    judges: Judges,
    originals: Sequence[Original],
    limit: int | None = None,
    split: Split = "all",
    left_out: Mapping[str, str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    show: Callable[[Original, str, Pixels], None] | None = None,
) -> Comparison:
    """Run every engine over the same photos.

    Args:
        engines: run one after the other.
        folder, limit, split, judges, originals: as in :func:`anonface.evaluation.run.evaluate`.
        plan: keys and recoveries of engines that recover; its degradations are not tried.
        left_out: engines known not to be available, and why.
        progress: called with (photos done by all engines, photos in all, name of the running engine).
        show: called with a photo, the heading of one picture of it under the first key, and that picture.

    Raises:
        UsageError: nothing to measure.
        AnonfaceError: a needed engine cannot be made.
    """
    photos = select(folder, judges.recognizer, originals, split, limit)
    plan = replace(plan, attacks=(), attack_keys=0)
    first = photos.judged[0]
    warming = evaluation_key(plan.seed_text, first.file.name, 0, "warm")
    rows: list[Row] = []
    missing = dict(left_out or {})
    for number, engine in enumerate(engines):
        name = engine.name

        def done(count: int, of: int, number: int = number, name: str = name) -> None:
            if progress:
                progress(number * of + count, of * len(engines), name)

        def look(original: Original, versions: list[Pixels], name: str = name) -> None:
            if show:
                for heading, picture in zip((name, f"{name}, {RECOVERED}"), versions[1:], strict=False):
                    show(original, heading, picture)

        try:
            with Remote(name, engine.make, engine.describe) as remote:
                with contextlib.suppress(NoFaceError):  # not counted: the first call of a process is slower
                    remote.anonymize(first.pixels(), warming, consistent=True)
                report = evaluate(
                    remote,
                    folder,
                    plan if engine.recovers else replace(plan, keys=1, recover_keys=0),
                    limit=limit,
                    split=split,
                    judges=judges,
                    originals=originals,
                    progress=done,
                    show=look,
                    about={**remote.about, "backend": name},
                )
                memory = remote.peak()
        except (WeightsError, DeviceError, UsageError) as error:
            if engine.needed:
                raise
            hint = error.hint
            if hint and "--model" in hint:  # --model belongs to --backend
                hint = f"name its weights with --compare-with {name}=FOLDER"
            missing[name] = error.message + (f": {hint}" if hint else "")
            continue
        right = report.rate(f"{RIGHT}: matched to the original") if engine.recovers else NOTHING
        matched = round(right.value * right.n) if right.n else 0
        rows.append(
            Row(name, remote.about, "person" if engine.recovers else "nothing", matched, right.n, memory, report)
        )
    return Comparison(
        _settings(folder, photos, split, plan, judges), rows[0].report.thresholds if rows else (), rows, missing
    )


def _settings(
    folder: Path, photos: Selection, split: Split, plan: Plan, judges: Judges
) -> dict[str, str | int | float | None]:
    return {
        "date": datetime.date.today().isoformat(),
        "folder": str(folder),
        "photos": len(photos.chosen),
        "photos judged": len(photos.judged),
        "people": len({original.identity for original in photos.judged}) if photos.gallery else None,
        "split": split,
        "keys per photo, where there are keys": plan.keys,
        "keys per photo in recovery": min(plan.keys, plan.recover_keys or plan.keys),
        "seed text": plan.seed_text,
        "recognizer": judges.recognizer.name,
        "judges left out, weights not at hand": ", ".join(judges.absent) or "none",
    }


def grids(comparison: Comparison) -> tuple[Grid, ...]:
    """Settings, four tables with a row an engine, and the engines left out."""
    settings = settings_rows(comparison.settings)
    for used in comparison.thresholds[:1]:
        settings += ((f"a match is a distance below, {used.title}", f"{used.interval.value:.3f}"),)
    made = [Grid("Comparison", ("", ""), settings)]
    tables = {row.name: _cells(row) for row in comparison.rows}
    for title, cells in next(iter(tables.values()), {}).items():
        rows = tuple((name, *parts[title].values()) for name, parts in tables.items())
        made.append(Grid(title, ("engine", *cells), rows))
    if comparison.left_out:
        made.append(Grid("Left out", ("engine", "why"), tuple(comparison.left_out.items())))
    return tuple(made)


def _cells(row: Row) -> dict[str, dict[str, str]]:
    """A row's cells by table and column; detectors and classifiers are taken from the figures."""
    report, memory = row.report, row.memory
    titles = [figure.title for figure in report.figures]
    found, sex, age = (
        [title for title in titles if title.startswith(start)]
        for start in ("face found again by ", "apparent sex kept, by ", "apparent age ")
    )
    original = "matched to the original"
    return {
        "Who is still recognized": {
            "matched to the original ↓": _with_bounds(report, f"{ANONYMIZED}: {original}"),
            "matched where the face was ↓": _with_bounds(report, f"{PLACED}: {original}"),
            "mean distance there ↑": _mean(report, f"{PLACED}: mean distance", 2),
            "other photos matched ↓": _percent([report.rate(f"{ANONYMIZED}: matched to other photos")]),
        },
        "What is left of use": {
            f"found again by {_names(found)} ↑": _percent(map(report.figure, found)),
            "landmarks off by, px of 256 ↓": _mean(report, LANDMARKS, 1),
            f"sex kept, by {_names(sex)} ↑": _percent(map(report.figure, sex)),
            f"age kept, by {_names(age)} ↑": _percent(map(report.figure, age)),
            "PSNR, SSIM in the face": _nearness(report, ANONYMIZED),
        },
        "What recovery gives, from pixels": {
            "right key, matched ↑": _with_bounds(report, f"{RIGHT}: {original}"),
            "wrong key / one bit off, matched ↓": _percent(
                report.rate(f"{name}: {original}") for name in (RANDOM, ONE_BIT)
            ),
            "PSNR, SSIM in the face ↑": _nearness(report, RIGHT),
        },
        "What it takes": {
            "s a face to anonymize ↓": _mean(report, "anonymize", 2),
            "s a face to recover ↓": _mean(report, "recover", 2),
            "peak memory, MB ↓": ABSENT if math.isnan(memory) else f"{memory / 1e6:.0f}",
        },
    }


def _names(titles: Sequence[str]) -> str:
    """The names behind "by" in titles of figures, without brackets."""
    return " / ".join(title.partition(" by ")[2].partition(" (")[0] for title in titles)


def _with_bounds(report: Report, title: str) -> str:
    """A rate with its interval, and the number of faces not found."""
    row = report.row(title)
    if row is None:
        return ABSENT
    rate = row.at[0]
    words = f"{100 * rate.value:.3g} % ({100 * rate.low:.0f} to {100 * rate.high:.0f})"
    return words + (f", {row.undetected} of {rate.n} not found" if row.undetected else "")


def _percent(shares: Iterable[Interval]) -> str:
    """Shares as percentages; a dash where none was measured."""
    words = [f"{100 * share.value:.3g}" if share.n else ABSENT for share in shares]
    return " / ".join(words) + " %" if set(words) - {ABSENT} else ABSENT


def _mean(report: Report, title: str, digits: int) -> str:
    """A mean, and its number of measurements where some had no face."""
    mean, tried = report.figure(title), len(report.samples.get(title, ()))
    return f"{mean.value:.{digits}f}" + (f" (of {mean.n})" if mean.n < tried else "") if mean.n else ABSENT


def _nearness(report: Report, name: str) -> str:
    psnr, ssim = (report.figure(in_the_face(measure, name)) for measure in ("psnr", "ssim"))
    return f"{psnr.value:.1f} dB, {ssim.value:.2f}" if psnr.n else ABSENT
