"""``anonface weights``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anonface.cli.console import NOT_READY, download_progress, escaped, megabytes, print_json, say, table
from anonface.cli.doctor import runs
from anonface.cli.options import AsJson
from anonface.errors import count

if TYPE_CHECKING:
    from anonface.weights import Status


Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Names of files, as `anonface weights list` shows them.")
]


def list_weights(as_json: AsJson = False) -> None:
    """List all weight files, their purpose and their state."""
    from anonface import weights

    found = weights.status()
    if as_json:
        print_json({"exit": 0, "cache": str(weights.cache_dir()), "files": [_status_json(status) for status in found]})
        return
    rows = [(s.entry.name, s.state, s.entry.needed_for, megabytes(s.entry.size), s.entry.role) for s in found]
    table(("name", "state", "needed for", "MB", "what it is"), rows)


def pull_weights(
    names: Names = None,
    accept_unknown: Annotated[
        bool,
        typer.Option("--accept-unknown", help="Accept files without a published sha256, and pin the one they have."),
    ] = False,
    needed_for: Annotated[
        Literal["run", "evaluation", "training"],
        typer.Option(help="Purpose of the files to download if none is named."),
    ] = "run",
) -> None:
    """Download weight files, by default those that running needs."""
    from anonface import weights

    wanted = names or [entry.name for entry in weights.entries() if entry.needed_for == needed_for]
    with download_progress() as progress:
        paths = weights.pull(wanted, progress, accept_unknown=accept_unknown)
    say(f"anonface: {count(len(paths), 'file')} ready")


def verify_weights(names: Names = None) -> int:
    """Check the sha256 of every downloaded file.

    The exit code is 9 if a file is wrong, or one that running needs is missing.
    """
    from anonface import weights

    found = [status for status in weights.verify(names or None) if status.state != "missing" or names or runs(status)]
    table(("name", "state", "file"), [(s.entry.name, s.state, str(s.path or "")) for s in found])
    return NOT_READY if any(status.state in ("missing", "wrong") for status in found) else 0


def weights_licenses(names: Names = None) -> None:
    """Show the licence and origin of every file."""
    from anonface import weights

    for entry in map(weights.entry, names) if names else weights.entries():
        print(escaped(f"{entry.name}: {entry.licence}. {entry.made_how}".rstrip()))
        if entry.licence_note:
            print(escaped(f"    {entry.licence_note}"))


def _status_json(status: Status) -> dict[str, Any]:
    entry = status.entry
    return {
        "name": entry.name,
        "state": status.state,
        "path": str(status.path) if status.path else None,
        "needed_for": entry.needed_for,
        "bytes": entry.size,
        "sha256": entry.sha256,
        "licence": entry.licence,
    }
