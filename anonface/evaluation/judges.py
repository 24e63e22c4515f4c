"""Who judges, and what they saw of the photos before anything was done to them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anonface.errors import ImageError, UsageError, WeightsError
from anonface.evaluation.attribute_classifiers import CLASSIFIERS, AttributeClassifier, Impression
from anonface.evaluation.embedders import Embedder, at_hand
from anonface.evaluation.perception import Distance, MobileNet, distances
from anonface.evaluation.recognizers import Detection, Dlib, Look, Mtcnn, Recognizer, choose
from anonface.evaluation.utility import Expression, Gaze
from anonface.faces import align, parse
from anonface.faces.detect import build_detector
from anonface.imagefile import read_photo

Pixels = NDArray[np.uint8]
Split = Literal["all", "even", "odd"]
Progress = Callable[[int, int], None]

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
IDENTITIES = "identities.csv"
CROP = 256  # px


@dataclass(frozen=True)
class Aligned:
    """A face as FFHQ aligns it.

    Attributes:
        crop: uint8 [CROP, CROP, 3].
        quad: [4, 2], where it was cut from the photo; see :mod:`anonface.faces.align`.
        mesh: [468, 2] landmarks in crop coordinates.
    """

    crop: Pixels
    quad: NDArray[np.float64]
    mesh: NDArray[np.float64]


@dataclass(frozen=True)
class Bearing:
    """How a face looks back, from judges that may be missing.

    Attributes:
        gaze: [2, 2], see :class:`anonface.evaluation.utility.Gaze`.
        expression: [7], see :class:`anonface.evaluation.utility.Expression`.
    """

    gaze: NDArray[np.float64] | None = None
    expression: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Original:
    """One photo before anything was done to it.

    Attributes:
        file: path of the photo.
        identity: the person's name in identities.csv, or the file's own name where there is none.
        box: (x, y, w, h) of the main face: the largest that YuNet sees, else the judge's largest; None without both.
        look: what the judge saw there, or None.
        found: where each detector sees that face, or None.
        aligned: the face in its aligned square, or None where it has no clear landmarks.
        impressions: what each classifier reads in it, by name.
        bearing: its gaze and expression.
        embeddings: what each further recognizer makes of it, by name: unit vectors [d].
    """

    file: Path
    identity: str
    box: NDArray[np.float64] | None
    look: Look | None
    found: Mapping[str, Detection | None]
    aligned: Aligned | None
    impressions: Mapping[str, Impression]
    bearing: Bearing = Bearing()
    embeddings: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def pixels(self) -> Pixels:
        return read_photo(self.file.read_bytes(), name=str(self.file)).pixels


class Judges:
    """The recognizer, the detectors, the classifiers and whoever compares pictures, loaded once.

    Args:
        recognizer: dlib's by default.
        classifiers: by default all whose weights can be had; the others are named in ``absent``.
        embedders: names of further recognizers (``embedders.EMBEDDERS``); those whose weights cannot be had are named
            in ``absent`` too.
    """

    distances: Sequence[Distance] = ()
    gaze: Gaze | None = None
    expression: Expression | None = None

    embedders: Sequence[Embedder] = ()

    def __init__(
        self,
        recognizer: Recognizer | None = None,
        classifiers: Sequence[AttributeClassifier] | None = None,
        embedders: Sequence[str] = (),
    ) -> None:
        self.recognizer: Recognizer = recognizer or Dlib()
        self.absent: list[str] = []
        self.classifiers = self._all_classifiers() if classifiers is None else list(classifiers)
        self.gaze, self.expression = self._at_hand(Gaze), self._at_hand(Expression)
        self.distances, without = distances()
        self.embedders, missing = at_hand(embedders)
        self.absent += [*without, *missing]
        self._yunet = build_detector("yunet")
        self._mtcnn = Mtcnn()

    def names(self) -> list[str]:
        """Everybody whose word a measurement may be."""
        judges = (self.recognizer, *self.classifiers, self.gaze, self.expression, *self.distances)
        return [judge.name for judge in judges if judge]

    def original(self, file: Path, identity: str) -> Original:
        """Look at a photo: its main face, its embedding, and who finds it."""
        rgb = read_photo(file.read_bytes(), name=str(file)).pixels
        box = choose(self._yunet_boxes(rgb), None)
        look = self.recognizer.look(rgb, box)
        if box is None and look is not None:
            box = look.box
        aligned = self.aligned(rgb, box)
        found, read, embedded = self.found(rgb, box, look), self.impressions(aligned), self.embeddings(aligned)
        return Original(file, identity, box, look, found, aligned, read, self.bearing(aligned), embedded)

    def aligned(self, rgb: Pixels, box: NDArray[np.float64] | None) -> Aligned | None:
        """The face at ``box``, found and aligned anew; None where there is none or its landmarks are not clear."""
        faces = self._yunet.detect(rgb)
        boxes = np.array([face.box for face in faces], dtype=np.float64).reshape(-1, 4)
        best = None if box is None else choose(boxes, box)
        if best is None:
            return None
        face = faces[int(np.argmax((boxes == best).all(1)))]
        mesh = align.mesh468(rgb, face)
        if align.obstacle(face, mesh, rgb.shape):
            return None
        quad = align.ffhq_quad(mesh)
        points = align.transform(align.photo_to_crop(quad, CROP), mesh[:, :2])
        return Aligned(align.crop(rgb, quad, CROP), quad, points)

    def area(self, aligned: Aligned) -> NDArray[np.bool_]:
        """Where the face is, [CROP, CROP], by the trained parser: without hair, neck and what hides it."""
        return parse.face_mask(aligned.crop, aligned.mesh, CROP) > 0.5

    def impressions(self, aligned: Aligned | None) -> dict[str, Impression]:
        """What every classifier reads in a face; empty where there is none."""
        return (
            {}
            if aligned is None
            else {classifier.name: classifier.read(aligned.crop) for classifier in self.classifiers}
        )

    def embeddings(self, aligned: Aligned | None) -> dict[str, NDArray[np.float64]]:
        """What every further recognizer makes of a face; empty where there is none."""
        return {} if aligned is None else {e.name: e.embed(aligned.crop, aligned.mesh) for e in self.embedders}

    def bearing(self, aligned: Aligned | None) -> Bearing:
        """Where a face looks, and its expression."""
        if aligned is None:
            return Bearing()
        gaze, expression = self.gaze, self.expression
        return Bearing(
            None if gaze is None else gaze.read(aligned.crop, aligned.mesh),
            None if expression is None else expression.read(aligned.crop),
        )

    def features(self, crop: Pixels) -> NDArray[np.float32] | None:
        """What sets of aligned faces are compared by; None where nobody is at hand who sees it."""
        seers = [distance for distance in self.distances if isinstance(distance, MobileNet)]
        return seers[0].features(crop) if seers else None

    def found(self, rgb: Pixels, box: NDArray[np.float64] | None, look: Look | None) -> dict[str, Detection | None]:
        """Where detectors see a face at ``box``; the recognizer's own detector has already answered with ``look``."""
        seen: dict[str, Detection | None] = dict.fromkeys(("YuNet", "MTCNN", self.recognizer.name))
        if box is not None:
            seen["YuNet"] = _nearest([Detection(b) for b in self._yunet_boxes(rgb)], box)
            seen["MTCNN"] = _nearest(self._mtcnn.faces(rgb), box)
        if look is not None:
            seen[self.recognizer.name] = Detection(look.box)
        return seen

    def _all_classifiers(self) -> list[AttributeClassifier]:
        return [classifier for make in CLASSIFIERS if (classifier := self._at_hand(make))]

    def _at_hand(self, make: type[Any]) -> Any:
        """A judge, or None if its weights cannot be had."""
        try:
            return make()
        except WeightsError:
            self.absent.append(make.name)
            return None

    def _yunet_boxes(self, rgb: Pixels) -> NDArray[np.float64]:
        return np.array([face.box for face in self._yunet.detect(rgb)], dtype=np.float64).reshape(-1, 4)


def _nearest(faces: Sequence[Detection], box: NDArray[np.float64]) -> Detection | None:
    """The one that best overlaps a box; see :func:`choose`."""
    boxes = np.array([face.box for face in faces]).reshape(-1, 4)
    best = choose(boxes, box)
    return None if best is None else faces[int(np.argmax((boxes == best).all(1)))]


def look_at_originals(
    folder: Path,
    judges: Judges | None = None,
    *,
    only: Collection[Path] | None = None,
    progress: Progress | None = None,
    look: Callable[[Path, str], Original] | None = None,
) -> list[Original]:
    """Look at every photo of a folder once; hand the list to several evaluations to spare them the work.

    Args:
        folder: see :func:`photos_of`.
        judges: made here when not given.
        only: look at these photos alone; what is said of other photos of a person, and thresholds, is then of them.
        progress: called with (photos done, photos in all).
        look: takes the judges' place, a cache's for instance.

    Raises:
        UsageError: no photo there, or an identities.csv that does not name every photo.
        ImageError: photos that cannot be read; it names them all.
    """
    photos = {file: who for file, who in photos_of(folder).items() if only is None or file in only}
    look = look or (judges or Judges()).original
    originals, unreadable = [], []
    for done, (file, identity) in enumerate(photos.items(), start=1):
        try:
            originals.append(look(file, identity))
        except ImageError as error:
            unreadable.append((file.name, error))
        if progress:
            progress(done, len(photos))
    if unreadable:
        names = ", ".join(name for name, _ in unreadable)
        message = f"{folder} holds files that are no usable photos: {names}"
        raise ImageError(message, "take them out of the folder") from unreadable[0][1]
    return originals


def photos_of(folder: Path) -> dict[Path, str]:
    """Who is on each photo of a folder (JPEG, PNG, WebP, told by suffix), sorted by name; subfolders are left alone.

    An optional ``identities.csv`` with the columns ``file,identity`` says it; without one, every photo is a person.

    Raises:
        UsageError: no photo there, or an identities.csv that does not name every photo.
    """
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    if not files:
        raise UsageError(
            f"no photos in {folder}", "give a folder of JPEG, PNG or WebP files; subfolders are not searched"
        )
    identities = _identities(folder / IDENTITIES, files)
    return {file: identities.get(file.name, file.name) for file in files}


def of_split(photos: Mapping[Path, str], split: Split) -> list[Path]:
    """The photos of people of even or odd rank in the sorted identities, or all; see :func:`photos_of`."""
    if split == "all":
        return list(photos)
    kept = set(sorted(set(photos.values()))[split == "odd" :: 2])
    return [file for file, identity in photos.items() if identity in kept]


def _identities(file: Path, photos: Sequence[Path]) -> dict[str, str]:
    if not file.is_file():
        return {}
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines)
            if not {"file", "identity"} <= set(rows.fieldnames or ()):
                raise UsageError(f"{file} lacks the columns file,identity", "its first line has to be: file,identity")
            named = {row["file"]: row["identity"] for row in rows}
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file} is no CSV file in UTF-8", "save it anew as CSV with the encoding UTF-8") from error
    for photo in photos:
        if not named.get(photo.name):
            raise UsageError(f"{file} names nobody for {photo.name}", "every photo of the folder needs a line")
    return named
