"""Messages of C libraries that appear only on standard error."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

STDERR = 2

_ALONE = threading.Lock()  # there is one standard error for all threads


@contextmanager
def messages() -> Iterator[list[str]]:
    """Collect, line by line, what is written to the process's standard error; the list is filled at the end.

    Other threads write there too: the caller passes their lines to :func:`pass_on`.
    """
    lines: list[str] = []
    with _ALONE, _unnamed() as file:
        try:
            before = os.dup(STDERR)
        except OSError:
            before = None  # closed
        os.dup2(file.fileno(), STDERR)
        try:
            yield lines
        finally:
            if before is None:
                os.close(STDERR)
            else:
                os.dup2(before, STDERR)
                os.close(before)
            file.seek(0)
            lines += file.read().decode("utf-8", "replace").splitlines(keepends=True)


def pass_on(lines: list[str]) -> None:
    """Write lines to standard error after all, if there is one."""
    if lines:
        try:
            os.write(STDERR, "".join(lines).encode("utf-8", "replace"))
        except OSError:
            return


def _unnamed() -> IO[bytes]:
    """A file without a name: in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("messages"), "w+b")
    return tempfile.TemporaryFile()
