"""A network that learns the way back from photos of other people."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.evaluation.audit.finding import ALLOWED_STANDING, CHANCE, Attack, Finding, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject
from anonface.evaluation.judges import Original
from anonface.evaluation.metrics import NOTHING, likeness

Floats = NDArray[np.float64]

MEASURE = "person told from strangers after learning the way back"
FEWEST = 8  # pairs
HIDDEN, STEPS, RATE, DECAY = 128, 300, 3e-3, 0.1


def _run(subject: Subject) -> list[Finding]:
    attacked = set(subject.people)
    pairs = [(photo, seen) for photo, seen in subject.practice if photo.identity not in attacked]
    if len(pairs) < FEWEST:
        why = f"{len(pairs)} pairs of other people to learn from"
        return [Finding(MEASURE, NOTHING, CHANCE, ALLOWED_STANDING, None, why)]
    given = np.stack([features(seen) for _, seen in pairs])
    wanted = np.stack([original_features(subject, photo) for photo, _ in pairs])
    way_back = _learn(given, wanted, subject.seed)
    standings, first = [], 0
    for number, (partner, seen) in enumerate(zip(subject.partners, subject.hidden, strict=True)):
        if seen is None or seen.code is None or seen.look is None:
            standings.append(np.nan)
            continue
        guess = way_back(features(seen)[None])[0]
        faces = (partner, *subject.strangers(number))
        scores = [likeness(guess, original_features(subject, face)) for face in faces]
        standings.append(standing(scores[0], scores[1:]))
        first += scores[0] > max(scores[1:], default=np.inf)
    detail = f"{len(pairs)} pairs; the person came first in {first} of {len(standings)}"
    detail = "; ".join(filter(None, [detail, subject.alone]))
    return [told_apart(MEASURE, {"": standings}, subject.people, detail=detail)]


def features(seen: Seen) -> Floats:
    """What both recognizers say of a face."""
    assert seen.code is not None and seen.look is not None
    return np.concatenate([seen.code, seen.look.embedding])


def original_features(subject: Subject, original: Original) -> Floats:
    assert original.look is not None
    return np.concatenate([subject.code(original), original.look.embedding])


class _WayBack(nn.Module):
    """A linear map and a small network beside it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.straight = nn.Linear(size, size)
        self.bent = nn.Sequential(nn.Linear(size, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, size))

    def forward(self, x: Tensor) -> Tensor:
        return self.straight(x) + self.bent(x)


class _Learned:
    """A trained way back, with the scales of what it was trained on."""

    def __init__(self, network: _WayBack, given: Floats, wanted: Floats) -> None:
        self.network = network
        self.shift, self.scale = given.mean(0), given.std(0) + 1e-6
        self.target_shift, self.target_scale = wanted.mean(0), wanted.std(0) + 1e-6

    def inputs(self, x: Floats) -> Tensor:
        return torch.from_numpy((x - self.shift) / self.scale).float()

    def __call__(self, x: Floats) -> Floats:
        with torch.inference_mode():
            return self.network(self.inputs(x)).double().numpy() * self.target_scale + self.target_shift


def _learn(given: Floats, wanted: Floats, seed: int) -> _Learned:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _WayBack(given.shape[1])
    learned = _Learned(network, given, wanted)
    x, y = learned.inputs(given), torch.from_numpy((wanted - learned.target_shift) / learned.target_scale).float()
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    with torch.inference_mode(False), torch.enable_grad():
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(network(x), y).backward()
            optimizer.step()
    return learned


ATTACK = Attack(
    "inversion",
    shows="anonymized faces say who they were to whoever has seen enough examples, made without the key",
    silent="larger networks, more examples, pictures instead of embeddings: all of them can only do better",
    published="11 of 15 methods reversed in part (Fantomas, Todt et al.); SignFlip's 0.559 % TAR at FAR 0.1 % is "
    "without this attack",
    run=_run,
)
