"""The same run spread over a Ray cluster: every photo exactly once, and no secret in Ray's hands.

Each worker is an actor that makes its own task, so key files, passphrases and weights are read on the worker's node and
stay in its memory; a :class:`anonface.crypto.keys.Key` refuses to be pickled. Photos do not travel either: workers
read and write them where their paths lead, on a file system that all nodes share. What passes through Ray is paths,
options and outcomes.

A photo takes two calls. The first renders it and keeps the result in the worker; then the driver notes in the journal
what is about to be written, and the second writes. Where a worker dies before the second nothing was written, and the
photo goes to another; where it dies during the second, the journal's entry tells whether the photo lies there whole.
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
"""A photo over which so many workers died is given up: it may be what kills them."""


class Worker:
    """One worker, an actor in a process of its own.

    Args:
        make: makes the task, secrets and all.
    """

    def __init__(self, make: Callable[[], Task]) -> None:
        self._make = make
        self._task: Task | None = None
        self._files: list[tuple[Path, Content]] = []

    def here(self) -> None:
        """Answers once the worker has its place on a node."""

    def render(self, job: Job, rules: Rules) -> tuple[Outcome, list[tuple[Path, int]]]:
        """Do all but the writing; returns what will have become of the photo, and the sizes of its files."""
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
            self._files = self._task.files(opened, treated, job.target, job.sidecar)
        except Exception as raised:
            return rules.failed(job, raised, time.perf_counter() - started), []
        outcome = done(job, treated, self._files, time.perf_counter() - started)
        return outcome, [(file, size_of(data)) for file, data in self._files]

    def write(self, outcome: Outcome, rules: Rules) -> Outcome:
        """Write what was rendered last."""
        files, self._files = self._files, []
        try:
            write_files(files, rules.overwrite)
        except Exception as raised:
            return rules.failed(outcome.job, raised, outcome.seconds)
        return outcome


@dataclass
class _InHand:
    """A photo that a worker has: its place among the jobs, how often it was tried, and what it came to."""

    index: int
    job: Job
    attempts: int = 0
    rendered: Outcome | None = None


def run(
    jobs: Sequence[Job],
    make: Callable[[], Task],
    tell: Callable[[Outcome], None],
    rules: Rules = NO_RULES,
    *,
    workers: int | None = None,
    gpu: bool | None = None,
) -> None:
    """As :func:`anonface.batch.run.run`, on the cluster that RAY_ADDRESS names, one that runs here, or a new local one.

    Args:
        make: makes a worker's task on its node; picklable, so it holds no key.
        workers: how many at most; None takes one a GPU, or one a node where there is no GPU.
        gpu: whether each worker takes a GPU; None: where there are some.

    Raises:
        UsageError: Ray is not installed, or its cluster has no GPU and one is wanted.
        DeviceError: the cluster cannot be reached, or workers die before they get a photo.
    """
    ready = rules.sort_out(jobs, tell)
    if not ready:
        return
    with _ray() as ray:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if gpu and not gpus:
            raise UsageError("the Ray cluster has no GPU", "--device cpu works everywhere")
        on_gpu = gpus > 0 if gpu is None else gpu
        count = workers or (gpus if on_gpu else sum(node["Alive"] for node in ray.nodes()))
        actor = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_restarts=0, max_task_retries=0)(Worker)
        _Crew(ray, lambda: actor.remote(make), ready, tell, rules).work(min(count, len(ready)))


class _Crew:
    """The driver's side of a run: who does what, and what came of it."""

    def __init__(
        self, ray: Any, hire: Callable[[], Any], jobs: list[Job], tell: Callable[[Outcome], None], rules: Rules
    ) -> None:
        self._ray, self._hire, self._jobs, self._tell = ray, hire, jobs, tell
        self._journal, self._rules = rules.journal or Journal(None), replace(rules, journal=None)
        # Workers know no working directory of ours: they get absolute paths, and outcomes the user's.
        self._waiting = deque(_InHand(index, _absolute(job)) for index, job in enumerate(jobs))
        self._idle: list[Any] = []
        self._calls: dict[Any, tuple[Any, _InHand | None]] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._told = 0
        self._stillborn = 0

    def work(self, count: int) -> None:
        """Do all jobs with so many workers."""
        try:
            for _ in range(count):
                self._call(self._hire())
            while (self._waiting or any(hand for _, hand in self._calls.values())) and not self._ends():
                (call,), _ = self._ray.wait(list(self._calls), num_returns=1)
                self._heed(call)
                while self._told in self._outcomes:
                    self._told += 1
                    self._tell(self._outcomes[self._told - 1])
        finally:
            self._dismiss()
            for index in sorted(index for index in self._outcomes if index >= self._told):
                self._tell(self._outcomes[index])

    def _call(self, worker: Any, hand: _InHand | None = None) -> None:
        """Let a worker go on with its photo; without one, ask whether it is there."""
        if hand is None:
            call = worker.here.remote()
        elif hand.rendered:
            call = worker.write.remote(hand.rendered, self._rules)
        else:
            hand.attempts += 1
            call = worker.render.remote(hand.job, self._rules)
        self._calls[call] = worker, hand

    def _heed(self, call: Any) -> None:
        """Take a worker's answer and give it the next thing to do."""
        worker, hand = self._calls.pop(call)
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayActorError as error:
            self._mourn(hand, error)
            if self._waiting and self._idle:
                self._call(self._idle.pop(), self._waiting.popleft())
            elif self._waiting:
                self._call(self._hire())
            return
        if hand and hand.rendered is None and answer[1]:
            try:
                self._journal.note(answer[1], self._ours(hand, answer[0]).record(), hand.job.target)
            except OutputError as error:
                self._settle(hand, self._rules.failed(hand.job, error))
            else:
                hand.rendered = answer[0]
                self._call(worker, hand)
                return
        elif hand:
            self._settle(hand, answer if hand.rendered else answer[0])
        if self._waiting and not self._ends():
            self._call(worker, self._waiting.popleft())
        else:
            self._idle.append(worker)

    def _mourn(self, hand: _InHand | None, error: Exception) -> None:
        """A worker died: its photo lies there whole, is tried again, or is given up."""
        if hand is None:
            self._stillborn += 1
            if self._stillborn >= ATTEMPTS:
                reason = str(error).strip().splitlines()[-1]
                raise DeviceError(
                    f"Ray's workers die before they begin: {reason}", "install the same anonface on every node"
                ) from error
        elif hand.rendered and self._journal.finished(hand.job.outputs):
            self._settle(hand, hand.rendered)
        elif hand.attempts < ATTEMPTS:
            hand.rendered = None
            self._waiting.appendleft(hand)
        else:
            given_up = DeviceError(OUT_OF_MEMORY + f", or the like: {ATTEMPTS} workers died over this photo")
            self._settle(hand, self._rules.failed(hand.job, given_up))

    def _settle(self, hand: _InHand, outcome: Outcome) -> None:
        self._outcomes[hand.index] = self._ours(hand, outcome)

    def _ours(self, hand: _InHand, outcome: Outcome) -> Outcome:
        """The outcome under the user's paths."""
        return replace(outcome, job=self._jobs[hand.index].written_as(outcome.job.target))

    def _ends(self) -> bool:
        return any(outcome.ends for outcome in self._outcomes.values())

    def _dismiss(self) -> None:
        """End the workers: what is being rendered is discarded, what is being written is finished."""
        for call, (worker, hand) in self._calls.items():
            if hand and hand.rendered:
                with suppress(self._ray.exceptions.RayActorError):
                    self._settle(hand, self._ray.get(call))
            self._ray.kill(worker)


@contextmanager
def _ray() -> Iterator[Any]:
    """Ray, connected, unless the caller's program has connected it already."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray", "pip install '.[ray]' in a clone of anonface") from None
    connected = ray.is_initialized()
    if not connected:
        try:
            ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
        except Exception as error:
            raise DeviceError(f"the Ray cluster cannot be reached: {error}", "RAY_ADDRESS names it") from error
    try:
        yield ray
    finally:
        if not connected:
            ray.shutdown()


def _absolute(job: Job) -> Job:
    sidecar = job.sidecar.absolute() if job.sidecar else None
    return replace(job, source=job.source.absolute(), target=job.target.absolute(), sidecar=sidecar)
