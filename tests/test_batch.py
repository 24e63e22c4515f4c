"""Plans of runs, the runs themselves, and the library's door."""

import numpy as np
import pytest
from fake import FakeEngine
from PIL import Image

import anonface
from anonface import Key, anonymize, recover
from anonface.batch import Job, Treated, check_target, explained, plan, run
from anonface.carriers import embed, extract
from anonface.errors import ContainerError, DeviceError, ImageError, NoFaceError, OutputError, UsageError

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
        (folder / name).touch()


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
    ("paths", "options"),
    [
        (["a.jpg", "a.png"], {}),
        (["a.jpg", "a.anon.png"], {}),
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


def test_no_suffix_of_a_recovered_original_meets_an_input(here):
    put(here, "a.anon.png", "a.recovered.jpg", "b.jpg")
    with pytest.raises(UsageError, match=r"perhaps the input a\.recovered\.jpg"):
        plan(["a.anon.png", "a.recovered.jpg"], "recover")
    assert len(plan(["a.anon.png", "b.jpg"], "recover")) == 2


@pytest.mark.parametrize(("made", "skipped"), [("a.recovered.heic", 1), ("a.recovered", 1), ("a.recovered2.jpg", 0)])
def test_skipping_what_was_recovered_under_whatever_suffix(here, made, skipped):
    put(here, "a.anon.png", made)
    done = Treated((), here, "file")
    outcomes = list(run(plan(["a.anon.png"], "recover"), lambda job: done, skip_existing=True))
    assert sum(outcome.state == "skipped" for outcome in outcomes) == skipped
    assert outcomes[0].treated is (None if skipped else done)


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


def test_all_outputs_are_checked_before_the_first_photo(here):
    put(here, "a.jpg", "b.jpg", "b.anon.png", "c.jpg")
    done = []
    outcomes = list(run(plan(["a.jpg", "b.jpg", "c.jpg"], "anonymize"), lambda job: done.append(job) or ()))
    assert [(str(outcome.job.source), outcome.state) for outcome in outcomes] == [
        ("b.jpg", "failed"),
        ("a.jpg", "done"),
        ("c.jpg", "done"),
    ]
    assert isinstance(outcomes[0].error, OutputError) and len(done) == 2


def test_whatever_a_photo_raises_the_next_one_is_done(here):
    put(here, "a.jpg", "b.jpg", "c.jpg")
    raised = iter([NoFaceError("none"), RuntimeError("CUDA error:\nout of memory"), KeyError("x")])

    def treat(job):
        raise next(raised)

    outcomes = list(run(plan(["a.jpg", "b.jpg", "c.jpg"], "anonymize"), treat))
    assert [outcome.error.exit_code for outcome in outcomes] == [5, 70, 70]
    assert isinstance(outcomes[1].error, DeviceError) and "--batch-size" in outcomes[1].error.hint
    assert "bug" in outcomes[2].error.hint


def test_skipping_what_exists(here):
    put(here, "a.jpg", "a.anon.png")
    (outcome,) = run(plan(["a.jpg"], "anonymize"), lambda job: pytest.fail("done again"), skip_existing=True)
    assert outcome.state == "skipped"


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
    assert Job("anonymize", "a", "b", "c").outputs == ("b", "c")


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
    with pytest.raises(ContainerError, match=r"saved\.png carries no anonface record"):
        recover("saved.png", KEY, engine=FakeEngine)
    (here / "b.anf").write_bytes(record)
    assert (recover("saved.png", KEY, sidecar="b.anf", engine=FakeEngine).pixels == pixels).all()
    assert (recover("saved.png", KEY, stateless=True, engine=FakeEngine).pixels == pixels).all()
    (here / "mended.png").write_bytes(embed((here / "saved.png").read_bytes(), record))
    assert (recover("mended.png", KEY, engine=FakeEngine).pixels == pixels).all()


def test_no_record_stays_without_its_photo(here, pixels, monkeypatch):
    Image.fromarray(pixels).save("a.png")

    def full(path, data, overwrite=False):
        if str(path).endswith(".png"):
            raise OutputError("the disk is full")
        path.write_bytes(data)

    monkeypatch.setattr("anonface.batch.write_atomic", full)
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
    assert anonface.__version__ and set(anonface.__all__) == {"Engine", "Key", "anonymize", "recover"}
    with pytest.raises(AttributeError):
        anonface.anonymise  # noqa: B018
