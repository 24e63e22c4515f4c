"""Guessing the key: whether one that is nearly or partly right is of any use, and whether a right one can be told."""

from __future__ import annotations

import itertools
import math
import time

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.crypto.keys import KEY_BYTES, Key
from anonface.errors import WrongKeyError, count
from anonface.evaluation.audit.finding import UNIFORM, Attack, Finding, counted, matched, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject, by_look
from anonface.evaluation.metrics import likeness

BITS = 8 * KEY_BYTES
CLIMBS = 3  # photos on which a guesser climbs
PUBLISHED_RATE = 0.02  # as of the viewer: a wrong key must tell no more than the anonymized photo
TIMINGS = 200  # refusals of each kind that are timed

Pixels = NDArray[np.uint8]


def _key_guessing(subject: Subject) -> list[Finding]:
    return [_near_miss(subject), _climbing(subject), *_oracle(subject)]


def _near_miss(subject: Subject) -> Finding:
    """Recovery from pixels under keys of which one bit is wrong."""
    bits = subject.rng("near miss").integers(0, BITS, len(subject.targets))
    distances = [
        -by_look(original, subject.lead(subject.engine, number, subject.key.flipped([int(bit)])))
        for number, (original, bit) in enumerate(zip(subject.originals, bits, strict=True))
    ]
    measure = "one bit off: recovered to the original"
    return matched(measure, distances, subject.people, subject.threshold, PUBLISHED_RATE)


def _climbing(subject: Subject) -> Finding:
    """Climb from a key with half its bits wrong, told after every step how like the original the outcome is.

    No real guesser has that oracle. If even under it a step towards the key looks no better than one away from it,
    there is nothing to climb.
    """
    standings, people, tops = [], [], []
    climbable = [n for n, seen in enumerate(subject.hidden) if seen is not None and seen.crop is not None]
    for number in climbable[:CLIMBS]:
        nearer, farther, top = _climb(subject, number)
        standings.append(float(np.mean([standing(score, farther) for score in nearer])) if nearer else np.nan)
        people.append(subject.people[number])
        tops.append(top)
    steps = subject.sizes.guesses
    # of the mean over all steps towards the key of their standings among those away from it (Mann and Whitney 1947)
    spread = min(UNIFORM, math.sqrt((steps + 1) / 3) / steps)
    detail = f"{count(len(tops), 'climb')} of {steps} steps, {sum(tops)} of {len(tops)} above as many unrelated keys"
    return told_apart(
        "half-right keys: nearer steps look better", {"": standings}, people, spread=spread, detail=detail
    )


def _climb(subject: Subject, number: int) -> tuple[list[float], list[float], bool]:
    """Scores of the steps towards the key and away from it, and whether the top is above that of unrelated keys."""
    rng, goal = subject.rng(f"climb {number}"), subject.originals[number]
    wrong = set(map(int, rng.permutation(BITS)[: BITS // 2]))
    best = _score(subject, number, subject.key.flipped(wrong), goal)
    nearer: list[float] = []
    farther: list[float] = []
    for bit in itertools.islice(itertools.cycle(map(int, rng.permutation(BITS))), subject.sizes.guesses):
        score = _score(subject, number, subject.key.flipped(wrong ^ {bit}), goal)
        (nearer if bit in wrong else farther).append(score)
        if score > best:
            best, wrong = score, wrong ^ {bit}
    blind = [
        _score(subject, number, subject.drawn_key(f"blind {number}", guess), goal)
        for guess in range(subject.sizes.guesses)
    ]
    return nearer, farther, best > max(blind)


def _score(subject: Subject, number: int, key: Key, goal: Seen) -> float:
    hidden, lead = subject.hidden[number], subject.model.lead
    assert hidden is not None and hidden.crop is not None and goal.code is not None
    if lead is not None:
        return likeness(lead(hidden.crop, key), goal.code)
    seen = subject.lead(subject.engine, number, key)
    return -math.inf if seen is None or seen.code is None else likeness(seen.code, goal.code)


def _oracle(subject: Subject) -> list[Finding]:
    """What a sealed photo tells a guesser beyond no: another message for a near miss, or another time."""
    if not subject.sealed:
        return []
    sealed, rng = subject.sealed[0][1], subject.rng("oracle")
    keys = {
        "near": [subject.key.flipped([int(bit)]) for bit in rng.integers(0, BITS, TIMINGS)],
        "far": [subject.drawn_key("oracle", number) for number in range(TIMINGS)],
    }
    seconds: dict[str, list[float]] = {"near": [], "far": []}
    messages, opened = set(), 0
    for kind, number in rng.permutation([(kind, n) for kind in keys for n in range(TIMINGS)]):
        started = time.perf_counter()
        try:
            subject.files.recover(sealed, keys[kind][int(number)])
            opened += 1
        except WrongKeyError as error:
            messages.add((error.message, error.hint))
        seconds[kind].append(time.perf_counter() - started)
    share = float(np.mean([standing(-s, -np.array(seconds["far"])) for s in seconds["near"]]))
    spread = math.sqrt((2 * TIMINGS + 1) / (12 * TIMINGS**2))
    return [
        counted(
            "sealed photo: wrong keys that opened it or got an answer of their own",
            opened + max(0, len(messages) - 1),
            2 * TIMINGS,
        ),
        told_apart(
            "sealed photo: near misses told by time",
            {"": [share]},
            [""],
            folded=True,
            spread=spread,
            detail=f"{2 * TIMINGS} refusals of one file",
        ),
    ]


def _observer(subject: Subject) -> list[Finding]:
    """Without the original: can anybody tell what a right key made from what a wrong one made?"""
    right = [_signs(subject, number, seen) for number, seen in enumerate(subject.back)]
    wrong = [_signs(subject, number, seen) for number, seen in enumerate(subject.led_astray)]
    n = sum(signs is not None for signs in right)
    scores = {
        name: [
            np.nan if signs is None else standing(signs[name], [other[name] for other in wrong if other is not None])
            for signs in right
        ]
        for name in next((signs for signs in right if signs is not None), {})
    }
    # a mean of n standings among the same n wrong ones (Mann and Whitney 1947)
    spread = math.sqrt((2 * n + 1) / (12 * n)) if n else 0.0
    return [
        told_apart("right key told from wrong without the original", scores, subject.people, folded=True, spread=spread)
    ]


def _signs(subject: Subject, number: int, seen: Seen | None) -> dict[str, float] | None:
    """What can be measured of a recovered face beside the anonymized one; None where there is no face."""
    hidden = subject.hidden[number]
    if seen is None or seen.crop is None or seen.code is None or hidden is None or hidden.crop is None:
        return None
    assert hidden.code is not None
    crowd = [subject.code(other) for other in subject.gallery.crowd]
    size = (seen.crop.shape[1], seen.crop.shape[0])
    before = np.asarray(cv2.resize(hidden.crop, size, interpolation=cv2.INTER_AREA), np.uint8)
    signs = {
        "identity moved": -likeness(seen.code, hidden.code),
        "pixels moved": float(np.abs(seen.crop.astype(float) - before).mean()),
        "sharpness": _sharpness(seen.crop) - _sharpness(before),
        "colours": float(seen.crop.std() - before.std()),
    }
    if crowd:
        signs["likeness to anybody"] = max(likeness(seen.code, code) for code in crowd)
    return signs


def _sharpness(crop: Pixels) -> float:
    return math.log(1 + float(cv2.Laplacian(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.CV_64F).var()))


KEY_GUESSING = Attack(
    "key-guessing",
    shows="the key need not be found at once: guesses can be improved bit by bit, or a near miss suffices",
    silent="weaknesses of the key derivation itself, which rests on HKDF and SHAKE256; guessable passphrases, which "
    "cost Argon2id's price each",
    published="wrong keys one bit off fail for all but G2Face (SignFlip, figure 4, no number in the text)",
    run=_key_guessing,
)
OBSERVER = Attack(
    "observer",
    shows="a guesser sees without the original when a key was right, so that keys can be tried one by one",
    silent="what people see; what a network trained on many such pictures would see",
    published="SignFlip argues that wrong keys leave no sign (section 3.4) and gives no number",
    run=_observer,
)
