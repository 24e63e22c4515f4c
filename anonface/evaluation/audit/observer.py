"""An observer without the original: can they tell what a right key made from what a wrong one made?"""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.audit.finding import Attack, Finding, standing, told_apart
from anonface.evaluation.audit.subject import Seen, Subject
from anonface.evaluation.metrics import likeness

Pixels = NDArray[np.uint8]


def _run(subject: Subject) -> list[Finding]:
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


ATTACK = Attack(
    "observer",
    shows="a guesser sees without the original when a key was right, so that keys can be tried one by one",
    silent="what people see; what a network trained on many such pictures would see",
    published="SignFlip argues that wrong keys leave no sign (section 3.4) and gives no number",
    run=_run,
)
