"""An engine in a process of its own: the memory of that process is what the engine needs, and nobody else's."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anonface.errors import AnonfaceError, DeviceError, UsageError
from anonface.keys import Key

Pixels = NDArray[np.uint8]
Facts = Mapping[str, str | int | float]


class Remote:
    """An engine as :class:`anonface.evaluation.trials.Engine`, made and kept by a fresh process until it is closed.

    Pixels, results and keys pass through a pipe of this machine. Keys are sent as text, so it is for keys that protect
    nothing, as those of an evaluation.

    Args:
        name: for messages.
        make: makes the engine there; picklable.
        describe: says what it is; picklable.

    Raises:
        AnonfaceError: as ``make`` raises it.
        UsageError: a library that it needs cannot be loaded.
        DeviceError: the process ended, for instance for want of memory.

    Attributes:
        about: what ``describe`` said.
        seconds: what the last answer took over there, without its way here.
    """

    def __init__(self, name: str, make: Callable[[], Any], describe: Callable[[Any], Facts]) -> None:
        self.name, spawn = name, get_context("spawn")
        self._end, there = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(make, describe, there), daemon=True)
        self._process.start()
        there.close()
        try:
            self.seconds = 0.0
            self.about: Facts = self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Any:
        return self._ask("anonymize", pixels, key.to_text(), consistent)

    def recover(self, pixels: Pixels, key: Key, header: None) -> Any:
        return self._ask("recover", pixels, key.to_text())

    def peak(self) -> float:
        """See :func:`peak_memory`; of the engine's process, up to now."""
        return float(self._ask("peak"))

    def close(self) -> None:
        self._end.close()
        self._process.terminate()
        self._process.join()

    def _ask(self, *question: object) -> Any:
        with contextlib.suppress(OSError):  # what is wrong shows in the answer
            self._end.send(question)
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer = self._end.recv()
        except (EOFError, OSError):
            self._process.join(5)
            raise DeviceError(
                f"the process of {self.name} ended with exit code {self._process.exitcode}", "is there enough memory?"
            ) from None
        answer, self.seconds = answer
        if isinstance(answer, AnonfaceError):
            raise answer
        return answer


def peak_memory() -> float:
    """The most bytes that this process has held in memory since it was started; NaN where the system does not say.

    On Linux VmHWM: ``ru_maxrss`` of a process that another one started may be that other one's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = (line.split() for line in status.read_text().splitlines())
        return next((1024.0 * int(words[1]) for words in lines if words[:1] == ["VmHWM:"]), math.nan)
    try:
        import resource
    except ImportError:
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def _serve(make: Callable[[], Any], describe: Callable[[Any], Facts], end: Connection) -> None:
    """The process: it answers one question at a time, and ends when nobody asks any more.

    Whatever tools say there goes to stderr, since stdout is the evaluation's own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError), contextlib.redirect_stdout(sys.stderr):
        try:
            engine = make()
            end.send((dict(describe(engine)), 0.0))
        except AnonfaceError as error:
            end.send((error, 0.0))
            return
        except ImportError as error:
            end.send((UsageError(f"it cannot be loaded: {error}", "install again what it is made of"), 0.0))
            return
        while True:
            question = end.recv()
            started = time.perf_counter()
            answer = _done(engine, *question)
            end.send((answer, time.perf_counter() - started))


def _done(engine: Any, what: str, *given: Any) -> Any:
    """The answer to one question; an expected failure is one too."""
    try:
        if what == "peak":
            return peak_memory()
        pixels, key = given[0], Key.from_bytes(given[1].encode())
        if what == "anonymize":
            return engine.anonymize(pixels, key, consistent=given[2])
        return engine.recover(pixels, key, None)
    except AnonfaceError as error:
        return error
