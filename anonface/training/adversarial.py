"""Adversarial losses of a generator, of pictures or of latents, and a discriminator.

They are the non-saturating loss and the R1 gradient penalty (Mescheder et al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call


@dataclass(frozen=True)
class AdversarialLosses:
    """Losses of one step.

    Attributes:
        fooling: the generator's loss for each generated sample, [M].
        caught: the discriminator's loss for each generated sample, [M].
        real: the discriminator's mean loss for the real samples.
        slope: the R1 penalty.
    """

    fooling: Tensor
    caught: Tensor
    real: Tensor
    slope: Tensor


def adversarial_losses(discriminator: nn.Module, real: Tensor, made: Tensor, penalty: float = 0.0) -> AdversarialLosses:
    """The losses of both networks. No gradient of one network's loss reaches the other network's parameters.

    Args:
        discriminator: samples [B, ...] -> logits [B], high for real ones.
        real, made: samples [B, ...] and [M, ...], for instance pictures in [-1, 1].
        penalty: weight of R1, half the squared gradient norm at the real samples; 0 disables it.
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
