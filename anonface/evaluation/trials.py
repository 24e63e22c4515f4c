"""All that is tried on one photo, and what was measured of it."""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anonface.errors import NoFaceError
from anonface.evaluation import metrics, utility
from anonface.evaluation.attribute_classifiers import AttributeClassifier
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.fidelity import psnr, ssim, tone
from anonface.evaluation.judges import CROP, Aligned, Judges, Original
from anonface.evaluation.recognizers import Detection, Look
from anonface.evaluation.similarity import Embeddings, Similarity
from anonface.faces import align
from anonface.imagefile import Photo, encode_photo, read_photo
from anonface.keys import Key

Pixels = NDArray[np.uint8]
Show = Callable[[Original, list[Pixels]], None]

SEED_TEXT = "anonface evaluation 1"

ANONYMIZED, RANDOM, ONE_BIT, RIGHT = "anonymized", "wrong key, random", "wrong key, one bit", "right key, from pixels"
TWO_KEYS, TWO_PEOPLE = "two keys", "two people under their first keys"
NO_IDENTITY, NO_CODE = "recovery without an identity code", "recovery with the whole code at zero"
YEARS = 10  # by which the apparent age may be off
LANDMARKS, POINTS = "landmark shift, 68 points", "landmark shift, 5 points of MTCNN"
TURN, EYES, MOUTH = "head turned", "eyes: change of openness", "mouth: change of openness"
GAZE, EXPRESSION, TONE = "gaze: shift of the irises", "expression kept", "skin tone: difference of colour"


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
class Plan:
    """What is tried on each photo.

    Attributes:
        keys: right keys, at least 1; two or more are also compared with each other.
        seed_text: the keys are SHA-256 digests of this text, the photo's name and a number, so that a run can be
            repeated. They protect nothing.
        attacks: names in ``attacks.DEGRADATIONS``; each costs one more recovery.
        attack_keys: how many of a photo's keys are tried under attacks, and in recovery without an identity code.
        recover_keys: under how many of a photo's keys recovery is tried, with right and wrong ones; None for all. The
            others only hide.
    """

    keys: int = 4
    seed_text: str = SEED_TEXT
    attacks: tuple[str, ...] = ()
    attack_keys: int = 1
    recover_keys: int | None = None


@dataclass
class Measured:
    """What was measured of one photo.

    Attributes:
        file: its name.
        samples: (key number, value) by name of the measurement; NaN where there was no face to measure.
        refused: how often the engine found no face.
        features: what sets of faces are compared by, [C] each, by the name of the result; never written anywhere.
        hidden: the recognizer's embedding [d] of the face hidden under the first key; never written anywhere.
    """

    file: str
    samples: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    refused: int = 0
    features: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    hidden: NDArray[np.float64] | None = None

    def add(self, name: str, key: int, value: float) -> None:
        self.samples.setdefault(name, []).append((key, float(value)))


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


def after(attack: str) -> str:
    """The name of the recoveries after that attack."""
    return f"right key, after {DEGRADATIONS[attack].title}"


def in_the_face(measure: str, name: str) -> str:
    return f"{name}: {measure.upper()} in the face"


def box_shift(detector: str) -> str:
    return f"box shift, {detector}"


def first(name: str) -> str:
    """The name of whether the nearest other photo to a result is of the person."""
    return f"{name}: nearest other photo is of the person (rank 1)"


def recovered_on(device: str) -> str:
    return f"{RIGHT}, recovered on {device}"


def sex_kept(classifier: AttributeClassifier) -> str:
    return f"apparent sex kept, by {_marked(classifier)}"


def age_kept(classifier: AttributeClassifier) -> str:
    return f"apparent age within {YEARS} years, by {_marked(classifier)}"


def _marked(classifier: AttributeClassifier) -> str:
    return f"{classifier.name} ({'seen' if classifier.seen_by_loss else 'not seen'} by a training loss)"


def others(name: str) -> str:
    """The name of a result's distances to the other photos of the person."""
    return f"{name}, other photos"


def measure_photo(
    engine: Engine,
    judges: Judges,
    original: Original,
    gallery: Sequence[Original],
    plan: Plan,
    ablations: Mapping[str, Engine] | None = None,
    show: Show | None = None,
    elsewhere: tuple[str, Engine] | None = None,
) -> Measured:
    """Every trial of the plan on one photo.

    Args:
        gallery: photos whose people are known, this one among them or not; results are compared with those of the
            same person.
        ablations: the engine as it recovers without an identity code, by what each way is called, where there are such.
        show: called for the first key with what it looks like; see ``run.evaluate``.
        elsewhere: a device's name and the engine on it, which recovers as well.
    """
    trial = _Trial(engine, ablations or {}, judges, original, gallery, plan, elsewhere)
    hidden = [trial.under_key(number, show) for number in range(plan.keys)]
    trial.measured.hidden = None if hidden[0] is None else hidden[0].embedding
    for (i, a), (j, b) in itertools.combinations(enumerate(hidden), 2):
        trial.measured.add(TWO_KEYS, i, _distance(a, b))
        trial.likeness.between(trial.hidden[i], trial.hidden[j], TWO_KEYS, i)
    return trial.measured


class _Trial:
    """One photo under the plan; at most a handful of its versions are in memory at a time."""

    def __init__(
        self,
        engine: Engine,
        ablations: Mapping[str, Engine],
        judges: Judges,
        original: Original,
        gallery: Sequence[Original],
        plan: Plan,
        elsewhere: tuple[str, Engine] | None,
    ) -> None:
        assert original.look is not None and original.box is not None
        self.engine, self.ablations, self.elsewhere = engine, ablations, elsewhere
        self.judges, self.original, self.plan = judges, original, plan
        self.look, self.box = original.look, original.box
        self.pixels, self.name = original.pixels(), original.file.name
        self.measured = Measured(self.name)
        self.area = judges.area(original.aligned) if original.aligned else None
        rest = [(other.look, other.identity) for other in gallery if other.look and other.file != original.file]
        self.others = [look for look, identity in rest if identity == original.identity]
        self.gallery = np.array([look.embedding for look, _ in rest])
        self.names = [identity for _, identity in rest]
        self.compare_others("original", 0, self.look)
        self.keep_features("original", None if original.aligned is None else original.aligned.crop)
        self.hidden: list[Embeddings] = []  # by the number of the key
        self.likeness = Similarity(judges, original, gallery, self.measured)
        self.likeness.of_original(others("original"))

    def under_key(self, number: int, show: Show | None) -> Look | None:
        """Hide the face under one right key, try to lead it back in every way, and say how it looks hidden."""
        seed_text = self.plan.seed_text
        right = evaluation_key(seed_text, self.name, number)
        hide = functools.partial(self.engine.anonymize, self.pixels, right, consistent=True)
        result = self.timed("anonymize", number, hide)
        hidden = None if result is None else self.judges.recognizer.look(result, self.box)
        self.compare(ANONYMIZED, number, hidden)
        found = self.found(result, hidden)
        for detector, seen in found.items():
            self.measured.add(f"face found again by {detector}", number, seen is not None)
        aligned = None if result is None else self.judges.aligned(result, self.box)
        self.layout(result, hidden, found, number)
        self.hidden.append(self.likeness.of(aligned, ANONYMIZED, number, others(ANONYMIZED)))
        self.near(ANONYMIZED, result, number)
        self.attributes(aligned, number)
        self.bearing(aligned, number)
        wrong = evaluation_key(seed_text, self.name, number, "wrong")
        tried = ((RIGHT, right), (RANDOM, wrong), (ONE_BIT, one_bit_off(seed_text, self.name, number)))
        recovering = self.plan.recover_keys is None or number < self.plan.recover_keys
        versions = [self.pixels, result]
        for title, key in tried if recovering else ():
            back = self.recovered(self.engine, result, key, number)
            self.compare(title, number, self.seen(back, self.box))
            self.near(title, back, number)
            seen_back = None if back is None or not self.judges.embedders else self.judges.aligned(back, self.box)
            self.likeness.of(seen_back, title, number, others(title) if title == RIGHT else None)
            versions.append(back)
        if recovering and self.elsewhere:
            device, engine = self.elsewhere
            back = self.recovered(engine, result, right, number, None)
            self.compare(recovered_on(device), number, self.seen(back, self.box))
        if number < self.plan.attack_keys:
            self.attacked(result, right, number)
            for title, mute in self.ablations.items():
                back = self.recovered(mute, result, right, number, None)
                self.measured.add(title, number, _distance(self.look, self.seen(back, self.box)))
        if show and number == 0:
            show(self.original, [np.zeros_like(self.pixels) if v is None else v for v in versions[:4]])
        return hidden

    def layout(
        self, result: Pixels | None, hidden: Look | None, found: Mapping[str, Detection | None], number: int
    ) -> None:
        """Where the hidden face lies and how it stands, beside the original one; NaN where nobody sees it."""
        aligned = self.original.aligned
        for detector, was in self.original.found.items():
            now = found[detector]
            if was is None or aligned is None:
                continue
            shift = functools.partial(metrics.shift, side=align.side_of(aligned.quad), size=CROP)
            self.measured.add(box_shift(detector), number, np.nan if now is None else shift(was.corners, now.corners))
            if was.points is not None:
                points = None if now is None else now.points
                self.measured.add(POINTS, number, np.nan if points is None else shift(was.points, points))
        values = dict.fromkeys((LANDMARKS, TURN, EYES, MOUTH), np.nan)
        if result is not None and hidden is not None:
            before, after_ = self.look.points, hidden.points
            turns = [utility.turn(points, result.shape) for points in (before, after_)]
            change = np.abs(utility.openness(after_) - utility.openness(before))
            values = {
                LANDMARKS: metrics.landmark_shift(before, after_),
                TURN: utility.turned(*turns),
                EYES: float(change[:2].mean()),
                MOUTH: float(change[2]),
            }
        for name, value in values.items():
            self.measured.add(name, number, value)

    def near(self, name: str, pixels: Pixels | None, number: int) -> None:
        """How near a result is to the original in its face, cut out of both at the same place."""
        aligned = self.original.aligned
        if aligned is None or self.area is None:
            return
        crop = None if pixels is None else align.crop(pixels, aligned.quad, CROP)
        for measure in (psnr, ssim):
            value = np.nan if crop is None else measure(aligned.crop, crop, self.area)
            self.measured.add(in_the_face(measure.__name__, name), number, value)
        for distance in self.judges.distances:
            value = np.nan if crop is None else distance(aligned.crop, crop)
            self.measured.add(f"{name}: {distance.name}", number, value)
        if name == ANONYMIZED:
            self.measured.add(TONE, number, np.nan if crop is None else tone(aligned.crop, crop, self.area))
        self.keep_features(name, crop)

    def keep_features(self, name: str, crop: Pixels | None) -> None:
        features = None if crop is None else self.judges.features(crop)
        if features is not None:
            self.measured.features.setdefault(name, []).append(features)

    def attributes(self, aligned: Aligned | None, number: int) -> None:
        """Whether each classifier reads the same of the hidden face; what it cannot read there was not kept."""
        now = self.judges.impressions(aligned)
        for classifier in self.judges.classifiers:
            was, seen = self.original.impressions.get(classifier.name), now.get(classifier.name)
            if was is None:
                continue
            self.measured.add(sex_kept(classifier), number, seen is not None and seen.male == was.male)
            if was.age is not None:
                near = seen is not None and seen.age is not None and abs(seen.age - was.age) <= YEARS
                self.measured.add(age_kept(classifier), number, near)

    def bearing(self, aligned: Aligned | None, number: int) -> None:
        """Whether the hidden face looks the same way and wears the same expression."""
        was, now = self.original.bearing, self.judges.bearing(aligned)
        if was.gaze is not None:
            moved = np.nan if now.gaze is None else float(np.linalg.norm(now.gaze - was.gaze, axis=1).mean())
            self.measured.add(GAZE, number, moved)
        if was.expression is not None:
            kept = now.expression is not None and now.expression.argmax() == was.expression.argmax()
            self.measured.add(EXPRESSION, number, kept)

    def attacked(self, result: Pixels | None, key: Key, number: int) -> None:
        """The right key after each attack; where the face lies then is known, whatever it looks like."""
        for attack in self.plan.attacks:
            change, box, arrived = DEGRADATIONS[attack], self.box, None
            if result is not None:
                seed = int.from_bytes(_digest(self.plan.seed_text, self.name, number, attack)[:8])
                arrived, box = change(result, seed), change.moved(self.box, result.shape)
            back = self.recovered(self.engine, arrived, key, number, None)
            self.measured.add(after(attack), number, _distance(self.look, self.seen(back, box)))

    def recovered(
        self, engine: Engine, pixels: Pixels | None, key: Key, number: int, name: str | None = "recover"
    ) -> Pixels | None:
        if pixels is None:
            return None
        return self.timed(name, number, functools.partial(engine.recover, pixels, key, None))

    def timed(self, name: str | None, number: int, call: Callable[[], Result]) -> Pixels | None:
        """Pixels of an engine's result, read back from a PNG; None where the engine finds no face.

        Without a ``name`` the time is not kept.
        """
        started = time.perf_counter()
        try:
            result = call()
        except NoFaceError:
            self.measured.refused += 1
            return None
        if name:
            self.measured.add(name, number, (time.perf_counter() - started) / max(1, len(result.faces)))
        return through_png(result.pixels)

    def seen(self, pixels: Pixels | None, box: ArrayLike) -> Look | None:
        return None if pixels is None else self.judges.recognizer.look(pixels, box)

    def found(self, rgb: Pixels | None, look: Look | None) -> dict[str, Detection | None]:
        return dict.fromkeys(self.original.found) if rgb is None else self.judges.found(rgb, self.box, look)

    def compare(self, name: str, number: int, look: Look | None) -> None:
        """Distances of a result to its own original, and to the other photos of that person."""
        self.measured.add(name, number, _distance(self.look, look))
        self.compare_others(name, number, look)

    def compare_others(self, name: str, number: int, look: Look | None) -> None:
        for other in self.others:
            self.measured.add(others(name), number, _distance(other, look))
        if self.others:
            hit = look is not None and metrics.nearest_is(
                look.embedding, self.gallery, self.names, self.original.identity
            )
            self.measured.add(first(name), number, hit)


def _distance(a: Look | None, b: Look | None) -> float:
    return float("nan") if a is None or b is None else float(np.linalg.norm(a.embedding - b.embedding))


def _digest(seed_text: str, name: str, number: int, purpose: str) -> bytes:
    text = "\0".join((seed_text, name, str(number), purpose))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
