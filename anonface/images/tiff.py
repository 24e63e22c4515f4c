"""TIFF: the directory of the photo, a check of its layout, and its raw data."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from anonface.errors import ImageError

Directory = dict[int, tuple[int, ...]]
"""Tag -> whole numbers; tags of other kinds are not read."""

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two of files with 64-bit offsets
SUBFILE_TYPE, OLD_SUBFILE_TYPE, DNG_VERSION, SUB_DIRECTORIES = 254, 255, 50706, 330
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 256, 257, 258, 259, 262, 266
ORIENTATION = 274
STRIP_OFFSETS, CHANNELS, ROWS, STRIP_SIZES, PLANAR, PREDICTOR = 273, 277, 278, 279, 284, 317
TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_SIZES = 322, 323, 324, 325
EXTRA_SAMPLES, SAMPLE_FORMAT, JPEG_TABLES = 338, 339, 347
RAW_OF_CANON = b"CR"  # at byte 8

REDUCED, OLD_REDUCED = 1, 2  # values of the two subfile types
SEPARATE, UNASSOCIATED, RGB, UNCOMPRESSED, JPEG = 2, 2, 2, 1, 7
CODES = {1: "B", 3: "H", 4: "I", 6: "b", 7: "B", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q", 18: "Q"}
SHORT, LONG = 3, 4  # types, as the keys of CODES are; its values are struct's
PLACING = {STRIP_OFFSETS, STRIP_SIZES, TILE_OFFSETS, TILE_SIZES, JPEG_TABLES}  # tags of many numbers
DESCRIBING = {
    *(SUBFILE_TYPE, OLD_SUBFILE_TYPE, DNG_VERSION, SUB_DIRECTORIES, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC),
    *(FILL_ORDER, ORIENTATION, CHANNELS, ROWS, PLANAR, PREDICTOR, TILE_WIDTH, TILE_HEIGHT, EXTRA_SAMPLES),
    SAMPLE_FORMAT,
}
MAX_DIRECTORIES, MAX_ENTRIES, MAX_SHORT, MAX_SEGMENTS = 1000, 1000, 100, 1 << 20

READ = {1, 2, 3, 4, 5, 7, 8, 32773, 32946, 34925, 50000}  # none, CCITT, LZW, JPEG, Deflate, PackBits, LZMA, Zstandard
READ_DEEP = {1, 5, 8, 32773, 32946}
NAMES = {
    **{2: "CCITT", 3: "CCITT", 4: "CCITT", 7: "JPEG", 34925: "LZMA", 50000: "Zstandard"},
    **{6: "old-style JPEG", 9: "JBIG", 10: "JBIG", 34661: "JBIG", 34712: "JPEG 2000", 34887: "LERC"},
    **{33003: "JPEG 2000", 33005: "JPEG 2000", 50001: "WebP", 50002: "JPEG XL", 52546: "JPEG XL"},
}
COLOURS = {0: "grey", 1: "grey", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr"}
BILEVEL = ((1, 0), (1, 1))  # bits and colours
CHANNELS_OF = {"grey": 1, "RGB": 3, "palette": 1, "CMYK": 4, "YCbCr": 3}
OTHER_COLOURS = {4: "a mask", 8: "Lab", 9: "Lab", 10: "Lab", 32803: "a raw sensor's", 34892: "a raw sensor's"}
FORMATS = {2: "signed numbers", 3: "floating point", 5: "complex numbers", 6: "complex numbers"}
HINT = "save it as 8-bit or 16-bit RGB, uncompressed or with LZW or Deflate, first"


@dataclass(frozen=True)
class Page:
    """The photo of a TIFF file.

    Args:
        tags: of its directory.
        number: which directory that is, from 0.
        big_endian: so are the file's numbers.
        notes: what was left out, one line each.
    """

    tags: Directory
    number: int
    big_endian: bool
    notes: tuple[str, ...]

    def one(self, tag: int, default: int) -> int:
        """A tag's first number."""
        return self.tags.get(tag, ())[:1][0] if self.tags.get(tag) else default

    @property
    def bits(self) -> int:
        """The most bits a channel."""
        return max(self.tags.get(BITS) or (1,))

    @property
    def tiled(self) -> bool:
        """Its pixels are in tiles, not strips."""
        return TILE_OFFSETS in self.tags

    @property
    def segments(self) -> list[tuple[int, int]]:
        """Offset and size in bytes of its strips or tiles."""
        places, sizes = (TILE_OFFSETS, TILE_SIZES) if self.tiled else (STRIP_OFFSETS, STRIP_SIZES)
        return list(zip(self.tags.get(places, ()), self.tags.get(sizes, ()), strict=False))


def page(data: bytes, label: str) -> Page:
    """The one directory of a file that holds a photo; smaller copies of it are left out.

    Args:
        data: a TIFF file's bytes.
        label: its name, for messages.

    Raises:
        ImageError: it is broken or raw, has several photos, or a layout that is not read.
    """
    big_endian = data[:2] == b"MM"
    order = ">" if big_endian else "<"
    try:
        chain = list(_directories(data, order))
        full = [n for n, (_, tags) in enumerate(chain) if not _is_reduced(tags)]
        if data[8:10] == RAW_OF_CANON or not full or any(DNG_VERSION in tags for _, tags in chain):
            raise ImageError(f"{label} is a raw photo, of which only a preview can be read", "develop it first")
        if len(full) > 1:
            raise ImageError(f"{label} is animated or has several pages", "give its pictures one by one")
        place, short = chain[full[0]]
        tags = short | _directory(data, order, place, PLACING, MAX_SEGMENTS)[0]
    except (struct.error, IndexError, ValueError):
        raise ImageError(f"{label} is truncated or damaged (its TIFF directory)", "use an intact copy") from None
    copies = len(chain) - 1 + len(tags.get(SUB_DIRECTORIES, ()))
    notes = (f"{copies} further pictures in the file were left out",) if copies else ()
    found = Page(tags, full[0], big_endian, notes)
    _check_layout(found, data, label)
    return found


def bare(data: bytes, found: Page) -> list[bytes]:
    """A page of 16 bits a channel as TIFF files of one directory and nothing else.

    Returns:
        One file of all channels where they lie together; one grey file for each where they do not.
    """
    channels = found.one(CHANNELS, 1)
    apart = found.one(PLANAR, 1) == SEPARATE and channels > 1
    segments = found.segments
    each = len(segments) // channels if apart else len(segments)
    groups = [segments[n * each : (n + 1) * each] for n in range(channels if apart else 1)]
    return [_file(data, found, group, 1 if apart else channels) for group in groups]


def jpegs(data: bytes, found: Page) -> Iterator[bytes]:
    """The strips or tiles of a JPEG-compressed page as JPEG files."""
    tables = bytes(found.tags.get(JPEG_TABLES, ()))
    for offset, size in found.segments:
        piece = data[offset : offset + size]
        yield tables[:-2] + piece[2:] if tables else piece


# --- Parts -----------------------------------------------------------------------------------------------------------


def _directories(data: bytes, order: str) -> Iterator[tuple[int, Directory]]:
    """The chain of directories: offset and short values of each.

    Raises:
        struct.error, IndexError, ValueError: it is broken or endless.
    """
    wide = _is_wide(data)
    (at,) = struct.unpack_from(order + ("Q" if wide else "I"), data, 8 if wide else 4)
    seen: set[int] = set()
    while at:
        if at in seen or len(seen) == MAX_DIRECTORIES:
            raise ValueError("endless")
        seen.add(at)
        tags, behind = _directory(data, order, at, DESCRIBING, MAX_SHORT)
        yield at, tags
        at = behind


def _directory(data: bytes, order: str, at: int, wanted: AbstractSet[int], most: int) -> tuple[Directory, int]:
    """One directory's tags of whole numbers among the ``wanted``, and the offset of the next one (0: none).

    Raises:
        struct.error, IndexError, ValueError: it is broken, or one of them has more than ``most`` numbers.
    """
    place, number, entry = ("Q", "Q", "HHQ") if _is_wide(data) else ("I", "H", "HHI")
    (count,) = struct.unpack_from(order + number, data, at)
    if count > MAX_ENTRIES:
        raise ValueError("too many tags")
    at += struct.calcsize(number)
    tags: Directory = {}
    for _ in range(count):
        tag, kind, length = struct.unpack_from(order + entry, data, at)
        at += struct.calcsize(order + entry)
        if tag in wanted and (code := CODES.get(kind)):
            size = struct.calcsize(code) * length
            start = at if size <= struct.calcsize(place) else struct.unpack_from(order + place, data, at)[0]
            if length > most or start + size > len(data):
                raise ValueError("a tag holds more than it can")
            tags[tag] = struct.unpack_from(f"{order}{length}{code}", data, start)
        at += struct.calcsize(place)
    return tags, struct.unpack_from(order + place, data, at)[0]


def _is_wide(data: bytes) -> bool:
    """Its offsets have 64 bits."""
    return data[2:4] in (b"+\0", b"\0+")


def _is_reduced(tags: Directory) -> bool:
    return bool(tags.get(SUBFILE_TYPE, (0,))[0] & REDUCED) or tags.get(OLD_SUBFILE_TYPE) == (OLD_REDUCED,)


def _check_layout(found: Page, data: bytes, label: str) -> None:
    """Refuse layouts that Pillow or OpenCV cannot read, or read wrongly."""

    def refused(why: str) -> ImageError:
        return ImageError(f"{label} is a TIFF file {why}", HINT)

    compression = found.one(COMPRESSION, 1)
    if compression not in READ:
        raise refused(f"compressed by {NAMES.get(compression, f'method {compression}')}, which is not read in TIFF")
    formats, bits = set(found.tags.get(SAMPLE_FORMAT, (1,))), set(found.tags.get(BITS) or (1,))
    kind = "".join(f" ({FORMATS[number]})" for number in sorted(formats) if number in FORMATS)
    photometric, channels = found.one(PHOTOMETRIC, -1), found.one(CHANNELS, 1)
    depth = f"of {found.bits} bits a channel{kind}"
    if formats != {1} or len(bits) > 1 or found.bits not in (1, 2, 4, 8, 16):
        raise refused(f"{depth}, a form that cannot be kept")
    if photometric not in COLOURS:
        colours = OTHER_COLOURS.get(photometric, f"of kind {photometric}")
        raise refused(f"whose colours are {colours}, which is not read")
    if COLOURS[photometric] == "YCbCr" and compression != JPEG:
        raise refused("whose colours are YCbCr without JPEG, which is not read")
    apart = found.one(PLANAR, 1) == SEPARATE and channels > 1
    plain_alpha = photometric == RGB and found.tags.get(EXTRA_SAMPLES) == (UNASSOCIATED,)
    if apart and channels > CHANNELS_OF[COLOURS[photometric]] and not plain_alpha:
        raise refused("with a further channel in a plane of its own, which is not read")
    # Pillow ignores the bit order of uncompressed planes, and misreads reversed bits except in black and white.
    reversed_bits = found.one(FILL_ORDER, 1) != 1
    in_planes = found.one(PLANAR, 1) == SEPARATE and (found.bits < 8 or photometric == 0 or reversed_bits)
    if compression == UNCOMPRESSED and (in_planes or (reversed_bits and (found.bits, photometric) not in BILEVEL)):
        raise refused("uncompressed, with few or reversed bits or an inverted scale, laid out as it is not read")
    if found.bits == 16:
        plain = photometric in (1, RGB) and channels == CHANNELS_OF[COLOURS[photometric]]
        if not plain or found.one(FILL_ORDER, 1) != 1:
            raise refused(f"{depth} that is neither plain grey nor plain RGB, a form that cannot be kept")
        if compression not in READ_DEEP:
            raise refused(f"{depth} compressed by {NAMES.get(compression, f'method {compression}')}, which is not read")
    _check_segments(found, data, label)


def _check_segments(found: Page, data: bytes, label: str) -> None:
    """Refuse a page with missing strips or tiles."""
    width, height = found.one(WIDTH, 0), found.one(HEIGHT, 0)
    if found.tiled:
        across, down = found.one(TILE_WIDTH, 0), found.one(TILE_HEIGHT, 0)
    else:
        across, down = width, min(found.one(ROWS, height), height)
    if min(width, height, across, down) < 1:
        raise ImageError(f"{label} is truncated or damaged (its TIFF directory)", "use an intact copy")
    planes = found.one(CHANNELS, 1) if found.one(PLANAR, 1) == SEPARATE else 1
    needed = -(-width // across) * -(-height // down) * planes
    segments = found.segments
    whole = all(offset + size <= len(data) for offset, size in segments)
    if found.one(COMPRESSION, 1) == UNCOMPRESSED:
        row = -(-across * found.bits * (1 if planes > 1 else found.one(CHANNELS, 1)) // 8)
        last = down if found.tiled else height - (-(-height // down) - 1) * down
        each = needed // planes
        whole = whole and all(
            size >= row * (last if n % each == each - 1 else down) for n, (_, size) in enumerate(segments[:needed])
        )
    if len(segments) < needed or not whole or sum(size for _, size in segments) > len(data):
        raise ImageError(f"{label} is truncated: parts of its picture are missing", "use an intact copy")


def _file(data: bytes, found: Page, segments: Sequence[tuple[int, int]], channels: int) -> bytes:
    """A TIFF file of these strips or tiles, of ``channels`` channels that are interleaved."""
    order = ">" if found.big_endian else "<"
    offsets, at = [], 8
    for _, size in segments:
        offsets.append(at)
        at += size
    places, sizes = (TILE_OFFSETS, TILE_SIZES) if found.tiled else (STRIP_OFFSETS, STRIP_SIZES)
    tags: dict[int, tuple[int, Sequence[int]]] = {
        WIDTH: (LONG, [found.one(WIDTH, 0)]),
        HEIGHT: (LONG, [found.one(HEIGHT, 0)]),
        BITS: (SHORT, [found.bits] * channels),
        COMPRESSION: (SHORT, [found.one(COMPRESSION, 1)]),
        PHOTOMETRIC: (SHORT, [1 if channels == 1 else 2]),
        CHANNELS: (SHORT, [channels]),
        PLANAR: (SHORT, [1]),
        PREDICTOR: (SHORT, [found.one(PREDICTOR, 1)]),
        places: (LONG, offsets),
        sizes: (LONG, [size for _, size in segments]),
    }
    for tag in (TILE_WIDTH, TILE_HEIGHT) if found.tiled else (ROWS,):
        tags[tag] = (LONG, [found.one(tag, found.one(HEIGHT, 0))])
    at += at % 2
    entries, body, behind = b"", b"", at + 2 + 12 * len(tags) + 4
    for tag, (kind, values) in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(values)}{CODES[kind]}", *values)
        if len(packed) > 4:
            body += packed
            packed = struct.pack(order + "I", behind + len(body) - len(packed))
        entries += struct.pack(order + "HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    head = (b"MM\0*" if found.big_endian else b"II*\0") + struct.pack(order + "I", at)
    pieces = [head, *(data[offset : offset + size] for offset, size in segments)]
    pieces.append(bytes(-sum(map(len, pieces)) % 2) + struct.pack(order + "H", len(tags)) + entries + bytes(4) + body)
    return b"".join(pieces)
