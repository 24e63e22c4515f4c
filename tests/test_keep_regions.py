"""Regions that stay, checks and details, on real detector, landmarks and networks."""

from dataclasses import replace

import numpy as np
import pytest

from anonface.crypto.keys import Key
from anonface.errors import ContainerError, UsageError
from anonface.faces import regions
from anonface.faces.sface import LIMIT
from anonface.pipeline import Engine
from anonface.record.anf1 import decode, encode

KEY, OTHER = (Key(bytes([i]) * 32) for i in (1, 2))

pytestmark = pytest.mark.usefixtures("unsearched")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """A public-domain portrait (Eileen Collins, NASA)."""
    from skimage.data import astronaut

    return np.ascontiguousarray(astronaut()[:256, 100:356])


@pytest.fixture(scope="module")
def anonymized(engine, photo):
    return engine.anonymize(photo, KEY, keep_regions=["mouth", "eyes"], check=True, detailed=True)


def staying(header, shape):
    """Where the record says that the photo stays."""
    inside = np.zeros(shape, np.uint8)
    quad = np.array(header.faces[0].quad)
    polygons = regions.polygons(str(header.parameters["regions0"]), quad)
    regions.keep(inside, np.ones_like(inside), polygons)
    return inside > 0


def test_what_stays_is_the_photos_own_before_and_after_recovery(engine, photo, anonymized):
    header = decode(encode(anonymized.header))
    stays = staying(header, photo.shape[:2])
    changed = (anonymized.pixels != photo).any(2)
    assert header.parameters["regions"] == "eyes,mouth"
    assert stays.sum() > 1000 and not changed[stays].any() and changed.sum() > 2000
    for key in (KEY, OTHER):
        back = engine.recover(anonymized.pixels, key, header)
        assert np.array_equal(back.pixels[stays], photo[stays]) and (back.pixels != anonymized.pixels).any()
        assert back.notes == ()
    assert anonymized.notes[0].startswith("eyes, mouth: left as in the photo")


def test_each_face_is_checked_and_described(photo, anonymized):
    (face,) = anonymized.faces
    assert face.checks.found_before and face.checks.found_after
    assert -1 <= face.checks.similarity <= 1 and face.checks.matched == (face.checks.similarity > 1 - LIMIT**2 / 2)
    assert face.checks.matched == any("still matched" in note for note in anonymized.notes)
    labels = anonymized.details.labels
    assert labels.dtype == np.uint8 and set(np.unique(labels)) == {0, 1}
    assert not (anonymized.pixels != photo).any(2)[labels == 0].any()
    assert not labels[staying(anonymized.header, photo.shape[:2])].any()
    (landmarks,) = anonymized.details.landmarks
    x, y, w, h = face.box
    middle = landmarks.mean(0)
    assert landmarks.shape == (468, 2) and x < middle[0] < x + w and y < middle[1] < y + h


def test_a_record_with_other_regions_is_refused(engine, anonymized):
    header = anonymized.header
    damaged = replace(header, parameters={**header.parameters, "regions0": "zz"})
    with pytest.raises(ContainerError, match="damaged"):
        engine.recover(anonymized.pixels, KEY, damaged)
    bare = {name: value for name, value in header.parameters.items() if not name.startswith("regions")}
    with pytest.raises(ContainerError, match="record was changed"):
        engine.recover(anonymized.pixels, KEY, replace(header, parameters=bare))


def test_a_backend_whose_recovery_needs_every_pixel_keeps_none(engine, photo, monkeypatch):
    monkeypatch.setattr(engine.backend, "exact", True)
    with pytest.raises(UsageError, match="cannot keep regions"):
        engine.anonymize(photo, KEY, keep_regions=["eyes"])
