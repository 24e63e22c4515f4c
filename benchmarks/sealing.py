"""Time and memory of sealing a photo of 12 megapixels, compared with the file and with the whole job.

GOMP_SPINCOUNT=10000 python benchmarks/sealing.py [--repeat 5] [--skip-job]

The photo is the large one of examples/, scaled up, with camera-like noise, as a JPEG of quality 92. Memory is the peak
by tracemalloc, from reading the file to the pieces of the sealed output. It includes the file's bytes, but not the
encoded picture, which a job without sealing holds too. The job is one run of `anonymize` with default settings on the
CPU.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from anonface.crypto.keys import Key, fresh_salt
from anonface.images import Photo, encode_photo, size_of
from anonface.record import carriers, sealing
from anonface.record.anf1 import FaceEntry, Header, decode, payload

EXAMPLE = Path(__file__).parent.parent / "examples" / "large.jpg"
SIZE = (4000, 3000)
QUALITY = 92
Pieces = list[bytes | memoryview]
QUAD = ((1500.0, 900.0), (1500.0, 1900.0), (2500.0, 1900.0), (2500.0, 900.0))


def photo() -> tuple[np.ndarray, bytes]:
    """The pixels and the file's bytes."""
    with Image.open(EXAMPLE) as image:
        large = np.asarray(image.convert("RGB").resize(SIZE, Image.Resampling.BICUBIC), np.float32)
    noise = np.random.default_rng(0).normal(0, 8, large.shape)
    pixels = np.clip(np.rint(large + noise), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY)
    return pixels, buffer.getvalue()


def seconds(step: Callable[[], object], repeat: int) -> float:
    """Median wall-clock seconds, after one warm-up run."""
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def peak(step: Callable[[], object]) -> int:
    """Peak of the bytes allocated by a step."""
    tracemalloc.start()
    result = step()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--skip-job", action="store_true")
    options = parser.parse_args()

    pixels, original = photo()
    key = Key.generate()
    header = Header(
        backend="ifadit",
        parameters={},
        flow_salt=fresh_salt(),
        consistent=False,
        kdf=None,
        weights_digest=bytes(32),
        canvas=SIZE,
        faces=(FaceEntry(QUAD),),
    )
    hidden = pixels.copy()
    hidden[900:1900, 1500:2500] = 128
    started = time.perf_counter()
    picture = encode_photo(Photo(hidden, None, None, "jpeg"))
    encoding = time.perf_counter() - started

    def file() -> Pieces:
        data = bytes(bytearray(original))  # a fresh copy, like a file just read
        contents = sealing.of_file(data, ".jpg", carriers.picture_digest(picture))
        return carriers.embedded(picture, sealing.seal(header, key, contents))

    def face() -> Pieces:
        contents = sealing.of_pixels(header, pixels, hidden, None)
        return carriers.embedded(picture, sealing.seal(header, key, contents))

    def back() -> object:
        record = carriers.extract(sealed)
        assert record
        contents = sealing.unseal(decode(record), payload(record), key)
        sealing.check_picture(contents, carriers.picture_digest(sealed))
        return contents

    print(f"photo {SIZE[0]}x{SIZE[1]}, JPEG {len(original) / 1e6:.2f} MB; as PNG {len(picture) / 1e6:.2f} MB")
    print(f"encoding the PNG                 {encoding:.3f} s")
    for name, step in (("file", file), ("face", face)):
        added = size_of(step()) - len(picture)
        held = peak(step)
        print(
            f"sealing {name:4}  {seconds(step, options.repeat):.3f} s, adds {added / 1e6:.2f} MB "
            f"({added / len(original):.3f} of the file), memory {held / len(original):.2f} of the file"
        )
    sealed = b"".join(file())
    print(f"opening file  {seconds(back, options.repeat):.3f} s")
    if not options.skip_job:
        import tempfile

        from anonface import Engine, anonymize

        engine = Engine(device="cpu")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "photo.jpg")
            source.write_bytes(original)
            started = time.perf_counter()
            result = anonymize(source, key, Path(folder, "photo.png"), engine=engine)
            job = time.perf_counter() - started
        print(
            f"the whole job {job:.2f} s with {len(result.faces)} faces; sealing is {seconds(file, 3) / job:.1%} of it"
        )


if __name__ == "__main__":
    main()
