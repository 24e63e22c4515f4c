"""A short run of the composed pictures; composed.py says how to run it for long."""

from __future__ import annotations

import numpy as np
import pytest
from composed import Laid, compose, engine, left_in_the_clear, run, sources

from anonface.crypto.keys import Key


@pytest.fixture(scope="module")
def treat():
    treating, key = engine(), Key.from_bytes(bytes(range(32)))
    return lambda picture: treating.anonymize(picture, key, faceless=True).pixels


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1012))
def test_no_face_is_left_in_the_clear(treat, seed: int) -> None:
    _, laid, left = run(seed, sources(), treat, most=900)
    assert laid and left == []


@pytest.mark.slow
def test_what_is_left_is_seen() -> None:
    """A check that passes whatever is treated tests nothing."""
    untreated: list[Laid] = []
    for seed in range(1000, 1004):
        picture, laid = compose(np.random.default_rng(seed), sources(), most=900)
        untreated += [face for face, share in left_in_the_clear(picture, laid, picture) if share == 0]
    assert len(untreated) >= 4
