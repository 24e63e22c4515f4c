"""Weights: sources, digests, cache, conversion and the reading of foreign checkpoints. All offline."""

from __future__ import annotations

import argparse
import hashlib
import http.server
import importlib.util
import io
import os
import pickle
import stat
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from anonface import weights
from anonface.errors import WeightsError
from anonface.weights import download, files, loading, manifest

ROOT = Path(__file__).parents[2]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Library:
    """A small weights.toml of one's own, its cache, and a way to add rows."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.manifest = folder / "weights.toml"
        self.own = folder / "own"
        self.own.mkdir()
        self.text = "[files]\n"
        monkeypatch.setattr(manifest, "MANIFEST", self.manifest)
        monkeypatch.setenv("ANONFACE_CACHE", str(self.cache))
        for variable in ("ANONFACE_WEIGHTS", "ANONFACE_OFFLINE", "PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            monkeypatch.delenv(variable, raising=False)
        self._write()

    def _write(self) -> None:
        self.manifest.write_text(self.text, "utf-8")
        manifest.read_manifest.cache_clear()

    def add(self, name: str, data: bytes, *sources: str, known: bool = True, **fields: str) -> None:
        row = {"file": f"{name}.bin", "role": "test", "licence": "MIT", "format": "blob", "made_how": "here"}
        row |= {"needed_for": "run"} | fields
        row |= {"sha256": sha256(data)} if known else {}
        lines = [f'{key} = "{value}"' for key, value in row.items()]
        lines += [f"size = {len(data) if known else 0}", f"sources = {list(sources)!r}".replace("'", '"')]
        self.text += f"[files.{name}]\n" + "\n".join(lines) + "\n"
        self._write()

    def pin(self, source: str, file: str, data: bytes) -> None:
        self.text += f'[packages."{source}"]\nfile = "{file}"\nsha256 = "{sha256(data)}"\nsize = {len(data)}\n'
        self._write()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(tmp_path, monkeypatch)


class Server:
    """A web server over a dict; it counts requests and can cut replies short."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.pages: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.cut_at = 0
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                span = self.headers.get("Range", "")
                owner.requests.append((self.path, span))
                data = owner.files.get(self.path)
                if data is None:
                    self.send_error(404)
                    return
                start = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
                if start >= len(data) > 0:
                    self.send_error(416)
                    return
                self.send_response(206 if span else 200)
                html = self.path in owner.pages
                self.send_header("Content-Type", "text/html" if html else "application/octet-stream")
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                stop, owner.cut_at = owner.cut_at or len(data), 0
                self.wfile.write(data[start:stop])

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.server.shutdown()
    server.server.server_close()


def wheel(members: dict[str, bytes], name: str = "tinynet", version: str = "1.0") -> tuple[str, bytes]:
    about = f"{name}-{version}.dist-info"
    text = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as package:
        for path, data in {**members, **{key: value.encode() for key, value in text.items()}}.items():
            package.writestr(path, data)
    return f"{name}-{version}-py3-none-any.whl", stream.getvalue()


def tarball(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as package:
        for path, data in members.items():
            facts = tarfile.TarInfo(path)
            facts.size = len(data)
            package.addfile(facts, io.BytesIO(data))
    return stream.getvalue()


class Bomb:
    """Unpickled without care, it creates a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.canary),)


# --- The shipped manifest --------------------------------------------------------------------------------------------


def test_shipped_rows_are_complete() -> None:
    content = tomllib.loads((ROOT / "weights.toml").read_text("utf-8"))
    rows, packages = content["files"], content["packages"]
    files = [row["file"] for row in rows.values()]
    assert len(set(files)) == len(files)
    assert all(len(package["sha256"]) == 64 and package["size"] > 0 for package in packages.values())
    for name, row in rows.items():
        assert row["needed_for"] in ("run", "evaluation", "training", "choice"), name
        assert row["format"] in ("tensors", "mobile-stylegan", "mapping", "tflite", "onnx", "tfjs", "blob"), name
        assert row["licence"] and row["role"] and row["made_how"], name
        assert row["sources"] or row["page"], name
        assert (len(row.get("sha256", "")) == 64 and row["size"] > 0) or row["needed_for"] == "choice", name
        assert row["format"] not in ("mobile-stylegan", "mapping", "tfjs") or rows[row["companion"]]["file"], name
        for source in row["sources"]:
            scheme = source.partition(":")[0]
            assert scheme in ("pypi", "npm", "https", "hf", "gdrive", "package"), name
            assert scheme not in ("pypi", "npm") or source.partition("#")[0] in packages, name
    assert "non-commercial" in rows["generator"]["licence_note"]


def test_manifest_is_found_in_a_checkout_and_travels_in_the_wheel() -> None:
    assert weights.entry("generator").licence == "Apache-2.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]["weights.toml"] == (
        "anonface/weights.toml"
    )


def test_import_stays_light() -> None:
    code = "import sys, anonface.weights as w; w.entries(); print('torch' in sys.modules, 'numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


def test_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(WeightsError, match="'yunett'") as caught:
        weights.path("yunett")
    assert "yunet" in caught.value.hint


# --- Local files -----------------------------------------------------------------------------------------------------


def test_own_folder_comes_before_any_fetch(library: Library, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    library.add("net", b"numbers", f"{server.url}/net.bin")
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(library.own))
    (library.own / "net.bin").write_bytes(b"numbers")
    assert weights.path("net") == library.own / "net.bin"
    assert server.requests == []


def test_wrong_own_file_is_named_and_passed_over(
    library: Library, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.add("net", b"numbers", f"{server.url}/net.bin")
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(library.own))
    (library.own / "net.bin").write_bytes(b"nonsense")
    with pytest.raises(WeightsError) as caught:
        weights.path("net")
    assert caught.value.exit_code == 9
    for part in ("net.bin", sha256(b"nonsense"), sha256(b"numbers"), server.url, "404"):
        assert part in caught.value.message
    server.files["/net.bin"] = b"numbers"
    assert weights.path("net").read_bytes() == b"numbers"
    assert (library.own / "net.bin").read_bytes() == b"nonsense"


def test_files_in_the_package_and_file_sources_are_used_in_place(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = library.folder / "package"
    (package / "trained").mkdir(parents=True)
    (package / "trained" / "ours.bin").write_bytes(b"ours")
    (library.own / "theirs.bin").write_bytes(b"theirs")
    monkeypatch.setattr(files, "PACKAGE", package)
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    library.add("ours", b"ours", "package:trained/ours.bin")
    library.add("theirs", b"theirs", f"file:{library.own / 'theirs.bin'}")
    assert weights.path("ours") == package / "trained" / "ours.bin"
    assert weights.path("theirs") == library.own / "theirs.bin"
    assert not (library.cache / "files").exists()


def test_a_file_is_hashed_once_until_it_changes(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.add("net", b"numbers", f"file:{library.own / 'net.bin'}")
    (library.own / "net.bin").write_bytes(b"numbers")
    hashed: list[Path] = []
    original = files.sha256_of
    monkeypatch.setattr(files, "sha256_of", lambda file: hashed.append(file) or original(file))
    assert weights.path("net") == weights.path("net")
    assert len(hashed) == 1
    assert [row.state for row in weights.verify()] == ["ready"]
    assert len(hashed) == 2
    facts = (library.own / "net.bin").stat()
    (library.own / "net.bin").write_bytes(b"numbErs")
    os.utime(library.own / "net.bin", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(WeightsError, match=sha256(b"numbErs")):
        weights.path("net")
    assert [row.state for row in weights.status()] == ["wrong"]


def test_status_tells_missing_from_ready(library: Library) -> None:
    library.add("here", b"here", f"file:{library.own / 'here.bin'}")
    library.add("gone", b"gone", f"file:{library.own / 'gone.bin'}")
    library.add("odd", b"odd", f"file:{library.own / 'odd.bin'}", known=False)
    (library.own / "here.bin").write_bytes(b"here")
    (library.own / "odd.bin").write_bytes(b"odd")
    assert [row.state for row in weights.status()] == ["ready", "missing", "unverified"]
    assert [row.state for row in weights.status(["gone"])] == ["missing"]


# --- Digests ---------------------------------------------------------------------------------------------------------


def test_wrong_hash_is_refused_before_any_parser(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = library.folder / "canary"
    library.add("net", b"expected", f"file:{library.own / 'net.bin'}", format="tensors")
    (library.own / "net.bin").write_bytes(pickle.dumps(Bomb(canary)))
    parsed: list[Path] = []
    monkeypatch.setattr(loading, "load_checkpoint", parsed.append)
    with pytest.raises(WeightsError, match="sha256"):
        weights.tensors("net")
    assert not parsed
    assert not canary.exists()


def test_unknown_digest_is_refused_until_accepted_then_pinned(library: Library, server: Server) -> None:
    library.add("net", b"", f"{server.url}/net.bin", known=False)
    server.files["/net.bin"] = b"first"
    with pytest.raises(WeightsError, match="no sha256 is known") as caught:
        weights.path("net")
    assert "--accept-unknown" in caught.value.hint
    assert server.requests == []
    with pytest.raises(WeightsError, match="no sha256 is known"):
        weights.digest("net")
    assert weights.pull(["net"], accept_unknown=True)[0].read_bytes() == b"first"
    assert weights.digest("net") == sha256(b"first")
    assert weights.path("net").read_bytes() == b"first"
    weights.path("net").write_bytes(b"second")
    server.files["/net.bin"] = b"second"
    with pytest.raises(WeightsError, match=sha256(b"second")):
        weights.path("net")


def test_offline_forbids_every_fetch(library: Library, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    library.add("net", b"numbers", f"{server.url}/net.bin", "pypi:tinynet==1.0#tinynet/net.bin")
    library.pin("pypi:tinynet==1.0", "tinynet-1.0-py3-none-any.whl", b"package")
    server.files["/net.bin"] = b"numbers"
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    with pytest.raises(WeightsError, match="ANONFACE_OFFLINE") as caught:
        weights.path("net")
    assert "without --offline and ANONFACE_OFFLINE" in caught.value.hint
    assert server.requests == []
    monkeypatch.setenv("ANONFACE_OFFLINE", "0")
    weights.path("net")
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    assert weights.path("net").read_bytes() == b"numbers"


# --- Downloads -------------------------------------------------------------------------------------------------------


def test_download_tells_progress_and_goes_on_where_it_was_cut(library: Library, server: Server) -> None:
    data = os.urandom(300_000)
    library.add("net", data, f"{server.url}/net.bin")
    server.files["/net.bin"] = data
    server.cut_at = 100_000
    seen: list[tuple[str, int, int]] = []
    assert weights.path("net", progress=lambda *step: seen.append(step)).read_bytes() == data
    assert server.requests == [("/net.bin", ""), ("/net.bin", "bytes=100000-")]
    assert seen[-1] == ("net", len(data), len(data))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert list((library.cache / "parts").iterdir()) == []


def test_a_foreign_half_file_does_not_spoil_the_download(library: Library, server: Server) -> None:
    library.add("net", b"numbers", f"{server.url}/net.bin")
    server.files["/net.bin"] = b"numbers"
    part = library.cache / "parts" / f"net.bin.{sha256(f'{server.url}/net.bin'.encode())[:12]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"XXX")
    assert weights.path("net").read_bytes() == b"numbers"
    assert [span for _, span in server.requests] == ["bytes=3-", ""]


@pytest.mark.parametrize(
    ("sent", "page", "reason"),
    [
        (b"other!!", False, sha256(b"other!!")),
        (b"numbers and more", False, "more than the 7 bytes"),
        (b"<html>", True, "web page"),
        (None, False, "404"),
    ],
)
def test_bad_replies_are_refused_and_the_next_source_is_asked(
    library: Library, server: Server, sent: bytes | None, page: bool, reason: str
) -> None:
    library.add("net", b"numbers", f"{server.url}/bad.bin", f"{server.url}/good.bin")
    if sent is not None:
        server.files["/bad.bin"] = sent
    if page:
        server.pages.add("/bad.bin")
    with pytest.raises(WeightsError, match=reason) as caught:
        weights.path("net")
    assert f"{server.url}/good.bin" in caught.value.message
    assert not (library.cache / "files" / "net.bin").exists()
    server.files["/good.bin"] = b"numbers"
    assert weights.path("net").read_bytes() == b"numbers"


def test_unreachable_server_names_file_source_and_remedy(library: Library) -> None:
    library.add("net", b"numbers", "http://127.0.0.1:9/net.bin")
    with pytest.raises(WeightsError, match="cannot be reached") as caught:
        weights.path("net")
    assert "net.bin" in caught.value.message
    assert "ANONFACE_WEIGHTS" in caught.value.hint


def test_hub_and_drive_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert download.url_of("hf:me/net/sub/a b.pth") == "https://huggingface.co/me/net/resolve/main/sub/a%20b.pth"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert download.url_of("hf:me/net/w.pth") == "https://mirror.example/me/net/resolve/main/w.pth"
    assert "id=abc&" in download.url_of("gdrive:abc")


RACE = """
import sys
from pathlib import Path
from anonface import weights
from anonface.weights import manifest
manifest.MANIFEST = Path(sys.argv[1])
sys.stdin.readline()
print(weights.path("net").read_bytes() == b"n" * 2_000_000)
"""


def test_two_processes_fetch_once_and_both_are_served(library: Library, server: Server) -> None:
    library.add("net", b"n" * 2_000_000, f"{server.url}/net.bin")
    server.files["/net.bin"] = b"n" * 2_000_000
    command = [sys.executable, "-c", RACE, str(library.manifest)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert [racer.communicate()[0].strip() for racer in racers] == ["True"] * 3
    assert len(server.requests) == 1


def test_threads_share_one_package(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = wheel({"tinynet/a.bin": b"aa", "tinynet/b.bin": b"bb"})
    library.pin("pypi:tinynet==1.0", name, data)
    library.add("a", b"aa", "pypi:tinynet==1.0#tinynet/a.bin")
    library.add("b", b"bb", "pypi:tinynet==1.0#tinynet/b.bin")
    fetched: list[Path] = []

    def fetch(package: download.Package, folder: Path, progress: download.Progress) -> Path:
        fetched.append(folder)
        (folder / package.file).write_bytes(data)
        return folder / package.file

    monkeypatch.setattr(download, "_by_pip", fetch)
    with ThreadPoolExecutor(8) as pool:
        files = list(pool.map(weights.path, ["a", "b"] * 8))
    assert [file.read_bytes() for file in files] == [b"aa", b"bb"] * 8
    assert len(fetched) == 1
    assert not fetched[0].exists()


# --- Registries ------------------------------------------------------------------------------------------------------


def test_pip_brings_the_wheel_and_installs_nothing(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, data = wheel({"tinynet/net.bin": b"numbers", "tinynet/__init__.py": b""})
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / name).write_bytes(data)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    library.pin("pypi:tinynet==1.0", name, data)
    library.add("net", b"numbers", "pypi:tinynet==1.0#tinynet/net.bin")
    seen: list[tuple[str, int, int]] = []
    assert weights.path("net", progress=lambda *step: seen.append(step)).read_bytes() == b"numbers"
    assert seen[-1] == ("pypi:tinynet==1.0", len(data), len(data))
    assert importlib.util.find_spec("tinynet") is None


def test_index_serves_where_pip_is_absent(library: Library, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = wheel({"tiny_net/net.bin": b"numbers"}, name="tiny_net")
    link = f'<a href="../../files/{name}#sha256={sha256(data)}">{name}</a>'
    server.files |= {"/simple/tiny-net/": link.encode(), f"/files/{name}": data}
    server.pages.add("/simple/tiny-net/")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple/")
    monkeypatch.setattr(download, "_by_pip", _no_pip)
    library.pin("pypi:tiny_net==1.0", name, data)
    library.add("net", b"numbers", "pypi:tiny_net==1.0#tiny_net/net.bin")
    assert weights.path("net").read_bytes() == b"numbers"


def _no_pip(package: download.Package, folder: Path, progress: download.Progress) -> Path:
    raise WeightsError("this Python has no pip")


def test_source_archive_is_read_without_running_its_code(
    library: Library, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = library.folder / "canary"
    data = tarball(
        {
            "tinynet-1.0/setup.py": f"import os; os.mkdir({str(canary)!r})".encode(),
            "tinynet-1.0/tinynet/net.dat": b"numbers",
        }
    )
    link = f'<a href="{server.url}/tinynet-1.0.tar.gz#sha256={sha256(data)}">tinynet-1.0.tar.gz</a>'
    server.files |= {"/simple/tinynet/": link.encode(), "/tinynet-1.0.tar.gz": data}
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    asked: list[Path] = []
    monkeypatch.setattr(download, "_by_pip", lambda package, folder, progress: asked.append(folder))
    library.pin("pypi:tinynet==1.0", "tinynet-1.0.tar.gz", data)
    library.add("net", b"numbers", "pypi:tinynet==1.0#tinynet/net.dat")
    assert weights.path("net").read_bytes() == b"numbers"
    assert not asked  # pip would run setup.py
    assert not canary.exists()


def test_own_copy_of_a_package_serves_offline(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = wheel({"tinynet/net.bin": b"numbers"})
    (library.own / name).write_bytes(data)
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(library.own))
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    library.pin("pypi:tinynet==1.0", name, data)
    library.add("net", b"numbers", "pypi:tinynet==1.0#tinynet/net.bin")
    assert weights.path("net").read_bytes() == b"numbers"


def test_leavings_of_a_killed_process_do_no_harm(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = wheel({"tinynet/net.bin": b"numbers"})
    workshop = library.cache / "parts" / f"{name}.fetch"
    workshop.mkdir(parents=True)
    (workshop / "half.whl").write_bytes(b"half")
    monkeypatch.setenv("PIP_FIND_LINKS", str(library.own))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (library.own / name).write_bytes(data)
    library.pin("pypi:tinynet==1.0", name, data)
    library.add("net", b"numbers", "pypi:tinynet==1.0#tinynet/net.bin")
    assert weights.path("net").read_bytes() == b"numbers"
    assert not workshop.exists()


def test_package_with_another_digest_is_not_opened(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = wheel({"tinynet/net.bin": b"numbers"})
    (library.own / name).write_bytes(data)
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(library.own))
    library.pin("pypi:tinynet==1.0", name, data + b"!")
    library.add("net", b"numbers", "pypi:tinynet==1.0#tinynet/net.bin")
    with pytest.raises(WeightsError, match=sha256(data)):
        weights.path("net")
    assert not (library.cache / "files" / "net.bin").exists()


def test_member_that_is_not_in_the_package_is_named(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    name, data = wheel({"tinynet/other.bin": b"numbers"})
    (library.own / name).write_bytes(data)
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(library.own))
    library.pin("pypi:tinynet==1.0", name, data)
    library.add("net", b"numbers", "pypi:tinynet==1.0#tinynet/net.bin")
    with pytest.raises(WeightsError, match=r"does not hold net\.bin"):
        weights.path("net")


@pytest.mark.parametrize("with_npm", [True, False])
def test_npm_package_by_its_tool_or_its_registry(
    library: Library, server: Server, monkeypatch: pytest.MonkeyPatch, with_npm: bool
) -> None:
    data = tarball({"package/models/net.bin": b"numbers"})
    tool = library.folder / "bin"
    tool.mkdir()
    if with_npm:
        (library.folder / "store.tgz").write_bytes(data)
        # As the real one: `npm pack NAME --ignore-scripts --pack-destination FOLDER`.
        (tool / "npm").write_text(f'#!/bin/sh\n/bin/cp "{library.folder}/store.tgz" "$5/scope-tiny-2.0.tgz"\n')
        (tool / "npm").chmod(0o755)
    else:
        server.files["/@scope/tiny/-/tiny-2.0.tgz"] = data
    monkeypatch.setenv("PATH", str(tool))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url)
    library.pin("npm:@scope/tiny@2.0", "scope-tiny-2.0.tgz", data)
    library.add("net", b"numbers", "npm:@scope/tiny@2.0#package/models/net.bin")
    assert weights.path("net").read_bytes() == b"numbers"
    assert len(server.requests) == (0 if with_npm else 1)


# --- Foreign checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["pickle", "torch", "torch-legacy", "named-safetensors"])
def test_pickle_bomb_is_never_executed(tmp_path: Path, form: str) -> None:
    canary, file = tmp_path / "canary", tmp_path / "net.pth"
    content = {"state_dict": {"weight": torch.zeros(2)}, "opts": Bomb(canary)}
    if form == "torch":
        torch.save(content, file)
    elif form == "torch-legacy":
        torch.save(content, file, _use_new_zipfile_serialization=False)
    else:
        file = file.with_suffix(".safetensors") if form == "named-safetensors" else file
        file.write_bytes(pickle.dumps(content))
    with pytest.raises(WeightsError, match="not opened") as caught:
        weights.load_checkpoint(file)
    assert file.name in caught.value.message
    assert not canary.exists()
    # The bomb is live: a careless reader sets it off.
    torch.load(file, weights_only=False) if form.startswith("torch") else pickle.loads(file.read_bytes())
    assert canary.exists()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"g_ema": state, "g": {"weight": torch.zeros(9)}, "args": argparse.Namespace(size=256)},
        lambda state: {"state_dict": state, "opts": argparse.Namespace(lr=0.1), "epoch": 3},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {"params": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {f"module.{key}": value for key, value in state.items()},
    ],
)
def test_wrapped_checkpoints_come_out_flat(tmp_path: Path, wrap: Callable[[dict], dict]) -> None:
    state = nn.Linear(3, 2).state_dict()
    torch.save(wrap(state), tmp_path / "net.pt")
    read = weights.load_checkpoint(tmp_path / "net.pt")
    assert list(read) == ["weight", "bias"]
    assert torch.equal(read["weight"], state["weight"])


def test_tensors_beside_the_state_and_nested_parts_are_kept(tmp_path: Path) -> None:
    content = {
        "state_dict": {"module.encoder": {"w": torch.ones(1)}, "module.decoder": {"w": torch.zeros(1)}},
        "latent_avg": torch.full((2,), 0.5),
    }
    torch.save(content, tmp_path / "psp.pt")
    assert set(weights.load_checkpoint(tmp_path / "psp.pt")) == {"encoder.w", "decoder.w", "latent_avg"}


def test_checkpoint_may_be_safetensors_by_content(tmp_path: Path) -> None:
    save_file({"w": torch.arange(3.0)}, tmp_path / "net.pth")
    assert torch.equal(weights.load_checkpoint(tmp_path / "net.pth")["w"], torch.arange(3.0))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04broken", b"\x10" + bytes(7) + b"{not json, not json"])
def test_rubbish_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=r"net\.pth"):
        weights.load_checkpoint(tmp_path / "net.pth")


def test_checkpoint_that_holds_itself_or_nothing_is_refused(tmp_path: Path) -> None:
    endless: dict[str, object] = {}
    endless["model"] = endless
    torch.save(endless, tmp_path / "endless.pt")
    with pytest.raises(WeightsError, match=r"endless\.pt.*nested too deeply"):
        weights.load_checkpoint(tmp_path / "endless.pt")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    with pytest.raises(WeightsError, match="no tensors"):
        weights.load_checkpoint(tmp_path / "empty.pt")
    with pytest.raises(WeightsError, match="cannot be read"):
        weights.load_checkpoint(tmp_path / "absent.pt")


# --- Modules ---------------------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_fit_by_name_is_strict_and_all_or_nothing() -> None:
    module, state = network(), network().state_dict()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    del state["0.bias"]
    state |= {"0.weight": torch.zeros(2, 4), "extra": torch.zeros(1)}
    with pytest.raises(WeightsError) as caught:
        weights.fit(module, state, source="my.pth")
    shape = "1 of another shape: 0.weight [2, 4] instead of [2, 3]"
    for part in ("my.pth", "Sequential", "1 missing: 0.bias", "1 unexpected: extra", shape):
        assert part in caught.value.message
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_fit_casts_half_precision_and_spares_counters() -> None:
    module = network()
    state = {key: torch.full_like(value, 2).half() for key, value in module.state_dict().items() if "num" not in key}
    weights.fit(module, state)
    assert module[0].weight.dtype == torch.float32
    assert bool((module[0].weight == 2).all())


def test_fit_refuses_indices_for_numbers() -> None:
    with pytest.raises(WeightsError, match="another kind"):
        weights.fit(nn.Linear(3, 2), {"weight": torch.zeros(2, 3, dtype=torch.int64), "bias": torch.zeros(2)})


def test_fit_by_order_pairs_and_checks_sizes() -> None:
    module = network()
    state = {f"renamed.{number}": value + 1 for number, value in enumerate(network().state_dict().values())}
    state = {key: value for key, value in state.items() if value.is_floating_point()}
    weights.fit(module, state, by="order")
    assert torch.equal(module[0].weight, state["renamed.0"])
    assert torch.equal(module[1].running_var, state["renamed.5"])
    swapped = dict(reversed(state.items()))
    with pytest.raises(WeightsError, match=r"tensor 1 is renamed\.5 \[2\], wanted is 0\.weight \[2, 3\]"):
        weights.fit(module, swapped, by="order")
    state.popitem()
    with pytest.raises(WeightsError, match="5 tensors, wanted are 6"):
        weights.fit(module, state, by="order")


def test_load_converts_once_and_again_when_the_copy_was_touched(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = network().state_dict()
    torch.save({"g_ema": state, "opts": argparse.Namespace()}, library.own / "net.bin")
    library.add("net", (library.own / "net.bin").read_bytes(), f"file:{library.own / 'net.bin'}", format="tensors")
    opened: list[Path] = []
    original = loading._open_pickle
    monkeypatch.setattr(loading, "_open_pickle", lambda file: opened.append(file) or original(file))
    for _ in range(2):
        module = network()
        weights.load(module, "net")
        assert torch.equal(module[0].weight, state["0.weight"])
    assert len(opened) == 1
    (copy,) = (library.cache / "tensors").iterdir()
    save_file({"0.weight": torch.zeros(2, 3)}, copy)
    weights.load(module, "net")
    assert len(opened) == 2
    assert torch.equal(module[0].weight, state["0.weight"])


def checkpoint(library: Library) -> dict[str, torch.Tensor]:
    """A pickle in the library, which is converted."""
    state = network().state_dict()
    torch.save(state, library.own / "net.bin")
    library.add("net", (library.own / "net.bin").read_bytes(), f"file:{library.own / 'net.bin'}", format="tensors")
    return state


@pytest.mark.parametrize("trouble", ["read-only", "no folder", "disk full"])
def test_what_cannot_be_cached_is_converted_at_every_start(
    library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    state, place = checkpoint(library), library.cache / "tensors"
    if trouble == "no folder":
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("a file where the folder should be")
    else:
        message = {"read-only": "Read-only file system (os error 30)", "disk full": "No space left (os error 28)"}[
            trouble
        ]

        def failing(state: object, file: Path) -> None:
            file.write_bytes(b"half")
            raise SafetensorError(f"Error while serializing: I/O error: {message}")

        monkeypatch.setattr("safetensors.torch.save_file", failing)
    for _ in range(2):
        assert all(torch.equal(found, state[name]) for name, found in weights.tensors("net").items())
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"converted weights cannot be kept in {place}"
    ]
    assert trouble == "no folder" or list(place.iterdir()) == []


def test_a_copy_that_is_closed_to_us_is_made_again(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    state, opened = checkpoint(library), []
    weights.tensors("net")
    (copy,) = (library.cache / "tensors").iterdir()
    before = copy.stat().st_ino

    def closed(file: Path) -> dict[str, torch.Tensor]:
        opened.append(file)
        raise SafetensorError("Permission denied (os error 13)")

    monkeypatch.setattr("safetensors.torch.load_file", closed)
    assert torch.equal(weights.tensors("net")["0.weight"], state["0.weight"])
    assert opened == [copy] and copy.stat().st_ino != before


def test_a_file_that_is_closed_to_us_is_not_taken(
    library: Library, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.add("net", b"numbers", f"{server.url}/net.bin")
    server.files["/net.bin"] = b"numbers"
    assert weights.path("net").read_bytes() == b"numbers"
    kept, real = files._cached(weights.entry("net")), os.access
    monkeypatch.setattr(os, "access", lambda file, mode: Path(file) != kept and real(file, mode))
    assert weights.status(["net"])[0].state == "wrong"
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    with pytest.raises(WeightsError, match="Permission denied"):
        weights.path("net")


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770, 0o777])
def test_cached_files_have_the_permissions_of_their_folder(
    library: Library, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    checkpoint(library)
    for folder in ("tensors", "checked"):
        (library.cache / folder).mkdir(parents=True)
        (library.cache / folder).chmod(mode)
    weights.tensors("net")
    files = [file for folder in ("tensors", "checked") for file in (library.cache / folder).iterdir()]
    assert len(files) == 3 and {stat.S_IMODE(file.stat().st_mode) for file in files} == {mode & 0o666}


def test_no_home_directory(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANONFACE_CACHE", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: (_ for _ in ()).throw(KeyError(number)))
    with pytest.raises(WeightsError, match="no home directory") as refused:
        weights.cache_dir()
    assert "ANONFACE_CACHE" in refused.value.hint
    monkeypatch.setenv("ANONFACE_CACHE", "~/kept")
    with pytest.raises(WeightsError, match="is not a usable folder"):
        weights.cache_dir()


def test_load_says_which_file_does_not_fit(library: Library) -> None:
    save_file({"w": torch.zeros(1)}, library.own / "net.bin")
    library.add("net", (library.own / "net.bin").read_bytes(), f"file:{library.own / 'net.bin'}", format="tensors")
    with pytest.raises(WeightsError, match=r"net\.bin does not fit Linear"):
        weights.load(nn.Linear(1, 1), "net")


def test_files_of_other_libraries_have_no_tensors(library: Library) -> None:
    library.add("net", b"numbers", f"file:{library.own / 'net.bin'}")
    (library.own / "net.bin").write_bytes(b"numbers")
    with pytest.raises(WeightsError, match="hold no named tensors"):
        weights.tensors("net")
    with pytest.raises(WeightsError, match="are no graph"):
        weights.graph("net")
