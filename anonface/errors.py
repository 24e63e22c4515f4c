"""What can go wrong, one class an exit code.

Every error that a user can cause derives from :class:`AnonfaceError`. It carries one clear line, an optional
hint (what to do about it) and the exit code that ``cli`` returns. Anything else that escapes is a bug (70).
"""

from __future__ import annotations

import errno

_REMEDIES = {
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.ENOSPC: "free some space or write elsewhere",
    errno.EDQUOT: "free some of your quota or write elsewhere",
    errno.EFBIG: "files of that size are not allowed there: write elsewhere",
    errno.ENOENT: "choose another folder",
    errno.ENOTDIR: "a part of its path is no folder: choose another",
    errno.ENAMETOOLONG: "choose a shorter name",
}


class AnonfaceError(Exception):
    """Base of all expected failures.

    Args:
        message: one line, without a trailing full stop; names the file or the value concerned.
        hint: what the user can do about it, one line; may be empty.
    """

    exit_code = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AnonfaceError):
    """Options that contradict each other, or two inputs that map to one output."""

    exit_code = 2


class ImageError(AnonfaceError):
    """The input is not an image, is truncated, animated or otherwise unusable."""

    exit_code = 4


class AnnotationError(AnonfaceError):
    """An annotation file is broken, or in none of the known formats."""

    exit_code = 4


class NoFaceError(AnonfaceError):
    """No face was found in the photo."""

    exit_code = 5


class KeyFileError(AnonfaceError):
    """A key file or passphrase that cannot be used."""

    exit_code = 6


class WrongKeyError(AnonfaceError):
    """The key does not open this record."""

    exit_code = 7


class ContainerError(AnonfaceError):
    """The record in an image is damaged, missing, or newer than this program."""

    exit_code = 8


class WeightsError(AnonfaceError):
    """Network weights are missing, wrong, or could not be fetched."""

    exit_code = 9


class OutputError(AnonfaceError):
    """The output exists, is the input itself, or cannot be written."""

    exit_code = 10


class LimitError(AnonfaceError):
    """The input asks for more than the stated limits (pixels, bytes, key-derivation cost)."""

    exit_code = 11


class DeviceError(AnonfaceError):
    """The chosen device is absent, was lost, or ran out of memory."""

    exit_code = 70


def reason(error: OSError | ValueError) -> str:
    """Why a file cannot be written, as the operating system says it; but what is to be made is never missing."""
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return "no file can be made there"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def remedy(error: Exception) -> str:
    """The hint for a file that cannot be written, by what the operating system says."""
    return _REMEDIES.get(error.errno or 0, "write elsewhere") if isinstance(error, OSError) else "choose another name"


def count(number: int, what: str, several: str = "") -> str:
    """Such as "1 face", "2 faces", or "2 entries" where ``several`` gives the plural."""
    return f"{number} {what}" if number == 1 else f"{number} {several or f'{what}s'}"
