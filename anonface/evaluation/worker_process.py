"""A second process beside this one: two engines with half the threads each do more in a minute than one with all."""

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
from anonface.evaluation.trials import Measured, Pixels, Plan, Show, measure_photo


@dataclass(frozen=True)
class Worker:
    """What a second process is told; it must survive pickling.

    Attributes:
        engine: makes the same engine as this process has.
        judges: makes the same judges.
    """

    engine: Callable[[], Any]
    judges: Callable[[], Judges] = Judges

    def measure_photos(
        self,
        tried: Callable[[Original], Measured],
        photos: Sequence[Original],
        gallery: Sequence[Original],
        plan: Plan,
        mute: bool,
        show: Show | None = None,
    ) -> Iterator[Measured]:
        """Every photo's measurements: every second one by the other process, the others by ``tried``, in this one.

        What the other process does not finish, whatever ends it, is done here.

        Args:
            mute: whether to recover without an identity code as well.
            show: called, in this process, with what the photos of the other one look like.
        """
        threads, spawn = torch.get_num_threads(), get_context("spawn")
        share = max(1, threads // 2)
        here, there = spawn.Pipe(duplex=False)
        told = (self, there, photos[1::2], gallery, plan, mute, show is not None, share)
        other = spawn.Process(target=_measure, args=told, daemon=True)
        other.start()
        there.close()
        torch.set_num_threads(share)
        left = {original.file.name: original for original in photos[1::2]}
        try:
            for original in photos[::2]:
                yield tried(original)
                yield from _received(here, left, show, wait=False)
            yield from _received(here, left, show, wait=True)
            yield from map(tried, left.values())
        finally:
            other.terminate()
            other.join()
            torch.set_num_threads(threads)


def _received(end: Connection, left: dict[str, Original], show: Show | None, wait: bool) -> Iterator[Measured]:
    """What has been sent by now, or all until the other end is closed; it is ``left`` no more."""
    with contextlib.suppress(EOFError, OSError):
        while wait or end.poll():
            measured, versions = end.recv()
            original = left.pop(measured.file)
            if show and versions:
                show(original, versions)
            yield measured


def _measure(
    worker: Worker,
    end: Connection,
    photos: Sequence[Original],
    gallery: Sequence[Original],
    plan: Plan,
    mute: bool,
    shown: bool,
    threads: int,
) -> None:
    """The second process: it ends when nobody listens any more, and leaves it to the first to say what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    with contextlib.suppress(AnonfaceError, OSError):
        engine = worker.engine()
        silent = ablations(engine) if mute else {}
        judges = worker.judges()
        for original in photos:
            seen: list[list[Pixels]] = []
            keep: Show | None = (lambda _, versions, seen=seen: seen.append(versions)) if shown else None
            measured = measure_photo(engine, judges, original, gallery, plan, silent, keep)
            end.send((measured, seen[0] if seen else None))
