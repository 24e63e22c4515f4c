"""Census: what styles of the mapping network tell of the people whom they draw, before anybody is drawn.

Of each person a few things can be read off the style, by linear regression: the six coordinates of an identity code
that are kept (apparent sex, age and skin tone), sex and age as a classifier sees them, the first principal components
of the landmarks (pose, mouth, the face's length and breadth), and how much of glasses, a hat and a fringe there is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anonface.models.identity import KEPT

STYLE = 512
MESH_AXES = 6  # principal components of landmarks that are read
SEX, AGE = KEPT, KEPT + 1  # columns: the logit of "male", and years
WORN = ("glasses", "hat", "hair")  # of the parser's classes, the last where it hangs into the face; the last columns
READINGS = KEPT + 2 + MESH_AXES + len(WORN)


class Census(nn.Module):
    """Styles [B, 512] -> what they tell, [B, READINGS]: in order kept coordinates, sex, age, landmarks, what is worn.

    Each is in its own units; ``usual`` and ``spread`` are mean and standard deviation among the network's people.
    """

    mean: Tensor
    slopes: Tensor
    moves: Tensor
    usual: Tensor
    spread: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(STYLE))
        self.register_buffer("slopes", torch.zeros(STYLE, READINGS))  # in spreads
        self.register_buffer("moves", torch.zeros(READINGS, STYLE))  # the likeliest change of a style by one spread
        self.register_buffer("usual", torch.zeros(READINGS))
        self.register_buffer("spread", torch.ones(READINGS))

    def forward(self, styles: Tensor) -> Tensor:
        return self.deviations(styles) * self.spread + self.usual

    def deviations(self, styles: Tensor) -> Tensor:
        """The same in standard deviations from what is usual."""
        return (styles - self.mean) @ self.slopes

    def features(self, styles: Tensor) -> Tensor:
        """What tells people from the mean style, [B, 512], but for all that is read of them: what is left is theirs
        alone, and whoever gets it keeps pose, mouth, sex, age and tone, and wears nothing new."""
        return styles - self.mean - self.deviations(styles) @ self.moves
