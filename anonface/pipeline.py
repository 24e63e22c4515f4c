"""One photo in memory: detect -> align -> mask -> backend -> composite -> watermark, and back.

An :class:`Engine` holds the loaded models, so that many photos pay for them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from anonface.backends.base import Backend, NonceKeyed, Parameter, Verifying, Watermarking
from anonface.backends.device import choose_device, clear_memory_errors, to_pixels, to_tensor
from anonface.backends.registry import build
from anonface.checks import SEEN_LATE, checked, still_matched
from anonface.crypto.keys import (
    CONSISTENT_SALT,
    Argon2,
    FaceKey,
    Key,
    PhotoKey,
    fresh_nonce,
    fresh_salt,
    salted_nonce,
)
from anonface.errors import ContainerError, LimitError, UsageError, count
from anonface.faces import align, blend, matching, outline, parse, regions, sface
from anonface.faces.details import FaceDetails, Replaced, details
from anonface.faces.detect import Pixels, Points, build_detector
from anonface.faces.locate import Chosen, Located, chosen_numbers, face_in, locate, no_face
from anonface.faces.second_look import Cover, elsewhere, look_again
from anonface.record.anf1 import NONCES, ORIGINAL, REGIONS, FaceEntry, FaceReport, Header, binding
from anonface.verification import recorded_nonces, verified
from anonface.watermark import registration

Box = tuple[float, float, float, float]
Watch = Callable[[str, int, int], None]
"""Called with a step, the number of its face from 1 and how many faces there are: ("rendering", 1, 3)."""

Quad = NDArray[np.float64]
Render = Callable[[torch.Tensor, torch.Tensor, Sequence[FaceKey]], torch.Tensor]

OUTLINE = "outline"  # what the record calls faces' outlines, followed by their numbers
NOT_SETTINGS = (OUTLINE, NONCES, ORIGINAL, REGIONS)  # what parameters of a record begin with that are no backend's
MOST_OUTLINES = 128  # faces; a header has room for some more
MOSAIC, SYNTH, KEPT = "mosaic", "synth", "kept"
UNANCHORED = (
    "no face was made with --stateless under this key by backend {!r}, or the photo was saved again since; "
    "the recovered face is probably wrong"
)
SAME_FACE = 0.25  # of its quad's side: how far the corners of a face may be found from where it was put
LEAST_SHOWN, HIDDEN = 0.6, "mostly hidden"  # share of a face that must be in its mask, or it is covered


@dataclass(frozen=True)
class Anonymized:
    """The new photo (uint8 [H, W, 3]), its faces, the header for recovery, notes for its owner, and details."""

    pixels: Pixels = field(repr=False)
    faces: list[FaceReport]
    header: Header
    notes: tuple[str, ...] = ()
    details: FaceDetails | None = None


@dataclass(frozen=True)
class Recovered:
    """The recovered photo. ``verified`` is "unknown": without an encrypted original nobody can tell a right key from a
    wrong one. ``notes`` are for the user."""

    pixels: Pixels
    faces: list[FaceReport]
    verified: str = "unknown"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cut:
    """The crop of one face, the mask of what may change in it, whether something hides the eyes, and what stays: as the
    record says it, and as polygons in the photo."""

    quad: Quad
    crop: Pixels
    soft: NDArray[np.float32]
    eyeless: bool = False
    recorded: str = ""
    stays: Sequence[Points] = ()


class Engine:
    """Models loaded once, for any number of photos.

    Args:
        backend: a name of ``backends.registry.BACKENDS``.
        device: ``auto`` (CUDA where there is one, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.
        detector, parser: names of ``faces.detect`` and ``faces.parse``.
        batch_size: faces a backend gets at a time; bounds memory.
        settings: more of the backend's settings.
        keep: named photos of people who are left as they are in every photo, one face each.
        watch: called as work on a face begins, with the first one's number where several are rendered together.

    Raises:
        DeviceError: the device is not there.
        UsageError: a photo of ``keep`` does not show one face that can be matched, or a setting is wrong.
        WeightsError: weights are missing.
    """

    def __init__(
        self,
        backend: str = "inpaint",
        device: str = "auto",
        detector: str = "yunet",
        parser: str = "trained",
        batch_size: int = 4,
        settings: Mapping[str, Parameter] | None = None,
        keep: Iterable[tuple[str, Pixels]] = (),
        watch: Watch = lambda doing, face, faces: None,
    ) -> None:
        self.device = choose_device(device)
        self.detector = build_detector(detector)
        self.parser, self.batch_size, self.watch = parser, batch_size, watch
        self.backend: Backend = build(backend, self.device, settings)
        kept = [self._portrait(name, pixels) for name, pixels in keep]
        self._recognizer: sface.Recognizer | None = None
        self.known_people = matching.KnownPeople(kept, self.device) if kept else None

    @property
    def device_name(self) -> str:
        """The device in words, for the first line a user sees."""
        if self.device.type == "cuda":
            return f"{self.device} ({torch.cuda.get_device_name(self.device)})"
        return f"cpu ({count(torch.get_num_threads(), 'thread')})"

    def anonymize(
        self,
        pixels: Pixels,
        key: Key,
        *,
        consistent: bool = False,
        boxes: Sequence[Box] = (),
        kdf: Argon2 | None = None,
        faces: Chosen = "all",
        faceless: bool = False,
        sealed: bool = False,
        keep_regions: Sequence[str] = (),
        check: bool = False,
        detailed: bool = False,
    ) -> Anonymized:
        """Replace the faces of a photo by synthetic ones.

        Args:
            pixels: uint8 [H, W, 3] RGB, upright.
            consistent: the same key and person give the same other person in every photo, and key and pixels are
                enough for recovery. Otherwise every photo draws its own salt.
            boxes: faces that the detector misses, as (x, y, w, h).
            kdf: how the key was made from a passphrase, to be noted in the header.
            faces: which of them; the others are left as they are, and so are the people of ``keep``.
            faceless: return a photo without a face unchanged.
            sealed: whether an encrypted original will be in the record. The watermark holds that too, so recovery
                notices when the original was removed.
            keep_regions: regions of replaced faces that stay as they are, of ``faces.regions.PARTS``.
            check: detect the faces again in the result, and compare new faces with the original ones.
            detailed: add the details.

        Raises:
            NoFaceError: the photo has no face.
            UsageError: ``faces`` numbers a face that is not there; the backend cannot keep regions, or there is no
                such region.
            LimitError: too many faces for a record of their regions.
            WeightsError: the recognizer that ``check`` and ``keep_regions`` need cannot be had.
        """
        keep_regions = regions.chosen(keep_regions)
        if keep_regions and self.backend.exact:
            raise UsageError(
                f"backend {self.backend.name!r} cannot keep regions", "ifadit, dbaf, hford and inpaint can"
            )
        recognizer = self._loaded_recognizer() if check or keep_regions else None  # found missing before any work
        found = self._locate(pixels, boxes, faceless)
        kept = self._kept(pixels, found, faces)
        if not (self.backend.records_masks and consistent):
            found = [face if i in kept else self._unless_hidden(pixels, face) for i, face in enumerate(found)]
        located = [face for i, face in enumerate(found) if i not in kept]
        salt = CONSISTENT_SALT if consistent else fresh_salt()
        result = pixels
        for face in located:
            if face.obstacle is not None:
                result = blend.mosaic(result, face.quad)
        rendered = [i for i, face in enumerate(found) if i not in kept and face.obstacle is None]
        synth = [found[i] for i in rendered]
        if keep_regions and len(synth) > regions.MOST_FACES:
            raise LimitError(
                f"{len(synth)} faces are too many to record their regions, {regions.MOST_FACES} is the limit",
                "choose some with --faces",
            )
        outlines: dict[str, Parameter] = {}
        notes: tuple[str, ...] = ()
        if self.backend.records_masks and (consistent or len(synth) > MOST_OUTLINES):
            cuts = [self._recorded_cut(result, face.quad) for face in synth]  # recovery has no record, or no room in it
        else:
            cuts = [self._cut(result, face.quad, self.parser, names=keep_regions) for face in synth]
            notes = tuple(
                f"face {i}: what hides the eyes stays, and who wears it may be known by it"
                for i, cut in zip(rendered, cuts, strict=True)
                if cut.eyeless
            )
            if self.backend.records_masks:
                outlines = {f"{OUTLINE}{i}": outline.of_mask(cut.soft) for i, cut in enumerate(cuts)}
                cuts = [self._recorded_cut(result, cut.quad, _outline_of(outlines, i)) for i, cut in enumerate(cuts)]
        # keys are numbered by synthesised faces, in the order of the header
        marks = [key.face(salt, self.backend.name, 0 if consistent else i) for i in range(len(synth))]
        nonces = [fresh_nonce() if consistent else salted_nonce(salt, self.backend.name, i) for i in range(len(synth))]
        keys = _keyed(self.backend, marks, nonces, b"")
        result, shown = self._replace(result, cuts, keys, self.backend, self.backend.anonymize, self.backend.exact)
        late = len(found)
        result, found, seen = self._look_again(pixels, result, found, kept)
        located = [face for i, face in enumerate(found) if i not in kept]
        notes = (*notes, *seen)
        stay = {f"{REGIONS}{i}": cut.recorded for i, cut in enumerate(cuts) if keep_regions}
        stay |= {REGIONS: ",".join(keep_regions)} if keep_regions else {}
        parameters = {**self.backend.parameters(), "parser": self.parser, **outlines, **stay}
        header = Header(
            backend=self.backend.name,
            parameters={**parameters, **self._nonce_parameters(nonces, sealed)},
            flow_salt=salt,
            consistent=consistent,
            kdf=kdf,
            weights_digest=self.backend.digest(),
            canvas=(pixels.shape[1], pixels.shape[0]),
            faces=tuple(
                FaceEntry(quad=tuple((x, y) for x, y in f.quad.tolist()), kind=SYNTH if f.obstacle is None else MOSAIC)
                for f in located
            ),
        )
        record = _binding(header)
        for face_key in keys:  # known only after the second look, which may cover more
            face_key.record = record
        quads = [cut.quad for cut in cuts]
        if isinstance(self.backend, Watermarking):
            quads = self._to_be_found(result, cuts) if consistent and not self.backend.exact else quads
            result = self._write_watermarks(pixels, result, cuts, quads, keys, self.backend)
        if self.backend.marked and (consistent or not self.backend.records_masks):
            for quad, mark, nonce in zip(quads, marks, nonces, strict=True):
                changed = (result != pixels).any(2)
                result = registration.write(result, quad, changed, mark, nonce if _nonce_keyed(self.backend) else b"")
        detector = self.detector if recognizer else None
        report = checked(_report(found, kept), found, boxes, pixels, result, detector, recognizer)
        stayed = f"{', '.join(keep_regions)}: left as in the photo, and people may be known by them"
        notes = (*notes, *([stayed] if keep_regions and synth else []), *still_matched(report))
        replaced = [
            Replaced(number, cut.quad, soft, cut.stays) for number, cut, soft in zip(rendered, cuts, shown, strict=True)
        ]
        known = details(pixels, result, found, list(kept), replaced, late) if detailed else None
        return Anonymized(result, report, header, notes, known)

    def recover(
        self, pixels: Pixels, key: Key | PhotoKey, header: Header | None = None, *, faces: Chosen = "all"
    ) -> Recovered:
        """Recover an anonymized photo.

        Args:
            key: the master, or its share in photos of the header's salt.
            header: the record of the anonymized file; None recovers from pixels and key alone, as ``consistent``
                allows.
            faces: as it was anonymized with; a header overrides it.

        Raises:
            NoFaceError: there is no header, and no face was found.
            UsageError: ``faces`` numbers a face that is not there.
            ContainerError: the header is of another backend, other weights, another canvas or another photo; or the key
                fits the faces, and their checks do not fit the header.
        """
        backend = self.backend
        kept: dict[int, str] = {}
        notes: tuple[str, ...] = ()
        stays: Sequence[Sequence[Points]] = ()
        if header is None and (marked_faces := self._marked(pixels, key)):
            found, salt, consistent, parser = marked_faces, CONSISTENT_SALT, True, self.parser
        elif header is None:
            found = self._locate(pixels, ())
            kept = self._kept(pixels, found, faces)
            salt, consistent, parser = CONSISTENT_SALT, True, self.parser
            if backend.marked:
                notes = (UNANCHORED.format(backend.name),)
        else:
            found, salt, consistent = _from_header(header), header.flow_salt, header.consistent
            backend, parser = self._fitting(header, pixels)
            stays = _regions_of(header, [face.quad for face in found if face.obstacle is None])
            if consistent:  # then the watermark lies where a search finds the face, not where the record places it
                found = _at_marks(found, self._marked(pixels, key))
        synth = [face for i, face in enumerate(found) if face.obstacle is None and i not in kept]
        stays = stays or [()] * len(synth)
        current = header is not None and header.weights_digest == self.backend.digest()
        nonces = (
            recorded_nonces(header, current and isinstance(backend, Verifying))
            if header
            else [face.nonce or None for face in synth]
        )
        marks = [key.face(salt, backend.name, 0 if consistent else i) for i in range(len(synth))]
        keys = _keyed(backend, marks, nonces, _binding(header) if header else b"")
        if backend.records_masks:
            recorded = header.parameters if header else {}
            cuts = [self._recorded_cut(pixels, face.quad, _outline_of(recorded, i)) for i, face in enumerate(synth)]
        elif backend.marked:
            known = [nonce or b"" if _nonce_keyed(backend) else b"" for nonce in nonces]
            cuts = [
                self._cut(pixels, face.quad, parser, mark, nonce, stays=stay)
                for face, mark, nonce, stay in zip(synth, marks, known, stays, strict=True)
            ]
        else:
            cuts = [self._cut(pixels, face.quad, parser, stays=stay) for face, stay in zip(synth, stays, strict=True)]
        result, _ = self._replace(pixels, cuts, keys, backend, backend.recover, backend.exact_recovery)
        if header and isinstance(backend, Verifying):
            checks = [backend.checked(to_tensor(cut.crop[None]), key) for cut, key in zip(cuts, keys, strict=True)]
            notes = (*notes, *verified(header, checks, nonces, current))
        return Recovered(result, header.reports() if header else _report(found, kept), notes=notes)

    def unreported(self, pixels: Pixels, faces: Sequence[FaceReport]) -> list[Box]:
        """The boxes of faces in a picture that are at the places of none of these."""
        return elsewhere(self.detector.detect(pixels), [face.box for face in faces])

    def _loaded_recognizer(self) -> sface.Recognizer:
        self._recognizer = self._recognizer or sface.SFace()
        return self._recognizer

    def _nonce_parameters(self, nonces: Sequence[bytes], sealed: bool) -> dict[str, Parameter]:
        """The record's parameters for nonces and an encrypted original, if the backend uses them."""
        if not (isinstance(self.backend, Verifying) or _nonce_keyed(self.backend)):
            return {}
        return {NONCES: " ".join(nonce.hex() for nonce in nonces), **({ORIGINAL: True} if sealed else {})}

    def _marked(self, pixels: Pixels, key: Key | PhotoKey) -> list[Located]:
        """The replaced faces, by their registration marks, detected or not."""
        if not self.backend.marked:
            return []
        mark = key.face(CONSISTENT_SALT, self.backend.name, 0)
        marks = registration.search(pixels, mark, _nonce_keyed(self.backend))
        marks = marks or registration.search(pixels, mark, tiled=True)
        return [Located(face_in(found.quad).box, found.quad, None, nonce=found.nonce) for found in marks]

    def _fitting(self, header: Header, pixels: Pixels) -> tuple[Backend, str]:
        """The backend under the header's parameters, and the header's parser."""
        if header.backend != self.backend.name:
            raise ContainerError(
                f"this photo was anonymized by backend {header.backend!r}, not {self.backend.name!r}",
                f"choose --backend {header.backend}",
            )
        digests = [self.backend.digest()]
        if isinstance(self.backend, Verifying):
            digests.extend(self.backend.earlier_digests())
        if header.weights_digest not in digests:
            raise ContainerError(
                "this photo was anonymized with other network weights",
                "install the version of anonface that made it, or name the --model it was made with",
            )
        if header.canvas != (pixels.shape[1], pixels.shape[0]):
            (height, width), (w, h) = pixels.shape[:2], header.canvas
            raise ContainerError(
                f"the photo is {width}x{height} px, its record says {w}x{h}",
                "it was resized or cropped; a photo made with --stateless can be recovered with --stateless",
            )
        parameters = {k: v for k, v in header.parameters.items() if not k.startswith(NOT_SETTINGS)}
        parser = str(parameters.pop("parser", self.parser))
        return self.backend.under(parameters), parser

    def _locate(self, pixels: Pixels, boxes: Sequence[Box], faceless: bool = False) -> list[Located]:
        located = locate(pixels, self.detector, boxes)
        if not located and not faceless:
            raise no_face()
        return located

    def _unless_hidden(self, pixels: Pixels, face: Located) -> Located:
        """The face, to be covered if its mask would leave most of it as it is: painted, tiled or false-coloured."""
        if face.obstacle is not None:
            return face
        crop, mesh = self._aligned(pixels, face.quad)
        if parse.share_shown(crop, mesh, self.parser) >= LEAST_SHOWN:
            return face
        return replace(face, obstacle=HIDDEN, quad=align.snap_quad(align.cover_quad(face.seen)))

    def _look_again(
        self, pixels: Pixels, result: Pixels, found: list[Located], kept: Mapping[int, str]
    ) -> tuple[Pixels, list[Located], tuple[str, ...]]:
        """Detect faces in the finished photo and cover what should not be there; further faces come last."""
        numbers = [i for i, face in enumerate(found) if i not in kept and face.obstacle is not None]
        finished, covers = look_again(
            pixels,
            result,
            self.detector,
            replaced=[face.seen for i, face in enumerate(found) if i not in kept and face.obstacle is None],
            covered=[Cover(found[i].seen, found[i].quad) for i in numbers],
            kept=[found[i].seen for i in kept],
        )
        faces, notes = list(found), []
        for i, cover in zip(numbers, covers, strict=False):
            if cover.strength:
                faces[i] = replace(found[i], quad=cover.quad)
                notes.append(f"face {i}: still seen when the finished photo was looked at; covered again, larger")
        for cover in covers[len(numbers) :]:
            notes.append(f"face {len(faces)}: {SEEN_LATE}; covered")
            faces.append(Located(cover.face.box, cover.quad, SEEN_LATE, cover.face))
        return finished, faces, tuple(notes)

    def _kept(self, pixels: Pixels, found: list[Located], chosen: Chosen) -> dict[int, str]:
        """The numbers of the faces that are left as they are, with the reason."""
        wanted = chosen_numbers([face.box for face in found], chosen)
        kept = dict.fromkeys(set(range(len(found))) - wanted, "not among --faces")
        if self.known_people:
            for i in wanted:
                # a face that cannot be aligned cannot be matched either: it is covered
                crop = align.crop(pixels, found[i].quad, matching.SIDE)
                if found[i].obstacle is None and self.known_people.matches(crop):
                    kept[i] = "one of --keep-faces"
        return kept

    def _portrait(self, name: str, pixels: Pixels) -> Pixels:
        """The one face of a photo, aligned."""
        found = self._locate(pixels, (), faceless=True)
        if len(found) != 1:
            raise UsageError(
                f"{name!r} shows {count(len(found), 'face')}", "--keep-faces wants photos of one person each"
            )
        if found[0].obstacle is not None:
            raise UsageError(f"the face in {name!r} is {found[0].obstacle}", "give a larger photo, seen from the front")
        return align.crop(pixels, found[0].quad, matching.SIDE)

    def _crop(self, pixels: Pixels, quad: Quad) -> Pixels:
        sizes = self.backend.resolutions
        return align.crop(pixels, quad, max(sizes[0], min(align.crop_size(quad), sizes[-1])))

    def _aligned(self, pixels: Pixels, quad: Quad) -> tuple[Pixels, Points]:
        """A face's crop, and its landmarks in it."""
        crop = self._crop(pixels, quad)
        return crop, align.transform(align.photo_to_crop(quad, len(crop)), align.landmarks468(pixels, face_in(quad)))

    def _recorded_cut(self, pixels: Pixels, quad: Quad, recorded: str = "") -> _Cut:
        """A face with a recorded mask; without a record the mask is everywhere."""
        crop = self._crop(pixels, quad)
        try:
            return _Cut(quad, crop, outline.to_mask(recorded, len(crop)))
        except ValueError as error:
            raise ContainerError("the record's outline of a face is damaged", str(error)) from error

    def _cut(
        self,
        pixels: Pixels,
        quad: Quad,
        parser: str,
        mark: FaceKey | None = None,
        nonce: bytes = b"",
        names: Sequence[str] = (),
        stays: Sequence[Points] = (),
    ) -> _Cut:
        """A face with the parser's mask, or with that of its registration mark under a key; without regions of these
        names, or what is said to stay."""
        crop, mesh = self._aligned(pixels, quad)
        face = parse.face_mask(crop, mesh, len(crop), parser)
        eyeless = parse.hides_eyes(face, mesh)
        if self.backend.margin != "none":
            face = parse.with_margin(face, crop, mesh if self.backend.margin == "beyond" else None)
        recorded = regions.outlines(mesh, len(crop), names)
        stays = stays or regions.polygons(recorded, quad)
        face = regions.without(face, stays, quad)
        if mark is not None:
            face = registration.replaced(pixels, quad, face > 0.5, mark, nonce).astype(face.dtype)
            face = regions.without(face, stays, quad)
        return _Cut(quad, crop, blend.soften(face), eyeless, recorded, stays)

    def _replace(
        self, pixels: Pixels, cuts: list[_Cut], keys: list[FaceKey], backend: Backend, run: Render, exact: bool
    ) -> tuple[Pixels, list[NDArray[np.float32]]]:
        """Render every cut's face anew and blend it in; crops of one size go to the backend together.

        A grey photo stays grey: renders are colour pictures, and a trace of hue would tell where faces are.
        Returns also where each face is seen in its crop.
        """
        by_size: dict[int, list[int]] = {}
        for i, cut in enumerate(cuts):
            by_size.setdefault(len(cut.crop), []).append(i)
        renders: dict[int, Pixels] = {}
        shown: dict[int, NDArray[np.float32]] = {}
        size = self.batch_size if backend.batched else 1
        for members in by_size.values():
            for start in range(0, len(members), size):
                batch = members[start : start + size]
                self.watch("rendering", len(renders) + 1, len(cuts))
                faces = to_tensor(np.stack([cuts[i].crop for i in batch]))
                masks = torch.stack([torch.from_numpy(cuts[i].soft)[None] for i in batch])
                with clear_memory_errors():
                    images = run(faces, masks, [keys[i] for i in batch])
                renders.update(zip(batch, map(to_pixels, images), strict=True))
                shown.update(zip(batch, backend.visible(masks)[:, 0].numpy(), strict=True))
        result = pixels
        for i, cut in sorted(enumerate(cuts), key=lambda it: -align.side_of(it[1].quad)):  # small ones lie before
            render = renders[i]
            if not exact:
                if not backend.matches_light:
                    render = blend.match_light(render, cut.crop, shown[i])
                render = blend.match_grain(render, cut.crop, shown[i])
            before, result = result, blend.paste(result, render, shown[i], cut.quad)
            regions.keep(result, before, cut.stays)
        result = blend.as_grey(result) if cuts and blend.is_grey(pixels) else result
        return result, [shown[i] for i in range(len(cuts))]

    def _to_be_found(self, pixels: Pixels, cuts: list[_Cut]) -> list[Quad]:
        """The squares that detection finds in the finished photo: a new face's landmarks differ a little."""
        found = [face.quad for face in self._locate(pixels, (), faceless=True)] if cuts else []
        quads = []
        for cut in cuts:
            off = [float(np.abs(quad - cut.quad).max()) for quad in found]
            near = bool(off) and min(off) <= SAME_FACE * align.side_of(cut.quad)
            quads.append(found[int(np.argmin(off))] if near else cut.quad)
        return quads

    def _write_watermarks(
        self, pixels: Pixels, result: Pixels, cuts: list[_Cut], quads: list[Quad], keys: list[FaceKey], to: Watermarking
    ) -> Pixels:
        """Write the backend's watermark into the finished faces, each in the square where recovery will read it."""
        for number, (cut, quad, key) in enumerate(zip(cuts, quads, keys, strict=True), start=1):
            self.watch("watermarking", number, len(cuts))
            size = len(cut.crop)
            soft = align.crop(cut.soft, align.transform(align.photo_to_crop(cut.quad, size), quad), size)
            mask = torch.from_numpy(soft)[None, None]
            original = align.crop(pixels, quad, size)
            uncorrected, correction = result, np.zeros(1, np.float32)
            for _ in range(to.corrections):
                shown = align.crop(result, quad, size)
                pictures = to_tensor(np.stack([shown, cut.crop, original]))
                with clear_memory_errors():
                    pattern = to.write_watermark(pictures[:1], pictures[1:2], pictures[2:], mask, key)
                if pattern is not None:  # summed before rounding, which would drop less than half a grey level
                    correction = correction + (127.5 * pattern)[0].permute(1, 2, 0).numpy()
                    result = blend.add(uncorrected, correction, quad)
                    regions.keep(result, uncorrected, cut.stays)
        return result


def _at_marks(found: list[Located], marks: list[Located]) -> list[Located]:
    """Faces of a record, in the squares of their registration marks."""
    moved = []
    for face in found:
        off = [float(np.abs(mark.quad - face.quad).max()) for mark in marks]
        near = face.obstacle is None and off and min(off) <= SAME_FACE * align.side_of(face.quad)
        moved.append(marks[int(np.argmin(off))] if near else face)
    return moved


def _nonce_keyed(backend: Backend) -> bool:
    return isinstance(backend, NonceKeyed) and backend.nonce_keyed


def _keyed(backend: Backend, marks: Sequence[FaceKey], nonces: Sequence[bytes | None], record: bytes) -> list[FaceKey]:
    """The keys that a backend gets for faces: with their nonces, or derived from these alone."""
    if _nonce_keyed(backend):
        return [mark.payload(nonce) if nonce else mark for mark, nonce in zip(marks, nonces, strict=True)]
    return [mark.of_face(nonce, record) for mark, nonce in zip(marks, nonces, strict=True)]


def _binding(header: Header) -> bytes:
    try:
        return binding(header)
    except LimitError:  # too many faces for a record; there may be no need of one
        return b""


def _outline_of(parameters: Mapping[str, Parameter], number: int) -> str:
    """A face's outline; empty where there is none."""
    return str(parameters.get(f"{OUTLINE}{number}", ""))


def _from_header(header: Header) -> list[Located]:
    return [
        Located(report.box, np.array(face.quad, np.float64), report.reason or None)
        for face, report in zip(header.faces, header.reports(), strict=True)
    ]


def _regions_of(header: Header, quads: Sequence[Quad]) -> list[Sequence[Points]]:
    """What stays of each replaced face, by the record."""
    try:
        return [regions.polygons(str(header.parameters.get(f"{REGIONS}{i}", "")), quad) for i, quad in enumerate(quads)]
    except ValueError as error:
        raise ContainerError("the record's outline of a region is damaged", str(error)) from error


def _report(found: list[Located], kept: dict[int, str]) -> list[FaceReport]:
    return [
        FaceReport(i, KEPT, face.box, kept[i])
        if i in kept
        else FaceReport(i, SYNTH if face.obstacle is None else MOSAIC, face.box, face.obstacle or "")
        for i, face in enumerate(found)
    ]
