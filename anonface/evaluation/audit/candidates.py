"""A suspect's list: N photos of which one was anonymized, alike but for who is in the face. Which one was it?

All candidates are made in the same way, faces of nobody drawn into the photo, and the one that is anonymized is drawn
among them. So whoever knows nothing ranks it, in the mean, in the middle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.crypto.keys import Key
from anonface.errors import count
from anonface.evaluation.audit.finding import Attack, Finding, standing, told_apart
from anonface.evaluation.audit.model import Model
from anonface.evaluation.audit.subject import Seen, Subject, by_code, by_look
from anonface.evaluation.judges import Original
from anonface.faces import align

SIDE = 32  # px, at which pixels are compared
KEYS = 24  # of the attacker's own, to learn what no key changes
NOISE = 0.1  # of a cosine or a length, that finding and embedding the face anew adds
MEASURE = "rank of the true one among candidates"

Floats = NDArray[np.float64]


def _run(subject: Subject) -> list[Finding]:
    if subject.model.stranger is None:
        why = "no networks at hand that draw candidates for this backend"
        return [told_apart(MEASURE, {}, subject.people, detail=why)]
    rng = subject.rng("candidates")
    standings: dict[str, list[float]] = {}
    for number, target in enumerate(subject.targets):
        offset = number * subject.sizes.candidates
        pixels = target.pixels()
        candidates = [
            subject.look(target, subject.model.stranger(pixels, offset + n)) for n in range(subject.sizes.candidates)
        ]
        true = int(rng.integers(len(candidates)))
        hidden = subject.hide(subject.engine, target, subject.key, candidates[true].pixels)
        for name, score in _scores(subject).items():
            ranks = standings.setdefault(name, [])
            values = [
                np.nan if hidden is None else score(target, candidates, n, hidden) for n in range(len(candidates))
            ]
            ranks.append(standing(values[true], values[:true] + values[true + 1 :]))
    detail = f"{count(subject.sizes.candidates, 'candidate')} a photo; 0.5 is the middle, 1 the first or last place"
    return [told_apart(MEASURE, standings, subject.people, folded=True, detail=detail)]


Score = Callable[[Original, list[Seen], int, Seen], float]


def _scores(subject: Subject) -> dict[str, Score]:
    scores: dict[str, Score] = {
        "identity code": lambda _, candidates, n, hidden: by_code(candidates[n], hidden),
        "recognizer": lambda _, candidates, n, hidden: by_look(candidates[n], hidden),
        "pixels": _by_pixels,
    }
    if subject.model.meant is not None:
        keys = tuple(subject.drawn_key("invariants", number) for number in range(KEYS))
        scores["what no key changes"] = functools.partial(_by_invariants, subject.model, keys)
    return scores


def _by_invariants(
    model: Model, keys: tuple[Key, ...], target: Original, candidates: list[Seen], n: int, hidden: Seen
) -> float:
    """Log-likelihood of the anonymized code, of what it shares with the candidate's, by what keys of the attacker's own
    make of the candidate. Whatever no key changes (an angle, the length of a block) has no spread and weighs most."""
    candidate = candidates[n]
    if candidate.crop is None or candidate.code is None or hidden.code is None:
        return np.nan
    assert model.meant is not None
    outcomes = model.meant(candidate.crop, keys)
    shared = np.stack([_shared(candidate.code, outcome, model.block) for outcome in outcomes])
    # what keys vary, they may vary together: one angle for all blocks
    spread = np.cov(shared, rowvar=False).reshape(shared.shape[1], -1) + NOISE**2 * np.eye(shared.shape[1])
    off = _shared(candidate.code, hidden.code, model.block) - shared.mean(0)
    return -float(off @ np.linalg.solve(spread, off) + np.linalg.slogdet(spread)[1])


def _shared(a: Floats, b: Floats, block: int | None) -> Floats:
    """The cosine of two codes and, where keys mix codes in blocks, the cosine and the second code's length in each."""
    whole = a @ b / max(1e-9, float(np.linalg.norm(a) * np.linalg.norm(b)))
    if block is None:
        return np.array([whole])
    a, b = a.reshape(-1, block), b.reshape(-1, block)
    lengths = np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(1) / np.maximum(1e-9, np.linalg.norm(a, axis=1) * lengths)
    return np.array([whole, *cosines, *lengths])


def _by_pixels(target: Original, candidates: list[Seen], n: int, hidden: Seen) -> float:
    """Correlation of what sets the candidate apart from the others with what sets the anonymized photo apart."""
    small = np.stack([_small(target, seen) for seen in candidates])
    mean = small.mean(0)
    a, b = small[n] - mean, _small(target, hidden) - mean
    return float(a @ b / max(1e-9, np.linalg.norm(a) * np.linalg.norm(b)))


def _small(target: Original, seen: Seen) -> Floats:
    assert target.aligned is not None
    crop = align.crop(seen.pixels, target.aligned.quad, 8 * SIDE)
    return cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float64).ravel()


CANDIDATES = Attack(
    "candidates",
    shows="an attacker without the key can confirm a suspicion",
    silent="candidates that differ in more than identity: pose, light, sex and age are kept and tell them apart; those "
    "drawn here still differ a little in tone and layout, by which their pixels may tell",
    published="none; a paper's sign flips (SignFlip) keep every magnitude, by which the true one would rank first",
    run=_run,
)
