"""16 bits a channel: kept wherever no face was drawn."""

import io

import cv2
import numpy as np
import pytest
from pictures import SRGB, png, png_chunk, saved
from PIL import Image

from anonface.images import depth, encode_photo, metadata, read_photo


def scene(channels: int) -> np.ndarray:
    return np.random.default_rng(channels).integers(0, 65536, (20, 30, channels), np.uint16)


def as_png(planes: np.ndarray, *extra: bytes) -> bytes:
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[planes.shape[2]]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in planes)
    return png(planes.shape[1], planes.shape[0], 16, colour, rows, *extra)


def opened(data: bytes) -> np.ndarray:
    planes = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return planes[..., [2, 1, 0, 3][: planes.shape[2]]]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sixteen_bits_there_and_back(channels: int) -> None:
    planes = scene(channels)
    photo = read_photo(as_png(planes))
    colours = np.repeat(planes[..., :1], 3, 2) if channels < 3 else planes[..., :3]
    assert photo.deep is not None and np.array_equal(photo.deep[..., :3], colours)
    assert np.abs(photo.pixels * 257.0 - colours).max() <= 128.5
    assert (photo.alpha is not None) == (channels in (2, 4))
    assert np.array_equal(opened(encode_photo(photo)), photo.deep)
    if channels in (2, 4):
        assert np.array_equal(photo.deep[..., 3], planes[..., -1])


def test_what_was_drawn_has_eight_bits_and_all_else_sixteen() -> None:
    photo = read_photo(as_png(scene(3)))
    drawn = photo.pixels.copy()
    drawn[5:9, 4:8] ^= 255
    result = opened(depth.encode_png(photo.deep, drawn, None, None))
    inside = np.zeros(drawn.shape[:2], bool)
    inside[5:9, 4:8] = True
    assert np.array_equal(result[inside], drawn[inside] * np.uint16(257))
    assert np.array_equal(result[~inside], photo.deep[~inside])


@pytest.mark.parametrize("planes", [scene(1)[..., 0], scene(3)], ids=["grey", "RGB"])
def test_plain_tiff(planes: np.ndarray) -> None:
    data = cv2.imencode(".tiff", planes if planes.ndim == 2 else planes[..., ::-1])[1].tobytes()
    photo = read_photo(data)
    assert photo.format == "tiff" and np.array_equal(photo.deep, planes.reshape(20, 30, -1) * np.ones(3, np.uint16))


def test_orientation_profile_and_exposure_go_along() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(metadata.EXIF_IFD)[0x8827] = 400
    block = png_chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0"))
    profile = saved(Image.new("RGB", (1, 1)), "PNG", icc_profile=SRGB)
    start = profile.index(b"iCCP") - 4
    chunk = profile[start : start + 12 + int.from_bytes(profile[start : start + 4])]
    planes = scene(3)
    photo = read_photo(as_png(planes, chunk, block))
    assert np.array_equal(photo.deep, np.rot90(planes, -1)) and photo.pixels.shape == (30, 20, 3)
    for keep in (False, True):
        with Image.open(io.BytesIO(encode_photo(photo, keep_metadata=keep))) as image:
            assert image.info["icc_profile"] == photo.icc is not None
            assert image.getexif().get_ifd(metadata.EXIF_IFD) == ({0x8827: 400} if keep else {})


@pytest.mark.parametrize("format", ["webp", "jpeg"])
def test_other_formats_have_eight(format: str) -> None:
    photo = read_photo(as_png(scene(3)))
    again = read_photo(encode_photo(photo, format, 100))
    assert again.deep is None and again.pixels.shape == photo.pixels.shape


def test_a_truncated_one_is_refused() -> None:
    from anonface.errors import ImageError

    for data in (as_png(scene(3)), cv2.imencode(".tiff", scene(3))[1].tobytes()):
        for size in range(len(data) // 3, len(data) - 20, 97):
            with pytest.raises(ImageError):
                read_photo(data[:size])
