"""Image files: every fault is refused by name, every kind comes out as the pixels that it shows, no output is lost."""

import errno
import io
import os
import struct
import tempfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

from anonface import imagefile
from anonface.errors import AnonfaceError, ImageError, LimitError, OutputError, UsageError
from anonface.imagefile import Photo, check_output, encode_photo, read_file, read_photo, write_atomic


def scene(height: int = 24, width: int = 32) -> np.ndarray:
    """Smooth, and different in every corner."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1).astype(np.uint8)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + body


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def grey_of_inks() -> bytes:
    """A whole ICC profile for CMYK in which paper is white, black ink is black and any other ink L* = 50."""

    def numbers(*values: float) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65536)) for value in values)

    white = numbers(0.9642, 1, 0.8249)
    inks = b"".join(bytes([255 if n == 0 else 0 if n & 1 else 128, 128, 128]) for n in range(16))
    table = b"mft1\0\0\0\0\x04\x03\x02\0" + numbers(1, 0, 0, 0, 1, 0, 0, 0, 1)
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + bytes(79),
        b"cprt": b"text\0\0\0\0none\0\0\0\0",
        b"wtpt": b"XYZ \0\0\0\0" + white,
        b"A2B0": table + bytes(range(256)) * 4 + inks + bytes(range(256)) * 3,
    }
    index, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        index += name + struct.pack(">II", 132 + 12 * len(tags) + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size = 128 + len(index) + len(body)
    head = struct.pack(">I4xI4s4s4s12x4s28x", size, 0x02400000, b"prtr", b"CMYK", b"Lab ", b"acsp") + white
    return head.ljust(128, b"\0") + index + body


# --- Reading ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True})])
def test_every_truncation_is_refused(kind: str, options: dict) -> None:
    data = saved(Image.fromarray(scene()), kind, **options)
    read_photo(data)
    end_marker = 2 if kind == "JPEG" else 0  # every pixel of a JPEG is there before its end marker
    for size in range(1, len(data) - end_marker):
        with pytest.raises(ImageError):
            read_photo(data[:size])


def test_a_damaged_png_is_refused() -> None:
    data = bytearray(saved(Image.fromarray(scene()), "PNG"))
    data[data.index(b"IDAT") + 20] ^= 1
    with pytest.raises(ImageError):
        read_photo(bytes(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_orientation_is_applied(orientation: int, kind: str) -> None:
    image = Image.fromarray(scene())
    exif = Image.Exif()
    exif[imagefile.ORIENTATION] = orientation
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    photo = read_photo(saved(image, kind, exif=exif, **options))
    image.getexif()[imagefile.ORIENTATION] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image)).astype(int)
    assert photo.pixels.shape == expected.shape
    assert np.abs(photo.pixels - expected).max() <= (12 if kind == "JPEG" else 0)


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
    assert photo.icc == SRGB and np.array_equal(photo.pixels, scene())
    again = read_photo(encode_photo(photo))
    assert again.icc == SRGB
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


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_are_refused(colour: int, channels: int) -> None:
    with pytest.raises(ImageError, match="8 bits"):
        read_photo(png(4, 4, 16, colour, (b"\0" + bytes(4 * channels * 2)) * 4))


def test_sixteen_bit_tiff_is_refused() -> None:
    with pytest.raises(ImageError, match="8 bits"):
        read_photo(saved(Image.fromarray(np.zeros((4, 4), np.uint16)), "TIFF"))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
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
    moving = read_photo(plain + b"ftypmp42" * 100)
    assert moving.notes == ("800 bytes behind the picture were left out",)


def test_size_limits_come_before_decoding() -> None:
    lie = png(20_000, 10_000, 8, 2, b"")
    with pytest.raises(LimitError):
        read_photo(lie)
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
    monkeypatch.setattr(imagefile, "MAX_FILE_BYTES", len(data) - 1)
    with pytest.raises(LimitError):
        read_photo(data)
    with pytest.raises(LimitError):
        read_file(file)
    monkeypatch.setattr(imagefile, "MAX_FILE_BYTES", len(data))
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


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jpg", "nul\0.jpg"):
        with pytest.raises(ImageError, match="cannot be read"):
            read_file(path)


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
    assert opened.info["icc_profile"] == SRGB
    for bad in ({"format": "gif"}, {"format": "jpeg", "quality": 0}, {"format": "jpeg", "quality": 101}):
        with pytest.raises(UsageError):
            encode_photo(photo, **bad)
    with pytest.raises(LimitError, match="16383"):
        encode_photo(Photo(np.zeros((1, 16_384, 3), np.uint8), None, None, "png"), "webp")


# --- Writing ---------------------------------------------------------------------------------------------------------


def test_writes_and_refuses_to_overwrite(tmp_path: Path) -> None:
    file = tmp_path / "out.png"
    write_atomic(file, b"one")
    with pytest.raises(OutputError, match="exists"):
        write_atomic(file, b"two")
    assert file.read_bytes() == b"one"
    file.chmod(0o640)
    write_atomic(file, b"two", overwrite=True)
    assert file.read_bytes() == b"two" and file.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["out.png"]


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "reference").touch()
    write_atomic(tmp_path / "out", b"x")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "reference").stat().st_mode


def test_names_of_any_bytes(tmp_path: Path) -> None:
    for name in (b"caf\xe9\xff.png", b"-x.jpg", b"two\nlines.png", b"n" * 250):
        path = os.fsencode(tmp_path) + b"/" + name
        write_atomic(path, b"data")
        assert read_file(path) == b"data"
        with pytest.raises(OutputError) as caught:
            write_atomic(path, b"data")
        assert caught.value.message.isprintable()
    with pytest.raises(OutputError):
        write_atomic(os.fsencode(tmp_path) + b"/" + b"n" * 300, b"data")


def test_the_input_is_no_output(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"original")
    (tmp_path / "hard.png").hardlink_to(photo)
    (tmp_path / "soft.png").symlink_to(photo)
    for name in ("photo.png", "hard.png", "../" + tmp_path.name + "/photo.png"):
        with pytest.raises(OutputError, match="input itself"):
            check_output(tmp_path / name, [tmp_path / "missing", tmp_path / "soft.png"], overwrite=True)
    for overwrite in (True, False):
        for name in ("soft.png", "dangling.png"):
            (tmp_path / "dangling.png").unlink(missing_ok=True)
            (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere")
            with pytest.raises(OutputError, match="symbolic link"):
                check_output(tmp_path / name, [photo], overwrite)
            with pytest.raises(OutputError, match="symbolic link"):
                write_atomic(tmp_path / name, b"x", overwrite)
    assert photo.read_bytes() == b"original" and not (tmp_path / "nowhere").exists()


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="no folder"):
        check_output(tmp_path / "missing" / "out.png")
    with pytest.raises(OutputError):
        check_output(tmp_path / "file" / "out.png")
    with pytest.raises(OutputError, match="not a file"):
        check_output(tmp_path, overwrite=True)


def test_a_read_only_folder_is_found_early() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o555)
        was_root = os.getuid() == 0
        if was_root:
            os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(OutputError, match="not writable"):
                check_output(Path(folder) / "out.png")
        finally:
            if was_root:
                os.setresuid(0, 0, 0)
            Path(folder).chmod(0o755)


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_full_disk_leaves_the_old_file(overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.png"
    if overwrite:
        file.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space"):
        write_atomic(file, b"new", overwrite)
    assert names(tmp_path) == (["out.png"] if overwrite else [])
    if overwrite:
        assert file.read_bytes() == b"old"


def test_a_full_device_is_reported() -> None:
    with pytest.raises(OutputError):
        write_atomic("/dev/full", b"x" * 100, overwrite=True)


@pytest.mark.parametrize("links", [True, False])
def test_of_many_writers_one_wins(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    file, told, start = tmp_path / "out.png", [], threading.Barrier(8)

    def writer(number: int) -> None:
        start.wait()
        try:
            write_atomic(file, bytes([number]) * 100_000)
        except OutputError:
            told.append(number)

    threads = [threading.Thread(target=writer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = file.read_bytes()
    assert len(told) == 7 and len(content) == 100_000 and len(set(content)) == 1 and content[0] not in told
    assert names(tmp_path) == ["out.png"]


def test_a_kill_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    file = tmp_path / "out.png"
    for delay in range(12):
        file.write_bytes(b"old" * 1000)
        child = os.fork()
        if child == 0:
            write_atomic(file, b"new" * 1_000_000, overwrite=True)
            os._exit(0)
        threading.Event().wait(delay * 0.001)
        os.kill(child, 9)
        os.waitpid(child, 0)
        assert file.read_bytes() in (b"old" * 1000, b"new" * 1_000_000)
