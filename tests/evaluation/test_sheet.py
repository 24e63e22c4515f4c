import subprocess
import sys

import numpy as np
import pytest

from anonface.crypto.keys import Key
from anonface.evaluation.sheet import COLUMNS, around, contact_sheet, versions

KEYS = [Key(bytes([n]) * 32) for n in range(2)]


class Counting:
    """Adds to the pixels, another number for each key."""

    class Outcome:
        def __init__(self, pixels):
            self.pixels, self.faces = pixels, (0,)

    def anonymize(self, pixels, key, *, consistent):
        return self.Outcome(pixels + np.uint8(10 + KEYS.index(key)))

    def recover(self, pixels, key, header):
        assert header is None
        return self.Outcome(pixels - np.uint8(10 + KEYS.index(key)))


def test_versions_follow_the_columns():
    photo = np.random.default_rng(0).integers(50, 200, (20, 30, 3), dtype=np.uint8)
    original, hidden, other, recovered, wrong = versions(Counting(), photo, *KEYS)
    assert (original == photo).all() and (recovered == photo).all()
    assert (hidden == photo + 10).all() and (other == photo + 11).all() and (wrong == photo - 1).all()
    assert len(COLUMNS) == 5


def colours(count: int, shape=(60, 80)) -> list[np.ndarray]:
    return [np.full((*shape, 3), 40 * n + 20, np.uint8) for n in range(count)]


def test_pictures_land_in_their_cells():
    rows = [colours(5), colours(5, (200, 100))]
    sheet = contact_sheet(rows, captions=["first", "second"], cell=96)
    assert sheet.dtype == np.uint8 and sheet.shape[1] == 8 + 5 * (96 + 8)
    for number in range(2):
        for column in range(5):
            x = 8 + column * 104 + 48
            y = 8 + 16 + number * (96 + 8 + 16) + 48
            assert (sheet[y, x] == 40 * column + 20).all()


def test_sheets_differ_by_label():
    one = contact_sheet([colours(5)], cell=128)
    two = contact_sheet([colours(5)], cell=128, columns=("a", "b", "c", "d", "e"))
    assert one.shape == two.shape and (one != two).any()
    assert (one[24:] == two[24:]).all()


def test_uneven_rows_are_refused():
    with pytest.raises(ValueError, match="5 pictures"):
        contact_sheet([colours(4)])
    with pytest.raises(ValueError, match="captions"):
        contact_sheet([colours(5)], captions=["a", "b"])


def test_around():
    photo = np.arange(100 * 80 * 3, dtype=np.uint8).reshape(100, 80, 3)
    assert (around(photo, (30, 40, 20, 10)) == photo[25:65, 20:60]).all()
    assert around(photo, (70, 90, 20, 20)).shape == (20, 20, 3)


def test_contact_sheets_need_no_extra():
    extras = ("skimage", "dlib")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import anonface.evaluation.sheet"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
