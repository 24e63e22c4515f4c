"""Judges of what must not change: apparent sex and age, by published classifiers.

One of them labelled the faces that training learned from, and new faces are cast and refined by it, so its rows
flatter. Of the other what it says of sex is read, which took no part in either: training asked it for ethnicity alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anonface import weights
from anonface.models.apparent import Apparent, ApparentSex


@dataclass(frozen=True)
class Impression:
    """What a classifier reads in one face; ``age`` in years, None from one that does not read it."""

    male: bool
    age: float | None


class AttributeClassifier(Protocol):
    """Reads aligned faces; ``seen_by_loss`` says whether any training loss, or what it learned from, used it."""

    @property
    def name(self) -> str: ...

    @property
    def seen_by_loss(self) -> bool: ...

    @property
    def reads_age(self) -> bool: ...

    def read(self, crop: NDArray[np.uint8]) -> Impression:
        """An FFHQ-aligned face, uint8 [256, 256, 3]."""
        ...


class FaceRes:
    """Sex and age.

    Raises:
        WeightsError: its weights cannot be had.
    """

    name: ClassVar[str] = "faceres"
    seen_by_loss: ClassVar[bool] = True
    reads_age: ClassVar[bool] = True

    def __init__(self) -> None:
        self._apparent = Apparent(weights.graph("faceres"))

    def read(self, crop: NDArray[np.uint8]) -> Impression:
        sex, age = self._apparent(_tensor(crop))[0].tolist()
        return Impression(sex > 0, age)


class Gear:
    """Sex alone: its ages are classes too wide for a decade.

    Raises:
        WeightsError: its weights cannot be had.
    """

    name: ClassVar[str] = "gear"
    seen_by_loss: ClassVar[bool] = False
    reads_age: ClassVar[bool] = False

    def __init__(self) -> None:
        self._apparent = ApparentSex(weights.graph("gear"))

    def read(self, crop: NDArray[np.uint8]) -> Impression:
        return Impression(float(self._apparent(_tensor(crop))) > 0.5, None)


CLASSIFIERS: tuple[type[FaceRes] | type[Gear], ...] = (FaceRes, Gear)


def _tensor(crop: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 127.5 - 1
