"""How like a person a result is, by recognizers beside dlib's; see :mod:`anonface.evaluation.embedders`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.judges import Aligned, Judges, Original

Embeddings = Mapping[str, NDArray[np.float64]]


class Measurements(Protocol):
    """What takes one distance: :class:`anonface.evaluation.trials.Measured`."""

    def add(self, name: str, key: int, value: float) -> None: ...


def by(name: str, recognizer: str) -> str:
    """The name of a kind of distance as one recognizer measures it."""
    return f"{name}, by {recognizer}"


class Similarity:
    """The distances of one photo's results, by every recognizer that could embed the original.

    Args:
        gallery: photos whose people are known, this one among them or not.
        measured: takes the distances; NaN where a result shows no face with clear landmarks.
    """

    def __init__(self, judges: Judges, original: Original, gallery: Sequence[Original], measured: Measurements) -> None:
        self._judges, self._original, self._measured = judges, original, measured
        self._others: list[Embeddings] = [
            other.embeddings for other in gallery if other.identity == original.identity and other.file != original.file
        ]

    def of_original(self, others: str) -> None:
        """The original against the person's other photos, called ``others``: the scale of the rows below."""
        self._against_others(others, 0, self._original.embeddings)

    def of(self, aligned: Aligned | None, name: str, number: int, others: str | None = None) -> Embeddings:
        """A result's face under key ``number`` against the original and, where that has a name, the person's other
        photos.

        Returns:
            Its embeddings; none where no face was found.
        """
        original = self._original
        if not original.embeddings:
            return {}
        seen = self._judges.embeddings(aligned)
        for recognizer, own in original.embeddings.items():
            self._measured.add(by(name, recognizer), number, _distance(own, seen.get(recognizer)))
        if others:
            self._against_others(others, number, seen)
        return seen

    def between(self, a: Embeddings, b: Embeddings, name: str, number: int) -> None:
        """One result against another."""
        for recognizer in self._original.embeddings:
            self._measured.add(by(name, recognizer), number, _distance(a.get(recognizer), b.get(recognizer)))

    def _against_others(self, name: str, number: int, seen: Embeddings) -> None:
        for recognizer in self._original.embeddings:
            for other in self._others:
                if recognizer in other:
                    distance = _distance(other[recognizer], seen.get(recognizer))
                    self._measured.add(by(name, recognizer), number, distance)


def _distance(a: NDArray[np.float64] | None, b: NDArray[np.float64] | None) -> float:
    return float("nan") if a is None or b is None else float(np.linalg.norm(a - b))
