"""The same run on a Ray cluster: every photo exactly once, and no secret passes through Ray.

Each worker is an actor that makes its own task, so key files, passphrases and weights are read on the worker's node and
stay in its memory; a :class:`anonface.crypto.keys.Key` cannot be pickled. Photos do not pass through Ray either:
workers read and write them on a file system that all nodes share. Only paths, options and outcomes pass through Ray.

A photo takes two calls. The first renders it and keeps the result in the worker; then the driver notes in the journal
what is about to be written, and the second writes. If a worker dies before the second call, nothing was written, and
another worker takes the photo. If it dies during the second call, the journal shows whether the photo was written.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anonface.batch.journal import Journal
from anonface.batch.plan import Job
from anonface.batch.run import NO_RULES, OUT_OF_MEMORY, Outcome, Rules, done
from anonface.batch.task import Task, write_files
from anonface.errors import DeviceError, OutputError, UsageError
from anonface.images import Content, size_of

ATTEMPTS = 3
"""A photo is given up after so many workers died with it."""


class Worker:
    """One worker, an actor in a process of its own.

    Args:
        make: makes the task, with its key.
    """

    def __init__(self, make: Callable[[], Task]) -> None:
        self._make = make
        self._task: Task | None = None
        self._files: list[tuple[Path, Content]] = []

    def ready(self) -> None:
        """Return once the worker runs on a node."""

    def render(self, job: Job, rules: Rules) -> tuple[Outcome, list[tuple[Path, int]]]:
        """Do all but the writing; returns the outcome of the photo and the sizes of its files."""
        started = time.perf_counter()
        self._files = []
        try:
            self._task = self._task or self._make()
            opened = self._task.open(job.source, job.sidecar)
        except Exception as raised:
            return rules.failed(job, raised, ends=self._task is None), []
        try:
            self._task.ready(opened)
        except Exception as raised:
            return rules.failed(job, raised, ends=True), []
        try:
            treated = self._task.treat(opened)
            self._files = self._task.files(opened, treated, job.target, job.sidecar, job.faces)
        except Exception as raised:
            return rules.failed(job, raised, time.perf_counter() - started), []
        outcome = done(job, treated, self._files, time.perf_counter() - started)
        return outcome, [(file, size_of(data)) for file, data in self._files]

    def write(self, outcome: Outcome, rules: Rules) -> Outcome:
        """Write the files of the photo that was rendered last."""
        files, self._files = self._files, []
        try:
            write_files(files, rules.overwrite)
        except Exception as raised:
            return rules.failed(outcome.job, raised, outcome.seconds)
        return outcome


@dataclass
class _InHand:
    """A photo in progress: its position among the jobs, the number of attempts, and its outcome."""

    index: int
    job: Job
    attempts: int = 0
    rendered: Outcome | None = None


def run(
    jobs: Sequence[Job],
    make: Callable[[], Task],
    report: Callable[[Outcome], None],
    rules: Rules = NO_RULES,
    *,
    workers: int | None = None,
    gpu: bool | None = None,
) -> None:
    """As :func:`anonface.batch.run.run`, on the cluster that RAY_ADDRESS names, one that runs here, or a new local one.

    Args:
        make: makes a worker's task on its node; picklable, so it holds no key.
        workers: their largest number; None takes one per GPU, or one per node without GPUs.
        gpu: whether each worker takes a GPU; None: if there are any.

    Raises:
        UsageError: Ray is not installed, or its cluster has no GPU and one is wanted.
        DeviceError: the cluster cannot be reached, or workers die before they get a photo.
    """
    ready = rules.sort_out(jobs, report)
    if not ready:
        return
    with _ray() as ray:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if gpu and not gpus:
            raise UsageError("the Ray cluster has no GPU", "--device cpu works everywhere")
        on_gpu = gpus > 0 if gpu is None else gpu
        count = workers or (gpus if on_gpu else sum(node["Alive"] for node in ray.nodes()))
        actor = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_restarts=0, max_task_retries=0)(Worker)
        _Driver(ray, lambda: actor.remote(make), ready, report, rules).work(min(count, len(ready)))


class _Driver:
    """The driver of a run: distributes the photos and collects their outcomes."""

    def __init__(
        self,
        ray: Any,
        start_worker: Callable[[], Any],
        jobs: list[Job],
        report: Callable[[Outcome], None],
        rules: Rules,
    ) -> None:
        self._ray, self._start_worker, self._jobs, self._report = ray, start_worker, jobs, report
        self._journal, self._rules = rules.journal or Journal(None), replace(rules, journal=None)
        # Workers have another working directory: they get absolute paths, and outcomes get the user's paths.
        self._waiting = deque(_InHand(index, _absolute(job)) for index, job in enumerate(jobs))
        self._idle: list[Any] = []
        self._calls: dict[Any, tuple[Any, _InHand | None]] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._reported = 0
        self._failed_starts = 0

    def work(self, count: int) -> None:
        """Do all jobs with ``count`` workers."""
        try:
            for _ in range(count):
                self._call(self._start_worker())
            while (self._waiting or any(hand for _, hand in self._calls.values())) and not self._ends():
                (call,), _ = self._ray.wait(list(self._calls), num_returns=1)
                self._handle(call)
                while self._reported in self._outcomes:
                    self._reported += 1
                    self._report(self._outcomes[self._reported - 1])
        finally:
            self._stop_workers()
            for index in sorted(index for index in self._outcomes if index >= self._reported):
                self._report(self._outcomes[index])

    def _call(self, worker: Any, hand: _InHand | None = None) -> None:
        """Give a worker the next step of its photo; without a photo, wait until the worker is ready."""
        if hand is None:
            call = worker.ready.remote()
        elif hand.rendered:
            call = worker.write.remote(hand.rendered, self._rules)
        else:
            hand.attempts += 1
            call = worker.render.remote(hand.job, self._rules)
        self._calls[call] = worker, hand

    def _handle(self, call: Any) -> None:
        """Handle a worker's result and give it the next step."""
        worker, hand = self._calls.pop(call)
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayActorError as error:
            self._replace_worker(hand, error)
            if self._waiting and self._idle:
                self._call(self._idle.pop(), self._waiting.popleft())
            elif self._waiting:
                self._call(self._start_worker())
            return
        if hand and hand.rendered is None and answer[1]:
            try:
                record = self._outcome_of(hand, answer[0]).record()
                self._journal.note(answer[1], record, hand.job.target, hand.job.source)
            except OutputError as error:
                self._settle(hand, self._rules.failed(hand.job, error))
            else:
                hand.rendered = answer[0]
                self._call(worker, hand)
                return
        elif hand:
            if hand.rendered:
                with suppress(OutputError):
                    self._journal.written(hand.job.outputs)
            self._settle(hand, answer if hand.rendered else answer[0])
        if self._waiting and not self._ends():
            self._call(worker, self._waiting.popleft())
        else:
            self._idle.append(worker)

    def _replace_worker(self, hand: _InHand | None, error: Exception) -> None:
        """Handle the death of a worker: its photo is finished, tried again, or given up."""
        if hand is None:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                reason = str(error).strip().splitlines()[-1]
                raise DeviceError(
                    f"Ray's workers die at their start: {reason}", "install the same anonface on every node"
                ) from error
        elif hand.rendered and self._journal.finished(hand.job.outputs):
            self._settle(hand, hand.rendered)
        elif hand.attempts < ATTEMPTS:
            hand.rendered = None
            self._waiting.appendleft(hand)
        else:
            given_up = DeviceError(OUT_OF_MEMORY + f", or similar: {ATTEMPTS} workers died while processing this photo")
            self._settle(hand, self._rules.failed(hand.job, given_up))

    def _settle(self, hand: _InHand, outcome: Outcome) -> None:
        self._outcomes[hand.index] = self._outcome_of(hand, outcome)

    def _outcome_of(self, hand: _InHand, outcome: Outcome) -> Outcome:
        """The outcome with the user's paths."""
        return replace(outcome, job=self._jobs[hand.index].written_as(outcome.job.target))

    def _ends(self) -> bool:
        return any(outcome.ends for outcome in self._outcomes.values())

    def _stop_workers(self) -> None:
        """Stop the workers: photos being rendered are discarded, photos being written are finished."""
        for call, (worker, hand) in self._calls.items():
            if hand and hand.rendered:
                with suppress(self._ray.exceptions.RayActorError):
                    self._settle(hand, self._ray.get(call))
            self._ray.kill(worker)


@contextmanager
def _ray() -> Iterator[Any]:
    """Ray, connected; a connection of the caller is kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray", "pip install '.[ray]' in a clone of anonface") from None
    connected = ray.is_initialized()
    if not connected:
        try:
            ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
        except Exception as error:
            raise DeviceError(
                f"the Ray cluster cannot be reached: {error}", "set RAY_ADDRESS to its address"
            ) from error
    try:
        yield ray
    finally:
        if not connected:
            ray.shutdown()


def _absolute(job: Job) -> Job:
    sidecar = job.sidecar.absolute() if job.sidecar else None
    faces = job.faces.absolute() if job.faces else None
    return replace(job, source=job.source.absolute(), target=job.target.absolute(), sidecar=sidecar, faces=faces)
