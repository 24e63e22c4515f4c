"""A second process that shares the work: two engines with half the threads each are faster than one with all."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from anonface.errors import AnonfaceError
from anonface.evaluation.identity_ablation import ablations
from anonface.evaluation.judges import Judges, Original
from anonface.evaluation.measurements import Measured
from anonface.evaluation.trials import Pixels, Plan, Show, measure_photo


@dataclass(frozen=True)
class Worker:
    """How the second process makes its own engine and judges; picklable.

    Attributes:
        engine: makes the same engine as this process has.
        judges: makes the same judges.
    """

    engine: Callable[[], Any]
    judges: Callable[[], Judges] = Judges

    def measure_photos(
        self,
        measure: Callable[[Original], Measured],
        photos: Sequence[Original],
        gallery: Sequence[Original],
        plan: Plan,
        ablated: bool,
        show: Show | None = None,
    ) -> Iterator[Measured]:
        """Measure every second photo in the other process, the others in this one.

        Photos that the other process does not finish are measured in this one.

        Args:
            measure: measures one photo in this process.
            ablated: whether to recover without an identity code as well.
            show: called in this process, for photos of both.
        """
        threads, spawn = torch.get_num_threads(), get_context("spawn")
        share = max(1, threads // 2)
        receiver, sender = spawn.Pipe(duplex=False)
        arguments = (self, sender, photos[1::2], gallery, plan, ablated, show is not None, share)
        process = spawn.Process(target=_work, args=arguments, daemon=True)
        process.start()
        sender.close()
        torch.set_num_threads(share)
        left = {original.file.name: original for original in photos[1::2]}
        try:
            for original in photos[::2]:
                yield measure(original)
                yield from _received(receiver, left, show, wait=False)
            yield from _received(receiver, left, show, wait=True)
            yield from map(measure, left.values())
        finally:
            process.terminate()
            process.join()
            torch.set_num_threads(threads)


def _received(receiver: Connection, left: dict[str, Original], show: Show | None, wait: bool) -> Iterator[Measured]:
    """What was sent so far, or until the sender closes; it is removed from ``left``."""
    with contextlib.suppress(EOFError, OSError):
        while wait or receiver.poll():
            measured, versions = receiver.recv()
            original = left.pop(measured.file)
            if show and versions:
                show(original, versions)
            yield measured


def _work(
    worker: Worker,
    sender: Connection,
    photos: Sequence[Original],
    gallery: Sequence[Original],
    plan: Plan,
    ablated: bool,
    shown: bool,
    threads: int,
) -> None:
    """The second process. Errors end it silently: the first process meets them again on the photos left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    with contextlib.suppress(AnonfaceError, OSError):
        engine = worker.engine()
        ablated_engines = ablations(engine) if ablated else {}
        judges = worker.judges()
        for original in photos:
            seen: list[list[Pixels]] = []
            keep: Show | None = (lambda _, versions, seen=seen: seen.append(versions)) if shown else None
            measured = measure_photo(engine, judges, original, gallery, plan, ablated_engines, keep)
            sender.send((measured, seen[0] if seen else None))
