"""Changed files: whatever is flipped or exchanged, nothing but the true original may pass for the original."""

from __future__ import annotations

from pathlib import Path

from anonface.errors import AnonfaceError
from anonface.evaluation.audit.finding import Attack, Finding, counted
from anonface.evaluation.audit.subject import Subject
from anonface.record import carriers


def _run(subject: Subject) -> list[Finding]:
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
    file = subject.scratch("tampered.png")
    file.write_bytes(data)
    try:
        return bytes(subject.recover_file(file, subject.key).original or b"") != original
    except AnonfaceError:
        return False
    finally:
        Path(file).unlink()


ATTACK = Attack(
    "tampering",
    shows="a forged photo can be passed off as the sealed original",
    silent="photos without a seal, of which nobody can say whether they were changed",
    published="none",
    run=_run,
)
