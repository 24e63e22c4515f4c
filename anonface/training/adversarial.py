"""The game of a maker, of pictures or of latents, and a discriminator.

With the non-saturating loss and R1 (Mescheder et al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call


@dataclass(frozen=True)
class AdversarialLosses:
    """Losses of one step: of each made picture the maker's and the discriminator's, the real ones' and R1."""

    fooling: Tensor
    caught: Tensor
    real: Tensor
    slope: Tensor


def adversarial_losses(discriminator: nn.Module, real: Tensor, made: Tensor, penalty: float = 0.0) -> AdversarialLosses:
    """Both sides' losses, each blind to the other's parameters.

    Args:
        discriminator: [B, ...] -> [B], how real each one is.
        real, made: [B, ...] and [M, ...], pictures in [-1, 1] for instance.
        penalty: weight of R1, half the squared slope at the real ones; 0 leaves it out.
    """
    fixed = {name: value.detach() for name, value in discriminator.named_parameters()}
    fooling = F.softplus(-functional_call(discriminator, fixed, (made,)).float())
    caught = F.softplus(discriminator(made.detach()).float())
    real = real.detach().requires_grad_(penalty > 0)
    logits = discriminator(real).float()
    squared = logits.new_zeros(())
    if penalty:
        (slope,) = torch.autograd.grad(logits.sum(), real, create_graph=True)
        squared = slope.square().flatten(1).sum(1).mean()
    return AdversarialLosses(fooling, caught, F.softplus(-logits).mean(), penalty / 2 * squared)
