"""Face matching by the identity encoder E_ID: which faces belong to people who are left as they are."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anonface import weights
from anonface.models.identity import IdentityEncoder

Crop = NDArray[np.uint8]

SIDE = 256  # px, of the crops
SAME_PERSON = 0.5
"""Least cosine of two codes that are taken for one person's; docs/batch.md says what it was chosen by."""


class KnownPeople:
    """Codes of known people, against which faces are matched.

    Args:
        crops: aligned faces, uint8 [SIDE, SIDE, 3] each.
        device: where the encoder runs.

    Raises:
        WeightsError: the encoder's weights cannot be had.
    """

    def __init__(self, crops: list[Crop], device: torch.device | str = "cpu") -> None:
        self._matcher = Matcher(device)
        self.codes = torch.cat([self._matcher.code(crop) for crop in crops])

    def matches(self, crop: Crop) -> bool:
        """Whether an aligned face, uint8 [SIDE, SIDE, 3], shows one of them."""
        return bool((self.codes @ self._matcher.code(crop)[0]).max() >= SAME_PERSON)


class Matcher:
    """The loaded encoder.

    Raises:
        WeightsError: its weights cannot be had.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.encoder = IdentityEncoder()
        weights.load(self.encoder, "identity")
        self.encoder.requires_grad_(False).eval().to(self.device)

    def code(self, crop: Crop) -> Tensor:
        """The unit code [1, 448] of an aligned face, uint8 [SIDE, SIDE, 3]."""
        face = torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 127.5 - 1
        with torch.inference_mode():
            return self.encoder(face.to(self.device)).cpu()
