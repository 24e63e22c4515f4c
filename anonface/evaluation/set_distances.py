"""FID and KID: how far a set of made faces is from a set of real ones.

Both are defined on features of Inception, whose weights no package registry carries. MobileNetV2's are used instead,
under a name that says so: the figures compare rows of one report, not with published ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from anonface import weights
from anonface.models.attribute_encoder import MobileNetV2Features

Pixels = NDArray[np.uint8]
Features = NDArray[np.float64]

LEAST = 8  # faces; the distances of fewer mean nothing


class MobileNet:
    """Features of a face, by MobileNetV2 trained on ImageNet.

    Raises:
        WeightsError: its weights are not available.
    """

    name = "MobileNetV2 features, seen by a training loss"

    def __init__(self) -> None:
        self._network = MobileNetV2Features()
        state = weights.tensors("mobilenet-v2")
        weights.fit(self._network, {name: state[name] for name in self._network.state_dict()}, source="mobilenet-v2")
        self._network.requires_grad_(False).eval()

    @torch.inference_mode()
    def __call__(self, face: Pixels) -> Features:
        """Features [320] of an aligned face, uint8 [256, 256, 3]: means over the picture, at stride 32."""
        picture = torch.from_numpy(face).permute(2, 0, 1)[None].float() / 127.5 - 1
        return np.asarray(self._network(picture)[2].mean((2, 3))[0], np.float64)


def frechet(real: Sequence[Features], made: Sequence[Features]) -> float:
    """FID (Heusel et al. 2017, equation 6) of two sets of features [n, d].

    ``|m1 - m2|^2 + Tr(C1 + C2 - 2 (C1 C2)^(1/2))`` of the means and covariances. It is too large for sets that are
    small against d, so it compares sets of one size alone.
    """
    a, b = np.stack(real), np.stack(made)
    c1, c2 = np.atleast_2d(np.cov(a, rowvar=False)), np.atleast_2d(np.cov(b, rowvar=False))
    values, axes = np.linalg.eigh(c1)
    root = (axes * np.sqrt(values.clip(0))) @ axes.T
    both = np.linalg.eigvalsh(root @ c2 @ root)  # C1^(1/2) C2 C1^(1/2) has the eigenvalues of C1 C2
    apart = ((a.mean(0) - b.mean(0)) ** 2).sum()
    return float(apart + np.trace(c1) + np.trace(c2) - 2 * np.sqrt(both.clip(0)).sum())


def kernel(real: Sequence[Features], made: Sequence[Features]) -> float:
    """KID (Bińkowski et al. 2018, section 4.1) of two sets of features [n, d]: unbiased, so about 0 for equal laws."""
    a, b = np.stack(real), np.stack(made)

    def similarity(x: Features, y: Features) -> Features:
        return np.asarray((x @ y.T / x.shape[1] + 1) ** 3)

    def within(x: Features) -> float:
        own = similarity(x, x)
        return float((own.sum() - np.trace(own)) / (len(x) * (len(x) - 1)))

    return float(within(a) + within(b) - 2 * similarity(a, b).mean())
