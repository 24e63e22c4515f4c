"""Tools in common use, as engines that only anonymize: they have no key and no recovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anonface.crypto.keys import Key
from anonface.errors import NoFaceError
from anonface.faces.detect import Detector, build_detector

Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]

# The defaults of deface's command line.
THRESHOLD, MASK_SCALE, ELLIPSE, MOSAIC_SIZE = 0.2, 1.3, True, 20
CELLS = 8  # across a pixelated face


@dataclass(frozen=True)
class Covered:
    """A photo, uint8 [H, W, 3], and the boxes (x, y, w, h) of the covered faces."""

    pixels: Pixels
    faces: Sequence[Box]


class Deface:
    """``deface`` with the defaults of its command line: CenterFace, and an ellipse of 1.6 times the box.

    A photo in which it finds no face is returned unchanged.

    Args:
        how: "blur" (a box filter half as wide as the ellipse), "mosaic" (squares of 20 px over the whole rectangle) or
            "solid" (a black rectangle).

    Raises:
        ImportError: the package is not installed.
    """

    def __init__(self, how: str) -> None:
        from deface.centerface import CenterFace
        from deface.deface import anonymize_frame

        self._find = CenterFace()
        self._cover = partial(
            anonymize_frame,
            mask_scale=MASK_SCALE,
            replacewith=how,
            ellipse=ELLIPSE,
            draw_scores=False,
            replaceimg=None,
            mosaicsize=MOSAIC_SIZE,
        )

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Covered:
        """Cover all faces; key and salt are ignored.

        Raises:
            NoFaceError: the tool fails on this photo.
        """
        import cv2

        frame = np.array(pixels)
        found, _ = self._find(frame, threshold=THRESHOLD)
        try:
            self._cover(found, frame)
        except cv2.error as error:  # the filter of a face of a few pixels has no width
            raise NoFaceError(f"deface failed: {error}") from error
        return Covered(frame, [(x, y, right - x, bottom - y) for x, y, right, bottom, _ in found.tolist()])


class Pixelate:
    """Pixelates the box of each face that YuNet finds to ``CELLS`` cells across."""

    def __init__(self, detector: Detector | None = None) -> None:
        self._detector = detector or build_detector("yunet")

    def anonymize(self, pixels: Pixels, key: Key, *, consistent: bool) -> Covered:
        """Pixelate all faces; key and salt are ignored. A photo without a face is returned unchanged."""
        boxes = [face.box for face in self._detector.detect(pixels)]
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        for box in boxes:
            _pixelate(picture, box)
        return Covered(np.array(picture), boxes)


def _pixelate(picture: Image.Image, box: Box) -> None:
    x, y, w, h = box
    left, top = max(0, round(x)), max(0, round(y))
    right, bottom = min(picture.width, round(x + w)), min(picture.height, round(y + h))
    if left >= right or top >= bottom:
        return
    face = picture.crop((left, top, right, bottom))
    cells = face.resize((CELLS, max(1, round(CELLS * face.height / face.width))), Image.Resampling.BOX)
    picture.paste(cells.resize(face.size, Image.Resampling.NEAREST), (left, top))


PEERS: dict[str, Callable[[], Deface | Pixelate]] = {
    **{f"deface-{how}": partial(Deface, how) for how in ("blur", "mosaic", "solid")},
    "pixelate": Pixelate,
}


def absence(name: str) -> str | None:
    """Why the peer of that name is not available, and how to install it; None if it is."""
    if not name.startswith("deface") or find_spec("deface"):
        return None
    return "deface is not installed: pip install '.[peers]' in a clone of anonface"


def describe(peer: object) -> dict[str, str | int | float]:
    """The code that a peer runs, for a report."""
    from importlib.metadata import version

    return {"code": f"deface {version('deface')}"} if isinstance(peer, Deface) else {"code": "Pillow"}
