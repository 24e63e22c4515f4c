"""Several engines on the same photos, judged alike: this project's backends beside what people use today.

Every engine runs in a fresh process of its own, one after the other, so that seconds and memory are its own; all are
judged by the same judges, in this process, by :func:`anonface.evaluation.trials.measure_photo`. What travels sealed in a
photo is led back too, from real files, and compared with the original.
"""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

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
from anonface.evaluation.judges import IDENTITIES, Judges, Original, Split, of_split, photos_of
from anonface.evaluation.peers import PEERS
from anonface.evaluation.published import COMMON, FIGURES, PAPERS, Published
from anonface.evaluation.recognition import recognitions
from anonface.evaluation.remote import Facts, Remote
from anonface.evaluation.report import Figure, Rate, Report, Threshold, strict_json
from anonface.evaluation.run import match_thresholds
from anonface.evaluation.summary import Summary, gathered
from anonface.evaluation.trials import RIGHT, Engine, Measured, Plan, Result, evaluation_key, measure_photo
from anonface.imagefile import read_photo
from anonface.keys import Key

Pixels = NDArray[np.uint8]
Tier = Literal["file", "face"]
Show = Callable[[Original, str, Pixels], None]
"""Told of a photo, under which heading a picture of it stands, and the picture."""

TIERS: tuple[Tier, ...] = ("file", "face")
PLACED = "anonymized, looked at where the face was"
LED_BACK = "led back"


class Files(Protocol):
    """Files in and out, as :mod:`anonface.batch` offers them."""

    def anonymize(
        self, photo: Path, key: Key, output: Path, *, engine: Any, seal: Any, consistent: bool, overwrite: bool
    ) -> Any: ...

    def recover(self, photo: Path, key: Key) -> Any: ...


@dataclass(frozen=True)
class ComparedEngine:
    """An engine that takes part.

    Attributes:
        name: of its row.
        make: makes it, in a process of its own; picklable.
        describe: says what it is, there; picklable.
        recovers: whether a key leads back; else it is never asked for that, and one key stands for all.
        tiers: what is sealed in photos of its making, in rows of their own.
        needed: whether the comparison fails when it cannot be made; else it is left out and named.
    """

    name: str
    make: Callable[[], Any]
    describe: Callable[[Any], Facts]
    recovers: bool = True
    tiers: tuple[Tier, ...] = ()
    needed: bool = False


@dataclass(frozen=True)
class Row:
    """What was measured of one engine, or of one tier of it.

    Attributes:
        name: the engine's, with ``--seal`` and the tier where there is one.
        about: what the engine is.
        gives: what the right key brings back: "bytes" of the file, "pixels" of the photo, the "person", or "nothing".
        exact: of how many trials with the right key that was found to be so. Of a person: matched to the original.
        tried: of how many.
        memory: the most bytes that the engine's process held; the tiers of an engine share one process.
        report: all rates, figures and single measurements.
    """

    name: str
    about: Facts
    gives: Literal["bytes", "pixels", "person", "nothing"]
    exact: int
    tried: int
    memory: float
    report: Report


@dataclass(frozen=True)
class Comparison:
    """Everything that a comparison found.

    Attributes:
        settings: what was run, printable values by name.
        thresholds: the distances that decide a match; tables use the first.
        rows: one an engine or tier, in the order asked for.
        left_out: engines that could not be had, and why.
        published: see :mod:`anonface.evaluation.published`.
    """

    settings: Mapping[str, str | int | float | None]
    thresholds: Sequence[Threshold]
    rows: Sequence[Row]
    left_out: Mapping[str, str]
    published: Sequence[Published] = FIGURES


def chosen(text: str, backends: Sequence[str]) -> dict[str, str | None]:
    """The names of a list as typed, each with the folder of weights behind "=", or None; "all" is every peer.

    Args:
        text: "NAME[=FOLDER],...".
        backends: this project's, which may be named too.

    Raises:
        UsageError: a name that there is not, or a peer with a folder.
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
            raise UsageError(f"--beside knows no {word!r}", f"choose of {names}, or all; a backend as NAME=FOLDER too")
    if not picked:
        raise UsageError("--beside names nothing", "for example all")
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
        engines: one after the other.
        folder, limit, split, judges, originals: as in :func:`anonface.evaluation.run.evaluate`.
        plan: keys and recoveries of engines that recover; attacks have no place here.
        files: writes and reads sealed photos; without it tiers are left out.
        left_out: engines that were found to be missing beforehand, and why.
        progress: called with (photos done by all engines, photos in all, name of the engine at work).
        show: called for each photo and engine with what the first key made of it, and with what came back.

    Raises:
        UsageError: nothing to measure.
        AnonfaceError: an engine that is needed cannot be made.
    """
    known = (folder / IDENTITIES).is_file()
    if split != "all" and not known:
        raise UsageError(f"split {split!r} needs {folder / IDENTITIES}", "columns: file,identity")
    wanted = set(of_split(photos_of(folder), split)[:limit])
    judged = [original for original in originals if original.file in wanted and original.look is not None]
    if not judged:
        raise UsageError(f"{judges.recognizer.name} finds no face on the photos chosen in {folder}")
    thresholds = match_thresholds(judges.recognizer, originals, known)
    ground = _Ground(judges, judged, originals if known else (), replace(plan, attacks=(), attack_keys=0), thresholds)
    rows: list[Row] = []
    missing = dict(left_out or {})
    for number, compared in enumerate(engines):

        def done(photos: int, before: int = number * len(judged), name: str = compared.name) -> None:
            if progress:
                progress(before + photos, len(judged) * len(engines), name)

        try:
            rows += ground.run(compared, files, done, show)
        except (WeightsError, DeviceError, UsageError) as error:
            if compared.needed:
                raise
            hint = error.hint
            if hint and "--model" in hint:  # which names those of --backend
                hint = f"name its weights with --beside {compared.name}=FOLDER"
            missing[compared.name] = error.message + (f": {hint}" if hint else "")
    settings: dict[str, str | int | float | None] = {
        "date": datetime.date.today().isoformat(),
        "folder": str(folder),
        "photos": len(wanted),
        "photos judged": len(judged),
        "people": len({original.identity for original in judged}) if known else None,
        "split": split,
        "keys per photo, where there are keys": plan.keys,
        "keys per photo in recovery": min(plan.keys, plan.recover_keys or plan.keys),
        "seed text": plan.seed_text,
        "recognizer": judges.recognizer.name,
        "judges left out, weights not at hand": ", ".join(judges.absent) or "none",
    }
    return Comparison(settings, thresholds, rows, missing)


@dataclass
class _Ground:
    """The ground on which all engines run: the same photos, judges, plan and thresholds."""

    judges: Judges
    photos: Sequence[Original]
    gallery: Sequence[Original]
    plan: Plan
    thresholds: Sequence[Threshold]

    def run(
        self, compared: ComparedEngine, files: Files | None, progress: Callable[[int], None], show: Show | None
    ) -> Iterator[Row]:
        plan = self.plan if compared.recovers else replace(self.plan, keys=1, recover_keys=0)
        plain, sealed = _Taken(), {tier: _Taken() for tier in compared.tiers if files}
        with (
            Remote(compared.name, compared.make, compared.describe) as remote,
            tempfile.TemporaryDirectory(prefix="anonface-") as work,
        ):
            self._warm(remote)
            for done, original in enumerate(self.photos, start=1):
                kept = _Kept(remote)
                # a peer has no recover, and a plan without recoveries never asks for it
                measured = self._tried(cast(Engine, kept), original, plan, compared.name, show)
                plain.measured.append(_with_own_seconds(measured, kept.seconds))
                for tier, taken in sealed.items():
                    assert files
                    engine = Sealed(cast(Engine, kept), files, original.file, tier, Path(work) / "sealed.png")
                    measured = self._tried(engine, original, plan, f"{compared.name} --seal {tier}", show, False)
                    taken.add(_with_networks(measured, plain.measured[-1]), engine)
                progress(done)
            memory, about = remote.peak(), remote.about
        report = self._report(compared.name, plain.measured)
        right = report.rate(f"{RIGHT}: matched to the original") if compared.recovers else metrics.NOTHING
        matched = round(right.value * right.n) if right.n else 0
        gives: Literal["person", "nothing"] = "person" if compared.recovers else "nothing"
        yield Row(compared.name, about, gives, matched, right.n, memory, report)
        for tier, taken in sealed.items():
            what: Literal["bytes", "pixels"] = "bytes" if tier == "file" else "pixels"
            name, report = f"{compared.name} --seal {tier}", self._report(compared.name, taken.measured)
            yield Row(name, about, what, taken.exact, taken.tried, memory, report)

    def _warm(self, engine: Remote) -> None:
        """One call that is not counted: the first of a process loads and lays out what later ones find ready."""
        first = self.photos[0]
        with contextlib.suppress(NoFaceError):
            engine.anonymize(
                first.pixels(), evaluation_key(self.plan.seed_text, first.file.name, 0, "warm"), consistent=True
            )

    def _tried(
        self, engine: Engine, original: Original, plan: Plan, name: str, show: Show | None, hidden: bool = True
    ) -> Measured:
        """All that the plan tries on one photo, and what is seen at the face's place whether a face is found or not."""
        placed: list[float] = []

        def look(original: Original, versions: list[Pixels]) -> None:
            placed.append(self._placed(original, versions[1]))
            if show and hidden:
                show(original, name, versions[1])
            if show and len(versions) > 2:
                show(original, f"{name}, {LED_BACK}", versions[2])

        measured = measure_photo(engine, self.judges, original, self.gallery, plan, show=look)
        for distance in placed:
            measured.add(PLACED, 0, distance)
        return measured

    def _placed(self, original: Original, hidden: Pixels) -> float:
        """Distance to the original of what the recognizer makes of the face's place; NaN where it takes no place."""
        at = getattr(self.judges.recognizer, "at", None)
        if at is None or original.look is None:
            return float("nan")
        return float(np.linalg.norm(at(hidden, original.look.box).embedding - original.look.embedding))

    def _report(self, name: str, photos: Sequence[Measured]) -> Report:
        samples = gathered(photos)
        people = {original.file.name: original.identity for original in self.photos}
        summary = Summary(samples, people, self.thresholds)
        rates = summary.rates()
        figures = summary.figures(self.photos[0].found, self.judges.classifiers, self.judges.distances)
        placed = np.array([value for _, _, value in samples[PLACED]])
        if not np.isnan(placed).any():
            who = [people[file] for file, _, _ in samples[PLACED]]
            at = tuple(metrics.match_rate(placed, who, t.interval.value) for t in self.thresholds)
            rates.append(Rate(f"{PLACED}: matched to the original", "lower", 0, at))
            mean = metrics.clustered_mean(placed, who)
            figures.append(Figure(f"{PLACED}: mean distance", "higher", "distance", mean))
        refused = {"refused": sum(photo.refused for photo in photos)}
        further = recognitions(
            self.judges.embedders, samples, people, self.gallery or self.photos, known=bool(self.gallery), backend=name
        )
        return Report(refused, self.thresholds, rates, figures, samples, further)


@dataclass
class _Taken:
    """What was measured of one row so far."""

    measured: list[Measured] = field(default_factory=list)
    exact: int = 0
    tried: int = 0

    def add(self, photo: Measured, engine: Sealed) -> None:
        self.measured.append(photo)
        self.exact += sum(engine.exact)
        self.tried += len(engine.exact)


class _Kept:
    """An engine that keeps what it made of one photo under each key, so that tiers need no second rendering.

    Attributes:
        seconds: what each of its answers took a face, as "anonymize" and "recover", in order.
    """

    def __init__(self, engine: Remote) -> None:
        self._engine = engine
        self._made: dict[Key, Any] = {}
        self.seconds: dict[str, list[float]] = {}

    def anonymize(
        self,
        pixels: Pixels,
        key: Key,
        *,
        consistent: bool,
        boxes: Sequence[object] = (),
        kdf: None = None,
        faces: str = "all",
        faceless: bool = False,
    ) -> Any:
        """As the engine; what else :mod:`anonface.batch` says must be its defaults."""
        assert (tuple(boxes), kdf, faces, faceless) == ((), None, "all", False)
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
    """A photo that came out of its seal."""

    pixels: Pixels
    faces: Sequence[object]


class Sealed:
    """An engine of one photo that writes it with its sealed original, and leads back by opening that file.

    Args:
        engine: makes the new faces.
        files: writes and reads.
        source: the photo's file.
        tier: what is sealed.
        target: where to write; a file there is replaced.

    Attributes:
        exact: for each opening with the right key, whether the very original came back, byte for byte (``file``) or
            pixel for pixel (``face``), out of the very picture that was judged.
    """

    def __init__(self, engine: Engine, files: Files, source: Path, tier: Tier, target: Path) -> None:
        self._engine, self._files, self._source, self._tier, self._target = engine, files, source, tier, target
        self._key: Key | None = None
        self.exact: list[bool] = []

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Result:
        self._key = key
        with _refusals():
            made: Result = self._files.anonymize(
                self._source,
                key,
                self._target,
                engine=self._engine,
                seal=self._tier,
                consistent=consistent,
                overwrite=True,
            )
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
    """What files refuse (a wrong key, a photo that a tier cannot hold) counts in a trial as a face not found does."""
    try:
        yield
    except (WrongKeyError, ContainerError, UsageError, LimitError) as error:
        raise NoFaceError(error.message, error.hint) from error


def _pixels(file: Path) -> Pixels:
    return read_photo(file.read_bytes(), name=str(file)).pixels


def _with_own_seconds(measured: Measured, seconds: Mapping[str, Sequence[float]]) -> Measured:
    """What an engine took itself, in place of what was waited for it: pixels take their time from process to process.

    A trial notes the seconds of every call that gave a result, in order, and so does :class:`_Kept`.
    """
    for what, taken in seconds.items():
        rows = measured.samples[what]
        measured.samples[what] = [(key, own) for (key, _), own in zip(rows, taken, strict=True)]
    return measured


def _with_networks(sealed: Measured, plain: Measured) -> Measured:
    """Sealing comes after the networks, whose seconds were taken before: the row of a tier takes both."""
    rendered = dict(plain.samples.get("anonymize", ()))
    rows = sealed.samples.get("anonymize", ())
    sealed.samples["anonymize"] = [(key, value + rendered.get(key, float("nan"))) for key, value in rows]
    return sealed


def to_json(comparison: Comparison) -> str:
    """All of it, samples included, as strict JSON; see :func:`anonface.evaluation.report.strict_json`."""
    return strict_json(
        asdict(comparison) | {"papers": {name: asdict(paper) for name, paper in PAPERS.items()}, "all papers": COMMON}
    )
