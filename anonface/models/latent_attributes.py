"""LatentAttributes: what styles of the mapping network tell of the people whom they draw, before anybody is drawn.

Of each person a few things can be read off the style, by linear regression: the six coordinates of an identity code
that are kept (apparent sex, age and skin tone), sex and age as a classifier sees them, the first principal components
of the landmarks (pose, the face's length and breadth), of the shapes of eyes and mouth, and of light and shade across
the face, what makes the picture (how bright, how hard, how colourful), and how much of glasses, a hat and a fringe
there is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anonface.models.identity import KEPT

STYLE = 512
WORN = ("glasses", "hat", "hair")  # of the parser's classes, the last where it hangs into the face
WIDTHS = {
    "kept": KEPT,
    "sex": 1,  # the logit of "male"
    "age": 1,  # years
    "mesh": 6,  # principal components, as those of the next two
    "expression": 6,
    "light": 4,
    "picture": 7,  # of the face: mean and spread of lightness, means and spreads of two hues, fine contrast
    "worn": len(WORN),
}
"""What is read, in order, and in how many columns."""
ATTRIBUTES = sum(WIDTHS.values())
SALIENT = 8


def columns(name: str) -> slice:
    """Where a reading of that name stands."""
    before = list(WIDTHS)[: list(WIDTHS).index(name)]
    start = sum(WIDTHS[other] for other in before)
    return slice(start, start + WIDTHS[name])


class LatentAttributes(nn.Module):
    """Styles [B, 512] -> what they tell, [B, ATTRIBUTES], as WIDTHS has it.

    Each is in its own units; ``usual`` and ``spread`` are mean and standard deviation among the network's people.
    ``marks`` are the directions in which recognizers see most change, in shares of what they see.
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
        self.register_buffer("slopes", torch.zeros(STYLE, ATTRIBUTES))  # in spreads
        self.register_buffer("moves", torch.zeros(ATTRIBUTES, STYLE))  # the likeliest change of a style by one spread
        self.register_buffer("usual", torch.zeros(ATTRIBUTES))
        self.register_buffer("spread", torch.ones(ATTRIBUTES))
        self.register_buffer("marks", torch.zeros(STYLE, SALIENT))

    def forward(self, styles: Tensor) -> Tensor:
        return self.deviations(styles) * self.spread + self.usual

    def deviations(self, styles: Tensor) -> Tensor:
        """The same in standard deviations from what is usual."""
        return (styles - self.mean) @ self.slopes

    def features(self, styles: Tensor) -> Tensor:
        """What tells people from the mean style, [..., 512], but for all that is read of them: what is left is theirs
        alone. Whoever gets it keeps pose, expression, light, sex, age and tone, and wears nothing new."""
        return styles - self.mean - self.deviations(styles) @ self.moves

    def salient_features(self, styles: Tensor) -> Tensor:
        """By which features recognizers most tell people apart, [B, SALIENT], the more the farther apart they lie."""
        return self.features(styles) @ self.marks
