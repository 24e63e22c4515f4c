"""A picture of which a part is missing is refused, however well its file ends."""

import os
import struct
import threading
import zlib

import cv2
import numpy as np
import pytest
from pictures import png, png_chunk, saved
from PIL import Image

from anonface.errors import ImageError
from anonface.images import jpeg, native, read_photo

EOI = b"\xff\xd9"


def picture() -> Image.Image:
    smooth = cv2.GaussianBlur(np.random.default_rng(4).integers(0, 256, (150, 200, 3), np.uint8), (0, 0), 2)
    return Image.fromarray(cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX))


KINDS = {
    "baseline": {},
    "full chroma": {"subsampling": 0},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
    "close restarts": {"restart_marker_blocks": 3},
    "progressive with restarts": {"progressive": True, "restart_marker_rows": 2},
}


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("kind", KINDS)
def test_half_a_jpeg_and_one_with_a_hole(kind: str, mode: str) -> None:
    whole = saved(picture().convert(mode), "JPEG", quality=93, **KINDS[kind])
    assert not any("bytes" in note for note in read_photo(whole).notes)
    size = len(whole)
    spoiled = {
        "half": whole[: size // 2] + EOI,
        "nearly whole": whole[: size * 9 // 10] + EOI,
        "zeros": whole[: size // 2] + bytes(900) + whole[size // 2 + 900 :],
        "left out": whole[: size // 2] + whole[size // 2 + 900 :],
        "twice": whole[: size // 2] + whole[size // 2 - 900 :],
    }
    for name, data in spoiled.items():
        with pytest.raises(ImageError, match="truncated or damaged"):
            read_photo(data, name=name)
            pytest.fail(name)


def test_what_cameras_add_is_no_fault() -> None:
    whole = saved(picture(), "JPEG", quality=93)
    expected = read_photo(whole).pixels
    scan = whole.index(b"\xff\xda")
    sos = scan + 2 + int.from_bytes(whole[scan + 2 : scan + 4])
    new_jfif = whole.replace(b"JFIF\0\1\1", b"JFIF\0\7\1")
    for data in (
        whole[:-2] + bytes(300) + EOI,  # padded
        whole[: sos - 3] + bytes(3) + whole[sos:],  # spectral selection that no sequential JPEG has
        new_jfif,
        whole + b"video" * 99,
    ):
        assert data != whole and np.array_equal(read_photo(data).pixels, expected)
    half = new_jfif[: len(whole) // 2] + EOI  # of several warnings libjpeg says the first alone
    with pytest.raises(ImageError, match="premature end"):
        read_photo(half)


def test_the_check_does_not_touch_the_first_picture_of_several() -> None:
    assert read_photo(saved(picture(), "MPO", save_all=True, append_images=[picture()])).notes


@pytest.mark.parametrize("interlaced", [0, 1])
@pytest.mark.parametrize(("depth", "colour", "channels"), [(8, 2, 3), (16, 2, 3), (8, 6, 4), (8, 0, 1), (1, 0, 1)])
def test_half_a_png(interlaced: int, depth: int, colour: int, channels: int) -> None:
    side = 21
    passes = [(side, side)]
    if interlaced:
        grid = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
        passes = [(len(range(x, side, dx)), len(range(y, side, dy))) for x, y, dx, dy in grid]
    rows = b"".join((b"\0" + b"\x5a" * -(-wide * depth * channels // 8)) * high for wide, high in passes)
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, interlaced))

    def file(rows: bytes) -> bytes:
        packed = zlib.compress(rows)
        halves = png_chunk(b"IDAT", packed[:7]) + png_chunk(b"IDAT", packed[7:])
        return b"\x89PNG\r\n\x1a\n" + head + halves + png_chunk(b"IEND", b"")

    assert cv2.imdecode(np.frombuffer(file(rows), np.uint8), cv2.IMREAD_UNCHANGED) is not None
    read_photo(file(rows))
    read_photo(file(rows + b"more"))
    for size in (len(rows) // 2, len(rows) - 1):
        with pytest.raises(ImageError, match="truncated"):
            read_photo(file(rows[:size]))


def test_half_a_gif() -> None:
    data = saved(picture().quantize(64), "GIF")
    at = data.index(b",\0\0\0\0") + 10  # behind the descriptor of the picture
    size = data[at + 1]
    half = data[: at + 2 + size] + b"\0;"  # one of its pieces
    with pytest.raises(ImageError):
        read_photo(half)


def test_half_a_bmp_a_webp_and_a_ppm() -> None:
    for kind in ("BMP", "WEBP", "PPM"):
        data = saved(picture(), kind, lossless=True)
        half = bytearray(data[: len(data) // 2 // 2 * 2])
        if kind == "WEBP":
            struct.pack_into("<I", half, 4, len(half) - 8)
            struct.pack_into("<I", half, 16, len(half) - 20)
        with pytest.raises(ImageError):
            read_photo(bytes(half))


def test_what_others_say_on_standard_error_is_passed_on(capfd: pytest.CaptureFixture) -> None:
    half = saved(picture(), "JPEG")[:2000] + EOI
    stop = threading.Event()

    def speak() -> None:
        while not stop.is_set():
            os.write(2, b"hello\n")
            said.append(1)

    said: list[int] = []
    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        found = [jpeg.fault([half]) for _ in range(5)]
    finally:
        stop.set()
        speaker.join()
    assert all(found)
    assert capfd.readouterr().err == "hello\n" * len(said)


def test_the_check_without_standard_error() -> None:
    half = saved(picture(), "JPEG")[:2000] + EOI
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.close(2)
            code = 0 if jpeg.fault([half]) and not jpeg.fault([saved(picture(), "JPEG")]) else 2
            try:
                os.fstat(2)
                code = 3
            except OSError:
                pass
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def test_messages_without_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with native.messages() as lines:
        os.write(2, b"one\ntwo\n")
    assert lines == ["one\n", "two\n"]


def test_nothing_is_said_of_broken_files(capfd: pytest.CaptureFixture) -> None:
    deep = png(20, 20, 16, 2, (b"\0" + bytes(120)) * 10)
    for data in (deep, saved(picture(), "JPEG")[:2000] + EOI):
        with pytest.raises(ImageError):
            read_photo(data)
    assert capfd.readouterr() == ("", "")
