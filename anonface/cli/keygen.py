"""``anonface keygen``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import say
from anonface.cli.help import KEY
from anonface.cli.key_sources import KeySource, read_passphrase
from anonface.cli.options import PassphraseFile, WeakPassphrase


def keygen(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Key file to write; an existing file is never replaced.")
    ],
    passphrase: Annotated[
        bool,
        typer.Option(
            "--passphrase",
            help="Protect the key file with a passphrase from a prompt, or a generated one.",
            rich_help_panel=KEY,
        ),
    ] = False,
    passphrase_file: PassphraseFile = None,
    weak_passphrase: WeakPassphrase = False,
) -> None:
    """Make a key file that only you can read."""
    from anonface.crypto.keys import Key, write_key_file
    from anonface.images.paths import Output, refuse_conflicts

    refuse_conflicts(KeySource(None, passphrase_file, False).files(), [Output(file, "the key file")])
    secret = read_passphrase(passphrase_file, new=True) if passphrase or passphrase_file else None
    write_key_file(file, Key.generate(), secret, weak_passphrase)
    say(f"anonface: made {file}; without it, no photo anonymized with it can be recovered")
