"""The journal of a run: its file, and whether a run may be resumed from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anonface.cli.console import say
from anonface.cli.key_sources import Secret
from anonface.errors import OutputError, UsageError

if TYPE_CHECKING:
    from anonface.batch.journal import Journal, Terms
    from anonface.crypto.keys import Argon2


# Options that identify a run, and options that do not change what is written.
_OF_THE_RUN = ("paths", "output")
_WITHOUT_EFFECT = {
    *(
        "overwrite",
        "skip_existing",
        "resume",
        "report",
        "sheet",
        "review",
        "workers",
        "runs_on",
        "device",
        "batch_size",
    ),
    *("offline", "as_json", "strict_keys", "key_file", "passphrase_file", "weak_passphrase", "no_face"),
    *("max_pixels", "annotations"),
    *("quality", "refine"),  # options of earlier versions
}


def journal_place(ctx: typer.Context) -> Path:
    """The journal file of this command, in the folder of its results."""
    from anonface.batch.journal import journal_path
    from anonface.batch.plan import journal_folder

    run = {name: ctx.params[name] for name in _OF_THE_RUN}
    command = {"command": ctx.command.name, "folder": str(Path.cwd()), **run}
    return journal_path(journal_folder(ctx.params["paths"], ctx.params["output"]), command)


def journal_file(ctx: typer.Context) -> Path | None:
    """:func:`journal_place`, or None if it cannot be written."""
    from anonface.images.paths import check_target

    file = journal_place(ctx)
    try:
        check_target(file, None, overwrite=True)
    except OutputError as error:
        say(f"anonface: warning: without a journal this run cannot be resumed: {error.message}")
        return None
    return file


def open_journal(ctx: typer.Context, file: Path, secret: Secret | None, kdf: Argon2 | None, resume: bool) -> Journal:
    """The journal of this run, or of the run that it resumes.

    Raises:
        UsageError: the earlier run had another key or other settings.
    """
    import json

    from anonface.batch.journal import Journal, Terms, earlier_runs
    from anonface.crypto.keys import fresh_salt

    left_out = {*_WITHOUT_EFFECT, *_OF_THE_RUN}
    params = {name: value for name, value in ctx.params.items() if name not in left_out}
    settings = json.loads(json.dumps(params, default=str))
    defaults = {parameter.name: parameter.default for parameter in ctx.command.params}
    others: list[str] = []
    same: list[Terms] = []
    for terms in earlier_runs(file) if resume else ():
        others = _differences(terms, settings, secret, defaults)
        same += [terms] * (not others)
    if same:
        return Journal(file, same[-1], [terms.run for terms in same])
    if others:
        raise UsageError(
            f"the run to be resumed had {'; '.join(others)}",
            "give the same key and options, or leave out --resume to start a new run",
        )
    salt = kdf.salt if kdf else fresh_salt()
    mark = secret.under(kdf).mark(salt).hex() if secret else ""
    costs = [kdf.memory_kib, kdf.iterations, kdf.lanes] if kdf else None
    return Journal(file, Terms(salt.hex(), settings, mark, costs))


def kdf_of(terms: Terms) -> Argon2 | None:
    """The Argon2 parameters of a run's passphrase."""
    from anonface.crypto.keys import Argon2

    return Argon2(bytes.fromhex(terms.run), *terms.stretched) if terms.stretched else None


def _differences(terms: Terms, settings: dict[str, Any], secret: Secret | None, defaults: dict[str, Any]) -> list[str]:
    """The differences to an earlier run, in words.

    Args:
        secret: None on a cluster, whose nodes read the key.
        defaults: of all options; an earlier version has not recorded options that it did not have.
    """
    found = []
    if secret and not _is_ours(terms, secret):
        found.append("another key")
    for name in sorted({*settings, *terms.settings} - _WITHOUT_EFFECT):
        then, now = (_setting(values.get(name, defaults.get(name))) for values in (terms.settings, settings))
        if then != now:
            found.append(f"--{name.replace('_', '-')} {then}, not {now}")
    return found


def _is_ours(terms: Terms, secret: Secret) -> bool:
    """Whether a run was under this key, and stretched a passphrase as much as a new one does: its costs are used again,
    and whoever can write a journal could lower them."""
    from anonface.crypto.keys import Argon2

    kdf, usual = kdf_of(terms), Argon2.fresh()
    weak = kdf and (kdf.memory_kib < usual.memory_kib or kdf.iterations < usual.iterations)
    return bool(terms.mark) and not weak and secret.made(terms.mark, bytes.fromhex(terms.run), kdf)


def _setting(value: Any) -> str:
    """A value as a user would type it."""
    if value is None or value == []:
        return "unset"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
