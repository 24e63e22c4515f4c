"""The rows of a report, computed from single measurements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation import measurements as names
from anonface.evaluation import metrics
from anonface.evaluation.attribute_classifiers import AttributeClassifier
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.perception import (
    LARGE,
    Features,
    MobileNet,
    PictureDistance,
    frechet_distance,
    kernel_distance,
)
from anonface.evaluation.report import Figure, Rate, Samples, Threshold

Floats = NDArray[np.float64]
LEAST_OF_A_SET = 8  # faces; KID of fewer is left out


class Summary:
    """Rows over all photos.

    Args:
        samples: see :func:`anonface.evaluation.measurements.joined`.
        people: the person on each file.
        thresholds: distances below which two faces match.
    """

    def __init__(self, samples: Samples, people: Mapping[str, str], thresholds: Sequence[Threshold]) -> None:
        self.samples, self.people, self.thresholds = samples, people, thresholds

    def rates(self) -> list[Rate]:
        return [*self._matched(), *self._over_clean(), *self._over_wrong()]

    def figures(
        self,
        detectors: Collection[str],
        classifiers: Sequence[AttributeClassifier],
        distances: Sequence[PictureDistance] = (),
    ) -> list[Figure]:
        """Means of everything measured; a measurement without samples has no row."""
        low = (names.ANONYMIZED, names.RANDOM, names.ONE_BIT)
        rows = [
            *((f"face found again by {detector}", "higher", "share") for detector in detectors),
            *((names.sex_kept(classifier), "higher", "share") for classifier in classifiers),
            *((names.age_kept(classifier), "higher", "share") for classifier in classifiers if classifier.reads_age),
            (names.EXPRESSION, "higher", "share"),
            (names.rank_one("original"), "", "share"),
            *((names.rank_one(name), "lower", "share") for name in low),
            (names.rank_one(names.RIGHT), "higher", "share"),
            *((name, "higher", "distance") for name in (*low, names.TWO_KEYS, names.NO_IDENTITY, names.NO_CODE)),
            *((name, "lower", "distance") for name in (names.RIGHT, *map(names.after, DEGRADATIONS))),
            *(
                (names.in_the_face(measure, name), better, unit)
                for measure, unit in (("psnr", "dB"), ("ssim", ""))
                for name, better in ((names.ANONYMIZED, ""), (names.RANDOM, ""), (names.RIGHT, "higher"))
            ),
            *(
                (f"{name}: {distance.name}", better, "")
                for distance in distances
                for name, better in ((names.ANONYMIZED, ""), (names.RANDOM, ""), (names.RIGHT, "lower"))
            ),
            *((names.box_shift(detector), "lower", "px of 256") for detector in detectors),
            *((name, "lower", "px of 256") for name in (names.LANDMARKS, names.POINTS)),
            (names.TURN, "lower", "degrees"),
            (names.GAZE_ANGLE, "lower", "degrees"),
            *((name, "lower", "") for name in (names.EYES, names.MOUTH, names.GAZE, names.EXPRESSION_DISTANCE)),
            (names.TONE, "lower", "CIEDE2000"),
            *((name, "lower", "s per face") for name in ("anonymize", "recover")),
        ]
        return [self._figure(*row) for row in rows if row[0] in self.samples]

    def between_people(self, anonymized: Mapping[str, Floats]) -> list[Rate]:
        """Matches between anonymized faces of different people; embeddings by file."""
        pairs = [
            (float(np.linalg.norm(anonymized[a] - anonymized[b])), self.people[a])
            for a, b in itertools.combinations(anonymized, 2)
            if self.people[a] != self.people[b]
        ]
        if not pairs:
            return []
        distances, people = zip(*pairs, strict=True)
        return [Rate(f"{names.TWO_PEOPLE}: matched to each other", "lower", 0, self._match_rates(distances, people))]

    def set_distances(self, features: Mapping[str, Sequence[Features]]) -> list[Figure]:
        """KID and FID of each result's faces from the original ones, for sets large enough."""
        rows = []
        real = features.get("original", ())
        for name in (names.ANONYMIZED, names.RANDOM, names.RIGHT):
            made = features.get(name, ())
            if min(len(real), len(made)) < LEAST_OF_A_SET:
                continue
            mean, deviation = (1000 * value for value in kernel_distance(real, made))
            interval = metrics.Interval(mean, mean - deviation, mean + deviation, len(made))
            rows.append(Figure(f"{name}: KID x 1000 ({MobileNet.features_name})", "lower", "", interval))
            if min(len(real), len(made)) >= LARGE:
                interval = metrics.Interval(frechet_distance(real, made), math.nan, math.nan, len(made))
                rows.append(Figure(f"{name}: FID ({MobileNet.features_name})", "lower", "", interval))
        return rows

    def rate(self, title: str, better: str, name: str, missing_matches: bool = False) -> Iterator[Rate]:
        """One row, or none where nothing of that name was measured."""
        distances, people = self._values(name)
        if distances.size:
            at = self._match_rates(distances, people, missing_matches)
            yield Rate(title, better, int(np.isnan(distances).sum()), at)

    def _figure(self, name: str, better: str, unit: str) -> Figure:
        title = f"{name}: mean distance" if unit == "distance" else name
        return Figure(title, better, unit, metrics.clustered_mean(*self._values(name)))

    def _values(self, name: str) -> tuple[Floats, list[str]]:
        rows = self.samples.get(name, ())
        return np.array([value for _, _, value in rows], dtype=np.float64), [self.people[file] for file, _, _ in rows]

    def _match_rates(
        self, distances: Sequence[float] | Floats, people: Sequence[str], missing_matches: bool = False
    ) -> tuple[metrics.Interval, ...]:
        return tuple(
            metrics.match_rate(distances, people, threshold.interval.value, missing_matches=missing_matches)
            for threshold in self.thresholds
        )

    def _matched(self) -> Iterator[Rate]:
        for name in (names.ANONYMIZED, names.RANDOM, names.ONE_BIT, names.NO_IDENTITY, names.NO_CODE):
            yield from self.rate(f"{name}: matched to the original", "lower", name)
            yield from self.rate(f"{name}: matched, or no face found", "lower", name, missing_matches=True)
        yield from self.rate(f"{names.TWO_KEYS}: matched to each other", "lower", names.TWO_KEYS)
        on_devices = [name for name in self.samples if name.startswith(names.recovered_on(""))]
        for name in (names.RIGHT, *on_devices, *map(names.after, DEGRADATIONS)):
            yield from self.rate(f"{name}: matched to the original", "higher", name)
        low = (names.ANONYMIZED, names.RANDOM)
        for name, better in (("original", ""), *((name, "lower") for name in low), (names.RIGHT, "higher")):
            yield from self.rate(f"{name}: matched to other photos of the person (TAR)", better, names.others(name))

    def _over_clean(self) -> Iterator[Rate]:
        """Matches of recovered faces over those of the originals, over the same pairs of photos."""
        distances, people = self._values(names.others(names.RIGHT))
        if not distances.size:
            return
        clean: dict[str, list[float]] = {}
        for file, _, value in self.samples[names.others("original")]:
            clean.setdefault(file, []).append(value)
        # A photo's pairs come in the gallery's order, once for the original and once for each key.
        repeats = {file: sum(row[0] == file for row in self.samples[names.RIGHT]) for file in clean}
        base = np.array([value for file, values in clean.items() for value in values * repeats[file]])
        title = f"{names.RIGHT} / original: matched to other photos of the person"
        yield Rate(title, "higher", int(np.isnan(distances).sum()), self._ratios(distances, base, people), "ratio")

    def _over_wrong(self) -> Iterator[Rate]:
        right, people = self._values(names.RIGHT)
        for name in (names.RANDOM, names.ONE_BIT):
            wrong, _ = self._values(name)
            if right.size:
                yield Rate(f"right key / {name}", "higher", 0, self._ratios(right, wrong, people), "ratio")

    def _ratios(self, above: Floats, below: Floats, people: Sequence[str]) -> tuple[metrics.Interval, ...]:
        """Ratios of two match rates over the same people."""
        limits = [threshold.interval.value for threshold in self.thresholds]
        return tuple(metrics.clustered_ratio(above < limit, below < limit, people) for limit in limits)
