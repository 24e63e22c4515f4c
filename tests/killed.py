"""Writes that are killed, from a process so small that it forks in no time. Prints a JSON line a kill.

python tests/killed.py lines|random old|none links|nolinks
"""

import contextlib
import errno
import fcntl  # noqa: F401 (lest a writer be killed a thousand times while it loads it)
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from anonface.images import write_atomic

TARGET, OLD = Path("out"), b"old" * 1000
TIMES = 200


def attempt(kill, new, old):
    """Start over, write in a process of its own that ``kill`` puts an end to; what that left."""
    for file in Path().glob(".anonface-*.tmp"):
        file.unlink()
    TARGET.unlink(missing_ok=True)
    if old:
        TARGET.write_bytes(OLD)
    process = os.fork()
    if process == 0:
        if kill:
            kill(os.getpid())
        write_atomic(TARGET, new, overwrite=old)
        sys.settrace(None)
        os._exit(0)
    return process


def outcome(process, new):
    """The exit code (minus the signal), what the target holds, and how many temporary files lie about."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    content = TARGET.read_bytes() if TARGET.exists() else None
    state = {None: "none", OLD: "old", new: "new"}.get(content, "torn")
    print(json.dumps([code, state, len(list(Path().glob(".anonface-*.tmp")))]))
    return code


def at_line(number):
    """Kill the process when it is about to run its n-th line of Python from here."""

    def start(process):
        left = number

        def trace(frame, event, argument):
            nonlocal left
            left -= event == "line"
            if left == 0:
                os.kill(process, signal.SIGKILL)
            return trace

        sys.settrace(trace)

    return start


def main(how, old, links):
    if links == "nolinks":

        def refuse(self, target):
            raise OSError(errno.EPERM, "no hard links here")

        Path.hardlink_to = refuse
    if how == "lines":
        new, number = b"new" * 10_000, 1
        while outcome(attempt(at_line(number), new, old == "old"), new):
            number += 1
        return
    new, chance = os.urandom(1_000_000), random.Random(5)
    started = time.monotonic()
    for _ in range(5):
        os.waitpid(attempt(None, new, old == "old"), 0)
    whole = (time.monotonic() - started) / 5
    for _ in range(TIMES):
        process = attempt(None, new, old == "old")
        time.sleep(chance.uniform(0, 1.3 * whole))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        outcome(process, new)


if __name__ == "__main__":
    main(*sys.argv[1:])
