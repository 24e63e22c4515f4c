"""Engines made from options, when the first photo needs one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anonface.cli import doctor
from anonface.cli.console import LOADING, say
from anonface.cli.key_sources import KeySource, Secret
from anonface.cli.options import BackendOptions
from anonface.errors import DeviceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.batch.task import Anonymizing, Recovering
    from anonface.crypto.keys import Argon2
    from anonface.images.paths import Input
    from anonface.pipeline import Engine, Watch


LEAST_MEMORY = 2 << 30  # bytes of address space, of which only a part is used


def _check_memory_limit() -> None:
    """Refuse a memory limit under which the libraries of the networks crash.

    Raises:
        DeviceError: the limit is too low.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_MEMORY:
        raise DeviceError(
            f"out of memory: this process may take {limit >> 20} MiB, the networks need {LEAST_MEMORY >> 20}",
            "raise the limit, see `ulimit -v`",
        )


def photos_in(folder: Path | None, role: str) -> list[Input]:
    """The photos below a folder that a command reads, and the table of their people."""
    from anonface.batch.plan import SEARCHED

    return [
        file
        for file in _files_in(folder, role)
        if file.path.suffix.lower() in SEARCHED or file.path.name == "identities.csv"
    ]


def _files_in(folder: str | Path | None, role: str) -> list[Input]:
    from anonface.images.paths import Input

    found = os.walk(folder) if folder else ()
    return [Input(Path(parent, name), role) for parent, _, names in found for name in names]


def model_files(own: BackendOptions) -> list[Input]:
    return _files_in(str(own.get("model", "")), "a file of --model")


def other_model_files(others: str | None) -> list[Input]:
    """The weights that --compare-with NAME=DIR names."""
    folders = [other.partition("=")[2] for other in (others or "").split(",")]
    return [file for folder in folders for file in _files_in(folder, "a file of --compare-with")]


@dataclass(frozen=True)
class EngineSettings:
    """The options of an engine; an empty ``backend`` stands for the one that a record names."""

    backend: str
    device: str
    detector: str
    parser: str
    batch_size: int = 1
    keep_faces: Path | None = None
    max_pixels: int = 64_000_000
    own: BackendOptions = field(default_factory=dict)


class LazyEngine:
    """Makes each engine when the first photo needs it.

    Args:
        quiet: do not print the device.

    Attributes:
        watch: called by the engines for every face.
        state: called with what is done before the first face, and with nothing once it is done.
    """

    def __init__(self, settings: EngineSettings, quiet: bool = False) -> None:
        self.watch: Watch = lambda doing, face, faces: None
        self.state: Callable[[str], None] = lambda text: None
        self._quiet = quiet
        self._settings = settings
        self._engines: dict[str, Engine] = {}

    def __call__(self, recorded: str = "") -> Engine:
        """The engine of the chosen backend, else of the ``recorded`` one."""
        s = self._settings
        backend = s.backend or recorded
        if backend not in self._engines:
            _check_memory_limit()
            self.state(LOADING)
            from anonface.pipeline import Engine

            if backend == "inpaint":  # the default: its files come with a progress bar; others fetch theirs one by one
                doctor.fetch_missing()
            keep = _portraits(s.keep_faces, s.max_pixels) if s.keep_faces else ()
            engine = Engine(backend, s.device, s.detector, s.parser, s.batch_size, s.own, keep, self.watch)
            if not self._engines and not self._quiet:
                say(f"anonface: device {engine.device_name}")
            self._engines[backend] = engine
            self.state("")
        return self._engines[backend]

    @property
    def device_name(self) -> str | None:
        """The device of the first engine; None before one is made."""
        return next((engine.device_name for engine in self._engines.values()), None)


def _portraits(folder: Path, max_pixels: int) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    from anonface.batch.plan import find
    from anonface.batch.task import open_photo

    for _, file in find([str(folder)], "anonymize", recursive=True):
        yield str(file), open_photo(file, max_pixels)[1].pixels


def anonymizing(secret: Secret, kdf: Argon2 | None, engine: LazyEngine, options: dict[str, Any]) -> Anonymizing:
    from anonface.batch.task import Anonymizing

    return Anonymizing(secret.under(kdf), engine, kdf=kdf, **options)


def recovering(secret: Secret, kdf: Argon2 | None, engine: LazyEngine, options: dict[str, Any]) -> Recovering:
    from anonface.batch.task import Recovering

    return Recovering(secret.of, engine, **options)


MakeTask = Callable[["Secret", "Argon2 | None", LazyEngine, dict[str, Any]], "Anonymizing | Recovering"]


def on_worker(
    make_task: MakeTask, keys: KeySource, kdf: Argon2 | None, engine: EngineSettings, options: dict[str, Any]
) -> Anonymizing | Recovering:
    """Make a task on a node of a cluster: the key comes from the node's files and environment."""
    return make_task(keys.secret(), kdf, LazyEngine(engine), options)
