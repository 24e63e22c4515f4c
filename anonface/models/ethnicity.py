"""Linear reading of apparent ethnicity from an identity code: how a face looks, not who the person is.

One number is enough, because one error has to be prevented. To the recognizers the faces most distant from an average
photo are East Asian. A choice by distance alone would make most people East Asian under every key. Such faces do not
fit the rest of the photo. Recognizers trained on other faces also confuse them with each other most often.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anonface.models.identity import IdentityParams


class Ethnicity(nn.Module):
    """Unit identity codes [B, 448] -> how East Asian the faces look, [B].

    The unit is the standard deviation of this reading over faces of the generator, and 0 is their mean.
    """

    direction: Tensor
    usual: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("direction", torch.zeros(IdentityParams().code))
        self.register_buffer("usual", torch.zeros(1))

    def forward(self, codes: Tensor) -> Tensor:
        return codes @ self.direction - self.usual
