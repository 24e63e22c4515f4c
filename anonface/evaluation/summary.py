"""The rows of a report, made of single measurements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation import metrics
from anonface.evaluation.attribute_classifiers import AttributeClassifier
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.perception import LARGE, Distance, Features, MobileNet, frechet_distance, kernel_distance
from anonface.evaluation.report import Figure, Rate, Samples, Threshold
from anonface.evaluation.trials import (
    ANONYMIZED,
    EXPRESSION,
    EYES,
    GAZE,
    LANDMARKS,
    MOUTH,
    NO_CODE,
    NO_IDENTITY,
    ONE_BIT,
    POINTS,
    RANDOM,
    RIGHT,
    TONE,
    TURN,
    TWO_KEYS,
    TWO_PEOPLE,
    Measured,
    after,
    age_kept,
    box_shift,
    first,
    in_the_face,
    others,
    recovered_on,
    sex_kept,
)


def gathered(photos: Iterable[Measured]) -> dict[str, list[tuple[str, int, float]]]:
    """Measurements of many photos by name, as (file, key number, value)."""
    samples: dict[str, list[tuple[str, int, float]]] = {}
    for photo in photos:
        for name, rows in photo.samples.items():
            samples.setdefault(name, []).extend((photo.file, key, value) for key, value in rows)
    return samples


Embedding = NDArray[np.float64]
LEAST_OF_A_SET = 8


class Summary:
    """Rows over all photos.

    Args:
        samples: see :func:`gathered`.
        people: who is on each file.
        thresholds: distances below which two faces match.
    """

    def __init__(self, samples: Samples, people: Mapping[str, str], thresholds: Sequence[Threshold]) -> None:
        self.samples, self.people, self.thresholds = samples, people, thresholds

    def rates(self) -> list[Rate]:
        return [*self._matched(), *self._over_clean(), *self._over_wrong()]

    def figures(
        self, detectors: Collection[str], classifiers: Sequence[AttributeClassifier], distances: Sequence[Distance] = ()
    ) -> list[Figure]:
        scale = (("original", ""), (ANONYMIZED, "lower"), (RANDOM, "lower"), (ONE_BIT, "lower"), (RIGHT, "higher"))
        plan = [
            *((f"face found again by {detector}", "higher", "share") for detector in detectors),
            *((sex_kept(classifier), "higher", "share") for classifier in classifiers),
            *((age_kept(classifier), "higher", "share") for classifier in classifiers if classifier.reads_age),
            (EXPRESSION, "higher", "share"),
            *((first(name), better, "share") for name, better in scale),
            *((name, "higher", "distance") for name in (ANONYMIZED, RANDOM, ONE_BIT, TWO_KEYS)),
            *((name, "higher", "distance") for name in (NO_IDENTITY, NO_CODE) if name in self.samples),
            *((name, "lower", "distance") for name in (RIGHT, *map(after, DEGRADATIONS)) if name in self.samples),
            *(
                (in_the_face(measure, name), better, unit)
                for measure, unit in (("psnr", "dB"), ("ssim", ""))
                for name, better in ((ANONYMIZED, ""), (RANDOM, ""), (RIGHT, "higher"))
            ),
            *(
                (f"{name}: {distance.name}", better, "")
                for distance in distances
                for name, better in ((ANONYMIZED, ""), (RANDOM, ""), (RIGHT, "lower"))
            ),
            *((box_shift(detector), "lower", "px of 256") for detector in detectors),
            (LANDMARKS, "lower", "px of 256"),
            (POINTS, "lower", "px of 256"),
            (TURN, "lower", "degrees"),
            (EYES, "lower", ""),
            (MOUTH, "lower", ""),
            (GAZE, "lower", ""),
            (TONE, "lower", "CIEDE2000"),
            ("anonymize", "lower", "s per face"),
            ("recover", "lower", "s per face"),
        ]
        # what some judge or other photo is needed for has no row where there was none
        plan = [row for row in plan if row[0] in self.samples]
        rows = []
        for name, better, unit in plan:
            title = f"{name}: mean distance" if unit == "distance" else name
            rows.append(Figure(title, better, unit, metrics.clustered_mean(*self._values(name))))
        return rows

    def crowd(self, hidden: Mapping[str, Embedding]) -> list[Rate]:
        """Whether hidden people are one another: embeddings by file, compared where two files show two people."""
        pairs = [
            (float(np.linalg.norm(hidden[a] - hidden[b])), self.people[a])
            for a, b in itertools.combinations(hidden, 2)
            if self.people[a] != self.people[b]
        ]
        if not pairs:
            return []
        distances, people = zip(*pairs, strict=True)
        at = tuple(metrics.match_rate(distances, people, t.interval.value) for t in self.thresholds)
        return [Rate(f"{TWO_PEOPLE}: matched to each other", "lower", 0, at)]

    def sets(self, features: Mapping[str, Sequence[Features]]) -> list[Figure]:
        """How far the faces of a result, as a set, are from the original ones; where there are enough of both."""
        rows = []
        real = features.get("original", ())
        for name in (ANONYMIZED, RANDOM, RIGHT):
            made = features.get(name, ())
            if min(len(real), len(made)) < LEAST_OF_A_SET:
                continue
            mean, deviation = (1000 * value for value in kernel_distance(real, made))
            interval = metrics.Interval(mean, mean - deviation, mean + deviation, len(made))
            rows.append(Figure(f"{name}: KID x 1000 ({MobileNet.features_name})", "lower", "", interval))
            if min(len(real), len(made)) >= LARGE:
                distance = frechet_distance(real, made)
                interval = metrics.Interval(distance, math.nan, math.nan, len(made))
                rows.append(Figure(f"{name}: FID ({MobileNet.features_name})", "lower", "", interval))
        return rows

    def _values(self, name: str) -> tuple[NDArray[np.float64], list[str]]:
        rows = self.samples.get(name, ())
        return np.array([value for _, _, value in rows], dtype=np.float64), [self.people[file] for file, _, _ in rows]

    def _matched(self) -> Iterator[Rate]:
        for name in (ANONYMIZED, RANDOM, ONE_BIT, NO_IDENTITY, NO_CODE):
            yield from self._rate(f"{name}: matched to the original", "lower", name)
            yield from self._rate(f"{name}: matched, or no face found", "lower", name, missing_matches=True)
        yield from self._rate("two keys: matched to each other", "lower", TWO_KEYS)
        elsewhere = [name for name in self.samples if name.startswith(recovered_on(""))]
        for name in (RIGHT, *elsewhere, *map(after, DEGRADATIONS)):
            yield from self._rate(f"{name}: matched to the original", "higher", name)
        for name, better in (("original", ""), (ANONYMIZED, "lower"), (RANDOM, "lower"), (RIGHT, "higher")):
            yield from self._rate(f"{name}: matched to other photos of the person (TAR)", better, others(name))

    def _rate(self, title: str, better: str, name: str, missing_matches: bool = False) -> Iterator[Rate]:
        """One row, or none where nothing of that name was measured."""
        distances, people = self._values(name)
        if distances.size:
            at = tuple(
                metrics.match_rate(distances, people, t.interval.value, missing_matches=missing_matches)
                for t in self.thresholds
            )
            yield Rate(title, better, int(np.isnan(distances).sum()), at)

    def _over_clean(self) -> Iterator[Rate]:
        """How much of what a clean photo is recognised by comes back: both rates over the same pairs of photos."""
        distances, people = self._values(others(RIGHT))
        if not distances.size:
            return
        clean: dict[str, list[float]] = {}
        for file, _, value in self.samples[others("original")]:
            clean.setdefault(file, []).append(value)
        # a photo's pairs come in the gallery's order, once for the original and once for each key
        repeats = {file: sum(row[0] == file for row in self.samples[RIGHT]) for file in clean}
        base = np.array([value for file, values in clean.items() for value in values * repeats[file]])
        at = tuple(
            metrics.clustered_ratio(distances < t.interval.value, base < t.interval.value, people)
            for t in self.thresholds
        )
        title = f"{RIGHT} / original: matched to other photos of the person"
        yield Rate(title, "higher", int(np.isnan(distances).sum()), at, unit="ratio")

    def _over_wrong(self) -> Iterator[Rate]:
        right, people = self._values(RIGHT)
        for name in (RANDOM, ONE_BIT):
            wrong, _ = self._values(name)
            if right.size:
                at = tuple(
                    metrics.clustered_ratio(right < t.interval.value, wrong < t.interval.value, people)
                    for t in self.thresholds
                )
                yield Rate(f"right key / {name}", "higher", 0, at, unit="ratio")
