"""The rows of a report, computed from single measurements."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation import measurements as names
from anonface.evaluation import metrics
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.judges import Judges, Original
from anonface.evaluation.measurements import Measured
from anonface.evaluation.report import Figure, Rate, Recognition, RecognitionRow, Samples, Threshold
from anonface.evaluation.set_distances import LEAST, frechet, kernel

Floats = NDArray[np.float64]

FAR_THRESHOLDS = {0.001: 0.588, 0.01: 0.650}
"""dlib's thresholds at these false accept rates, on 175 in-the-wild photos of 40 people; used for small folders."""


class Summary:
    """Rows over all photos.

    Args:
        samples: see :func:`anonface.evaluation.measurements.joined`.
        people: the person on each file.
        judges: who measured.
        gallery: all photos whose people are known; thresholds are measured on them. None if nobody is known.
    """

    def __init__(
        self, samples: Samples, people: Mapping[str, str], judges: Judges, gallery: Sequence[Original]
    ) -> None:
        self.samples, self.people, self.judges, self.gallery = samples, people, judges, gallery
        self.thresholds = self._thresholds()

    def rates(self) -> list[Rate]:
        """By the main recognizer, at each threshold."""
        limits = [threshold.interval.value for threshold in self.thresholds]
        return [rate for rate, _, _ in self._matches(names.MAIN, limits)]

    def recognitions(self, backend: object) -> list[Recognition]:
        """One table a further recognizer; those that a loss of the ``backend`` saw come last."""
        tables = []
        for embedder in self.judges.embedders:
            seen = [(o.embeddings[embedder.name], o.identity) for o in self.gallery if embedder.name in o.embeddings]
            measured = [(far, _at_far(seen, far)) for far in FAR_THRESHOLDS]
            limits = [Threshold(f"FAR {100 * far:g} % here", interval) for far, interval in measured if interval]
            limits += [Threshold(title, metrics.fixed(value)) for title, value in embedder.limits]
            rows = [
                RecognitionRow(
                    **vars(rate),
                    n=len(distances),
                    distance=metrics.clustered_mean(distances, people),
                    cosine=metrics.clustered_mean(1 - distances**2 / 2, people),  # of unit vectors
                )
                for rate, distances, people in self._matches(embedder.name, [x.interval.value for x in limits])
            ]
            tables.append(Recognition(embedder.name, embedder.seen(backend), tuple(limits), tuple(rows)))
        return sorted(tables, key=lambda table: table.seen_by_loss)

    def figures(self, detectors: Collection[str]) -> list[Figure]:
        """Means of everything measured; a measurement without samples has no row."""
        classifiers = self.judges.classifiers
        low = (names.ANONYMIZED, names.PLACED, names.RANDOM, names.ONE_BIT)
        three = (names.ANONYMIZED, ""), (names.RANDOM, ""), (names.RIGHT, "higher")
        rows = [
            *((f"face found again by {detector}", "higher", "share") for detector in detectors),
            *((names.sex_kept(classifier), "higher", "share") for classifier in classifiers),
            *((names.age_kept(classifier), "higher", "share") for classifier in classifiers),
            (names.EXPRESSION, "higher", "share"),
            (names.rank_one("original"), "", "share"),
            *((names.rank_one(name), "lower", "share") for name in low),
            (names.rank_one(names.RIGHT), "higher", "share"),
            *((name, "higher", "distance") for name in (*low, names.TWO_KEYS, names.NO_IDENTITY, names.NO_CODE)),
            *((name, "lower", "distance") for name in (names.RIGHT, *map(names.after, DEGRADATIONS))),
            *((names.in_the_face("psnr", name), better, "dB") for name, better in three),
            *((names.in_the_face("ssim", name), better, "") for name, better in three),
            *((names.lpips(name), "lower" if name == names.RIGHT else "", "") for name, _ in three),
            *((names.box_shift(detector), "lower", "px of 256") for detector in detectors),
            *((name, "lower", "px of 256") for name in (names.LANDMARKS, names.POINTS)),
            (names.TURN, "lower", "degrees"),
            (names.GAZE_ANGLE, "lower", "degrees"),
            *((name, "lower", "") for name in (names.EYES, names.MOUTH, names.GAZE, names.EXPRESSION_DISTANCE)),
            (names.TONE, "lower", "CIEDE2000"),
            *((name, "lower", "s per face") for name in ("anonymize", "recover")),
        ]
        return [
            Figure(
                f"{name}: mean distance" if unit == "distance" else name,
                better,
                unit,
                metrics.clustered_mean(*self._values(name)),
            )
            for name, better, unit in rows
            if name in self.samples
        ]

    def set_distances(self, photos: Sequence[Measured]) -> list[Figure]:
        """FID and KID of each result's faces from the original ones; none for fewer than LEAST faces."""
        sets = {
            name: [x for photo in photos for x in photo.features.get(name, ())]
            for name in ("original", names.ANONYMIZED, names.RANDOM, names.RIGHT)
        }
        real, features = sets.pop("original"), self.judges.features
        return [
            Figure(f"{name}: {title} ({features.name})", "lower", "", replace(metrics.fixed(value), n=len(made)))
            for name, made in sets.items()
            if features and min(len(real), len(made)) >= LEAST
            for title, value in (("FID", frechet(real, made)), ("KID x 1000", 1000 * kernel(real, made)))
        ]

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
        at = tuple(metrics.match_rate(distances, people, limit.interval.value) for limit in self.thresholds)
        return [Rate(f"{names.TWO_PEOPLE}: matched to each other", "lower", 0, at)]

    def _thresholds(self) -> tuple[Threshold, ...]:
        """The main recognizer's own threshold, and one for each false accept rate.

        The latter come from the pairs of different people where these suffice for one false match, else from
        FAR_THRESHOLDS.
        """
        recognizer = self.judges.recognizer
        found = [Threshold(f"{recognizer.name}'s own", metrics.fixed(recognizer.threshold))]
        seen = [(o.look.embedding, o.identity) for o in self.gallery if o.look is not None]
        for far, fallback in FAR_THRESHOLDS.items():
            measured = _at_far(seen, far)
            where, interval = ("here", measured) if measured else ("elsewhere", metrics.fixed(fallback))
            found.append(Threshold(f"FAR {100 * far:g} % {where}", interval))
        return tuple(found)

    def _matches(self, recognizer: str, limits: Sequence[float]) -> Iterator[tuple[Rate, Floats, list[str]]]:
        """The rates of all that one recognizer measured, with the distances and people behind them."""

        def row(title: str, better: str, name: str, missing: bool = False) -> Iterator[tuple[Rate, Floats, list[str]]]:
            distances, people = self._values(names.by(name, recognizer))
            if distances.size:
                at = tuple(metrics.match_rate(distances, people, x, missing_matches=missing) for x in limits)
                yield Rate(title, better, int(np.isnan(distances).sum()), at), distances, people

        low = (names.ANONYMIZED, names.PLACED, names.RANDOM, names.ONE_BIT, names.NO_IDENTITY, names.NO_CODE)
        for name in low:
            yield from row(f"{name}: matched to the original", "lower", name)
            if name != names.PLACED:  # there a face is always read
                yield from row(f"{name}: matched, or no face found", "lower", name, missing=True)
        yield from row(f"{names.TWO_KEYS}: matched to each other", "lower", names.TWO_KEYS)
        for name in (names.RIGHT, *map(names.after, DEGRADATIONS)):
            yield from row(f"{name}: matched to the original", "higher", name)
        shown = ("original", ""), (names.ANONYMIZED, "lower"), (names.RANDOM, "lower"), (names.RIGHT, "higher")
        for name, better in shown:
            yield from row(f"{name}: matched to other photos of the person (TAR)", better, names.others(name))

    def _values(self, name: str) -> tuple[Floats, list[str]]:
        rows = self.samples.get(name, ())
        return np.array([value for _, _, value in rows], dtype=np.float64), [self.people[file] for file, _, _ in rows]


def _at_far(seen: Sequence[tuple[Floats, str]], far: float) -> metrics.Interval | None:
    """Threshold at a false accept rate from (embedding, person); None where the pairs are too few for a false match."""
    if not seen:
        return None
    threshold = metrics.impostor_threshold([e for e, _ in seen], [identity for _, identity in seen], far)
    return threshold if threshold.n * far >= 1 else None
