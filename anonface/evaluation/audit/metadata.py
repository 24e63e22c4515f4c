"""Marks in all the corners of a photo's metadata: none may be found in the clear in what is made of it."""

from __future__ import annotations

import hashlib
import io

from PIL import Image

from anonface.evaluation.audit.finding import Attack, Finding, counted
from anonface.evaluation.audit.marks import MARK
from anonface.evaluation.audit.subject import Subject


def _run(subject: Subject) -> list[Finding]:
    found, tried = [], 0
    for source, output in subject.sealed:
        original, made = source.read_bytes(), output.read_bytes()
        assert MARK.encode() in original
        for name, trace in _traces(original).items():
            tried += 1
            if trace in made or trace in _unfolded(made):
                found.append(name)
    return [counted("marks and digests of the original found in the clear", len(found), tried, ", ".join(found))]


def _traces(original: bytes) -> dict[str, bytes]:
    digests = {name: hashlib.new(name, original).digest() for name in ("md5", "sha1", "sha256")}
    written = {f"{name} in hexadecimal": digest.hex().encode() for name, digest in digests.items()}
    return {"mark": MARK.encode(), "mark in UTF-16": MARK.encode("utf-16-le"), **digests, **written}


def _unfolded(made: bytes) -> bytes:
    """What an image reader makes of the compressed pieces of a file's metadata."""
    with Image.open(io.BytesIO(made)) as image:
        image.load()
        pieces = [image.getexif().tobytes(), *image.info.values()]
    return b"".join(piece if isinstance(piece, bytes) else repr(piece).encode() for piece in pieces)


ATTACK = Attack(
    "metadata",
    shows="the file says in words what its picture hides",
    silent="metadata that --keep-metadata lets through on purpose; what the encrypted original's padded length tells",
    published="none",
    run=_run,
)
