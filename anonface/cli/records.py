"""``anonface inspect``, ``strip`` and ``rekey``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import escaped, print_json, say
from anonface.cli.help import KEY, OUTPUT
from anonface.cli.key_sources import KeySource, key_of_file
from anonface.cli.options import AsJson, Overwrite, StrictKeys
from anonface.cli.pipes import check_stdout, read_stdin, takes_stdin
from anonface.errors import ImageError, UsageError
from anonface.streams import STREAM, kept_for_photo


def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Anonymized photo or sidecar; - is standard input.")],
    as_json: AsJson = False,
) -> None:
    """Show what is public about an anonymized photo, and what its recovery needs. Needs no key."""
    from anonface.images import interims, read_file
    from anonface.record.carriers import describe, kind

    data = read_stdin() if takes_stdin([file]) else read_file(file)
    if kind(data) == "other" and Path(file).suffix.lower() != ".anf":  # a sidecar that is no record is damaged
        raise ImageError(f"{file!r} is not a PNG, JPEG, WebP or sidecar file; no other file carries a record")
    facts = describe(data, file)
    if facts["carrier"] == "sidecar" and file != STREAM:
        left = [f"an interrupted run left a newer record in {str(other)!r}" for other in interims(file)]
        facts["notes"] = [*facts["notes"], *left]
    if as_json:
        print_json({"exit": 0, "input": file, **facts})
        return
    faces, notes = facts.pop("faces"), facts.pop("notes")
    for name, value in (*facts.items(), ("faces", len(faces)), *(("note", note) for note in notes)):
        shown = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        shown = "; ".join(value) if name == "needs" else "none" if value is None else shown
        print(escaped(f"{name.replace('_', ' '):15} {shown}"))
    for number, face in enumerate(faces):
        corners = " ".join(f"({x:.0f}, {y:.0f})" for x, y in face["quad"])
        print(escaped(f"face {number:<10} {face['kind']} {corners}"))


def _beside(file: Path, mark: str) -> Path:
    """photo.jpg -> photo.MARK.jpg.

    Raises:
        UsageError: it is no name of a file.
    """
    if not file.name:
        raise UsageError(f"{str(file)!r} names no file", "give an anonymized photo")
    return file.with_name(f"{file.stem}.{mark}{file.suffix}")


def strip(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Anonymized photo; - is standard input.")],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            show_default="photo.anon.stripped.jpg",
            help="Copy to write, in the format of the photo; - is standard output, also of standard input.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a copy without the metadata record and the encrypted original; its pixels do not change.

    Nobody can recover the original file from that copy alone.
    """
    from anonface.api import strip as strip_photo
    from anonface.batch.plan import STDIN
    from anonface.images.paths import Input, Output, refuse_conflicts

    stdin = takes_stdin([file])
    if (output or file) == STREAM:
        check_stdout(as_json)
        with kept_for_photo() as write_photo:
            write_photo(strip_photo(read_stdin() if stdin else file))
        return
    target = Path(output) if output else _beside(Path(file), "stripped")
    refuse_conflicts([Input(STDIN if stdin else Path(file))], [Output(target, "the output")])
    strip_photo(read_stdin() if stdin else file, target, overwrite=overwrite)
    say(f"anonface: {str(target)!r} carries no record; {'the photo' if stdin else repr(file)} still carries one")
    if as_json:
        print_json({"exit": 0, "input": file, "output": str(target)})


def rekey(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Anonymized photo or sidecar; - is standard input.")],
    new_key_file: Annotated[
        Path,
        typer.Option(readable=False, metavar="FILE", help="Key file that will recover the copy.", rich_help_panel=KEY),
    ],
    old_key_file: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="Key file that recovers the photo now; without one, a passphrase is used.",
            rich_help_panel=KEY,
        ),
    ] = None,
    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="File with the passphrase of the old key.",
            rich_help_panel=KEY,
        ),
    ] = None,
    new_passphrase_file: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            help="File with the passphrase of the new key file, if it has one.",
            rich_help_panel=KEY,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            show_default="photo.anon.rekeyed.jpg",
            help="Copy to write, in the format of the photo; - is standard output, also of standard input.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    strict_keys: StrictKeys = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a copy that another key recovers; its pixels do not change.

    Older copies still open with the old key. Where nothing is encrypted, the old key cannot be checked.
    """
    from anonface.api import rekey as rekey_photo
    from anonface.batch.plan import STDIN
    from anonface.images.paths import Input, Output, refuse_conflicts

    stdin, stdout = takes_stdin([file]), (output or file) == STREAM
    target = None if stdout else Path(output) if output else _beside(Path(file), "rekeyed")
    keys = KeySource(old_key_file, passphrase_file, strict_keys, option="--old-key-file")
    secrets = [*keys.files(), *KeySource(new_key_file, new_passphrase_file, strict_keys).files()]
    refuse_conflicts(
        [Input(STDIN if stdin else Path(file)), *secrets], [Output(target, "the output")] if target else []
    )
    if stdout:
        check_stdout(as_json)
    source = read_stdin([secret.path for secret in secrets]) if stdin else file
    old = keys.secret()
    new = key_of_file(new_key_file, new_passphrase_file, strict_keys, "--new-passphrase-file")
    with kept_for_photo() if stdout else nullcontext() as write_photo:
        data, verified = rekey_photo(source, old.of, new, target, overwrite=overwrite)
        if write_photo:
            write_photo(data)
    before, after = (repr(file) if not stdin else "the photo"), (repr(str(target)) if target else "the copy")
    if verified == "unknown":
        say(f"anonface: warning: no original is stored in {before}, so the old key could not be checked")
        say(f"anonface: if it was right, the new key recovers {after}; try it, and keep {before} until then")
    else:
        say(f"anonface: the new key opens {after}; the old key still opens {before}, which you may delete")
    if as_json:
        print_json({"exit": 0, "input": file, "output": str(target), "verified": verified})
