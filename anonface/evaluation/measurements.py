"""What is measured of one photo, and the name of each measurement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.attribute_classifiers import AttributeClassifier
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.report import Samples

PLACED = "anonymized, looked at where the face was"
ANONYMIZED, RANDOM, ONE_BIT, RIGHT = "anonymized", "wrong key, random", "wrong key, one bit", "right key, from pixels"
TWO_KEYS, TWO_PEOPLE = "two keys", "two people under their first keys"
NO_IDENTITY, NO_CODE = "recovery without an identity code", "recovery with the whole code at zero"
YEARS = 10  # by which the apparent age may be off
LANDMARKS, POINTS = "landmark shift, 68 points", "landmark shift, 5 points of MTCNN"
TURN, EYES, MOUTH = "head turned", "eyes: change of openness", "mouth: change of openness"
GAZE, GAZE_ANGLE = "gaze: shift of the irises", "gaze turned"
EXPRESSION, EXPRESSION_DISTANCE = "expression kept", "expression: distance of the probabilities"
TONE = "skin tone: difference of colour"
MAIN = ""
"""The name here of ``Judges.recognizer``: its measurements are named without it."""


@dataclass
class Measured:
    """What was measured of one photo.

    Attributes:
        file: its name.
        samples: (key number, value) by name of the measurement; NaN where there was no face to measure.
        refused: how often the engine found no face.
        hidden: the recognizer's embedding [d] of the face anonymized under the first key; never written anywhere.
        features: features [d] of the face, for FID and KID, by name of the result; never written anywhere.
    """

    file: str
    samples: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    refused: int = 0
    hidden: NDArray[np.float64] | None = None
    features: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)

    def add(self, name: str, key: int, value: float) -> None:
        self.samples.setdefault(name, []).append((key, float(value)))


def joined(photos: Iterable[Measured]) -> Samples:
    """Measurements of many photos by name, as (file, key number, value)."""
    samples: dict[str, list[tuple[str, int, float]]] = {}
    for photo in photos:
        for name, rows in photo.samples.items():
            samples.setdefault(name, []).extend((photo.file, key, value) for key, value in rows)
    return samples


def by(name: str, recognizer: str) -> str:
    """A kind of distance as one recognizer measures it."""
    return f"{name}, by {recognizer}" if recognizer else name


def others(name: str) -> str:
    """A result's distances to the other photos of the person."""
    return f"{name}, other photos"


def rank_one(name: str) -> str:
    """Whether the nearest other photo to a result is of the person."""
    return f"{name}: nearest other photo is of the person (rank 1)"


def after(degradation: str) -> str:
    """Recovery after that degradation."""
    return f"right key, after {DEGRADATIONS[degradation].title}"


def in_the_face(measure: str, name: str) -> str:
    return f"{name}: {measure.upper()} in the face"


def lpips(name: str) -> str:
    return f"{name}: LPIPS, AlexNet"


def box_shift(detector: str) -> str:
    return f"box shift, {detector}"


def sex_kept(classifier: AttributeClassifier) -> str:
    return f"apparent sex kept, by {_marked(classifier)}"


def age_kept(classifier: AttributeClassifier) -> str:
    return f"apparent age within {YEARS} years, by {_marked(classifier)}"


def _marked(classifier: AttributeClassifier) -> str:
    return f"{classifier.name} ({'seen' if classifier.seen_by_loss else 'not seen'} by a training loss)"
