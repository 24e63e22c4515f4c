"""Image files: every fault is refused by name, every kind comes out as the pixels that it shows."""

import io
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pictures import SRGB, grey_of_inks, png, png_chunk, saved, scene
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin

from anonface.errors import AnonfaceError, ImageError, LimitError, UsageError
from anonface.images import Photo, decode, encode_photo, files, profiles, read_file, read_photo, tiff


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("BMP", {}), ("PPM", {})],
)
def test_lossless_formats_give_their_pixels(kind: str, options: dict) -> None:
    photo = read_photo(saved(Image.fromarray(scene()), kind, **options), name="lies.jpg")
    assert np.array_equal(photo.pixels, scene())
    assert photo.alpha is None and photo.icc is None and photo.format == kind.lower() and photo.notes == ()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"hello, this is text\n" * 20, "not an image"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00", "truncated|not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ],
)
def test_what_is_no_image_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        read_photo(data, name="photo.jpg")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("AVIF", {}),
    ],
)
def test_every_truncation_is_refused(kind: str, options: dict) -> None:
    data = saved(Image.fromarray(scene()), kind, **options)
    read_photo(data)
    # Of a JPEG and a GIF every pixel is there before the end marker; Pillow writes the TIFF directory first.
    end_marker = {"JPEG": 2, "GIF": 2}.get(kind, 0)
    for size in range(1, len(data) - end_marker):
        with pytest.raises(ImageError):
            read_photo(data[:size])


def test_a_damaged_png_is_refused() -> None:
    data = bytearray(saved(Image.fromarray(scene()), "PNG"))
    data[data.index(b"IDAT") + 20] ^= 1
    with pytest.raises(ImageError):
        read_photo(bytes(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF"])
def test_orientation_is_applied(orientation: int, kind: str) -> None:
    image = Image.fromarray(scene())
    exif = Image.Exif()
    exif[decode.ORIENTATION] = orientation
    options = {
        "JPEG": {"quality": 95, "subsampling": 0},
        "WEBP": {"lossless": True},
        "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    }.get(kind, {})
    photo = read_photo(saved(image, kind, exif=exif, **options))
    image.getexif()[decode.ORIENTATION] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image)).astype(int)
    assert photo.pixels.shape == expected.shape
    assert np.abs(photo.pixels - expected).max() <= (12 if kind in ("JPEG", "AVIF") else 0)


def test_broken_exif_does_not_cost_the_photo() -> None:
    data = saved(Image.fromarray(scene()), "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffgarbage")
    assert np.array_equal(read_photo(data).pixels, scene())


def test_cmyk_goes_through_its_profile() -> None:
    cmyk = Image.fromarray(scene()).convert("CMYK")
    plain = read_photo(saved(cmyk, "JPEG", quality=95))
    assert plain.notes and plain.icc is None
    assert np.abs(plain.pixels.astype(int) - scene()).mean() < 6
    profiled = read_photo(saved(cmyk, "JPEG", icc_profile=grey_of_inks()))
    assert profiled.icc is None and profiled.notes == ("converted from CMYK to sRGB through its profile",)
    assert np.abs(profiled.pixels.astype(int) - profiled.pixels[..., :1]).max() <= 1  # no ink has a colour there
    wrong = read_photo(saved(cmyk, "JPEG", quality=95, icc_profile=b"no profile" * 20))
    assert wrong.icc is None and "unusable" in wrong.notes[0]


def test_an_rgb_profile_is_kept_and_a_broken_one_dropped() -> None:
    image = Image.fromarray(scene())
    photo = read_photo(saved(image, "PNG", icc_profile=SRGB))
    assert photo.icc == profiles.colour_profile(SRGB) and np.array_equal(photo.pixels, scene())
    again = read_photo(encode_photo(photo))
    assert again.icc == photo.icc
    assert read_photo(saved(image, "PNG", icc_profile=b"secret text")).icc is None


def test_alpha_and_the_colours_under_it_are_kept() -> None:
    alpha = np.where(scene()[..., 0] > 100, 255, 0).astype(np.uint8)
    rgba = Image.fromarray(np.dstack([scene(), alpha]))
    for data in (saved(rgba, "PNG"), saved(rgba, "WEBP", lossless=True, exact=True)):
        photo = read_photo(data)
        assert np.array_equal(photo.pixels, scene()) and np.array_equal(photo.alpha, alpha)
        for kind in ("png", "webp"):
            again = read_photo(encode_photo(photo, kind))
            assert np.array_equal(again.pixels, scene()) and np.array_equal(again.alpha, alpha)
        with pytest.raises(UsageError, match="transparency"):
            encode_photo(photo, "jpeg")


def test_a_grey_file_is_written_as_one_as_long_as_it_is_grey() -> None:
    for mode in ("L", "LA", "1"):
        photo = read_photo(saved(Image.fromarray(scene()).convert(mode), "PNG"))
        assert photo.grey
        for kind in ("png", "jpeg", "webp"):
            if kind == "jpeg" and mode == "LA":
                continue
            again = read_photo(encode_photo(photo, kind, 100))
            assert again.grey is (kind != "webp")
            assert np.abs(again.pixels.astype(int) - photo.pixels).max() <= (2 if kind == "jpeg" else 0)
            assert not read_photo(encode_photo(replace(photo, pixels=scene()), kind)).grey
    for image in (Image.fromarray(scene()), Image.fromarray(scene()).convert("L").convert("RGB")):
        photo = read_photo(saved(image, "PNG"))
        assert not photo.grey and not read_photo(encode_photo(photo)).grey


def test_palette_grey_and_one_bit_become_rgb() -> None:
    grey = Image.fromarray(scene()).convert("L")
    for image in (grey, grey.convert("1"), Image.fromarray(scene()).quantize(16)):
        photo = read_photo(saved(image, "PNG"))
        assert np.array_equal(photo.pixels, np.asarray(image.convert("RGB"))) and photo.alpha is None
    palette = Image.fromarray(scene()).quantize(16)
    photo = read_photo(saved(palette, "PNG", transparency=3))
    assert np.array_equal(photo.alpha == 0, np.asarray(palette) == 3)
    assert np.array_equal(photo.pixels, np.asarray(palette.convert("RGB")))
    both = Image.merge("LA", (grey, grey.point(lambda v: 255 - v)))
    photo = read_photo(saved(both, "PNG"))
    assert np.array_equal(photo.pixels[..., 1], np.asarray(grey)) and np.array_equal(
        photo.alpha, 255 - np.asarray(grey)
    )


def test_depths_that_cannot_be_kept_are_refused() -> None:
    grey = np.linspace(0, 60_000, 16).reshape(4, 4)
    deep = [saved(Image.fromarray(grey.astype(np.float32)), "TIFF")]
    deep.append(png(4, 4, 16, 0, (b"\0" + bytes(8)) * 4, png_chunk(b"tRNS", b"\0\1")))
    deep.append(png(4, 4, 16, 2, (b"\0" + bytes(24)) * 4, png_chunk(b"iCCP", b"n\0\0" + zlib.compress(bytes(200)))))
    deep.append(b"P6 # text\n2 2 65535\n" + bytes(24))
    for data in deep:
        with pytest.raises(ImageError, match="bits a channel"):
            read_photo(data)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_animations_are_refused_and_single_pictures_read(kind: str) -> None:
    frames = [Image.fromarray(np.roll(scene(), n * 7, axis=0)) for n in range(3)]
    with pytest.raises(ImageError, match="animated"):
        read_photo(saved(frames[0], kind, save_all=True, append_images=frames[1:]))
    assert read_photo(saved(frames[0], kind)).pixels.shape == scene().shape


def test_further_pictures_and_trailers_are_reported() -> None:
    first, second = Image.fromarray(scene()), Image.fromarray(scene()[::-1])
    data = saved(first, "MPO", save_all=True, append_images=[second])
    photo = read_photo(data)
    assert photo.format == "jpeg" and "1 further pictures" in photo.notes[0]
    plain = saved(first, "JPEG")
    assert read_photo(plain).notes == ()
    video = struct.pack(">I4s", 800, b"mpvd") + bytes(792)
    for kind in ("JPEG", "PNG", "WEBP", "AVIF"):
        plain = saved(first, kind)
        assert read_photo(plain).notes == ()
        assert read_photo(plain + video).notes == ("800 bytes behind the picture left out",)


def test_a_preview_is_not_taken_for_the_photo() -> None:
    image = Image.fromarray(scene())
    for tag, value in ((tiff.DNG_VERSION, b"\1\4\0\0"), (tiff.SUBFILE_TYPE, 1)):
        directory = TiffImagePlugin.ImageFileDirectory_v2()
        directory[tag] = value
        with pytest.raises(ImageError, match="raw photo"):
            read_photo(saved(image, "TIFF", tiffinfo=directory))


def heic(image: Image.Image, **options: object) -> bytes:
    pytest.importorskip("pillow_heif").register_heif_opener()
    return saved(image, "HEIF", **options)


def test_heic() -> None:
    data = heic(Image.fromarray(scene()), quality=-1, chroma=444)
    photo = read_photo(data, name="photo.jpg")
    assert photo.format == "heif" and photo.notes == () and np.abs(photo.pixels.astype(int) - scene()).max() <= 12
    for size in (len(data) // 3, len(data) - 50):
        with pytest.raises(ImageError):
            read_photo(data[:size])
    with pytest.raises(LimitError):
        read_photo(data, max_pixels=100)


def test_heic_that_is_turned_by_its_container() -> None:
    """The container says how it is turned; its EXIF, which may say so again, has no say."""
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    with Image.open(io.BytesIO(data := heic(Image.fromarray(scene()), exif=exif))) as image:
        size = image.size
    assert read_photo(data).pixels.shape[1::-1] == size


def test_heic_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError) as caught:
        read_photo(struct.pack(">I4s4sI8s", 24, b"ftyp", b"heic", 0, b"mif1heic") + bytes(100), name="a.heic")
    assert "needs pillow-heif" in caught.value.message and ".[heif]" in caught.value.hint


def test_depths_that_are_reduced_are_noted() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    deep = (scene().astype(np.uint16) * 257).tobytes()
    buffer = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", scene().shape[1::-1], deep).save(buffer, quality=-1)
    photo = read_photo(buffer.getvalue())
    assert photo.notes == ("more than 8 bits a channel were reduced to 8",)
    assert np.abs(photo.pixels.astype(int) - scene()).max() <= 16


def test_the_depth_of_an_avif() -> None:
    data = bytearray(saved(Image.fromarray(scene()), "AVIF"))
    image = Image.new("RGB", (1, 1))
    assert not decode._is_deep_heif(image, bytes(data))
    data[data.index(b"av1C") + 6] |= 0x40
    assert decode._is_deep_heif(image, bytes(data))


def test_size_limits_come_before_decoding() -> None:
    lie = png(20_000, 10_000, 8, 2, b"")
    with pytest.raises(LimitError):
        read_photo(lie)
    with pytest.raises(ImageError):  # what was allowed is tried, whatever Pillow would allow
        read_photo(lie, max_pixels=200_000_000)
    assert Image.MAX_IMAGE_PIXELS
    with pytest.raises(LimitError, match="10,000"):
        read_photo(png(100, 101, 8, 2, b""), max_pixels=10_000)
    with pytest.raises(LimitError, match="64,000,000"):
        read_photo(png(10_000, 10_000, 8, 2, b""))
    with pytest.raises(ImageError):  # within the limit, and found to be empty
        read_photo(png(100, 100, 8, 2, b""), max_pixels=10_000)


def test_file_size_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = saved(Image.fromarray(scene()), "BMP")
    file = tmp_path / "a.bmp"
    file.write_bytes(data)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", len(data) - 1)
    with pytest.raises(LimitError):
        read_photo(data)
    with pytest.raises(LimitError):
        read_file(file)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", len(data))
    assert read_file(file) == data


def test_bombs_in_metadata_are_bounded() -> None:
    bomb = zlib.compress(bytes(64 << 20))
    rows = (b"\0" + bytes(12)) * 4
    for chunk in (
        png_chunk(b"iTXt", b"key\0\1\0\0\0" + bomb),
        png_chunk(b"zTXt", b"key\0\0" + bomb),
        png_chunk(b"iCCP", b"name\0\0" + bomb),
    ):
        with pytest.raises(LimitError, match="unfolds"):
            read_photo(png(4, 4, 8, 2, rows, chunk))


def test_messages_escape_names() -> None:
    with pytest.raises(ImageError) as caught:
        read_photo(b"", name="a\nb\x1b[31m.jpg")
    assert caught.value.message.isprintable()


def test_garbage_never_escapes_as_another_error() -> None:
    generator = np.random.default_rng(5)
    seeds = [saved(Image.fromarray(scene()), kind) for kind in ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")]
    for turn in range(300):
        data = bytearray(seeds[turn % len(seeds)])
        for at in generator.integers(0, len(data), 4):
            data[at] = generator.integers(256)
        try:
            read_photo(bytes(data), max_pixels=10**6)
        except AnonfaceError as error:
            assert error.exit_code in (4, 11)


# --- Encoding --------------------------------------------------------------------------------------------------------


def test_output_holds_no_metadata() -> None:
    canary = "CANARY-51.5N-0.1W"
    exif = Image.Exif()
    exif[0x010E] = canary
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", canary)
    inputs = [
        saved(Image.fromarray(scene()), "JPEG", exif=exif, comment=canary, xmp=canary.encode()),
        saved(Image.fromarray(scene()), "PNG", exif=exif, pnginfo=text),
        saved(Image.fromarray(scene()), "WEBP", exif=exif, xmp=canary.encode()),
    ]
    for data in inputs:
        assert canary.encode() in data
        photo = read_photo(data)
        for kind in ("png", "webp", "jpeg"):
            assert b"CANARY" not in encode_photo(photo, kind)


def test_encoding_options() -> None:
    photo = Photo(scene(), None, SRGB, "jpeg")
    good, poor = encode_photo(photo, "jpeg", 95), encode_photo(photo, "jpeg", 20)
    assert len(poor) < len(good)
    opened = Image.open(io.BytesIO(good))
    assert {layer[1:3] for layer in opened.layer} == {(1, 1)}  # 4:4:4
    assert opened.info["icc_profile"] == SRGB  # what the photo says is what is written
    for bad in ({"format": "gif"}, {"format": "jpeg", "quality": 0}, {"format": "jpeg", "quality": 101}):
        with pytest.raises(UsageError):
            encode_photo(photo, **bad)
    with pytest.raises(LimitError, match="16383"):
        encode_photo(Photo(np.zeros((1, 16_384, 3), np.uint8), None, None, "png"), "webp")


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [30, 75, 97])
def test_a_jpeg_can_be_compressed_as_its_original_was(quality, subsampling):
    smooth = Image.fromarray(scene()).resize((320, 320))
    smooth.save(buffer := io.BytesIO(), "JPEG", quality=quality, subsampling=subsampling)
    photo = read_photo(buffer.getvalue())
    assert photo.coding == (quality, subsampling)
    again = encode_photo(photo, "jpeg", None)
    assert read_photo(again).coding == photo.coding and 0.9 < len(again) / len(buffer.getvalue()) < 1.1
    assert read_photo(encode_photo(photo, "jpeg")).coding == (95, "4:4:4")


def test_the_tables_of_a_camera_are_not_copied():
    """They name its maker; the nearest standard ones are taken."""
    table = [16 + n % 7 for n in range(64)]
    Image.fromarray(scene()).save(buffer := io.BytesIO(), "JPEG", qtables=[table, table])
    photo = read_photo(buffer.getvalue())
    with Image.open(io.BytesIO(encode_photo(photo, "jpeg", None))) as image:
        standard = Image.new("RGB", (8, 8))
        standard.save(other := io.BytesIO(), "JPEG", quality=photo.coding.quality)
        assert image.quantization == Image.open(other).quantization and image.quantization[0] != table
        assert abs(sum(map(sum, image.quantization.values())) - 2 * sum(table)) < 300


def test_coding_of_other_jpegs():
    for mode, expected in (("L", (80, "4:4:4")), ("CMYK", None)):
        Image.fromarray(scene()).convert(mode).save(buffer := io.BytesIO(), "JPEG", quality=80)
        photo = read_photo(buffer.getvalue())
        assert photo.coding == expected and encode_photo(photo, "jpeg", None)
