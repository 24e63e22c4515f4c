import base64
import io
import math
from html.parser import HTMLParser

import browser
import numpy as np
import pytest
from PIL import Image

from anonface.evaluation import page as pages
from anonface.evaluation.metrics import Interval
from anonface.evaluation.page import COLUMNS, PICTURED, SIDE
from anonface.evaluation.report import Figure, Rate, Report, Threshold, grids

VOID = {"meta", "img"}


class Reader(HTMLParser):
    """Checks that what is opened is closed, and collects what the page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def report() -> Report:
    rng = np.random.default_rng(0)
    distances = [("a<b>.jpg", key, float(value)) for key, value in enumerate(rng.normal(0.8, 0.1, 40))]
    return Report(
        settings={"folder": 'album <script>"&', "weights": "0123abcd", "date": "2026-01-01", "recognizer": "dlib"},
        thresholds=(Threshold("dlib's own", Interval(0.6, 0.6, 0.6, 0)),),
        rates=[Rate("anonymized: matched", "lower", 2, (Interval(0.05, 0.01, 0.1, 40),))],
        figures=[Figure("face found", "higher", "share", Interval(0.98, 0.95, 1.0, 40))],
        samples={
            "anonymized": [*distances, ("b.jpg", 0, math.nan)],
            "two keys": [("b.jpg", 0, 3.0)],
            "right key, from pixels": [("b.jpg", 0, math.nan)],
            "recover": [("b.jpg", 0, 7.0)],
        },
    )


def pictures(count: int):
    rng = np.random.default_rng(1)
    return {
        f"{n}<&>.jpg": {column: rng.integers(0, 256, (90, 200, 3), dtype=np.uint8) for column in COLUMNS}
        for n in range(count)
    }


def page(report, pictures):
    return pages.page(f"Faces: {report.settings['folder']}", grids(report), pictures)


def test_a_picture_that_is_missing_is_black():
    white = np.full((9, 9, 3), 255, np.uint8)
    read = Reader(pages.page("", (), {"a": {"one": white, "two": white}, "b": {"two": white}}))
    sizes = [(image["alt"], image["width"]) for image in read.all("img")]
    assert sizes == [("a, one", "9"), ("a, two", "9"), ("b, one", "1"), ("b, two", "9")]


def test_the_page_refers_to_nothing_outside_itself(report):
    text = page(report, pictures(2))
    read = Reader(text)
    images = read.all("img")
    assert len(images) == 2 * len(COLUMNS)
    for image in images:
        head, _, data = image["src"].partition(",")
        assert head == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as picture:
            assert picture.size == (SIDE, 72)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in read.tags}
    named = {name for _, attributes in read.tags for name in attributes}
    assert not named & {"href", "srcset", "action", "xlink:href", "style", "onload"}
    assert "://" not in text and "url(" not in text and "@import" not in text


def test_what_the_tables_say_is_there_and_names_do_no_harm(report):
    read = Reader(page(report, pictures(1)))
    said = "".join(read.text)
    for words in ("5.0 % (1.0 to 10.0)", "0123abcd", "2026-01-01", "dlib", 'album <script>"&', "0<&>.jpg"):
        assert words in said


def test_only_so_many_photos_are_shown(report):
    assert len(Reader(page(report, pictures(PICTURED + 3))).all("img")) == PICTURED * len(COLUMNS)
    assert "None: nothing was measured" in page(report, {})


@pytest.mark.skipif(browser.FOUND is None, reason="no Chromium here to open the page in: apt-get install chromium")
def test_a_browser_shows_the_page_without_a_network(report, tmp_path):
    seen = browser.look(page(report, pictures(2)), tmp_path)
    assert seen.console == [] and seen.asked == []
    assert seen.widths == [SIDE] * 2 * len(COLUMNS) and all(seen.shown)
    for words in ("5.0 % (1.0 to 10.0)", 'album <script>"&', "0<&>.jpg"):
        assert words in seen.text
