"""Latent attribute regression: attributes of a face, read from its generator style without rendering it.

Linear regression reads these attributes from a style: the six kept coordinates of the identity code (apparent sex, age
and skin tone); sex and age as a classifier sees them; principal components of the landmarks (pose and proportions), of
the expression and of the light across the face; statistics of the picture (brightness, contrast, colour); and the
amounts of glasses, hat and fringe.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anonface.models.identity import KEPT

STYLE = 512
WORN = ("glasses", "hat", "hair")  # classes of the face parser; hair counts only where it covers the face
WIDTHS = {
    "kept": KEPT,
    "sex": 1,  # the logit of "male"
    "age": 1,  # years
    "mesh": 6,  # principal components; the same for expression and light
    "expression": 6,
    "light": 4,
    "picture": 7,  # within the face: mean and spread of lightness, means and spreads of two hues, fine contrast
    "worn": len(WORN),
}
"""Attributes in order, with their numbers of columns."""
ATTRIBUTES = sum(WIDTHS.values())
SALIENT = 8  # columns of the buffer ``marks``


def columns(name: str) -> slice:
    """The columns of an attribute."""
    before = list(WIDTHS)[: list(WIDTHS).index(name)]
    start = sum(WIDTHS[other] for other in before)
    return slice(start, start + WIDTHS[name])


class LatentAttributes(nn.Module):
    """Styles [B, 512] -> attributes [B, ATTRIBUTES], each in its own unit.

    Buffers:
        mean: the mean style.
        slopes: attributes in standard deviations per unit of style.
        moves: the most likely change of a style for one standard deviation of an attribute.
        usual, spread: mean and standard deviation of the attributes over styles of the mapping network.
        marks: directions along which recognizers see the most change, scaled by their share of that change.
    """

    mean: Tensor
    slopes: Tensor
    moves: Tensor
    usual: Tensor
    spread: Tensor
    marks: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(STYLE))
        self.register_buffer("slopes", torch.zeros(STYLE, ATTRIBUTES))
        self.register_buffer("moves", torch.zeros(ATTRIBUTES, STYLE))
        self.register_buffer("usual", torch.zeros(ATTRIBUTES))
        self.register_buffer("spread", torch.ones(ATTRIBUTES))
        self.register_buffer("marks", torch.zeros(STYLE, SALIENT))

    def forward(self, styles: Tensor) -> Tensor:
        return self.deviations(styles) * self.spread + self.usual

    def deviations(self, styles: Tensor) -> Tensor:
        """Attributes in standard deviations from their mean."""
        return (styles - self.mean) @ self.slopes

    def features(self, styles: Tensor) -> Tensor:
        """Identity features [..., 512]: the offset from the mean style, without the part that the attributes explain.

        Adding them to another style changes the person. Pose, expression, light, sex, age and skin tone stay, and so do
        glasses, hat and fringe.
        """
        return styles - self.mean - self.deviations(styles) @ self.moves

    def salient_features(self, styles: Tensor) -> Tensor:
        """The identity features by which recognizers distinguish people most, [B, SALIENT]."""
        return self.features(styles) @ self.marks
