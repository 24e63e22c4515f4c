from dataclasses import replace

import pytest

from anonface.crypto.keys import CONSISTENT_SALT, fresh_nonce, salted_nonce
from anonface.errors import ContainerError
from anonface.record.anf1 import FaceEntry, Header
from anonface.verification import recorded_nonces

SQUARE = ((0.0, 0.0), (0.0, 64.0), (64.0, 64.0), (64.0, 0.0))
SALT = bytes(range(16))
NAMED = [salted_nonce(SALT, "hford", i) for i in range(2)]
HEADER = Header(
    backend="hford",
    parameters={"nonces": " ".join(nonce.hex() for nonce in NAMED)},
    flow_salt=SALT,
    consistent=False,
    kdf=None,
    weights_digest=bytes(32),
    canvas=(64, 64),
    faces=(FaceEntry(SQUARE), FaceEntry(SQUARE, "mosaic"), FaceEntry(SQUARE)),
)
SWAPPED = " ".join(nonce.hex() for nonce in reversed(NAMED))


def test_nonces_follow_from_salt_backend_and_place():
    """Known values, so that no later version derives others."""
    assert [nonce.hex() for nonce in NAMED] == ["0addc4cb199694ee", "ad9e4fd292ecf328"]
    assert recorded_nonces(HEADER, bound=True) == NAMED
    drawn = fresh_nonce()
    shared = replace(HEADER, consistent=True, flow_salt=CONSISTENT_SALT, faces=HEADER.faces[:1])
    assert recorded_nonces(replace(shared, parameters={"nonces": drawn.hex()}), bound=True) == [drawn]


@pytest.mark.parametrize(
    "changed",
    [
        {"flow_salt": bytes(16)},
        {"backend": "dbaf"},
        {"parameters": {"nonces": SWAPPED}},
        {"consistent": True},
        {"consistent": True, "flow_salt": CONSISTENT_SALT},
        {"flow_salt": CONSISTENT_SALT},
    ],
    ids=str,
)
def test_another_salt_backend_order_or_mode_is_refused_unless_an_earlier_version_wrote_it(changed):
    with pytest.raises(ContainerError, match="not those of its salt"):
        recorded_nonces(replace(HEADER, **changed), bound=True)
    assert len(recorded_nonces(replace(HEADER, **changed), bound=False)) == 2


@pytest.mark.parametrize("parameters", [{}, {"nonces": ""}, {"nonces": NAMED[0].hex()}, {"nonces": "xy"}], ids=str)
def test_missing_nonces_are_damage(parameters):
    with pytest.raises(ContainerError, match="damaged"):
        recorded_nonces(replace(HEADER, parameters=parameters), bound=True)
