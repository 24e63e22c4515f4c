"""Standard streams that are closed, or cannot be written: neither costs a result, nor a photo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from anonface.errors import OutputError, reason, remedy

STREAM = "-"  # the name of standard input and output


def open_standard_streams() -> None:
    """Where standard streams are closed, nothing takes their place: a photo would be written into, and be read."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the least number that is free
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(number, "r" if number == 0 else "w")  # noqa: PTH123, SIM115
        for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr))
    )


class Stdout:
    """Standard output whose failure, a full disk or a reader that went, stops nothing and is told in the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | ValueError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return len(text) if self.error else self._stream.write(text)
        except (OSError, ValueError) as error:
            self.error = error
            return len(text)

    def flush(self) -> None:
        try:
            if not self.error:
                self._stream.flush()
        except (OSError, ValueError) as error:
            self.error = error

    def failure(self) -> OutputError | None:
        """What to tell; Python is kept from trying again, and complaining, at its end."""
        self.flush()
        if not self.error:
            return None
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        failure = OutputError(f"standard output cannot be written: {reason(self.error)}", "files are complete")
        failure.__cause__ = self.error
        return failure


@contextmanager
def kept_for_photo() -> Iterator[Callable[[bytes], None]]:
    """Keep standard output for a photo: what Python or a library prints meanwhile goes to standard error.

    Yields:
        What writes the photo. It raises an OutputError where that fails.
    """
    sys.stdout.flush()
    photo = os.dup(1)

    def write(data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(photo, rest) :]
        except BrokenPipeError:
            raise OutputError(
                "standard output was closed before the whole photo was written", "what reads it has ended"
            ) from None
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {reason(error)}", remedy(error)) from None

    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield write
    finally:
        os.dup2(photo, 1)
        os.close(photo)
