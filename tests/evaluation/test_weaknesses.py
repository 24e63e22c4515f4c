import numpy as np
import pytest
from colours import Colour, Outcome, Perfect, Reddish, Untouched, WholePictures, coloured_people

from anonface.evaluation.measurements import NO_IDENTITY
from anonface.evaluation.run import GROSS, evaluate
from anonface.evaluation.trials import Plan


class Painter(Perfect):
    """Paints as it is told, and leads back under the right key alone."""

    def __init__(self, paint):
        super().__init__()
        self.paint = paint

    def anonymize(self, pixels, key, *, consistent):
        hidden = self.paint(pixels, super().anonymize(pixels, key, consistent=consistent).pixels)
        self.seen[hidden.tobytes(), key] = pixels
        return Outcome(hidden)

    def recover(self, pixels, key, header):
        found = self.seen.get((pixels.tobytes(), key))
        return Outcome(255 - pixels if found is None else found)


class Keyless(Perfect):
    """Leads back under any key."""

    def recover(self, pixels, key, header):
        return Outcome(next(original for (hidden, _), original in self.seen.items() if hidden == pixels.tobytes()))


def constant(pixels, keyed):
    return np.full_like(pixels, 128)


def own_colour(pixels, keyed):
    return np.full_like(pixels, 255) - pixels


BROKEN = {
    "the photo comes out as it went in": lambda: (Untouched(), None),
    "the key is ignored": lambda: (Painter(own_colour), None),
    "everybody becomes one face": lambda: (Painter(constant), None),
    "any key recovers the person": lambda: (Keyless(), None),
}


@pytest.fixture(scope="module")
def judges():
    return WholePictures(Colour(), [Reddish()])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_engine_is_named(tmp_path, judges, name):
    engine, mute = BROKEN[name]()
    report = evaluate(
        engine, coloured_people(tmp_path), Plan(2), ablations={NO_IDENTITY: mute} if mute else {}, judges=judges
    )
    assert name in report.settings[GROSS]


def test_identity_that_passes_beside_the_key_is_named(tmp_path, judges):
    engine, leaky = Perfect(), Keyless()
    leaky.seen = engine.seen
    report = evaluate(engine, coloured_people(tmp_path), Plan(2), ablations={NO_IDENTITY: leaky}, judges=judges)
    assert "identity passes beside the key" in report.settings[GROSS]
    assert "any key" not in report.settings[GROSS]


def test_a_sound_engine_is_not(tmp_path, judges):
    sound = Painter(lambda pixels, keyed: keyed)
    assert evaluate(sound, coloured_people(tmp_path), Plan(2), judges=judges).settings[GROSS] == "none seen"
