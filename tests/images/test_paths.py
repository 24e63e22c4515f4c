"""No command writes over what it reads, nor twice into one file, by whatever name."""

from pathlib import Path

import pytest
from PIL import Image

from anonface import Key, anonymize, recover
from anonface.batch.plan import plan
from anonface.errors import AnonfaceError, OutputError, UsageError
from anonface.images.paths import Input, Output, Protected, identity, refuse_conflicts

pytestmark = pytest.mark.usefixtures("key")


def photo(name, shade=120):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 32), (shade, shade // 2, shade // 3)).save(name)


def state(folder="."):
    return {str(file): file.read_bytes() for file in sorted(Path(folder).rglob("*")) if file.is_file()}


@pytest.fixture
def scene(monkeypatch):
    """Photos, an anonymized one with its sidecar, links of every kind; and whatever is refused is refused at once."""
    photo("a.png")
    photo("b.png", 90)
    photo("album/c.png", 60)
    photo("album/d.png", 70)
    Path("album/identities.csv").write_text("file,identity\nc.png,c\nd.png,d\n")
    Path("pass").write_text("some words nobody else has\n")
    Path("hard.png").hardlink_to("a.png")
    Path("here").symlink_to(".")
    Path("model").mkdir()
    Path("model/unet.png").write_bytes(b"weights")
    Path("model/page.html").write_bytes(b"about them")
    key = Key.from_file("k.bin")
    anonymize("b.png", key, "b.anon.png", sidecar="b.anf", engine=fake())
    monkeypatch.setattr("anonface.pipeline.Engine", None)
    return state()


def fake():
    from fake import FakeEngine

    return FakeEngine()


ANONYMIZE = ("anonymize", "--key-file", "k.bin", "--overwrite")
RECOVER = ("recover", "b.anon.png", "--key-file", "k.bin", "--overwrite")
EVALUATE = ("evaluate", "album", "--overwrite")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "args"),
    [
        (2, [*ANONYMIZE, "a.png", "-o", "o.png", "--sheet", "o.png"]),
        (2, [*ANONYMIZE, "a.png", "-o", "o.png", "--sheet", "here/o.png"]),
        (2, [*ANONYMIZE, "a.png", "-o", "o.png", "--report", "o.png"]),
        (2, [*ANONYMIZE, "a.png", "-o", "o.png", "--sidecar", "o.png"]),
        (2, [*ANONYMIZE, "a.png", "--sheet", "s.png", "--report", "s.png"]),
        (2, [*ANONYMIZE, "a.png", "--sidecar", "s.png", "--sheet", "s.png"]),
        (2, [*ANONYMIZE, "a.png", "-o", "new.png/o.png", "--sheet", "new.png"]),
        (2, [*ANONYMIZE, "album", "-o", "out", "--report", "out"]),
        (2, [*ANONYMIZE, "album", "-o", "out", "--sheet", "out/c.anon.png"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--sheet", "a.png"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--sheet", "hard.png"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--sheet", "here/a.png"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--report", "hard.png"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--sidecar", "a.png"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--report", "here/k.bin"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--passphrase-file", "pass", "--report", "pass"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--keep-faces", "album", "--sheet", "album/c.png"]),
        (10, [*ANONYMIZE, "a.png", "-o", "o.png", "--model", "model", "--sheet", "model/unet.png"]),
        (10, [*ANONYMIZE, "album", "-o", "out", "--sheet", "album/d.png"]),
        (10, [*ANONYMIZE, "a.png", "b.png", "hard.png", "--name", "a{ext}"]),
        (10, [*RECOVER, "-o", "k.bin"]),
        (10, [*RECOVER, "-o", "back.png", "--report", "b.anon.png"]),
        (10, [*RECOVER, "-o", "back.png", "--sidecar", "b.anf", "--report", "here/b.anf"]),
        (10, [*RECOVER, "-o", "b.anf", "--sidecar", "b.anf"]),
        (2, [*RECOVER, "-o", "back.png", "--sidecar", "b.anf", "--report", "back.png"]),
        (10, ["compare", "a.png", "-o", "a.png", "--key-file", "k.bin", "--overwrite"]),
        (10, ["compare", "a.png", "-o", "hard.png", "--key-file", "k.bin", "--overwrite"]),
        (10, ["compare", "album", "-o", "here/album/c.png", "--key-file", "k.bin", "--overwrite"]),
        (
            10,
            [
                "compare",
                "a.png",
                "-o",
                "model/unet.png",
                "--key-file",
                "k.bin",
                "--overwrite",
                "--beside",
                "dbaf=model",
            ],
        ),
        (10, [*EVALUATE, "--beside", "deface-blur,dbaf=model", "--report", "model/page.html"]),
        (10, ["strip", "b.anon.png", "-o", "here/b.anon.png", "--overwrite"]),
        (10, ["rekey", "b.anf", "-o", "k.bin", "--old-key-file", "k.bin", "--new-key-file", "pass", "--overwrite"]),
        (10, ["keygen", "pass", "--passphrase-file", "pass"]),
        (2, [*EVALUATE, "--report", "r.html", "--journal", "r.json"]),
        (10, [*EVALUATE, "--journal", "album/identities.csv"]),
        (10, ["audit", "album", "--report", "album/d.png", "--overwrite"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_nothing_that_is_read_or_written_is_written_over(anonface, scene, code, args):
    got, out, err = anonface(*args)
    assert got == code and out == "" and err.count("anonface: error:") == 1 and "Traceback" not in err, err
    assert state() == scene


def test_a_sheet_that_exists_leaves_nothing_behind(anonface, scene):
    for sheet in ("b.png", "album/c.png"):
        assert anonface("anonymize", "a.png", "-o", "new/o.png", "--sheet", sheet, "--key-file", "k.bin")[0] == 10
    assert state() == scene and not Path("new").exists()


def test_what_lies_among_the_photos_is_replaced_as_asked(anonface, key):
    """Only what is read is protected: a sheet or report of an earlier run is not."""
    photo("album/a.png")
    args = ["anonymize", "album", "-o", "album", "--sheet", "album/s.anon.png", "--report", "album/r.json"]
    assert anonface(*args, "--key-file", key)[0] == 0
    assert anonface(*args, "--key-file", key)[0] == 10
    before = state("album")
    assert anonface(*args, "--key-file", key, "--overwrite")[0] == 0
    changed = {name for name, data in state("album").items() if before[name] != data}
    assert changed == {"album/a.anon.png", "album/s.anon.png", "album/r.json"}


def test_an_original_under_its_own_suffix_spares_what_is_read(anonface, key):
    Path("k.recovered.gif").write_bytes(key.read_bytes())
    Path("k.recovered.gif").chmod(0o600)
    Image.new("RGB", (40, 32), (9, 9, 9)).save("k.gif")
    assert anonface("anonymize", "k.gif", "--key-file", key)[0] == 0
    code, _, err = anonface("recover", "k.anon.png", "--key-file", "k.recovered.gif", "--overwrite")
    assert code == 10 and "by this command" in err
    assert Path("k.recovered.gif").read_bytes() == key.read_bytes()
    photo("d.png")
    anonface("keygen", "other.key")
    Path("d.decoy.png").write_bytes(Path("other.key").read_bytes())
    Path("d.decoy.png").chmod(0o600)
    assert anonface("anonymize", "d.png", "--key-file", key)[0] == 0
    code, _, _ = anonface("recover", "d.anon.png", "--key-file", "d.decoy.png", "--decoy", "--overwrite")
    assert code == 10 and Path("d.decoy.png").read_bytes() == Path("other.key").read_bytes()


def test_the_library_spares_them_too(scene):
    key, engine = Key.from_file("k.bin"), fake()
    for wrong in (
        lambda: anonymize("a.png", key, "o.png", sidecar="here/o.png", engine=engine, overwrite=True),
        lambda: anonymize("a.png", key, "o.png", sidecar="hard.png", engine=engine, overwrite=True),
        lambda: recover("b.anon.png", key, "b.anf", sidecar="b.anf", engine=engine, overwrite=True),
        lambda: recover("b.anon.png", key, "here/b.anon.png", engine=engine, overwrite=True),
    ):
        with pytest.raises(AnonfaceError):
            wrong()
    assert state() == scene


def test_an_output_that_is_another_photo(scene):
    with pytest.raises(OutputError, match=r"is the input 'hard\.png', which is read here"):
        plan(["b.png", "hard.png"], "anonymize", name="a{ext}")
    with pytest.raises(OutputError, match=r"is the input 'b\.anon\.png'"):
        plan(["b.png", "b.anon.png"], "anonymize")


def test_identities(tmp_path):
    file = Path("a file")
    assert identity(file) == (*identity("."), "a file")
    assert identity("new/deep/x") == (*identity("."), "new", "deep", "x") == identity("./new/../new/deep/x")
    protected = Protected([file, Path("k.bin")])
    assert file in protected and Path("k.bin") in protected and Path("b file") not in protected
    file.touch()
    Path("link").symlink_to(file)
    assert identity("link") == identity(file) != identity(".") and file in protected and Path("link") in protected
    assert identity("x" * 300) == (*identity("."), "x" * 300)
    refuse_conflicts([Input(file)], [Output(file, "what replaces it", file), Output(Path("new/x"), "another")])
    with pytest.raises(UsageError, match="is also the folder of 'new/x'"):
        refuse_conflicts([], [Output(Path("new/x"), "one"), Output(Path("new"), "another")])
