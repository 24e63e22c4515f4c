"""The tables of the further recognizers, one each, made of single distances; dlib's rows are ``summary``'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anonface.evaluation import metrics
from anonface.evaluation.embedders import Embedder
from anonface.evaluation.judges import Original
from anonface.evaluation.report import Recognition, RecognitionRow, Samples, Threshold
from anonface.evaluation.similarity import by
from anonface.evaluation.trials import ANONYMIZED, ONE_BIT, RANDOM, RIGHT, TWO_KEYS, others

FARS = {0.001: "FAR 0.1 % here", 0.01: "FAR 1 % here"}


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
        samples: see :func:`anonface.evaluation.summary.gathered`.
        people: who is on each file.
        originals: all photos of the folder, from which thresholds are measured where it is known who is on them.
        backend: whose networks were judged.
    """
    tables = [
        Recognition(
            recognizer=embedder.name,
            seen_by_loss=embedder.seen(backend),
            thresholds=(limits := (*_measured_limits(embedder.name, originals, known), *_published(embedder))),
            rows=tuple(_rows(embedder.name, samples, people, [limit.interval.value for limit in limits])),
        )
        for embedder in embedders
    ]
    return sorted(tables, key=lambda table: table.seen_by_loss)


def _measured_limits(recognizer: str, originals: Sequence[Original], known: bool) -> Iterator[Threshold]:
    """Thresholds at the folder's own false matches; none where its pairs are too few for a single one."""
    seen = [(o.embeddings[recognizer], o.identity) for o in originals if recognizer in o.embeddings]
    if not known or not seen:
        return
    embeddings, identities = zip(*seen, strict=True)
    for far, title in FARS.items():
        threshold = metrics.impostor_threshold(np.stack(embeddings), identities, far)
        if threshold.n * far >= 1:
            yield Threshold(title, threshold)


def _published(embedder: Embedder) -> Iterator[Threshold]:
    for title, value in embedder.limits:
        yield Threshold(title, metrics.Interval(value, value, value, 0))


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
            metrics.clustered_mean(1 - distances**2 / 2, who),  # between unit vectors
            tuple(metrics.match_rate(distances, who, limit, missing_matches=missing_matches) for limit in limits),
        )

    for name in (ANONYMIZED, RANDOM, ONE_BIT):
        yield from row(f"{name}: matched to the original", "lower", name)
        yield from row(f"{name}: matched, or no face found", "lower", name, missing_matches=True)
    yield from row(f"{TWO_KEYS}: matched to each other", "lower", TWO_KEYS)
    yield from row(f"{RIGHT}: matched to the original", "higher", RIGHT)
    for name, better in (("original", ""), (ANONYMIZED, "lower"), (RIGHT, "higher")):
        yield from row(f"{name}: matched to other photos of the person (TAR)", better, others(name))
