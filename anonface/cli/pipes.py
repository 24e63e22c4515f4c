"""Photos from standard input and to standard output: both are named "-"."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anonface.errors import ImageError, OutputError, UsageError
from anonface.streams import STREAM, kept_for_photo

if TYPE_CHECKING:
    from anonface.batch.plan import Job
    from anonface.batch.task import Write
    from anonface.images import Content


def takes_stdin(paths: Sequence[str]) -> bool:
    """Whether the photo comes from standard input.

    Raises:
        UsageError: other photos are named too, or it is named twice.
    """
    if STREAM in paths and len(paths) > 1:
        raise UsageError("- reads one photo from standard input, and takes no others beside it", "give - alone")
    return STREAM in paths


def refuse_streams(files: Mapping[str, object]) -> None:
    """Refuse "-" where a file must be named.

    Args:
        files: what options name, by option.

    Raises:
        UsageError: one of them is "-".
    """
    for option, file in files.items():
        if str(file) == STREAM:
            raise UsageError(f"{option} - is not possible: only a photo goes through a pipe", f"name a file: {option}")


def check_stdout(as_json: bool) -> None:
    """Whether a photo can go to standard output.

    Raises:
        UsageError: it is a terminal, or takes JSON.
    """
    if as_json:
        raise UsageError(
            "--json and the photo would both go to standard output", "write the photo to a file with -o FILE"
        )
    if sys.stdout.isatty():
        raise UsageError(
            "a photo is not written to the terminal", "redirect it, as in `> photo.jpg`, or name a file with -o FILE"
        )


def read_stdin(secrets: Iterable[Path | None] = ()) -> bytes:
    """The photo that standard input holds.

    Args:
        secrets: the files of key and passphrase.

    Raises:
        ImageError: it is empty, or cannot be read.
        LimitError: it has more than 256 MiB.
        UsageError: it is a terminal, or one of ``secrets`` too.
    """
    from anonface.images.files import check_size
    from anonface.images.sources import read_source

    for file in filter(None, secrets):
        if _is_stdin(file):
            raise UsageError(f"{str(file)!r} and the photo would both be read from standard input", "name a file")
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal, not a photo", "pipe a photo into it, or name its file")
    data = read_source(sys.stdin.buffer)
    check_size(data, "standard input")
    if not data:
        raise ImageError("standard input is empty", "pipe a photo into it")
    return data


def _is_stdin(file: Path) -> bool:
    if str(file) == STREAM:
        return True
    try:
        return os.path.samestat(file.stat(), os.fstat(0)) and not file.is_file()
    except OSError:
        return False


@contextmanager
def writer(jobs: Sequence[Job]) -> Iterator[Write]:
    """Yields what writes the files of the jobs: to standard output where their photo is piped, else to the disk."""
    from anonface.batch.task import write_files

    if not jobs[0].piped:
        yield write_files
        return
    with kept_for_photo() as write_photo:

        def write(files: Sequence[tuple[Path, Content]], overwrite: bool) -> None:
            *records, (_, photo) = files
            write_files(records, overwrite)
            try:
                write_photo(photo if isinstance(photo, bytes) else b"".join(photo))
            except OutputError:
                for record, _ in records:  # of a photo that nobody has
                    record.unlink(missing_ok=True)
                raise

        yield write
