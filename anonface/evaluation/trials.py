"""Everything that is tried on one photo."""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anonface.crypto.keys import Key
from anonface.errors import NoFaceError
from anonface.evaluation import measurements as names
from anonface.evaluation import metrics, utility
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.fidelity import psnr, ssim, tone
from anonface.evaluation.judges import CROP, Aligned, Judges, Original
from anonface.evaluation.measurements import Measured
from anonface.evaluation.recognizers import Detection, Look
from anonface.evaluation.similarity import Embeddings, Similarity, distance
from anonface.faces import align
from anonface.images import Photo, encode_photo, read_photo

Pixels = NDArray[np.uint8]
Show = Callable[[Original, list[Pixels]], None]

SEED_TEXT = "anonface evaluation 1"


class Result(Protocol):
    """What an engine returns: the photo's pixels, and one entry a face it treated."""

    @property
    def pixels(self) -> Pixels: ...

    @property
    def faces(self) -> Sized: ...


class Engine(Protocol):
    """The part of :class:`anonface.pipeline.Engine` that an evaluation needs.

    One in another process has ``seconds`` too, of its last call without the transfer.
    """

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Result: ...

    def recover(self, pixels: Pixels, key: Key, header: None) -> Result: ...


@dataclass(frozen=True)
class Plan:
    """What is tried on each photo.

    Attributes:
        keys: right keys, at least 1; two or more are also compared with each other.
        seed_text: the keys are SHA-256 digests of this text, the photo's name and a number, so that a run can be
            repeated. They protect nothing.
        attacks: names in ``degradations.DEGRADATIONS``; each costs one more recovery.
        attack_keys: how many of a photo's keys are tried after degradations and without an identity code.
        recover_keys: under how many of a photo's keys recovery is tried, with right and wrong ones; None for all. The
            other keys only anonymize.
    """

    keys: int = 4
    seed_text: str = SEED_TEXT
    attacks: tuple[str, ...] = ()
    attack_keys: int = 1
    recover_keys: int | None = None


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
    """The pixels, written as a PNG without any record and read again."""
    return read_photo(encode_photo(Photo(pixels, None, None, "png"), format="png")).pixels


def measure_photo(
    engine: Engine,
    judges: Judges,
    original: Original,
    gallery: Sequence[Original],
    plan: Plan,
    ablations: Mapping[str, Engine] | None = None,
    show: Show | None = None,
) -> Measured:
    """Every trial of the plan on one photo.

    Args:
        gallery: photos whose people are known, this one among them or not. Results are compared with those of the
            same person.
        ablations: engines that recover without an identity code, by the name of the measurement.
        show: called for the first key with its pictures; see ``run.evaluate``.
    """
    trial = _Trial(engine, ablations or {}, judges, original, gallery, plan)
    hidden = [trial.under_key(number, show) for number in range(plan.keys)]
    for (i, a), (_, b) in itertools.combinations(enumerate(hidden), 2):
        trial.similarity.between(a, b, names.TWO_KEYS, i)
    return trial.measured


class _Trial:
    """One photo under the plan. At most a handful of its versions are in memory at a time."""

    def __init__(
        self,
        engine: Engine,
        ablations: Mapping[str, Engine],
        judges: Judges,
        original: Original,
        gallery: Sequence[Original],
        plan: Plan,
    ) -> None:
        assert original.look is not None and original.box is not None
        self.engine, self.ablations = engine, ablations
        self.judges, self.original, self.plan = judges, original, plan
        self.look, self.box = original.look, original.box
        self.pixels, self.name = original.pixels(), original.file.name
        self.measured = Measured(self.name)
        self.area = judges.area(original.aligned) if original.aligned else None
        self.similarity = Similarity(judges, original, gallery, self.measured)
        if judges.features and original.aligned:
            self.measured.features["original"] = [judges.features(original.aligned.crop)]

    def under_key(self, number: int, show: Show | None) -> Embeddings:
        """Anonymize under one right key and recover in every way; returns the embeddings of the anonymized face."""
        plan = self.plan
        right = evaluation_key(plan.seed_text, self.name, number)
        anonymize = functools.partial(self.engine.anonymize, self.pixels, right, consistent=True)
        result = self.called(self.engine, anonymize, number, "anonymize")
        hidden = self.measure_anonymized(result, number)
        versions: list[Pixels | None] = [self.pixels, result]
        if plan.recover_keys is None or number < plan.recover_keys:
            versions += self.recover_under_all(result, right, number)
        if number < plan.attack_keys:
            self.recover_degraded(result, right, number)
            for name, engine in self.ablations.items():
                self.similarity.by_main(name, number, self.seen(self.recovered(engine, result, right)))
        if number == 0:
            self.measured.hidden = hidden.get(names.MAIN)
            if show:
                show(self.original, [np.zeros_like(self.pixels) if v is None else v for v in versions[:4]])
        return hidden

    def measure_anonymized(self, result: Pixels | None, number: int) -> Embeddings:
        """Identity, attributes, layout and pixels of the anonymized face."""
        look = self.seen(result)
        aligned = None if result is None else self.judges.aligned(result, self.box)
        embeddings = self.similarity.embeddings(look, aligned)
        self.similarity.to_original(names.ANONYMIZED, number, embeddings)
        if number == 0 and result is not None:
            placed = self.judges.recognizer.at(result, self.look.box).embedding
            self.measured.add(names.PLACED, number, distance(placed, self.look.embedding))
        detected: Mapping[str, Detection | None] = dict.fromkeys(self.original.found)
        if result is not None:
            detected = self.judges.found(result, self.box, look)
        for detector, seen in detected.items():
            self.measured.add(f"face found again by {detector}", number, seen is not None)
        self.measure_layout(result, look, detected, number)
        self.measure_pixels(names.ANONYMIZED, result, number)
        self.measure_attributes(aligned, number)
        self.measure_gaze_and_expression(aligned, number)
        return embeddings

    def recover_under_all(self, result: Pixels | None, right: Key, number: int) -> list[Pixels | None]:
        """Recover with the right key and two wrong ones."""
        seed_text = self.plan.seed_text
        versions: list[Pixels | None] = []
        keys = {
            names.RIGHT: right,
            names.RANDOM: evaluation_key(seed_text, self.name, number, "wrong"),
            names.ONE_BIT: one_bit_off(seed_text, self.name, number),
        }
        for name, key in keys.items():
            back = self.recovered(self.engine, result, key, number, "recover")
            aligned = None if back is None or not self.judges.embedders else self.judges.aligned(back, self.box)
            self.similarity.to_original(name, number, self.similarity.embeddings(self.seen(back), aligned))
            self.measure_pixels(name, back, number)
            versions.append(back)
        return versions

    def recover_degraded(self, result: Pixels | None, right: Key, number: int) -> None:
        """Recover after each degradation; the face's place is known from the degradation."""
        for name in self.plan.attacks:
            change, box, arrived = DEGRADATIONS[name], self.box, None
            if result is not None:
                seed = int.from_bytes(_digest(self.plan.seed_text, self.name, number, name)[:8])
                arrived, box = change(result, seed), change.moved(self.box, result.shape)
            back = self.recovered(self.engine, arrived, right)
            self.similarity.by_main(names.after(name), number, self.seen(back, box))

    def measure_layout(
        self, result: Pixels | None, hidden: Look | None, detected: Mapping[str, Detection | None], number: int
    ) -> None:
        """Shifts of boxes and landmarks, and changes of pose, against the original; NaN where no face is found."""
        aligned = self.original.aligned
        for detector, was in self.original.found.items():
            now = detected[detector]
            if was is None or aligned is None:
                continue
            shift = functools.partial(metrics.shift, side=align.side_of(aligned.quad), size=CROP)
            moved = np.nan if now is None else shift(was.corners, now.corners)
            self.measured.add(names.box_shift(detector), number, moved)
            if was.points is not None:
                points = None if now is None else now.points
                self.measured.add(names.POINTS, number, np.nan if points is None else shift(was.points, points))
        values = dict.fromkeys((names.LANDMARKS, names.TURN, names.EYES, names.MOUTH), np.nan)
        if result is not None and hidden is not None:
            before, now_ = self.look.points, hidden.points
            rotations = [utility.head_rotation(points, result.shape) for points in (before, now_)]
            change = np.abs(utility.openness(now_) - utility.openness(before))
            values = {
                names.LANDMARKS: metrics.landmark_shift(before, now_),
                names.TURN: utility.degrees_between(*rotations),
                names.EYES: float(change[:2].mean()),
                names.MOUTH: float(change[2]),
            }
        for name, value in values.items():
            self.measured.add(name, number, value)

    def measure_pixels(self, name: str, pixels: Pixels | None, number: int) -> None:
        """PSNR, SSIM and LPIPS to the original, over the face's aligned crop at the same place, and its features."""
        aligned = self.original.aligned
        if aligned is None or self.area is None:
            return
        crop = None if pixels is None else align.crop(pixels, aligned.quad, len(aligned.crop))
        for measure in (psnr, ssim):
            value = np.nan if crop is None else measure(aligned.crop, crop, self.area)
            self.measured.add(names.in_the_face(measure.__name__, name), number, value)
        if self.judges.lpips:
            value = np.nan if crop is None else self.judges.lpips(aligned.crop, crop)
            self.measured.add(names.lpips(name), number, value)
        if self.judges.features and crop is not None:
            self.measured.features.setdefault(name, []).append(self.judges.features(crop))
        if name == names.ANONYMIZED:
            self.measured.add(names.TONE, number, np.nan if crop is None else tone(aligned.crop, crop, self.area))

    def measure_attributes(self, aligned: Aligned | None, number: int) -> None:
        """Whether each classifier reads the same of the anonymized face; what it cannot read counts as not kept."""
        now = self.judges.impressions(aligned)
        for classifier in self.judges.classifiers:
            was, seen = self.original.impressions.get(classifier.name), now.get(classifier.name)
            if was is None:
                continue
            self.measured.add(names.sex_kept(classifier), number, seen is not None and seen.male == was.male)
            if was.age is not None:
                near = seen is not None and seen.age is not None and abs(seen.age - was.age) <= names.YEARS
                self.measured.add(names.age_kept(classifier), number, near)

    def measure_gaze_and_expression(self, aligned: Aligned | None, number: int) -> None:
        was, now = self.original.state, self.judges.state(aligned)
        if was.gaze is not None:
            moved = np.nan if now.gaze is None else float(np.linalg.norm(now.gaze - was.gaze, axis=1).mean())
            self.measured.add(names.GAZE, number, moved)
            turned = np.nan if now.gaze is None else utility.gaze_degrees(was.gaze, now.gaze)
            self.measured.add(names.GAZE_ANGLE, number, turned)
        if was.expression is not None:
            kept = now.expression is not None and now.expression.argmax() == was.expression.argmax()
            self.measured.add(names.EXPRESSION, number, kept)
            apart = np.nan if now.expression is None else float(np.linalg.norm(now.expression - was.expression))
            self.measured.add(names.EXPRESSION_DISTANCE, number, apart)

    def recovered(
        self, engine: Engine, pixels: Pixels | None, key: Key, number: int = 0, timed: str = ""
    ) -> Pixels | None:
        if pixels is None:
            return None
        return self.called(engine, functools.partial(engine.recover, pixels, key, None), number, timed)

    def called(self, engine: Engine, call: Callable[[], Result], number: int, timed: str) -> Pixels | None:
        """Pixels of an engine's result, read back from a PNG; None where the engine finds no face.

        Seconds a face are measured under the name ``timed``, and not at all without one.
        """
        started = time.perf_counter()
        try:
            result = call()
        except NoFaceError:
            self.measured.refused += 1
            return None
        seconds = getattr(engine, "seconds", time.perf_counter() - started)
        if timed:
            self.measured.add(timed, number, seconds / max(1, len(result.faces)))
        return through_png(result.pixels)

    def seen(self, pixels: Pixels | None, box: ArrayLike | None = None) -> Look | None:
        return None if pixels is None else self.judges.recognizer.look(pixels, self.box if box is None else box)


def _digest(seed_text: str, name: str, number: int, purpose: str) -> bytes:
    text = "\0".join((seed_text, name, str(number), purpose))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
