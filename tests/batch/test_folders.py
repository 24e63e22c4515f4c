"""Folders with links in them, patterns, and names that are too long."""

import json
import os
import time
from pathlib import Path

import pytest
from PIL import Image

from anonface.batch import folders
from anonface.batch.plan import find, plan
from anonface.errors import UsageError

pytestmark = pytest.mark.usefixtures("room")


def put(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 32), (120, 60, 40)).save(name)


def found(*paths, recursive=False):
    return [str(file) for _, file in find(paths, "anonymize", recursive)]


@pytest.fixture
def loops():
    """Links to the folder itself, to what is above it, to one beside another, and to one outside."""
    put("top/album/a.png", "top/album/deep/b.png", "outside/c.png", "outside/.hidden/d.png", "top/other.png")
    Path("top/album/again").symlink_to("deep")
    Path("top/album/deep/loop").symlink_to("..")
    Path("top/album/deep/up").symlink_to("../..")
    Path("top/album/out").symlink_to("../../outside")
    Path("top/album/out2").symlink_to("../../outside")
    Path("outside/back").symlink_to("../top/album")
    Path("top/album/nowhere").symlink_to("missing")
    return ["top/album/again", "top/album/deep/loop", "top/album/deep/up", "top/album/out/back", "top/album/out2"]


REACHED = ["top/album/a.png", "top/album/deep/b.png", "top/album/out/c.png"]


def test_each_real_folder_is_searched_once(loops):
    assert sorted(found("top/album", recursive=True)) == REACHED
    assert found("top/album") == REACHED[:1]
    search = folders.search("top/album", recursive=True)
    assert sorted(map(str, search.again)) == loops and not search.unreadable
    assert len(search.folders) == 3


@pytest.mark.parametrize(
    ("pattern", "reached"),
    [
        ("top/album/**/*.png", REACHED),
        ("top/**/*.png", [*REACHED, "top/other.png"]),
        ("**/deep/*.png", REACHED[1:2]),
        ("**/deep/**", REACHED[1:2]),
        ("top/**/**/d*/*.png", REACHED[1:2]),
        ("top/*/a.png", REACHED[:1]),
        ("t?p/**/[ac].png", [REACHED[0], REACHED[2]]),
    ],
)
def test_patterns_end_where_links_lead_in_circles(loops, pattern, reached):
    started = time.process_time()
    assert sorted(found(pattern)) == reached
    assert time.process_time() - started < 1


def test_what_was_skipped_is_said(loops, anonface, monkeypatch):
    anonface("keygen", "k.bin")
    code, out, err = anonface("anonymize", "top/album", "-r", "-o", "out", "--key-file", "k.bin", "--json")
    assert code == 0 and len(json.loads(out)["photos"]) == 3
    assert sorted(str(file.relative_to("out")) for file in Path("out").rglob("*.png")) == [
        *("a.anon.png", "deep/b.anon.png", "out/c.anon.png")
    ]
    assert "note: 5 folders skipped, already searched under another name: top/album/again, " in err and ", ...\n" in err
    real = os.scandir

    def locked(folder):
        if str(folder).endswith("deep"):
            raise PermissionError(13, "Permission denied", folder)
        return real(folder)

    monkeypatch.setattr(os, "scandir", locked)
    code, _, err = anonface("anonymize", "top/album", "-r", "-o", "new", "--key-file", "k.bin")
    assert code == 0 and "warning: 1 folder skipped, not readable: top/album/deep\n" in err


def test_an_empty_folder_and_a_pattern_below_brackets():
    Path("empty").mkdir()
    with pytest.raises(UsageError) as refused:
        found("empty")
    assert refused.value.message == "'empty' holds no photo to anonymize" and refused.value.hint == ""
    put("al [2024]/a.png", "al [2024]/b*/c.png", "d.png")
    for pattern, literal in (
        ("al [2024]/*.png", "al [[]2024]/*.png"),
        ("al [2024]/b*/*.png", "al [[]2024]/b[*]/*.png"),
        ("./al [2024]/**", "al [[]2024]/**"),
    ):
        with pytest.raises(UsageError) as refused:
            found(pattern)
        assert refused.value.hint.endswith(f": {literal!r}") and found(literal)
    with pytest.raises(UsageError) as refused:
        found("*.bmp")
    assert refused.value.hint == ""
    assert found("al [2024]", "al [2024]/b*/c.png") == ["al [2024]/a.png", "al [2024]/b*/c.png"]


@pytest.mark.parametrize("options", [[], ["--overwrite"], ["--skip-existing"], ["--sidecar", "records/"]])
def test_a_name_that_is_too_long_stops_no_other(anonface, options):
    anonface("keygen", "k.bin")
    long = "é" * 123 + "x"  # 247 bytes, and 251 with its suffix
    put(f"album/{long}.png", "album/a.png")
    args = ["anonymize", "album", "-o", "out", "--key-file", "k.bin", *options]
    code, _, err = anonface(*args)
    assert code == 3 and "File name too long" in err and "Traceback" not in err and "bug" not in err
    assert [file.name for file in Path("out").glob("*.png")] == ["a.anon.png"]
    code, out, _ = anonface("anonymize", f"album/{long}.png", "-o", "new/", "--key-file", "k.bin", "--json")
    assert code == 10 and json.loads(out)["error"]["hint"] == "choose a shorter name" and not Path("new").exists()
    code, _, err = anonface(*args, "--resume")
    assert code == 3 and "bug" not in err


def test_recovering_to_a_name_that_is_too_long_stops_no_other(anonface):
    anonface("keygen", "k.bin")
    put("a.png")
    assert anonface("anonymize", "a.png", "--key-file", "k.bin", "-o", "out/a.anon.png")[0] == 0
    long = "x" * 246 + ".anon.png"
    Path("out", long).write_bytes(Path("out/a.anon.png").read_bytes())
    code, out, _ = anonface("recover", "out", "-o", "back", "--key-file", "k.bin", "--json")
    assert code == 3
    assert [(p["state"], (p["error"] or {}).get("code")) for p in json.loads(out)["photos"]] == [
        ("failed", 10),
        ("done", None),
    ]
    assert Path("back/a.recovered.png").read_bytes() == Path("a.png").read_bytes()


@pytest.mark.parametrize("args", [["anonymize", "x" * 300], ["evaluate", "x" * 300], ["audit", "x" * 300]])
def test_a_path_that_is_too_long_is_not_there(anonface, args):
    code, _, err = anonface(*args, *["--key-file", "k.bin"] * (args[0] == "anonymize"))
    assert code in (2, 4, 6) and "bug" not in err


def test_links_do_not_multiply_a_plan(loops):
    jobs = plan(["top/album", "top/**/*.png", "outside"], "anonymize", output="out", recursive=True)
    assert len(jobs) == 4


def test_a_link_to_nothing_is_found_and_fails_by_name():
    put("a.png")
    Path("gone.png").symlink_to("missing.png")
    assert found("*.png") == found(".") == ["a.png", "gone.png"]
