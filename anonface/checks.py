"""Checks of an anonymized photo, face by face: seen by the detector before and after, known to a recognizer or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anonface.faces import sface
from anonface.faces.detect import Box, Detector, Face, Pixels, box_iou
from anonface.faces.locate import Located
from anonface.faces.second_look import LIKE_BOX
from anonface.record.anf1 import FaceChecks, FaceReport

SEEN_LATE = "seen when the finished photo was looked at"


def seen_at(photo: Pixels, boxes: Sequence[Box], detector: Detector) -> list[Face | None]:
    """The face that a detector sees at each place of a photo, or None.

    Args:
        photo: uint8 [H, W, 3].
        boxes: (x, y, w, h) in pixels, where faces should be.
    """
    seen, places = detector.detect(photo) if boxes else [], []
    for box in boxes:
        shares = [box_iou(face.box, box) for face in seen]
        best = max(shares, default=0.0)
        places.append(seen[shares.index(best)] if best >= LIKE_BOX else None)
    return places


def checked(
    report: Sequence[FaceReport],
    found: Sequence[Located],
    boxes: Sequence[Box],
    original: Pixels,
    finished: Pixels,
    detector: Detector | None,
    recognizer: sface.Recognizer | None,
) -> list[FaceReport]:
    """A report with checks.

    Args:
        found: the faces of the report.
        boxes: those of faces that were named, and not detected.
        original, finished: the photo before and after, uint8 [H, W, 3].
        detector: looks at the finished photo; None does not look.
        recognizer: compares replaced faces that are seen again; None does not compare.
    """
    places = [face.box for face in found]
    seen = seen_at(finished, places, detector) if detector else [None] * len(found)
    result = []
    for face, entry, again in zip(found, report, seen, strict=True):
        before = face.obstacle != SEEN_LATE and not any(np.allclose(face.box, box) for box in boxes)
        apart = None
        if recognizer and again and entry.kind == "synth":
            apart = sface.distance(recognizer, original, face.seen, finished, again)
        alike = None if apart is None else 1 - apart**2 / 2  # of vectors of unit length
        matched = None if apart is None else apart < sface.LIMIT
        checks = FaceChecks(before, again is not None if detector else None, alike, matched)
        result.append(replace(entry, checks=checks))
    return result


def still_matched(report: Sequence[FaceReport]) -> tuple[str, ...]:
    """A note for each replaced face that still matches its original."""
    return tuple(
        f"face {face.index}: still matched to the original by a recognizer ({face.checks.similarity:.2f})"
        for face in report
        if face.checks and face.checks.matched
    )
