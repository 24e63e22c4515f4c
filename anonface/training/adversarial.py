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


def adversarial_losses(
    discriminator: nn.Module,
    real: Tensor,
    made: Tensor,
    penalty: float = 0.0,
    weights: tuple[Tensor, Tensor] | None = None,
) -> AdversarialLosses:
    """The losses of both networks. No gradient of one network's loss reaches the other network's parameters.

    Args:
        discriminator: samples [B, ...] -> logits [B] or [B, 1, h, w], high for real ones.
        real, made: samples [B, ...] and [M, ...], for instance pictures in [-1, 1].
        penalty: weight of R1, half the squared gradient norm at the real samples; 0 disables it.
        weights: how much each logit of real and made samples counts, of the logits' shapes, with a mean of 1.
    """
    for_real, for_made = weights or (torch.ones(()), torch.ones(()))
    fixed = {name: value.detach() for name, value in discriminator.named_parameters()}
    fooling = for_made.to(made) * F.softplus(-functional_call(discriminator, fixed, (made,)).float())
    caught = for_made.to(made) * F.softplus(discriminator(made.detach()).float())
    real = real.detach().requires_grad_(penalty > 0)
    logits = discriminator(real).float()
    squared = logits.new_zeros(())
    if penalty:
        (slope,) = torch.autograd.grad(logits.sum(), real, create_graph=True)
        squared = slope.square().flatten(1).sum(1).mean()
    real_loss = (for_real.to(real) * F.softplus(-logits)).mean()
    return AdversarialLosses(fooling, caught, real_loss, penalty / 2 * squared)
