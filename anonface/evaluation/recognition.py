"""Thresholds of the recognizers, and the tables of the further ones; the main recognizer's rows are ``summary``'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anonface.evaluation import metrics
from anonface.evaluation.embedders import Embedder
from anonface.evaluation.judges import Original
from anonface.evaluation.measurements import ANONYMIZED, ONE_BIT, RANDOM, RIGHT, TWO_KEYS, by, others
from anonface.evaluation.recognizers import Recognizer
from anonface.evaluation.report import Recognition, RecognitionRow, Samples, Threshold

FAR_THRESHOLDS = {0.001: 0.588, 0.01: 0.650}
"""dlib's thresholds at these false accept rates, on 175 in-the-wild photos of 40 people; used for small folders."""


def match_thresholds(recognizer: Recognizer, originals: Sequence[Original], known: bool) -> tuple[Threshold, ...]:
    """The recognizer's own threshold, and one for each false accept rate.

    The latter come from the impostor pairs of the originals where people are ``known`` and the pairs suffice for one
    false match. Otherwise they are FAR_THRESHOLDS.
    """
    found = [Threshold(f"{recognizer.name}'s own", metrics.fixed(recognizer.threshold))]
    seen = [(o.look.embedding, o.identity) for o in originals if o.look is not None]
    for far, fallback in FAR_THRESHOLDS.items():
        measured = _at_far(seen if known else [], far)
        where, interval = ("here", measured) if measured else ("elsewhere", metrics.fixed(fallback))
        found.append(Threshold(f"FAR {100 * far:g} % {where}", interval))
    return tuple(found)


def recognitions(
    embedders: Sequence[Embedder],
    samples: Samples,
    people: Mapping[str, str],
    originals: Sequence[Original],
    *,
    known: bool,
    backend: object = None,
) -> list[Recognition]:
    """One table a recognizer; those that a training loss saw come last.

    Args:
        samples: see :func:`anonface.evaluation.measurements.joined`.
        people: the person on each file.
        originals: all photos of the folder; thresholds are measured on them where people are ``known``.
        backend: name of the backend whose networks are judged.
    """
    tables = []
    for embedder in embedders:
        limits = [*_measured(embedder.name, originals if known else ()), *_published(embedder)]
        rows = _rows(embedder.name, samples, people, [limit.interval.value for limit in limits])
        tables.append(Recognition(embedder.name, embedder.seen(backend), tuple(limits), tuple(rows)))
    return sorted(tables, key=lambda table: table.seen_by_loss)


def _at_far(seen: Sequence[tuple[NDArray[np.float64], str]], far: float) -> metrics.Interval | None:
    """Threshold at a false accept rate from (embedding, person); None where the pairs are too few for a false match."""
    if not seen:
        return None
    threshold = metrics.impostor_threshold([e for e, _ in seen], [identity for _, identity in seen], far)
    return threshold if threshold.n * far >= 1 else None


def _measured(recognizer: str, originals: Sequence[Original]) -> Iterator[Threshold]:
    seen = [(o.embeddings[recognizer], o.identity) for o in originals if recognizer in o.embeddings]
    for far in FAR_THRESHOLDS:
        if interval := _at_far(seen, far):
            yield Threshold(f"FAR {100 * far:g} % here", interval)


def _published(embedder: Embedder) -> Iterator[Threshold]:
    for title, value in embedder.limits:
        yield Threshold(title, metrics.fixed(value))


def _rows(
    recognizer: str, samples: Samples, people: Mapping[str, str], limits: Sequence[float]
) -> Iterator[RecognitionRow]:
    def row(title: str, better: str, name: str, missing_matches: bool = False) -> Iterator[RecognitionRow]:
        measured = samples.get(by(name, recognizer), ())
        if not measured:
            return
        distances = np.array([value for _, _, value in measured], dtype=np.float64)
        who = [people[file] for file, _, _ in measured]
        yield RecognitionRow(
            title,
            better,
            len(distances),
            int(np.isnan(distances).sum()),
            metrics.clustered_mean(distances, who),
            metrics.clustered_mean(1 - distances**2 / 2, who),  # cosine of unit vectors
            tuple(metrics.match_rate(distances, who, limit, missing_matches=missing_matches) for limit in limits),
        )

    for name in (ANONYMIZED, RANDOM, ONE_BIT):
        yield from row(f"{name}: matched to the original", "lower", name)
        yield from row(f"{name}: matched, or no face found", "lower", name, missing_matches=True)
    yield from row(f"{TWO_KEYS}: matched to each other", "lower", TWO_KEYS)
    yield from row(f"{RIGHT}: matched to the original", "higher", RIGHT)
    for name, better in (("original", ""), (ANONYMIZED, "lower"), (RIGHT, "higher")):
        yield from row(f"{name}: matched to other photos of the person (TAR)", better, others(name))
