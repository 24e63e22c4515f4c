"""Several engines on the same photos, judged alike: this project's backends and tools in common use.

Every engine runs in a fresh process of its own, one after the other, so seconds and memory are its own. The judges run
in this process, by :func:`anonface.evaluation.trials.measure_photo`. Sealed originals are recovered from real files and
compared with the original.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from anonface.crypto.keys import Key
from anonface.errors import (
    ContainerError,
    DeviceError,
    LimitError,
    NoFaceError,
    UsageError,
    WeightsError,
    WrongKeyError,
)
from anonface.evaluation import metrics
from anonface.evaluation.judges import Judges, Original, Selection, Split, select
from anonface.evaluation.measurements import RIGHT, Measured, joined
from anonface.evaluation.peers import PEERS
from anonface.evaluation.published import COMMON, FIGURES, PAPERS, Published
from anonface.evaluation.recognition import match_thresholds, recognitions
from anonface.evaluation.remote import Facts, Remote
from anonface.evaluation.report import Figure, Report, Threshold, strict_json
from anonface.evaluation.similarity import distance
from anonface.evaluation.summary import Summary
from anonface.evaluation.trials import Engine, Plan, Result, evaluation_key, measure_photo
from anonface.images import read_photo

Pixels = NDArray[np.uint8]
Tier = Literal["file", "face"]
Gives = Literal["bytes", "pixels", "person", "nothing"]
Show = Callable[[Original, str, Pixels], None]
"""Called with a photo, the heading of one picture of it, and that picture."""

TIERS: dict[Tier, Gives] = {"file": "bytes", "face": "pixels"}
PLACED = "anonymized, looked at where the face was"
RECOVERED = "recovered"


class Files(Protocol):
    """Files in and out, as :mod:`anonface.batch` offers them."""

    def anonymize(
        self, photo: Path, key: Key, output: Path, *, engine: Any, seal: Any, consistent: bool, overwrite: bool
    ) -> Any: ...

    def recover(self, photo: Path, key: Key) -> Any: ...


@dataclass(frozen=True)
class ComparedEngine:
    """An engine of the comparison.

    Attributes:
        name: of its row.
        make: makes it, in a process of its own; picklable.
        describe: facts about it, there; picklable.
        recovers: whether a key recovers; else recovery is never tried, and one key stands for all.
        tiers: what is sealed in photos of its making, each in a row of its own.
        needed: whether the comparison fails when it cannot be made; else it is left out and named.
    """

    name: str
    make: Callable[[], Any]
    describe: Callable[[Any], Facts]
    recovers: bool = True
    tiers: Collection[Tier] = ()
    needed: bool = False


@dataclass(frozen=True)
class Row:
    """What was measured of one engine, or of one tier of it.

    Attributes:
        name: the engine's, with ``--seal`` and the tier where there is one.
        about: facts about the engine.
        gives: what the right key brings back: "bytes" of the file, "pixels" of the photo, the "person", or "nothing".
        exact: trials with the right key that gave exactly that; of a person, matched to the original.
        tried: trials with the right key.
        memory: peak memory of the engine's process in bytes; the tiers of an engine share one process.
        report: all rates, figures and single measurements.
    """

    name: str
    about: Facts
    gives: Gives
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
        rows: one an engine or tier, in the order asked for.
        left_out: engines that are not available, and why.
        published: see :mod:`anonface.evaluation.published`.
    """

    settings: Mapping[str, str | int | float | None]
    thresholds: Sequence[Threshold]
    rows: Sequence[Row]
    left_out: Mapping[str, str]
    published: Sequence[Published] = FIGURES


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
    files: Files | None = None,
    left_out: Mapping[str, str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    show: Show | None = None,
) -> Comparison:
    """Run every engine over the same photos.

    Args:
        engines: run one after the other.
        folder, limit, split, judges, originals: as in :func:`anonface.evaluation.run.evaluate`.
        plan: keys and recoveries of engines that recover; its degradations are not tried.
        files: writes and reads sealed photos; without it tiers are left out.
        left_out: engines known not to be available, and why.
        progress: called with (photos done by all engines, photos in all, name of the running engine).
        show: called for each photo and engine with the results under the first key.

    Raises:
        UsageError: nothing to measure.
        AnonfaceError: a needed engine cannot be made.
    """
    photos = select(folder, judges.recognizer, originals, split, limit)
    thresholds = match_thresholds(judges.recognizer, originals, bool(photos.gallery))
    runner = _Runner(judges, photos, replace(plan, attacks=(), attack_keys=0), thresholds, files, show)
    rows: list[Row] = []
    missing = dict(left_out or {})
    for number, engine in enumerate(engines):

        def done(count: int, before: int = number * len(photos.judged), name: str = engine.name) -> None:
            if progress:
                progress(before + count, len(photos.judged) * len(engines), name)

        try:
            rows += runner.run(engine, done)
        except (WeightsError, DeviceError, UsageError) as error:
            if engine.needed:
                raise
            hint = error.hint
            if hint and "--model" in hint:  # --model belongs to --backend
                hint = f"name its weights with --compare-with {engine.name}=FOLDER"
            missing[engine.name] = error.message + (f": {hint}" if hint else "")
    settings: dict[str, str | int | float | None] = {
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
    return Comparison(settings, thresholds, rows, missing)


@dataclass
class _Runner:
    """What all engines have in common: photos, judges, plan and thresholds."""

    judges: Judges
    photos: Selection
    plan: Plan
    thresholds: Sequence[Threshold]
    files: Files | None
    show: Show | None

    def run(self, compared: ComparedEngine, progress: Callable[[int], None]) -> Iterator[Row]:
        name = compared.name
        plan = self.plan if compared.recovers else replace(self.plan, keys=1, recover_keys=0)
        plain: list[Measured] = []
        sealed = {tier: _SealedTrials() for tier in compared.tiers if self.files}
        with (
            Remote(name, compared.make, compared.describe) as remote,
            tempfile.TemporaryDirectory(prefix="anonface-") as work,
        ):
            self._warm_up(remote)
            for done, original in enumerate(self.photos.judged, start=1):
                cached = _Cached(remote)
                # A peer has no recover; a plan without recoveries never calls it.
                measured = self._measure(cast(Engine, cached), original, plan, name)
                plain.append(_with_own_seconds(measured, cached.seconds))
                for tier, trials in sealed.items():
                    assert self.files
                    engine = Sealed(cast(Engine, cached), self.files, original.file, tier, Path(work) / "sealed.png")
                    measured = self._measure(engine, original, plan, f"{name} --seal {tier}", show_anonymized=False)
                    trials.measured.append(_with_rendering_seconds(measured, plain[-1]))
                    trials.exact += engine.exact
                progress(done)
            memory, about = remote.peak(), remote.about
        report = self._report(name, plain)
        right = report.rate(f"{RIGHT}: matched to the original") if compared.recovers else metrics.NOTHING
        matched = round(right.value * right.n) if right.n else 0
        yield Row(name, about, "person" if compared.recovers else "nothing", matched, right.n, memory, report)
        for tier, trials in sealed.items():
            report, exact = self._report(name, trials.measured), trials.exact
            yield Row(f"{name} --seal {tier}", about, TIERS[tier], sum(exact), len(exact), memory, report)

    def _warm_up(self, engine: Remote) -> None:
        """One call that is not counted, since the first call of a process is slower."""
        first = self.photos.judged[0]
        key = evaluation_key(self.plan.seed_text, first.file.name, 0, "warm")
        with contextlib.suppress(NoFaceError):
            engine.anonymize(first.pixels(), key, consistent=True)

    def _measure(
        self, engine: Engine, original: Original, plan: Plan, name: str, show_anonymized: bool = True
    ) -> Measured:
        """The plan on one photo, and the distance at the face's place whether a face is found there or not."""
        placed: list[float] = []

        def look(original: Original, versions: list[Pixels]) -> None:
            placed.append(self._placed(original, versions[1]))
            if self.show and show_anonymized:
                self.show(original, name, versions[1])
            if self.show and len(versions) > 2:
                self.show(original, f"{name}, {RECOVERED}", versions[2])

        measured = measure_photo(engine, self.judges, original, self.photos.gallery, plan, show=look)
        for value in placed:
            measured.add(PLACED, 0, value)
        return measured

    def _placed(self, original: Original, anonymized: Pixels) -> float:
        """Distance to the original at its face's place; NaN for a recognizer that cannot be told a place."""
        at = getattr(self.judges.recognizer, "at", None)
        if at is None or original.look is None:
            return float("nan")
        return distance(at(anonymized, original.look.box).embedding, original.look.embedding)

    def _report(self, name: str, measured: Sequence[Measured]) -> Report:
        samples, judged, known = joined(measured), self.photos.judged, bool(self.photos.gallery)
        people = {original.file.name: original.identity for original in judged}
        summary = Summary(samples, people, self.thresholds)
        rates = summary.rates()
        figures = summary.figures(judged[0].found, self.judges.classifiers, self.judges.distances)
        placed = np.array([value for _, _, value in samples[PLACED]])
        if not np.isnan(placed).any():
            rates += summary.rate(f"{PLACED}: matched to the original", "lower", PLACED)
            mean = metrics.clustered_mean(placed, [people[file] for file, _, _ in samples[PLACED]])
            figures.append(Figure(f"{PLACED}: mean distance", "higher", "distance", mean))
        refused = {"refused": sum(photo.refused for photo in measured)}
        further = recognitions(
            self.judges.embedders, samples, people, self.photos.gallery or judged, known=known, backend=name
        )
        return Report(refused, self.thresholds, rates, figures, samples, further)


@dataclass
class _SealedTrials:
    """Measurements of one tier, and whether each opening with the right key was exact."""

    measured: list[Measured] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)


class _Cached:
    """An engine that keeps its results for one photo by key, so that tiers need no second rendering.

    Attributes:
        seconds: seconds a face of each call that gave a result, as "anonymize" and "recover", in order.
    """

    def __init__(self, engine: Remote) -> None:
        self._engine = engine
        self._made: dict[Key, Any] = {}
        self.seconds: dict[str, list[float]] = {}

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool, **_: object) -> Any:
        """As the engine. :mod:`anonface.batch` gives further arguments, which have their defaults here."""
        if key not in self._made:
            self._made[key] = self._timed("anonymize", self._engine.anonymize(pixels, key, consistent=consistent))
        return self._made[key]

    def recover(self, pixels: Pixels, key: Key, header: None) -> Any:
        return self._timed("recover", self._engine.recover(pixels, key, header))

    def _timed(self, what: str, result: Any) -> Any:
        self.seconds.setdefault(what, []).append(self._engine.seconds / max(1, len(result.faces)))
        return result


@dataclass(frozen=True)
class _Opened:
    """A photo recovered from its sealed original."""

    pixels: Pixels
    faces: Sequence[object]


class Sealed:
    """An engine for one photo that writes it with its sealed original, and recovers by opening that file.

    Args:
        engine: makes the synthetic faces.
        files: writes and reads.
        source: the photo's file.
        tier: what is sealed.
        target: where to write; a file there is replaced.

    Attributes:
        exact: for each opening with the right key, whether the original came back byte for byte (``file``) or pixel
            for pixel (``face``), from the very picture that was judged.
    """

    def __init__(self, engine: Engine, files: Files, source: Path, tier: Tier, target: Path) -> None:
        self._engine, self._files, self._source, self._tier, self._target = engine, files, source, tier, target
        self._key: Key | None = None
        self.exact: list[bool] = []

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Result:
        self._key = key
        write = functools.partial(self._files.anonymize, engine=self._engine, seal=self._tier, overwrite=True)
        with _refusals():
            made: Result = write(self._source, key, self._target, consistent=consistent)
        return made

    def recover(self, pixels: Pixels, key: Key, header: None) -> Result:
        right = key == self._key
        try:
            with _refusals():
                back = self._files.recover(self._target, key)
        except NoFaceError:
            if right:
                self.exact.append(False)
            raise
        if right:
            self.exact.append(self._is_original(back) and np.array_equal(pixels, _pixels(self._target)))
        return _Opened(back.pixels, back.faces)

    def _is_original(self, back: Any) -> bool:
        if self._tier == "file":
            return bool(back.original == self._source.read_bytes())
        return np.array_equal(back.pixels, _pixels(self._source))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Refusals of files (a wrong key, a photo that a tier cannot hold) count as a face that is not found."""
    try:
        yield
    except (WrongKeyError, ContainerError, UsageError, LimitError) as error:
        raise NoFaceError(error.message, error.hint) from error


def _pixels(file: Path) -> Pixels:
    return read_photo(file.read_bytes(), name=str(file)).pixels


def _with_own_seconds(measured: Measured, seconds: Mapping[str, Sequence[float]]) -> Measured:
    """Replace the seconds waited by the engine's own, without the transfer between processes.

    Both hold the calls that gave a result, in order.
    """
    for what, own in seconds.items():
        rows = measured.samples[what]
        measured.samples[what] = [(key, value) for (key, _), value in zip(rows, own, strict=True)]
    return measured


def _with_rendering_seconds(sealed: Measured, plain: Measured) -> Measured:
    """Add the seconds of the networks, which ran before, to those of sealing."""
    rendered = dict(plain.samples.get("anonymize", ()))
    rows = sealed.samples.get("anonymize", ())
    sealed.samples["anonymize"] = [(key, value + rendered.get(key, float("nan"))) for key, value in rows]
    return sealed


def to_json(comparison: Comparison) -> str:
    """All of it, samples included, as strict JSON; see :func:`anonface.evaluation.report.strict_json`."""
    return strict_json(
        asdict(comparison) | {"papers": {name: asdict(paper) for name, paper in PAPERS.items()}, "all papers": COMMON}
    )
