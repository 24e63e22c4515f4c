"""An engine in a process of its own."""

import os
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from anonface.crypto.keys import Key
from anonface.errors import DeviceError, NoFaceError, UsageError, WeightsError
from anonface.evaluation.remote import Remote, peak_memory

PHOTO = np.full((4, 5, 3), 7, np.uint8)
KEY = Key(bytes(range(32)))
MEGABYTE = 10**6


@dataclass
class Done:
    pixels: np.ndarray
    faces: tuple[int, ...]


class Inverting:
    """Says under which process and key it worked; has no face to recover."""

    def anonymize(self, pixels, key, *, consistent):
        print("what a tool says")
        assert consistent and key == KEY
        return Done(255 - pixels, (os.getpid(),))

    def recover(self, pixels, key, header):
        raise NoFaceError("no face", "none at all")


class Hungry(Inverting):
    def anonymize(self, pixels, key, *, consistent):
        np.ones(200 * MEGABYTE, np.uint8)
        return Done(pixels, ())


class Mortal(Inverting):
    def anonymize(self, pixels, key, *, consistent):
        os._exit(3)


def absent():
    raise WeightsError("no weights", "bring some")


def broken():
    raise ImportError("libGL.so.1: cannot open shared object file")


def described(engine):
    return {"kind": type(engine).__name__}


def test_it_works_elsewhere_and_says_nothing_here(capfd):
    with Remote("inverting", Inverting, described) as engine:
        made = engine.anonymize(PHOTO, KEY, consistent=True)
        assert (made.pixels == 248).all() and made.faces[0] != os.getpid()
        assert engine.about == {"kind": "Inverting"} and engine.seconds > 0
        with pytest.raises(NoFaceError, match="no face") as failure:
            engine.recover(PHOTO, KEY, None)
        assert failure.value.hint == "none at all"
        assert engine.anonymize(PHOTO, KEY, consistent=True).faces == made.faces
    said = capfd.readouterr()
    assert said.out == "" and "what a tool says" in said.err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems say less of a process's memory")
def test_its_memory_is_its_own():
    weight = np.ones(300 * MEGABYTE, np.uint8)
    assert peak_memory() > weight.size
    with Remote("hungry", Hungry, described) as engine:
        before = engine.peak()
        assert before < weight.size
        engine.anonymize(PHOTO, KEY, consistent=True)
        assert engine.peak() - before > 190 * MEGABYTE


def test_what_cannot_be_made_is_told_as_it_was():
    with pytest.raises(WeightsError, match="no weights"):
        Remote("absent", absent, described)
    with pytest.raises(UsageError, match=r"cannot be loaded: libGL\.so\.1"):
        Remote("broken", broken, described)


def test_a_process_that_ends_is_told(capfd):
    with Remote("mortal", Mortal, described) as engine:
        for _ in range(2):
            with pytest.raises(DeviceError, match="process of mortal ended"):
                engine.anonymize(PHOTO, KEY, consistent=True)
