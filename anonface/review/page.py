"""The review page: one HTML file with every face before and after, its pictures inlined, without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from anonface.images import write_atomic
from anonface.images.pictures import around, document, inline
from anonface.review.checks import SMALL, Checked, Finding

Pixels = NDArray[np.uint8]
Group = Literal["left in the clear", "no face", "no result", "other"]
GROUPS: tuple[Group, ...] = get_args(Group)
"""Whole photos, in the order in which a person looks."""

KINDS = {"synth": "replaced", "mosaic": "covered by a mosaic", "kept": "left in the clear"}
ROUND_A_FACE = 1.7  # sides of a face's box: what a picture of it shows
SIDE, LEAST_SIDE, QUALITY = 176, 88, 72  # px and JPEG quality of a face's picture
FULL_SIZE = 3  # faces of a photo; with more, their pictures are smaller, so that a page stays small
WHOLE, WHOLE_QUALITY = 288, 65  # the same of a whole photo
BOX = (255, 150, 0)

SECTIONS: dict[Finding, tuple[str, str]] = {
    "not found again": (
        "Not found again",
        "The detector finds no face in the result where it should be. Such faces are often distorted.",
    ),
    "still matched": (
        "Still matched to the original",
        "A face recognizer takes original and result for one person.",
    ),
    "still seen": ("Covered, and still seen as a face", "The detector still finds a face in the mosaic."),
    "covered": ("Covered by a mosaic", "These faces could not be replaced."),
    "low realism": (
        "Low realism",
        "The detector is less certain of the result than of the original. Such faces are often broken.",
    ),
    "small": ("Small", f"Replaced faces of less than {SMALL} px."),
    "no finding": (
        "The others",
        "Replaced faces about which the checks found nothing, the most similar ones first.",
    ),
}
PHOTOS: dict[Group, tuple[str, str]] = {
    "left in the clear": ("Photos with faces left in the clear", "The boxes show these faces."),
    "no face": ("Photos in which no face was found", "Look for faces that the detector missed."),
    "no result": ("Photos without a result", "The originals, where they can be read."),
    "other": ("All other photos", "The results as a whole. Look for faces that the detector missed."),
}
IN_SUMMARY: dict[Group, str] = {
    "no result": "photos without a result",
    "no face": "photos without a face",
    "left in the clear": "photos with faces left in the clear",
}

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #fff; --card: #f1f1f4; --line: #c9c9d0; --mark: #a3330c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --paper: #151517; --card: #232327; --line: #45454d; --mark: #ff9b70; }
}
body { font: 15px/1.4 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 100rem; padding: 1rem; }
a { color: inherit; }
.warning { border-left: 4px solid var(--mark); padding: .3rem .8rem; background: var(--card); }
table { border-collapse: collapse; }
td { padding: .1rem .8rem .1rem 0; }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; }
nav li { margin: .15rem 0; }
h2 { margin: 2rem 0 .2rem; }
.cards { display: flex; flex-wrap: wrap; gap: .7rem; align-items: flex-start; }
figure { margin: 0; padding: .5rem; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  max-width: 23.5rem; box-sizing: border-box; }
figure:focus { outline: 3px solid var(--mark); }
figure div { display: flex; gap: 4px; align-items: flex-start; }
img { display: block; min-width: 0; max-width: 100%; height: auto; border-radius: 3px; }
figcaption { font-size: 13px; margin-top: .3rem; overflow-wrap: anywhere; }
em { font-style: normal; color: var(--mark); }
"""
WARNING = (
    "This page shows the original faces. Keep it as safe as the original photos, and delete it when you are done. "
    "It loads nothing from a network."
)


@dataclass(frozen=True)
class Reviewed:
    """One photo of a page.

    Args:
        name: of the original, as it is shown.
        before, after: original and result, uint8 [H, W, 3] of one size; None where there is none.
        faces: those that were checked.
        note: why there is no result.
        faceless: no face was found in it, so that it may have no result.
    """

    name: str
    before: Pixels | None
    after: Pixels | None
    faces: Sequence[Checked] = ()
    note: str = ""
    faceless: bool = False

    @property
    def group(self) -> Group:
        """Where the page shows it."""
        if self.faceless or (self.after is not None and not self.faces):
            return "no face"
        if self.after is None:
            return "no result"
        return "left in the clear" if any(checked.face.kind == "kept" for checked in self.faces) else "other"


@dataclass(frozen=True)
class Totals:
    """How many there are of each: kinds of faces, gravest findings, groups of photos."""

    kinds: Counter[str] = field(default_factory=Counter)
    findings: Counter[Finding] = field(default_factory=Counter)
    groups: Counter[Group] = field(default_factory=Counter)


class Page:
    """A page in the making. Photos are added in any order; what is most likely wrong comes first in the file."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._faces: list[tuple[tuple[int, float], str]] = []  # rank, HTML
        self._photos: dict[Group, list[str]] = {group: [] for group in GROUPS}

    def add(self, photo: Reviewed) -> None:
        """Add a photo and its faces."""
        for checked in photo.faces:
            self.totals.kinds[checked.face.kind] += 1
            if checked.findings[0] == "left":
                continue
            self.totals.findings[checked.findings[0]] += 1
            self._faces.append((checked.rank, _face(photo, checked)))
        self.totals.groups[photo.group] += 1
        self._photos[photo.group].append(_whole(photo))

    def write(self, file: Path, title: str, remark: str, overwrite: bool) -> None:
        """Write the page, whole or not at all.

        Args:
            title: its heading.
            remark: a sentence, such as which checks were left out.

        Raises:
            OutputError: it exists, or cannot be written.
        """
        faces = sorted(self._faces, key=lambda face: face[0])
        sections = [
            (f"f{number}", *section, [html for rank, html in faces if rank[0] == number])
            for number, section in enumerate(SECTIONS.values())
        ]
        sections += [(f"p{n}", *PHOTOS[group], self._photos[group]) for n, group in enumerate(GROUPS)]
        sections = [section for section in sections if section[3]]
        totals = self.totals
        counts = [("photos", totals.groups.total())]
        counts += [(what, totals.groups[group]) for group, what in IN_SUMMARY.items() if totals.groups[group]]
        counts += [("faces", totals.kinds.total())]
        counts += [(f"faces {word}", totals.kinds[kind]) for kind, word in KINDS.items()]
        rows = "".join(f"<tr><td>{what}</td><td>{number}</td></tr>\n" for what, number in counts)
        links = "".join(f'<li><a href="#{a}">{text}</a>: {len(cards)}</li>\n' for a, text, _, cards in sections)
        body = (
            f'<p class="warning">{WARNING}</p>\n<table>\n{rows}</table>\n<p>{escape(remark)}</p>\n'
            "<p>Left: the original. Right: the result. Faces most likely wrong come first. "
            f"Tab goes from face to face.</p>\n<nav>\n<ul>\n{links}</ul>\n</nav>\n"
        )
        for anchor, text, meaning, cards in sections:
            body += f'<h2 id="{anchor}">{text} ({len(cards)})</h2>\n<p>{meaning}</p>\n<div class="cards">\n'
            body += "".join(cards) + "</div>\n"
        write_atomic(file, document(title, STYLE, body).encode(), overwrite)


def _face(photo: Reviewed, checked: Checked) -> str:
    """A face before and after, with what is known of it."""
    assert photo.before is not None and photo.after is not None
    face = checked.face
    side = (
        SIDE if len(photo.faces) <= FULL_SIZE else max(LEAST_SIDE, round(SIDE * (FULL_SIZE / len(photo.faces)) ** 0.5))
    )
    pictures = [
        _picture(around(pixels, face.box, ROUND_A_FACE), side, QUALITY, f"face {face.index} of {photo.name}, {when}")
        for pixels, when in ((photo.before, "before"), (photo.after, "after"))
    ]
    words = [f"face {face.index}, {round(face.box[2])} x {round(face.box[3])} px", KINDS[face.kind]]
    words += [face.reason] * bool(face.reason)
    found = [finding for finding in checked.findings if finding != "no finding" and finding != "covered"]
    said = f"<br><em>{', '.join(found)}</em>" if found else ""
    if checked.distance is not None:
        said += f"<br>distance {checked.distance:.2f}"
    return _card(pictures, f"<b>{escape(photo.name)}</b><br>{escape('; '.join(words))}{said}")


def _whole(photo: Reviewed) -> str:
    """A whole photo, small: the result with boxes around faces left in the clear, or else the original."""
    shown = photo.after if photo.after is not None else photo.before
    left = [checked.face for checked in photo.faces if checked.face.kind == "kept"]
    pictures = []
    if shown is not None:
        what = "result" if photo.after is not None else "original"
        alt = f"{photo.name}, the {what}"
        pictures = [_picture(shown, WHOLE, WHOLE_QUALITY, alt, [(face.index, face.box) for face in left])]
    words = [f"face {face.index}: {face.reason or 'left in the clear'}" for face in left]
    words += [photo.note] * bool(photo.note)
    return _card(pictures, "<br>".join([f"<b>{escape(photo.name)}</b>", *map(escape, words)]))


def _card(pictures: Sequence[str], caption: str) -> str:
    return f'<figure tabindex="0"><div>{"".join(pictures)}</div><figcaption>{caption}</figcaption></figure>\n'


def _picture(
    pixels: Pixels,
    side: int,
    quality: int,
    alt: str,
    boxes: Sequence[tuple[int, tuple[float, float, float, float]]] = (),
) -> str:
    """A picture scaled down into a square, as HTML; ``boxes`` are drawn with their numbers."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    scale = picture.width / pixels.shape[1]
    draw = ImageDraw.Draw(picture)
    for number, (x, y, w, h) in boxes:
        draw.rectangle([x * scale, y * scale, (x + w) * scale, (y + h) * scale], outline=BOX, width=2)
        place = (max(x * scale, 0) + 3, max(y * scale, 0) + 1)
        draw.text(place, str(number), BOX, ImageFont.load_default(14), stroke_width=2, stroke_fill=(0, 0, 0))
    return inline(picture, quality, alt)
