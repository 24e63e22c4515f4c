"""``anonface inspect``, ``strip`` and ``rekey``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import escaped, print_json, say
from anonface.cli.key_sources import KeySource, key_of_file
from anonface.cli.options import AsJson, Overwrite, StrictKeys
from anonface.errors import (
    ImageError,
)


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo, or a sidecar.")],
    as_json: AsJson = False,
) -> None:
    """Show what is public about an anonymized photo, and what its recovery will need. Takes no key, changes nothing."""
    from anonface.images import read_file
    from anonface.record.carriers import describe, kind

    data = read_file(file)
    if kind(data) == "other" and file.suffix.lower() != ".anf":  # a sidecar that is none is a record damaged
        raise ImageError(f"{str(file)!r} is neither PNG, JPEG, WebP nor a sidecar; nothing else carries a record")
    facts = describe(data, str(file))
    if as_json:
        print_json({"exit": 0, "input": str(file), **facts})
        return
    faces, notes = facts.pop("faces"), facts.pop("notes")
    for name, value in (*facts.items(), ("faces", len(faces)), *(("note", note) for note in notes)):
        shown = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        shown = "; ".join(value) if name == "needs" else "none" if value is None else shown
        print(escaped(f"{name.replace('_', ' '):15} {shown}"))
    for number, face in enumerate(faces, start=1):
        corners = " ".join(f"({x:.0f}, {y:.0f})" for x, y in face["quad"])
        print(escaped(f"face {number:<10} {face['kind']} {corners}"))


def strip(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: photo.anon.png -> photo.anon.stripped.png.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write the photo without its record, every pixel as it is. Nobody can recover an original from that copy."""
    from anonface.api import strip as strip_photo
    from anonface.images.paths import Input, Output, refuse_conflicts

    target = output or file.with_name(f"{file.stem}.stripped{file.suffix}")
    refuse_conflicts([Input(file)], [Output(target, "the output")])
    strip_photo(file, target, overwrite=overwrite)
    say(f"anonface: {str(target)!r} carries no record; {str(file)!r} still does")
    if as_json:
        print_json({"exit": 0, "input": str(file), "output": str(target)})


def rekey(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="An anonymized photo, or a sidecar.")],
    new_key_file: Annotated[Path, typer.Option(readable=False, help="The key file that recovers from now on.")],
    old_key_file: Annotated[
        Path | None, typer.Option(readable=False, help="The key file that does so now. Without one, a passphrase.")
    ] = None,
    passphrase_file: Annotated[
        Path | None, typer.Option(readable=False, help="As elsewhere: the old key's passphrase.")
    ] = None,
    new_passphrase_file: Annotated[
        Path | None, typer.Option(readable=False, help="The new key file's passphrase, where it is wrapped in one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: photo.anon.png -> photo.anon.rekeyed.png.")
    ] = None,
    strict_keys: StrictKeys = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Seal a photo under another key, every pixel as it is. Copies under the old key stay what they are.

    A photo in which nothing is sealed is given to the new key too, but nobody can tell whether the old one was right.
    """
    from anonface.api import rekey as rekey_photo
    from anonface.images.paths import Input, Output, refuse_conflicts

    target = output or file.with_name(f"{file.stem}.rekeyed{file.suffix}")
    keys = KeySource(old_key_file, passphrase_file, strict_keys, option="--old-key-file")
    read = [Input(file), *keys.files(), *KeySource(new_key_file, new_passphrase_file, strict_keys).files()]
    refuse_conflicts(read, [Output(target, "the output")])
    old = keys.secret()
    new = key_of_file(new_key_file, new_passphrase_file, strict_keys, "--new-passphrase-file")
    verified = rekey_photo(file, old.of, new, target, overwrite=overwrite)
    if verified == "unknown":
        say(f"anonface: warning: nothing is sealed in {str(file)!r}, so the old key could not be checked")
        say(
            f"anonface: if it is the right one, {str(target)!r} is recovered under the new key: try it; "
            f"keep {str(file)!r} until then"
        )
    else:
        say(
            f"anonface: {str(target)!r} answers to the new key; {str(file)!r} still answers to the old one: "
            "delete it to take that away"
        )
    if as_json:
        print_json({"exit": 0, "input": str(file), "output": str(target), "verified": verified})
