"""The steps for one photo: open, process, and write as one or more files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from anonface.batch.face_files import FACES, encoded_faces
from anonface.crypto.keys import Argon2, Key
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    ImageError,
    LimitError,
    OutputError,
    UsageError,
    WrongKeyError,
    reason,
    remedy,
)
from anonface.images import (
    MAX_FILE_BYTES,
    MAX_PIXELS,
    Content,
    Photo,
    belonging,
    encode,
    encode_photo,
    read_file,
    read_photo,
    size_of,
    write_together,
)
from anonface.images.appearance import appearances
from anonface.images.paths import Protected, check_target
from anonface.images.sources import Source, is_file, name_of, open_source, read_source
from anonface.record import anf1, carriers, sealing
from anonface.record.anf1 import FaceReport, Header, Tier

if TYPE_CHECKING:
    from anonface.faces.locate import Chosen
    from anonface.pipeline import Anonymized, Engine


Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]
Direction = Literal["anonymize", "recover"]
State = Literal["done", "copied", "decoy", "skipped", "failed", "not reached"]
STATES: tuple[State, ...] = get_args(State)
Verified = Literal["yes", "unknown", "no"]
SUFFIXES = {"png": ".png", "webp": ".webp", "jpeg": ".jpg"}
FORMATS = {".png": "png", ".webp": "webp", ".jpg": "jpeg", ".jpeg": "jpeg"}
QUALITY = encode.QUALITY
RESULT = re.compile(rf"\.(anon\.{FACES}|anon|recovered|decoy)(\.\w+)$", re.IGNORECASE)
MARKS = {"anonymize": "anon", "recover": "recovered"}
_DECOY = "decoy"
NO_STATELESS = "leave out --stateless or --keep-regions"
EXPECTED = {"anonymize": "", "recover": "anon"}
DEFAULT_BACKEND = "inpaint"


@cache
def default_engine(backend: str = DEFAULT_BACKEND) -> Engine:
    """A backend's engine with default settings, made once."""
    from anonface.pipeline import Engine

    return Engine(backend)


Write = Callable[[Sequence[tuple[Path, Content]], bool], None]
"""Writes a photo's files, see :func:`write_files`."""
NOTHING = sealing.Contents("none")


@dataclass(frozen=True)
class Opened:
    """A photo that was read.

    Args:
        source: its name.
        data: its bytes, if they are to be encrypted.
        photo: the decoded photo; None where an encrypted original takes its place.
        header: of an anonymized photo's record.
        contents: of that record's payload.
        verified: whether the key was the right one, as in :class:`Recovered`.
        notes: for the user, one line each.
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
        """The decoded photo, which must have been read."""
        assert self.photo
        return self.photo


@dataclass(frozen=True)
class Treated:
    """A photo's new pixels, with notes on it.

    Args:
        tier: what is stored in it or recovered it, or "stateless".
        notes: one line each.
        verified: as in :class:`Recovered`.
    """

    result: Result
    tier: str
    notes: tuple[str, ...] = ()
    verified: Verified = "unknown"


class Result(Protocol):
    """The result of :meth:`Task.treat`."""

    @property
    def pixels(self) -> Pixels: ...

    @property
    def faces(self) -> Sequence[FaceReport]: ...


class Task(Protocol):
    """The steps for every photo of a run; files are read and written while the device works."""

    def open(self, source: Source, sidecar: Path | None = None) -> Opened:
        """Read a photo. Runs in any thread."""
        ...

    def ready(self, opened: Opened) -> None:
        """Make the engine, if the photo needs it and there is none yet. An error here concerns every photo."""
        ...

    def treat(self, opened: Opened) -> Treated:
        """Process the photo on the device."""
        ...

    def files(
        self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None, faces: Path | None = None
    ) -> list[tuple[Path, Content]]:
        """The files to write and their contents, the photo itself last. Runs in any thread."""
        ...


@dataclass(frozen=True)
class Anonymizing:
    """Anonymizes photos; the fields are as in :func:`anonymize`."""

    key: Key
    engine: Engine | Callable[[], Engine] = default_engine
    seal: Tier = "file"
    consistent: bool = False
    stateless: bool = False
    boxes: Sequence[Box] = ()
    kdf: Argon2 | None = None
    faces: Chosen = "all"
    faceless: bool = False
    quality: int | None = None
    keep_metadata: bool = False
    max_pixels: int = MAX_PIXELS
    keep_regions: Sequence[str] = ()
    check: bool = False
    detailed: bool = False

    def __post_init__(self) -> None:
        if self.keep_regions and self.stateless:
            raise UsageError("the regions that stay are in the record, and --stateless stores none", NO_STATELESS)

    def open(self, source: Source, sidecar: Path | None = None) -> Opened:
        data, photo = open_photo(source, self.max_pixels)
        if self.boxes:
            from anonface.faces.locate import check_boxes

            check_boxes(self.boxes, photo.pixels.shape)  # before any network is loaded
        if self.seal == "face" and photo.deep is not None:
            raise UsageError(
                f"{_called(source)!r} has 16 bits a channel, of which --seal face keeps 8",
                "--seal file keeps all of it",
            )
        name = name_of(source)
        if name and result_mark(name) == "anon":
            photo = replace(photo, notes=(*photo.notes, "its name is that of a photo that was anonymized before"))
        return Opened(name, data if self.seal == "file" else b"", photo)

    def ready(self, opened: Opened) -> None:
        _made(self.engine)

    def treat(self, opened: Opened) -> Treated:
        engine = _made(self.engine)
        result = engine.anonymize(
            opened.decoded.pixels,
            self.key,
            consistent=self.consistent or self.stateless,
            boxes=tuple(self.boxes),
            kdf=self.kdf,
            faces=self.faces,
            faceless=self.faceless,
            sealed=self.seal != "none" and not self.stateless,
            keep_regions=tuple(self.keep_regions),
            check=self.check,
            detailed=self.detailed,
        )
        for cause, shown in appearances(replace(opened.decoded, pixels=result.pixels)):
            if unreported := engine.unreported(shown, result.faces):
                x, y = (round(v) for v in unreported[0][:2])
                raise ImageError(
                    f"a face at {x},{y} shows through {cause} alone, and would stay",
                    "flatten the photo and convert it to sRGB first",
                )
        notes = (
            *opened.decoded.notes,
            *(result.notes if result.faces else ["no face was found, so the photo was only copied"]),
        )
        return Treated(result, "stateless" if self.stateless else self.seal, notes)

    def files(
        self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None, faces: Path | None = None
    ) -> list[tuple[Path, Content]]:
        known: list[tuple[Path, Content]] = []
        if faces:
            result: Anonymized = treated.result  # type: ignore[assignment]
            known = encoded_faces(faces, opened.source, target, result)
        *record, image = self._photo_files(opened, treated, target, sidecar)
        return [*record, *known, image]

    def _photo_files(
        self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None
    ) -> list[tuple[Path, Content]]:
        photo, pixels = opened.decoded, treated.result.pixels
        sealed = self.seal == "file" and not self.stateless  # else the networks need what a low quality would destroy
        quality = self.quality or (None if sealed else QUALITY)
        image = _encoded(target, photo, pixels, quality, self.keep_metadata)
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
            record = anf1.encode(header)
        files: list[tuple[Path, Content]] = [(target, carriers.embedded(image, record))]
        if sidecar:
            files = [(sidecar, record), (target, image)]
        for _, made in files:
            if size_of(made) > MAX_FILE_BYTES:
                raise LimitError(
                    f"the result takes {size_of(made) >> 20} MiB, more than could be read again",
                    "write the record to a file of its own with --sidecar, or store less with --seal face",
                )
        return files


@dataclass(frozen=True)
class Recovering:
    """Recovers photos; the fields are as in :func:`recover`.

    ``protected`` are files that recovered originals and decoys must not replace. ``piped`` means that the result goes
    to no file; its target only says the format.
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
    protected: Protected = Protected()  # noqa: RUF009 (an immutable empty set)
    piped: bool = False
    _results: dict[Path, object] = field(default_factory=dict, compare=False, repr=False)  # sources by result

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
        left: tuple[str, ...] = ()
        if sidecar and (record_file := belonging(sidecar, data)) != sidecar:
            left = (f"the record is the one that an interrupted run left in {str(record_file)!r}",)
            sidecar = record_file
        record = read_record(called, data, sidecar)
        header = anf1.decode(record)
        if header.parameters.get(anf1.ORIGINAL) and header.tier == "none":
            raise ContainerError("the encrypted original was removed from this record", "use an intact copy")
        contents = NOTHING
        verified: Verified = "yes" if header.seal else "unknown"
        try:
            contents = sealing.unseal(header, anf1.payload(record), self._key(header))
        except WrongKeyError:
            if not self.decoy:
                raise
            verified = "no"
        photo = None
        if contents.tier != "file" or self.unsealed:
            photo = read_photo(data, self.max_pixels, str(name or ""))
        elif not sidecar:
            sealing.check_picture(contents, carriers.picture_digest(data))
        notes = self._belonging(source, data, header, contents, sidecar) if sidecar and contents.tier == "file" else ()
        return Opened(name, b"", photo, header, contents, verified, (*left, *notes))

    def _belonging(
        self, source: Source, data: bytes, header: Header, contents: sealing.Contents, sidecar: Path
    ) -> tuple[str, ...]:
        """Notes on a picture whose original is in a sidecar; none if the picture is unchanged.

        Raises:
            ContainerError: the sidecar belongs to another photo.
        """
        if carriers.kind(data) in ("png", "jpeg", "webp") and carriers.picture_digest(data) == contents.binding:
            return ()
        name, called = name_of(source), _called(source)
        if name and os.path.realpath(name) == os.path.realpath(sidecar):
            return ("the original is taken from the record, without looking at the picture",)
        try:
            picture, original = (read_photo(file, self.max_pixels, called) for file in (data, bytes(contents.data)))
        except AnonfaceError:
            return ("it is unknown whether the original belongs to this picture: one of them cannot be read",)
        alike = sealing.resembles(header, original.pixels, picture.pixels)
        if alike:
            return ("the picture was saved again since it was written; the original is taken from the record",)
        if alike is None:
            return ("it is unknown whether the original belongs to this picture: faces fill it, and it has changed",)
        raise ContainerError(
            f"{str(sidecar)!r} belongs to another photo than {called!r}",
            f"to recover its original anyway, recover {str(sidecar)!r} with itself as --sidecar",
        )

    def ready(self, opened: Opened) -> None:
        if self._tier(opened) == "none":
            self._engine(opened.header)

    def treat(self, opened: Opened) -> Treated:
        header, contents, tier = opened.header, opened.contents, self._tier(opened)
        notes = (*opened.notes, *(opened.photo.notes if opened.photo else ()))
        used = "none" if header else "stateless"
        if header and tier == "file":
            original = Recovered("file", opened.verified, header.reports(), None, bytes(contents.data))
            return Treated(original, tier, notes, opened.verified)
        photo = opened.decoded
        if header and tier == "face":
            pixels, faces = sealing.mended(header, contents, photo.pixels, photo.alpha), header.reports()
            used = tier
        else:
            key = sealing.network_key(contents, self._key(header))
            result = self._engine(header).recover(photo.pixels, key, header, faces=self.faces)
            pixels, faces, notes = result.pixels, result.faces, (*notes, *result.notes)
            if contents.tier == "none" and contents.network_key:
                notes = (
                    *notes,
                    "it was rekeyed without an encrypted original, so it is unknown whether the old key was right",
                )
        return Treated(
            Recovered(tier, opened.verified, faces, None, _pixels=pixels), used, notes, verified=opened.verified
        )

    def files(
        self, opened: Opened, treated: Treated, target: Path, sidecar: Path | None, faces: Path | None = None
    ) -> list[tuple[Path, Content]]:
        if self._tier(opened) == "file":
            target = self._original_target(opened, target)
            return [(target, treated.result.original)]  # type: ignore[attr-defined]
        if treated.verified == "no" and (self.original_suffix or target.exists()):
            target = self._checked(_decoy_name(target), opened)
        return [(target, _encoded(target, opened.decoded, treated.result.pixels, self.quality))]

    def _engine(self, header: Header | None) -> Engine:
        if callable(self.engine):
            return self.engine(header.backend if header else DEFAULT_BACKEND)
        return self.engine

    def _key(self, header: Header | None) -> Key:
        return self.key(header) if callable(self.key) else self.key

    def _tier(self, opened: Opened) -> Tier:
        """The tier that recovers the photo."""
        return "none" if self.unsealed else opened.contents.tier

    def _original_target(self, opened: Opened, target: Path) -> Path:
        """The target of an encrypted original, which has a suffix of its own."""
        suffix = opened.contents.suffix
        own = target.with_suffix(suffix)
        if self.original_suffix:
            return self._checked(own, opened)
        if _same_format(target.suffix) != _same_format(suffix):
            raise UsageError(
                f"the original is a {suffix or 'file without a suffix'}, but {str(target)!r} names another format",
                f"name it {own}, or give a folder",
            )
        return target

    def _checked(self, target: Path, opened: Opened) -> Path:
        """Check a name that was not known when the run was planned; its existence is checked when it is written."""
        if self.piped:
            return target
        check_target(target, opened.source, overwrite=True)
        if target in self.protected:
            raise OutputError(f"{str(target)!r} is read or written by this command", "choose another output")
        if (other := self._results.setdefault(target, opened.source)) != opened.source:
            raise OutputError(
                f"{str(target)!r} is the result of {str(other)!r} in this run", "choose --name so that each has its own"
            )
        return target


def _decoy_name(target: Path) -> Path:
    """photo.recovered.png -> photo.decoy.png, so that a decoy never takes the name of a recovered photo."""
    name = Path(RESULT.sub(r"\2", target.name))
    return target.with_name(f"{name.stem}.{_DECOY}{name.suffix}")


def _made(engine: Engine | Callable[[], Engine]) -> Engine:
    return engine() if callable(engine) else engine


def _needs_record(data: bytes) -> bool:
    """Whether a file carries a record that its recovery needs."""
    try:
        record = carriers.extract(data)
        return record is not None and not anf1.decode(record).consistent
    except ContainerError:  # damaged, or of another version
        return False


def _same_format(suffix: str) -> str:
    return FORMATS.get(suffix.lower(), suffix.lower())


@dataclass(frozen=True)
class Recovered:
    """A recovered photo.

    Args:
        tier: what recovered it: the encrypted "file", the encrypted "face" pixels, or the networks ("none").
        verified: whether the key was right: "yes" or "no" (of a decoy) if an original is stored, else "unknown".
        faces: the result of each face.
        file: the file that was written, if any.
        original: the original file's bytes, of tier "file".
    """

    tier: Tier
    verified: Verified
    faces: list[FaceReport]
    file: Path | None
    original: bytes | None = field(default=None, repr=False)
    _pixels: Pixels | None = field(default=None, repr=False)

    @cached_property
    def pixels(self) -> Pixels:
        """[H, W, 3] uint8 RGB, upright. Those of an original file are decoded at first use."""
        if self._pixels is not None:
            return self._pixels
        assert self.original is not None
        return read_photo(self.original, sys.maxsize).pixels


def _called(source: Source) -> str:
    """The name of a source in messages."""
    return str(name_of(source) or "the photo")


def read_record(called: str, data: bytes, sidecar: Path | None = None) -> bytes:
    """The encoded record of an anonymized photo, from its sidecar if one is named.

    Args:
        called: the photo's name, for messages.
        data: its bytes.

    Raises:
        ContainerError: there is none, or the file's structure is broken.
        ImageError: the file is no photo.
    """
    if sidecar:
        return carriers.expect(read_file(sidecar), str(sidecar))
    check_is_photo(called, data)
    return carriers.expect(data, called)


def check_is_photo(called: str, data: bytes) -> None:
    """Refuse a file of a format that carries no record if it is no photo either, so that it is called what it is.

    Args:
        called: its name, for messages.
        data: its bytes.

    Raises:
        ImageError: it is no photo that can be read.
    """
    if carriers.kind(data) == "other" and not called.lower().endswith(".anf"):  # of a sidecar it is said to be damaged
        read_photo(data, sys.maxsize, called)


def format_of(target: Path) -> str:
    """png, webp or jpeg, by the suffix.

    Raises:
        UsageError: any other suffix.
    """
    try:
        return FORMATS[target.suffix.lower()]
    except KeyError:
        raise UsageError(
            f"the name {str(target)!r} does not name a format",
            f"end it with {', '.join(SUFFIXES.values())}, or with / for a folder",
        ) from None


def kept_format(head: bytes, lossy: bool) -> str:
    """The format of an anonymized photo that nobody has chosen: the photo's own, or png.

    Args:
        head: the first bytes of the photo's file, at least 12.
        lossy: pixels may change a little, as they do in JPEG. Tiers other than "file" are recovered from pixels.
    """
    kind = carriers.kind(head)
    return kind if kind == "webp" or (kind == "jpeg" and lossy) else "png"


def as_path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)


def open_photo(photo: Source, max_pixels: int = MAX_PIXELS) -> tuple[bytes, Photo]:
    """:func:`anonface.images.sources.open_source`."""
    return open_source(photo, max_pixels)


def _encoded(target: Path, opened: Photo, pixels: Pixels, quality: int | None, keep_metadata: bool = False) -> bytes:
    return encode_photo(replace(opened, pixels=pixels), format_of(target), quality, keep_metadata)


def write_files(files: Sequence[tuple[Path, Content]], overwrite: bool) -> None:
    """Write a photo's files, the record before the photo, which could not be recovered without it.

    Raises:
        OutputError: one cannot be written; then none is.
    """
    for file, _ in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder {file.parent} cannot be made: {reason(error)}", remedy(error)) from error
    first = files[0][1] if len(files) > 1 else None
    write_together(files, overwrite, bound=isinstance(first, bytes) and carriers.kind(first) == "sidecar")


def result_mark(file: Path) -> str:
    """The mark of this program's results, "anon", "recovered" or "decoy"; empty for other names."""
    result = RESULT.search(file.name)
    return result[1].lower() if result else ""
