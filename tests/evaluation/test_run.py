import json
import math
from pathlib import Path

import numpy as np
import pytest
from colours import Colour, Outcome, Perfect, Reddish, Untouched, WholePictures, coloured_people
from PIL import Image, ImageFilter
from skimage import data

from anonface.crypto.keys import Key
from anonface.errors import ImageError, NoFaceError, UsageError
from anonface.evaluation import measurements, run, trials
from anonface.evaluation.degradations import DEGRADATIONS
from anonface.evaluation.judges import Judges, look_at_originals
from anonface.evaluation.measurements import NO_CODE, NO_IDENTITY
from anonface.evaluation.run import evaluate
from anonface.evaluation.summary import FAR_THRESHOLDS
from anonface.evaluation.trials import Plan, evaluation_key, one_bit_off
from anonface.faces import align


class Blind(Untouched):
    """Finds no face in anonymized photos, or in originals either."""

    def __init__(self, everywhere):
        self.everywhere = everywhere

    def anonymize(self, pixels, key, *, consistent):
        if self.everywhere:
            raise NoFaceError("no face")
        return Outcome(pixels)

    def recover(self, pixels, key, header):
        raise NoFaceError("no face")


@pytest.fixture(scope="module")
def judges():
    return WholePictures(Colour(), [Reddish()])


@pytest.fixture(scope="module")
def real_judges():
    return Judges()


@pytest.fixture
def folder(tmp_path):
    return coloured_people(tmp_path)


def test_an_engine_that_changes_nothing_fails_every_privacy_row(folder, judges):
    report = evaluate(Untouched(), folder, judges=judges)
    for row in ("anonymized", "wrong key, random", "wrong key, one bit", "two keys", "right key, from pixels"):
        rate = report.rate(row)
        assert rate.value == rate.low == rate.high == 1.0
    assert report.rate("anonymized").n == 8 * 4
    assert report.rate("two keys").n == 8 * 6
    assert report.figure("anonymized: mean distance").value == 0
    assert report.figure("landmark shift").value == 0
    assert report.figure("face found again by colour").value == 1.0
    assert report.settings["recognizer seen by a training loss"] is True
    assert "the photo comes out as it went in" in report.settings[run.GROSS]


def test_an_engine_that_does_everything_passes(folder, judges):
    report = evaluate(Perfect(), folder, Plan(2), judges=judges)
    assert report.rate("anonymized: matched to the original").value < 0.2
    assert report.rate("wrong key, random: matched to the original").value < 0.2
    assert report.rate("right key, from pixels").value == 1.0
    assert report.figure("right key, from pixels: mean distance").value == 0
    assert report.rate("original: matched to other photos").value == 1.0
    assert report.figure("original: nearest other photo").value == 1.0
    assert report.figure("right key, from pixels: nearest other photo").value == 1.0
    assert report.figure("anonymized: nearest other photo").value < 1.0
    assert report.rate("right key, from pixels: matched to other photos").value == 1.0
    assert report.settings[run.GROSS] == "none seen"


def test_who_only_hides_from_the_detector_is_caught(folder, judges):
    class Finding(Colour):
        finds = True

        def look(self, rgb, near=None):
            return super().look(rgb, near) if self.finds else None

    judging = WholePictures(Finding(), [])
    originals = look_at_originals(folder, judging)
    judging.recognizer.finds = False  # nothing in the results, which are the originals
    report = evaluate(Untouched(), folder, Plan(1), judges=judging, originals=originals)
    assert report.rate("anonymized: matched to the original").value == 0
    assert report.rate(measurements.PLACED).value == 1.0
    assert report.figure(f"{measurements.PLACED}: mean distance").value == 0


def test_a_face_that_vanishes_counts_as_found_nowhere(folder, judges):
    class Black(Untouched):
        def anonymize(self, pixels, key, *, consistent):
            return Outcome(np.zeros_like(pixels))

    report = evaluate(Black(), folder, Plan(1), judges=judges)
    assert report.rate("anonymized: matched to the original").value == 0
    assert report.rate("anonymized: matched, or no face found").value == 1.0
    assert report.rate("right key, from pixels").value == 0
    assert report.figure("face found again by colour").value == 0
    assert next(row for row in report.rates if row.title.startswith("anonymized")).undetected == 8
    assert math.isnan(report.figure("anonymized: mean distance").value)


@pytest.mark.parametrize(("everywhere", "refusals"), [(False, 8 * 3), (True, 8)])
def test_what_the_engine_refuses_counts_as_not_recovered(folder, judges, everywhere, refusals):
    report = evaluate(Blind(everywhere), folder, Plan(1), judges=judges)
    assert report.rate("right key, from pixels").value == 0
    assert report.rate("anonymized: matched to the original").value == (0 if everywhere else 1)
    assert report.figure("face found again by colour").value == (0 if everywhere else 1)
    assert report.settings["refused by the engine"] == refusals


def test_recovery_starts_from_pixels_as_written(folder, judges):
    class Spy(Untouched):
        def anonymize(self, pixels, key, *, consistent):
            self.hidden = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
            return Outcome(self.hidden)

        def recover(self, pixels, key, header):
            assert pixels is not self.hidden and (pixels == self.hidden).all()
            return Outcome(pixels)

    evaluate(Spy(), folder, Plan(1), limit=2, judges=judges)


def test_keys_of_a_trial(folder, judges):
    class Ring(Untouched):
        def __init__(self):
            self.hiding, self.recovering = [], []

        def anonymize(self, pixels, key, *, consistent):
            self.hiding.append(key)
            return Outcome(pixels)

        def recover(self, pixels, key, header):
            self.recovering.append(key)
            return Outcome(pixels)

    first, second, other = Ring(), Ring(), Ring()
    evaluate(first, folder, Plan(3), limit=2, judges=judges)
    evaluate(second, folder, Plan(3), limit=2, judges=judges)
    evaluate(other, folder, Plan(3, "another"), limit=2, judges=judges)
    assert first.hiding == second.hiding and first.recovering == second.recovering
    assert not set(map(Key.to_text, first.hiding)) & set(map(Key.to_text, other.hiding))
    assert len(set(map(Key.to_text, first.hiding + first.recovering))) == 2 * 3 * 3
    assert first.recovering[::3] == first.hiding


def test_attacks_come_between_hiding_and_recovery(folder, judges):
    class Spy(Untouched):
        def __init__(self):
            self.seen = []

        def recover(self, pixels, key, header):
            self.seen.append((pixels, key))
            return Outcome(pixels)

    spy = Spy()
    plan = Plan(3, attacks=("jpeg50", "resize50", "darker"), attack_keys=2)
    report = evaluate(spy, folder, plan, limit=1, judges=judges)
    assert [pixels.shape[1] for pixels, _ in spy.seen] == [40] * 3 + [40, 20, 40] + [40] * 3 + [40, 20, 40] + [40] * 3
    assert spy.seen[3][1] == spy.seen[4][1] == spy.seen[0][1]
    original = look_at_originals(folder, judges)[0].pixels()
    assert (spy.seen[5][0] == DEGRADATIONS["darker"](original)).all() and (spy.seen[3][0] != original).any()
    assert report.rate("right key, after JPEG 50: matched to the original").n == 2
    assert report.rate("right key, after resizing to 50 %").value == 1.0
    assert report.figure("right key, after darkening by 20 %: mean distance").value > 0.1
    assert report.settings["keys per photo under attacks"] == 2


def test_a_recovery_that_an_attack_breaks_counts_as_none(folder, judges):
    class Fragile(Untouched):
        """Hides something in the lowest bits."""

        def anonymize(self, pixels, key, *, consistent):
            return Outcome(pixels & 0xFE | 1)

        def recover(self, pixels, key, header):
            if not (pixels & 1).all():
                raise NoFaceError("lost")
            return Outcome(pixels)

    report = evaluate(Fragile(), folder, Plan(1, attacks=("jpeg90", "noise")), judges=judges)
    assert report.rate("right key, from pixels").value == 1
    assert report.rate("right key, after noise").value == 0
    assert report.settings["refused by the engine"] > 0


def test_identity_that_leaks_through_attributes_shows(folder, judges):
    class Leaky(Perfect):
        """Needs neither key nor code."""

        def recover(self, pixels, key, header):
            return Outcome(next(original for (hidden, _), original in self.seen.items() if hidden == pixels.tobytes()))

    engine = Perfect()
    leaky = Leaky()
    leaky.seen = engine.seen
    for ablations in ({NO_IDENTITY: leaky, NO_CODE: Grey()}, {NO_CODE: leaky, NO_IDENTITY: Grey()}):
        report = evaluate(engine, folder, Plan(2), ablations=ablations, judges=judges)
        for name in ("recovery without an identity code", "recovery with the whole code at zero"):
            for row in ("matched to the original", "matched, or no face found"):
                rate = report.rate(f"{name}: {row}")
                assert (rate.value, rate.n) == (float(ablations[name] is leaky), 8)
        assert report.rate("anonymized: matched to the original").value < 0.2
        leaks = "identity passes beside the key" in report.settings[run.GROSS]
        assert leaks is (ablations[NO_IDENTITY] is leaky) and "any key" not in report.settings[run.GROSS]
    assert report.figure(f"{NO_IDENTITY}: mean distance").value > 0.3 > report.figure(f"{NO_CODE}: mean distance").value
    assert not [row for row in evaluate(engine, folder, Plan(1), judges=judges).rates if "code" in row.title]


class Grey(Untouched):
    """Everybody becomes one and the same grey, whatever the key."""

    def anonymize(self, pixels, key, *, consistent):
        return Outcome(np.full_like(pixels, 120))

    def recover(self, pixels, key, header):
        return Outcome(np.full_like(pixels, 120))


def test_a_constant_face_shows(folder, judges):
    report = evaluate(Grey(), folder, Plan(2), judges=judges)
    assert report.rate("anonymized: matched to the original").value == 0
    assert report.rate("two keys: matched to each other").value == 1.0
    assert report.rate("right key, from pixels: matched to the original").value == 0
    assert "everybody becomes one face" in report.settings[run.GROSS]


def test_a_key_that_is_ignored_shows(folder, judges):
    class Keyless(Untouched):
        def anonymize(self, pixels, key, *, consistent):
            return Outcome(255 - pixels)

        def recover(self, pixels, key, header):
            return Outcome(255 - pixels)

    report = evaluate(Keyless(), folder, Plan(2), judges=judges)
    assert report.rate("anonymized: matched to the original").value == 0
    assert report.rate("two keys: matched to each other").value == 1.0
    for row in ("wrong key, random: matched to the original", "wrong key, one bit: matched", "right key, from pixels"):
        assert report.rate(row).value == 1.0
    for weakness in ("the key is ignored", "any key recovers the person"):
        assert weakness in report.settings[run.GROSS]


def test_apparent_attributes_are_compared_with_the_original(folder, judges):
    class Changing(Untouched):
        def __init__(self, change):
            self.change = change

        def anonymize(self, pixels, key, *, consistent):
            return Outcome(self.change(pixels))

    def kept(change):
        report = evaluate(Changing(change), folder, Plan(1), judges=judges)
        return [report.figure(f"{row}, by reddish (seen by a training loss)").value for row in ROWS]

    ROWS = ("apparent sex kept", "apparent age within 10 years")
    assert kept(lambda pixels: pixels) == [1, 1]
    assert kept(lambda pixels: pixels // 2) == [1, 0]
    assert kept(lambda pixels: pixels[..., ::-1].copy()) == [0.5, 1]  # red and blue people change places
    assert kept(np.zeros_like) == [0, 0]


def test_how_near_the_pixels_of_the_face_come(folder, judges):
    class Off(Untouched):
        """Is 12 grey levels off where the face is, and far off where it is not."""

        def recover(self, pixels, key, header):
            height, width = pixels.shape[:2]
            rows, columns = np.ogrid[:height, :width]
            outside = (columns + 1) / width > rows / height + 0.1
            return Outcome(np.where(outside[..., None], 255 - pixels, pixels - 12).astype(np.uint8))

    def figures(engine):
        report = evaluate(engine, folder, Plan(1), judges=judges)
        return [report.figure(f"right key, from pixels: {measure} in the face").value for measure in ("PSNR", "SSIM")]

    assert figures(Untouched()) == [100.0, 1.0]
    near = figures(Off())
    assert near[0] == pytest.approx(20 * math.log10(255 / 12), abs=1.0)
    assert 0.5 < near[1] < 1
    far = figures(Grey())
    assert far[0] < near[0]


class Counting(Perfect):
    """Dies when it is to hide one more photo than it may."""

    def __init__(self, most=10**6):
        super().__init__()
        self.most, self.hidden = most, 0

    def anonymize(self, pixels, key, *, consistent):
        if self.hidden == self.most:
            raise KeyboardInterrupt
        self.hidden += 1
        return super().anonymize(pixels, key, consistent=consistent)


def timeless(report):
    samples = {name: rows for name, rows in report.samples.items() if name not in ("anonymize", "recover")}
    return repr((samples, [row for row in report.rates if not row.title.startswith(measurements.TWO_PEOPLE)]))


def test_a_killed_evaluation_goes_on_where_it_was(folder, judges, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journals") / "a.jsonl"
    plan = Plan(2, attacks=("noise",))
    whole = evaluate(Counting(), folder, plan, ablations={NO_IDENTITY: Grey()}, judges=judges)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counting(7), folder, plan, ablations={NO_IDENTITY: Grey()}, judges=judges, journal=journal)
    engine = Counting()
    report = evaluate(engine, folder, plan, ablations={NO_IDENTITY: Grey()}, judges=judges, journal=journal)
    assert engine.hidden == (8 - 3) * 2  # three photos were finished, the fourth was under its second key
    assert report.settings["of them in this run"] == 5 and report.settings["photos judged"] == 8
    assert timeless(report) == timeless(whole)
    idle = Counting(0)
    assert timeless(
        evaluate(idle, folder, plan, ablations={NO_IDENTITY: Grey()}, judges=judges, journal=journal)
    ) == timeless(whole)


def test_parts_share_a_journal(folder, judges, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journals") / "a.jsonl"
    engines = Counting(), Counting()
    half = evaluate(engines[0], folder, Plan(1), judges=judges, journal=journal, part=(1, 2))
    both = evaluate(engines[1], folder, Plan(1), judges=judges, journal=journal, part=(2, 2))
    assert [engine.hidden for engine in engines] == [4, 4]
    assert (half.settings["photos judged"], both.settings["photos judged"]) == (4, 8)
    assert timeless(both) == timeless(evaluate(Counting(), folder, Plan(1), judges=judges))
    for part in ((0, 2), (3, 2)):
        with pytest.raises(UsageError, match="no part"):
            evaluate(Counting(), folder, Plan(1), judges=judges, journal=journal, part=part)


def test_a_journal_takes_more_photos_but_no_other_settings(folder, judges, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journals") / "a.jsonl"
    about = {"backend": "perfect"}

    def again(plan, engine=None, **options):
        return evaluate(engine or Counting(), folder, plan, judges=judges, about=about, journal=journal, **options)

    again(Plan(1), limit=3)
    engine = Counting()
    assert again(Plan(1), engine).settings["photos judged"] == 8 and engine.hidden == 5
    assert again(Plan(1), Counting(0), split="odd").settings["photos judged"] == 4
    for plan, options, setting in (
        (Plan(2), {}, "keys"),
        (Plan(1, attacks=("jpeg90",)), {}, "attacks"),
        (Plan(1), {"ablations": {NO_IDENTITY: Grey()}}, "identity code"),
    ):
        with pytest.raises(UsageError, match=f"another .*{setting}"):
            again(plan, **options)
    about["backend"] = "other"
    with pytest.raises(UsageError, match="another backend: perfect, not other"):
        again(Plan(1))
    about["backend"] = "perfect"
    Image.new("RGB", (40, 32), (9, 9, 90)).save(folder / "00.png")
    with pytest.raises(UsageError, match="another set of photos"):
        again(Plan(1))


def test_one_bit_off_is_one_bit(monkeypatch):
    monkeypatch.setattr(trials, "Key", bytes)
    places = set()
    for number in range(40):
        right, near = (int.from_bytes(make("seed", "a.jpg", number)) for make in (evaluation_key, one_bit_off))
        assert (right ^ near).bit_count() == 1
        places.add(right ^ near)
    assert len(places) > 30


def test_splits_part_the_people(folder, judges):
    originals = look_at_originals(folder, judges)
    even = evaluate(Untouched(), folder, plan=Plan(1), split="even", judges=judges, originals=originals)
    odd = evaluate(Untouched(), folder, plan=Plan(1), split="odd", judges=judges, originals=originals)
    assert {file[0] for file, _, _ in even.samples["anonymized"]} == {"0", "2"}
    assert {file[0] for file, _, _ in odd.samples["anonymized"]} == {"1", "3"}


def test_photos_without_a_face_are_left_out_and_counted(folder, judges):
    Image.new("RGB", (40, 32)).save(folder / "black.png")
    with (folder / "identities.csv").open("a") as file:
        file.write("black.png,person 0\n")
    report = evaluate(Untouched(), folder, Plan(1), judges=judges)
    assert (report.settings["photos"], report.settings["photos judged"]) == (9, 8)
    assert report.figure("originals found by colour").value == pytest.approx(8 / 9)


def test_threshold_comes_from_the_folder_when_it_holds_enough_pairs(tmp_path, judges):
    rng = np.random.default_rng(3)
    lines = ["file,identity"]
    for number in range(48):  # 48 * 47 / 2 = 1128 pairs, of which 0.1 % is one
        Image.new("RGB", (8, 8), tuple(rng.integers(1, 255, 3).tolist())).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{number}")
    (tmp_path / "identities.csv").write_text("\n".join(lines))
    report = evaluate(Untouched(), tmp_path, Plan(1), limit=1, judges=judges)
    looks = [original.look.embedding for original in look_at_originals(tmp_path, judges)]
    distances = sorted(np.linalg.norm(a - b) for i, a in enumerate(looks) for b in looks[:i])
    threshold = report.thresholds[1].interval
    assert (threshold.value, threshold.n) == (pytest.approx(distances[1]), 1128)
    assert threshold.low <= threshold.value <= threshold.high


def test_without_identities(folder, judges):
    (folder / "identities.csv").unlink()
    calls = []
    report = evaluate(
        Untouched(), folder, Plan(1), judges=judges, progress=lambda done, total: calls.append((done, total))
    )
    assert calls == [(n, 8) for n in range(1, 9)]
    assert [t.interval.value for t in report.thresholds[1:]] == list(FAR_THRESHOLDS.values())
    assert "rank 1" in report.settings["left out, no identities.csv"]
    assert not [row for row in report.rates if "other photos" in row.title]
    with pytest.raises(UsageError, match="identities"):
        evaluate(Untouched(), folder, split="odd", judges=judges)


class Nudging(Untouched):
    """Moves the photo to the right by so many pixels."""

    def __init__(self, by):
        self.by = by

    def anonymize(self, pixels, key, *, consistent):
        return Outcome(np.roll(pixels, self.by, axis=1))


@pytest.mark.slow
def test_what_a_face_keeps_is_measured(tmp_path: Path, real_judges):
    photo = data.astronaut()
    Image.fromarray(photo).save(tmp_path / "face.png")
    kept = evaluate(Nudging(0), tmp_path, Plan(1), judges=real_judges)
    moved = evaluate(Nudging(16), tmp_path, Plan(1), judges=real_judges)
    lengths = ("box shift, MTCNN", "box shift, dlib", "landmark shift, 68 points", "landmark shift, 5 points of MTCNN")
    for name in (*lengths, "head turned", "eyes: change", "mouth: change", "gaze: shift", "gaze turned", "skin tone"):
        assert kept.figure(name).value == pytest.approx(0, abs=1e-4), name
    aligned = real_judges.aligned(photo, real_judges.recognizer.look(photo).box)
    scale = 256 / align.side_of(aligned.quad)
    assert moved.figure("box shift, MTCNN").value == pytest.approx(16 * scale / 2, abs=2)  # x alone has moved
    assert moved.figure("landmark shift, 5 points").value == pytest.approx(16 * scale / 2, abs=2)
    assert moved.figure("expression kept").value == 1
    assert moved.figure("head turned").value < 10 and moved.figure("gaze: shift").value < 0.05


def test_unusable_folders(folder, judges, tmp_path_factory):
    with pytest.raises(UsageError, match="no photos"):
        evaluate(Untouched(), tmp_path_factory.mktemp("empty"), judges=judges)
    with pytest.raises(UsageError, match="no photos"):
        evaluate(Untouched(), folder / "absent", judges=judges)
    with pytest.raises(UsageError, match="at least 1"):
        evaluate(Untouched(), folder, Plan(0), judges=judges)
    (folder / "stranger.jpg").write_bytes((folder / "00.png").read_bytes())
    with pytest.raises(UsageError, match=r"stranger\.jpg"):
        evaluate(Untouched(), folder, judges=judges)
    (folder / "identities.csv").write_text("name,who\na,b\n")
    with pytest.raises(UsageError, match="columns"):
        evaluate(Untouched(), folder, judges=judges)
    (folder / "identities.csv").write_bytes("file,identity\n00.png,Müller\n".encode("latin-1"))
    with pytest.raises(UsageError, match="UTF-8"):
        evaluate(Untouched(), folder, judges=judges)
    (folder / "identities.csv").unlink()
    (folder / "stranger.jpg").write_text("not a photo")
    (folder / "another.jpg").write_text("nor this")
    with pytest.raises(ImageError, match=r"another\.jpg, stranger\.jpg"):
        evaluate(Untouched(), folder, judges=judges)
    for file in folder.iterdir():
        file.unlink()
    Image.new("RGB", (40, 32)).save(folder / "black.png")
    with pytest.raises(UsageError, match="no face"):
        evaluate(Untouched(), folder, judges=judges)


class Blurring(Untouched):
    def anonymize(self, pixels, key, *, consistent):
        return Outcome(np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(2))))


class Painting(Untouched):
    def anonymize(self, pixels, key, *, consistent):
        return Outcome(np.full_like(pixels, 128))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "matched", "found"), [(Untouched(), 1, 1), (Blurring(), 1, 1), (Painting(), 0, 0)])
def test_real_judges_on_a_real_face(tmp_path: Path, real_judges, engine, matched, found):
    Image.fromarray(data.astronaut()[40:210, 130:310]).save(tmp_path / "face.png")
    report = evaluate(engine, tmp_path, Plan(1), judges=real_judges)
    assert report.rate("anonymized: matched to the original").value == matched
    for detector in ("YuNet", "MTCNN", "dlib"):
        assert report.figure(f"originals found by {detector}").value == 1
        assert report.figure(f"face found again by {detector}").value == found
    assert report.settings["recognizer seen by a training loss"] is False
    assert json.dumps(dict(report.settings))
