"""The photos of a review and their results."""

import json
from pathlib import Path

import pytest

from anonface.errors import ImageError, UsageError
from anonface.review.pairs import pairs_by_name, pairs_by_report


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"")


def paired(*paths, recursive=False):
    pairs, unused = pairs_by_name(paths, recursive)
    return {str(pair.source): pair.result and str(pair.result) for pair in pairs}, list(map(str, unused))


def test_results_next_to_their_photos():
    made("album/a.jpg", "album/a.anon.png", "album/b.jpg", "album/c.anon.png", "album/a.recovered.jpg", "album/x.txt")
    assert paired("album") == ({"album/a.jpg": "album/a.anon.png", "album/b.jpg": None}, ["album/c.anon.png"])


def test_results_in_a_folder_that_repeats_the_tree():
    made("album/a.jpg", "album/2024/a.jpg", "out/a.anon.png", "out/2024/a.anon.jpg")
    expected = {"album/a.jpg": "out/a.anon.png", "album/2024/a.jpg": "out/2024/a.anon.jpg"}
    assert paired("album", "out", recursive=True) == (expected, [])
    assert paired("album/**/*.jpg", "out", recursive=True) == (expected, [])
    made("album/out/a.anon.png", "album/out/2024/a.anon.png")
    inside = {file: f"album/out/{Path(file).relative_to('album').with_suffix('.anon.png')}" for file in expected}
    assert paired("album", "album/out", recursive=True)[0] == inside


def test_several_folders_share_their_top():
    made("photos/one/a.jpg", "photos/two/a.jpg", "out/one/a.anon.png", "out/two/a.anon.png")
    assert paired("photos/one", "photos/two", "out", recursive=True)[0] == {
        "photos/one/a.jpg": "out/one/a.anon.png",
        "photos/two/a.jpg": "out/two/a.anon.png",
    }


def test_names_that_keep_the_suffix_tell_photos_apart():
    made("a.jpg", "a.png", "a.jpg.anon.png", "a.png.anon.png")
    assert paired("a.jpg", "a.png", ".")[0] == {"a.jpg": "a.jpg.anon.png", "a.png": "a.png.anon.png"}


def test_results_that_keep_the_format_tell_photos_apart():
    made("a.jpg", "a.png", "a.anon.jpg", "a.anon.png")
    assert paired(".") == ({"a.jpg": "a.anon.jpg", "a.png": "a.anon.png"}, [])


@pytest.mark.parametrize(
    ("files", "paths", "said"),
    [
        (["album/a.jpg", "out/b.anon.png"], ["album", "out"], "no result goes with one of the photos"),
        (["album/a.jpg", "out/a.png"], ["album", "out"], "none is named *.anon.*"),
        (["out/b.anon.png"], ["out"], "no photo to review, only results"),
        (["album/x.txt"], ["album"], "no photo to review"),
    ],
)
def test_what_does_not_go_together(files, paths, said):
    made(*files)
    with pytest.raises(UsageError, match=said.replace("*", r"\*")):
        pairs_by_name(paths, False)
    with pytest.raises(ImageError, match="no such file"):
        pairs_by_name([*paths, "nothere"], False)


FACE = {"index": 1, "kind": "synth", "reason": "", "box": [1, 2, 3, 4]}
DONE = {"input": "a.jpg", "output": "a.anon.png", "state": "done", "faces": [FACE], "warnings": [], "error": None}
FAILED = {
    **DONE,
    **{"input": "b.jpg", "output": None, "state": "failed", "faces": []},
    "error": {"code": 5, "message": "no face was found", "hint": ""},
}


def report(*photos):
    Path("r.json").write_text(json.dumps({"exit": 0, "photos": photos}))
    return Path("r.json")


def test_a_report_names_results_and_faces():
    made("a.jpg")
    done, failed = pairs_by_report(report(DONE, FAILED))
    assert (done.source, done.result) == (Path("a.jpg"), Path("a.anon.png"))
    (face,) = done.faces
    assert (face.index, face.kind, face.box) == (1, "synth", (1, 2, 3, 4))
    assert (failed.result, failed.note, failed.faceless) == (None, "failed: no face was found", True)


def test_what_is_no_report():
    made("a.jpg")
    bad = [{**DONE, "faces": [{**FACE, "kind": "<b>"}]}, {**DONE, "faces": [{"index": 0}]}, {"input": "a.jpg"}, 7]
    for photo in bad:
        with pytest.raises(UsageError, match="no report of a run"):
            pairs_by_report(report(photo))
    with pytest.raises(UsageError, match="report of `recover`"):
        pairs_by_report(report({**DONE, "verified": "yes"}))
    with pytest.raises(UsageError, match="names no result"):
        pairs_by_report(report(FAILED))
    with pytest.raises(UsageError, match="is not there"):
        pairs_by_report(report({**DONE, "input": "gone.jpg"}))
    for text in ("", "[]", '{"photos": []}'):
        Path("r.json").write_text(text)
        with pytest.raises(UsageError, match="no report of a run"):
            pairs_by_report(Path("r.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        pairs_by_report(Path("gone.json"))
