"""SIGINT and SIGTERM end a run in order, whatever libraries make of them on their way.

Both arrive as a KeyboardInterrupt, so that a run tidies up and reports. An exception may arise anywhere, though, and a
library that is in the middle of something may swallow it or raise an error of its own instead. So it is noted here that
a signal was received; what is raised afterwards is its doing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

ONE_WISH = 1.0  # seconds within which further signals are the same wish: tidying up is not to be interrupted

_received, _when = 0, 0.0


def listen() -> None:
    """Heed both from now on; where SIGINT is ignored, as in jobs in the background, it stays so."""
    _answer(_receive)


def end_at_once() -> None:
    """As long as nothing is begun, or all is done, both end the process with one line and nothing to tidy up."""
    _answer(_end)


def _answer(handler: Callable[[int, FrameType | None], None]) -> None:
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _receive, _end):
        signal.signal(signal.SIGINT, handler)


def exit_code() -> int:
    """130 or 143, of the signal that was received; 0 where none was."""
    return 128 + _received if _received else 0


def heed() -> None:
    """End what goes on if a signal was received.

    Raises:
        KeyboardInterrupt: one was.
    """
    if _received:
        raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"anonface: interrupted\n" if number == signal.SIGINT else b"anonface: terminated\n")
    os._exit(128 + number)


def _receive(number: int, frame: FrameType | None) -> None:
    global _received, _when
    repeated = _received and time.monotonic() - _when < ONE_WISH
    if not repeated:
        _received, _when = number, time.monotonic()
        heed()
