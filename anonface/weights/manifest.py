"""weights.toml: every file that can be used, its sources, digest and terms."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

from anonface.errors import WeightsError
from anonface.weights.download import (
    Package,
)

PACKAGE = Path(__file__).parents[1]
# The wheel carries the manifest inside the package; a checkout keeps it at its root.
MANIFEST = next(
    (place for place in (PACKAGE / "weights.toml", PACKAGE.parent / "weights.toml") if place.exists()),
    PACKAGE / "weights.toml",
)


@dataclass(frozen=True)
class Entry:
    """One row of weights.toml; the manifest's head explains the fields."""

    name: str
    file: str
    role: str
    licence: str
    format: str
    needed_for: str
    made_how: str
    sources: tuple[str, ...]
    sha256: str = ""
    size: int = 0
    licence_note: str = ""
    companion: str = ""
    page: str = ""
    also_named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """The state of a file: ready, missing, wrong (another digest) or unverified (present, no digest known)."""

    entry: Entry
    state: Literal["ready", "missing", "wrong", "unverified"]
    path: Path | None


@cache
def read_manifest(place: Path) -> tuple[dict[str, Entry], dict[str, Package]]:
    try:
        content = tomllib.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"the list of weights {place} cannot be read: {error}", "reinstall anonface") from error
    rows = {name: Entry(name=name, **_hashable(row)) for name, row in content["files"].items()}
    packages = {source: Package(source=source, **row) for source, row in content.get("packages", {}).items()}
    return rows, packages


def _hashable(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def entries() -> tuple[Entry, ...]:
    """All rows of weights.toml, in its order."""
    return tuple(read_manifest(MANIFEST)[0].values())


def entry(name: str) -> Entry:
    """The row of that name.

    Raises:
        WeightsError: no such row; names the nearest ones.
    """
    rows = read_manifest(MANIFEST)[0]
    if name not in rows:
        near = get_close_matches(name, rows, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see `anonface weights list`"
        raise WeightsError(f"no weights are called {name!r}", hint)
    return rows[name]


def known_packages() -> dict[str, Package]:
    """The packages that weights.toml pins, by source."""
    return read_manifest(MANIFEST)[1]
