"""Lists of names, as options take them."""

from __future__ import annotations

from collections.abc import Collection

from anonface.errors import UsageError


def chosen(text: str, known: Collection[str], what: str) -> tuple[str, ...]:
    """Names of a comma-separated list, each once; "all" gives all that are known, "none" none.

    Args:
        what: one of them, for messages.

    Raises:
        UsageError: an unknown name.
    """
    names = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if names in (("all",), ("none",)):
        return tuple(known) if names == ("all",) else ()
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}", f"known: {', '.join(known)}, all or none")
    return names
