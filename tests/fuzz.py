"""Hostile files: seeds, mutations of them, and what must hold of any bytes at all.

A short run is part of the tests (test_fuzz.py). A long one, which says what it did every minute:

    nice -n 10 python tests/fuzz.py both --minutes 15
"""

from __future__ import annotations

import argparse
import hashlib
import io
import random
import resource
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageCms, PngImagePlugin

from anonface.crypto.keys import Argon2, Key
from anonface.errors import AnonfaceError, WrongKeyError
from anonface.images import encode_photo, read_photo
from anonface.record import anf1, carriers, sealing
from anonface.record.anf1 import FaceEntry, Header

MAX_PIXELS = 1_000_000
SECONDS = 5.0  # of the processor's time that one file may take
FUZZ_KEY = Key.from_bytes(bytes(range(32)))
INTERESTING = (0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


# --- Seeds -----------------------------------------------------------------------------------------------------------


def photos() -> dict[str, bytes]:
    """Small photos of every kind that is read, with every kind of metadata."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (12, 16, 3), np.uint8)
    image = Image.fromarray(pixels)
    alpha = Image.fromarray(np.dstack([pixels, pixels[..., 0]]))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "text"
    exif.get_ifd(0x8769)[0x8827] = 400
    exif.get_ifd(0x8825)[1] = "N"
    icc = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "text", zip=True)
    text.add_itxt("XML:com.adobe.xmp", "<x/>", zip=True)
    full = {"exif": exif, "icc_profile": icc}
    seeds = {
        "png": saved(image, "PNG", pnginfo=text, **full),
        "png-alpha": saved(alpha, "PNG"),
        "png-palette": saved(image.quantize(8), "PNG", transparency=2),
        "png-one-bit": saved(image.convert("1"), "PNG"),
        "png-animated": saved(image, "PNG", save_all=True, append_images=[alpha.convert("RGB").rotate(90)]),
        "png-16": cv2.imencode(".png", pixels.astype(np.uint16) * 257)[1].tobytes(),
        "jpeg": saved(image, "JPEG", comment=b"text", xmp=b"<x/>", **full) + b"trailer",
        "jpeg-progressive": saved(image, "JPEG", progressive=True),
        "jpeg-cmyk": saved(image.convert("CMYK"), "JPEG"),
        "jpeg-grey": saved(image.convert("L"), "JPEG"),
        "mpo": saved(image, "MPO", save_all=True, append_images=[image]),
        "webp": saved(image, "WEBP", xmp=b"<x/>", **full),
        "webp-lossless": saved(alpha, "WEBP", lossless=True, exact=True),
        "webp-animated": saved(image, "WEBP", save_all=True, append_images=[image.rotate(90)]),
        "tiff": saved(image, "TIFF", exif=exif, compression="tiff_deflate"),
        "tiff-lzw": saved(alpha, "TIFF", compression="tiff_lzw"),
        "tiff-16": cv2.imencode(".tiff", pixels.astype(np.uint16) * 257)[1].tobytes(),
        "gif": saved(image.quantize(8), "GIF"),
        "bmp": saved(image, "BMP"),
        "ppm": saved(image, "PPM"),
        "avif": saved(image, "AVIF", **full),
    }
    try:
        import pillow_heif
    except ImportError:
        return seeds
    pillow_heif.register_heif_opener()
    return seeds | {"heic": saved(image, "HEIF", **full)}


def records() -> dict[str, bytes]:
    """Records of every shape, bare and in every carrier."""
    quad = ((0.0, 0.0), (0.0, 16.0), (16.0, 16.0), (16.0, 0.0))
    seeds = {}
    for name, kdf, faces in (("plain", None, 1), ("stretched", Argon2(bytes(16), 64, 1, 1), 3), ("crowd", None, 300)):
        header = Header(
            backend="fake",
            parameters={"a": "text", "b": 7, "c": 0.5, "d": True},
            flow_salt=bytes(range(16)),
            consistent=False,
            kdf=kdf,
            weights_digest=bytes(32),
            canvas=(40, 32),
            faces=(FaceEntry(quad),) * faces,
            producer="1.0",
        )
        seeds[name] = anf1.encode(header)
        for tier in anf1.TIERS:
            contents = sealing.Contents(
                tier, bytes(32), ".jpg" if tier == "file" else "", b"" if tier == "none" else name.encode()
            )
            seeds[f"{name}-{tier}"] = sealing.seal(header, FUZZ_KEY, contents)
    image = Image.new("RGB", (8, 8), (120, 60, 40))
    for kind in ("PNG", "JPEG", "WEBP"):
        for name in ("stretched", "stretched-file"):
            seeds[f"{kind.lower()}-{name}"] = carriers.embed(saved(image, kind), seeds[name])
    return seeds


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


# --- Mutations -------------------------------------------------------------------------------------------------------


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """One to eight changes; afterwards, more often than not, checksums that fit again."""
    result = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(result) + 1)
        size = chance.choice((1, 1, 2, 4, 16, 64, 500))
        what = chance.randrange(8)
        if what == 0 and at < len(result):
            result[at] ^= 1 << chance.randrange(8)
        elif what == 1 and at < len(result):
            result[at] = chance.randrange(256)
        elif what == 2:
            del result[at : at + size]
        elif what == 3:
            result[at:at] = result[at : at + size]
        elif what == 4:
            result[at:at] = chance.randbytes(size)
        elif what == 5:
            width, order = chance.choice((1, 2, 4, 8)), chance.choice((">", "<"))
            value = chance.choice(INTERESTING) & (256**width - 1)
            result[at : at + width] = struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[width], value)
        elif what == 6 and chance.randrange(4) == 0:
            del result[at:]
        elif what == 7:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            result[at : at + size] = other[start : start + size]
    return mended(bytes(result)) if chance.randrange(3) else bytes(result)


def mended(data: bytes) -> bytes:
    """The checksums of a PNG's chunks and the digests of a record made to fit, so that parsers look further."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        result, at = bytearray(data), 8
        while at + 12 <= len(result):
            end = at + 8 + int.from_bytes(result[at : at + 4])
            if end + 4 > len(result):
                break
            if result[at + 4 : at + 8] == b"anFC":
                result[at + 8 : end] = mended(bytes(result[at + 8 : end]))
            result[end : end + 4] = zlib.crc32(result[at + 4 : end]).to_bytes(4)
            at = end + 4
        return bytes(result)
    if data.startswith(b"ANF1"):
        size = int.from_bytes(data[5:9])
        if 9 + 72 <= size <= len(data):
            payload = struct.pack(">Q", len(data) - size) + hashlib.sha256(data[size:]).digest()
            head = data[: size - 72] + payload
            return head + hashlib.sha256(head).digest() + data[size:]
    return data


# --- What must hold --------------------------------------------------------------------------------------------------


def check_intake(data: bytes) -> str:
    """A photo within the limits, or a refusal of a known kind; never anything else. Returns which."""
    try:
        photo = read_photo(data, MAX_PIXELS)
    except AnonfaceError as error:
        assert error.exit_code in (4, 11), error
        assert "\n" not in error.message
        return f"exit {error.exit_code}"
    height, width, channels = photo.pixels.shape
    assert photo.pixels.dtype == np.uint8 and channels == 3 and 0 < height * width <= MAX_PIXELS
    assert photo.alpha is None or photo.alpha.shape == (height, width)
    again = read_photo(encode_photo(photo, keep_metadata=True), MAX_PIXELS)
    assert np.array_equal(again.pixels, photo.pixels) and again.icc == photo.icc and not again.notes[1:]
    return "read"


def check_container(data: bytes) -> str:
    """A record that is found is found again wherever it is put; what is opened, or a refusal of a known kind."""
    try:
        record = carriers.extract(data)
        if record is None:
            return "no record"
        if not data.startswith(anf1.MAGIC):
            assert carriers.extract(carriers.embed(data, record)) == record
            assert carriers.extract(carriers.strip(data)) is None
        header = anf1.decode(record)
        try:
            contents = sealing.unseal(header, anf1.payload(record), FUZZ_KEY)
        except WrongKeyError:
            return "wrong key"
        assert header.seal or contents == sealing.Contents("none")
    except AnonfaceError as error:
        assert error.exit_code in (8, 11), error
        return f"exit {error.exit_code}"
    return f"opened, tier {contents.tier}" if header.seal else "decoded"


TARGETS: dict[str, tuple[Callable[[], dict[str, bytes]], Callable[[bytes], str]]] = {
    "intake": (photos, check_intake),
    "container": (records, check_container),
}


# --- The long run ----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed hostile files to anonface until time is up or something breaks.")
    parser.add_argument("target", choices=[*TARGETS, "both"])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    names = list(TARGETS) if options.target == "both" else [options.target]
    seeds = {name: list(TARGETS[name][0]().values()) for name in names}
    chance = random.Random(options.seed)
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    began = said = time.monotonic()
    while (now := time.monotonic()) < began + 60 * options.minutes:
        name = chance.choice(names)
        data = mutated(chance.choice(seeds[name]), seeds[name], chance)
        before = time.process_time()
        try:
            outcomes[f"{name}: {TARGETS[name][1](data)}"] += 1
            taken = time.process_time() - before
            slowest = max(slowest, taken)
            assert taken < SECONDS, "too slow"
        except BaseException:
            file = Path(f"fuzz-{hashlib.sha256(data).hexdigest()[:12]}.bin")
            file.write_bytes(data)
            print(f"{name} failed on {file}")
            raise
        if now > said + 60:
            said = now
            report(seeds, outcomes, slowest, now - began)
    report(seeds, outcomes, slowest, time.monotonic() - began)
    return 0


def report(seeds: dict[str, list[bytes]], outcomes: Counter[str], slowest: float, seconds: float) -> None:
    counted = ", ".join(f"{len(files)} seeds of {name}" for name, files in seeds.items())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{seconds:.0f} s, {counted}: {outcomes.total()} files, slowest {slowest:.2f} s, peak {peak} MiB", flush=True)
    for outcome, number in sorted(outcomes.items()):
        print(f"    {outcome}: {number}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
