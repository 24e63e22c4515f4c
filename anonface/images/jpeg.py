"""How a JPEG is coded, and whether its picture is complete.

libjpeg makes up what is missing and says so in a warning that Pillow drops. OpenCV leaves it on standard error.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from anonface.images import native

if TYPE_CHECKING:
    from PIL.Image import Image

MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""Inside or after entropy-coded data; 00 is a stuffed byte, D0-D7 are restarts, FF fills."""

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
START_OF_SCAN = 0xDA
SEQUENTIAL = (0xC0, 0xC1)
WHOLE_SCAN = bytes((0, 63, 0))  # of every scan of a sequential JPEG; some cameras write other values
LEFT_OUT = {*range(0xE0, 0xF0), 0xFE}  # metadata and comments, whose errors do not concern the picture
ALONE = {0xD8, 0x01}  # markers without a length

_FAULT = re.compile(r"Corrupt JPEG data: .*|Premature end of JPEG file")
_EXTRA = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
_OF_LIBJPEG = re.compile(r"Corrupt JPEG data: |Premature end of JPEG|Warning: unknown JFIF|Inconsistent progression")


class Bare(NamedTuple):
    """A JPEG without its metadata.

    Args:
        data: from its start to its end marker.
        last: the entropy-coded data of its last scan.
    """

    data: bytes
    last: bytes


class Coding(NamedTuple):
    """How strongly a JPEG is compressed.

    Args:
        quality: 1 to 100, whose standard tables are nearest to the file's own. Those often name the camera's maker,
            so they are not copied.
        subsampling: of colours: "4:4:4", "4:2:2" or "4:2:0".
    """

    quality: int
    subsampling: str


def coding(image: Image) -> Coding | None:
    """The coding of an opened JPEG; None where it is neither grey nor in colours of brightness and two differences."""
    from PIL import JpegImagePlugin

    tables: dict[int, list[int]] = getattr(image, "quantization", {})
    layers: list[tuple[int, int, int, int]] = getattr(image, "layer", [])
    if image.mode not in ("L", "RGB") or image.info.get("adobe_transform", 1) == 0:
        return None
    if len(layers) not in (1, 3) or not all(layer[3] in tables for layer in layers):
        return None
    steps = sum(sum(tables[layer[3]]) for layer in layers[:2])
    quality = min(range(1, 101), key=lambda quality: abs(_steps(quality)[len(layers) > 1] - steps))
    subsampling = {1: "4:2:2", 2: "4:2:0"}.get(JpegImagePlugin.get_sampling(image), "4:4:4")
    return Coding(quality, subsampling)


@cache
def _steps(quality: int) -> tuple[int, int]:
    """The sum of the standard quantization steps, of a grey JPEG and of one in colours."""
    from PIL import Image, JpegImagePlugin

    Image.new("RGB", (1, 1)).save(buffer := io.BytesIO(), "JPEG", quality=quality)
    with Image.open(buffer) as image:
        assert isinstance(image, JpegImagePlugin.JpegImageFile)
        brightness, colours = (sum(table) for table in image.quantization.values())
    return brightness, brightness + colours


def fault(pictures: Iterable[bytes]) -> str | None:
    """libjpeg's error in the pixels of JPEGs, or None.

    Bytes of one value between the last scan and the end are not counted: some cameras pad like that.

    Args:
        pictures: whole files.
    """
    import cv2
    import numpy as np

    for data in pictures:
        bare = stripped(data)
        with native.messages() as lines:
            try:
                cv2.imdecode(np.frombuffer(bare.data, np.uint8), cv2.IMREAD_REDUCED_GRAYSCALE_8)
            except cv2.error:
                continue  # more pixels than OpenCV decodes
        native.pass_on([line for line in lines if not _OF_LIBJPEG.search(line)])
        for line in lines:
            found, extra = _FAULT.search(line), _EXTRA.search(line)
            if found and not (extra and len(set(bare.last[-int(extra[1]) :])) == 1):
                return found.group().strip()
    return None


def stripped(data: bytes) -> Bare:
    """A JPEG's tables and scans up to its first end marker, and an end marker."""
    pieces, last, at, sequential = [SOI], b"", 2, False
    while marker := MARKER.search(data, at):
        kind, at = marker.group()[1], marker.end()
        if marker.group() == EOI or at + 2 > len(data):
            break
        if kind in ALONE:
            continue
        start, at = marker.start(), at + max(struct.unpack_from(">H", data, at)[0], 2)
        if kind in LEFT_OUT:
            continue
        sequential = sequential or kind in SEQUENTIAL
        segment = data[start:at]
        if kind != START_OF_SCAN:
            pieces.append(segment)
            continue
        end = MARKER.search(data, at)
        last = data[at : end.start() if end else len(data)]
        pieces += [segment[:-3] + WHOLE_SCAN if sequential else segment, last]
        at += len(last)
    return Bare(b"".join([*pieces, EOI]), last)
