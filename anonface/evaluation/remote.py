"""An engine in a process of its own, whose peak memory is the engine's alone."""

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

from anonface.crypto.keys import Key
from anonface.errors import AnonfaceError, DeviceError, UsageError

Pixels = NDArray[np.uint8]
Facts = Mapping[str, str | int | float]


class Remote:
    """An :class:`anonface.evaluation.trials.Engine` in a fresh process, until it is closed.

    Pixels, results and keys pass through a local pipe. Keys are sent as text, so use only keys that protect nothing.

    Args:
        name: for messages.
        make: makes the engine there; picklable.
        describe: facts about it; picklable.

    Raises:
        AnonfaceError: as ``make`` raises it.
        UsageError: a library that it needs cannot be loaded.
        DeviceError: the process ended, for instance without enough memory.

    Attributes:
        about: result of ``describe``.
        seconds: of the last call in the process, without the transfer.
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
        """Peak memory of the process up to now; see :func:`peak_memory`."""
        return float(self._ask("peak"))

    def close(self) -> None:
        self._end.close()
        self._process.terminate()
        self._process.join()

    def _ask(self, *question: object) -> Any:
        with contextlib.suppress(OSError):  # the answer tells the cause
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
    """Peak memory of this process in bytes; NaN where the system does not tell.

    On Linux VmHWM, since ``ru_maxrss`` of a started process may be that of its parent.
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
    """The process: it answers one call at a time until the pipe closes.

    Its output goes to stderr, since stdout is the evaluation's.
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
    """The answer to one call; expected errors are returned."""
    try:
        if what == "peak":
            return peak_memory()
        pixels, key = given[0], Key.from_bytes(given[1].encode())
        if what == "anonymize":
            return engine.anonymize(pixels, key, consistent=given[2])
        return engine.recover(pixels, key, None)
    except AnonfaceError as error:
        return error
