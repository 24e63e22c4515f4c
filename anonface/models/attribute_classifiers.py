"""What public classifiers say of a face: apparent sex, age and ethnicity, as faces are read, not as people are.

Both read FFHQ-aligned faces [B, 3, R, R] in [-1, 1], each in the crop, size and range that it was made for.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.conversion import GraphFile
from anonface.models.graph import Graph


class SexAgeClassifier(nn.Module):
    """``faceres``: sex (the logit of "male") and age (years)."""

    SIDE = 224  # px, pixels in 0..255

    def __init__(self, classifier: GraphFile) -> None:
        super().__init__()
        self._network = Graph(classifier, *classifier.outputs).eval()

    def forward(self, faces: Tensor) -> Tensor:
        """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> [B, 2]."""
        view = (F.interpolate(faces, (self.SIDE, self.SIDE), mode="bilinear", antialias=True) + 1) * 127.5
        sex, share = self._network.every(view)  # the latter of each year from 0
        age = share @ torch.arange(share.shape[1], dtype=share.dtype, device=share.device)
        return torch.stack([torch.logit(sex[:, 0], eps=1e-3), age], dim=1)


class _Gear:
    """``gear``, of which one output is read. It looks closer, at the face alone."""

    SIDE = 198  # px, pixels in 0..1
    BOX = (80, 58, 140)  # top, left, side in a 256-px FFHQ crop: where it errs least

    def __init__(self, classifier: GraphFile, output: int) -> None:
        self._network = Graph(classifier, classifier.outputs[output]).eval()

    def _said(self, faces: Tensor) -> Tensor:
        """Of FFHQ-aligned faces [B, 3, R, R] in [-1, 1]."""
        top, left, side = (round(v * faces.shape[-1] / 256) for v in self.BOX)
        face = faces[:, :, top : top + side, left : left + side]
        view = (F.interpolate(face, (self.SIDE, self.SIDE), mode="bilinear", antialias=True) + 1) / 2
        return self._network(view)


class SexClassifier(_Gear):
    """The probability of "male"."""

    def __init__(self, classifier: GraphFile) -> None:
        super().__init__(classifier, 1)

    @torch.inference_mode()
    def __call__(self, faces: Tensor) -> Tensor:
        """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> [B]."""
        return self._said(faces)[:, 0]


class EthnicityClassifier(_Gear):
    """Probabilities of "white", "black", "Asian", "Indian" and "other"; of one face they are often wrong."""

    def __init__(self, classifier: GraphFile) -> None:
        super().__init__(classifier, 2)

    @torch.inference_mode()
    def __call__(self, faces: Tensor) -> Tensor:
        """FFHQ-aligned faces [B, 3, R, R] in [-1, 1] -> [B, 5]."""
        return self._said(faces)
