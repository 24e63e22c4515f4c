"""Whether a record belongs to its picture, by the nonces and checks that the picture's faces hold.

Nonces are in the clear. Where a photo has a salt of its own, they follow from it: another salt, another backend or
another order of faces shows without a key. The rest of a record is told by the checks, under the right key alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from anonface.crypto.keys import CONSISTENT_SALT, NONCE_BYTES, salted_nonce
from anonface.errors import ContainerError
from anonface.record.anf1 import NONCES, Header, damaged
from anonface.watermark.payload import Check

FOREIGN = "the record does not belong to this picture: its faces were made at another time, for another photo"
CHANGED = "the record was changed since the photo was made: key and picture fit, but not what it says"
RESALTED = "the record was changed since the photo was made: its nonces are not those of its salt and faces"
UNREAD = "no watermark was read where the record has faces: the picture was changed much, or the record is another's"
EARLIER = "an earlier version made it: nothing can tell whether its record was changed, or a seal removed"
NOTHING = "the record has no face that can be recovered: there were none but covered ones, or it was changed"
INTACT = "use an intact copy; if it carried a sealed original, somebody has taken that away"


def recorded_nonces(header: Header, bound: bool) -> list[bytes | None]:
    """The nonces of a record's faces of kind synth; None where an earlier version wrote it.

    Args:
        bound: whether the version that wrote the record derives nonces from a photo's own salt.

    Raises:
        ContainerError: their number or form is wrong, or they do not follow from the salt.
    """
    faces = sum(face.kind == "synth" for face in header.faces)
    recorded = header.parameters.get(NONCES)
    if recorded is None and not bound:
        return [None] * faces
    try:
        nonces = [bytes.fromhex(nonce) for nonce in str(recorded or "").split()]
    except ValueError:
        raise damaged("its nonces are none") from None
    if len(nonces) != faces or any(len(nonce) != NONCE_BYTES for nonce in nonces):
        raise damaged("its nonces and its faces do not go together")
    if bound and not _follow(nonces, header):
        raise ContainerError(RESALTED, INTACT)
    return list(nonces)


def _follow(nonces: Sequence[bytes], header: Header) -> bool:
    if header.consistent != (header.flow_salt == CONSISTENT_SALT):
        return False
    if header.consistent:
        return all(nonce[-1] & 1 for nonce in nonces)
    return all(nonce == salted_nonce(header.flow_salt, header.backend, i) for i, nonce in enumerate(nonces))


def verified(
    header: Header, checks: Sequence[Check | None], nonces: Sequence[bytes | None], bound: bool
) -> tuple[str, ...]:
    """Check a record against the watermarks of recovered faces, in the record's order; what is to be noted.

    Under a wrong key it stays silent: nobody shall learn that a key was wrong.

    Raises:
        ContainerError: the record is another photo's, or was changed.
    """
    found = [(check, nonce) for check, nonce in zip(checks, nonces, strict=True) if check]
    if any(check.nonce and nonce and check.nonce != nonce for check, nonce in found):
        raise ContainerError(FOREIGN, "give the record that was written with the picture")
    if any(check.record is False for check, _ in found):
        raise ContainerError(CHANGED, INTACT)
    if not nonces:
        return (NOTHING,)
    if not bound:
        return () if header.seal else (EARLIER,)
    return (UNREAD,) if found and not any(check.nonce for check, _ in found) else ()
