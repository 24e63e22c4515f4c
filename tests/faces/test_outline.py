"""Outlines: coarse masks that a record holds."""

from __future__ import annotations

import numpy as np
import pytest

from anonface.faces import outline


def test_an_outline_comes_back_as_the_mask_on_its_grid():
    mask = np.zeros((256, 256), np.float32)
    mask[40:120, 61:160] = 0.1  # however faint
    said = outline.of_mask(mask)
    back = outline.to_mask(said, 128)
    assert len(said) == 256 and set(np.unique(back)) == {0, 1}
    assert back[20:60, 32:80].all() and back.sum() == 40 * 48  # 61 px: less than half of its cell is outside
    assert outline.of_mask(back) == said


def test_bits_lie_in_rows_from_the_top_left():
    mask = np.zeros((64, 64), np.float32)
    mask[2:4, :2] = 1
    assert outline.of_mask(mask) == "00000000" + "80000000" + 30 * "00000000"


def test_no_outline_is_everywhere_and_a_damaged_one_is_refused():
    assert outline.to_mask("", 64).all()
    for damaged in ("ab", "zz" * 128, "0" * 257):
        with pytest.raises(ValueError):
            outline.to_mask(damaged, 64)
