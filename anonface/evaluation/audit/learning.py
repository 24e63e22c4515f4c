"""Attackers who learn from examples, which they make without the key: a way back, and how suspects look anonymized."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.errors import count
from anonface.evaluation.audit.finding import Attack, Finding, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject
from anonface.evaluation.judges import Original
from anonface.evaluation.metrics import likeness

Floats = NDArray[np.float64]

WAY_BACK = "person told from strangers after learning the way back"
FEWEST = 8  # pairs
HIDDEN, STEPS, RATE, DECAY = 128, 300, 3e-3, 0.1
ADAPTED = "person told from suspects by an adapted recognizer"
SHRINK = 0.5  # weight of a round covariance


def _inversion(subject: Subject) -> list[Finding]:
    attacked = set(subject.people)
    pairs = [(photo, seen) for photo, seen in subject.practice if photo.identity not in attacked]
    if len(pairs) < FEWEST:
        why = f"{count(len(pairs), 'pair')} of other people to learn from"
        return [told_apart(WAY_BACK, {}, subject.people, detail=why)]
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
    detail = f"{count(len(pairs), 'pair')}; the person came first in {first} of {len(standings)}"
    detail = "; ".join(filter(None, [detail, subject.alone]))
    return [told_apart(WAY_BACK, {"": standings}, subject.people, detail=detail)]


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


def _parrot(subject: Subject) -> list[Finding]:
    """A linear discriminant head (Fisher's, with a shrunk covariance) on both recognizers' embeddings."""
    examples = [(photo.identity, features(seen)) for photo, seen in subject.practice]
    known = {person for person, count in Counter(person for person, _ in examples).items() if count > 1}
    examples = [(person, x) for person, x in examples if person in known]
    if len(known) < 2 or not known & set(subject.people):
        why = "nobody under attack has other photos to learn from"
        return [told_apart(ADAPTED, {}, subject.people, detail=why)]
    means, whitening = _head(examples)
    standings, first = [], 0
    for number, seen in enumerate(subject.hidden):
        person = subject.people[number]
        if person not in means or seen is None or seen.code is None or seen.look is None:
            standings.append(np.nan)
            continue
        suspects = [other for other in means if other != person and other in _same_kind(subject, number)]
        x = features(seen) @ whitening
        scores = [-float(np.linalg.norm(x - means[other] @ whitening)) for other in (person, *suspects)]
        standings.append(standing(scores[0], scores[1:]))
        first += scores[0] > max(scores[1:], default=np.inf)
    tried = int((~np.isnan(standings)).sum())
    told = f"{count(len(examples), 'example')} of {count(len(means), 'suspect')}"
    detail = f"{told}; the person came first in {first} of {tried}"
    return [told_apart(ADAPTED, {"": standings}, subject.people, detail=detail)]


def _same_kind(subject: Subject, number: int) -> set[str]:
    """Suspects of the target's apparent sex, which is kept on purpose."""
    photos = [*subject.gallery.kin, *subject.gallery.practice]
    return {photo.identity for photo in subject.alike(subject.targets[number], photos)}


def _head(examples: list[tuple[str, Floats]]) -> tuple[dict[str, Floats], Floats]:
    """The mean of each person, and the map after which a person's examples spread alike in all directions."""
    people = {person: np.stack([x for other, x in examples if other == person]) for person, _ in examples}
    means = {person: rows.mean(0) for person, rows in people.items()}
    within = np.concatenate([rows - means[person] for person, rows in people.items()])
    covariance = within.T @ within / len(within)
    round_one = np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    values, axes = np.linalg.eigh((1 - SHRINK) * covariance + SHRINK * round_one + 1e-12 * np.eye(len(covariance)))
    return means, axes / np.sqrt(values)


INVERSION = Attack(
    "inversion",
    shows="anonymized faces say who they were to whoever has seen enough examples, made without the key",
    silent="larger networks, more examples, pictures instead of embeddings: all of them can only do better",
    published="11 of 15 methods reversed in part (Fantomas, Todt et al.); SignFlip's 0.559 % TAR at FAR 0.1 % is "
    "without this attack",
    run=_inversion,
)
PARROT = Attack(
    "parrot",
    shows="suspects can be recognised by how they look once anonymized, under any key",
    silent="networks trained as a whole on many anonymized photos; people who are not on the list",
    published="none; the papers test recognizers as they are",
    run=_parrot,
)
