"""What may travel: exposures rounded; nothing that says where, when, who or which device."""

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from anonface.images import metadata


def exif_of(block: bytes) -> dict[int, object]:
    exif = Image.Exif()
    exif.load(block)
    return {**exif, **exif.get_ifd(metadata.EXIF_IFD)}


def test_how_it_was_taken_is_kept_as_small_numbers() -> None:
    taken = {0x829A: IFDRational(1, 125), 0x829D: 2.8, 0x8827: 400, 0x9204: IFDRational(-2, 3), 0x920A: 4.2000001}
    block = metadata.exposure({0x011A: 72, 0x0128: 2}, taken)
    assert block is not None
    found = exif_of(block)
    assert found.pop(metadata.EXIF_IFD)
    assert {tag: float(value) for tag, value in found.items()} == pytest.approx(
        {0x829A: 0.008, 0x829D: 2.8, 0x8827: 400, 0x9204: -2 / 3, 0x920A: 4.2, 0x011A: 72, 0x0128: 2}, rel=0.01
    )


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        (0x9003, "2024:05:17 12:34:56"),  # when
        (0x8827, "400"),
        (0x8827, b"\1\2"),
        (0x8827, (400, 500)),
        (0x8827, -4),
        (0x829A, 1e9),
        (0x829A, float("nan")),
        (0x829D, None),
        (0x829D, IFDRational(0, 0)),
        (0xA431, "serial number"),
        (0x927C, b"maker note"),
        (0x8825, {2: (51, 30, 0)}),  # GPS
    ],
)
def test_nothing_else_is_kept(tag: int, value: object) -> None:
    assert metadata.exposure({tag: value}, {tag: value}) is None


def test_rounding_leaves_no_room_for_a_number_of_somebodys() -> None:
    serial = IFDRational(123_456_789, 44_444_444)
    block = metadata.exposure({}, {0x829D: serial})
    assert block is not None and exif_of(block)[0x829D] != serial
    assert exif_of(block)[0x829D] == pytest.approx(2.78, abs=0.01)
