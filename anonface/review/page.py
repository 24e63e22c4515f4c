"""The review page: one HTML file with every face before and after, its pictures inlined, without scripts."""

from __future__ import annotations

import base64
import io
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import IO, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from anonface.errors import OutputError, reason, remedy
from anonface.images import write_together
from anonface.review.checks import FINDINGS, SMALL, Checked, Finding

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

SECTIONS: dict[Finding, str] = {
    "not found again": "Not found again",
    "still matched": "Still matched to the original",
    "still seen": "Covered, and still seen as a face",
    "covered": "Covered by a mosaic",
    "small": "Small",
    "no finding": "The others",
}
MEANINGS: dict[Finding, str] = {
    "not found again": "The detector finds no face in the result where it should be. Such faces are often distorted.",
    "still matched": "A face recognizer takes original and result for one person.",
    "still seen": "The detector still finds a face in the mosaic.",
    "covered": "These faces could not be replaced.",
    "small": f"Replaced faces of less than {SMALL} px.",
    "no finding": "Replaced faces about which the checks found nothing, the most similar ones first.",
}
PHOTOS: dict[Group, tuple[str, str]] = {
    "left in the clear": ("Photos with faces left in the clear", "The boxes show these faces."),
    "no face": ("Photos in which no face was found", "Look for faces that the detector missed."),
    "no result": ("Photos without a result", "The originals, where they can be read."),
    "other": ("All other photos", "The results as a whole. Look for faces that the detector missed."),
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
figure div { display: flex; flex-wrap: wrap; gap: 4px; }
img { display: block; max-width: 100%; height: auto; border-radius: 3px; }
figcaption { font-size: 13px; margin-top: .3rem; overflow-wrap: anywhere; }
em { font-style: normal; color: var(--mark); }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
WARNING = (
    "This page shows the original faces. Keep it as safe as the original photos, and delete it when you are done. "
    "Nothing in it leads to a network."
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
    """A page in the making. Photos are added in any order; what is most likely wrong comes first in the file.

    What was added lies in a temporary file, so memory holds one photo at a time.
    """

    def __init__(self, spool: IO[bytes]) -> None:
        self.totals = Totals()
        self._spool = spool
        self._faces: list[tuple[tuple[int, float], int, int]] = []  # rank, offset, length
        self._photos: dict[Group, list[tuple[int, int]]] = {group: [] for group in GROUPS}

    def add(self, photo: Reviewed) -> None:
        """Add a photo and its faces."""
        for checked in photo.faces:
            self.totals.kinds[checked.face.kind] += 1
            if checked.findings[0] == "left":
                continue
            self.totals.findings[checked.findings[0]] += 1
            self._faces.append((checked.rank, *self._kept(_face(photo, checked))))
        self.totals.groups[photo.group] += 1
        self._photos[photo.group].append(self._kept(_whole(photo)))

    def write(self, file: Path, title: str, remarks: Sequence[str], overwrite: bool) -> None:
        """Write the page, whole or not at all.

        Args:
            title: its heading.
            remarks: one sentence each, such as which checks were left out.

        Raises:
            OutputError: it exists, or cannot be written.
        """
        pieces: list[bytes | tuple[int, int]] = [self._head(title, remarks).encode()]
        faces = sorted(self._faces)
        for number, finding in enumerate(FINDINGS):
            if spans := [(at, length) for rank, at, length in faces if rank[0] == number]:
                heading = _heading(f"f{number}", SECTIONS[finding], len(spans), MEANINGS[finding])
                pieces += [heading.encode(), *spans, b"</div>\n"]
        for number, group in enumerate(GROUPS):
            if spans := self._photos[group]:
                heading = _heading(f"p{number}", PHOTOS[group][0], len(spans), PHOTOS[group][1])
                pieces += [heading.encode(), *spans, b"</div>\n"]
        pieces.append(b"</main>\n</body>\n</html>\n")
        write_together([(file, _Pieces(self._spool, pieces))], overwrite)

    def _kept(self, text: str) -> tuple[int, int]:
        """Put a part of the page into the temporary file; its place there."""
        at, data = self._spool.seek(0, io.SEEK_END), text.encode()
        try:
            self._spool.write(data)
        except OSError as error:
            raise OutputError(f"the page cannot be written: {reason(error)}", remedy(error)) from None
        return at, len(data)

    def _head(self, title: str, remarks: Sequence[str]) -> str:
        totals = self.totals
        counts = [("photos", totals.groups.total()), ("faces", totals.kinds.total())]
        counts += [(f"faces {word}", totals.kinds[kind]) for kind, word in KINDS.items()]
        rows = "".join(f"<tr><td>{what}</td><td>{number}</td></tr>\n" for what, number in counts)
        links = [(f"f{n}", SECTIONS[f], totals.findings[f]) for n, f in enumerate(FINDINGS) if totals.findings[f]]
        links += [(f"p{n}", PHOTOS[g][0], totals.groups[g]) for n, g in enumerate(GROUPS) if totals.groups[g]]
        nav = "".join(f'<li><a href="#{anchor}">{text}</a>: {number}</li>\n' for anchor, text, number in links)
        said = "".join(f"<p>{escape(remark)}</p>\n" for remark in remarks)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
            f'<h1>{escape(title)}</h1>\n<p class="warning">{WARNING}</p>\n<table>\n{rows}</table>\n{said}'
            "<p>Left: the original. Right: the result. Faces most likely wrong come first. "
            f"Tab goes from face to face.</p>\n<nav>\n<ul>\n{nav}</ul>\n</nav>\n"
        )


@contextmanager
def new_page(folder: Path) -> Iterator[Page]:
    """A page in the making, whose temporary file lies in that folder.

    Raises:
        OutputError: the folder takes no file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        spool = tempfile.TemporaryFile(dir=folder, prefix=".anonface-", suffix=".tmp")  # noqa: SIM115
    except OSError as error:
        raise OutputError(f"the folder {folder} takes no file: {reason(error)}", remedy(error)) from None
    with spool:
        yield Page(spool)


class _Pieces(Sequence[bytes]):
    """The parts of a file; those in a temporary file are read when they are needed."""

    def __init__(self, spool: IO[bytes], parts: Sequence[bytes | tuple[int, int]]) -> None:
        self._spool, self._parts = spool, parts

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[bytes]: ...

    def __getitem__(self, number: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(number, slice):
            return _Pieces(self._spool, self._parts[number])
        part = self._parts[number]
        if isinstance(part, bytes):
            return part
        self._spool.seek(part[0])
        return self._spool.read(part[1])


def _heading(anchor: str, text: str, number: int, meaning: str) -> str:
    return f'<h2 id="{anchor}">{text} ({number})</h2>\n<p>{meaning}</p>\n<div class="cards">\n'


def _face(photo: Reviewed, checked: Checked) -> str:
    """A face before and after, with what is known of it."""
    assert photo.before is not None and photo.after is not None
    face = checked.face
    side = (
        SIDE if len(photo.faces) <= FULL_SIZE else max(LEAST_SIDE, round(SIDE * (FULL_SIZE / len(photo.faces)) ** 0.5))
    )
    pictures = [
        _picture(_around(pixels, face.box), side, QUALITY, f"face {face.index} of {photo.name}, {when}")
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


def _around(pixels: Pixels, box: tuple[float, float, float, float]) -> Pixels:
    """The square around a face, cropped at the photo's border; at least one pixel."""
    x, y, w, h = box
    half = ROUND_A_FACE * max(w, h) / 2
    height, width = pixels.shape[:2]
    left, top = (int(np.clip(v, 0, end - 1)) for v, end in ((x + w / 2 - half, width), (y + h / 2 - half, height)))
    right, bottom = round(x + w / 2 + half), round(y + h / 2 + half)
    return pixels[top : max(bottom, top + 1), left : max(right, left + 1)]


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
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    size = f'width="{picture.width}" height="{picture.height}"'
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(alt)}" {size} loading="lazy">'
