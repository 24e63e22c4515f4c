"""The judges of an evaluation, and their readings of the untouched photos."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from anonface.errors import ImageError, UsageError, WeightsError
from anonface.evaluation.attribute_classifiers import AttributeClassifier, FaceRes, Gear, Impression
from anonface.evaluation.embedders import Embedder, available
from anonface.evaluation.perception import Lpips
from anonface.evaluation.recognizers import Detection, Dlib, Look, Mtcnn, choose
from anonface.evaluation.set_distances import MobileNet
from anonface.evaluation.utility import Expression, Gaze
from anonface.faces import align, parse
from anonface.faces.detect import Face, build_detector
from anonface.images import read_photo

Pixels = NDArray[np.uint8]
Split = Literal["all", "even", "odd"]
Progress = Callable[[int, int], None]
Boxed = TypeVar("Boxed", Face, Detection)

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
IDENTITIES = "identities.csv"
CROP = 256  # px


@dataclass(frozen=True)
class Aligned:
    """A face in FFHQ's alignment.

    Attributes:
        crop: uint8 [CROP, CROP, 3].
        quad: [4, 2], corners of the crop in the photo; see :mod:`anonface.faces.align`.
        mesh: [468, 2] landmarks in crop coordinates.
    """

    crop: Pixels
    quad: NDArray[np.float64]
    mesh: NDArray[np.float64]


@dataclass(frozen=True)
class FacialState:
    """Gaze and expression of a face; None where the judge is missing.

    Attributes:
        gaze: [2, 2], see :class:`anonface.evaluation.utility.Gaze`.
        expression: [7], see :class:`anonface.evaluation.utility.Expression`.
    """

    gaze: NDArray[np.float64] | None = None
    expression: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Original:
    """One untouched photo and the judges' readings of it.

    Attributes:
        file: path of the photo.
        identity: the person's name in identities.csv, or the file's own name where there is none.
        box: (x, y, w, h) of the main face: the largest that YuNet finds, else the recognizer's; None without both.
        look: the recognizer's reading of that face, or None.
        found: that face by detector, None where the detector misses it.
        aligned: the face in its aligned square, or None where it has no clear landmarks.
        impressions: apparent sex and age, by classifier.
        state: gaze and expression.
        embeddings: unit vectors [d], by further recognizer.
    """

    file: Path
    identity: str
    box: NDArray[np.float64] | None
    look: Look | None
    found: Mapping[str, Detection | None]
    aligned: Aligned | None
    impressions: Mapping[str, Impression]
    state: FacialState = FacialState()
    embeddings: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def pixels(self) -> Pixels:
        return read_photo(self.file.read_bytes(), name=str(self.file)).pixels


class Judges:
    """Recognizers, detectors, attribute classifiers, LPIPS and features for FID, loaded once.

    Those without weights are left out.

    Args:
        recognizer: dlib's by default.
        embedders: names of further recognizers (``embedders.EMBEDDERS``).

    Attributes:
        absent: names of judges whose weights are not available.
    """

    gaze: Gaze | None = None
    expression: Expression | None = None
    lpips: Lpips | None = None
    features: MobileNet | None = None
    embedders: Sequence[Embedder] = ()

    def __init__(self, recognizer: Dlib | None = None, embedders: Sequence[str] = ()) -> None:
        self.recognizer = recognizer or Dlib()
        self.absent: list[str] = []
        self.classifiers: list[AttributeClassifier] = list(filter(None, map(self._loaded, (FaceRes, Gear))))
        self.gaze, self.expression, self.lpips = map(self._loaded, (Gaze, Expression, Lpips))
        self.features = self._loaded(MobileNet)
        self.embedders, missing = available(embedders)
        self.absent += missing
        self._yunet = build_detector("yunet")
        self._mtcnn = Mtcnn()

    def names(self) -> list[str]:
        """Names of all judges that measurements depend on."""
        judges = (self.recognizer, *self.classifiers, self.gaze, self.expression, self.lpips, self.features)
        return [judge.name for judge in judges if judge]

    def original(self, file: Path, identity: str) -> Original:
        """Read one photo."""
        rgb = read_photo(file.read_bytes(), name=str(file)).pixels
        box = choose(self._yunet_boxes(rgb), None)
        look = self.recognizer.look(rgb, box)
        if box is None and look is not None:
            box = look.box
        aligned = self.aligned(rgb, box)
        found, read, embedded = self.found(rgb, box, look), self.impressions(aligned), self.embeddings(aligned)
        return Original(file, identity, box, look, found, aligned, read, self.state(aligned), embedded)

    def aligned(self, rgb: Pixels, box: NDArray[np.float64] | None) -> Aligned | None:
        """The face at ``box``, detected and aligned anew; None where no face with clear landmarks is there."""
        face = None if box is None else _nearest(self._yunet.detect(rgb), box)
        if face is None:
            return None
        mesh = align.mesh468(rgb, face)
        if align.obstacle(face, mesh, rgb.shape):
            return None
        quad = align.ffhq_quad(mesh)
        points = align.transform(align.photo_to_crop(quad, CROP), mesh[:, :2])
        return Aligned(align.crop(rgb, quad, CROP), quad, points)

    def area(self, aligned: Aligned) -> NDArray[np.bool_]:
        """Mask [CROP, CROP] of the face by the trained parser, without hair, neck and occluders."""
        return parse.face_mask(aligned.crop, aligned.mesh, CROP) > 0.5

    def impressions(self, aligned: Aligned | None) -> dict[str, Impression]:
        """Apparent sex and age by classifier; empty without a face."""
        return {} if aligned is None else {each.name: each.read(aligned.crop) for each in self.classifiers}

    def embeddings(self, aligned: Aligned | None) -> dict[str, NDArray[np.float64]]:
        """Embeddings by further recognizer; empty without a face."""
        return {} if aligned is None else {e.name: e.embed(aligned.crop, aligned.mesh) for e in self.embedders}

    def state(self, aligned: Aligned | None) -> FacialState:
        if aligned is None:
            return FacialState()
        return FacialState(
            self.gaze.read(aligned.crop, aligned.mesh) if self.gaze else None,
            self.expression.read(aligned.crop) if self.expression else None,
        )

    def found(self, rgb: Pixels, box: NDArray[np.float64] | None, look: Look | None) -> dict[str, Detection | None]:
        """The face at ``box`` by detector; ``look`` is the answer of the recognizer's own detector."""
        seen: dict[str, Detection | None] = dict.fromkeys(("YuNet", "MTCNN", self.recognizer.name))
        if box is not None:
            seen["YuNet"] = _nearest([Detection(b) for b in self._yunet_boxes(rgb)], box)
            seen["MTCNN"] = _nearest(self._mtcnn.faces(rgb), box)
        if look is not None:
            seen[self.recognizer.name] = Detection(look.box)
        return seen

    def _loaded(self, make: type[Any]) -> Any:
        """A judge, or None if its weights are not available."""
        try:
            return make()
        except (WeightsError, ImportError):
            self.absent.append(make.name)
            return None

    def _yunet_boxes(self, rgb: Pixels) -> NDArray[np.float64]:
        return np.array([face.box for face in self._yunet.detect(rgb)], dtype=np.float64).reshape(-1, 4)


def _nearest(faces: Sequence[Boxed], box: NDArray[np.float64]) -> Boxed | None:
    """The face that best overlaps a box; see :func:`choose`."""
    boxes = np.array([face.box for face in faces], dtype=np.float64).reshape(-1, 4)
    best = choose(boxes, box)
    return None if best is None else faces[int(np.argmax((boxes == best).all(1)))]


def look_at_originals(
    folder: Path,
    judges: Judges | None = None,
    *,
    only: Collection[Path] | None = None,
    progress: Progress | None = None,
) -> list[Original]:
    """Read every photo of a folder; several evaluations can share the list.

    Args:
        folder: see :func:`photos_of`.
        judges: made here when not given.
        only: the photos to read; thresholds and other photos of a person then come from these alone.
        progress: called with (photos done, photos in all).

    Raises:
        UsageError: no photo there, or an identities.csv that does not name every photo.
        ImageError: photos that cannot be read; it names them all.
    """
    photos = {file: who for file, who in photos_of(folder).items() if only is None or file in only}
    judges = judges or Judges()
    originals, unreadable = [], []
    for done, (file, identity) in enumerate(photos.items(), start=1):
        try:
            originals.append(judges.original(file, identity))
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
    """The person on each photo of a folder (JPEG, PNG, WebP by suffix, no subfolders), sorted by name.

    An optional ``identities.csv`` with the columns ``file,identity`` names people. Without it every photo is a person.

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
    """The photos of people of even or odd rank among the sorted identities, or all; see :func:`photos_of`."""
    if split == "all":
        return list(photos)
    kept = set(sorted(set(photos.values()))[split == "odd" :: 2])
    return [file for file, identity in photos.items() if identity in kept]


@dataclass(frozen=True)
class Selection:
    """The photos of a folder that an evaluation uses.

    Attributes:
        chosen: photos of the split, up to the limit.
        judged: those of them in which the recognizer finds a face; at least one.
        gallery: all photos of the folder if identities.csv names people, else none.
    """

    chosen: Sequence[Original]
    judged: Sequence[Original]
    gallery: Sequence[Original]


def select(folder: Path, recognizer: Dlib, originals: Sequence[Original], split: Split, limit: int | None) -> Selection:
    """Choose photos by split and limit.

    Raises:
        UsageError: a split without identities.csv, or no face on the chosen photos.
    """
    known = (folder / IDENTITIES).is_file()
    if split != "all" and not known:
        raise UsageError(f"split {split!r} needs {folder / IDENTITIES}", "columns: file,identity")
    files = set(of_split(photos_of(folder), split)[:limit])
    chosen = [original for original in originals if original.file in files]
    judged = [original for original in chosen if original.look is not None]
    if not judged:
        raise UsageError(f"{recognizer.name} finds no face on the photos chosen in {folder}")
    return Selection(chosen, judged, originals if known else ())


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
