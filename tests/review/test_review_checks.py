"""Which faces of finished photos are looked at first."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anonface.checks import seen_at
from anonface.faces import blend
from anonface.faces.align import cover_quad
from anonface.faces.detect import Face, build_detector
from anonface.record import anf1
from anonface.record.anf1 import FaceEntry, FaceReport, Header
from anonface.review import checks
from anonface.review.checks import Checked, check, faces_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def face(name, side):
    with Image.open(EXAMPLES / name) as picture:
        return np.asarray(picture.convert("RGB").resize((side, side)))


@pytest.fixture
def photo():
    canvas = np.full((300, 420, 3), 128, np.uint8)
    canvas[20:276, 10:266] = face("large.jpg", 256)
    return canvas


@pytest.fixture
def box(photo):
    (found,) = build_detector().detect(photo)
    return found.box


@dataclass
class Judge:
    """Says how bright the face is; two of one brightness are one person."""

    name: str = "sface"

    def embed(self, crop, mesh):
        assert crop.shape == (256, 256, 3) and mesh.shape == (468, 2) and (np.abs(mesh - 128) < 128).mean() > 0.9
        bright = crop.mean() / 255 * np.pi
        return np.array([np.cos(bright), np.sin(bright)])


def report(box, kind="synth", index=0):
    return FaceReport(index, kind, box)


def test_a_face_is_found_where_it_is_and_nowhere_else(photo, box):
    detector = build_detector()
    seen, *nowhere = seen_at(photo, [box, (300, 20, 90, 110), (5000, 20, 90, 110)], detector)
    assert seen and np.allclose(seen.box, box, atol=0.15 * box[2])
    assert nowhere == [None, None] and seen_at(photo, [], detector) == []


def test_a_face_that_is_gone_is_not_found_again(photo, box):
    after = photo.copy()
    after[20:276, 10:266] = 90
    (checked,) = check(photo, after, [report(box)], build_detector(), None)
    assert checked.findings == ("not found again",) and checked.distance is None


def test_a_face_that_is_the_same_is_matched_and_another_is_not(photo, box, monkeypatch):
    monkeypatch.setattr(checks.sface, "LIMIT", 0.3)
    found_by = build_detector(), Judge()
    (same,) = check(photo, photo, [report(box)], *found_by)
    assert same.findings == ("still matched",) and same.distance < 0.1
    other = photo.copy()
    other[20:276, 10:266] //= 3
    (changed,) = check(photo, other, [report(box)], *found_by)
    assert changed.findings == ("no finding",) and changed.distance > 0.3
    (without,) = check(photo, photo, [report(box)], build_detector(), None)
    assert without.findings == ("no finding",)
    (blind,) = check(photo, photo, [report(box)], None, None)
    assert blind.findings == ("no finding",)


def test_a_mosaic_in_which_a_face_is_seen_comes_before_one_that_hides_it(photo, box):
    found_by = build_detector(), Judge()
    quad = cover_quad(build_detector().detect(photo)[0])
    (hidden,) = check(photo, blend.mosaic(photo, quad, 3), [report(box, "mosaic")], *found_by)
    (seen,) = check(photo, photo, [report(box, "mosaic")], *found_by)
    assert hidden.findings == ("covered",) and seen.findings == ("still seen", "covered")
    assert seen.rank < hidden.rank


def test_the_order_is_that_of_the_danger():
    def checked(*findings, side=100.0, distance=None):
        return Checked(report((0, 0, side, side)), findings, distance)

    order = [
        checked("not found again", "small", side=40),
        checked("still matched", distance=0.5),
        checked("still matched", distance=0.9),
        checked("still seen", "covered"),
        checked("covered", side=300),
        checked("covered", side=30),
        checked("low realism", "small", side=30),
        checked("small", side=20),
        checked("small", side=40),
        checked("no finding", distance=1.2),
        checked("no finding", distance=1.4),
        checked("no finding"),
    ]
    assert sorted(order[::-1], key=lambda face: face.rank) == order


def test_a_face_of_which_the_detector_is_less_certain_is_of_low_realism(photo, box):
    class Doubting:
        """Is as certain as the first pixel is bright."""

        def detect(self, rgb):
            return [Face(box, np.zeros((5, 2)), float(rgb[0, 0, 0]) / 255)]

    before, after, same = (photo.copy() for _ in range(3))
    before[0, 0], after[0, 0], same[0, 0] = 240, 220, 235
    (less,), (fine,) = (check(before, made, [report(box)], Doubting(), None) for made in (after, same))
    assert less.findings == ("low realism",) and fine.findings == ("no finding",)


def test_small_faces_are_said_to_be_small(photo):
    (checked,) = check(photo, photo, [report((10, 10, 30, 40))], None, None)
    assert checked.findings == ("small",)
    (kept,) = check(photo, photo, [report((10, 10, 30, 40), "kept")], None, None)
    assert kept.findings == ("left",)


def header(*faces):
    return anf1.encode(Header("ifadit", {}, bytes(16), False, None, bytes(32), (420, 300), faces))


def test_without_a_report_the_record_tells_what_became_of_a_face(photo, box):
    detector = build_detector()
    corners = tuple((float(round(x)), float(round(y))) for x, y in cover_quad(detector.detect(photo)[0]))
    for kind in ("synth", "mosaic"):
        (told,) = faces_of(photo, photo, header(FaceEntry(corners, kind)), detector)
        assert (told.index, told.kind) == (0, kind) and told.seen
    elsewhere = tuple((x + 300, y) for x, y in corners)
    first, second = faces_of(photo, photo, header(FaceEntry(elsewhere)), detector)
    assert (first.kind, second.kind, second.index, second.seen) == ("kept", "synth", 1, False)


def test_without_a_record_the_pixels_tell(photo, box):
    detector, noise = build_detector(), np.random.default_rng(0).integers(-2, 3, photo.shape)
    saved_again = np.clip(photo + noise, 0, 255).astype(np.uint8)
    assert [told.kind for told in faces_of(photo, saved_again, b"no record", detector)] == ["kept"]
    changed = photo.copy()
    changed[20:276, 10:266] = face("small.jpg", 256)
    assert [told.kind for told in faces_of(photo, changed, b"no record", detector)] == ["synth"]
