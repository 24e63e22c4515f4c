"""``anonface man``: the manual page, made from the help of every command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer

from anonface.cli.help import written_help

SUMMARY = "anonymize faces in photos under a key, and recover them with it"
TITLE = '.TH ANONFACE 1 "" "anonface {version}" "User commands"'


def man(ctx: typer.Context) -> None:
    """Print the manual page in roff: `anonface man > anonface.1`."""
    from anonface import __version__

    root = ctx.find_root()
    print(TITLE.format(version=__version__))
    print(f".SH NAME\nanonface \\- {_escaped(SUMMARY)}")
    for name, text in written_help(root.command, root.info_name or "anonface"):
        print(f".SH {_escaped(name).upper()}")
        print("\n".join(_lines(text)))


def _lines(text: str) -> Iterator[str]:
    """Help as roff that keeps its lines."""
    yield ".nf"
    for line in text.rstrip().splitlines():
        yield _escaped(line)
    yield ".fi"


def _escaped(line: str) -> str:
    """A line in which roff finds no requests and no hyphens of its own."""
    return re.sub(r"^([.'])", r"\\&\1", line.replace("\\", r"\e").replace("-", r"\-"))
