"""The from-pixels protocol: how well an engine anonymizes people, and how well the right key alone recovers them.

For every photo and key the face is anonymized under the constant salt. The pixels are written as a PNG without any
record and read again. The engine recovers from those pixels alone: with the right key, with an unrelated key, and with
a key that differs from the right one in one bit. Judges see only pixels that went through 8-bit files. A face that the
engine or the judge cannot find counts against the engine, in the sense that each row states.
"""

from __future__ import annotations

import datetime
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
    Selection,
    Split,
    look_at_originals,
    select,
)
from anonface.evaluation.measurements import Measured, joined
from anonface.evaluation.remote import peak_memory
from anonface.evaluation.report import Figure, Report
from anonface.evaluation.summary import Summary
from anonface.evaluation.trials import Engine, Plan, Show, measure_photo
from anonface.evaluation.weaknesses import gross_weaknesses

GROSS = "gross weaknesses"
LEFT_OUT = "other photos of the person, rank 1, thresholds measured here; each photo counts as a person"
Facts = Mapping[str, str | int | float]


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
    about: Facts | None = None,
    journal: Path | None = None,
    part: tuple[int, int] = (1, 1),
) -> Report:
    """Run the protocol over a folder and report it.

    Args:
        engine: the engine under evaluation.
        folder: see :func:`look_at_originals`.
        plan: what is tried on each photo.
        ablations: see :func:`anonface.evaluation.identity_ablation.ablations`.
        limit: only the first so many photos of the split.
        split: "even" keeps people of even rank in the sorted identities (for choosing settings), "odd" the others
            (for reporting). Needs identities.csv.
        judges, originals: loaded and read beforehand, to share them between evaluations.
        progress: called with (photos done, photos in all) after each photo of the split.
        show: called for the first key of each photo with its pictures: original, anonymized, recovered, recovered with
            an unrelated key. Black where the engine refused; only the first two where nothing is recovered.
        about: facts about the engine, for the report's settings and the journal.
        journal: a file that keeps measurements. Photos in it are not measured again. It takes more photos (``limit``,
            ``split``), and refuses whatever would change a measurement.
        part: (k, n) measures the k-th of every n photos, so that n processes on one journal share the work.

    Returns:
        Rates over photos in whose original the judge finds a face. With a journal, over all of the split in it.

    Raises:
        UsageError: unusable folder or options.
        ImageError: a photo that cannot be read.
    """
    plan, ablations, about = plan or Plan(), ablations or {}, about or {}
    if not 1 <= part[0] <= part[1]:
        raise UsageError(f"there is no part {part[0]} of {part[1]}", "for example 1/2 and 2/2")
    if plan.keys < 1 or (limit is not None and limit < 1):
        raise UsageError("keys per photo and limit must be at least 1")
    judges = judges or Judges()
    originals = look_at_originals(folder, judges) if originals is None else originals
    photos = select(folder, judges.recognizer, originals, split, limit)
    book = Journal(journal, _settings(judges, originals, plan, ablations, about))
    done = book.measured()
    left = [original for original in photos.judged[part[0] - 1 :: part[1]] if original.file.name not in done]
    started = time.monotonic()

    new: list[Measured] = []
    for number, original in enumerate(left, start=1):
        new.append(measure_photo(engine, judges, original, photos.gallery, plan, ablations, show))
        book.add(new[-1])
        if progress:
            progress(number, len(left))
    done = book.measured()
    reported = replace(photos, judged=[original for original in photos.judged if original.file.name in done])
    report = _report(judges, reported, done, new, about)
    settings: dict[str, str | int | float | None] = {
        "date": datetime.date.today().isoformat(),
        "folder": str(folder),
        "set of photos": book.settings["set of photos"],
        **_photo_settings(reported, len(left)),
        "split": split,
        **_plan_settings(plan, judges),
        **report.settings,
        "seconds of this run": round(time.monotonic() - started, 1),
        "peak memory of this process, GB": round(peak_memory() / 1e9, 2),
        **about,
        GROSS: gross_weaknesses(report),
    }
    return replace(report, settings=settings)


def _report(
    judges: Judges,
    photos: Selection,
    done: Mapping[str, Measured],
    new: Sequence[Measured],
    about: Facts,
) -> Report:
    """All rows over the judged photos; ``new`` are the measurements of this run, with embeddings."""
    measured = [done[original.file.name] for original in photos.judged]
    samples = joined(measured)
    people = {original.file.name: original.identity for original in photos.judged}
    summary = Summary(samples, people, judges, photos.gallery)
    detectors = photos.chosen[0].found
    figures = [*summary.figures(detectors), *summary.set_distances(new)]
    for detector in detectors:
        found = [original.found[detector] is not None for original in photos.chosen]
        share = metrics.clustered_mean(found, [original.identity for original in photos.chosen])
        figures.append(Figure(f"originals found by {detector}", "", "share", share))
    anonymized = {photo.file: photo.hidden for photo in new if photo.hidden is not None}
    return Report(
        settings={"refused by the engine": sum(photo.refused for photo in measured)},
        thresholds=summary.thresholds,
        rates=[*summary.rates(), *summary.between_people(anonymized)],
        figures=figures,
        samples=samples,
        recognitions=summary.recognitions(about.get("backend")),
    )


def _photo_settings(photos: Selection, measured_now: int) -> dict[str, str | int | None]:
    unseen = ", ".join(original.file.name for original in photos.chosen if original.look is None)
    known = bool(photos.gallery)
    return {
        "photos": len(photos.chosen),
        "photos judged": len(photos.judged),
        **({"left out, no face for the judge": unseen} if unseen else {}),
        "of them in this run": measured_now,
        "people": len({original.identity for original in photos.judged}) if known else None,
        **({} if known else {f"left out, no {IDENTITIES}": LEFT_OUT}),
    }


def _plan_settings(plan: Plan, judges: Judges) -> dict[str, str | int]:
    return {
        "keys per photo": plan.keys,
        "keys per photo under attacks": min(plan.keys, plan.attack_keys),
        "keys per photo in recovery": min(plan.keys, plan.recover_keys or plan.keys),
        "seed text": plan.seed_text,
        "recognizer": judges.recognizer.name,
        "recognizer seen by a training loss": judges.recognizer.seen_by_loss,
        "further recognizers": ", ".join(embedder.name for embedder in judges.embedders) or "none",
        "judges left out, weights not at hand": ", ".join(judges.absent) or "none",
    }


def _settings(
    judges: Judges,
    originals: Sequence[Original],
    plan: Plan,
    ablations: Mapping[str, Engine],
    about: Facts,
) -> dict[str, object]:
    """Everything that the measurements of a photo depend on, the other photos of the person included.

    None means no limit and is left out, so that journals from before such a limit remain valid.
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
        **({"recognizers": further} if further else {}),
        "judges": judges.names(),
        "set of photos": photos.hexdigest()[:16],
    }
