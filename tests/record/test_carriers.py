"""Carriers: pictures stay as they are, records come back, damage to either is never taken for a missing record."""

import io
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from test_anf1 import HEADER, RECORD

from anonface.crypto.keys import CONSISTENT_SALT
from anonface.errors import ContainerError
from anonface.record import carriers
from anonface.record.anf1 import decode, encode
from anonface.record.carriers import embed, extract, strip


def picture() -> Image.Image:
    y, x = np.mgrid[:24, :32]
    return Image.fromarray(np.stack([x * 8, y * 10, x + y], -1).astype(np.uint8))


def saved(kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture().save(buffer, kind, **options)
    return buffer.getvalue()


IMAGES = {
    "png": saved("PNG"),
    "png-metadata": saved("PNG", icc_profile=b"x" * 99, dpi=(72, 72)),
    "jpeg": saved("JPEG"),
    "jpeg-metadata": saved(
        "JPEG", icc_profile=b"x" * 70_000, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0", comment="hi"
    ),
    "jpeg-progressive": saved("JPEG", progressive=True),
    "jpeg-trailer": saved("JPEG") + b"trailing bytes",
    "jpeg-fill": saved("JPEG").replace(b"\xff\xdb", b"\xff\xff\xff\xdb", 1),
    "webp": saved("WEBP"),
    "webp-lossless": saved("WEBP", lossless=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"),
}
# odd, even, one byte around a JPEG segment's room, several segments, several PNG chunks
RECORDS = [RECORD, RECORD + b"!", b"r" * 65_524, b"r" * 65_525, bytes(range(256)) * 700, b"R" * (1024 * 1024 + 5)]


def pixels(data: bytes) -> bytes:
    return Image.open(io.BytesIO(data)).convert("RGBA").tobytes()


@pytest.mark.parametrize("name", IMAGES)
def test_carriers_keep_the_picture_and_the_record(name: str) -> None:
    image = IMAGES[name]
    assert extract(image) is None and strip(image) == image
    for record in RECORDS:
        carrying = embed(image, record)
        assert extract(carrying) == record
        assert pixels(carrying) == pixels(image)
        assert embed(carrying, RECORD) == embed(image, RECORD)
        assert strip(carrying) == image


def test_png_chunk_is_private_and_unsafe_to_copy() -> None:
    carrying = embed(IMAGES["png"], RECORD)
    ancillary, private, reserved, safe = (bool(letter & 0x20) for letter in carriers.PNG_TYPE)
    assert ancillary and private and not reserved and not safe
    at = carrying.index(b"anFC")
    assert at < carrying.index(b"IDAT")
    assert carrying[at + 4 + len(RECORD) :][:4] == struct.pack(">I", zlib.crc32(b"anFC" + RECORD))
    Image.open(io.BytesIO(carrying)).verify()


def test_jfif_stays_first() -> None:
    carrying = embed(IMAGES["jpeg-metadata"], RECORD)
    assert (
        carrying.index(b"JFIF") < carrying.index(b"Exif") < carrying.index(b"ANONFACE\0") < carrying.index(b"\xff\xdb")
    )
    assert Image.open(io.BytesIO(carrying)).info["icc_profile"] == b"x" * 70_000


def test_webp_sizes_stay_true() -> None:
    for record in (RECORD, RECORD + b"!"):
        carrying = embed(IMAGES["webp"], record)
        assert int.from_bytes(carrying[4:8], "little") == len(carrying) - 8 and len(carrying) % 2 == 0


def test_record_behind_the_image_data_is_found() -> None:
    png = IMAGES["png"]
    chunk = struct.pack(">I", 4) + b"anFCtail" + struct.pack(">I", zlib.crc32(b"anFCtail"))
    assert extract(png[:-12] + chunk + png[-12:]) == b"tail"


def test_chunks_of_other_software_may_stand_anywhere() -> None:
    """Before, between and behind the record's pieces, of which a PNG and a JPEG here have several."""
    record = bytes(range(256)) * 4500  # more than a PNG chunk holds
    theirs = {
        "png": struct.pack(">I", 4) + b"teSt" + b"them" + struct.pack(">I", zlib.crc32(b"teStthem")),
        "jpeg": b"\xff\xe9\x00\x06them",  # an APP9 that is not ours
        "webp": b"TEST" + struct.pack("<I", 4) + b"them",
    }
    for name, chunk in theirs.items():
        kind = carriers._needed(IMAGES[name])
        parts = [bytes(part.data) for part in kind.split(embed(IMAGES[name], record))]
        places = range(1 if name == "jpeg" else 2, len(parts) - (name != "webp"))  # IHDR and VP8 stay first
        assert len(places) > 1
        for mixed in (
            *(b"".join([*parts[:at], chunk, *parts[at:]]) for at in places),
            b"".join(part + chunk * (at in places) for at, part in enumerate(parts)),
        ):
            if name == "webp":
                mixed = mixed[:4] + struct.pack("<I", len(mixed) - 8) + mixed[8:]
            assert extract(mixed) == record and chunk in strip(mixed) and pixels(mixed) == pixels(IMAGES[name])


def test_a_sidecar_is_the_bare_record() -> None:
    assert extract(RECORD) == RECORD and decode(extract(RECORD)) == HEADER


@pytest.mark.parametrize("name", ["png", "jpeg", "webp-lossless"])
def test_no_damage_to_the_record_in_its_carrier_goes_unnoticed(name: str) -> None:
    """Every flipped bit from the carrier's own framing to its end is refused, or takes the record's mark away whole."""
    carrying = embed(IMAGES[name], RECORD)
    start = carrying.index(RECORD)
    for bit in range(8 * start, 8 * (start + len(RECORD))):
        damaged = bytearray(carrying)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ContainerError):
            decode(extract(bytes(damaged)))


@pytest.mark.parametrize("name", ["png", "jpeg", "webp"])
def test_a_cut_file_is_broken_not_without_a_record(name: str) -> None:
    image = IMAGES[name]
    stop = image.index(b"\xff\xda") if name == "jpeg" else len(image)
    for size in range(12, stop):
        with pytest.raises(ContainerError, match="broken"):
            extract(image[:size])


def test_other_files_carry_nothing() -> None:
    for data in (b"", b"text", saved("BMP"), saved("TIFF"), saved("GIF")):
        assert extract(data) is None
        with pytest.raises(ContainerError, match="only PNG, JPEG and WebP"):
            embed(data, RECORD)
        with pytest.raises(ContainerError):
            strip(data)


def test_garbage_never_escapes_as_another_error() -> None:
    generator = np.random.default_rng(3)
    carrying = [embed(image, RECORD) for image in IMAGES.values()]
    for turn in range(900):
        data = bytearray(carrying[turn % len(carrying)])
        for at in generator.integers(0, min(len(data), 700), 3):
            data[at] = generator.integers(256)
        try:
            record = extract(bytes(data))
            strip(bytes(data))
            if record is not None:
                assert decode(record) == HEADER
        except ContainerError:
            continue


def test_an_exposed_photo_is_named() -> None:
    """One of an earlier version that shares its keystream with others; not one of today, nor one with its own salt."""
    early = replace(HEADER, backend="hford", parameters={}, consistent=True, flow_salt=CONSISTENT_SALT, seal=None)
    for header, exposed in (
        (early, True),
        (replace(early, parameters={"nonces": "00" * 8}), False),
        (replace(early, consistent=False, flow_salt=bytes(16)), False),
        (replace(early, backend="ifadit-official"), False),
    ):
        notes = carriers.describe(embed(IMAGES["png"], encode(header)), "a.png")["notes"]
        assert len(notes) == exposed and all("treated as exposed" in note for note in notes)
