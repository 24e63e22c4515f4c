"""A real face for the tests that need one: NASA's public-domain portrait of Eileen Collins, from scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
import skimage

from anonface.faces.align import mesh468
from anonface.faces.detect import Face, Pixels, Points, build_detector


@pytest.fixture(scope="session")
def portrait() -> Pixels:
    return np.ascontiguousarray(skimage.data.astronaut())


@pytest.fixture(scope="session")
def face(portrait: Pixels) -> Face:
    (found,) = build_detector("yunet").detect(portrait)
    return found


@pytest.fixture(scope="session")
def mesh(portrait: Pixels, face: Face) -> Points:
    return mesh468(portrait, face)
