"""The from-pixels protocol: how well an engine hides people, and how well the right key alone brings them back.

For every photo and key the face is anonymized under the constant salt, the pixels are written as a PNG without any
record and read again, and the engine recovers from those pixels alone: with the right key, with an unrelated key, and
with a key that differs from the right one in one bit. Everything judged has gone through 8-bit files. What an engine
or the judge cannot find is never left out: it counts against the engine, in the sense each row states.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from anonface.errors import UsageError
from anonface.evaluation import metrics
from anonface.evaluation.journal import Journal
from anonface.evaluation.judges import (
    IDENTITIES,
    Judges,
    Original,
    Progress,
    Split,
    look_at_originals,
    of_split,
    photos_of,
)
from anonface.evaluation.perception import Features
from anonface.evaluation.recognition import recognitions
from anonface.evaluation.recognizers import Recognizer
from anonface.evaluation.remote import peak_memory
from anonface.evaluation.report import Figure, Report, Threshold
from anonface.evaluation.summary import Summary, gathered
from anonface.evaluation.trials import Engine, Plan, Show, measure_photo
from anonface.evaluation.weaknesses import verdict
from anonface.evaluation.worker_process import Worker

GROSS = "gross weaknesses"
LEFT_OUT = "other photos of the person, rank 1, thresholds measured here; each photo counts as a person"
FAR_THRESHOLDS = {0.001: 0.588, 0.01: 0.650}
"""dlib's thresholds at these FAR on 175 in-the-wild photos of 40 people; used where a folder has too few pairs."""


def evaluate(
    engine: Engine,
    folder: Path,
    plan: Plan | None = None,
    *,
    ablations: Mapping[str, Engine] | None = None,
    limit: int | None = None,
    split: Split = "all",
    judges: Judges | None = None,
    originals: Sequence[Original] | None = None,
    progress: Progress | None = None,
    show: Show | None = None,
    about: Mapping[str, str | int | float] | None = None,
    journal: Path | None = None,
    part: tuple[int, int] = (1, 1),
    worker: Worker | None = None,
    elsewhere: tuple[str, Engine] | None = None,
) -> Report:
    """Run the protocol over a folder and report it.

    Args:
        engine: what anonymizes and recovers.
        folder: see :func:`look_at_originals`.
        plan: what is tried on each photo.
        ablations: the engine as it recovers without an identity code; see :func:`anonface.evaluation.identity_ablation.ablations`.
        limit: only the first so many photos of the split.
        split: "even" keeps people of even rank in the sorted identities (for choosing settings), "odd" the others
            (for reporting). Needs identities.csv.
        judges, originals: loaded and looked at beforehand, to spare repeated evaluations the work.
        progress: called with (photos done, photos in all) after each photo of the split.
        show: called for the first key of each photo with what it looks like: original, anonymized, recovered,
            recovered with an unrelated key; black where the engine refused. Where nothing is recovered, the first two.
        about: what the engine is, for the report's settings and the journal.
        journal: a file that keeps what was measured. Photos that it holds already are not measured again; it goes on
            with more photos (``limit``, ``split``), and refuses whatever would change a measurement.
        part: (k, n) measures the k-th of every n photos, so that n processes on one journal share the work.
        worker: a second process takes every second photo of these; nothing is recovered ``elsewhere`` there.
        elsewhere: the name of another device and the same engine on it, which recovers what this one hid.

    Returns:
        Rates over photos whose original the judge finds. The threshold at FAR 0.1 % comes from the impostor pairs of
        all originals of the folder, whatever the split. With a journal, over all that it holds of the split by then.

    Raises:
        UsageError: unusable folder or options.
        ImageError: a photo that cannot be read.
    """
    plan = plan or Plan()
    if not 1 <= part[0] <= part[1]:
        raise UsageError(f"there is no part {part[0]} of {part[1]}", "for example 1/2 and 2/2")
    if plan.keys < 1 or (limit is not None and limit < 1):
        raise UsageError("keys per photo and limit must be at least 1")
    judges = judges or Judges()
    originals = look_at_originals(folder, judges) if originals is None else originals
    known = (folder / IDENTITIES).is_file()
    if split != "all" and not known:
        raise UsageError(f"split {split!r} needs {folder / IDENTITIES}", "columns: file,identity")
    files = set(of_split(photos_of(folder), split)[:limit])
    chosen = [original for original in originals if original.file in files]
    thresholds = match_thresholds(judges.recognizer, originals, known)
    judged = [original for original in chosen if original.look is not None]
    if not judged:
        raise UsageError(f"{judges.recognizer.name} finds no face on the photos chosen in {folder}")
    book = Journal(journal, _settings(judges, originals, plan, ablations or {}, elsewhere, about or {}))
    done = book.measured()
    left = [original for original in judged[part[0] - 1 :: part[1]] if original.file.name not in done]
    started = time.monotonic()
    gallery = originals if known else ()
    tried = functools.partial(
        measure_photo, engine, judges, gallery=gallery, plan=plan, ablations=ablations, show=show, elsewhere=elsewhere
    )
    results = worker.measure_photos(tried, left, gallery, plan, bool(ablations), show) if worker else map(tried, left)
    features: dict[str, list[Features]] = {}
    hidden = {}
    for number, measured in enumerate(results, start=1):
        book.add(measured)
        for name, vectors in measured.features.items():
            features.setdefault(name, []).extend(vectors)
        if measured.hidden is not None:
            hidden[measured.file] = measured.hidden
        if progress:
            progress(number, len(left))
    done = book.measured()
    judged = [original for original in judged if original.file.name in done]
    photos = [done[original.file.name] for original in judged]
    samples = gathered(photos)
    people = {original.file.name: original.identity for original in judged}
    summary = Summary(samples, people, thresholds)
    detectors = chosen[0].found
    figures = [*summary.figures(detectors, judges.classifiers, judges.distances), *summary.sets(features)]
    for detector in detectors:
        found = [o.found[detector] is not None for o in chosen]
        share = metrics.clustered_mean(found, [o.identity for o in chosen])
        figures.append(Figure(f"originals found by {detector}", "", "share", share))
    unseen = ", ".join(original.file.name for original in chosen if original.look is None)
    report = Report(
        settings={
            "date": datetime.date.today().isoformat(),
            "folder": str(folder),
            "set of photos": book.settings["set of photos"],
            "photos": len(chosen),
            "photos judged": len(judged),
            **({"left out, no face for the judge": unseen} if unseen else {}),
            "of them in this run": len(left),
            "people": len({original.identity for original in judged}) if known else None,
            **({} if known else {f"left out, no {IDENTITIES}": LEFT_OUT}),
            "split": split,
            "keys per photo": plan.keys,
            "keys per photo under attacks": min(plan.keys, plan.attack_keys),
            "keys per photo in recovery": min(plan.keys, plan.recover_keys or plan.keys),
            "seed text": plan.seed_text,
            "recognizer": judges.recognizer.name,
            "recognizer seen by a training loss": judges.recognizer.seen_by_loss,
            **({"recovered on, too": elsewhere[0]} if elsewhere else {}),
            "further recognizers": ", ".join(embedder.name for embedder in judges.embedders) or "none",
            "judges left out, weights not at hand": ", ".join(judges.absent) or "none",
            "refused by the engine": sum(photo.refused for photo in photos),
            "seconds of this run": round(time.monotonic() - started, 1),
            "peak memory of this process, GB": round(peak_memory() / 1e9, 2),
            **(about or {}),
        },
        thresholds=thresholds,
        rates=[*summary.rates(), *summary.crowd(hidden)],
        figures=figures,
        samples=samples,
        recognitions=recognitions(
            judges.embedders, samples, people, originals, known=known, backend=(about or {}).get("backend")
        ),
    )
    return replace(report, settings={**report.settings, GROSS: verdict(report)})


def _settings(
    judges: Judges,
    originals: Sequence[Original],
    plan: Plan,
    ablations: Mapping[str, Engine],
    elsewhere: tuple[str, Engine] | None,
    about: Mapping[str, str | int | float],
) -> dict[str, object]:
    """All that the measurements of a photo depend on; the other photos of the person are among it.

    What is None limits nothing and is left out, so that journals from before there was such a limit still serve.
    """
    photos = hashlib.sha256()
    for original in sorted(originals, key=lambda original: original.file.name):
        photos.update(repr((original.file.name, original.identity)).encode())
        photos.update(hashlib.sha256(original.file.read_bytes()).digest())
    further = {embedder.name: embedder.digest for embedder in judges.embedders}
    return {
        **{name: value for name, value in asdict(plan).items() if value is not None},
        **about,
        "recovery without an identity code": list(ablations),
        **({"recovered on": elsewhere[0]} if elsewhere else {}),
        **({"recognizers": further} if further else {}),
        "judges": judges.names(),
        "set of photos": photos.hexdigest()[:16],
    }


def match_thresholds(recognizer: Recognizer, originals: Sequence[Original], known: bool) -> tuple[Threshold, ...]:
    """The recognizer's own, and one for each false accept rate: from the impostor pairs of the originals where people
    are ``known`` and pairs are many enough, else what it was elsewhere."""
    fixed = lambda value: metrics.Interval(value, value, value, 0)  # noqa: E731
    found = [Threshold(f"{recognizer.name}'s own", fixed(recognizer.threshold))]
    seen = [(o.look.embedding, o.identity) for o in originals if o.look is not None]
    for far, elsewhere in FAR_THRESHOLDS.items():
        at_far = metrics.NOTHING
        if known and seen:
            at_far = metrics.impostor_threshold([e for e, _ in seen], [identity for _, identity in seen], far)
        enough = at_far.n * far >= 1
        where = "here" if enough else "elsewhere"
        found.append(Threshold(f"FAR {100 * far:g} % {where}", at_far if enough else fixed(elsewhere)))
    return tuple(found)
