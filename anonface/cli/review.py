"""``anonface review``, and the page of ``anonymize --review``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anonface.cli.console import (
    download_progress,
    end,
    error_json,
    escaped,
    print_json,
    progress_bar,
    say,
    without_name,
)
from anonface.cli.help import FILES, OUTPUT
from anonface.cli.options import AsJson, Detector, MaxPixels, Offline, Overwrite, Recursive, check_options
from anonface.cli.pipes import refuse_streams
from anonface.errors import AnonfaceError, ImageError, UsageError, count
from anonface.streams import STREAM

if TYPE_CHECKING:
    from anonface.batch.run import Outcome
    from anonface.faces.detect import Detector as Finder
    from anonface.faces.sface import Recognizer
    from anonface.review.page import Reviewed, Totals
    from anonface.review.pairs import Pair

Failures = list[tuple["Pair", AnonfaceError]]
MOST_NAMED = 3  # results that go with no photo


def review(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="Photos and what `anonymize` made of them: files, folders or quoted patterns; none with --report.",
        ),
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Page to write, an .html file.", rich_help_panel=OUTPUT),
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The report of the run that made the results, instead of PATH.", rich_help_panel=FILES
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    max_pixels: MaxPixels = 64_000_000,
    recursive: Recursive = False,
    detector: Detector = "yunet",
    offline: Offline = False,
) -> int:
    """Write a page that shows every face before and after, those most likely wrong first. Needs no key.

    Results have .anon. in their names, and lie next to their photos or in a folder that repeats their tree.
    """
    from anonface.images.paths import Input, Output, refuse_conflicts
    from anonface.review.pairs import HINT, pairs_by_name, pairs_by_report

    check_options(overwrite, False, offline)
    refuse_streams({"--report": report, "--output": output})
    if STREAM in (paths or ()):
        raise UsageError("review reads photos and results from files, not from standard input", HINT)
    if bool(paths) == bool(report):
        raise UsageError("--report takes the place of photos" if paths else "there is nothing to review", HINT)
    unused: list[Path] = []
    if report:
        pairs = pairs_by_report(report)
    else:
        pairs, unused = pairs_by_name(paths or [], recursive)
    read = [Input(pair.source) for pair in pairs] + [Input(pair.result, "a result") for pair in pairs if pair.result]
    read += [Input(report, "the report")] if report else []
    refuse_conflicts(read, [Output(output, "the page")])
    check_page_target(output, overwrite)
    if unused:
        named = ", ".join(map(str, unused[:MOST_NAMED])) + ", ..." * (len(unused) > MOST_NAMED)
        say(f"anonface: note: {count(len(unused), 'result')} without a photo: {named}")
    failures, facts = write_page(output, pairs, detector, max_pixels, overwrite)
    alone, code = end([error for _, error in failures], [pair.source for pair in pairs], ctx.obj)
    if as_json:
        print_json({"exit": code, "error": error_json(alone) if alone else None, "page": str(output), "photos": facts})
    return code


def check_page_target(file: Path, overwrite: bool) -> None:
    """Refuse a page that cannot be written, before any work.

    Raises:
        UsageError: it is not named ``.html``.
        OutputError: it exists or cannot be written.
    """
    from anonface.images.paths import check_target

    if file.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"the page {str(file)!r} must be a .html")
    check_target(file, None, overwrite)


def page_of_run(file: Path, outcomes: Sequence[Outcome], detector: str, max_pixels: int, overwrite: bool) -> None:
    """Write the page of a run, unless it has no result. See :func:`write_page`."""
    pairs = _pairs_of_run(outcomes)
    if any(pair.result for pair in pairs):
        write_page(file, pairs, detector, max_pixels, overwrite)


def _pairs_of_run(outcomes: Iterable[Outcome]) -> list[Pair]:
    """The photos of a run, each with its result. One that was skipped is reviewed with its existing result."""
    from anonface.batch.plan import existing
    from anonface.batch.run import WRITTEN
    from anonface.faces.locate import no_face
    from anonface.review.pairs import Pair

    pairs = []
    for outcome in outcomes:
        source = outcome.job.source
        if outcome.state in WRITTEN:
            pairs.append(Pair(source, outcome.job.target, outcome.faces))
        elif outcome.state == "skipped" and (there := existing(outcome.job)):
            pairs.append(Pair(source, there))
        else:
            said = without_name(outcome.error, source) if outcome.error else "; ".join(outcome.notes)
            pairs.append(Pair(source, None, (), f"{outcome.state}{said and ': '}{said}", no_face().message in said))
    return pairs


def write_page(
    file: Path, pairs: Sequence[Pair], detector: str, max_pixels: int, overwrite: bool
) -> tuple[Failures, list[dict[str, Any]]]:
    """Check the faces of photos and write the page.

    Returns:
        The photos that could not be reviewed, which the page shows too, and the facts on all photos for JSON.

    Raises:
        OutputError: the page cannot be written.
        WeightsError: the detector's weights are missing, and no report says where the faces are.
    """
    from anonface.review.page import Page

    finder, judge, remark = _checkers(detector, all(pair.faces is not None for pair in pairs))
    failures: Failures = []
    facts: list[dict[str, Any]] = []
    page = Page()
    with progress_bar("photos reviewed", len(pairs)) as advance:
        for done, pair in enumerate(pairs, start=1):
            photo, error = _reviewed(pair, finder, judge, max_pixels)
            if error:
                failures.append((pair, error))
                say(f"{pair.source}: not reviewed: {without_name(error, pair.source)}")
            page.add(photo)
            facts.append(_facts(pair, photo, error))
            advance(done, "")
    file.parent.mkdir(parents=True, exist_ok=True)
    page.write(file, f"Review of {count(len(pairs), 'photo')}", remark, overwrite)
    say(f"anonface: made {file}: {_summary(page.totals)}")
    say(f"anonface: note: {file} shows the original faces; keep it as safe as the photos")
    return failures, facts


def _checkers(detector: str, numbered: bool) -> tuple[Finder | None, Recognizer | None, str]:
    """The detector and the recognizer whose weights can be had, and what the page says of them.

    Args:
        numbered: whether the faces of all photos are known, so that a review is possible without a detector.
    """
    from anonface.errors import WeightsError
    from anonface.faces.detect import build_detector
    from anonface.faces.sface import LIMIT, NAME

    try:
        finder = build_detector(detector)
    except WeightsError:
        if not numbered:
            raise
        return None, None, "Left out: both checks, for want of the detector's weights."
    judge = _recognizer()
    if judge is None:
        say(f"anonface: note: without the weights {NAME}, faces are not compared with the originals")
        pull = f"`anonface weights pull {NAME}`"
        return finder, None, f"Left out: the comparison with the originals, for want of weights ({pull})."
    return finder, judge, f"Recognizer: {judge.name}. Below a distance of {LIMIT:.2f} two faces count as one person."


def _recognizer() -> Recognizer | None:
    """The recognizer, if its weights can be had."""
    from anonface import weights
    from anonface.faces.sface import NAME, SFace

    try:
        if weights.status([NAME])[0].state == "missing":
            with download_progress() as progress:
                weights.pull([NAME], progress)
        return SFace()
    except AnonfaceError:
        return None


def _reviewed(
    pair: Pair, detector: Finder | None, recognizer: Recognizer | None, max_pixels: int
) -> tuple[Reviewed, AnonfaceError | None]:
    """One photo with its checks; if it cannot be reviewed, also the reason."""
    from anonface.batch.task import open_photo
    from anonface.review.checks import check, faces_of
    from anonface.review.page import Reviewed

    name, before = escaped(pair.source), None
    try:
        before = open_photo(pair.source, max_pixels)[1].pixels
        if pair.result is None:
            return Reviewed(name, before, None, (), escaped(pair.note), pair.faceless), None
        data, photo = open_photo(pair.result, max_pixels)
        after = photo.pixels
        if after.shape != before.shape:
            sizes = [f"{pixels.shape[1]}x{pixels.shape[0]}" for pixels in (after, before)]
            raise ImageError(f"its result {str(pair.result)!r} is {sizes[0]} px, the photo {sizes[1]}")
        faces = pair.faces
        if faces is None:
            assert detector
            faces = tuple(faces_of(before, after, data, detector))
        return Reviewed(name, before, after, check(before, after, faces, detector, recognizer)), None
    except AnonfaceError as error:
        known = pair.note if pair.result is None else f"not reviewed: {without_name(error, pair.source)}"
        return Reviewed(name, before, None, (), escaped(known)), error if pair.result else None


def _facts(pair: Pair, photo: Reviewed, error: AnonfaceError | None) -> dict[str, Any]:
    return {
        "input": str(pair.source),
        "output": str(pair.result) if pair.result else None,
        "faces": [
            {
                "index": checked.face.index,
                "kind": checked.face.kind,
                "reason": checked.face.reason,
                "findings": list(checked.findings),
                "distance": None if checked.distance is None else round(checked.distance, 3),
            }
            for checked in photo.faces
        ],
        "error": error_json(error) if error else None,
    }


def _summary(totals: Totals) -> str:
    """Such as "12 photos, 2 of them without a result, 3 faces replaced; look first at 1 not found again, 2 small"."""
    from anonface.review.checks import FINDINGS
    from anonface.review.page import KINDS

    faces = [f"{count(totals.kinds[kind], 'face')} {word}" for kind, word in KINDS.items() if totals.kinds[kind]]
    missing = totals.groups["no result"]
    without = [f"{missing} of them without a result"] * bool(missing)
    said = ", ".join([count(totals.groups.total(), "photo"), *without, *(faces or ["no face"])])
    first = FINDINGS[: FINDINGS.index("small") + 1]
    grave = [f"{totals.findings[f]} {f}" for f in first if totals.findings[f] and f != "covered"]  # counted before
    return f"{said}; look first at {', '.join(grave)}" if grave else said
