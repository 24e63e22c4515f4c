"""The record ANF1: golden vectors, one encoding a content, no damage unnoticed."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anonface import errors
from anonface.crypto.keys import Argon2
from anonface.errors import ContainerError, LimitError
from anonface.record import anf1
from anonface.record.anf1 import FaceEntry, Header, Seal, decode, describe, encode, payload

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "container.json").read_text())
QUAD = ((10.0, 15.0), (10.0, 62.5), (57.5, 62.5), (57.5, 15.0))
HEADER = Header(
    backend="ifadit",
    parameters={"steps": 50, "keep": 0.25, "parser": "landmarks", "fine": True},
    flow_salt=bytes(range(16)),
    consistent=False,
    kdf=Argon2(bytes(range(16, 32))),
    weights_digest=bytes(range(32)),
    canvas=(4000, 3000),
    faces=(FaceEntry(QUAD), FaceEntry(QUAD, "mosaic")),
)
RECORD = encode(HEADER)

grid = st.integers(-(2**31) + 1, 2**31 - 1).map(lambda n: n / 16)
corner = st.tuples(grid, grid)
entries = st.builds(FaceEntry, st.tuples(corner, corner, corner, corner), st.sampled_from(anf1.KINDS))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
values = text | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
headers = st.builds(
    Header,
    backend=names,
    parameters=st.dictionaries(text.filter(bool), values, max_size=6),
    flow_salt=st.binary(min_size=16, max_size=16),
    consistent=st.booleans(),
    kdf=st.none()
    | st.builds(
        Argon2,
        salt=st.binary(min_size=16, max_size=16),
        memory_kib=st.integers(64, 2**20),
        iterations=st.integers(1, 10),
        lanes=st.integers(1, 8),
    ),
    weights_digest=st.binary(min_size=32, max_size=32),
    canvas=st.tuples(st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1)),
    faces=st.lists(entries, max_size=5).map(tuple),
    seal=st.none()
    | st.builds(
        Seal,
        tier=st.sampled_from(anf1.TIERS),
        salt=st.binary(min_size=16, max_size=16),
        check=st.binary(min_size=32, max_size=32),
    ),
    producer=names,
)


def encoded(header: Header) -> bytes:
    """A record, with some payload if it is sealed."""
    return encode(header, [b"cipher", b"text"] if header.seal else [])


# --- Record ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda v: v["name"])
def test_golden_records(vector: dict) -> None:
    record = bytes.fromhex(vector["record"])
    header = decode(record)
    rest = bytes(payload(record))
    assert describe(header, len(rest)) == vector["fields"]
    assert json.loads(json.dumps(describe(header, len(rest)))) == vector["fields"]
    assert encode(header, [rest]) == record


@pytest.mark.parametrize("vector", VECTORS["rejected"], ids=lambda v: v["name"])
def test_golden_rejections(vector: dict) -> None:
    with pytest.raises(errors.AnonfaceError, match=vector["says"]) as caught:
        decode(bytes.fromhex(vector["record"]) + bytes(vector.get("zeros", 0)))
    assert type(caught.value).__name__ == vector["error"]
    assert caught.value.message.isprintable()


def test_the_version_needed_is_named() -> None:
    newer = next(v for v in VECTORS["rejected"] if v["name"] == "newer version")
    with pytest.raises(ContainerError) as caught:
        decode(bytes.fromhex(newer["record"]))
    assert "3.4.5" in caught.value.hint


@given(headers)
def test_round_trip(header: Header) -> None:
    back = decode(encoded(header))
    assert back == header
    assert [type(value) for _, value in sorted(back.parameters.items())] == [
        type(value) for _, value in sorted(header.parameters.items())
    ]
    backwards = replace(header, parameters=dict(reversed(header.parameters.items())))
    assert encoded(backwards) == encoded(header)


@given(headers, st.data())
@settings(max_examples=50)
def test_no_other_byte_is_taken(header: Header, data: st.DataObject) -> None:
    record = encoded(header)
    at = data.draw(st.integers(0, len(record) - 1))
    other = data.draw(st.integers(1, 255))
    with pytest.raises(ContainerError):
        decode(record[:at] + bytes([record[at] ^ other]) + record[at + 1 :])


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(8 * len(RECORD)):
        damaged = bytearray(RECORD)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ContainerError):
            decode(bytes(damaged))


def test_every_cut_and_addition_is_refused() -> None:
    for size in range(len(RECORD)):
        with pytest.raises(ContainerError):
            decode(RECORD[:size])
    for extra in (b"\0", RECORD, b"\0" * 70_000):
        with pytest.raises(ContainerError):
            decode(RECORD + extra)


@given(st.binary(max_size=300))
def test_crafted_headers_never_escape_as_another_error(body: bytes) -> None:
    """Bytes behind a right frame and under a right digest: every field parser meets garbage."""
    head = b"ANF1" + struct.pack(">BI", 1, 9 + len(body) + 32) + b"\x010" + body[2:]
    try:
        header = decode(head + anf1.hashlib.sha256(head).digest())
    except (ContainerError, LimitError):
        return
    assert encode(header) == head + anf1.hashlib.sha256(head).digest()


def test_too_many_faces() -> None:
    many = replace(HEADER, faces=(FaceEntry(QUAD),) * 1900)
    assert decode(encode(many)) == many and len(encode(many)) <= anf1.MAX_HEADER
    for count in (2000, 70_000):
        with pytest.raises(LimitError, match=f"{count} faces"):
            encode(replace(HEADER, faces=(FaceEntry(QUAD),) * count))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, -(2**63) - 1, "x" * 65_536, None, b"x"])
def test_parameters_out_of_range(value: object) -> None:
    with pytest.raises(ValueError):
        encode(replace(HEADER, parameters={"a": value}))


@pytest.mark.parametrize(
    "change",
    [{"flow_salt": b"short"}, {"weights_digest": b""}, {"canvas": (0, 5)}, {"canvas": (2**32, 5)}, {"backend": "é"}],
)
def test_fields_out_of_range(change: dict) -> None:
    with pytest.raises(ValueError):
        replace(HEADER, **change)


def test_a_seal_and_its_payload_go_together() -> None:
    seal = Seal("file", bytes(16), bytes(32))
    for header, pieces in ((HEADER, [b"x"]), (replace(HEADER, seal=seal), []), (replace(HEADER, seal=seal), [b""])):
        with pytest.raises(ValueError, match="go together"):
            encode(header, pieces)
    for bad in (("files", bytes(16), bytes(32)), ("file", bytes(15), bytes(32)), ("file", bytes(16), bytes(31))):
        with pytest.raises(ValueError):
            Seal(*bad)


def test_reports_long_after() -> None:
    synth, mosaic = HEADER.reports()
    assert (synth.kind, synth.box, synth.reason) == ("synth", (10.0, 15.0, 47.5, 47.5), "")
    assert mosaic.index == 1 and "nothing undoes" in mosaic.reason


def test_quads_lie_on_their_grid() -> None:
    for bad in (0.01, float("nan"), float("inf"), 2.0**28):
        with pytest.raises(ValueError):
            FaceEntry(((bad, 0.0), *QUAD[1:]))
    for quad, kind in ((QUAD[:3], "synth"), (QUAD, "blur")):
        with pytest.raises(ValueError):
            FaceEntry(quad, kind)
