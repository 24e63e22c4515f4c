"""Adversarial losses of a generator, of pictures or of latents, and a discriminator.

They are the non-saturating loss with the R1 gradient penalty (Mescheder et al. 2018), and the hinge loss of a projected
discriminator (Sauer et al. 2021).
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
) -> AdversarialLosses:
    """The losses of both networks. No gradient of one network's loss reaches the other network's parameters.

    Args:
        discriminator: samples [B, ...] -> logits [B] or [B, 1, h, w], high for real ones.
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


def hinge_losses(
    discriminator: nn.Module, real: list[Tensor], made: list[Tensor], masks: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A projected discriminator's hinge losses: fooling it, what is generated, and what is real, each a mean.

    No gradient of one network's loss reaches the other network's parameters.

    Args:
        discriminator: feature maps -> logits [B, 1, h, w] of each.
        real, made: feature maps of pictures, finest first.
        masks: [B, 1, S, S]; a logit counts as much as is generated of what it sees.
    """
    fixed = {name: value.detach() for name, value in discriminator.named_parameters()}
    fooling = functional_call(discriminator, fixed, (made,))
    caught, true = discriminator([x.detach() for x in made]), discriminator([x.detach() for x in real])
    shares = [F.adaptive_avg_pool2d(masks, logits.shape[-1]) for logits in true]
    shares = [share / share.mean().clamp_min(1e-3) for share in shares]

    def mean(maps: list[Tensor]) -> Tensor:
        return torch.stack([(share * logits).mean() for share, logits in zip(shares, maps, strict=True)]).mean()

    return mean([-x for x in fooling]), mean([F.relu(1 + x) for x in caught]), mean([F.relu(1 - x) for x in true])
