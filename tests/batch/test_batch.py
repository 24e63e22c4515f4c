"""Plans of runs, the runs themselves, and the library's door."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from fake import FakeEngine
from PIL import Image

import anonface
from anonface import Key, anonymize, recover
from anonface.batch.plan import Job, plan
from anonface.batch.run import Rules, explained, run
from anonface.batch.task import Anonymizing, Opened, Recovering, Treated
from anonface.errors import ContainerError, DeviceError, ImageError, NoFaceError, OutputError, UsageError
from anonface.images import files
from anonface.images.paths import check_target
from anonface.pipeline import FaceReport, Recovered
from anonface.record.carriers import embed, extract

KEY = Key.from_bytes(bytes(range(32)))
OTHER = Key.from_bytes(bytes(range(1, 33)))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(1, 255, (32, 40, 3), np.uint8)


def put(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def laid_out(*paths, direction="anonymize", **options):
    return {str(job.source): str(job.target) for job in plan(paths, direction, **options)}


# --- Plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "source", "options", "target"),
    [
        ("anonymize", "in/a.jpg", {}, "in/a.anon.png"),
        ("anonymize", "in/a.b.JPG", {}, "in/a.b.anon.png"),
        ("anonymize", "in/a.jpg", {"format": "jpeg"}, "in/a.anon.jpg"),
        ("anonymize", "in/a.jpg", {"output": "x.webp"}, "x.webp"),
        ("anonymize", "in/a.jpg", {"output": "x.jpeg", "format": "jpeg"}, "x.jpeg"),
        ("anonymize", "in/a.jpg", {"output": "in"}, "in/a.anon.png"),
        ("anonymize", "in/a.jpg", {"output": "new/"}, "new/a.anon.png"),
        ("recover", "in/a.anon.png", {}, "in/a.recovered.png"),
        ("recover", "in/a.Anon.WEBP", {"format": "webp"}, "in/a.recovered.webp"),
        ("recover", "in/sent.png", {}, "in/sent.recovered.png"),
    ],
)
def test_what_one_photo_becomes(here, direction, source, options, target):
    put(here, source)
    assert laid_out(source, direction=direction, **options) == {source: target}


def test_a_tree_is_repeated_below_the_folder_that_all_inputs_share(here):
    put(here, "x/one/a.jpg", "x/two/deep/a.jpg", "x/two/b.png")
    assert laid_out("x/two", output="out", recursive=True) == {
        "x/two/b.png": "out/b.anon.png",
        "x/two/deep/a.jpg": "out/deep/a.anon.png",
    }
    assert laid_out("x/one", "x/two", output="out", recursive=True) == {
        "x/one/a.jpg": "out/one/a.anon.png",
        "x/two/b.png": "out/two/b.anon.png",
        "x/two/deep/a.jpg": "out/two/deep/a.anon.png",
    }
    assert laid_out("x/**/*.jpg", output="out") == {
        "x/one/a.jpg": "out/one/a.anon.png",
        "x/two/deep/a.jpg": "out/two/deep/a.anon.png",
    }


def test_what_a_folder_brings(here):
    put(here, "a.jpg", "a.anon.png", "a.recovered.png", ".hidden.jpg", ".git/b.jpg", "note.txt", "c.HEIC", "d/e.jpg")
    assert list(laid_out(".")) == ["a.jpg", "c.HEIC"]
    assert list(laid_out(".", recursive=True)) == ["a.jpg", "c.HEIC", "d/e.jpg"]
    assert list(laid_out(".", direction="recover")) == ["a.anon.png"]
    assert list(laid_out("*.*g")) == ["a.jpg"]


def test_a_photo_named_twice_is_done_once(here):
    put(here, "in/a.jpg")
    (here / "link.jpg").symlink_to("in/a.jpg")
    assert laid_out("in/a.jpg", "in", "./in/*.jpg", "link.jpg") == {"in/a.jpg": "in/a.anon.png"}


def test_a_name_with_brackets_is_a_name(here):
    put(here, "[1].jpg")
    assert laid_out("[1].jpg") == {"[1].jpg": "[1].anon.png"}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("{stem}{ext}", "out/a.b.png"),
        ("x-{stem}{suffix}.{mark}{ext}", "out/x-a.b.JPG.anon.png"),
        ("a.webp", "out/a.webp"),
    ],
)
def test_names_of_results(here, name, target):
    put(here, "a.b.JPG")
    assert laid_out("a.b.JPG", name=name, output="out/") == {"a.b.JPG": target}


def test_a_name_tells_apart_what_would_collide(here):
    put(here, "a.jpg", "a.png")
    with pytest.raises(UsageError, match=r"'a\.anon\.png', the output of 'a\.png'") as caught:
        plan(["."], "anonymize")
    assert "--name '{stem}{suffix}.{mark}{ext}'" in caught.value.hint
    assert len(set(laid_out(".", name="{stem}{suffix}.{mark}{ext}").values())) == 2


@pytest.mark.parametrize(
    ("content", "name", "tier", "made"),
    [
        ("JPEG", "a.jpg", "file", "jpg"),
        ("JPEG", "a.png", "file", "jpg"),
        ("JPEG", "a", "file", "jpg"),
        ("MPO", "a.jpg", "file", "jpg"),
        *[("JPEG", "a.jpg", tier, "png") for tier in ("face", "none")],
        *[("WEBP", "a.webp", tier, "webp") for tier in ("file", "face", "none")],
        *[(kind, "a.jpg", "file", "png") for kind in ("PNG", "TIFF", "GIF", "AVIF", "PPM")],
        ("", "a.jpg", "file", "jpg"),
        ("", "a.jpg", "none", "png"),
        ("", "a.heic", "file", "png"),
    ],
)
def test_outputs_have_the_format_of_the_photo_where_that_loses_nothing(here, content, name, tier, made):
    """By the content; by the name where there is no file, as in a run that is resumed without its photo."""
    if content:
        Image.new("RGB", (8, 8)).save(here / name, content)
    lossy = tier == "file"
    (job,) = plan([name], "anonymize", lossy=lossy)
    assert job.target.name == f"a.anon.{made}"
    (job,) = plan([name], "anonymize", lossy=lossy, format="webp")
    assert job.target.name == "a.anon.webp"


@pytest.mark.parametrize(
    ("name", "output", "says"),
    [
        ("{stem", None, "--name"),
        ("{shoe}{ext}", None, "unknown field"),
        ("{stem.__class__}{ext}", None, "unknown field"),
        ("{stem!r}{ext}", None, "unknown field"),
        ("{stem:>9}{ext}", None, "unknown field"),
        ("{}{ext}", None, "unknown field"),
        ("../{stem}{ext}", None, "not the name of a file"),
        ("{stem}.tiff", None, "does not name a format"),
        ("{stem}{ext}", "b.png", "is a file"),
        ("same{ext}", None, "also the output of"),
    ],
)
def test_names_that_make_no_sense(here, name, output, says):
    put(here, "a.jpg", "b.jpg")
    paths = ["a.jpg"] if output else ["a.jpg", "b.jpg"]
    with pytest.raises(UsageError, match=says):
        plan(paths, "anonymize", name=name, output=output)


@pytest.mark.parametrize(
    ("paths", "options"),
    [
        (["a.jpg", "a.png"], {}),
        (["one/a.jpg", "one/a.png"], {"output": "out"}),
        (["a.jpg"], {"output": "a.tiff"}),
        (["a.jpg"], {"output": "a"}),
        (["a.jpg"], {"output": "b.png", "sidecar": "b.png"}),
        (["empty"], {}),
        (["*.bmp"], {}),
    ],
)
def test_plans_that_make_no_sense(here, paths, options):
    put(here, "a.jpg", "a.png", "a.anon.png", "one/a.jpg", "one/a.png", "empty/note.txt")
    with pytest.raises(UsageError):
        plan(paths, "anonymize", **options)


@pytest.mark.parametrize(
    ("path", "direction", "says", "hint"),
    [
        (
            "notes",
            "anonymize",
            "holds no photo to anonymize: 2 files ignored; not photos by name: 2 .txt",
            0,
        ),
        ("none", "anonymize", "'none' holds no photo to anonymize", 0),
        ("tree", "anonymize", "'tree' holds no photo to anonymize", 1),
        ("both", "anonymize", ": 1 file ignored; not photos by name: 1 without a suffix", 1),
        ("both", "recover", "'both' holds no photo to recover: 1 file ignored", 0),
        ("both/one", "recover", ": 1 file ignored; not named *.anon.*: 1 .jpg", 0),
        ("made/*.png", "anonymize", "matches no photo to anonymize: 1 file ignored; results: 1 .anon.png", 0),
        ("*.bmp", "anonymize", "'*.bmp' matches no photo to anonymize", 0),
    ],
)
def test_what_is_there_where_no_photo_is(here, path, direction, says, hint):
    for folder in ("none/deep", "tree/deep", "both/one", "made", "notes/deep"):
        (here / folder).mkdir(parents=True)
    put(here, "notes/a.txt", "notes/b.txt", "notes/deep/c.txt", "tree/deep/a.jpg", "both/a", "both/one/a.jpg")
    put(here, "made/a.anon.png")
    with pytest.raises(UsageError) as refused:
        plan([path], direction)
    message = refused.value.message
    assert says in message
    assert ("ignored" in says) == ("ignored" in message)
    assert ("--recursive" in refused.value.hint) == hint


def test_no_suffix_of_a_recovered_original_meets_an_input(here):
    put(here, "a.anon.png", "a.recovered.jpg", "b.jpg")
    with pytest.raises(OutputError, match=r"perhaps the input 'a\.recovered\.jpg'"):
        plan(["a.anon.png", "a.recovered.jpg"], "recover")
    assert len(plan(["a.anon.png", "b.jpg"], "recover")) == 2


@pytest.mark.parametrize(("made", "skipped"), [("a.recovered.heic", 1), ("a.recovered", 1), ("a.recovered2.jpg", 0)])
def test_skipping_what_was_recovered_under_whatever_suffix(here, made, skipped):
    put(here, "a.anon.png", made)
    (outcome,) = told(plan(["a.anon.png"], "recover"), Noting(), rules=Rules(skip_existing=True))
    assert outcome.state == ("skipped" if skipped else "done")


def test_records_of_their_own(here):
    put(here, "in/a.jpg", "in/b/a.jpg")
    (job,) = plan(["in/a.jpg"], "anonymize", sidecar="a.anf")
    assert str(job.sidecar) == "a.anf" and len(job.outputs) == 2
    jobs = plan(["in"], "anonymize", output="out", sidecar="records", recursive=True)
    assert [str(job.sidecar) for job in jobs] == ["records/a.anon.png.anf", "records/b/a.anon.png.anf"]
    put(here, "out/a.anon.png", "out/b/a.anon.png")
    jobs = plan(["out"], "recover", output="back", sidecar="records", recursive=True)
    assert [str(job.sidecar) for job in jobs] == ["records/a.anon.png.anf", "records/b/a.anon.png.anf"]
    assert all(job.outputs == (job.target,) for job in jobs)


# --- Runs ------------------------------------------------------------------------------------------------------------


class Noting:
    """A task that reads and writes nothing real, and keeps the order of its steps. ``raising`` maps names to errors."""

    def __init__(self, raising=None, slow=()):
        self.raising, self.slow, self.steps = raising or {}, slow, []
        self.held, self.most_held = 0, 0
        self.lock = threading.Lock()

    def step(self, what, file):
        if file.name in self.slow:
            time.sleep(0.05)
        with self.lock:
            self.steps.append((what, file.name))
            self.held += {"open": 1, "treat": 0, "files": -1}[what]
            self.most_held = max(self.most_held, self.held)
        if error := self.raising.get((what, file.name)):
            raise error

    def open(self, source, sidecar=None):
        self.step("open", source)
        return Opened(source, b"", None)

    def ready(self, opened):
        if error := self.raising.get("ready"):
            raise error

    def treat(self, opened):
        self.step("treat", opened.source)
        return Treated(Recovered(None, [FaceReport(0, "synth", (0, 0, 1, 1))]), "none")

    def files(self, opened, treated, target, sidecar, faces=None):
        self.step("files", opened.source)
        return [(target, opened.source.name.encode())]


def told(jobs, task, **options):
    outcomes = []
    run(jobs, task, outcomes.append, **options)
    return outcomes


def states(outcomes):
    return [(str(outcome.job.source), outcome.state) for outcome in outcomes]


def test_all_outputs_are_checked_before_the_first_photo(here):
    put(here, "a.jpg", "b.jpg", "b.anon.png", "c.jpg")
    outcomes = told(plan(["a.jpg", "b.jpg", "c.jpg"], "anonymize"), Noting())
    assert states(outcomes) == [("b.jpg", "failed"), ("a.jpg", "done"), ("c.jpg", "done")]
    assert isinstance(outcomes[0].error, OutputError)


def test_whatever_a_photo_raises_the_next_one_is_done(here):
    put(here, "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    errors = {
        ("open", "a.jpg"): ImageError("no photo"),
        ("treat", "b.jpg"): RuntimeError("CUDA error:\nout of memory"),
        ("files", "c.jpg"): KeyError("x"),
    }
    outcomes = told(plan(["a.jpg", "b.jpg", "c.jpg", "d.jpg"], "anonymize"), Noting(errors))
    assert [outcome.error and outcome.error.exit_code for outcome in outcomes] == [4, 70, 70, None]
    assert isinstance(outcomes[1].error, DeviceError) and "--batch-size" in outcomes[1].error.hint
    assert "bug" in outcomes[2].error.hint and not any(outcome.ends for outcome in outcomes)


@pytest.mark.parametrize(
    "errors", [{"ready": UsageError("no such backend")}, {("treat", "b.jpg"): DeviceError("the device was lost")}]
)
def test_what_concerns_every_photo_ends_the_run(here, errors):
    put(here, "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    task = Noting(errors)
    outcomes = told(plan(["."], "anonymize"), task, workers=2)
    assert outcomes[-1].ends and outcomes[-1].error.exit_code in (2, 70) and ("treat", "d.jpg") not in task.steps
    assert [outcome.ends for outcome in outcomes[:-1]] == [False] * (0 if "ready" in errors else 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_outcomes_come_in_order_and_memory_is_bounded(here, workers):
    names = [f"{i:02}.jpg" for i in range(20)]
    put(here, *names)
    task = Noting(slow=("00.jpg", "05.jpg", "11.jpg"))
    outcomes = told(plan(["."], "anonymize"), task, workers=workers)
    assert [outcome.job.source.name for outcome in outcomes] == names
    assert all((here / f"{name[:2]}.anon.png").read_text() == name for name in names)
    assert 1 < task.most_held <= 2 * workers + 1
    assert task.steps.index(("open", "01.jpg")) < task.steps.index(("files", "00.jpg"))  # it does read ahead


def test_an_interrupt_discards_the_photo_in_hand_and_finishes_those_behind_it(here):
    put(here, "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    task = Noting({("treat", "c.jpg"): KeyboardInterrupt()}, slow=("b.jpg",))
    outcomes = []
    with pytest.raises(KeyboardInterrupt):
        run(plan(["."], "anonymize"), task, outcomes.append, workers=2)
    assert states(outcomes) == [("a.jpg", "done"), ("b.jpg", "done")]
    assert sorted(file.name for file in here.glob("*.png")) == ["a.anon.png", "b.anon.png"]


def test_skipping_what_exists(here):
    put(here, "a.jpg", "a.anon.png")
    task = Noting()
    (outcome,) = told(plan(["a.jpg"], "anonymize"), task, rules=Rules(skip_existing=True))
    assert outcome.state == "skipped" and task.steps == []


def test_skipping_photos_without_a_face(here):
    put(here, "a.jpg", "b.jpg")
    task = Noting({("treat", "a.jpg"): NoFaceError("no face was found")})
    outcomes = told(plan(["."], "anonymize"), task, rules=Rules(skip_faceless=True))
    assert states(outcomes) == [("a.jpg", "skipped"), ("b.jpg", "done")] and outcomes[0].notes == ("no face was found",)


class Remarking(FakeEngine):
    def anonymize(self, pixels, key, **options):
        return replace(super().anonymize(pixels, key, **options), notes=("face 0: something stays",))

    def recover(self, pixels, key, header=None, **options):
        return replace(super().recover(pixels, key, header, **options), notes=("it bears no mark",))


def test_what_the_engine_notes_is_told_beside_what_the_file_says(here, pixels):
    for name in ("a.png", "b.anon.png"):
        Image.fromarray(pixels).save(here / name)
    Image.fromarray(0 * pixels).save(here / "c.png")
    outcomes = told(plan(["a.png", "b.anon.png", "c.png"], "anonymize"), Anonymizing(KEY, Remarking(), faceless=True))
    named = "its name is that of a photo that was anonymized before"
    assert [outcome.notes for outcome in outcomes] == [
        ("face 0: something stays",),
        (named, "face 0: something stays"),
        ("no face was found, so the photo was only copied",),
    ]
    (back,) = told(plan(["a.png"], "recover"), Recovering(KEY, Remarking(), stateless=True))
    assert back.notes == ("it bears no mark",)


def test_errors_explained():
    known = NoFaceError("none")
    assert explained(known) is known
    assert "out of memory" in explained(MemoryError()).message
    bug = ValueError("two\nlines")
    assert explained(bug).message == "unexpected ValueError: two lines" and explained(bug).__cause__ is bug


def test_a_target_in_a_folder_to_be_made(here):
    put(here, "a.jpg", "file")
    check_target(here / "new" / "deeper" / "a.png", here / "a.jpg", False)
    assert not (here / "new").exists()
    with pytest.raises(OutputError, match="not a folder"):
        check_target(here / "file" / "a.png", here / "a.jpg", False)
    with pytest.raises(OutputError, match="not a folder"):
        check_target(here / "file" / "deeper" / "a.png", here / "a.jpg", True)


def test_outputs_of_a_job():
    assert Job("recover", "a", "b", "c").outputs == ("b",)
    assert Job("anonymize", "a", "b", "c").outputs == ("c", "b")


# --- The library -----------------------------------------------------------------------------------------------------


def test_arrays_there_and_back(pixels):
    before = pixels.copy()
    hidden = anonymize(pixels, KEY, engine=FakeEngine())
    assert (pixels == before).all() and (hidden.pixels != pixels).any() and len(hidden.faces) == 1
    assert (recover(hidden.pixels, KEY, header=hidden.header, engine=FakeEngine()).pixels == pixels).all()
    assert (recover(hidden.pixels, OTHER, header=hidden.header, engine=FakeEngine()).pixels != pixels).any()


def test_pixels_and_key_alone(pixels):
    hidden = anonymize(pixels, KEY, stateless=True, engine=FakeEngine())
    assert hidden.header.consistent
    assert (recover(hidden.pixels, KEY, engine=FakeEngine()).pixels == pixels).all()


def test_files_there_and_back(here, pixels):
    alpha = np.linspace(0, 255, 32 * 40).astype(np.uint8).reshape(32, 40)
    Image.fromarray(np.dstack([pixels, alpha])).save("a.png")
    anonymize("a.png", KEY, "b.webp", engine=FakeEngine)
    recover("b.webp", KEY, "c.png", engine=FakeEngine)
    with Image.open("c.png") as image:
        assert (np.asarray(image) == np.dstack([pixels, alpha])).all()


def test_without_an_output_nothing_is_written(here, pixels):
    Image.fromarray(pixels).save("a.png")
    anonymize("a.png", KEY, engine=FakeEngine)
    assert [file.name for file in here.iterdir()] == ["a.png"]


def test_the_record_outlives_only_what_keeps_it(here, pixels):
    Image.fromarray(pixels).save("a.png")
    anonymize("a.png", KEY, "b.png", engine=FakeEngine, seal="none", consistent=True)
    record = extract((here / "b.png").read_bytes())
    Image.open("b.png").save("saved.png")
    with pytest.raises(ContainerError, match=r"'saved\.png' carries no anonface record"):
        recover("saved.png", KEY, engine=FakeEngine)
    (here / "b.anf").write_bytes(record)
    assert (recover("saved.png", KEY, sidecar="b.anf", engine=FakeEngine).pixels == pixels).all()
    assert (recover("saved.png", KEY, stateless=True, engine=FakeEngine).pixels == pixels).all()
    (here / "mended.png").write_bytes(embed((here / "saved.png").read_bytes(), record))
    assert (recover("mended.png", KEY, engine=FakeEngine).pixels == pixels).all()


def test_no_record_stays_without_its_photo(here, pixels, monkeypatch):
    Image.fromarray(pixels).save("a.png")

    write = files._write_new

    def full(path, data, mode):
        if data.startswith(b"\x89PNG"):
            raise OSError("the disk is full")
        write(path, data, mode)

    monkeypatch.setattr(files, "_write_new", full)
    with pytest.raises(OutputError):
        anonymize("a.png", KEY, "b.png", sidecar="b.anf", engine=FakeEngine)
    assert [file.name for file in here.iterdir()] == ["a.png"]


def test_a_bad_photo_is_found_before_the_networks_are_made(here, pixels):
    (here / "a.png").write_text("no picture")
    Image.fromarray(pixels).save("b.png")

    def engine():
        raise AssertionError("made in vain")

    for photo, output, error in (("a.png", None, ImageError), ("b.png", "b.png", OutputError)):
        with pytest.raises(error):
            anonymize(photo, KEY, output, engine=engine)
        with pytest.raises(error):
            recover(photo, KEY, output, stateless=True, engine=engine)


@pytest.mark.parametrize("array", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_arrays_of_another_kind(array):
    with pytest.raises(ImageError, match="uint8"):
        anonymize(array, KEY, engine=FakeEngine)


def test_the_package_has_a_version_and_no_other_names():
    assert anonface.__version__ and set(anonface.__all__) == set(dir(anonface)) == {
        "Engine",
        "Key",
        "anonymize",
        "detect",
        "recover",
    }
    with pytest.raises(AttributeError):
        anonface.anonymise  # noqa: B018
