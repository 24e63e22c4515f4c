"""What a file tells or takes: original pixels in the last bits, marks of its metadata, and changes that pass."""

from __future__ import annotations

import hashlib
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anonface.errors import AnonfaceError
from anonface.evaluation.audit.finding import Attack, Finding, counted
from anonface.evaluation.audit.subject import MARK, Subject
from anonface.evaluation.metrics import clustered_mean
from anonface.record import carriers

Pixels = NDArray[np.uint8]

BITS = (1, 2, 4)
LIMIT = 0.2  # of the correlation; rendered pixels stay below 0.05
FEW = 64  # changed pixels, fewer of which say nothing


def _low_bits(subject: Subject) -> list[Finding]:
    values = [
        np.nan if seen is None else max(carried(target.pixels(), seen.pixels, bits) for bits in BITS)
        for target, seen in zip(subject.targets, subject.hidden, strict=True)
    ]
    value = clustered_mean(values, subject.people)
    detail = f"the most of the last {', '.join(map(str, BITS))} bits" if value.n else "too few pixels were changed"
    passed = value.value <= LIMIT if value.n else None
    return [Finding("low bits follow the original", value, 0.0, LIMIT, passed, detail, "correlation")]


def carried(original: Pixels, anonymized: Pixels, bits: int) -> float:
    """Correlation of the original with what the last bits show, over all pixels that changed by more than those."""
    before, after = original.astype(np.int64), anonymized.astype(np.int64)
    changed = np.abs(before - after) >> bits > 0
    if changed.sum() < FEW:
        return np.nan
    shown, hidden = (after & ((1 << bits) - 1))[changed], before[changed]
    if shown.std() == 0 or hidden.std() == 0:
        return 0.0
    return float(abs(np.corrcoef(shown, hidden)[0, 1]))


def _metadata(subject: Subject) -> list[Finding]:
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


def _tampering(subject: Subject) -> list[Finding]:
    if not subject.sealed:
        return [counted("bytes flipped in a sealed photo", 0, 0, "no files can be made here")]
    return [_flips(subject), *_splices(subject)]


def _flips(subject: Subject) -> Finding:
    """Bytes of the whole file, at places drawn by seed, all of the record's header among them."""
    source, output = subject.sealed[0]
    data, original = output.read_bytes(), source.read_bytes()
    rng, record = subject.rng("flips"), bytes(carriers.expect(data, str(output)))
    start = data.index(record[:64])
    places = {*range(start, start + 64), *map(int, rng.integers(0, len(data), subject.sizes.guesses))}
    breaches = 0
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        breaches += _passes(subject, bytes(changed), original)
    return counted("bytes flipped in a sealed photo: something else passed for the original", breaches, len(places))


def _splices(subject: Subject) -> list[Finding]:
    """The record of one photo in the picture of another."""
    if len(subject.sealed) < 2:
        return []
    files = [output.read_bytes() for _, output in subject.sealed]
    spliced = carriers.embed(files[0], bytes(carriers.expect(files[1], "")))
    breach = _passes(subject, spliced, b"")
    return [counted("records exchanged between photos: accepted", int(breach), 1)]


def _passes(subject: Subject, data: bytes, original: bytes) -> bool:
    """Whether recovery gives something, and not the original; any error that is no refusal counts as such a thing."""
    assert subject.work is not None
    file = subject.work / "tampered.png"
    file.write_bytes(data)
    try:
        return bytes(subject.files.recover(file, subject.key).original or b"") != original
    except AnonfaceError:
        return False
    finally:
        file.unlink()


LOW_BITS = Attack(
    "low-bits",
    shows="a copy of the original stands in the anonymized pixels, for anybody to read",
    silent="copies hidden in other ways: spread over a transform, or encrypted, which --seal does openly",
    published="none",
    run=_low_bits,
)
METADATA = Attack(
    "metadata",
    shows="the file says in words what its picture hides",
    silent="metadata that --keep-metadata lets through on purpose; what the encrypted original's padded length tells",
    published="none",
    run=_metadata,
)
TAMPERING = Attack(
    "tampering",
    shows="a forged photo can be passed off as the sealed original",
    silent="photos without a seal, of which nobody can say whether they were changed",
    published="none",
    run=_tampering,
)
