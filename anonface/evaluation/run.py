"""The from-pixels protocol: how well an engine hides people, and how well the right key alone brings them back.

For every photo and key the face is anonymized under the constant salt, the pixels are written as a PNG without any
record and read again, and the engine recovers from those pixels alone: with the right key, with an unrelated key, and
with a key that differs from the right one in one bit. Everything judged has gone through 8-bit files. What an engine
or the judge cannot find is never left out: it counts against the engine, in the sense each row states.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from anonface.errors import NoFaceError, UsageError
from anonface.evaluation import metrics
from anonface.evaluation.recognizers import Dlib, Look, Mtcnn, Recognizer, choose
from anonface.evaluation.report import Figure, Rate, Report, Threshold
from anonface.faces.detect import build_detector
from anonface.imagefile import Photo, encode_photo, read_photo
from anonface.keys import Key

Pixels = NDArray[np.uint8]
Split = Literal["all", "even", "odd"]
Progress = Callable[[int, int], None]
Show = Callable[["Original", list[Pixels]], None]

SEED_TEXT = "anonface evaluation 1"
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
FAR = 0.001
DEFAULT_FAR_THRESHOLD = 0.588
"""dlib's FAR 0.1 % threshold on 175 in-the-wild photos of 40 people; used where a folder names no identities."""

ANONYMIZED, RANDOM, ONE_BIT, RIGHT = "anonymized", "wrong key, random", "wrong key, one bit", "right key, from pixels"
TWO_KEYS = "two keys"


class Result(Protocol):
    """What an engine returns: the photo's pixels, and one entry a face it treated."""

    @property
    def pixels(self) -> Pixels: ...

    @property
    def faces(self) -> Sized: ...


class Engine(Protocol):
    """The part of :class:`anonface.pipeline.Engine` that an evaluation needs."""

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Result: ...

    def recover(self, pixels: Pixels, key: Key, header: None) -> Result: ...


@dataclass(frozen=True)
class Original:
    """One photo before anything was done to it.

    Attributes:
        file: path of the photo.
        identity: the person's name in identities.csv, or the file's own name where there is none.
        box: (x, y, w, h) of the main face: the largest that YuNet sees, else the judge's largest; None without both.
        look: what the judge saw there, or None.
        found: which detectors found that face.
    """

    file: Path
    identity: str
    box: NDArray[np.float64] | None
    look: Look | None
    found: Mapping[str, bool]


class Judges:
    """The recognizer and the detectors, loaded once."""

    def __init__(self, recognizer: Recognizer | None = None) -> None:
        self.recognizer: Recognizer = recognizer or Dlib()
        self._yunet = build_detector("yunet")
        self._mtcnn = Mtcnn()

    def original(self, file: Path, identity: str) -> Original:
        """Look at a photo: its main face, its embedding, and who finds it."""
        rgb = _read(file)
        box = choose(self._yunet_boxes(rgb), None)
        look = self.recognizer.look(rgb, box)
        if box is None and look is not None:
            box = look.box
        return Original(file, identity, box, look, self.found(rgb, box, look))

    def found(self, rgb: Pixels, box: NDArray[np.float64] | None, look: Look | None) -> dict[str, bool]:
        """Which detectors see a face at ``box``; the recognizer's own detector has already answered with ``look``."""
        return {
            "YuNet": box is not None and choose(self._yunet_boxes(rgb), box) is not None,
            "MTCNN": box is not None and choose(self._mtcnn.boxes(rgb), box) is not None,
            self.recognizer.name: look is not None,
        }

    def _yunet_boxes(self, rgb: Pixels) -> NDArray[np.float64]:
        return np.array([face.box for face in self._yunet.detect(rgb)], dtype=np.float64).reshape(-1, 4)


def look_at_originals(
    folder: Path, judges: Judges | None = None, *, progress: Progress | None = None
) -> list[Original]:
    """Look at every photo of a folder once; hand the list to several evaluations to spare them the work.

    Args:
        folder: photos (JPEG, PNG, WebP, told by suffix), sorted by name; subfolders are left alone. An optional
            ``identities.csv`` with the columns ``file,identity`` says who is on each.
        judges: made here when not given.
        progress: called with (photos done, photos in all).

    Raises:
        UsageError: no photo there, or an identities.csv that does not name every photo.
        ImageError: a photo that cannot be read.
    """
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    if not files:
        raise UsageError(f"no photos in {folder}", "give a folder of JPEG, PNG or WebP files")
    identities = _identities(folder / "identities.csv", files)
    judges = judges or Judges()
    originals = []
    for done, file in enumerate(files, start=1):
        originals.append(judges.original(file, identities.get(file.name, file.name)))
        if progress:
            progress(done, len(files))
    return originals


def evaluate(
    engine: Engine,
    folder: Path,
    *,
    keys_per_photo: int = 4,
    seed_text: str = SEED_TEXT,
    limit: int | None = None,
    split: Split = "all",
    judges: Judges | None = None,
    originals: Sequence[Original] | None = None,
    progress: Progress | None = None,
    show: Show | None = None,
) -> Report:
    """Run the protocol over a folder and report it.

    Args:
        engine: what anonymizes and recovers.
        folder: see :func:`look_at_originals`.
        keys_per_photo: right keys tried on each photo, at least 1; two or more also compare keys with each other.
        seed_text: the keys are SHA-256 digests of this text, the photo's name and a number, so that a run can be
            repeated. They protect nothing.
        limit: only the first so many photos of the split.
        split: "even" keeps people of even rank in the sorted identities (for choosing settings), "odd" the others
            (for reporting). Needs identities.csv.
        judges, originals: loaded and looked at beforehand, to spare repeated evaluations the work.
        progress: called with (photos done, photos in all) after each photo of the split.
        show: called for the first key of each photo with what it looks like: original, anonymized, recovered,
            recovered with an unrelated key; black where the engine refused.

    Returns:
        Rates over photos whose original the judge finds. The threshold at FAR 0.1 % comes from the impostor pairs of
        all originals of the folder, whatever the split.

    Raises:
        UsageError: unusable folder or options.
        ImageError: a photo that cannot be read.
    """
    if keys_per_photo < 1 or (limit is not None and limit < 1):
        raise UsageError("keys per photo and limit must be at least 1")
    judges = judges or Judges()
    originals = look_at_originals(folder, judges) if originals is None else originals
    known = (folder / "identities.csv").is_file()
    if split != "all" and not known:
        raise UsageError(f"split {split!r} needs {folder / 'identities.csv'}", "columns: file,identity")
    chosen = _split(originals, split)[:limit]
    thresholds = _thresholds(judges.recognizer, originals, known)
    judged = [original for original in chosen if original.look is not None]
    trials = _Trials(judges, originals if known else ())
    started = time.monotonic()
    for done, original in enumerate(judged, start=1):
        _try_photo(engine, trials, original, keys_per_photo, seed_text, show)
        if progress:
            progress(done, len(judged))
    figures = trials.figures()
    for detector in judged[0].found if judged else ():
        share = metrics.clustered_mean([o.found[detector] for o in chosen], [o.identity for o in chosen])
        figures.append(Figure(f"originals found by {detector}", "", "share", share))
    return Report(
        settings={
            "folder": str(folder),
            "photos": len(chosen),
            "photos judged": len(judged),
            "people": len({original.identity for original in judged}) if known else None,
            "split": split,
            "keys per photo": keys_per_photo,
            "seed text": seed_text,
            "recognizer": judges.recognizer.name,
            "recognizer seen by a training loss": judges.recognizer.seen_by_loss,
            "refused by the engine": trials.refused,
            "seconds": round(time.monotonic() - started, 1),
        },
        thresholds=thresholds,
        rates=trials.rates(thresholds),
        figures=figures,
        samples=trials.samples,
    )


def evaluation_key(seed_text: str, name: str, number: int, purpose: str = "right") -> Key:
    """The key of one trial: SHA-256 of the stated seed text, the photo's name, the number and the purpose."""
    return Key(_digest(seed_text, name, number, purpose))


def one_bit_off(seed_text: str, name: str, number: int) -> Key:
    """The right key of a trial with one bit flipped, at a place that differs from trial to trial."""
    master = bytearray(_digest(seed_text, name, number, "right"))
    place = _digest(seed_text, name, number, "bit")[0]
    master[place // 8] ^= 1 << place % 8
    return Key(bytes(master))


def through_png(pixels: Pixels) -> Pixels:
    """The pixels as anybody reads them from a PNG that carries nothing else."""
    return read_photo(encode_photo(Photo(pixels, None, None, "png"), format="png")).pixels


class _Trials:
    """Collects measurements by name: (file, key number, value) with NaN where there was no face to measure."""

    def __init__(self, judges: Judges, gallery: Sequence[Original]) -> None:
        self.judges = judges
        self.samples: dict[str, list[tuple[str, int, float]]] = {}
        self.refused = 0
        self._people: dict[str, str] = {}
        self._gallery = [original for original in gallery if original.look is not None]

    def add(self, name: str, original: Original, key: int, value: float) -> None:
        self._people[original.file.name] = original.identity
        self.samples.setdefault(name, []).append((original.file.name, key, value))

    def compare(self, name: str, original: Original, key: int, look: Look | None) -> None:
        """Distances of a result to its own original, and to the other photos of that person."""
        self.add(name, original, key, _distance(original.look, look))
        self.compare_others(name, original, key, look)

    def compare_others(self, name: str, original: Original, key: int, look: Look | None) -> None:
        for other in self._gallery:
            if other.identity == original.identity and other.file != original.file:
                self.add(_others(name), original, key, _distance(other.look, look))

    def values(self, name: str) -> tuple[NDArray[np.float64], list[str]]:
        rows = self.samples.get(name, [])
        return np.array([value for _, _, value in rows], dtype=np.float64), [self._people[file] for file, _, _ in rows]

    def rates(self, thresholds: Sequence[Threshold]) -> list[Rate]:
        rates = []

        def add(title: str, better: str, name: str, missing_matches: bool = False) -> None:
            distances, people = self.values(name)
            if distances.size:
                at = tuple(
                    metrics.match_rate(distances, people, t.interval.value, missing_matches=missing_matches)
                    for t in thresholds
                )
                rates.append(Rate(title, better, int(np.isnan(distances).sum()), at))

        for name in (ANONYMIZED, RANDOM, ONE_BIT):
            add(f"{name}: matched to the original", "lower", name)
            add(f"{name}: matched, or no face found", "lower", name, missing_matches=True)
        add("two keys: matched to each other", "lower", TWO_KEYS)
        add(f"{RIGHT}: matched to the original", "higher", RIGHT)
        for name, better in (("original", ""), (ANONYMIZED, "lower"), (RANDOM, "lower"), (RIGHT, "higher")):
            add(f"{name}: matched to other photos of the person (TAR)", better, _others(name))
        return rates + self._ratios(thresholds)

    def _ratios(self, thresholds: Sequence[Threshold]) -> list[Rate]:
        right, people = self.values(RIGHT)
        rows = []
        for name in (RANDOM, ONE_BIT):
            wrong, _ = self.values(name)
            if right.size:
                at = tuple(
                    metrics.clustered_ratio(right < t.interval.value, wrong < t.interval.value, people)
                    for t in thresholds
                )
                rows.append(Rate(f"right key / {name}", "higher", 0, at, unit="ratio"))
        return rows

    def figures(self) -> list[Figure]:
        plan = [
            *((f"face found again by {d}", "higher", "share") for d in ("YuNet", "MTCNN", self.judges.recognizer.name)),
            *((name, "higher", "distance") for name in (ANONYMIZED, RANDOM, ONE_BIT, TWO_KEYS)),
            (RIGHT, "lower", "distance"),
            ("landmark shift, 68 points", "lower", "px of 256"),
            ("anonymize", "lower", "s per face"),
            ("recover", "lower", "s per face"),
        ]
        rows = []
        for name, better, unit in plan:
            title = f"{name}: mean distance" if unit == "distance" else name
            rows.append(Figure(title, better, unit, metrics.clustered_mean(*self.values(name))))
        return rows


def _try_photo(
    engine: Engine, trials: _Trials, original: Original, keys: int, seed_text: str, show: Show | None
) -> None:
    """All trials of one photo; at most a handful of its versions are in memory at a time."""
    assert original.look is not None
    pixels, name = _read(original.file), original.file.name
    recognizer = trials.judges.recognizer
    trials.compare_others("original", original, 0, original.look)
    hidden: list[Look | None] = []
    for number in range(keys):
        right = evaluation_key(seed_text, name, number)
        hide = functools.partial(engine.anonymize, pixels, right, consistent=True)
        result = _timed(trials, "anonymize", original, number, hide)
        hidden.append(None if result is None else recognizer.look(result, original.box))
        trials.compare(ANONYMIZED, original, number, hidden[-1])
        for detector, found in _found(trials.judges, result, original, hidden[-1]).items():
            trials.add(f"face found again by {detector}", original, number, found)
        shift = np.nan if hidden[-1] is None else metrics.landmark_shift(original.look.points, hidden[-1].points)
        trials.add("landmark shift, 68 points", original, number, shift)
        wrong = evaluation_key(seed_text, name, number, "wrong")
        versions = [pixels, result]
        for title, key in ((RIGHT, right), (RANDOM, wrong), (ONE_BIT, one_bit_off(seed_text, name, number))):
            back = None
            if result is not None:
                back = _timed(trials, "recover", original, number, functools.partial(engine.recover, result, key, None))
            trials.compare(title, original, number, None if back is None else recognizer.look(back, original.box))
            versions.append(back)
        if show and number == 0:
            show(original, [np.zeros_like(pixels) if v is None else v for v in versions[:-1]])
    for (i, a), (_, b) in itertools.combinations(enumerate(hidden), 2):
        trials.add(TWO_KEYS, original, i, _distance(a, b))


def _timed(trials: _Trials, name: str, original: Original, number: int, call: Callable[[], Result]) -> Pixels | None:
    """Pixels of an engine's result, read back from a PNG; None where the engine finds no face."""
    started = time.perf_counter()
    try:
        result = call()
    except NoFaceError:
        trials.refused += 1
        return None
    trials.add(name, original, number, (time.perf_counter() - started) / max(1, len(result.faces)))
    return through_png(result.pixels)


def _found(judges: Judges, rgb: Pixels | None, original: Original, look: Look | None) -> dict[str, bool]:
    return dict.fromkeys(original.found, False) if rgb is None else judges.found(rgb, original.box, look)


def _others(name: str) -> str:
    return f"{name}, other photos"


def _distance(a: Look | None, b: Look | None) -> float:
    return float("nan") if a is None or b is None else float(np.linalg.norm(a.embedding - b.embedding))


def _digest(seed_text: str, name: str, number: int, purpose: str) -> bytes:
    text = "\0".join((seed_text, name, str(number), purpose))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _read(file: Path) -> Pixels:
    return read_photo(file.read_bytes(), name=str(file)).pixels


def _identities(file: Path, photos: Sequence[Path]) -> dict[str, str]:
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.DictReader(lines)
        if not {"file", "identity"} <= set(rows.fieldnames or ()):
            raise UsageError(f"{file} lacks the columns file,identity")
        named = {row["file"]: row["identity"] for row in rows}
    for photo in photos:
        if not named.get(photo.name):
            raise UsageError(f"{file} names nobody for {photo.name}", "every photo of the folder needs a line")
    return named


def _split(originals: Sequence[Original], split: Split) -> list[Original]:
    if split == "all":
        return list(originals)
    kept = set(sorted({original.identity for original in originals})[split == "odd" :: 2])
    return [original for original in originals if original.identity in kept]


def _thresholds(recognizer: Recognizer, originals: Sequence[Original], known: bool) -> tuple[Threshold, ...]:
    own = metrics.Interval(recognizer.threshold, recognizer.threshold, recognizer.threshold, 0)
    seen = [(o.look.embedding, o.identity) for o in originals if o.look is not None]
    at_far = metrics.NOTHING
    if known and seen:
        at_far = metrics.impostor_threshold([e for e, _ in seen], [identity for _, identity in seen], FAR)
    first = Threshold(f"{recognizer.name}'s own", own)
    if at_far.n * FAR >= 1:
        return first, Threshold("FAR 0.1 % here", at_far)
    fixed = metrics.Interval(DEFAULT_FAR_THRESHOLD, DEFAULT_FAR_THRESHOLD, DEFAULT_FAR_THRESHOLD, 0)
    return first, Threshold("FAR 0.1 % elsewhere", fixed)
