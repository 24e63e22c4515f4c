"""Regions of a face that stay, without a network."""

import numpy as np
import pytest

from anonface.errors import UsageError
from anonface.faces import align, blend, regions
from anonface.faces.details import Replaced, details

QUAD = align.snap_quad(align.square(np.array([120.3, 90.8]), 101.2, 0.2))


@pytest.fixture(scope="module")
def mesh():
    """Landmarks spread over an aligned square of 256, the eyes' about two places."""
    points = np.random.default_rng(1).uniform(60, 200, (468, 2))
    for rows, seed, x in ((align.EYES[:16], 2, 90), (align.EYES[16:], 3, 165)):
        points[rows] = np.random.default_rng(seed).uniform((x - 12, 98), (x + 12, 122), (16, 2))
    return points


def filled(recorded, quad, shape):
    result = np.zeros(shape, np.uint8)
    regions.keep(result, np.ones_like(result), regions.polygons(recorded, quad))
    return result > 0


def test_a_region_holds_its_landmarks_and_is_the_same_from_the_record(mesh):
    recorded = regions.outlines(mesh, 256, ("eyes",))
    assert len(recorded.split()) == 2
    inside = filled(recorded, QUAD, (200, 260))
    for x, y in align.transform(align.crop_to_photo(QUAD, 256), mesh[align.EYES]):
        assert inside[int(y), int(x)]
    x, y = align.transform(align.crop_to_photo(QUAD, 256), np.array([[128.0, 110.0]]))[0]
    assert not inside[int(y), int(x)]
    assert np.array_equal(inside, filled(str(recorded), QUAD.copy(), (200, 260)))


def test_nothing_is_pasted_where_a_region_stays(mesh):
    rng = np.random.default_rng(4)
    photo, render = (rng.integers(0, 256, (*shape, 3), np.uint8) for shape in ((200, 260), (256, 256)))
    recorded = regions.outlines(mesh, 256, ("eyes", "mouth"))
    stays = regions.polygons(recorded, QUAD)
    soft = blend.soften(regions.without(np.ones((256, 256), np.float32), stays, QUAD))
    pasted = blend.paste(photo, render, soft, QUAD)
    regions.keep(pasted, photo, stays)
    inside = filled(recorded, QUAD, photo.shape[:2])
    assert inside.sum() > 500 and np.array_equal(pasted[inside], photo[inside])
    assert (pasted != photo).any(2).sum() > 1000

    shown = Replaced(0, QUAD, soft, stays)
    labels = details(photo, pasted, [], [], [shown], 0).labels
    assert not labels[inside].any() and not (pasted != photo).any(2)[labels == 0].any()


@pytest.mark.parametrize("recorded", ["zz", "0102", "010203040506 01020304", "01020304050607"])
def test_damaged_outlines_are_refused(recorded):
    with pytest.raises(ValueError):
        regions.polygons(recorded, QUAD)


def test_names_are_known_and_in_order():
    assert regions.chosen(["mouth", "eyes", "mouth"]) == ("eyes", "mouth")
    with pytest.raises(UsageError, match="no region 'ears'"):
        regions.chosen(["ears"])
    with pytest.raises(UsageError, match="if all regions stay"):
        regions.chosen(list(regions.PARTS))
