"""Coarse masks for the record: for backends whose recovery needs the very same mask again.

A parser finds another mask in the anonymized face. An outline is the mask on a grid
of 32 x 32 over the aligned square, in 256 hexadecimal digits: row by row from the top left, the highest bit first.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from anonface.faces.parse import Mask

GRID = 32
SHARE = 0.5  # of a cell that must be face


def of_mask(soft: Mask) -> str:
    """The outline of a soft mask [S, S], S at least 32: of all of it, however faint."""
    inside = (soft > 0).astype(np.float32)
    cells = cv2.resize(inside, (GRID, GRID), interpolation=cv2.INTER_AREA) > SHARE
    return np.packbits(cells).tobytes().hex()


def to_mask(outline: str, size: int) -> Mask:
    """The mask [size, size] of an outline, 0 or 1; of the empty one, 1 everywhere.

    Raises:
        ValueError: it is no outline.
    """
    if not outline:
        return np.ones((size, size), np.float32)
    packed = np.frombuffer(bytes.fromhex(outline), np.uint8)
    if packed.size * 8 != GRID * GRID:
        raise ValueError(f"an outline has {GRID * GRID} bits, not {packed.size * 8}")
    cells: NDArray[np.float32] = np.unpackbits(packed).reshape(GRID, GRID).astype(np.float32)
    return np.asarray(cv2.resize(cells, (size, size), interpolation=cv2.INTER_NEAREST), np.float32)
