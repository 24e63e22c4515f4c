from __future__ import annotations

import numpy as np

from anonface.faces import blend
from anonface.faces.align import cover_quad
from anonface.faces.detect import Face, Pixels
from anonface.faces.second_look import Cover, look_again

POINTS = np.array([[30, 40], [70, 40], [50, 60], [35, 80], [65, 80]]) / 100


def face(x: float, y: float, side: float) -> Face:
    return Face((x, y, side, side), POINTS * side + (x, y), 0.9)


class Sees:
    """Sees faces where a photo is nearly as it was: where the middle of the box varies at least so much."""

    def __init__(self, faces: list[Face], least: float = 20.0) -> None:
        self.faces, self.least, self.looks = faces, least, 0
        self.photo: Pixels | None = None

    def detect(self, rgb: Pixels) -> list[Face]:
        self.looks += 1
        seen = []
        for each in self.faces:
            x, y, w, h = (round(value) for value in each.box)
            if rgb[y + h // 4 : y + 3 * h // 4, x + w // 4 : x + 3 * w // 4].std() >= self.least:
                seen.append(each)
        return seen


def noise() -> Pixels:
    return np.random.default_rng(3).integers(0, 256, (200, 300, 3)).astype(np.uint8)


def test_a_replaced_face_is_right_and_an_untouched_one_is_covered() -> None:
    photo, there = noise(), face(40, 40, 100)
    replaced = photo.copy()
    replaced[60:120, 60:120] ^= 255
    result, covers = look_again(photo, replaced, Sees([there]), replaced=[there], covered=[], kept=[])
    assert np.array_equal(result, replaced) and covers == []
    for seen in ([there], []):  # a drawing of a few lines may be seen only once
        result, covers = look_again(photo, photo, Sees(seen), replaced=[there], covered=[], kept=[])
        assert len(covers) == 1
    assert len(covers) == 1 and (result[60:120, 60:120] != photo[60:120, 60:120]).mean() > 0.9


def test_a_face_that_the_first_look_missed_is_covered_and_a_kept_one_is_not() -> None:
    photo, there, missed = noise(), face(40, 40, 100), face(110, 60, 100)
    replaced = photo.copy()
    replaced[40:140, 40:140] ^= 255
    sees = Sees([there, missed])
    result, covers = look_again(photo, replaced, sees, replaced=[there], covered=[], kept=[])
    assert len(covers) == 1 and covers[0].face.box == missed.box
    assert np.array_equal(result, blend.mosaic(replaced, cover_quad(missed)))
    result, covers = look_again(photo, replaced, sees, replaced=[there], covered=[], kept=[missed])
    assert np.array_equal(result, replaced) and covers == []


def test_a_mosaic_in_which_a_face_is_seen_becomes_coarser_and_larger_until_it_is_flat() -> None:
    photo, there = noise(), face(100, 50, 80)
    cover = Cover(there, cover_quad(there))
    hidden = blend.mosaic(photo, cover.quad)
    result, (same,) = look_again(photo, hidden, Sees([there], 40), replaced=[], covered=[cover], kept=[])
    assert same is cover and np.array_equal(result, hidden)
    sees = Sees([there], 0.0)  # sees a face in a flat ellipse even
    result, (stronger,) = look_again(photo, hidden, sees, replaced=[], covered=[cover], kept=[])
    assert stronger.strength == 2 and sees.looks == 3
    assert np.ptp(stronger.quad, axis=0).min() > 1.3 * np.ptp(cover.quad, axis=0).min()
    assert np.ptp(result[60:120, 110:170].reshape(-1, 3), axis=0).max() == 0


def test_nothing_is_looked_at_where_nothing_was_done() -> None:
    photo, sees = noise(), Sees([face(40, 40, 100)])
    result, covers = look_again(photo, photo, sees, replaced=[], covered=[], kept=[face(40, 40, 100)])
    assert sees.looks == 0 and covers == [] and np.array_equal(result, photo)
