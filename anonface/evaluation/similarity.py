"""Distances of one photo's results to the original, to the person's other photos and to each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation import metrics
from anonface.evaluation.judges import Aligned, Judges, Original
from anonface.evaluation.measurements import ANONYMIZED, MAIN, RIGHT, Measured, by, others, rank_one
from anonface.evaluation.recognizers import Look

Embeddings = Mapping[str, NDArray[np.float64]]
"""Embeddings of one face by recognizer, those of ``Judges.recognizer`` under MAIN."""


class Similarity:
    """Measures by every recognizer that could embed the original.

    Args:
        gallery: photos whose people are known, this one among them or not.
        measured: takes the distances; NaN where a result shows no face.
    """

    def __init__(self, judges: Judges, original: Original, gallery: Sequence[Original], measured: Measured) -> None:
        self._judges, self._identity, self._measured = judges, original.identity, measured
        self._original = _of_original(original)
        rest = [other for other in gallery if other.file != original.file]
        self._others = [_of_original(other) for other in rest if other.identity == original.identity]
        seen = [(other.look.embedding, other.identity) for other in rest if other.look]
        self._gallery, self._people = np.array([e for e, _ in seen]), [identity for _, identity in seen]
        self._compare_others("original", 0, self._original, self._original)

    def embeddings(self, look: Look | None, aligned: Aligned | None) -> Embeddings:
        """Embeddings of a result's face; without those of recognizers that cannot find it."""
        further = self._judges.embeddings(aligned) if len(self._original) > 1 else {}
        return further if look is None else {MAIN: look.embedding, **further}

    def to_original(self, name: str, number: int, seen: Embeddings) -> None:
        """A result's face under key ``number`` against the original and the person's other photos."""
        for recognizer, own in self._original.items():
            self._measured.add(by(name, recognizer), number, distance(own, seen.get(recognizer)))
        self._compare_others(name, number, seen, self._original if name in (ANONYMIZED, RIGHT) else (MAIN,))

    def by_main(self, name: str, number: int, look: Look | None) -> None:
        """A result's face against the original by ``Judges.recognizer`` alone."""
        self._measured.add(name, number, distance(self._original[MAIN], None if look is None else look.embedding))

    def between(self, a: Embeddings, b: Embeddings, name: str, number: int) -> None:
        """One result against another."""
        for recognizer in self._original:
            self._measured.add(by(name, recognizer), number, distance(a.get(recognizer), b.get(recognizer)))

    def _compare_others(self, name: str, number: int, seen: Embeddings, recognizers: Collection[str]) -> None:
        for recognizer in recognizers:
            for other in self._others:
                if recognizer in other:
                    value = distance(other[recognizer], seen.get(recognizer))
                    self._measured.add(by(others(name), recognizer), number, value)
        if any(MAIN in other for other in self._others):
            hit = MAIN in seen and metrics.nearest_is(seen[MAIN], self._gallery, self._people, self._identity)
            self._measured.add(rank_one(name), number, hit)


def distance(a: NDArray[np.float64] | None, b: NDArray[np.float64] | None) -> float:
    """Euclidean distance of two embeddings; NaN where one of them is missing."""
    return float("nan") if a is None or b is None else float(np.linalg.norm(a - b))


def _of_original(original: Original) -> Embeddings:
    look = {} if original.look is None else {MAIN: original.look.embedding}
    return look | dict(original.embeddings)
