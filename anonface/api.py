"""One photo from file to file: the library's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from anonface.batch.task import (
    FORMATS,
    QUALITY,
    SUFFIXES,
    Anonymizing,
    Box,
    Recovered,
    Recovering,
    Verified,
    as_path,
    check_is_photo,
    default_engine,
    format_of,
    open_photo,
    write_files,
)
from anonface.crypto.keys import Argon2, Key
from anonface.errors import (
    ContainerError,
    OutputError,
    UsageError,
    WrongKeyError,
)
from anonface.images import MAX_PIXELS, Content, belonging, interims
from anonface.images.paths import Input, Output, Protected, check_target, refuse_conflicts
from anonface.images.sources import Source, is_file, name_of, read_source
from anonface.record import anf1, carriers, sealing
from anonface.record.anf1 import Header, Tier

if TYPE_CHECKING:
    from anonface.faces.locate import Chosen, DetectedFace
    from anonface.pipeline import Anonymized, Engine


def detect(
    photo: Source, *, detector: str = "yunet", boxes: Sequence[Box] = (), max_pixels: int = MAX_PIXELS
) -> list[DetectedFace]:
    """The faces of a photo that :func:`anonymize` would change, without changing it. Loads no network but detectors.

    Args:
        photo: as in :func:`anonymize`.
        detector: "yunet" or "retinaface".
        boxes: (x, y, w, h) in pixels of faces that the detector misses.
        max_pixels: larger photos are refused.

    Raises:
        AnonfaceError: the photo cannot be read.
    """
    from anonface.faces.detect import build_detector
    from anonface.faces.locate import locate, numbered

    return numbered(locate(open_photo(photo, max_pixels)[1].pixels, build_detector(detector), boxes))


def anonymize(
    photo: Source,
    key: Key,
    output: str | Path | IO[bytes] | None = None,
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
    quality: int | None = None,
    keep_metadata: bool = False,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
    keep_regions: Sequence[str] = (),
    check: bool = False,
    detailed: bool = False,
) -> Anonymized:
    """Replace the faces in a photo by synthetic faces.

    Args:
        photo: a file (its path, its bytes, or open in binary mode), or pixels: [H, W, 3] uint8 RGB, or a PIL image.
        key: chooses the synthetic faces.
        output: the file to write, a name or open in binary mode. The suffix of its name (.png, .webp, .jpg) sets the
            format; without one, the photo's own is kept where recovery allows it. None writes nothing.
        engine: an engine, or a function that makes one once the photo has been read.
        seal: what is stored, encrypted: the whole original "file" (the default), the "face" pixels alone, or "none".
            Of an array or a PIL image, which are no files, the face pixels.
        consistent: a person gets the same synthetic face in every photo under this key.
        stateless: write no record; recovery then needs pixels and key only; implies ``consistent``.
        boxes: (x, y, w, h) in pixels of faces that the detector misses.
        kdf: the Argon2 parameters of a key from a passphrase; written to the record.
        faces: "all", "largest", or the numbers of those to change, as :func:`detect` gives them.
        faceless: write a photo without a face unchanged, instead of refusing it.
        sidecar: write the record into this file instead of into the image.
        quality: of JPEG, 1 to 100; the other formats are lossless. None takes that of a JPEG whose original is stored,
            and 95 otherwise.
        keep_metadata: keep how the photo was taken (exposure, lens, density), never place, date or author.
        overwrite: replace ``output`` where it exists.
        max_pixels: larger photos are refused.
        keep_regions: "eyes", "brows", "nose" and "mouth" that stay as they are in replaced faces; less private.
        check: look for the faces again in the result, and compare replaced ones with the original; see
            ``faces[i].checks``.
        detailed: return which pixels were replaced, and landmarks, as ``details``.

    Returns:
        The new pixels, a report on every face, and the header that :func:`recover` needs for arrays.

    Raises:
        AnonfaceError: one of its kinds, see :mod:`anonface.errors`.
    """
    stream = _opened(output)
    target, sidecar_file = name_of(stream) if stream else as_path(output), as_path(sidecar)  # type: ignore[arg-type]
    tier = chosen_tier(seal, target, stateless, array=not is_file(photo))
    task = Anonymizing(
        *(key, engine, tier, consistent, stateless, boxes, kdf, faces, faceless, quality, keep_metadata, max_pixels),
        keep_regions=keep_regions,
        check=check,
        detailed=detailed,
    )
    named = {"output": None if stream else target, "sidecar": sidecar_file}
    refuse_conflicts((), [Output(file, what) for what, file in named.items() if file])
    for file in filter(None, named.values()):
        check_target(file, name_of(photo), overwrite)
    opened = task.open(photo)
    treated = task.treat(opened)
    if stream and not (target and target.suffix.lower() in FORMATS):
        lossy = tier == "file" and not keep_regions
        kept = opened.decoded.format
        target = Path(f"photo{SUFFIXES[kept if kept == 'webp' or (kept == 'jpeg' and lossy) else 'png']}")
    if target:
        files = task.files(opened, treated, target, sidecar_file)
        _write(files, stream, overwrite)
    return treated.result  # type: ignore[return-value]


def chosen_tier(seal: Tier | None, target: Path | None, stateless: bool, array: bool = False) -> Tier:
    """The tier to store, by default the file.

    Raises:
        UsageError: it could not be recovered from the output.
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
            "JPEG changes the pixels around the faces, so --seal face cannot restore the original from it",
            "write PNG or WebP, or use --seal file",
        )
    return tier


def recover(
    photo: Source,
    key: Key | Callable[[Header | None], Key],
    output: str | Path | IO[bytes] | None = None,
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
    """Recover an anonymized photo by the best tier that its record offers.

    Args:
        photo: a file or pixels, as in :func:`anonymize`.
        key: the key of the photo, or a function that returns it once the header is known.
        output: the file to write, a name or open in binary mode; None writes nothing. An encrypted original is written
            byte for byte.
        engine: an engine, or a function that makes the one of a record's backend when it is needed.
        header: what :func:`anonymize` returned. Pixels without one are recovered with the key only.
        sidecar: the file that holds the record of a photo file: a sidecar, or an image.
        unsealed: recover by the networks, even if an original is stored. Without one a wrong key shows a wrong-key
            face, and no check reveals it.
        decoy: under a wrong key, return the wrong-key face.
        stateless: recover a photo file from pixels and key only, and ignore its record.
        original_suffix: an encrypted original replaces the suffix of ``output`` by its own, and a decoy is named so;
            otherwise the name is kept, and the suffix must agree.
        faces: as in :func:`anonymize`, for photos without a record.
        quality, overwrite, max_pixels: as in :func:`anonymize`.

    Raises:
        ContainerError: the file carries no record, and no ``sidecar``, ``header`` or ``stateless`` is given.
        WrongKeyError: the photo was sealed under another key, and no ``decoy`` is asked for.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    without_record = stateless or header is not None
    stream = _opened(output)
    target, sidecar_file = None if stream else as_path(output), as_path(sidecar)  # type: ignore[arg-type]
    read = [Input(sidecar_file, "the sidecar")] if sidecar_file else []
    protected = Protected(file.path for file in read)
    task = Recovering(
        *(key, engine, unsealed, decoy, without_record, original_suffix or stream is not None, faces, quality),
        max_pixels,
        protected,
        stream is not None,
    )
    if target:
        refuse_conflicts(read, [Output(target, "output")])
        check_target(target, name_of(photo), overwrite)
    opened = task.open(photo, sidecar_file)
    if header is not None:
        opened = replace(opened, header=header)
    if target and opened.photo:
        format_of(target)
    result: Recovered = (treated := task.treat(opened)).result  # type: ignore[assignment]
    if stream:
        name = name_of(stream) or Path()
        named = name if name.suffix.lower() in FORMATS else Path("photo.png")
        _write(task.files(opened, treated, named, sidecar_file), stream, overwrite)
    elif target:
        files = task.files(opened, treated, target, sidecar_file)
        write_files(files, overwrite)
        result = replace(result, file=files[-1][0])
    return result


def _opened(output: str | Path | IO[bytes] | None) -> IO[bytes] | None:
    """An output that is no name, but open for writing."""
    return output if hasattr(output, "write") else None  # type: ignore[return-value]


def _write(files: Sequence[tuple[Path, Content]], stream: IO[bytes] | None, overwrite: bool) -> None:
    """Write a photo's files, the photo itself, which is the last, to ``stream`` where it is given.

    Raises:
        OutputError: one cannot be written.
    """
    if stream is None:
        write_files(files, overwrite)
        return
    *records, (_, photo) = files
    write_files(records, overwrite)
    try:
        stream.write(_joined(photo))
    except (OSError, ValueError, TypeError) as error:
        raise OutputError(f"the open file cannot be written: {error}", "open it in binary mode, 'wb'") from None


def _joined(content: Content) -> bytes:
    return content if isinstance(content, bytes) else b"".join(content)


def strip(source: Source, target: Path | None = None, *, overwrite: bool = False) -> bytes:
    """An anonymized photo's file without its record.

    Args:
        source: the file, its bytes, or open in binary mode.
        target: the file to write; None writes nothing.

    Raises:
        ContainerError: it carries none, or is one itself.
        ImageError: it is no photo.
        UsageError: ``target`` names another format than the file has: pixels are not encoded anew.
        OutputError: ``target`` must not or cannot be written.
    """
    if not is_file(source):
        raise UsageError(f"a {type(source).__name__} carries no record", "give a file, its path or its bytes")
    if target:
        check_target(target, name_of(source), overwrite)
    called = str(name_of(source) or "the photo")
    data = read_source(source)
    kind = carriers.kind(data)
    if kind == "sidecar":
        raise ContainerError(
            f"{called!r} is a record and no photo", "its photo carries none; there is nothing to strip"
        )
    check_is_photo(called, data)
    bare = data if kind == "other" else carriers.strip(data)
    if bare == data:
        raise ContainerError(f"{called!r} carries no anonface record", "there is nothing to strip")
    if target:
        _check_kind(called, kind, target)
        write_files([(target, bare)], overwrite)
    return bare


def rekey(
    source: Source,
    old: Key | Callable[[Header | None], Key],
    new: Key,
    target: Path | None = None,
    *,
    overwrite: bool = False,
) -> tuple[bytes, Verified]:
    """An anonymized photo's file, or a sidecar, sealed under another key. See :func:`anonface.record.sealing.rekeyed`.

    Args:
        source: as in :func:`strip`.
        target: the file to write; None writes nothing.

    Returns:
        The new file, and whether ``old`` was the right key: "yes", or "unknown" where nothing was sealed under it.

    Raises:
        WrongKeyError: ``old`` is not the key that it was sealed under.
        UsageError: the two keys are one, or ``target`` names another format than the file has.
        AnonfaceError: other kinds, see :mod:`anonface.errors`.
    """
    if target:
        check_target(target, name_of(source), overwrite)
    called = str(name_of(source) or "the photo")
    data = read_source(source)
    check_is_photo(called, data)
    record = carriers.expect(
        data, called, "name its sidecar, if it has one; a photo made with --stateless keeps its key for good"
    )
    if (name := name_of(source)) and carriers.kind(data) == "sidecar":
        _check_current(name)
    header = anf1.decode(record)
    chosen = old(header) if callable(old) else old
    if chosen == new:
        raise UsageError("the old key and the new one are the same", "`anonface keygen` makes another")
    try:
        record = sealing.rekeyed(header, anf1.payload(record), chosen, new)
    except WrongKeyError:
        raise WrongKeyError(
            f"{called!r} was sealed under another key than the old one given",
            "give the key that recovers it now",
        ) from None
    kind = carriers.kind(data)
    made = record if kind == "sidecar" else _joined(carriers.embedded(data, record))
    if target:
        _check_kind(called, kind, target)
        write_files([(target, made)], overwrite)
    return made, "yes" if header.seal else "unknown"


def _check_current(sidecar: Path) -> None:
    """Refuse a sidecar beside which a killed run left another record, unless the photo is there and it is its own.

    Raises:
        ContainerError: the photo's record is another one, or it is unknown which.
    """
    left, photo = interims(sidecar), sidecar.with_suffix("")
    own = belonging(sidecar, read_source(photo)) if left and photo.is_file() else None
    if not left or own == sidecar:
        return
    called = ", ".join(repr(str(other)) for other in ([own] if own else left))
    raise ContainerError(
        f"a run was interrupted while it replaced {str(sidecar)!r}, and left a record in {called}",
        f"it is the photo's: rekey {called}"
        if own
        else "`recover` with the photo and this sidecar says whose record it is; rekey that one, or remove the other",
    )


def _check_kind(called: str, kind: str, target: Path) -> None:
    """Check that a file's new name has the suffix of its format.

    Raises:
        UsageError: it has another one.
    """
    suffixes = {".anf": "sidecar", **FORMATS}
    if suffixes.get(target.suffix.lower()) != kind:
        named = {"sidecar": ".anf", **SUFFIXES}[kind]
        raise UsageError(
            f"{called!r} is a {kind} file and stays one, which the name {str(target)!r} does not say",
            f"name it {target.with_suffix(named)}",
        )
