"""An engine in a process of its own, whose peak memory is the engine's alone."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anonface.crypto.keys import Key
from anonface.errors import DeviceError, UsageError

Pixels = NDArray[np.uint8]
Facts = Mapping[str, str | int | float]

_engine: Any = None  # of the process that serves


class Remote:
    """An :class:`anonface.evaluation.trials.Engine` in a fresh process, until it is closed.

    Keys are sent as text, so use only keys that protect nothing.

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
        self.name, self.seconds = name, 0.0
        self._process = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            self.about: Facts = self._ask(_make, make, describe)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Any:
        return self._ask(_anonymize, pixels, key.to_text(), consistent)

    def recover(self, pixels: Pixels, key: Key, header: None) -> Any:
        return self._ask(_recover, pixels, key.to_text())

    def peak(self) -> float:
        """Peak memory of the process up to now; see :func:`peak_memory`."""
        return float(self._ask(peak_memory))

    def close(self) -> None:
        self._process.shutdown()

    def _ask(self, call: Callable[..., Any], *arguments: object) -> Any:
        try:
            answer, self.seconds = self._process.submit(_timed, call, *arguments).result()
        except BrokenProcessPool:
            raise DeviceError(f"the process of {self.name} ended", "is there enough memory?") from None
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


def _timed(call: Callable[..., Any], *arguments: object) -> tuple[Any, float]:
    """The result of a call and its seconds. What it prints goes to stderr, since stdout is the evaluation's."""
    started = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        return call(*arguments), time.perf_counter() - started


def _make(make: Callable[[], Any], describe: Callable[[Any], Facts]) -> Facts:
    global _engine
    try:
        _engine = make()
    except ImportError as error:
        raise UsageError(f"it cannot be loaded: {error}", "install again what it is made of") from error
    return dict(describe(_engine))


def _anonymize(pixels: Pixels, key: str, consistent: bool) -> Any:
    return _engine.anonymize(pixels, Key.from_bytes(key.encode()), consistent=consistent)


def _recover(pixels: Pixels, key: str) -> Any:
    return _engine.recover(pixels, Key.from_bytes(key.encode()), None)
