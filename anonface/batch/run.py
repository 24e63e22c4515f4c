"""Many photos through one task: read ahead, processed in turn, written behind."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from anonface import signals
from anonface.batch.face_files import face_files
from anonface.batch.journal import Journal, Record
from anonface.batch.plan import Job, existing
from anonface.batch.task import FORMATS, Opened, State, Task, Treated, Verified, Write, write_files
from anonface.errors import (
    AnonfaceError,
    DeviceError,
    NoFaceError,
    OutputError,
    WeightsError,
    WrongKeyError,
)
from anonface.images import (
    Content,
    size_of,
)
from anonface.images.paths import check_target
from anonface.record.anf1 import FaceChecks, FaceReport

WRITTEN: tuple[State, ...] = ("done", "copied", "decoy")
OUT_OF_MEMORY = "out of memory"
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can(no|')t allocate( memory)?|not enough memory|insufficient memory", re.IGNORECASE
)
_NOT_LOADED = re.compile(
    r"failed to map segment|can't start new thread|resource temporarily unavailable", re.IGNORECASE
)


@dataclass(frozen=True)
class Outcome:
    """The result of one photo.

    Args:
        faces: one entry per face, unchanged ones included.
        tier: what recovery can use, see :class:`Treated`; empty if nothing was written.
        seconds: from reading to writing, without waiting.
        notes: for the user, one line each.
        ends: the run ends here, since the next photo would fail too.
        resumed: an earlier run wrote it.
        verified: whether the key was right, for a recovered photo.
    """

    job: Job
    state: State
    faces: tuple[FaceReport, ...] = ()
    tier: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    error: AnonfaceError | None = None
    ends: bool = False
    resumed: bool = False
    verified: Verified = "unknown"

    @property
    def exact(self) -> bool:
        """Whether the written file of a recovered photo has every pixel of the original."""
        lossless = FORMATS.get(self.job.target.suffix.lower()) != "jpeg"
        return self.tier == "file" or (self.tier == "face" and lossless)

    def record(self) -> Record:
        """The outcome for reports and journals; names files, and holds no digest, no face code and no key."""
        written = self.state in WRITTEN
        error = self.error
        return {
            "input": str(self.job.source),
            "output": self.job.output if written else None,
            "sidecar": str(self.job.sidecar) if self.job.sidecar and written else None,
            "state": self.state,
            "resumed": self.resumed,
            "tier": self.tier or None,
            "seconds": round(self.seconds, 3),
            "faces": [_face_record(face) for face in self.faces],
            **(
                {"face_files": [str(file) for file in face_files(self.job.faces)]} if self.job.faces and written else {}
            ),
            "warnings": list(self.notes),
            **({"verified": self.verified, "exact": self.exact} if self.job.direction == "recover" else {}),
            "error": {"code": error.exit_code, "message": error.message, "hint": error.hint} if error else None,
        }

    @classmethod
    def resume(cls, job: Job, record: Record) -> Outcome:
        """The outcome that an earlier run noted about a finished photo."""
        faces = [_face_report(face) for face in record["faces"]]
        job = job.written_as(Path(record["output"]))
        return cls(
            job,
            record["state"],
            tuple(faces),
            record["tier"] or "",
            record["seconds"],
            tuple(record["warnings"]),
            error=_decoy(job) if record["state"] == "decoy" else None,
            resumed=True,
            verified=record.get("verified", "unknown"),
        )


def _face_record(face: FaceReport) -> Record:
    record: Record = {
        "index": face.index,
        "kind": face.kind,
        "reason": face.reason,
        "box" if face.seen else "crop": [round(v, 1) for v in face.box],
    }
    if checks := face.checks:
        record |= {
            "found_before": checks.found_before,
            "found_after": checks.found_after,
            "matched": checks.matched,
            "similarity": None if checks.similarity is None else round(checks.similarity, 3),
            "covered": face.kind == "mosaic",
            "left": face.kind == "kept",
        }
    return record


def _face_report(record: Record) -> FaceReport:
    """The inverse of :func:`_face_record`."""
    checks = None
    if "found_before" in record:
        checks = FaceChecks(
            record["found_before"], record.get("found_after"), record.get("similarity"), record.get("matched")
        )
    box = tuple(record.get("box") or record["crop"])
    return FaceReport(record["index"], record["kind"], box, record["reason"], "box" in record, checks)


@dataclass(frozen=True)
class Rules:
    """The rules of a run for single photos.

    Args:
        overwrite: replace existing outputs.
        skip_existing: skip photos whose output exists.
        skip_faceless: skip photos without a face.
        journal: records what is written, and what an earlier run has written.
        write: how a photo's files are written, see :func:`write_files`.
    """

    overwrite: bool = False
    skip_existing: bool = False
    skip_faceless: bool = False
    journal: Journal | None = None
    write: Write = write_files

    def sort_out(self, jobs: Sequence[Job], report: Callable[[Outcome], None]) -> list[Job]:
        """The jobs that are left to do; the results of the others are reported."""
        ready = []
        for job in jobs:
            if record := self._finished(job):
                report(Outcome.resume(job, record))
            elif self.skip_existing and (there := existing(job)):
                report(Outcome(job, "skipped", notes=(f"{str(there)!r} exists",)))
            else:
                try:
                    for file in job.outputs:
                        check_target(file, job.source, self.overwrite)
                    ready.append(job)
                except OutputError as error:
                    report(Outcome(job, "failed", error=error))
        return ready

    def _finished(self, job: Job) -> Record | None:
        """What the journal says of a photo that was written; earlier versions wrote PNG for a JPEG too."""
        if not self.journal:
            return None
        as_png = replace(job, target=job.target.with_suffix(".png"))
        return next(filter(None, (self.journal.finished(made.outputs, job.source) for made in (job, as_png))), None)

    def failed(self, job: Job, raised: Exception, seconds: float = 0.0, ends: bool = False) -> Outcome:
        """The outcome of a photo that raised an error."""
        error = explained(raised)
        if isinstance(error, NoFaceError) and self.skip_faceless:
            return Outcome(job, "skipped", seconds=seconds, notes=(error.message,))
        # A device that is out of memory may work for a smaller photo; a lost device or missing weights will not.
        lost = isinstance(error, DeviceError) and not error.message.startswith(OUT_OF_MEMORY)
        ends = ends or lost or isinstance(error, WeightsError)
        return Outcome(job, "failed", seconds=seconds, error=error, ends=ends)

    def note(self, job: Job, outcome: Outcome, sizes: Sequence[tuple[Path, int]]) -> None:
        """Record the outcome in the journal, before the files are written."""
        if self.journal:
            self.journal.note(sizes, outcome.record(), job.target, job.source)

    def wrote(self, job: Job) -> None:
        """Record in the journal that the files were written, if it can be."""
        if self.journal:
            with suppress(OutputError):
                self.journal.written(job.outputs)


NO_RULES = Rules()


def done(job: Job, treated: Treated, files: Sequence[tuple[Path, Content]], seconds: float) -> Outcome:
    """The outcome of a photo once its files are written."""
    faces = tuple(treated.result.faces)
    job = job.written_as(files[-1][0])
    decoy = treated.verified == "no"
    state: State = "decoy" if decoy else "done" if faces else "copied"
    error = _decoy(job) if decoy else None
    return Outcome(job, state, faces, treated.tier, seconds, treated.notes, error, verified=treated.verified)


def _decoy(job: Job) -> WrongKeyError:
    return WrongKeyError(
        f"the key is not the one of this photo; {str(job.target)!r} is a decoy",
        "give the right key to recover the original",
    )


@dataclass
class _InHand:
    """A photo in progress."""

    job: Job
    opened: Future[tuple[Opened, float]] | None = None
    outcome: Outcome | None = None
    written: Future[None] | None = None


def run(
    jobs: Sequence[Job], task: Task, report: Callable[[Outcome], None], rules: Rules = NO_RULES, workers: int = 1
) -> None:
    """Run the jobs in order: photos are read ahead and written behind while the device works on one.

    All outputs are checked before the first photo; a photo that fails does not stop the others. An interrupt discards
    the photo that the device works on; earlier photos are written and reported first. Any exception after
    :mod:`anonface.signals` has received a signal counts as the interrupt.

    Args:
        report: called once per photo, in the order of the jobs; those that need no work come first.
        workers: number of threads, of photos read ahead, and of photos that wait to be written. Memory holds at most
            2 * ``workers`` + 1 photos.
    """
    waiting = deque(rules.sort_out(jobs, report))
    ahead: deque[_InHand] = deque()
    behind: deque[_InHand] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="anonface")

    def read_ahead() -> None:
        while waiting and len(ahead) < workers:
            ahead.append(_InHand(waiting.popleft()))
            ahead[-1].opened = pool.submit(_timed_open, task, ahead[-1].job)

    def close(hand: _InHand, opened: Opened, treated: Treated, seconds: float) -> None:
        started = time.perf_counter()
        try:
            files = task.files(opened, treated, hand.job.target, hand.job.sidecar, hand.job.faces)
            outcome = done(hand.job, treated, files, seconds + time.perf_counter() - started)
            rules.note(hand.job, outcome, [(file, size_of(data)) for file, data in files])
            rules.write(files, rules.overwrite)
            hand.outcome = outcome
            rules.wrote(hand.job)
        except Exception as raised:
            hand.outcome = rules.failed(hand.job, raised, seconds + time.perf_counter() - started)

    try:
        ends = False
        while (waiting or ahead) and not ends:
            signals.heed()
            read_ahead()
            hand = ahead.popleft()
            behind.append(hand)
            read_ahead()
            ends = _treat(hand, task, rules, pool, close)
            while behind and (behind[0].outcome or len(behind) > workers):
                if (first := behind[0]).written:
                    first.written.result()
                assert first.outcome
                behind.popleft()
                report(first.outcome)
    finally:
        for hand in ahead:
            if hand.opened:
                hand.opened.cancel()
        pool.shutdown(wait=True)
        for hand in behind:
            if hand.outcome:
                report(hand.outcome)


def _treat(hand: _InHand, task: Task, rules: Rules, pool: ThreadPoolExecutor, close: Callable[..., None]) -> bool:
    """Process one photo on the device and schedule its writing; returns whether the run ends."""
    assert hand.opened
    try:
        opened, seconds = hand.opened.result()
    except Exception as raised:
        hand.outcome = rules.failed(hand.job, raised)
        return hand.outcome.ends
    hand.opened = None  # frees the pixels once the photo is written
    try:
        task.ready(opened)
    except Exception as raised:
        signals.heed()
        hand.outcome = rules.failed(hand.job, raised, ends=True)
        return True
    started = time.perf_counter()
    try:
        treated = task.treat(opened)
    except Exception as raised:
        signals.heed()
        hand.outcome = rules.failed(hand.job, raised, seconds + time.perf_counter() - started)
        return hand.outcome.ends
    hand.written = pool.submit(close, hand, opened, treated, seconds + time.perf_counter() - started)
    return False


def _timed_open(task: Task, job: Job) -> tuple[Opened, float]:
    started = time.perf_counter()
    opened = task.open(job.photo, job.sidecar)
    return opened, time.perf_counter() - started


def explained(error: Exception) -> AnonfaceError:
    """The error as an AnonfaceError, with a hint where memory ran out."""
    if isinstance(error, AnonfaceError):
        return error
    text = " ".join(str(error).split())
    if _NOT_LOADED.search(text):
        known: AnonfaceError = DeviceError(
            f"{OUT_OF_MEMORY}: {text}", "raise the limits of memory and threads (see `ulimit -a`)"
        )
    elif isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
        known = DeviceError(
            OUT_OF_MEMORY, "lower --batch-size, refuse large photos with --max-pixels, or choose --device cpu"
        )
    else:
        known = AnonfaceError(
            f"unexpected {type(error).__name__}: {text}", "this is a bug; `anonface --debug ...` prints the traceback"
        )
    known.__cause__ = error
    return known
