"""The review page: whole, small, harmless, and in the right order."""

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anonface.errors import OutputError
from anonface.record.anf1 import FaceReport
from anonface.review.checks import Checked
from anonface.review.page import FULL_SIZE, SIDE, WHOLE, Page, Reviewed

FIRST = ("lost.jpg face 3", "matched.jpg face 0", "less.jpg face 0")
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Checks that what is opened is closed, and collects tags and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def pixels(seed=0, size=(300, 400)):
    """Noise as smooth as a photo."""
    small = np.random.default_rng(seed).integers(0, 256, (size[0] // 10, size[1] // 10, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def face(*findings, kind="synth", index=0, box=(100, 100, 80, 100), distance=None, reason=""):
    return Checked(FaceReport(index, kind, box, reason), findings, distance)


def written(*photos, remark="", file=Path("page.html")):
    page = Page()
    for photo in photos:
        page.add(photo)
    page.write(file, f"Review of {len(photos)} photos", remark, overwrite=True)
    return file.read_text("utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def photo(name, *faces, **options):
    return Reviewed(name, pixels(), pixels(1), faces, **options)


def test_the_most_dangerous_faces_come_first_and_all_are_counted():
    text = written(
        photo("fine.jpg", face("no finding", distance=1.3)),
        photo("covered.jpg", face("covered", kind="mosaic", reason="too small: 9 px")),
        photo("less.jpg", face("still matched", distance=0.9)),
        photo("matched.jpg", face("still matched", distance=0.7), face("left", kind="kept", index=1)),
        photo("lost.jpg", face("not found again", "small", index=3)),
        photo("empty.jpg"),
        Reviewed("broken.jpg", None, None, (), "failed: not a photo"),
        Reviewed("black.jpg", pixels(), None, (), "failed: no face was found", faceless=True),
        remark="Left out: the <comparison>.",
    )
    read = Reader(text)
    said = " ".join(read.text)
    places = [said.rindex(word) for word in (*FIRST, "covered.jpg face 0")]
    assert places == sorted(places) and places[-1] < said.index("fine.jpg face 0")
    rows = re.findall(r"<tr><td>(.*?)</td><td>(\d+)</td></tr>", text)
    assert rows == [
        ("photos", "8"),
        ("photos without a result", "1"),
        ("photos without a face", "2"),
        ("photos with faces left in the clear", "1"),
        ("faces", "6"),
        ("faces replaced", "4"),
        ("faces covered by a mosaic", "1"),
        ("faces left in the clear", "1"),
    ]
    for words in ("too small: 9 px", "not found again, small", "distance 0.70", "Left out: the <comparison>."):
        assert words in said
    titles = [title for title in read.text if re.fullmatch(r"(Photos|All other photos) ?.* \(\d+\)", title)]
    assert titles == [
        "Photos with faces left in the clear (1)",
        "Photos in which no face was found (2)",
        "Photos without a result (1)",
        "All other photos (4)",
    ]
    assert said.index("empty.jpg") < said.index("black.jpg") < said.index("broken.jpg")
    anchors = {link["href"][1:] for link in read.all("a")}
    assert anchors == {heading["id"] for heading in read.all("h2")}
    assert "This page shows the original faces" in said


def test_the_page_needs_no_network_and_no_script():
    read = Reader(text := written(photo("a.jpg", face("no finding"))))
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in read.tags}
    assert {name for _, attributes in read.tags for name in attributes} <= {
        *("lang", "charset", "name", "content", "http-equiv", "id", "class", "href", "src", "alt", "width", "height"),
        *("loading", "tabindex"),
    }
    assert "://" not in text and "url(" not in text and "@import" not in text
    assert all(link["href"].startswith("#") for link in read.all("a"))
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    images = read.all("img")
    assert len(images) == 3 and len(read.all("figure")) == 2
    for image in images:
        head, _, data = image["src"].partition(",")
        assert head == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as picture:
            assert picture.size == (int(image["width"]), int(image["height"]))
            assert max(picture.size) <= (WHOLE if "the result" in image["alt"] else SIDE)


def test_names_and_messages_do_no_harm():
    name = '"><script>alert(1)</script>&.jpg'
    text = written(
        photo(name, face("no finding", reason="<b>"), face("left", kind="kept", index=1, reason="<i>")),
        Reviewed("b.jpg", None, None, (), "<script>"),
    )
    read = Reader(text)
    assert not {"script", "i"} & {tag for tag, _ in read.tags}
    assert f"face 0 of {name}, before" in [image["alt"] for image in read.all("img")]
    assert name in read.text


def test_the_pictures_show_the_face_before_and_after():
    before, after = np.full((300, 400, 3), 200, np.uint8), np.full((300, 400, 3), 200, np.uint8)
    before[100:200, 100:180], after[100:200, 100:180] = (255, 0, 0), (0, 0, 255)
    read = Reader(written(Reviewed("a.jpg", before, after, [face("no finding")])))
    shown = []
    for image in read.all("img")[:2]:
        with Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))) as picture:
            shown.append(np.asarray(picture)[picture.height // 2, picture.width // 2])
    assert shown[0][0] > 200 > 50 > shown[0][2] and shown[1][2] > 200 > 50 > shown[1][0]


@pytest.mark.parametrize("box", [(-30, -30, 60, 60), (380, 280, 90, 90), (0, 0, 400, 300), (10, 10, 1, 1)])
def test_faces_at_the_border_are_shown(box):
    assert len(Reader(written(photo("a.jpg", face("small", box=box)))).all("img")) == 3


def test_faces_left_in_the_clear_are_marked_in_the_whole_photo():
    blank = np.full((300, 400, 3), 60, np.uint8)
    read = Reader(written(Reviewed("a.jpg", blank, blank, [face("left", kind="kept", reason="not among --faces")])))
    (image,) = read.all("img")
    with Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))) as picture:
        marked = np.abs(np.asarray(picture).astype(int) - 60).max(2) > 60
    assert 0.005 < marked.mean() < 0.1 and "face 0: not among --faces" in "".join(read.text)


def test_an_album_makes_a_page_that_can_be_sent_about():
    """500 photos of three faces: at most about 30 MB."""
    album = [
        Reviewed(f"{n}.jpg", noisy(n), noisy(n + 1), [face("no finding", index=i) for i in range(3)]) for n in range(4)
    ]
    assert len(written(*album)) / 4 * 500 < 34e6
    crowd = Reviewed("crowd.jpg", noisy(1), noisy(2), [face("no finding", index=i) for i in range(4 * FULL_SIZE)])
    assert len(written(crowd)) < 2 * len(written(album[0]))


def noisy(seed):
    """As :func:`pixels`, with as much grain as a photo by night."""
    grain = np.random.default_rng(seed).normal(0, 6, (300, 400, 3))
    return np.clip(pixels(seed) + grain, 0, 255).astype(np.uint8)


def test_a_page_is_written_whole_or_not_at_all(folder):
    Path("page.html").write_text("mine")
    page = Page()
    page.add(photo("a.jpg", face("no finding")))
    with pytest.raises(OutputError, match="exists"):
        page.write(Path("page.html"), "Review", "", overwrite=False)
    assert [file.name for file in folder.iterdir()] == ["page.html"] and Path("page.html").read_text() == "mine"
