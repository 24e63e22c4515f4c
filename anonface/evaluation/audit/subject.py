"""What is attacked: an engine, photos of people, and a key that no attacker holds.

Everything that costs an anonymization or a recovery is made once, when the first attack asks for it.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anonface.crypto.keys import Key
from anonface.errors import NoFaceError, UsageError
from anonface.evaluation.audit.model import Code, Model
from anonface.evaluation.judges import Judges, Original, photos_of
from anonface.evaluation.metrics import likeness
from anonface.evaluation.recognizers import Look
from anonface.evaluation.trials import Engine, Result, evaluation_key, through_png

Pixels = NDArray[np.uint8]

KIN = 2  # other photos of each person under attack
MARK = "CANARY-5e0f1a"
DESCRIPTION, ARTIST, EXIF, GPS, MAKER_NOTE, GPS_AREA = 0x010E, 0x013B, 0x8769, 0x8825, 0x927C, 0x001C


@dataclass(frozen=True)
class Sizes:
    """How much is tried.

    Attributes:
        photos: under attack, of as many people as there are.
        pairs: (anonymized, original) pairs that learning attackers make for themselves.
        candidates: possible originals of each photo.
        guesses: keys that a guesser tries, and bytes that a tamperer flips.
        crowd: photos of others that originals are sought among.
    """

    photos: int = 8
    pairs: int = 64
    candidates: int = 20
    guesses: int = 120
    crowd: int = 24


@dataclass(frozen=True)
class Seen:
    """One version of a photo, as it was read back from a PNG.

    Attributes:
        pixels: uint8 [H, W, 3].
        look: what the recognizer sees at the face's place, or None.
        crop: uint8 [R, R, 3], the face found and aligned anew, or None.
        code: of that crop, see ``model.Model``.
    """

    pixels: Pixels
    look: Look | None
    crop: Pixels | None
    code: Code | None


def by_look(a: Seen | None, b: Seen | None) -> float:
    """How alike the recognizer finds two versions; NaN where one of them has no face."""
    return likeness(a.look.embedding, b.look.embedding) if a and b and a.look and b.look else np.nan


def by_code(a: Seen | None, b: Seen | None) -> float:
    """How alike the attacker's encoder finds two versions; NaN where one of them has no face."""
    return likeness(a.code, b.code) if a and b and a.code is not None and b.code is not None else np.nan


@dataclass(frozen=True)
class Gallery:
    """Photos that were looked at, every one with a face that can be aligned.

    Attributes:
        targets: whose anonymizations are attacked.
        kin: other photos of the same people.
        practice: photos of others, that learning attackers may use.
        crowd: photos of yet others.
    """

    targets: Sequence[Original]
    kin: Sequence[Original]
    practice: Sequence[Original]
    crowd: Sequence[Original]


class Subject:
    """See the module.

    Args:
        engine: what is attacked.
        model: what attackers hold.
        gallery: see :func:`choose`.
        seed: of the key under attack, and of all that attackers draw.
        files: `anonymize` and `recover` of :mod:`anonface.api`; None leaves out the attacks on files.
        work: an existing folder for such files.
    """

    def __init__(
        self,
        engine: Engine,
        model: Model,
        judges: Judges,
        gallery: Gallery,
        *,
        sizes: Sizes | None = None,
        seed: int = 1,
        files: Any = None,
        work: Path | None = None,
    ) -> None:
        self.engine, self.model, self.judges, self.gallery = engine, model, judges, gallery
        self.sizes, self.seed, self.files, self.work = sizes or Sizes(), seed, files, work
        self.key = self.drawn_key("under attack")

    @property
    def targets(self) -> Sequence[Original]:
        return self.gallery.targets

    @property
    def people(self) -> list[str]:
        """Who is on each target."""
        return [target.identity for target in self.targets]

    @property
    def threshold(self) -> float:
        """The distance below which the judge takes two faces for one person."""
        return self.judges.recognizer.threshold

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator of its own for each purpose, so that attacks can be run apart."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    def drawn_key(self, purpose: str, number: int = 0) -> Key:
        return evaluation_key(f"anonface audit {self.seed}", "", number, purpose)

    @functools.cached_property
    def originals(self) -> list[Seen]:
        """The targets themselves."""
        return [self.as_seen(target) for target in self.targets]

    @functools.cached_property
    def hidden(self) -> list[Seen | None]:
        """The targets under the key, in the mode in which key and pixels suffice: one salt for all."""
        return [self.hide(self.engine, target, self.key) for target in self.targets]

    @functools.cached_property
    def hidden_otherwise(self) -> list[Seen | None]:
        """The targets under another key."""
        return [self.hide(self.engine, target, self.drawn_key("other")) for target in self.targets]

    @functools.cached_property
    def partners(self) -> list[Original]:
        """Another photo of each target's person, or the same one where there is no other."""
        photos = (*self.gallery.kin, *self.targets)
        others = {t.file: [p for p in photos if p.identity == t.identity and p.file != t.file] for t in self.targets}
        return [next(iter(others[target.file]), target) for target in self.targets]

    @property
    def alone(self) -> str:
        """Of how many people there is no second photo, in words; in one photo, pose and light tie versions too."""
        same = sum(partner.file == target.file for partner, target in zip(self.partners, self.targets, strict=True))
        return f"{same} sought by the very photo, for want of another" if same else ""

    @functools.cached_property
    def elsewhere(self) -> list[Seen | None]:
        """The partners under a third key."""
        return [self.hide(self.engine, partner, self.drawn_key("elsewhere")) for partner in self.partners]

    @functools.cached_property
    def back(self) -> list[Seen | None]:
        """What the key makes of the hidden targets."""
        return [self.lead(self.engine, i, self.key) for i in range(len(self.targets))]

    @functools.cached_property
    def led_astray(self) -> list[Seen | None]:
        """What unrelated keys make of them."""
        return [self.lead(self.engine, i, self.drawn_key("wrong", i)) for i in range(len(self.targets))]

    @functools.cached_property
    def practice(self) -> list[tuple[Original, Seen]]:
        """Photos of kin and others, each with what it looks like hidden under a key of the attacker's own."""
        photos = [*self.gallery.kin, *self.gallery.practice]
        pairs = []
        for number in range(self.sizes.pairs if photos else 0):
            photo = photos[number % len(photos)]
            seen = self.hide(self.engine, photo, self.drawn_key("practice", number))
            if seen and seen.code is not None and seen.look is not None:
                pairs.append((photo, seen))
        return pairs

    def strangers(self, of: int) -> list[Original]:
        """Whom the target could be taken for: other people of the same apparent sex, which is kept on purpose. Where
        there is nobody of that sex, everybody else."""
        target = self.targets[of]
        others = [other for other in (*self.targets, *self.gallery.crowd) if other.identity != target.identity]
        return self.alike(target, others)

    @staticmethod
    def alike(target: Original, others: Sequence[Original]) -> list[Original]:
        """Those of the target's apparent sex, or all where there is none."""
        return [other for other in others if _same_sex(other, target)] or list(others)

    @functools.cached_property
    def sealed(self) -> list[tuple[Path, Path]]:
        """Two photos with marks in their metadata, and the files that were made of them: original sealed, under the
        key. Fewer where there are fewer; none without a way to make files."""
        made: list[tuple[Path, Path]] = []
        for number, target in enumerate(self.targets[:2] if self.files else ()):
            assert self.work is not None
            source, output = self.work / f"{number}.jpg", self.work / f"{number}.anon.png"
            source.write_bytes(marked(target.pixels()))
            self.files.anonymize(source, self.key, output, engine=self.engine, seal="file")
            made.append((source, output))
        return made

    def as_seen(self, original: Original) -> Seen:
        """A photo that was looked at already."""
        assert original.aligned is not None
        crop = original.aligned.crop
        return Seen(original.pixels(), original.look, crop, self.code(original))

    def code(self, original: Original) -> Code:
        assert original.aligned is not None
        if original.file not in self._codes:
            self._codes[original.file] = self.model.encode(original.aligned.crop)
        return self._codes[original.file]

    @functools.cached_property
    def _codes(self) -> dict[Path, Code]:
        return {}

    def hide(self, engine: Engine, original: Original, key: Key, pixels: Pixels | None = None) -> Seen | None:
        """A photo, or another version of it, anonymized and looked at; None where the engine finds no face."""
        pixels = original.pixels() if pixels is None else pixels
        return self._looked(original, lambda: engine.anonymize(pixels, key, consistent=True))

    def lead(self, engine: Engine, target: int, key: Key) -> Seen | None:
        """A hidden target recovered, and looked at."""
        hidden = self.hidden[target]
        if hidden is None:
            return None
        return self._looked(self.targets[target], lambda: engine.recover(hidden.pixels, key, None))

    def look(self, original: Original, pixels: Pixels) -> Seen:
        """What can be seen at the place of a photo's face in another version of it."""
        look = self.judges.recognizer.look(pixels, original.box)
        aligned = self.judges.aligned(pixels, original.box)
        crop = aligned.crop if aligned else None
        return Seen(pixels, look, crop, None if crop is None else self.model.encode(crop))

    def _looked(self, original: Original, make: Callable[[], Result]) -> Seen | None:
        try:
            return self.look(original, through_png(make().pixels))
        except NoFaceError:
            return None


def choose(
    folder: Path, judges: Judges, sizes: Sizes, seed: int, progress: Callable[[int, int], None] | None = None
) -> Gallery:
    """Draw photos of a folder by seed, and look at no more of them than are needed.

    Args:
        folder: photos, and an ``identities.csv`` (file,identity) or none; without it every photo counts as a person.
        progress: called with (photos looked at, most that there will be).

    Raises:
        UsageError: no photo there shows a face that can be attacked, or identities.csv lacks a column.
        ImageError: a photo that cannot be read.
    """
    by_person = _photos_by_person(folder, seed)
    wanted = (sizes.photos, sizes.photos * KIN, sizes.pairs, sizes.crowd)
    most, done = min(sum(wanted), sum(map(len, by_person.values()))), 0

    def looked(files: list[Path], person: str, limit: int) -> list[Original]:
        nonlocal done
        found: list[Original] = []
        while files and len(found) < limit:
            original = judges.original(files.pop(), person)
            done = min(done + 1, most)
            if progress:
                progress(done, most)
            if original.look is not None and original.aligned is not None:
                found.append(original)
        return found

    targets: list[Original] = []
    for files_each in (1, sizes.photos):  # one photo a person; more only where there are too few people
        for person, files in by_person.items():
            targets += looked(files, person, min(files_each, sizes.photos - len(targets)))
    if not targets:
        raise UsageError(f"no photo of {folder} shows a face that can be attacked", "seen from the front, 16 px apart")
    attacked = dict.fromkeys(target.identity for target in targets)
    kin = [photo for person in attacked for photo in looked(by_person[person], person, KIN)]
    others = [(person, files) for person, files in by_person.items() if person not in attacked]
    # nobody is in both: whom a network has practised on is no fair decoy
    crowd = [photo for person, files in others[::2] for photo in looked(files, person, 1)][: sizes.crowd]
    practice: list[Original] = []
    for person, files in others[1::2]:
        practice += looked(files, person, max(1, sizes.pairs // max(1, len(others[1::2]))))
        if len(practice) >= sizes.pairs:
            break
    return Gallery(targets, kin, practice, crowd)


def _photos_by_person(folder: Path, seed: int) -> dict[str, list[Path]]:
    """The photos of each person, people and photos in an order of the seed's."""
    photos = list(photos_of(folder).items())
    by_person: dict[str, list[Path]] = {}
    for number in np.random.default_rng(seed).permutation(len(photos)):
        file, person = photos[number]
        by_person.setdefault(person, []).append(file)
    return by_person


def _same_sex(a: Original, b: Original) -> bool:
    """Whether every classifier that reads both reads the same."""
    both = a.impressions.keys() & b.impressions.keys()
    return all(a.impressions[name].male == b.impressions[name].male for name in both)


def marked(pixels: NDArray[np.uint8]) -> bytes:
    """A JPEG of these pixels that names MARK in EXIF, GPS, maker note, XMP, comment and behind its end."""
    exif = Image.Exif()
    exif[DESCRIPTION] = exif[ARTIST] = MARK
    exif.get_ifd(EXIF)[MAKER_NOTE] = MARK.encode()
    exif.get_ifd(GPS)[GPS_AREA] = MARK.encode("utf-16-le")
    file = io.BytesIO()
    xmp = f"<x:xmpmeta xmlns:x='adobe:ns:meta/'>{MARK}</x:xmpmeta>".encode()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, exif=exif, xmp=xmp, comment=MARK.encode())
    return file.getvalue() + MARK.encode()
