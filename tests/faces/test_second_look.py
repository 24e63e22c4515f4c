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


class SeesFrom(Sees):
    """Sees faces in parts of a photo too, by what lies in the middle of their boxes; some in a whole photo alone."""

    def __init__(self, faces: list[Face], whole: Pixels, only_there: list[Face]) -> None:
        super().__init__(faces)
        self.whole, self.only_there = whole, only_there

    def detect(self, rgb: Pixels) -> list[Face]:
        if rgb.shape == self.whole.shape:
            return super().detect(rgb)
        self.looks += 1
        rows, columns = rgb.shape[:2]
        for top in range(self.whole.shape[0] - rows + 1):
            lefts = range(self.whole.shape[1] - columns + 1)
            left = next((x for x in lefts if (self.whole[top : top + rows, x : x + columns] == rgb).all()), None)
            if left is not None:
                break
        else:
            return []
        shown = [each for each in self.faces if each not in self.only_there]
        return [
            Face((x - left, y - top, w, h), each.points - (left, top), 0.9)
            for each in shown
            for x, y, w, h in [each.box]
        ]


def test_what_was_there_unchanged_is_covered_if_a_look_at_it_alone_shows_it_too() -> None:
    photo, there, missed, hand = noise(), face(20, 20, 60), face(110, 100, 60), face(200, 40, 60)
    replaced = photo.copy()
    replaced[20:80, 20:80] ^= 255
    sees = SeesFrom([there, missed, hand], replaced, only_there=[hand])
    wide = (face(20, 20, 60), face(60, 80, 40), face(220, 80, 40))  # so that the whole photo is looked at
    result, covers = look_again(photo, replaced, sees, replaced=wide, covered=[], kept=list(wide[1:]))
    assert [cover.face.box for cover in covers] == [missed.box]
    assert np.array_equal(result[40:100, 200:260], photo[40:100, 200:260])


def test_what_has_changed_is_covered_without_a_further_look() -> None:
    photo, hand = noise(), face(200, 40, 60)
    finished = photo.copy()
    finished[60:80, 215:245] ^= 255
    sees = SeesFrom([hand], finished, only_there=[hand])
    wide = (face(20, 20, 60), face(120, 80, 90))
    _, covers = look_again(photo, finished, sees, replaced=[], covered=[], kept=[])
    assert covers == []  # nothing was done, nothing is looked at
    finished[20:120, 20:210] ^= 255
    _, covers = look_again(photo, finished, sees, replaced=wide, covered=[], kept=[])
    assert [cover.face.box for cover in covers] == [hand.box]
