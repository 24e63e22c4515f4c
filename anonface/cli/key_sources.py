"""Keys from a key file, a passphrase, or a prompt."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anonface.cli.console import say
from anonface.errors import KeyFileError, UsageError

if TYPE_CHECKING:
    from anonface.crypto.keys import Argon2, Key
    from anonface.images.paths import Input
    from anonface.record.anf1 import Header


def read_passphrase(file: Path | None, *, new: bool = False, option: str = "--passphrase-file") -> str:
    """Read a passphrase from the file that ``option`` names, the environment or the terminal, in this order.

    Args:
        new: ask for it twice at the terminal, and generate one where nothing is entered.

    Raises:
        KeyFileError: none of them gives one.
    """
    text = _passphrase_in(file) if file else os.environ.get("ANONFACE_PASSPHRASE") or _prompted(new, option)
    if not text:
        raise KeyFileError("the passphrase is empty")
    return text


def _passphrase_in(file: Path) -> str:
    """The content of a file, without a byte order mark and the last line break."""
    from anonface.crypto import passphrases

    try:
        with file.open("rb") as stream:
            data = stream.read(passphrases.MAX_FILE + 1)
        if len(data) > passphrases.MAX_FILE:
            raise KeyFileError(f"it has more than {passphrases.MAX_FILE >> 10} KiB", "name a file of one line")
        return passphrases.text_of(data).removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise KeyFileError(f"the passphrase file {str(file)!r} cannot be read: {error.strerror}") from error
    except KeyFileError as error:
        raise KeyFileError(f"the passphrase file {str(file)!r}: {error.message}", error.hint) from error


def _prompted(new: bool, option: str) -> str:
    if not sys.stdin.isatty():
        raise KeyFileError("a passphrase is needed", f"set ANONFACE_PASSPHRASE or use {option}")
    if not new:
        return _asked("Passphrase")
    while text := _asked("Passphrase (enter nothing to have one generated)", empty=True):
        if _asked("Repeat for confirmation") == text:
            return text
        say("anonface: the two passphrases differ; enter them again")
    return _generated()


def _asked(question: str, empty: bool = False) -> str:
    answer: str = typer.prompt(question, default="" if empty else None, show_default=False, hide_input=True, err=True)
    return answer


def _generated() -> str:
    """A generated passphrase, shown on the terminal and nowhere else.

    Raises:
        KeyFileError: standard error is not the terminal.
    """
    from anonface.crypto import passphrases

    if not sys.stderr.isatty():
        raise KeyFileError(
            "a generated passphrase is shown on the terminal only, and standard error is redirected",
            "enter a passphrase, or do not redirect standard error",
        )
    text = passphrases.generate()
    say(f"anonface: the passphrase is: {text}")
    say("anonface: write it down; it is not shown again")
    return text


def key_of_file(file: Path, passphrase_file: Path | None, strict: bool, option: str = "--passphrase-file") -> Key:
    from anonface.crypto.keys import MAX_KEY_FILE, WRAPPED_PREFIX, Key, key_text, loose_permissions

    try:
        with file.open("rb") as stream:  # once: it may be a pipe
            data = stream.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise KeyFileError(
            f"key file {str(file)!r} cannot be read: {error.strerror}", "anonface keygen makes one"
        ) from error
    loose = loose_permissions(file)
    if loose and strict:
        raise KeyFileError(f"key file {str(file)!r} can be read by others", f"chmod 600 {file}")
    wrapped = key_text(data).startswith(WRAPPED_PREFIX)
    try:
        key = Key.from_bytes(data, read_passphrase(passphrase_file, option=option) if wrapped else None)
    except KeyFileError as error:
        raise KeyFileError(f"key file {str(file)!r}: {error.message}", error.hint) from error
    if passphrase_file and not wrapped:
        raise UsageError(f"key file {str(file)!r} is not wrapped in a passphrase", f"leave {option} out")
    if loose:
        say(f"anonface: warning: key file {str(file)!r} can be read by others (fix: chmod 600)")
    return key


@dataclass
class Secret:
    """The key of a key file, or a passphrase, whose key depends on the Argon2 parameters of each photo.

    Args:
        option: the option that names the key file.
    """

    key: Key | None
    option: str
    passphrase: str = ""
    stretched: dict[Argon2, Key] = field(default_factory=dict)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def under(self, kdf: Argon2 | None) -> Key:
        """The key to anonymize with; ``kdf`` are the Argon2 parameters of a passphrase."""
        if self.key:
            return self.key
        assert kdf
        return self._stretch(kdf)

    def of(self, header: Header | None) -> Key:
        """The key to recover with.

        Raises:
            KeyFileError: the photo was made with the other kind of key.
        """
        kdf = header.kdf if header else None
        if self.key:
            if kdf:
                raise KeyFileError("this photo was made with a passphrase, not a key file", f"leave {self.option} out")
            return self.key
        if kdf is None:
            hint = f"name it with {self.option}"
            raise KeyFileError("this photo was made with a key file, not a passphrase alone", hint)
        return self._stretch(kdf)

    def made(self, mark: str, salt: bytes, kdf: Argon2 | None) -> bool:
        """Whether the mark in a journal is of this key."""
        return bool(self.key) == (kdf is None) and self.under(kdf).mark(salt).hex() == mark

    def _stretch(self, kdf: Argon2) -> Key:
        from anonface.crypto.keys import Key

        with self.one_at_a_time:  # photos are read in threads, and Argon2 takes a lot of memory
            if kdf not in self.stretched:
                self.stretched[kdf] = Key.from_passphrase(self.passphrase, kdf)
            return self.stretched[kdf]


@dataclass(frozen=True)
class KeySource:
    """Where to find the key; holds paths and options, and nothing secret.

    Args:
        option: the option that names the key file.
        weak: accept any passphrase, as recovery must.
    """

    key_file: Path | None
    passphrase_file: Path | None
    strict: bool
    stateless: bool = False
    option: str = "--key-file"
    weak: bool = True

    def fresh(self) -> Argon2 | None:
        """New Argon2 parameters for the passphrase of a run; None with a key file."""
        from anonface.crypto.keys import Argon2

        return None if self.key_file else Argon2.fresh()

    def secret(self) -> Secret:
        """Read the key or passphrase, or ask for it.

        Raises:
            KeyFileError: there is none, or it is too weak.
        """
        from anonface.crypto import passphrases

        if self.key_file:
            return Secret(key_of_file(self.key_file, self.passphrase_file, self.strict), self.option)
        if self.stateless:
            raise UsageError(
                "--stateless needs a key file: the salt of a passphrase would have to be stored in the photo",
                "`anonface keygen FILE --passphrase` wraps a key in a passphrase; then --key-file FILE",
            )
        if not (self.passphrase_file or os.environ.get("ANONFACE_PASSPHRASE") or sys.stdin.isatty()):
            raise KeyFileError(
                "no key is given",
                f"{self.option} FILE (`anonface keygen FILE` makes one), --passphrase-file or ANONFACE_PASSPHRASE",
            )
        passphrase = read_passphrase(self.passphrase_file)
        if not self.weak:
            passphrases.refuse_weak(passphrase)
        return Secret(None, self.option, passphrase)

    def files(self) -> list[Input]:
        """The files that are read for the key."""
        from anonface.images.paths import Input

        named = {"the key file": self.key_file, "the passphrase file": self.passphrase_file}
        return [Input(file, role) for role, file in named.items() if file]

    def absolute(self) -> KeySource:
        """The same with absolute paths, for a process with another working directory."""
        return replace(
            self,
            key_file=self.key_file and self.key_file.absolute(),
            passphrase_file=self.passphrase_file and self.passphrase_file.absolute(),
        )
