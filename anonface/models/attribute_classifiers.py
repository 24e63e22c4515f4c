"""Public classifiers of apparent sex, age and ethnicity. They say how a face looks, not who the person is.

All read FFHQ-aligned faces [B, 3, R, R] in [-1, 1]. Each makes the crop, size and range that it was trained with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.models.graph import Graph
from anonface.weights.conversion import GraphFile


class SexAgeClassifier(nn.Module):
    """``faceres``: sex (the logit of "male") and age (years)."""

    SIDE = 224  # px, pixels in 0..255

    def __init__(self, classifier: GraphFile) -> None:
        super().__init__()
        self._network = Graph(classifier, *classifier.outputs).eval()

    def forward(self, faces: Tensor) -> Tensor:
        """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> [B, 2]."""
        view = (F.interpolate(faces, (self.SIDE, self.SIDE), mode="bilinear", antialias=True) + 1) * 127.5
        sex, years = self._network.all_outputs(view)  # ``years``: the probability of each age, from 0 on
        age = years @ torch.arange(years.shape[1], dtype=years.dtype, device=years.device)
        return torch.stack([torch.logit(sex[:, 0], eps=1e-3), age], dim=1)


class _GearClassifier:
    """One output of ``gear``, which is given a tighter crop of the face."""

    SIDE = 198  # px, pixels in 0..1
    BOX = (80, 58, 140)  # top, left, side in a 256-px FFHQ crop: the box with the fewest errors

    def __init__(self, classifier: GraphFile, output: int) -> None:
        self._network = Graph(classifier, classifier.outputs[output]).eval()

    def _probabilities(self, faces: Tensor) -> Tensor:
        """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> [B, classes]."""
        top, left, side = (round(v * faces.shape[-1] / 256) for v in self.BOX)
        face = faces[:, :, top : top + side, left : left + side]
        view = (F.interpolate(face, (self.SIDE, self.SIDE), mode="bilinear", antialias=True) + 1) / 2
        return self._network(view)


class SexClassifier(_GearClassifier):
    """The probability of "male"."""

    def __init__(self, classifier: GraphFile) -> None:
        super().__init__(classifier, 1)

    @torch.inference_mode()
    def __call__(self, faces: Tensor) -> Tensor:
        """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> [B]."""
        return self._probabilities(faces)[:, 0]
