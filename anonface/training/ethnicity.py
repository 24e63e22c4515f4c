"""Fits the reading of apparent ethnicity: ridge regression of a public classifier's odds on codes of drawn faces.

The classifier is often wrong for a single face, but its errors average out over many.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anonface.models.ethnicity import Ethnicity
from anonface.training.latent_attributes import ridge

HELD_OUT = 4  # every fourth face is for validation
RIDGE = 1.0  # in units of the mean variance of a coordinate


def asian_odds(classes: Tensor) -> Tensor:
    """Probabilities of ``EthnicityClassifier`` [N, 5] -> log probability of "Asian" minus the mean log, [N]."""
    logs = classes.double().clamp_min(1e-3).log()
    return logs[:, 2] - logs.mean(1)


def fit_ethnicity(codes: Tensor, odds: Tensor) -> tuple[Ethnicity, float]:
    """The reading of odds [N] from codes [N, 448], and its correlation with the odds of held-out faces."""
    x, y = codes.double(), odds.double()
    learned = torch.arange(len(x)) % HELD_OUT != 0
    predicted = x[~learned] @ _direction(x[learned], y[learned])
    correlation = float(torch.corrcoef(torch.stack([predicted, y[~learned]]))[0, 1])
    direction = _direction(x, y)
    read = x @ direction
    ethnicity = Ethnicity()
    ethnicity.direction.copy_(direction / read.std())
    ethnicity.usual.copy_(read.mean() / read.std())
    return ethnicity, correlation


def _direction(x: Tensor, y: Tensor) -> Tensor:
    """The direction of x along which y changes, of any length."""
    off = x - x.mean(0)
    return ridge(off / off.square().mean().sqrt(), y - y.mean(), RIDGE)
