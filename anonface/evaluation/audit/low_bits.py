"""The last bits of pixels: room for a whole hidden copy of the face."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation.audit.finding import Attack, Finding
from anonface.evaluation.audit.subject import Subject
from anonface.evaluation.metrics import NOTHING, clustered_mean

BITS = (1, 2, 4)
LIMIT = 0.2  # of the correlation; rendered pixels stay below 0.05
FEW = 64  # changed pixels, fewer of which say nothing

Pixels = NDArray[np.uint8]


def _run(subject: Subject) -> list[Finding]:
    values = [
        np.nan if seen is None else max(carried(target.pixels(), seen.pixels, bits) for bits in BITS)
        for target, seen in zip(subject.targets, subject.hidden, strict=True)
    ]
    value = clustered_mean(values, subject.people)
    measure, detail = "low bits follow the original", f"the most of the last {', '.join(map(str, BITS))} bits"
    if value.n == 0:
        return [Finding(measure, NOTHING, 0.0, LIMIT, None, "too few pixels were changed", "correlation")]
    return [Finding(measure, value, 0.0, LIMIT, value.value <= LIMIT, detail, "correlation")]


def carried(original: Pixels, anonymized: Pixels, bits: int) -> float:
    """Correlation of the original with what the last bits show, over all pixels that changed by more than those."""
    before, after = original.astype(np.int64), anonymized.astype(np.int64)
    changed = np.abs(before - after) >> bits > 0
    if changed.sum() < FEW:
        return np.nan
    shown, hidden = (after & ((1 << bits) - 1))[changed], before[changed]
    if shown.std() == 0 or hidden.std() == 0:
        return 0.0
    return float(abs(np.corrcoef(shown, hidden)[0, 1]))


ATTACK = Attack(
    "low-bits",
    shows="a copy of the original stands in the anonymized pixels, for anybody to read",
    silent="copies hidden in other ways: spread over a transform, or encrypted, which --seal does openly",
    published="none",
    run=_run,
)
