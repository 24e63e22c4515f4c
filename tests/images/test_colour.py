"""Colours that no ICC profile says: kept by a profile that says them, or refused; checked by another colour engine."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from pictures import SRGB, boxed, clean_aperture, grey_of_inks, grey_profile, png, png_chunk, saved, with_properties
from PIL import Image, ImageCms, ImageOps

from anonface.errors import ImageError
from anonface.images import colour, encode_photo, isobmff, profiles, read_photo

P3 = ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06), (0.3127, 0.329))
BT2020 = ((0.708, 0.292), (0.17, 0.797), (0.131, 0.046), (0.3127, 0.329))
ADOBE = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06), (0.3127, 0.329))
SRGB_POINTS = ((0.64, 0.33), (0.3, 0.6), (0.15, 0.06), (0.3127, 0.329))


def cube() -> np.ndarray:
    levels = np.linspace(0, 255, 12).astype(np.uint8)
    return np.stack(np.meshgrid(levels, levels, levels), -1).reshape(36, 48, 3)


def matrix(points: tuple) -> np.ndarray:
    """Linear RGB -> XYZ."""
    columns = np.array([[x / y, 1, (1 - x - y) / y] for x, y in points]).T
    return columns[:, :3] * np.linalg.solve(columns[:, :3], columns[:, 3])


def light(values: np.ndarray, gamma: float | None) -> np.ndarray:
    if gamma:
        return values**gamma
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def in_srgb(values: np.ndarray, points: tuple, gamma: float | None) -> np.ndarray:
    """By the books, without an ICC profile: all spaces here share sRGB's white."""
    linear = light(values / 255, gamma) @ (np.linalg.inv(matrix(SRGB_POINTS)) @ matrix(points)).T
    linear = np.clip(linear, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def seen(icc: bytes, pixels: np.ndarray) -> np.ndarray:
    """By LittleCMS."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(icc))
    target = ImageCms.createProfile("sRGB")
    return np.asarray(ImageCms.profileToProfile(Image.fromarray(pixels), source, target, renderingIntent=1))


def check(data: bytes, points: tuple, gamma: float | None, note: str) -> None:
    """The pixels are the file's, and its profile shows them as the books do."""
    photo = read_photo(data)
    assert photo.icc is not None and any(note in said for said in photo.notes), photo.notes
    for kind in ("png", "webp", "jpeg"):
        again = read_photo(encode_photo(photo, kind))
        assert again.icc == photo.icc
    got, expected = seen(photo.icc, photo.pixels).astype(float), in_srgb(photo.pixels, points, gamma)
    inside = ((expected > 3) & (expected < 252)).all(-1)
    assert inside.mean() > 0.1 and np.abs(got - expected)[inside].max() < 2


def png_of(*chunks: bytes, pixels: np.ndarray | None = None, depth: int = 8) -> bytes:
    pixels = cube() if pixels is None else pixels
    rows = b"".join(b"\0" + row.astype(f">u{depth // 8}").tobytes() for row in pixels)
    colour_type = 2 if pixels.ndim == 3 else 0
    return png(pixels.shape[1], pixels.shape[0], depth, colour_type, rows, *chunks)


def cicp(*codes: int) -> bytes:
    return png_chunk(b"cICP", bytes(codes))


def chrm(points: tuple) -> bytes:
    red, green, blue, white = points
    return png_chunk(b"cHRM", struct.pack(">8I", *(round(v * 100_000) for v in (*white, *red, *green, *blue))))


def gama(gamma: float) -> bytes:
    return png_chunk(b"gAMA", struct.pack(">I", round(gamma * 100_000)))


# --- Profiles that are made ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "published"),
    [
        (colour.SRGB, ((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141))),
        (colour.PRIMARIES[12][1], ((0.5151, 0.2412, -0.0011), (0.2920, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841))),
        (colour.ADOBE_RGB, ((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446))),
        (colour.PRIMARIES[9][1], ((0.6734, 0.2790, -0.0019), (0.1657, 0.6753, 0.0300), (0.1251, 0.0456, 0.7968))),
    ],
)
def test_primaries_as_their_makers_publish_them(space: profiles.Space, published: tuple) -> None:
    icc = profiles.profile_of(space)
    profile = ImageCms.ImageCmsProfile(io.BytesIO(icc)).profile
    found = [profile.red_colorant[0], profile.green_colorant[0], profile.blue_colorant[0]]
    assert np.allclose(found, published, atol=4e-4)
    assert profiles.colour_profile(icc) == icc


@pytest.mark.parametrize(
    "points", [((0.3, 0.3),) * 4, ((0.64, 0), *SRGB_POINTS[1:]), (*SRGB_POINTS[:3], (0.9, 0.9)), ((2, 2),) * 4]
)
def test_what_is_no_space(points: tuple) -> None:
    with pytest.raises(ValueError):
        profiles.profile_of(profiles.Space(*points))


# --- PNG -------------------------------------------------------------------------------------------------------------


def test_png_code_points() -> None:
    check(png_of(cicp(12, 13, 0, 1)), P3, None, "Display P3")
    check(png_of(cicp(9, 13, 0, 1)), BT2020, None, "BT.2020")
    check(png_of(cicp(12, 8, 0, 1)), P3, 1.0, "Display P3, gamma 1")
    for codes in ((1, 13), (2, 2), (1, 2)):
        photo = read_photo(png_of(cicp(*codes, 0, 1)))
        assert photo.icc is None and photo.notes == ()
    assert "video transfer curve" in read_photo(png_of(cicp(1, 1, 0, 1))).notes[0]
    assert "primaries 77, transfer 13" in read_photo(png_of(cicp(77, 13, 0, 1))).notes[0]
    profile = png_chunk(b"iCCP", b"n\0\0" + zlib.compress(SRGB))
    check(png_of(cicp(12, 13, 0, 1), profile), P3, None, "Display P3")  # it goes before a profile


@pytest.mark.parametrize(("transfer", "name"), [(16, "PQ"), (18, "HLG")])
def test_hdr_is_refused_by_name(transfer: int, name: str) -> None:
    for data in (
        png_of(cicp(9, transfer, 0, 1)),
        png_of(cicp(9, transfer, 0, 1), pixels=cube().astype(np.uint16) * 257, depth=16),
        png_of(png_chunk(b"iCCP", b"n\0\0" + zlib.compress(with_code_points(transfer)))),
        nclx(saved(Image.fromarray(cube()), "AVIF"), 9, transfer),
    ):
        with pytest.raises(ImageError, match=f"HDR picture .{name}."):
            read_photo(data)


def with_code_points(transfer: int) -> bytes:
    """A profile with a ``cicp`` tag."""
    icc = profiles.profile_of(colour.SRGB)
    count = int.from_bytes(icc[128:132])
    table = bytearray(icc[132 : 132 + 12 * count])
    for n in range(count):
        struct.pack_into(">I", table, 12 * n + 4, int.from_bytes(table[12 * n + 4 : 12 * n + 8]) + 12)
    body = icc[132 + 12 * count :]
    table += b"cicp" + struct.pack(">II", 132 + len(table) + 12 + len(body), 12)
    made = icc[:128] + struct.pack(">I", count + 1) + table + body + b"cicp\0\0\0\0" + bytes((9, transfer, 0, 1))
    return struct.pack(">I", len(made)) + made[4:]


def test_ranges_and_matrices_that_no_png_should_have() -> None:
    for codes in ((9, 13, 0, 0), (9, 13, 9, 1)):
        with pytest.raises(ImageError, match="range or matrix"):
            read_photo(png_of(cicp(*codes)))


def test_png_chromaticities_and_gamma() -> None:
    check(png_of(chrm(P3)), P3, None, "Display P3")
    check(png_of(chrm(P3), gama(0.45455)), P3, 2.2, "Display P3, gamma 2.2")
    check(png_of(chrm(ADOBE), gama(1 / 2.2)), ADOBE, 2.2, "Adobe RGB, gamma 2.2")
    check(png_of(chrm(ADOBE), gama(1 / 1.8)), ADOBE, 1.8, "gamma 1.8")
    check(png_of(gama(1.0)), SRGB_POINTS, 1.0, "gamma 1")
    odd = ((0.65, 0.33), (0.28, 0.64), (0.15, 0.05), (0.3127, 0.329))
    check(png_of(chrm(odd)), odd, None, "its own primaries")
    for chunks in ((chrm(SRGB_POINTS), gama(0.45455)), (gama(0.45455),), (png_chunk(b"sRGB", b"\0"), chrm(P3))):
        photo = read_photo(png_of(*chunks))
        assert photo.icc is None and photo.notes == ()
    for chunks in ((chrm(((0.3, 0.3),) * 4),), (chrm(P3), gama(0.00001))):
        photo = read_photo(png_of(*chunks))
        assert photo.icc is None and "make no sense" in photo.notes[0]


def test_grey_has_no_primaries_but_a_gamma() -> None:
    grey = cube()[..., 0]
    for chunk in (chrm(P3), cicp(12, 13, 0, 1)):
        assert read_photo(png_of(chunk, pixels=grey)).grey
    photo = read_photo(png_of(gama(1.0), pixels=grey))
    assert photo.icc and not photo.grey


def test_sixteen_bits_keep_their_colours() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (9, 11, 3), np.uint16)
    photo = read_photo(png_of(cicp(12, 13, 0, 1), pixels=deep, depth=16))
    again = read_photo(encode_photo(photo))
    assert np.array_equal(again.deep, deep) and again.icc == photo.icc is not None


# --- AVIF and HEIF ---------------------------------------------------------------------------------------------------


def nclx(data: bytes, primaries: int, transfer: int) -> bytes:
    """A file by Pillow or pillow-heif with other code points."""
    at = data.index(b"nclx") + 4
    return data[:at] + struct.pack(">HH", primaries, transfer) + data[at + 4 :]


def container(kind: str, pixels: np.ndarray | None = None, **options: object) -> bytes:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    image = Image.fromarray(cube() if pixels is None else pixels)
    return saved(image, kind, **{"quality": 95, **options})


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_container_code_points(kind: str) -> None:
    data = container(kind)
    assert read_photo(data).icc is None and read_photo(data).notes == ()
    check(nclx(data, 12, 13), P3, None, "Display P3")
    for transfer in (16, 18):
        with pytest.raises(ImageError, match="HDR"):
            read_photo(nclx(data, 9, transfer))
    at = data.index(b"colr")
    silent = read_photo(data[:at] + b"free" + data[at + 4 :])
    assert silent.icc is None and "does not say what its colours are" in silent.notes[0]


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_a_profile_goes_before_code_points(kind: str) -> None:
    icc = profiles.profile_of(colour.ADOBE_RGB)
    photo = read_photo(container(kind, icc_profile=icc))
    assert photo.icc == icc


def quarters() -> np.ndarray:
    """Red, green, blue and white."""
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:32, :48] = 1, 0, 0
    pixels[:32, 48:] = 0, 1, 0
    pixels[32:, :48] = 0, 0, 1
    pixels[32:, 48:] = 1
    return pixels * 255


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("mirror", [None, 0, 1])
@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_every_transform_of_a_container(kind: str, turns: int, mirror: int | None) -> None:
    """Cropped, then turned, then mirrored, as libheif does it."""
    pillow_heif = pytest.importorskip("pillow_heif")
    data = container(kind, quarters())
    properties = [clean_aperture((40, 1), (24, 1), (-20, 1), (8, 1))]
    properties += [boxed(b"irot", bytes([turns]))] if turns else []
    properties += [boxed(b"imir", bytes([mirror]))] if mirror is not None else []
    data = with_properties(data, *properties)
    photo = read_photo(data)
    left, top = (96 - 40) // 2 - 20, (64 - 24) // 2 + 8
    expected = np.rot90(quarters()[top : top + 24, left : left + 40], turns)
    expected = expected if mirror is None else expected[::-1] if mirror == 0 else expected[:, ::-1]
    assert photo.pixels.shape == expected.shape
    assert np.abs(photo.pixels.astype(int) - expected).mean() < 12
    assert any("cropped to 40 x 24 of 96 x 64" in note for note in photo.notes)
    if kind == "HEIF":
        other = np.asarray(pillow_heif.open_heif(io.BytesIO(data)))
        assert np.array_equal(other[..., :3], photo.pixels)


def test_a_crop_that_makes_no_sense() -> None:
    data = container("AVIF", quarters())
    for crop in (
        clean_aperture((40, 0), (24, 1), (0, 1), (0, 1)),
        clean_aperture((40, 1), (24, 1), (-40, 1), (0, 1)),
        clean_aperture((97, 1), (24, 1), (0, 1), (0, 1)),
        clean_aperture((1, 9), (24, 1), (0, 1), (0, 1)),
    ):
        with pytest.raises(ImageError, match="clean aperture"):
            read_photo(with_properties(data, crop))
    half = read_photo(with_properties(data, clean_aperture((81, 2), (24, 1), (0, 1), (0, 1))))
    assert half.pixels.shape == (24, 40, 3)  # nothing outside of the crop, not half a pixel


def test_alpha_is_cropped_along() -> None:
    alpha = np.where(np.arange(96) < 40, 0, 255) * np.ones((64, 1))
    data = container("AVIF", np.dstack([quarters(), alpha.astype(np.uint8)]))
    data = with_properties(data, clean_aperture((40, 1), (24, 1), (-20, 1), (0, 1)))
    photo = read_photo(data)
    assert photo.pixels.shape == (24, 40, 3) and photo.alpha.shape == (24, 40)
    assert photo.alpha[:, :28].max() < 40 and photo.alpha[:, 36:].min() > 200


def test_pixels_that_are_not_square_are_noted() -> None:
    for kind in ("AVIF", "HEIF"):
        data = with_properties(container(kind), boxed(b"pasp", struct.pack(">II", 4, 3)))
        assert "not square (4:3)" in read_photo(data).notes[0]
        data = with_properties(container(kind), boxed(b"pasp", struct.pack(">II", 2, 2)))
        assert read_photo(data).notes == ()


def test_broken_containers() -> None:
    data = container("AVIF")
    for box in (b"pitm", b"ipco", b"ipma"):
        at = data.index(box)
        with pytest.raises(ImageError):
            read_photo(data[:at] + b"free" + data[at + 4 :])
    with pytest.raises(ValueError):
        isobmff.properties(b"")
    with pytest.raises(ValueError):
        isobmff.properties(boxed(b"meta", bytes(4) + boxed(b"pitm", bytes(6))))


# --- JPEG and others -------------------------------------------------------------------------------------------------


def exif(space: int, index: str | None) -> Image.Exif:
    block = Image.Exif()
    block.get_ifd(colour.EXIF_IFD)[colour.COLOR_SPACE] = space
    if index:
        block.get_ifd(colour.EXIF_IFD)[colour.INTEROP_IFD] = {1: index}
    return block


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_adobe_rgb_that_exif_alone_says(kind: str) -> None:
    smooth = cv2.resize(cube(), (96, 72))
    options = {"quality": 98, "subsampling": 0} if kind == "JPEG" else {"lossless": True}
    check(saved(Image.fromarray(smooth), kind, exif=exif(65535, "R03"), **options), ADOBE, 563 / 256, "Adobe RGB")
    check(saved(Image.fromarray(smooth), kind, exif=exif(2, None), **options), ADOBE, 563 / 256, "Adobe RGB")
    for block in (exif(1, "R98"), exif(65535, None), exif(65535, "R98")):
        photo = read_photo(saved(Image.fromarray(smooth), kind, exif=block, **options))
        assert photo.icc is None and photo.notes == ()
    both = saved(Image.fromarray(smooth), kind, exif=exif(65535, "R03"), icc_profile=SRGB, **options)
    assert read_photo(both).icc == profiles.colour_profile(SRGB)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_profile_for_other_pixels_is_dropped(kind: str) -> None:
    image = Image.fromarray(cv2.resize(cube(), (96, 72)))
    plain = read_photo(saved(image, kind)).pixels
    assert np.ptp(plain.astype(int), axis=2).max() > 200
    for icc in (grey_profile(), grey_of_inks()):
        photo = read_photo(saved(image, kind, icc_profile=icc))
        assert np.array_equal(photo.pixels, plain) and photo.icc is None
        assert photo.notes == (colour.MISFIT,)


def test_profiles_for_other_pixels_of_other_kinds() -> None:
    image = Image.fromarray(cv2.resize(cube(), (96, 72)))
    cmyk = image.convert("CMYK")
    plain = read_photo(saved(cmyk, "JPEG")).pixels
    for icc in (grey_profile(), SRGB):
        photo = read_photo(saved(cmyk, "JPEG", icc_profile=icc))
        assert np.array_equal(photo.pixels, plain) and photo.notes[0] == colour.MISFIT
    grey = image.convert("L")
    photo = read_photo(saved(grey, "JPEG", icc_profile=grey_profile()))
    assert "converted from GRAY" in photo.notes[0]
    both = read_photo(saved(Image.merge("LA", (grey, grey)), "PNG", icc_profile=grey_profile()))
    assert "converted from GRAY" in both.notes[0] and both.alpha is not None
    assert read_photo(saved(grey, "JPEG", icc_profile=SRGB)).icc == profiles.colour_profile(SRGB)
    link = SRGB[:12] + b"link" + SRGB[16:]
    assert read_photo(saved(image, "JPEG", icc_profile=link)).notes == (colour.UNUSABLE,)
    deep = png_of(
        png_chunk(b"iCCP", b"n\0\0" + zlib.compress(grey_profile())), pixels=cube() * np.uint16(257), depth=16
    )
    photo = read_photo(deep)
    assert photo.icc is None and colour.MISFIT in photo.notes and np.array_equal(photo.deep, cube() * np.uint16(257))


def test_the_profile_of_a_bmp() -> None:
    icc = profiles.profile_of(colour.PRIMARIES[12][1])
    plain = saved(Image.fromarray(cube()), "BMP")
    pixels = plain[int.from_bytes(plain[10:14], "little") :]
    head = struct.pack("<IiiHHIIiiII", 124, 48, 36, 1, 24, 0, len(pixels), 0, 0, 0, 0).ljust(56, b"\0") + b"DEBM"
    head = head.ljust(112, b"\0") + struct.pack("<III", 124 + len(pixels), len(icc), 0)
    data = b"BM" + struct.pack("<IHHI", 138 + len(pixels) + len(icc), 0, 0, 138) + head + pixels + icc
    photo = read_photo(data)
    assert np.array_equal(photo.pixels, cube()) and photo.icc == icc


# --- Orientation that XMP alone says ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("style", ['tiff:Orientation="6"', "<tiff:Orientation>6</tiff:Orientation>"])
def test_what_xmp_asks_for_is_said_and_not_done(kind: str, style: str) -> None:
    image = Image.fromarray(quarters())
    packet = f"<x:xmpmeta><rdf:Description {style if '=' in style else '>' + style}</x:xmpmeta>".encode()
    options: dict = {"TIFF": {"tiffinfo": {700: packet}}}.get(kind, {"xmp": packet})
    if kind == "PNG":
        data = saved(image, kind)
        text = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet)
        behind = data[:-12] + text + data[-12:]
        assert read_photo(behind).pixels.shape == (64, 96, 3) and "asks for" in read_photo(behind).notes[0]
        data = data[:33] + text + data[33:]
    else:
        data = saved(image, kind, quality=95, **options)
    assert packet in data
    photo = read_photo(data)
    assert photo.pixels.shape == (64, 96, 3) and "its XMP alone asks for orientation 6" in photo.notes[0]
    block = Image.Exif()
    block[0x0112] = 3
    if kind in ("JPEG", "WEBP"):  # EXIF decides where it speaks
        photo = read_photo(saved(image, kind, quality=95, exif=block, **options))
        image.getexif()[0x0112] = 3
        expected = np.asarray(ImageOps.exif_transpose(image)).astype(int)
        assert np.abs(photo.pixels - expected).mean() < 12 and photo.notes == ()
