"""What is likely to be wrong with a face of an anonymized photo: which faces a person should look at first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from anonface.checks import seen_at
from anonface.errors import ContainerError
from anonface.faces import sface
from anonface.faces.detect import Box, Detector
from anonface.faces.locate import locate
from anonface.record import anf1, carriers
from anonface.record.anf1 import FaceReport

Pixels = NDArray[np.uint8]
Finding = Literal[
    "not found again", "still matched", "still seen", "covered", "low realism", "small", "no finding", "left"
]
FINDINGS: tuple[Finding, ...] = get_args(Finding)
"""What was found out about a face, in the order in which a person looks; the last is one that was to be left."""

SMALL = 48  # px: width of a face's box, below which a synthetic face shows little of its faults
LESS_SURE = 0.05
"""By how much the detector's certainty must fall for a face to count as broken: of 40 replaced ones none lost 0.005."""
SAME = 5.0  # mean difference of grey levels up to which a face counts as unchanged; JPEG alone changes 1 to 3


@dataclass(frozen=True)
class Checked:
    """A face and what was found out about it.

    Args:
        face: its number, kind, box and reason.
        findings: the gravest first; never empty.
        distance: of the result's embedding to the original's, 0 to 2; None where they were not compared.
    """

    face: FaceReport
    findings: tuple[Finding, ...]
    distance: float | None = None

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts what is most likely wrong to the front: by the gravest finding, then by distance or size."""
        nearest = self.distance if self.distance is not None else 2.0
        size = max(self.face.box[2:])
        by_size = self.findings[0] in ("not found again", "covered", "still seen")  # the larger, the more it matters
        return FINDINGS.index(self.findings[0]), -size if by_size else size if self.findings[0] == "small" else nearest


def check(
    before: Pixels,
    after: Pixels,
    faces: Sequence[FaceReport],
    detector: Detector | None,
    recognizer: sface.Recognizer | None,
) -> list[Checked]:
    """Check the faces of one finished photo.

    Args:
        before, after: the original and the result, uint8 [H, W, 3] of one size.
        faces: what the run, or :func:`faces_of`, says of them.
        detector: looks for the faces in the result; None leaves out what depends on it.
        recognizer: compares them with the originals; None leaves that out.
    """
    boxes = [face.box for face in faces]
    again = seen_at(after, boxes, detector) if detector else [None] * len(faces)
    known = seen_at(before, boxes, detector) if detector else [None] * len(faces)
    results = []
    for face, then, now in zip(faces, known, again, strict=True):
        findings: list[Finding] = []
        distance = None
        if face.kind == "kept":
            findings = ["left"]
        elif face.kind == "mosaic":
            findings = ["still seen", "covered"] if now else ["covered"]
        else:
            if recognizer and then and now:
                distance = sface.distance(recognizer, before, then, after, now)
            if detector and now is None:
                findings.append("not found again")
            if distance is not None and distance < sface.LIMIT:
                findings.append("still matched")
            if then and now and then.score - now.score > LESS_SURE:
                findings.append("low realism")
            if max(face.box[2:]) < SMALL:
                findings.append("small")
        results.append(Checked(face, tuple(findings) or ("no finding",), distance))
    return results


def faces_of(before: Pixels, after: Pixels, data: bytes, detector: Detector) -> list[FaceReport]:
    """The faces of a photo whose run left no report: numbered as detected, their kinds from the record or the pixels.

    Args:
        before, after: the original and the result, uint8 [H, W, 3] of one size.
        data: the result's file, which may hold a record.
    """
    recorded = _recorded(data)
    left = list(recorded or ())
    faces = []
    for index, found in enumerate(locate(before, detector)):
        if recorded is None:
            kind, reason = _kind_by_pixels(before, after, found.box, found.obstacle)
        elif entry := _nearest(found.box, left):
            left.remove(entry)
            kind, reason = entry.kind, found.obstacle or "" if entry.kind == "mosaic" else ""
        else:
            kind, reason = "kept", "not among the faces of the record"
        faces.append(FaceReport(index, kind, found.box, reason))
    extra = [FaceReport(len(faces) + i, entry.kind, entry.box, "", seen=False) for i, entry in enumerate(left)]
    return faces + extra


def _recorded(data: bytes) -> list[FaceReport] | None:
    """The changed faces that a result's record names; None without a readable record."""
    try:
        record = carriers.extract(data)
        return anf1.decode(record).reports() if record else None
    except ContainerError:
        return None


def _nearest(box: Box, entries: Sequence[FaceReport]) -> FaceReport | None:
    """The entry whose crop lies around the middle of a face, the nearest if there are several."""
    x, y = box[0] + box[2] / 2, box[1] + box[3] / 2

    def apart(entry: FaceReport) -> float:
        ex, ey, ew, eh = entry.box
        return max(abs(ex + ew / 2 - x) / ew, abs(ey + eh / 2 - y) / eh)

    best = min(entries, key=apart, default=None)
    return best if best and apart(best) < 1 / 4 else None


def _kind_by_pixels(before: Pixels, after: Pixels, box: Box, obstacle: str | None) -> tuple[str, str]:
    x, y, w, h = box
    rows = slice(max(round(y + h / 4), 0), max(round(y + 3 * h / 4), 0))
    columns = slice(max(round(x + w / 4), 0), max(round(x + 3 * w / 4), 0))
    apart = np.abs(before[rows, columns].astype(np.int16) - after[rows, columns])
    if not apart.size or float(apart.mean()) <= SAME:
        return "kept", "its pixels are those of the original"
    return ("mosaic", obstacle) if obstacle else ("synth", "")
