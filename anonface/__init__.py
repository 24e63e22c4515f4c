"""Anonymize faces in photos under a key, and give them back to whoever holds the key.

    from anonface import Key, anonymize, recover

    key = Key.generate()
    hidden = anonymize("photo.jpg", key, "photo.anon.jpg")
    recover("photo.anon.jpg", key, "photo.recovered.jpg")  # the original file, byte for byte

``detect`` lists the faces of a photo. All three take a path, a file's bytes, a file opened in binary mode, a PIL image,
or an array of pixels. ``Engine`` chooses device, detector and the like, and may be shared between calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anonface.api import anonymize, detect, recover
    from anonface.crypto.keys import Key
    from anonface.pipeline import Engine

__version__ = "0.1.0"
__all__ = ["Engine", "Key", "anonymize", "detect", "recover"]

_HOMES = {
    "Engine": "anonface.pipeline",
    "Key": "anonface.crypto.keys",
    "anonymize": "anonface.api",
    "detect": "anonface.api",
    "recover": "anonface.api",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that ``import anonface`` is instant."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
