"""Photo files: one through the library's :func:`anonymize` and :func:`recover`, many through :func:`run`.

Nothing here prints. A photo is read once, decoded, treated, and written in one step; whatever fails before that step
leaves no file behind.
"""

from __future__ import annotations

import glob
import os
import re
import string
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from anonface import carriers, container, sealing, signals
from anonface.container import FaceReport, Header, Tier
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    DeviceError,
    LimitError,
    NoFaceError,
    OutputError,
    UsageError,
    WeightsError,
    WrongKeyError,
    reason,
    remedy,
)
from anonface.folders import Search, fixed_part, is_folder, is_pattern, is_there, matches, search, taken_literally
from anonface.images import (
    MAX_FILE_BYTES,
    MAX_PIXELS,
    Content,
    Photo,
    encode_photo,
    read_file,
    read_photo,
    size_of,
    write_together,
)
from anonface.journal import Journal, Record
from anonface.keys import Argon2, Key
from anonface.paths import COLLISION_HINT, Input, Output, Spared, check_target, refuse_conflicts
from anonface.sources import Source, is_file, name_of, open_source, read_source

if TYPE_CHECKING:
    from anonface.pipeline import Anonymized, Chosen, Engine

Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]
Direction = Literal["anonymize", "recover"]
State = Literal["done", "copied", "decoy", "skipped", "failed", "not reached"]
STATES: tuple[State, ...] = get_args(State)
Verified = Literal["yes", "unknown", "no"]
WRITTEN: tuple[State, ...] = ("done", "copied", "decoy")

SUFFIXES = {"png": ".png", "webp": ".webp", "jpeg": ".jpg"}
FORMATS = {".png": "png", ".webp": "webp", ".jpg": "jpeg", ".jpeg": "jpeg"}
OTHER_PHOTOS = {".jpe", ".jfif", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif", ".avif", ".ppm"}
SEARCHED = {*FORMATS, *OTHER_PHOTOS}
"""Suffixes that a folder is searched for; unreadable kinds too, so that none is passed over silently."""
OWN_FILES = {".anf"}
"""Suffixes that lie among photos as they should, and are none of theirs."""

MOST_SUFFIXES = 6
"""As many are named of the files that a search passes over."""

QUALITY = 95

_RESULT = re.compile(r"\.(anon|recovered|decoy)(\.\w+)$", re.IGNORECASE)
_MARKS = {"anonymize": "anon", "recover": "recovered"}
_DECOY = "decoy"
_EXPECTED = {"anonymize": "", "recover": "anon"}
_FIELDS = ("stem", "suffix", "mark", "ext")
DEFAULT_NAME = "{stem}.{mark}{ext}"
OUT_OF_MEMORY = "out of memory"
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can(no|')t allocate( memory)?|not enough memory|insufficient memory", re.IGNORECASE
)
_NOT_LOADED = re.compile(
    r"failed to map segment|can't start new thread|resource temporarily unavailable", re.IGNORECASE
)


# --- One photo -------------------------------------------------------------------------------------------------------


DEFAULT_BACKEND = "ifadit"


@cache
def default_engine(backend: str = DEFAULT_BACKEND) -> Engine:
    """A backend's engine with all defaults, made once."""
    from anonface.pipeline import Engine

    return Engine(backend)


NOTHING = sealing.Contents("none")


@dataclass(frozen=True)
class Opened:
    """A photo that was read.

    Args:
        source: its name.
        data: its bytes, where they are to be sealed.
        photo: what it shows; None where a sealed original takes its place.
        header: of an anonymized photo's record.
        contents: of that record's payload.
        verified: whether the key was the right one, as in :class:`Recovered`.
        notes: what is to be said of it, one line each.
    """

    source: Path | None
    data: bytes
    photo: Photo | None
    header: Header | None = None
    contents: sealing.Contents = NOTHING
    verified: Verified = "unknown"
    notes: tuple[str, ...] = ()

    @property
    def decoded(self) -> Photo:
        """What it shows, where that was asked for."""
        assert self.photo
        return self.photo


@dataclass(frozen=True)
class Treated:
    """A photo's new pixels with what is to be said about it.

    Args:
        tier: what is sealed in it or brought it back, or "stateless".
        notes: one line each.
        verified: as in :class:`Recovered`.
    """

    result: Result
    tier: str
    notes: tuple[str, ...] = ()
    verified: Verified = "unknown"


class Result(Protocol):
    """What :meth:`Task.treat` comes to."""

    @property
    def pixels(self) -> Pixels: ...

    @property
    def faces(self) -> Sequence[FaceReport]: ...


class Task(Protocol):
    """What is done to every photo of a run, in steps: files are read and written beside the device's work."""

    def open(self, source: Source, sidecar: Path | None = None) -> Opened:
        """Read a photo. Runs in any thread."""
        ...

    def ready(self, opened: Opened) -> None:
        """Make the engine, if the photo needs it and it is not made yet. What it raises concerns every photo."""
        ...

    def treat(self, opened: Opened) -> Treated:
        """Do the device's part."""
        ...

    def files(self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None) -> list[tuple[Path, Content]]:
        """What to write where, the photo itself last. Runs in any thread."""
        ...


@dataclass(frozen=True)
class Anonymizing:
    """How photos are anonymized; the fields are as in :func:`anonymize`."""

    key: Key
    engine: Engine | Callable[[], Engine] = default_engine
    seal: Tier = "file"
    consistent: bool = False
    stateless: bool = False
    boxes: Sequence[Box] = ()
    kdf: Argon2 | None = None
    faces: Chosen = "all"
    faceless: bool = False
    quality: int = QUALITY
    keep_metadata: bool = False
    max_pixels: int = MAX_PIXELS

    def open(self, source: Source, sidecar: Path | None = None) -> Opened:
        data, photo = open_photo(source, self.max_pixels)
        if self.seal == "face" and photo.deep is not None:
            raise UsageError(
                f"{_called(source)!r} has 16 bits a channel, of which --seal face keeps 8",
                "--seal file brings all of it back",
            )
        name = name_of(source)
        if name and _mark(name) == "anon":
            photo = replace(photo, notes=(*photo.notes, "it is named like a photo that was anonymized before"))
        return Opened(name, data if self.seal == "file" else b"", photo)

    def ready(self, opened: Opened) -> None:
        _made(self.engine)

    def treat(self, opened: Opened) -> Treated:
        result = _made(self.engine).anonymize(
            opened.decoded.pixels,
            self.key,
            consistent=self.consistent or self.stateless,
            boxes=tuple(self.boxes),
            kdf=self.kdf,
            faces=self.faces,
            faceless=self.faceless,
            sealed=self.seal != "none" and not self.stateless,
        )
        notes = (*opened.decoded.notes, *(result.notes if result.faces else ["no face was found; only copied"]))
        return Treated(result, "stateless" if self.stateless else self.seal, notes)

    def files(self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None) -> list[tuple[Path, Content]]:
        photo, pixels = opened.decoded, treated.result.pixels
        image = _encoded(target, photo, pixels, self.quality, self.keep_metadata)
        if self.stateless:
            return [(target, image)]
        header: Header = treated.result.header  # type: ignore[attr-defined]
        if self.seal == "file":
            suffix = opened.source.suffix if opened.source else SUFFIXES.get(photo.format, f".{photo.format}")
            contents = sealing.of_file(opened.data, suffix, carriers.picture_digest(image))
            record = sealing.seal(header, self.key, contents)
        elif self.seal == "face":
            contents = sealing.of_pixels(header, photo.pixels, pixels, photo.alpha)
            record = sealing.seal(header, self.key, contents)
        else:
            record = container.encode(header)
        files: list[tuple[Path, Content]] = [(target, carriers.embedded(image, record))]
        if sidecar:
            files = [(sidecar, record), (target, image)]
        for _, made in files:
            if size_of(made) > MAX_FILE_BYTES:
                raise LimitError(
                    f"the result takes {size_of(made) >> 20} MiB, more than could be read again",
                    "keep the record apart with --sidecar, or seal less with --seal face",
                )
        return files


@dataclass(frozen=True)
class Recovering:
    """How photos are led back; the fields are as in :func:`recover`.

    ``spared`` are files that no original may take the name of, under whatever suffix it brings, and no decoy.
    """

    key: Key | Callable[[Header | None], Key]
    engine: Engine | Callable[[str], Engine] = default_engine
    unsealed: bool = False
    decoy: bool = False
    stateless: bool = False
    original_suffix: bool = False
    faces: Chosen = "all"
    quality: int = QUALITY
    max_pixels: int = MAX_PIXELS
    spared: Spared = Spared()  # noqa: RUF009 (nothing is spared, and nothing changes that)

    def open(self, source: Source, sidecar: Path | None = None) -> Opened:
        name, called = name_of(source), _called(source)
        if self.stateless or not is_file(source):
            data, seen = open_photo(source, self.max_pixels)
            if _needs_record(data):
                raise UsageError(
                    f"{called!r} was anonymized without --stateless, and key and pixels are not enough",
                    "leave --stateless out",
                )
            return Opened(name, b"", seen)
        data = read_source(source)
        record = read_record(called, data, sidecar)
        header = container.decode(record)
        contents = NOTHING
        verified: Verified = "yes" if header.seal else "unknown"
        try:
            contents = sealing.unseal(header, container.payload(record), self._key(header))
        except WrongKeyError:
            if not self.decoy:
                raise
            verified = "no"
        photo = None
        if contents.tier != "file" or self.unsealed:
            photo = read_photo(data, self.max_pixels, str(name or ""))
        elif not sidecar:
            sealing.check_picture(contents, carriers.picture_digest(data))
        notes = self._belonging(name, data, header, contents, sidecar) if sidecar and contents.tier == "file" else ()
        return Opened(name, b"", photo, header, contents, verified, notes)

    def _belonging(
        self, name: Path, data: bytes, header: Header, contents: sealing.Contents, sidecar: Path
    ) -> tuple[str, ...]:
        """Notes on a picture whose original another file holds; none if it is as it was written, or is that file.

        Raises:
            ContainerError: it is another photo.
        """
        if carriers.kind(data) in ("png", "jpeg", "webp") and carriers.picture_digest(data) == contents.binding:
            return ()
        if os.path.realpath(name) == os.path.realpath(sidecar):
            return ("the original is taken from the record, whatever the picture shows",)
        try:
            picture, original = (read_photo(file, self.max_pixels, str(name)) for file in (data, bytes(contents.data)))
        except AnonfaceError:
            return ("whether the original belongs to this picture could not be told: one of them cannot be read",)
        if sealing.resembles(header, original.pixels, picture.pixels):
            return ("the picture was saved again since it was written; the original is the record's",)
        raise ContainerError(
            f"{str(sidecar)!r} belongs to another photo than {str(name)!r}",
            f"to take the original that it holds nevertheless, recover {str(sidecar)!r} with itself as --sidecar",
        )

    def ready(self, opened: Opened) -> None:
        if self._tier(opened) == "none":
            self._engine(opened.header)

    def treat(self, opened: Opened) -> Treated:
        header, contents, tier = opened.header, opened.contents, self._tier(opened)
        notes = (*opened.notes, *(opened.photo.notes if opened.photo else ()))
        said = "none" if header else "stateless"
        if header and tier == "file":
            original = Recovered("file", opened.verified, header.reports(), None, bytes(contents.data))
            return Treated(original, tier, notes, opened.verified)
        photo = opened.decoded
        if header and tier == "face":
            pixels, faces = sealing.mended(header, contents, photo.pixels, photo.alpha), header.reports()
            said = tier
        else:
            key = sealing.network_key(contents, self._key(header))
            result = self._engine(header).recover(photo.pixels, key, header, faces=self.faces)
            pixels, faces, notes = result.pixels, result.faces, (*notes, *result.notes)
            if contents.tier == "none" and contents.network_key:
                notes = (
                    *notes,
                    "it was rekeyed with nothing sealed in it: nobody could tell whether the old key was right",
                )
        return Treated(
            Recovered(tier, opened.verified, faces, None, _pixels=pixels), said, notes, verified=opened.verified
        )

    def files(self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None) -> list[tuple[Path, Content]]:
        if self._tier(opened) == "file":
            target = self._original_target(opened, target)
            return [(target, treated.result.original)]  # type: ignore[attr-defined]
        if treated.verified == "no" and self.original_suffix:
            target = self._checked(_decoy_name(target), opened)
        return [(target, _encoded(target, opened.decoded, treated.result.pixels, self.quality))]

    def _engine(self, header: Header | None) -> Engine:
        if callable(self.engine):
            return self.engine(header.backend if header else DEFAULT_BACKEND)
        return self.engine

    def _key(self, header: Header | None) -> Key:
        return self.key(header) if callable(self.key) else self.key

    def _tier(self, opened: Opened) -> Tier:
        """What leads the photo back."""
        return "none" if self.unsealed else opened.contents.tier

    def _original_target(self, opened: Opened, target: Path) -> Path:
        """Where a sealed original goes, which has a suffix of its own."""
        suffix = opened.contents.suffix
        own = target.with_suffix(suffix)
        if self.original_suffix:
            return self._checked(own, opened)
        if _same_format(target.suffix) != _same_format(suffix):
            raise UsageError(
                f"the sealed original is a {suffix or 'file without a suffix'}, {str(target)!r} names another format",
                f"name it {own}, or give a folder",
            )
        return target

    def _checked(self, target: Path, opened: Opened) -> Path:
        """A name that was not known when the run was laid out; whether it exists is seen when it is written."""
        check_target(target, opened.source, overwrite=True)
        if target in self.spared:
            raise OutputError(f"{str(target)!r} is read or written by this very command", "choose another output")
        return target


def _decoy_name(target: Path) -> Path:
    """photo.recovered.png -> photo.decoy.png, so that no decoy stands where a recovery belongs."""
    name = Path(_RESULT.sub(r"\2", target.name))
    return target.with_name(f"{name.stem}.{_DECOY}{name.suffix}")


def _made(engine: Engine | Callable[[], Engine]) -> Engine:
    return engine() if callable(engine) else engine


def _needs_record(data: bytes) -> bool:
    """Whether a file carries a record, and one without which key and pixels are not enough."""
    try:
        record = carriers.extract(data)
        return record is not None and not container.decode(record).consistent
    except ContainerError:  # damaged, or of another version
        return False


def _same_format(suffix: str) -> str:
    return FORMATS.get(suffix.lower(), suffix.lower())


def anonymize(
    photo: Source,
    key: Key,
    output: str | Path | None = None,
    *,
    engine: Engine | Callable[[], Engine] = default_engine,
    seal: Tier | None = None,
    consistent: bool = False,
    stateless: bool = False,
    boxes: Sequence[Box] = (),
    kdf: Argon2 | None = None,
    faces: Chosen = "all",
    faceless: bool = False,
    sidecar: str | Path | None = None,
    quality: int = QUALITY,
    keep_metadata: bool = False,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Anonymized:
    """Make everybody in a photo somebody else.

    Args:
        photo: a file (its path, its bytes, or open in binary mode), or pixels: [H, W, 3] uint8 RGB, or a PIL image.
        key: decides who they become.
        output: the file to write; its suffix (.png, .webp, .jpg) says how. None writes nothing.
        engine: an engine, or what gives one when the photo has been read.
        seal: what is stored, encrypted: the whole original "file" (the default), the "face" pixels alone, or "none".
            Of an array or a PIL image, which are no files, the face pixels.
        consistent: the same person becomes the same other person in every photo under this key.
        stateless: write no record, so that pixels and key alone lead back; implies ``consistent``.
        boxes: (x, y, w, h) in pixels of faces that the detector misses.
        kdf: how ``key`` was stretched from a passphrase, when it was; goes into the record.
        faces: "all", "largest", or the numbers of those to change, counted from 0, from top-left to bottom-right.
        faceless: write a photo without a face as it is, instead of refusing it.
        sidecar: write the record into this file instead of into the image.
        quality: of JPEG, 1 to 100; the other formats are lossless.
        keep_metadata: keep how the photo was taken (exposure, lens, density), nothing of where, when or by whom.
        overwrite: replace ``output`` where it exists.
        max_pixels: larger photos are refused.

    Returns:
        The new pixels, a report on every face, and the header that :func:`recover` wants for arrays.

    Raises:
        AnonfaceError: one of its kinds, see :mod:`anonface.errors`.
    """
    target, beside = _path(output), _path(sidecar)
    tier = chosen_tier(seal, target, stateless, array=not is_file(photo))
    task = Anonymizing(
        key, engine, tier, consistent, stateless, boxes, kdf, faces, faceless, quality, keep_metadata, max_pixels
    )
    named = {"output": target, "sidecar": beside}
    refuse_conflicts((), [Output(file, what) for what, file in named.items() if file])
    for file in filter(None, (target, beside)):
        check_target(file, name_of(photo), overwrite)
    opened = task.open(photo)
    treated = task.treat(opened)
    if target:
        write_files(task.files(opened, treated, target, beside), overwrite)
    return treated.result  # type: ignore[return-value]


def chosen_tier(seal: Tier | None, target: Path | None, stateless: bool, array: bool = False) -> Tier:
    """What is to be sealed, by default the file.

    Raises:
        UsageError: the output cannot bring that back.
    """
    if stateless:
        if seal not in (None, "none"):
            raise UsageError(f"--stateless stores nothing, so --seal {seal} has no place", "leave one of them out")
        return "none"
    tier: Tier = seal or "file"
    if array and tier == "file":
        tier = "face"
    if tier == "face" and target and format_of(target) == "jpeg":
        raise UsageError(
            "JPEG changes the pixels around the faces, so --seal face cannot bring the original back from it",
            "write PNG or WebP, or use --seal file",
        )
    return tier


@dataclass(frozen=True)
class Recovered:
    """A photo led back.

    Args:
        tier: what brought it back: the sealed "file", the sealed "face" pixels, or the networks ("none").
        verified: whether the key was the right one: "yes" or "no" (of a decoy) where a seal tells, else "unknown".
        faces: what became of each face.
        file: what was written, if anything.
        original: the original file's bytes, of tier "file".
    """

    tier: Tier
    verified: Verified
    faces: list[FaceReport]
    file: Path | None
    original: bytes | None = None
    _pixels: Pixels | None = None

    @cached_property
    def pixels(self) -> Pixels:
        """[H, W, 3] uint8 RGB, upright. Of an original file they are decoded when they are first asked for."""
        if self._pixels is not None:
            return self._pixels
        assert self.original is not None
        return read_photo(self.original, sys.maxsize).pixels


def recover(
    photo: Source,
    key: Key | Callable[[Header | None], Key],
    output: str | Path | None = None,
    *,
    engine: Engine | Callable[[str], Engine] = default_engine,
    header: Header | None = None,
    sidecar: str | Path | None = None,
    unsealed: bool = False,
    decoy: bool = False,
    stateless: bool = False,
    original_suffix: bool = False,
    faces: Chosen = "all",
    quality: int = QUALITY,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Recovered:
    """Lead an anonymized photo back, by the best that its record offers.

    Args:
        photo: a file or pixels, as in :func:`anonymize`.
        key: the one it was anonymized under, or what gives it once the header is known.
        output: the file to write; None writes nothing. A sealed original is written as it was, byte for byte.
        engine: an engine, or what gives that of a record's backend when the networks are needed.
        header: what :func:`anonymize` returned. Pixels without one are recovered by themselves and the key alone.
        sidecar: the file that holds the record of a photo file: a sidecar, or an image.
        unsealed: let the networks lead back, whatever is sealed. Where nothing is, a wrong key leads to some other
            plausible person, and nobody can tell.
        decoy: under a wrong key, let the networks make of it what they can.
        stateless: recover a photo file from pixels and key alone, whatever record it carries.
        original_suffix: a sealed original replaces the suffix of ``output`` by its own, and a decoy is called so; else
            the name stays as it is, and the suffix must agree.
        faces: as in :func:`anonymize`, for photos without a record; a record says it itself.
        quality, overwrite, max_pixels: as in :func:`anonymize`.

    Raises:
        ContainerError: the file carries no record, and no ``sidecar``, ``header`` or ``stateless`` is given.
        WrongKeyError: the photo was sealed under another key, and no ``decoy`` is asked for.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    without_record = stateless or header is not None
    target, beside = _path(output), _path(sidecar)
    read = [Input(beside, "the sidecar")] if beside else []
    spared = Spared(file.path for file in read)
    task = Recovering(key, engine, unsealed, decoy, without_record, original_suffix, faces, quality, max_pixels, spared)
    if target:
        refuse_conflicts(read, [Output(target, "output")])
        check_target(target, name_of(photo), overwrite)
    opened = task.open(photo, beside)
    if header is not None:
        opened = replace(opened, header=header)
    if target and opened.photo:
        format_of(target)
    result: Recovered = (treated := task.treat(opened)).result  # type: ignore[assignment]
    if target:
        files = task.files(opened, treated, target, beside)
        write_files(files, overwrite)
        result = replace(result, file=files[-1][0])
    return result


def _called(source: Source) -> str:
    """What messages call a source."""
    return str(name_of(source) or "the photo")


def read_record(called: str, data: bytes, sidecar: Path | None = None) -> bytes:
    """The record of an anonymized photo, from its sidecar when one is named; not yet decoded.

    Args:
        called: the photo's name, for messages.
        data: its bytes.

    Raises:
        ContainerError: there is none, or the file's structure is broken.
    """
    return carriers.expect(read_file(sidecar) if sidecar else data, called)


def strip(source: Path, target: Path, *, overwrite: bool = False) -> None:
    """Write an anonymized photo without its record.

    Raises:
        ContainerError: it carries none, or is itself one.
        UsageError: ``target`` names another format than the file has: pixels are not encoded anew.
        OutputError: ``target`` must not or cannot be written.
    """
    check_target(target, source, overwrite)
    data = read_file(source)
    kind = carriers.kind(data)
    if kind == "sidecar":
        raise ContainerError(
            f"{str(source)!r} is a record and no photo", "its photo carries none: there is nothing to strip"
        )
    bare = data if kind == "other" else carriers.strip(data)
    if bare == data:
        raise ContainerError(f"{str(source)!r} carries no anonface record", "there is nothing to strip")
    _check_kind(source, kind, target)
    write_files([(target, bare)], overwrite)


def rekey(
    source: Path, old: Key | Callable[[Header | None], Key], new: Key, target: Path, *, overwrite: bool = False
) -> Verified:
    """Write an anonymized photo, or a sidecar, sealed under another key. See :func:`anonface.sealing.rekeyed`.

    Returns:
        Whether ``old`` was the right key: "yes", or "unknown" where nothing was sealed under it.

    Raises:
        WrongKeyError: ``old`` is not the key that it was sealed under.
        UsageError: the two keys are one, or ``target`` names another format than the file has.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    check_target(target, source, overwrite)
    data = read_file(source)
    record = carriers.expect(
        data, str(source), "name its sidecar, if it has one; a photo made with --stateless keeps its key for good"
    )
    header = container.decode(record)
    chosen = old(header) if callable(old) else old
    if chosen == new:
        raise UsageError("the old key and the new one are the same", "`anonface keygen` makes another")
    try:
        record = sealing.rekeyed(header, container.payload(record), chosen, new)
    except WrongKeyError:
        raise WrongKeyError(
            f"{str(source)!r} was sealed under another key than the old one given",
            "give the key that leads it back now",
        ) from None
    kind = carriers.kind(data)
    _check_kind(source, kind, target)
    write_files([(target, record if kind == "sidecar" else carriers.embedded(data, record))], overwrite)
    return "yes" if header.seal else "unknown"


def _check_kind(source: Path, kind: str, target: Path) -> None:
    """Whether a file's new name says what the file is, and will be.

    Raises:
        UsageError: it does not.
    """
    suffixes = {".anf": "sidecar", **FORMATS}
    if suffixes.get(target.suffix.lower()) != kind:
        named = {"sidecar": ".anf", **SUFFIXES}[kind]
        raise UsageError(
            f"{str(source)!r} is a {kind} file and stays one, which the name {str(target)!r} does not say",
            f"name it {target.with_suffix(named)}",
        )


def format_of(target: Path) -> str:
    """png, webp or jpeg, by the suffix.

    Raises:
        UsageError: any other suffix.
    """
    try:
        return FORMATS[target.suffix.lower()]
    except KeyError:
        raise UsageError(
            f"the name {str(target)!r} does not say which format to write",
            f"end it with {', '.join(SUFFIXES.values())}, or with / for a folder",
        ) from None


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)


def open_photo(photo: Source, max_pixels: int = MAX_PIXELS) -> tuple[bytes, Photo]:
    """:func:`anonface.sources.open_source`."""
    return open_source(photo, max_pixels)


def _encoded(target: Path, opened: Photo, pixels: Pixels, quality: int, keep_metadata: bool = False) -> bytes:
    return encode_photo(replace(opened, pixels=pixels), format_of(target), quality, keep_metadata)


def write_files(files: Sequence[tuple[Path, Content]], overwrite: bool) -> None:
    """Write a photo's files, the record before the photo: without its record it could never be led back.

    Raises:
        OutputError: one cannot be written; none is there then.
    """
    for file, _ in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder {file.parent} cannot be made: {reason(error)}", remedy(error)) from error
    write_together(files, overwrite)


# --- Which photos, and what they become ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One photo to treat: the file, what it becomes, and where its record lies when that is a file of its own.

    ``named`` says that the user chose the target's name, its suffix included; otherwise a sealed original that is led
    back takes its own suffix in place of the target's.
    """

    direction: Direction
    source: Path
    target: Path
    sidecar: Path | None = None
    named: bool = False

    @property
    def outputs(self) -> tuple[Path, ...]:
        """The files that the job writes, the photo last."""
        return (self.sidecar, self.target) if self.sidecar and self.direction == "anonymize" else (self.target,)

    def written_as(self, file: Path) -> Job:
        """The job once it is known under which name, in the target's folder, its photo was written."""
        return replace(self, target=self.target.with_name(file.name))


def plan(
    paths: Sequence[str],
    direction: Direction,
    *,
    output: str | None = None,
    name: str | None = None,
    format: str | None = None,
    sidecar: str | None = None,
    recursive: bool = False,
) -> list[Job]:
    """Lay out a run without touching anything.

    Args:
        paths: files, folders, and patterns with ``*``, ``?``, ``[]`` and ``**``. Where a file bears a pattern's name,
            the file is meant. Folders and patterns pass over the results of earlier runs: anonymizing takes no
            ``*.anon.*`` and ``*.recovered.*``; recovering a folder takes ``*.anon.*`` alone.
        output: a file for one photo (a folder when it is one or ends with a slash); else a folder, in which the tree
            below the deepest folder that all inputs share is repeated. None writes beside each photo.
        name: how a result is called: text with ``{stem}`` (the photo's name without its suffix and mark), ``{suffix}``
            (the photo's), ``{mark}`` (anon or recovered) and ``{ext}`` (the result's suffix, with its dot).
        format: png, webp or jpeg; None goes by the name of ``output``, or takes png.
        sidecar: as ``output``; in a folder, records are named after the anonymized photos with ``.anf`` appended.
        recursive: look into folders of folders.

    Raises:
        UsageError: nothing found, two inputs with one output, an output that is an input, or a senseless ``name``.
    """
    template = _template(name or DEFAULT_NAME)
    found = find(paths, direction, recursive)
    alone = len(paths) == 1 and not is_folder(paths[0]) and not is_pattern(paths[0])
    top = Path(os.path.commonpath([root.absolute() for root, _ in found]))
    jobs = []
    for _, source in found:
        branch = source.absolute().parent.relative_to(top)
        called = _result_name(template, source, direction, format or "png")
        target = _place(output, alone, branch, called) or source.with_name(called)
        if name and target.name != called:
            raise UsageError(f"--name says what is written in a folder, and {output} names a file", "give one of them")
        named = output is not None and alone and not _is_folder(output)
        # a sealed original may have any suffix: a name for what is recovered is judged once the record is known
        if (format or direction == "anonymize" or not named) and format not in (None, format_of(target)):
            raise UsageError(f"--format {format} contradicts the name {str(target)!r}")
        anonymized = target if direction == "anonymize" else source
        beside = _place(sidecar, alone, branch, f"{anonymized.name}.anf")
        jobs.append(Job(direction, source, target, beside, named))
    refuse_conflicts([Input(job.source) for job in jobs], outputs_of(jobs, any_suffix=True), COLLISION_HINT)
    return jobs


def journal_folder(paths: Sequence[str], output: str | None) -> Path:
    """Where a run over several photos keeps its journal: among its results, or at the top of its first input."""
    if output is not None:
        return Path(output)
    first = Path(paths[0])
    if is_pattern(paths[0]):
        return fixed_part(paths[0])
    return first if is_folder(first) else first.parent


def find(paths: Sequence[str], direction: Direction, recursive: bool) -> list[tuple[Path, Path]]:
    """The photos meant by ``paths``, each once, with the folder that its tree is counted from. See :func:`plan`."""
    found: dict[str, tuple[Path, Path]] = {}
    for path in paths:
        if is_pattern(path):
            root, files = _matching(path, direction)
        elif is_folder(path):
            root, files = Path(path), _inside(Path(path), direction, recursive)
        else:
            root, files = Path(path).parent, [Path(path)]
        if not files:
            raise _nothing_found(path, direction, recursive)
        for file in files:
            found.setdefault(os.path.realpath(file), (root, file))
    return list(found.values())


def _nothing_found(path: str, direction: Direction, recursive: bool) -> UsageError:
    """Says what there is instead, and what may help."""
    left = passed_over([path], direction, recursive)
    pattern = is_pattern(path)
    hint = ""
    if pattern and (literal := taken_literally(path)):
        hint = f"brackets, * and ? stand for others; to take them as they are: {literal!r}"
    elif not pattern and not recursive and _inside(Path(path), direction, recursive=True):
        hint = "--recursive looks into the folders of a folder"
    what = f"{path!r} {'matches' if pattern else 'holds'} no photo to {direction}"
    return UsageError(f"{what}: {in_words(left)}" if left else what, hint)


def _matching(pattern: str, direction: Direction) -> tuple[Path, list[Path]]:
    taken = [file for file in matches(pattern).files if direction == "recover" or not _mark(file)]
    return fixed_part(pattern), taken


def folders_left_out(paths: Sequence[str], recursive: bool) -> tuple[list[Path], list[Path]]:
    """The links to folders among ``paths`` that lead where a search has been already, and folders that none can read.

    Each real folder is searched once, under its own name where that lies in the tree.
    """
    found = Search()
    for path in paths:
        if is_pattern(path):
            found += matches(path)
        elif is_folder(path):
            found += search(path, recursive)
    return found.again, found.unreadable


def passed_over(paths: Sequence[str], direction: Direction, recursive: bool) -> dict[str, int]:
    """How many files of the folders and patterns among ``paths`` are not taken, by their suffixes, most first.

    Those are what is no photo by its suffix, this program's own results (".anon.png"), and where results are wanted,
    all other photos.
    """
    left: dict[str, str] = {}
    for path in paths:
        if is_pattern(path):
            files, taken = matches(path).files, _matching(path, direction)[1]
        elif is_folder(path):
            files, taken = search(path, recursive).files, _inside(Path(path), direction, recursive)
        else:
            continue
        for file in set(files) - set(taken):
            mark = _mark(file)
            left[os.path.realpath(file)] = f"{mark and '.'}{mark}{file.suffix.lower()}"
    suffixes = Counter(suffix for suffix in left.values() if suffix not in OWN_FILES)
    return dict(sorted(suffixes.items(), key=lambda item: (-item[1], item[0])))


def in_words(left: Mapping[str, int]) -> str:
    """What :func:`passed_over` counts, as "4 files passed over; results: 1 .anon.png; no photos by name: 3 .txt"."""
    kinds: dict[str, list[str]] = {}
    for suffix, count in left.items():
        photo = Path(f"photo{suffix}").suffix in SEARCHED
        why = "no photos by name" if not photo else "results" if suffix.count(".") > 1 else "not named *.anon.*"
        kinds.setdefault(why, []).append(f"{count} {suffix or 'without a suffix'}")
    for shown in kinds.values():
        shown[MOST_SUFFIXES:] = ["and others"] * (len(shown) > MOST_SUFFIXES)
    total = sum(left.values())
    parts = [f"{total} {'file' if total == 1 else 'files'} passed over"]
    return "; ".join(parts + [f"{why}: {', '.join(shown)}" for why, shown in kinds.items()])


def _inside(folder: Path, direction: Direction, recursive: bool) -> list[Path]:
    files = search(folder, recursive).files
    return [file for file in files if file.suffix.lower() in SEARCHED and _mark(file) == _EXPECTED[direction]]


def _mark(file: Path) -> str:
    """The mark of this program's results, "anon", "recovered" or "decoy"; nothing on other names."""
    result = _RESULT.search(file.name)
    return result[1].lower() if result else ""


def _template(text: str) -> str:
    """The text, if it names files by fields of :func:`plan` and nothing else."""
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise UsageError(f"--name {text!r}: {error}", f"for example {DEFAULT_NAME!r}") from None
    for name, spec, conversion in fields:
        if name is not None and (name not in _FIELDS or spec or conversion):
            known = ", ".join(f"{{{field}}}" for field in _FIELDS)
            raise UsageError(f"--name {text!r} has a field that is not known", f"there are {known}")
    if "/" in text or os.sep in text or "\0" in text:
        raise UsageError(f"--name {text!r} is not the name of a file", "-o says which folder")
    return text


def _result_name(template: str, source: Path, direction: Direction, format: str) -> str:
    """photo.jpg -> photo.anon.png, photo.anon.png -> photo.recovered.png."""
    name = Path(_RESULT.sub(r"\2", source.name) if direction == "recover" else source.name)
    return template.format(stem=name.stem, suffix=name.suffix, mark=_MARKS[direction], ext=SUFFIXES[format])


def _place(chosen: str | None, alone: bool, branch: Path, name: str) -> Path | None:
    if chosen is None:
        return None
    if _is_folder(chosen):
        return Path(chosen) / branch / name
    if alone:
        return Path(chosen)
    if Path(chosen).suffix.lower() in {*FORMATS, ".anf"}:
        raise UsageError(f"{chosen!r} names one file, for perhaps several photos", "end it with / if it is a folder")
    return Path(chosen) / branch / name


def _is_folder(chosen: str) -> bool:
    return is_folder(chosen) or chosen.endswith(("/", os.sep))


def existing(job: Job) -> Path | None:
    """The job's result, if it is there; a recovered photo's suffix may be its original's."""
    if job.direction == "anonymize" or job.named:
        return job.target if is_there(job.target) else None
    bare = job.target.with_suffix("")
    candidates = (bare, job.target, *sorted(bare.parent.glob(f"{glob.escape(bare.name)}.*")))
    return next((file for file in candidates if bare in (file, file.with_suffix("")) and is_there(file)), None)


def outputs_of(jobs: Sequence[Job], any_suffix: bool = False) -> list[Output]:
    """What the jobs write; ``any_suffix`` where the originals of recovered photos may bring suffixes of their own."""
    return [
        Output(
            file,
            f"the output of {str(job.source)!r}",
            job.source,
            any_suffix and job.direction == "recover" and not job.named,
        )
        for job in jobs
        for file in job.outputs
    ]


# --- Many photos -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of one photo.

    Args:
        faces: one entry a face, kept ones included.
        tier: what recovery can build on, see :class:`Treated`; empty where nothing was written.
        seconds: from reading to writing, waiting left out.
        notes: what its owner may want to know, one line each.
        ends: the next photo would fare no better, so it was the last.
        resumed: an earlier run wrote it.
        verified: whether the key was the right one, of a recovered photo.
    """

    job: Job
    state: State
    faces: tuple[FaceReport, ...] = ()
    tier: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    error: AnonfaceError | None = None
    ends: bool = False
    resumed: bool = False
    verified: Verified = "unknown"

    @property
    def exact(self) -> bool:
        """Of a recovered photo: whether the file that was written shows every pixel of the original."""
        lossless = FORMATS.get(self.job.target.suffix.lower()) != "jpeg"
        return self.tier == "file" or (self.tier == "face" and lossless)

    def record(self) -> Record:
        """For reports and journals; names files, and holds no digest, no code of a face and no key."""
        written = self.state in WRITTEN
        error = self.error
        return {
            "input": str(self.job.source),
            "output": str(self.job.target) if written else None,
            "sidecar": str(self.job.sidecar) if self.job.sidecar and written else None,
            "state": self.state,
            "resumed": self.resumed,
            "tier": self.tier or None,
            "seconds": round(self.seconds, 3),
            "faces": [
                {
                    "index": face.index,
                    "kind": face.kind,
                    "reason": face.reason,
                    "box" if face.seen else "crop": [round(v, 1) for v in face.box],
                }
                for face in self.faces
            ],
            "warnings": list(self.notes),
            **({"verified": self.verified, "exact": self.exact} if self.job.direction == "recover" else {}),
            "error": {"code": error.exit_code, "message": error.message, "hint": error.hint} if error else None,
        }

    @classmethod
    def resume(cls, job: Job, record: Record) -> Outcome:
        """What an earlier run noted about a photo that it finished."""
        faces = [
            FaceReport(
                face["index"], face["kind"], tuple(face.get("box") or face["crop"]), face["reason"], "box" in face
            )
            for face in record["faces"]
        ]
        job = job.written_as(Path(record["output"]))
        return cls(
            job,
            record["state"],
            tuple(faces),
            record["tier"] or "",
            record["seconds"],
            tuple(record["warnings"]),
            error=_decoy(job) if record["state"] == "decoy" else None,
            resumed=True,
            verified=record.get("verified", "unknown"),
        )


@dataclass(frozen=True)
class Rules:
    """What a run does with single photos.

    Args:
        overwrite: replace outputs that exist.
        skip_existing: pass over photos whose output exists.
        skip_faceless: pass over photos without a face.
        journal: notes what is written, and knows what an earlier run has written.
    """

    overwrite: bool = False
    skip_existing: bool = False
    skip_faceless: bool = False
    journal: Journal | None = None

    def sort_out(self, jobs: Sequence[Job], tell: Callable[[Outcome], None]) -> list[Job]:
        """The jobs that are to be done; of the others is told what became of them."""
        ready = []
        for job in jobs:
            if self.journal and (record := self.journal.finished(job.outputs)):
                tell(Outcome.resume(job, record))
            elif self.skip_existing and (there := existing(job)):
                tell(Outcome(job, "skipped", notes=(f"{str(there)!r} exists",)))
            else:
                try:
                    for file in job.outputs:
                        check_target(file, job.source, self.overwrite)
                    ready.append(job)
                except OutputError as error:
                    tell(Outcome(job, "failed", error=error))
        return ready

    def failed(self, job: Job, raised: Exception, seconds: float = 0.0, ends: bool = False) -> Outcome:
        """What becomes of a photo that raises."""
        error = explained(raised)
        if isinstance(error, NoFaceError) and self.skip_faceless:
            return Outcome(job, "skipped", seconds=seconds, notes=(error.message,))
        # A device that is out of memory may do for a smaller photo; a lost one, or missing weights, will not.
        lost = isinstance(error, DeviceError) and not error.message.startswith(OUT_OF_MEMORY)
        ends = ends or lost or isinstance(error, WeightsError)
        return Outcome(job, "failed", seconds=seconds, error=error, ends=ends)

    def note(self, job: Job, outcome: Outcome, sizes: Sequence[tuple[Path, int]]) -> None:
        """Into the journal, before the files are written."""
        if self.journal:
            self.journal.note(sizes, outcome.record(), job.target)


NO_RULES = Rules()


def done(job: Job, treated: Treated, files: Sequence[tuple[Path, Content]], seconds: float) -> Outcome:
    """What becomes of a photo once its files are written."""
    faces = tuple(treated.result.faces)
    job = job.written_as(files[-1][0])
    decoy = treated.verified == "no"
    state: State = "decoy" if decoy else "done" if faces else "copied"
    error = _decoy(job) if decoy else None
    return Outcome(job, state, faces, treated.tier, seconds, treated.notes, error, verified=treated.verified)


def _decoy(job: Job) -> WrongKeyError:
    return WrongKeyError(
        f"the key is not the one that this photo was sealed under; {str(job.target)!r} is a decoy",
        "give the right key for the original",
    )


@dataclass
class _InHand:
    """A photo on its way through a run."""

    job: Job
    opened: Future[tuple[Opened, float]] | None = None
    outcome: Outcome | None = None
    written: Future[None] | None = None


def run(
    jobs: Sequence[Job], task: Task, tell: Callable[[Outcome], None], rules: Rules = NO_RULES, workers: int = 1
) -> None:
    """Do the jobs in their order: photos are read ahead and written behind while the device works on one.

    All outputs are checked before the first photo; a photo that fails stops no other. An interrupt discards the photo
    that the device has in hand, and those behind it are written to their end and told before it goes on its way. What
    is raised after :mod:`anonface.signals` has received one is taken for it.

    Args:
        tell: called once a photo, in the order of the jobs save those that need no work, which come first.
        workers: threads. As many photos are read ahead, and as many wait to be written: memory holds at most
            2 * ``workers`` + 1 of them.
    """
    waiting = deque(rules.sort_out(jobs, tell))
    ahead: deque[_InHand] = deque()
    behind: deque[_InHand] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="anonface")

    def read_ahead() -> None:
        while waiting and len(ahead) < workers:
            ahead.append(_InHand(waiting.popleft()))
            ahead[-1].opened = pool.submit(_timed_open, task, ahead[-1].job)

    def close(hand: _InHand, opened: Opened, treated: Treated, seconds: float) -> None:
        started = time.perf_counter()
        try:
            files = task.files(opened, treated, hand.job.target, hand.job.sidecar)
            outcome = done(hand.job, treated, files, seconds + time.perf_counter() - started)
            rules.note(hand.job, outcome, [(file, size_of(data)) for file, data in files])
            write_files(files, rules.overwrite)
            hand.outcome = outcome
        except Exception as raised:
            hand.outcome = rules.failed(hand.job, raised, seconds + time.perf_counter() - started)

    try:
        ends = False
        while (waiting or ahead) and not ends:
            signals.heed()
            read_ahead()
            hand = ahead.popleft()
            behind.append(hand)
            read_ahead()
            ends = _treat(hand, task, rules, pool, close)
            while behind and (behind[0].outcome or len(behind) > workers):
                if (first := behind[0]).written:
                    first.written.result()
                assert first.outcome
                behind.popleft()
                tell(first.outcome)
    finally:
        for hand in ahead:
            if hand.opened:
                hand.opened.cancel()
        pool.shutdown(wait=True)
        for hand in behind:
            if hand.outcome:
                tell(hand.outcome)


def _treat(hand: _InHand, task: Task, rules: Rules, pool: ThreadPoolExecutor, close: Callable[..., None]) -> bool:
    """The device's part of one photo, which is handed on to be written. Whether the run ends with it."""
    assert hand.opened
    try:
        opened, seconds = hand.opened.result()
    except Exception as raised:
        hand.outcome = rules.failed(hand.job, raised)
        return hand.outcome.ends
    hand.opened = None  # as soon as it is written, nothing holds its pixels any more
    try:
        task.ready(opened)
    except Exception as raised:
        signals.heed()
        hand.outcome = rules.failed(hand.job, raised, ends=True)
        return True
    started = time.perf_counter()
    try:
        treated = task.treat(opened)
    except Exception as raised:
        signals.heed()
        hand.outcome = rules.failed(hand.job, raised, seconds + time.perf_counter() - started)
        return hand.outcome.ends
    hand.written = pool.submit(close, hand, opened, treated, seconds + time.perf_counter() - started)
    return False


def _timed_open(task: Task, job: Job) -> tuple[Opened, float]:
    started = time.perf_counter()
    opened = task.open(job.source, job.sidecar)
    return opened, time.perf_counter() - started


def explained(error: Exception) -> AnonfaceError:
    """The error as one of ours: running out of memory says what lowers the need, the unexpected is called so."""
    if isinstance(error, AnonfaceError):
        return error
    text = " ".join(str(error).split())
    if _NOT_LOADED.search(text):
        known: AnonfaceError = DeviceError(
            f"{OUT_OF_MEMORY}: {text}", "let this process take more memory and threads (see `ulimit -a`)"
        )
    elif isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
        known = DeviceError(
            OUT_OF_MEMORY, "lower --batch-size, refuse large photos with --max-pixels, or choose --device cpu"
        )
    else:
        known = AnonfaceError(
            f"unexpected {type(error).__name__}: {text}", "this is a bug; `anonface --debug ...` shows where it arose"
        )
    known.__cause__ = error
    return known
