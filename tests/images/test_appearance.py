"""What viewers show of a photo: through transparency, and by its profile."""

from dataclasses import replace

import numpy as np
import pytest

from anonface.batch.task import Anonymizing, Opened
from anonface.crypto.keys import Key
from anonface.errors import ImageError
from anonface.faces.detect import Face
from anonface.faces.second_look import elsewhere
from anonface.images import Photo
from anonface.images.appearance import appearances
from anonface.images.colour import SRGB
from anonface.images.profiles import profile_of
from anonface.record.anf1 import FaceReport

PLAIN = Photo(np.full((8, 8, 3), 55, np.uint8), None, None, "png")
HALF = np.repeat(np.array([[0, 255]], np.uint8), 4, axis=1).repeat(8, 0)


def test_an_opaque_photo_in_srgb_looks_as_it_is():
    assert list(appearances(PLAIN)) == []
    assert list(appearances(replace(PLAIN, alpha=np.full((8, 8), 255, np.uint8)))) == []
    assert list(appearances(replace(PLAIN, icc=profile_of(SRGB)))) == []


def test_a_linear_photo_looks_lighter_than_its_pixels():
    [(cause, shown)] = appearances(replace(PLAIN, icc=profile_of(replace(SRGB, gamma=1.0))))
    assert cause == "its colour profile" and abs(shown.mean() - 128) < 3  # 1.055 (55 / 255) ** (1 / 2.4) - 0.055


def test_a_transparent_photo_is_seen_on_white_and_on_black():
    seen = dict(enumerate(shown for _, shown in appearances(replace(PLAIN, alpha=HALF))))
    assert [tuple(picture[0, [0, -1], 0]) for picture in seen.values()] == [(255, 55), (0, 55)]


def test_a_face_that_transparency_alone_shows_is_refused():
    class Stub:
        def anonymize(self, pixels, key, **options):
            box = (1.0, 1.0, 4.0, 4.0)
            return type("Result", (), {"pixels": pixels, "faces": [FaceReport(0, "synth", box)], "notes": ()})()

        def unreported(self, pixels, faces):
            seen = [Face((x, 1.0, 4.0, 4.0), np.zeros((5, 2)), 0.9) for x in (1.5, 4.0)[: 1 + (pixels.max() > 100)]]
            return elsewhere(seen, [face.box for face in faces])

    task = Anonymizing(Key(bytes(31) + b"\1"), engine=lambda: Stub())
    assert task.treat(Opened("a.png", b"", PLAIN)).notes == ()
    with pytest.raises(ImageError, match="at 4,1 shows through its transparency alone"):
        task.treat(Opened("a.png", b"", replace(PLAIN, alpha=HALF)))
