"""Published classifiers of apparent sex and age, which anonymization should keep.

``faceres`` labelled training data, and synthetic identities are chosen by it, so its rows flatter. Of
``gear`` only the sex is read. No training used it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anonface import weights
from anonface.models.attribute_classifiers import SexAgeClassifier, SexClassifier


@dataclass(frozen=True)
class Impression:
    """Apparent sex and age of one face; ``age`` in years, None from a classifier that does not read it."""

    male: bool
    age: float | None


class FaceRes:
    """Sex and age of an FFHQ-aligned face, uint8 [256, 256, 3].

    Raises:
        WeightsError: its weights cannot be had.
    """

    name = "faceres"
    seen_by_loss = True  # or by training data

    def __init__(self) -> None:
        self._apparent = SexAgeClassifier(weights.graph(self.name))

    def read(self, crop: NDArray[np.uint8]) -> Impression:
        sex, age = self._apparent(_tensor(crop))[0].tolist()
        return Impression(sex > 0, age)


class Gear:
    """Sex alone; its age classes are wider than a decade.

    Raises:
        WeightsError: its weights cannot be had.
    """

    name = "gear"
    seen_by_loss = False

    def __init__(self) -> None:
        self._apparent = SexClassifier(weights.graph(self.name))

    def read(self, crop: NDArray[np.uint8]) -> Impression:
        return Impression(float(self._apparent(_tensor(crop))) > 0.5, None)


AttributeClassifier = FaceRes | Gear


def _tensor(crop: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 127.5 - 1
