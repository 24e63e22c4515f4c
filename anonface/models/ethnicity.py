"""What an identity code tells of where somebody's family seems to be from, as faces are read, not as people are.

One number, because one thing goes wrong: to the networks that look, the faces farthest from most photos' are East Asian
ones. Who only has to be far from the photo becomes East Asian under one key and the next, unlike the rest of the
picture, and hardly two people: recognizers that learned from other faces take such people for one most often.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anonface.models.identity import IdentityParams


class Ethnicity(nn.Module):
    """Unit identity codes [B, 448] -> how East Asian people look, [B], in standard deviations of such readings from
    what is usual among the faces that the generator draws."""

    direction: Tensor
    usual: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("direction", torch.zeros(IdentityParams().code))
        self.register_buffer("usual", torch.zeros(1))

    def forward(self, codes: Tensor) -> Tensor:
        return codes @ self.direction - self.usual
