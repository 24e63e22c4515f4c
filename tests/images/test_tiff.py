"""TIFF: every layout is decoded as tifffile decodes it, or refused by name; one directory is the photo."""

import io
import itertools
import re
import struct
import zlib

import cv2
import numpy as np
import pytest
import tifffile
from pictures import saved
from PIL import Image, TiffImagePlugin

from anonface.errors import AnonfaceError, ImageError
from anonface.images import read_photo, tiff

HEIGHT, WIDTH, TILE = 37, 42, 16
LZW, ZLIB, PACKBITS = "lzw", "zlib", "packbits"


def noise(channels: int, dtype: str, seed: int = 1) -> np.ndarray:
    """[H, W, channels], with runs and without; every channel another."""
    values = np.random.default_rng(seed).random((HEIGHT, WIDTH, channels))
    values[::3] = values[::3, :1]
    return (values * 255 if dtype == "uint8" else values * 65535 if dtype == "uint16" else values).astype(dtype)


def bits_of(codes: list[tuple[int, int]]) -> bytes:
    text = "".join(f"{code:0{width}b}" for code, width in codes)
    return int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8))


def lzw(data: bytes) -> bytes:
    """Literals alone, the table cleared before its codes take ten bits."""
    codes = []
    for start in range(0, len(data), 200):
        codes += [(256, 9), *((byte, 9) for byte in data[start : start + 200])]
    return bits_of([*codes, (257, 9)])


def packbits(data: bytes) -> bytes:
    return b"".join(bytes([len(part) - 1]) + part for part in (data[n : n + 128] for n in range(0, len(data), 128)))


def segments(planes: np.ndarray, tile: int | None, rows: int, planar: bool) -> list[np.ndarray]:
    """Strips or tiles in TIFF's order; tiles at the edge are padded."""
    layers = [planes[..., n : n + 1] for n in range(planes.shape[2])] if planar else [planes]
    if not tile:
        return [layer[top : top + rows] for layer in layers for top in range(0, HEIGHT, rows)]
    padded = [np.pad(layer, ((0, -HEIGHT % tile), (0, -WIDTH % tile), (0, 0))) for layer in layers]
    tops, lefts = range(0, HEIGHT, tile), range(0, WIDTH, tile)
    return [layer[top : top + tile, left : left + tile] for layer in padded for top in tops for left in lefts]


def directory(entries: dict[int, tuple[str, list[int]]], order: str, at: int, behind: int = 0) -> bytes:
    """A directory that lies at a place, as struct's types and numbers; ``behind`` is where the next one lies."""
    kinds = {"B": 1, "H": 3, "I": 4}
    head, body, start = struct.pack(order + "H", len(entries)), b"", at + 2 + 12 * len(entries) + 4
    for tag, (code, values) in sorted(entries.items()):
        packed = struct.pack(f"{order}{len(values)}{code}", *values)
        if len(packed) > 4:
            place = struct.pack(order + "I", start + len(body))
            body += packed + bytes(len(packed) % 2)
            packed = place
        head += struct.pack(order + "HHI", tag, kinds[code], len(values)) + packed.ljust(4, b"\0")
    return head + struct.pack(order + "I", behind) + body


def written(
    planes: np.ndarray,
    compression: str | None = None,
    tile: int | None = None,
    planar: bool = False,
    order: str = "<",
    **tags: tuple[str, list[int]],
) -> bytes:
    """A TIFF file by hand: ``t256=("H", [7])`` sets a tag."""
    channels, kind = planes.shape[2], {"u": 1, "i": 2, "f": 3}[planes.dtype.kind]
    parts = segments(planes.astype(planes.dtype.newbyteorder(order)), tile, 10, planar)
    pack = {None: bytes, LZW: lzw, ZLIB: zlib.compress, PACKBITS: packbits}[compression]
    by_row = compression == PACKBITS  # which never runs over the end of a row
    packed = [b"".join(pack(row.tobytes()) for row in p) if by_row else pack(p.tobytes()) for p in parts]
    packed = [part + bytes(len(part) % 2) for part in packed]
    if tags.get("t266") == ("H", [2]):  # the bits of each byte reversed
        packed = [bytes(int(f"{byte:08b}"[::-1], 2) for byte in part) for part in packed]
    starts = [8 + sum(map(len, packed[:n])) for n in range(len(packed))]
    entries = {
        256: ("H", [WIDTH]),
        257: ("H", [HEIGHT]),
        258: ("H", [planes.dtype.itemsize * 8] * channels),
        259: ("H", [{None: 1, LZW: 5, ZLIB: 8, PACKBITS: 32773}[compression]]),
        262: ("H", [2 if channels > 2 else 1]),
        277: ("H", [channels]),
        284: ("H", [2 if planar else 1]),
        339: ("H", [kind] * channels),
        **({322: ("H", [tile]), 323: ("H", [tile])} if tile else {278: ("H", [10])}),
        324 if tile else 273: ("I", starts),
        325 if tile else 279: ("I", [len(part) for part in packed]),
        **{int(name[1:]): value for name, value in tags.items()},
    }
    body = b"".join(packed)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8 + len(body))
    return head + body + directory(entries, order, 8 + len(body))


def by_tifffile(data: bytes, planes: np.ndarray) -> np.ndarray:
    """[H, W, channels]; of LZW, which tifffile reads with another package only, what was written."""
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        if page.compression == tifffile.COMPRESSION.LZW:
            return planes
        found = page.asarray()
        if page.planarconfig == tifffile.PLANARCONFIG.SEPARATE and found.ndim == 3:
            found = found.transpose(1, 2, 0)
        return found.reshape(HEIGHT, WIDTH, -1)


LAYOUTS = list(
    itertools.product([1, 3], ["uint8", "uint16", "float32"], [None, LZW, ZLIB, PACKBITS], [None, TILE], "<>", [0, 1])
)


@pytest.mark.parametrize(("channels", "dtype", "compression", "tile", "order", "planar"), LAYOUTS)
def test_every_layout(
    channels: int, dtype: str, compression: str | None, tile: int | None, order: str, planar: int
) -> None:
    planes = noise(channels, dtype)
    data = written(planes, compression, tile, bool(planar), order)
    expected = by_tifffile(data, planes)
    assert np.array_equal(expected, planes)
    if dtype == "float32":
        with pytest.raises(ImageError, match=r"32 bits a channel .floating point."):
            read_photo(data)
        return
    photo = read_photo(data)
    got = photo.deep if dtype == "uint16" else photo.pixels
    assert got.dtype == dtype and np.array_equal(got, expected * np.ones(3, dtype))
    assert (photo.deep is None) == (dtype == "uint8")


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("options", [{"compression": "zlib", "predictor": True}, {"bigtiff": True}])
def test_what_tifffile_writes(dtype: str, planar: bool, options: dict) -> None:
    planes, buffer = noise(3, dtype), io.BytesIO()
    layers = np.ascontiguousarray(planes.transpose(2, 0, 1)) if planar else planes
    config = "separate" if planar else "contig"
    tifffile.imwrite(buffer, layers, photometric="rgb", planarconfig=config, rowsperstrip=9, **options)
    photo = read_photo(buffer.getvalue())
    assert np.array_equal(by_tifffile(buffer.getvalue(), planes), planes)
    assert np.array_equal(photo.deep if dtype == "uint16" else photo.pixels, planes)


WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
UNSPECIFIED, ASSOCIATED, UNASSOCIATED = 0, 1, 2
READ = {WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK}  # of 8 bits


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("compression", [None, ZLIB])
@pytest.mark.parametrize("tile", [None, TILE])
@pytest.mark.parametrize(
    ("photometric", "channels", "extra", "dtype"),
    [
        (WHITE_IS_ZERO, 1, None, "uint8"),
        (BLACK_IS_ZERO, 2, UNASSOCIATED, "uint8"),
        (BLACK_IS_ZERO, 2, ASSOCIATED, "uint8"),
        (PALETTE, 1, None, "uint8"),
        (RGB, 4, UNASSOCIATED, "uint8"),
        (RGB, 4, ASSOCIATED, "uint8"),
        (RGB, 4, UNSPECIFIED, "uint8"),
        (RGB, 5, UNSPECIFIED, "uint8"),
        (CMYK, 4, None, "uint8"),
        (CMYK, 5, UNSPECIFIED, "uint8"),
        (LAB, 3, None, "uint8"),
        (YCBCR, 3, None, "uint8"),
        (RGB, 3, None, "int8"),
        (WHITE_IS_ZERO, 1, None, "uint16"),
        (BLACK_IS_ZERO, 2, UNASSOCIATED, "uint16"),
        (RGB, 4, UNASSOCIATED, "uint16"),
        (RGB, 4, UNSPECIFIED, "uint16"),
        (CMYK, 4, None, "uint16"),
        (LAB, 3, None, "uint16"),
        (BLACK_IS_ZERO, 1, None, "int16"),
        (BLACK_IS_ZERO, 1, None, "uint32"),
        (RGB, 3, None, "float16"),
    ],
)
def test_every_kind_of_colour_is_read_rightly_or_refused(
    photometric: int, channels: int, extra: int | None, dtype: str, tile: int | None, compression: str, planar: bool
) -> None:
    planes = noise(channels, "uint8" if dtype.endswith("8") else "uint16")
    planes = (planes // 2).astype(dtype) if dtype in ("int8", "int16", "float16") else planes.astype(dtype)
    if extra == ASSOCIATED:
        planes[..., :-1] = np.minimum(planes[..., :-1], planes[..., -1:])
    usual = {BLACK_IS_ZERO: 1, RGB: 3, CMYK: 4}.get(photometric, channels)
    more: dict = {"t262": ("H", [photometric])}
    if extra is not None:
        more["t338"] = ("H", [extra] * (channels - usual))
    colours = np.random.default_rng(2).integers(0, 65536, (3, 256), np.uint16)
    if photometric == PALETTE:
        more["t320"] = ("H", colours.ravel().tolist())
    if photometric == YCBCR:
        more["t530"] = ("H", [1, 1])
    data = written(planes, compression, tile, planar, **more)
    assert np.array_equal(by_tifffile(data, planes), planes)
    may_be_read = photometric in READ and dtype == "uint8"
    try:
        photo = read_photo(data)
    except AnonfaceError as error:
        assert isinstance(error, ImageError) and "damaged" not in error.message, error.message
        assert not may_be_read or (planar and re.search("plane|few or reversed", error.message)), error.message
        return
    assert may_be_read and photo.deep is None
    colour = planes[..., :usual].astype(float)
    if photometric == WHITE_IS_ZERO:
        expected = 255 - colour * np.ones(3)
    elif photometric == PALETTE:
        expected = (colours >> 8).T[planes[..., 0]]
    elif photometric == CMYK:
        expected = (255 - colour[..., :3]) * (255 - colour[..., 3:]) / 255
    else:
        expected = colour * np.ones(3)
    if extra == ASSOCIATED:
        opaque = planes[..., -1] > 60
        exact = colour * 255 / np.maximum(planes[..., -1:], 1)
        assert np.abs(photo.pixels - exact)[opaque].max() <= 3
    else:
        assert np.abs(photo.pixels - expected).max() <= (1 if photometric == CMYK else 0)
    assert (photo.alpha is not None) == (extra in (ASSOCIATED, UNASSOCIATED))
    if photo.alpha is not None:
        assert np.array_equal(photo.alpha, planes[..., -1])


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("compression", [None, ZLIB])
@pytest.mark.parametrize("tile", [None, TILE])
@pytest.mark.parametrize("reversed_bits", [False, True])
@pytest.mark.parametrize("photometric", [WHITE_IS_ZERO, BLACK_IS_ZERO, PALETTE])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_few_bits(
    bits: int, photometric: int, reversed_bits: bool, tile: int | None, compression: str | None, planar: bool
) -> None:
    """Bytes of several pixels each, as wide in bytes as other files here are in pixels."""
    each = 8 // bits
    packed = noise(1, "uint8")
    pixels = (packed[..., 0].repeat(each, 1) >> np.tile(np.arange(each)[::-1] * bits, WIDTH)) & ((1 << bits) - 1)
    more: dict = {"t256": ("H", [WIDTH * each]), "t258": ("H", [bits]), "t262": ("H", [photometric])}
    more |= {"t266": ("H", [2])} if reversed_bits else {}
    more |= {"t322": ("H", [TILE * each])} if tile else {}
    colours = np.random.default_rng(2).integers(0, 65536, (3, 1 << bits), np.uint16)
    more |= {"t320": ("H", colours.ravel().tolist())} if photometric == PALETTE else {}
    data = written(packed, compression, tile, planar, **more)
    if bits in (1, 8):  # others tifffile reads with another package only
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            assert np.array_equal(file.pages[0].asarray(), pixels)
    try:
        photo = read_photo(data)
    except ImageError as error:
        assert (planar or reversed_bits) and compression is None and "few or reversed bits" in error.message
        return
    levels = pixels * 255 // ((1 << bits) - 1)
    expected = {WHITE_IS_ZERO: 255 - levels, BLACK_IS_ZERO: levels, PALETTE: pixels}[photometric]
    expected = (colours >> 8).T[pixels] if photometric == PALETTE else expected[..., None] * np.ones(3)
    assert np.array_equal(photo.pixels, expected)


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("compression", [None, ZLIB, LZW])
def test_colours_with_reversed_bits(compression: str | None, planar: bool) -> None:
    planes = noise(3, "uint8")
    data = written(planes, compression, None, planar, t266=("H", [2]))
    if compression is None:
        with pytest.raises(ImageError, match="reversed bits"):
            read_photo(data)
        return
    assert np.array_equal(read_photo(data).pixels, planes)


def deep_planar() -> tuple[np.ndarray, bytes]:
    planes = noise(3, "uint16")
    return planes, written(planes, ZLIB, None, True)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("compression", [None, ZLIB])
def test_orientation(orientation: int, dtype: str, compression: str | None) -> None:
    planes = noise(3, dtype)
    photo = read_photo(written(planes, compression, None, True, t274=("H", [orientation])))
    turned = planes.swapaxes(0, 1) if orientation > 4 else planes
    mirrors = {1: "", 2: "x", 3: "xy", 4: "y", 5: "", 6: "x", 7: "xy", 8: "y"}[orientation]
    turned = turned[:: -1 if "y" in mirrors else 1, :: -1 if "x" in mirrors else 1]
    assert np.array_equal(photo.deep if dtype == "uint16" else photo.pixels, turned) and len(photo.notes) < 2


def pages(*said: dict[int, tuple[str, list[int]]]) -> bytes:
    """One picture of 8 bits under several directories."""
    data = written(noise(3, "uint8"))
    start = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[start : start + 2], "little")
    entries = {}
    for n in range(count):
        tag, kind, length = struct.unpack_from("<HHI", data, start + 2 + 12 * n)
        code = {3: "H", 4: "I"}[kind]
        size = struct.calcsize(code) * length
        at = start + 10 + 12 * n if size <= 4 else struct.unpack_from("<I", data, start + 10 + 12 * n)[0]
        entries[tag] = code, list(struct.unpack_from(f"<{length}{code}", data, at))
    made = data[:start]
    for n, more in enumerate(said):
        size = len(directory(entries | more, "<", 0))
        made += directory(entries | more, "<", len(made), len(made) + size if n + 1 < len(said) else 0)
    return made


def test_smaller_copies_are_no_photos() -> None:
    reduced, old_reduced, page = {254: ("I", [1])}, {255: ("H", [3 - 1])}, {254: ("I", [2])}
    planes = noise(3, "uint8")
    for copies in ([reduced], [old_reduced], [reduced, reduced]):
        for said in ([{}, *copies], [*copies, {}]):
            photo = read_photo(pages(*said))
            assert np.array_equal(photo.pixels, planes)
            assert photo.notes == (f"{len(copies)} further pictures in the file were left out",)
    assert len(tifffile.TiffFile(io.BytesIO(pages({}, reduced))).pages) == 2
    for said in ([{}, {}], [page, page], [{}, reduced, {}]):
        with pytest.raises(ImageError, match="several pages"):
            read_photo(pages(*said))
    with pytest.raises(ImageError, match="raw photo"):
        read_photo(pages(reduced, reduced))


def test_a_photo_of_sixteen_bits_behind_its_thumbnail() -> None:
    planes, data = deep_planar()
    small = noise(3, "uint8")[:8, :8].tobytes()
    start = len(data) + len(data) % 2
    said = {256: ("H", [8]), 257: ("H", [8]), 258: ("H", [8] * 3), 259: ("H", [1]), 262: ("H", [2]), 254: ("I", [1])}
    said |= {273: ("I", [start]), 277: ("H", [3]), 278: ("H", [8]), 279: ("I", [len(small)])}
    first = start + len(small)
    data = data[:4] + struct.pack("<I", first) + data[8:].ljust(start - 8, b"\0") + small
    data += directory(said, "<", first, int.from_bytes(written(planes, ZLIB, None, True)[4:8], "little"))
    photo = read_photo(data)
    assert np.array_equal(photo.deep, planes) and "1 further pictures" in photo.notes[0]


def test_what_the_pixels_are_compressed_by_is_said() -> None:
    for method, name in ((50001, "WebP"), (34712, "JPEG 2000"), (34887, "LERC"), (12345, "method 12345")):
        with pytest.raises(ImageError, match=f"compressed by {name}, which is not read in TIFF"):
            read_photo(written(noise(3, "uint8"), t259=("H", [method])))
    with pytest.raises(ImageError, match="compressed by Zstandard"):
        read_photo(written(noise(3, "uint16"), t259=("H", [50000])))


@pytest.mark.parametrize("compression", ["jpeg", "zstd", "lzma", "tiff_lzw", "tiff_adobe_deflate", "packbits"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_what_libtiff_compresses(compression: str, mode: str) -> None:
    planes = cv2.GaussianBlur(noise(3, "uint8"), (0, 0), 4)
    image = Image.fromarray(planes).convert(mode)
    photo = read_photo(saved(image, "TIFF", compression=compression))
    off = np.abs(photo.pixels.astype(int) - np.asarray(image.convert("RGB")))
    assert off.max() <= (20 if compression == "jpeg" else 0) and photo.notes == ()


@pytest.mark.parametrize("compression", ["group3", "group4", "raw"])
def test_one_bit(compression: str) -> None:
    image = Image.fromarray(noise(1, "uint8")[..., 0] > 128)
    photo = read_photo(saved(image, "TIFF", compression=compression))
    assert np.array_equal(photo.pixels[..., 1] > 0, np.asarray(image)) and photo.grey


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("compression", [None, LZW, ZLIB, PACKBITS])
@pytest.mark.parametrize("planar", [False, True])
def test_missing_parts_are_no_picture(dtype: str, compression: str | None, planar: bool) -> None:
    """Half a strip whose length is right, a strip that no tag names, and one beyond the end."""
    planes = noise(3, dtype)
    whole = written(planes, compression, None, planar)
    read_photo(whole)
    strips = [(offset, size) for offset, size in tiff.page(whole, "").segments]
    offsets, sizes = ([pair[n] for pair in strips] for n in (0, 1))
    short = {"t279": ("I", [*sizes[:-1], sizes[-1] // 2])}
    fewer = {"t273": ("I", offsets[:-1]), "t279": ("I", sizes[:-1])}
    beyond = {"t273": ("I", [*offsets[:-1], len(whole)])}
    for said in (short, fewer, beyond):
        with pytest.raises(ImageError, match="truncated"):
            read_photo(written(planes, compression, None, planar, **said))


def test_strips_that_share_bytes_take_no_more_memory_than_the_file() -> None:
    planes = noise(3, "uint16")
    size = tiff.page(written(planes), "").segments[0][1]
    with pytest.raises(ImageError, match="truncated"):
        read_photo(written(planes, t273=("I", [8] * 4), t279=("I", [size * 3] * 4)))


def test_half_a_jpeg_in_a_tiff() -> None:
    image = Image.fromarray(cv2.resize(noise(3, "uint8"), (420, 370)))
    data = saved(image, "TIFF", compression="jpeg", quality=95)
    read_photo(data)
    offset, size = tiff.page(data, "").segments[0]
    half = bytearray(data)
    half[offset + size // 2 : offset + size] = bytes(size - size // 2 - 2) + b"\xff\xd9"
    with pytest.raises(ImageError, match="truncated or damaged"):
        read_photo(bytes(half))


def test_an_endless_chain_of_directories() -> None:
    data = bytearray(written(noise(3, "uint8")))
    start = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[start : start + 2], "little")
    struct.pack_into("<I", data, start + 2 + 12 * count, start)
    with pytest.raises(ImageError, match="TIFF directory"):
        read_photo(bytes(data))


def test_chromaticities() -> None:
    wide = TiffImagePlugin.ImageFileDirectory_v2()
    wide[318], wide[319] = (0.3127, 0.329), (0.68, 0.32, 0.265, 0.69, 0.15, 0.06)
    photo = read_photo(saved(Image.fromarray(noise(3, "uint8")), "TIFF", tiffinfo=wide))
    assert photo.icc and photo.notes == ("its colours (Display P3) are kept by a colour profile",)
