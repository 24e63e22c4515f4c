"""What a code tells of apparent ethnicity, fitted: drawn faces, a public classifier's classes, ridge regression.

The classifier errs often, on one face; over many its errors are nobody's direction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anonface.models.ethnicity import Ethnicity
from anonface.training.latent_attributes import ridge

HELD_OUT = 4  # one face in so many tells how well codes tell
RIDGE = 1.0  # in mean variances of a coordinate


def asian_odds(classes: Tensor) -> Tensor:
    """Of probabilities [N, 5], ``EthnicityClassifier``'s, the log of "Asian" against the mean of all logs: [N]."""
    logs = classes.double().clamp_min(1e-3).log()
    return logs[:, 2] - logs.mean(1)


def fit_ethnicity(codes: Tensor, odds: Tensor) -> tuple[Ethnicity, float]:
    """What codes [N, 448] tell of odds [N], and at what correlation they foretell those of faces held out."""
    x, y = codes.double(), odds.double()
    learned = torch.arange(len(x)) % HELD_OUT != 0
    foretold = x[~learned] @ _direction(x[learned], y[learned])
    told = float(torch.corrcoef(torch.stack([foretold, y[~learned]]))[0, 1])
    direction = _direction(x, y)
    read = x @ direction
    ethnicity = Ethnicity()
    ethnicity.direction.copy_(direction / read.std())
    ethnicity.usual.copy_(read.mean() / read.std())
    return ethnicity, told


def _direction(x: Tensor, y: Tensor) -> Tensor:
    """Along which y changes, of any length."""
    off = x - x.mean(0)
    return ridge(off / off.square().mean().sqrt(), y - y.mean(), RIDGE)
