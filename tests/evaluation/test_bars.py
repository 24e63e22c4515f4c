"""The shipped networks on eight synthetic faces: no figure may become worse than bars.json says."""

import json

import bars
import numpy as np
import pytest
from colours import Outcome, Untouched

from anonface.evaluation.judges import Judges, look_at_originals
from anonface.evaluation.synthetic import draw_photos

STORED = json.loads(bars.FILE.read_text("utf-8"))
IDENTITY = {title for title in bars.TOLERANCES if "distance" in title}
HIDING = IDENTITY - {"right key, from pixels: mean distance"}


class Stranger(Untouched):
    """Everybody becomes one other person, under every key and both ways."""

    def __init__(self, other):
        self.other = other

    def anonymize(self, pixels, key, *, consistent):
        return Outcome(self.other)

    def recover(self, pixels, key, header):
        return Outcome(self.other)


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """Folder, judges and originals, as bars.measure wants them."""
    folder, judges = tmp_path_factory.mktemp("faces"), Judges()
    draw_photos(folder, bars.FACES)
    return folder, judges, look_at_originals(folder, judges)


@pytest.mark.slow
def test_no_figure_is_worse_than_stored(faces):
    engine = bars.shipped()
    reason = bars.outdated(STORED, bars.settings(engine))
    assert reason is None, reason
    worse = bars.broken(STORED, bars.measure(engine, *faces))
    assert not worse, worse


@pytest.mark.slow
def test_an_engine_that_changes_nothing_breaks_the_bars_of_hiding(faces):
    assert bars.broken(STORED, bars.measure(Untouched(), *faces, limit=3)).keys() == HIDING


@pytest.mark.slow
def test_an_engine_that_leads_to_one_stranger_breaks_the_bar_of_recovery(faces):
    stranger = faces[2][-1].pixels()
    worse = bars.broken(STORED, bars.measure(Stranger(stranger), *faces, limit=3))
    assert "right key, from pixels: mean distance" in worse and "landmark shift, 68 points" in worse
    assert HIDING & worse.keys() == {"two keys: mean distance"}


def test_an_engine_without_faces_breaks_every_bar(faces):
    black = np.zeros_like(faces[2][0].pixels())
    worse = bars.broken(STORED, bars.measure(Stranger(black), *faces, limit=3))
    assert worse.keys() == bars.TOLERANCES.keys()


def test_other_weights_want_other_values():
    assert bars.outdated(STORED, STORED["settings"]) is None
    reason = bars.outdated(STORED, STORED["settings"] | {"weights": "0123456789abcdef"})
    assert "0123456789abcdef" in reason and bars.COMMAND in reason
