import numpy as np
import pytest

from anonface.images.pictures import around, contact_sheet

COLUMNS = ("original", "anonymized", "second key", "recovered", "wrong key")


def colours(count: int, shape=(60, 80)) -> list[np.ndarray]:
    return [np.full((*shape, 3), 40 * n + 20, np.uint8) for n in range(count)]


def test_pictures_land_in_their_cells():
    rows = [colours(5), colours(5, (200, 100))]
    sheet = contact_sheet(rows, COLUMNS, captions=["first", "second"], cell=96)
    assert sheet.dtype == np.uint8 and sheet.shape[1] == 8 + 5 * (96 + 8)
    for number in range(2):
        for column in range(5):
            x = 8 + column * 104 + 48
            y = 8 + 16 + number * (96 + 8 + 16) + 48
            assert (sheet[y, x] == 40 * column + 20).all()


def test_sheets_differ_by_label():
    one = contact_sheet([colours(5)], COLUMNS, cell=128)
    two = contact_sheet([colours(5)], ("a", "b", "c", "d", "e"), cell=128)
    assert one.shape == two.shape and (one != two).any()
    assert (one[24:] == two[24:]).all()


def test_uneven_rows_are_refused():
    with pytest.raises(ValueError):
        contact_sheet([colours(4)], COLUMNS)
    with pytest.raises(ValueError):
        contact_sheet([colours(5)], COLUMNS, captions=["a", "b"])


def test_around():
    photo = np.arange(100 * 80 * 3, dtype=np.uint8).reshape(100, 80, 3)
    assert (around(photo, (30, 40, 20, 10)) == photo[25:65, 20:60]).all()
    assert around(photo, (70, 90, 20, 20)).shape == (20, 20, 3)
