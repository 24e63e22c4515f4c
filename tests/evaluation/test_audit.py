"""Every attack succeeds on a weakness that was planted for it, and on an engine without a fault none does."""

import io
import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import patterns
import pytest
from colours import WholePictures

from anonface.errors import ContainerError, UsageError, WrongKeyError
from anonface.evaluation.audit import run
from anonface.evaluation.audit.files import carried
from anonface.evaluation.audit.finding import allowed, counted, luck, matched, standing, told_apart
from anonface.evaluation.audit.subject import MARK, Sizes, choose, marked
from anonface.evaluation.measurements import NO_IDENTITY
from anonface.evaluation.run import evaluate
from anonface.evaluation.trials import Plan


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    return patterns.album(tmp_path_factory.mktemp("album"))


def findings(engine, album, attack, **files):
    return run.ATTACKS[attack].run(patterns.subject(engine, album, **files))


def broken(engine, album, attack, **files):
    """The measures by which an attack succeeds."""
    return [finding.measure for finding in findings(engine, album, attack, **files) if finding.passed is False]


def test_an_engine_without_a_fault_holds(album):
    result = run.audit(patterns.subject(patterns.Sound(), album), run.ATTACKS.values())
    assert result.broken == []
    told = [finding for tried in result.tried for finding in tried.findings if finding.passed]
    assert len(told) >= 14 == len(run.ATTACKS)  # all but those of files
    right = patterns.subject(patterns.Sound(), album).back
    assert all(seen is not None for seen in right)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "attack", "measure"),
    [
        (patterns.ReturnsItsInput, "viewer", "matched to the original"),
        (patterns.ReturnsItsInput, "viewer", "person told from strangers"),
        (patterns.ReturnsItsInput, "candidates", "rank of the true one"),
        (patterns.IgnoresTheKey, "diversity", "one photo under two keys"),
        (patterns.IgnoresTheKey, "key-guessing", "one bit off"),
        (patterns.ConstantFace, "diversity", "two people under two keys"),
        (patterns.HidesTheOriginalInLowBits, "low-bits", "low bits follow"),
        (patterns.LeaksThroughAttributes, "attributes", "matched to the original"),
        (patterns.LeaksThroughAttributes, "attributes", "person told from strangers"),
        (patterns.UsesKeyBitsOneByOne, "key-guessing", "one bit off"),
        (patterns.UsesKeyBitsOneByOne, "key-guessing", "half-right keys"),
        (patterns.UsesKeyBitsOneByOne, "known-pair", "another photo's person"),
        (patterns.WrongKeysGiveNoise, "observer", "right key told from wrong"),
        (patterns.KeepsAThird, "candidates", "rank of the true one"),
        (patterns.MixesInBlocks, "candidates", "rank of the true one"),
        (patterns.TurnsByOneAngle, "candidates", "rank of the true one"),
        (patterns.KeepsAThird, "inversion", "person told from strangers"),
        (patterns.AddsAPadOfTheKey, "known-pair", "another photo's person"),
        (patterns.AddsAPadOfTheKey, "linkability", "two people's outputs"),
        (patterns.AddsAPadOfTheKey, "linkability", "key of an output told by groups"),
        (patterns.TurnsByAFixedMap, "inversion", "person told from strangers"),
        (patterns.OneOtherFaceAPerson, "parrot", "person told from suspects"),
        (patterns.OneOtherFaceAPerson, "linkability", "one person's outputs"),
    ],
)
def test_a_planted_weakness_is_found(album, engine, attack, measure):
    assert any(found.startswith(measure) for found in broken(engine(), album, attack))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [patterns.MixesInBlocks, patterns.TurnsByOneAngle])
def test_what_no_key_changes_confirms_a_suspicion(album, engine):
    (found,) = findings(engine(), album, "candidates")
    assert found.detail.startswith("by what no key changes") and found.value.value > 0.85


@pytest.mark.parametrize(
    ("engine", "attack"),
    [
        (patterns.ConstantFace, "viewer"),
        (patterns.HidesTheOriginalInLowBits, "diversity"),
        (patterns.AddsAPadOfTheKey, "viewer"),
        (patterns.OneOtherFaceAPerson, "known-pair"),
        (patterns.WrongKeysGiveNoise, "key-guessing"),
    ],
)
def test_an_attack_is_blind_to_the_weaknesses_of_others(album, engine, attack):
    assert broken(engine(), album, attack) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "row", "limit"),
    [
        (patterns.ReturnsItsInput, "anonymized: matched to the original", 0.2),
        (patterns.IgnoresTheKey, "wrong key, random: matched to the original", 0.2),
        (patterns.IgnoresTheKey, "two keys: matched to each other", 0.2),
        (patterns.ConstantFace, "two keys: matched to each other", 0.2),
        (patterns.HidesTheOriginalInLowBits, "wrong key, random: matched to the original", 0.2),
        (patterns.LeaksThroughAttributes, "recovery without an identity code: matched to the original", 0.2),
    ],
)
def test_evaluate_sees_the_same_engines(tmp_path, engine, row, limit):
    album, judges = patterns.album(tmp_path, people=4, photos=1), WholePictures(patterns.Patterns(), [])

    def measured(engine):
        mute = engine.mute() if hasattr(engine, "mute") else patterns.Sound()
        return evaluate(engine, album, Plan(2), ablations={NO_IDENTITY: mute}, judges=judges).rate(row).value

    assert measured(patterns.Sound()) <= limit < measured(engine())


# --- Files -----------------------------------------------------------------------------------------------------------


class PlainFiles:
    """A format with every fault: the original's bytes behind the record, checked by nobody."""

    def anonymize(self, photo, key, output, *, engine, seal):
        output.write_bytes(photo.read_bytes())

    def recover(self, photo, key):
        return SimpleNamespace(original=photo.read_bytes())


class TalkativeFiles(PlainFiles):
    """Refuses, but says how near a key is; or takes its time when the first byte is right."""

    def __init__(self, key, slow):
        self.key, self.slow = key, slow

    def recover(self, photo, key):
        near = (patterns.bits(key) != patterns.bits(self.key)).sum() < 9
        if near and self.slow:
            time.sleep(0.0005)
        raise WrongKeyError("nearly" if near and not self.slow else "no")


def test_files_that_check_nothing(album, tmp_path, monkeypatch):
    under_attack = patterns.subject(patterns.Sound(), album, PlainFiles(), tmp_path)
    found = run.ATTACKS["metadata"].run(under_attack)[0]
    assert found.passed is False and found.value.value >= 2 and "mark in UTF-16" in found.detail
    monkeypatch.setattr("anonface.record.carriers.expect", lambda data, name: data[:64])
    monkeypatch.setattr("anonface.record.carriers.embed", lambda image, record: image)
    flips, splice = run.ATTACKS["tampering"].run(under_attack)
    assert not flips.passed and flips.value.value == flips.value.n > 100 and not splice.passed
    guessing = {finding.measure: finding for finding in run.ATTACKS["key-guessing"].run(under_attack)}
    assert guessing["sealed photo: wrong keys that opened it or got an answer of their own"].passed is False


@pytest.mark.parametrize(("slow", "measure"), [(False, "wrong keys that opened"), (True, "near misses told by time")])
def test_a_seal_that_tells_how_near_a_key_is(album, tmp_path, slow, measure):
    under_attack = patterns.subject(patterns.Sound(), album, work=tmp_path)
    under_attack.files = TalkativeFiles(under_attack.key, slow)
    found = run.ATTACKS["key-guessing"].run(under_attack)
    assert [finding.passed for finding in found if measure in finding.measure] == [False]


def test_records_that_share_a_salt_are_tied(album, tmp_path, monkeypatch):
    seal = SimpleNamespace(salt=b"same", check=b"same")
    monkeypatch.setattr("anonface.record.carriers.expect", lambda data, name: data)
    monkeypatch.setattr("anonface.record.anf1.decode", lambda data: SimpleNamespace(flow_salt=b"salt", seal=seal))
    assert "records of one key: salts and check values shared" in broken(
        patterns.Sound(), album, "linkability", files=PlainFiles(), work=tmp_path
    )


def test_a_refusal_is_no_breach(album, tmp_path, monkeypatch):
    class Careful(PlainFiles):
        def recover(self, photo, key):
            raise ContainerError("changed")

    monkeypatch.setattr("anonface.record.carriers.expect", lambda data, name: data[:64])
    monkeypatch.setattr("anonface.record.carriers.embed", lambda image, record: image)
    assert broken(patterns.Sound(), album, "tampering", files=Careful(), work=tmp_path) == []


def test_a_nonce_that_comes_twice_is_found(album):
    """Two of ten photos hold the same one; what is illegible does not count."""
    under_attack = patterns.subject(patterns.Sound(), album)
    read = iter([b"a", b"b", b"a", None, *(bytes([n]) for n in range(6))])
    under_attack.model = replace(under_attack.model, nonce=lambda crop: next(read))
    found, *_ = run.ATTACKS["keystream"].run(under_attack)
    assert (found.value.value, found.value.n, found.passed) == (1, 9, False)
    under_attack.model = replace(under_attack.model, nonce=lambda crop: crop.tobytes())
    assert run.ATTACKS["keystream"].run(under_attack)[0].passed is True


def test_marks_are_where_readers_look():
    data = marked(np.full((16, 16, 3), 90, np.uint8))
    assert data.count(MARK.encode()) >= 6 and MARK.encode("utf-16-le") in data


# --- What an attack is measured by -----------------------------------------------------------------------------------


def test_standings():
    assert standing(3, [1, 2, 4, 3]) == pytest.approx(2.5 / 4)
    assert math.isnan(standing(math.nan, [1])) and math.isnan(standing(1, [])) and standing(1, [math.nan, 0]) == 1


def test_luck_allows_what_blind_guessing_reaches():
    rng = np.random.default_rng(0)
    blind = rng.uniform(size=(20_000, 12)).mean(1)
    assert (blind > luck(12)).mean() == pytest.approx(0.01, abs=0.004)
    best = np.maximum(blind[:10_000], blind[10_000:])
    assert (best > luck(12, tries=2)).mean() == pytest.approx(0.01, abs=0.004)
    assert allowed(8, 0.02) == 2 and allowed(100, 0.02) == 6 and allowed(3, 0.0) == 0


def test_the_best_score_is_told_and_folded():
    people = list("abcdefghijkl")
    last = told_apart("m", {"poor": [0.5] * 12, "good": [0.05] * 12}, people, folded=True)
    assert last.value.value == pytest.approx(0.95) and last.passed is False and "by good" in last.detail
    assert last.value.low <= last.value.value <= last.value.high
    assert told_apart("m", {"good": [0.05] * 12}, people).passed is True
    assert told_apart("m", {"": [1.0, math.nan]}, ["a", "b"]).passed is None  # one photo: anything may be luck
    assert told_apart("m", {"": [math.nan]}, ["a"]).passed is None


def test_a_face_that_is_gone_is_no_match_and_is_named():
    found = matched("m", [0.1, math.nan, 0.9, 0.9], list("abcd"), 0.6, 0.02)
    assert found.value.value == 0.25 and "no face in 1" in found.detail and found.passed
    assert matched("m", [0.1, 0.1, 0.9, 0.9], list("abcd"), 0.6, 0.02).passed is False
    assert counted("m", 0, 0).passed is None and counted("m", 1, 5).passed is False


def test_rendered_pixels_carry_nothing_in_their_low_bits():
    rng = np.random.default_rng(0)
    original, other = rng.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    assert max(carried(original, other, bits) for bits in (1, 2, 4)) < 0.05
    assert carried(original, (other & 0xFE) | (original >> 7), 1) > 0.5
    assert math.isnan(carried(original, original, 2))


# --- Whom it is about ------------------------------------------------------------------------------------------------


def test_nobody_is_in_two_groups(album):
    gallery = choose(album, WholePictures(patterns.Patterns(), []), patterns.SIZES, 1)
    targets, kin, practice, crowd = (
        {photo.identity for photo in photos}
        for photos in (gallery.targets, gallery.kin, gallery.practice, gallery.crowd)
    )
    assert len(targets) == len(gallery.targets) == 10 and kin == targets and len(crowd) == 12
    assert not targets & practice and not targets & crowd and not practice & crowd and practice
    files = [photo.file for photos in (gallery.targets, gallery.kin) for photo in photos]
    assert len(set(files)) == len(files)
    again = choose(album, WholePictures(patterns.Patterns(), []), patterns.SIZES, 1)
    other = choose(album, WholePictures(patterns.Patterns(), []), patterns.SIZES, 2)
    assert again.targets[0].file == gallery.targets[0].file and {t.file for t in other.targets} != set(files[:10])


def test_without_identities_every_photo_is_a_person(tmp_path):
    patterns.album(tmp_path, people=5, photos=2)
    (tmp_path / "identities.csv").unlink()
    sizes = Sizes(photos=4, pairs=10, candidates=3, guesses=10, crowd=2)
    under_attack = patterns.subject(patterns.Sound(), tmp_path, sizes=sizes)
    assert len(set(under_attack.people)) == 4 and not under_attack.gallery.kin
    assert run.ATTACKS["parrot"].run(under_attack)[0].passed is None
    found = {finding.measure: finding.detail for finding in run.ATTACKS["linkability"].run(under_attack)}
    assert "4 sought by the very photo" in found["one person's outputs under two keys tied"]


def test_a_folder_without_a_usable_face(tmp_path):
    from PIL import Image

    judges = WholePictures(patterns.Patterns(), [])
    with pytest.raises(UsageError, match="no photos"):
        choose(tmp_path, judges, Sizes(), 1)
    Image.new("RGB", (32, 32)).save(tmp_path / "black.png")
    with pytest.raises(UsageError, match="face that can be attacked"):
        choose(tmp_path, judges, Sizes(), 1)


def test_a_face_that_vanishes_is_counted_and_breaks_nothing(album):
    class Black(patterns.Sound):
        def hidden(self, pixels, key):
            return np.zeros_like(pixels)

    result = run.audit(patterns.subject(Black(), album), run.ATTACKS.values())
    assert result.broken == []
    assert result.tried[0].findings[0].detail == "no face in 10"


def test_what_is_reported(album):
    from rich.console import Console

    result = run.audit(
        patterns.subject(patterns.ReturnsItsInput(), album), [run.ATTACKS["viewer"], run.ATTACKS["attributes"]]
    )
    data = json.loads(run.to_json(result))
    assert data["broken"] == ["viewer"] and data["settings"]["photos attacked"] == 10
    viewer = data["attacks"][0]
    assert viewer["shows"] and viewer["silent"] and viewer["published"]
    assert viewer["findings"][0]["value"]["value"] == 1.0 and viewer["findings"][0]["passed"] is False
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(run.table(result))
    text = console.export_text()
    assert "BROKEN" in text and "held" in text
