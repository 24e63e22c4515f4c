"""``anonface`` and ``python -m anonface``: heed signals, then load the command line, which takes a moment."""

from __future__ import annotations

from anonface import signals


def main() -> None:
    """Entry point of the ``anonface`` command."""
    signals.end_at_once()
    from anonface.cli.app import main as command_line

    command_line()


if __name__ == "__main__":
    main()
